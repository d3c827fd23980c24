"""What callers ask for, and what they are told."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from sqlalchemy.exc import SQLAlchemyError

from dispatcher.app import App
from dispatcher.errors import DispatcherError, MessageNotFound, OutcomeUnknown, TooLate
from dispatcher.message import Draft, Message, Rejection, Status
from dispatcher.submission.changes import NewTime
from dispatcher.submission.reserver import LOOKING_SECONDS
from dispatcher.times.send_time import to_ms
from tests.simulation.facts import Asked
from tests.simulation.faults import CallersSession
from tests.simulation.recurring import Organiser
from tests.simulation.scheduler import Process
from tests.simulation.setting import OWN_LIMITS, OWN_QUOTAS, PRIORITIES, REMINDED, SCOPES, TENANTS

if TYPE_CHECKING:
    from tests.simulation.world import World

_CHANNELS = ("sms", "sms", "mail", "mail", "push", "page")
_SUBMITS = (10, 1.4, 1)
"""How often callers submit one, many, or in a transaction of their own."""
_USUAL, _RESTLESS = (5, 4, 1, 0.5, 0.5, 3, 2), (4, 8, 1, 0.5, 0.5, 6, 3)
"""How often callers cancel, move, opt out, change quotas, limits, events and series; restless ones
move much."""
_REMINDERS = 0.25
_BEGIN_SECONDS = 5.0
_OF_ALL_CHANNELS = 0.2
_COMMITS = 0.8
_OPEN = (Status.SENDING, Status.HELD)


class Caller:
    def __init__(self, world: World, process: Process, cases: App) -> None:
        self._world = world
        self._process = process
        self._cases = cases
        self._rng = world.rng
        self._organiser = Organiser(world, process, cases)

    def begin(self) -> None:
        """Add a series as soon as the story begins."""
        while self._process.monotonic() < _BEGIN_SECONDS and self._organiser.add_series() != "ok":
            self._process.sleep(1.0)

    def ask(self) -> None:
        rng = self._rng
        if not self._world.known_ids or rng.random() < (0.5 if self._world.is_restless else 0.8):
            ways = [self._submit, self._submit_many, self._submit_joined]
            rng.choices(ways, _SUBMITS)[0]()
        else:
            own = [partial(self._change_own, what) for what in ("quotas", "limits")]
            ways = [self._cancel, self._reschedule, self._opt_out, *own]
            ways += [self._organiser.change_event, self._organiser.change_series]
            rng.choices(ways, _RESTLESS if self._world.is_restless else _USUAL)[0]()

    def _tell(self, what: str, detail: str = "") -> None:
        self._world.tell(self._process.name, what, detail)

    # Submitting

    def _submit(self) -> None:
        draft = self._draft()
        (asked,) = self._asking([draft])
        begun = self._process.monotonic()
        self._tell("asks: submit", f"{draft.recipient} key {draft.idempotency_key}")
        try:
            entry = self._cases.submitter.submit(draft, self._cases.own_transaction)
            message = entry.answer()
        except OutcomeUnknown as error:
            asked.told = "unknown"
            self._tell("is told", f"{type(error).__name__} {error.message_id}")
        except DispatcherError as error:
            asked.told = "refused"
            self._tell("is told", type(error).__name__)
            self._no_trace([asked], type(error).__name__)
        else:
            self._accepted(asked, message)
            self._perhaps_kept([draft], [message], begun)
        finally:
            if asked.told in ("", "unknown"):
                self._unanswered(asked.ids, begun)
        self._world.scheduler.running().seed = None

    def _submit_many(self) -> None:
        keyed = self._rng.choice([0.0, 0.5])
        drafts = [self._draft(keyed) for _ in range(self._rng.randrange(2, 8))]
        every = self._asking(drafts)
        begun = self._process.monotonic()
        way = self._rng.choice(["each", "all or none"])
        self._tell("asks: submit many", f"{len(drafts)}, {way}")
        results: list[Message | Rejection] = []
        otherwise = "unknown"
        submitter = self._cases.submitter
        try:
            is_atomic = way == "all or none"
            results.extend(
                submitter.submit_many(drafts, total=None, progress=None, atomic=is_atomic)
            )
        except DispatcherError as error:
            is_certain = way == "all or none" and not isinstance(error, OutcomeUnknown)
            otherwise = "refused" if is_certain else "unknown"
            self._tell("is told", f"{type(error).__name__} after {len(results)}")
        finally:
            if way == "all or none":
                self._perhaps_late(every, begun)  # also where the process dies
            answered = {result.id for result in results if isinstance(result, Message)}
            self._unanswered(set(every[0].ids) - answered, begun)
        for asked in every:
            asked.told = otherwise
        for asked, result in zip(every, results, strict=False):
            if isinstance(result, Message):
                self._accepted(asked, result)
            else:
                is_unknown = isinstance(result.error, OutcomeUnknown)
                asked.told = "unknown" if is_unknown else "refused"
                self._tell("is told", type(result.error).__name__)
        self._perhaps_kept(drafts, results, begun)
        if way == "all or none":
            self._all_or_none(every, results)
        if "unknown" not in {asked.told for asked in every}:
            self._no_trace(every, "a batch")
        self._world.scheduler.running().seed = None

    def _submit_joined(self) -> None:
        drafts = [self._draft() for _ in range(self._rng.randrange(1, 4))]
        every = self._asking(drafts)
        self._tell("asks: submit in a transaction", f"{len(drafts)}")
        session = self._world.wiring.session(self._process)
        begun = self._process.monotonic()
        try:
            messages = self._joined(session, drafts)
            told = self._ended(session)
        finally:
            session.close()  # also where the process dies
            self._perhaps_late(every, begun)
        for asked, message in zip(every, messages, strict=True):
            asked.told = "refused" if message is None else told
            if message is not None and told == "ok":
                self._accepted(asked, message)
        if told != "unknown":
            self._no_trace(every, "a transaction")
        self._world.scheduler.running().seed = None

    def _joined(self, session: CallersSession, drafts: Sequence[Draft]) -> list[Message | None]:
        """Submit in a transaction; return what is stored if it commits."""
        messages: list[Message | None] = [None] * len(drafts)
        for place, draft in enumerate(drafts):
            try:
                sink = self._cases.callers_transactions.of(session)
                messages[place] = self._cases.submitter.submit(draft, sink).answer()
            except DispatcherError as error:
                self._tell("is told", type(error).__name__)
            if not session.is_open:
                break
            self._process.sleep(self._rng.choice([0, 0, 0.5, 3.0]) * self._rng.random())
        return messages

    def _ended(self, session: CallersSession) -> str:
        """Commit, most often; return what the caller knows then."""
        if not session.is_open or self._rng.random() > _COMMITS:
            session.rollback()
            told = "refused"
        else:
            try:
                session.commit()
            except SQLAlchemyError as error:
                self._tell("is told", type(error).__name__)
                told = "unknown"
            else:
                told = "ok"
        self._world.scheduler.running()
        return told

    def _all_or_none(self, every: Sequence[Asked], results: Sequence[Message | Rejection]) -> None:
        stored = [result.id for result in results if isinstance(result, Message)]
        if len(stored) < len(results) and not set(stored).isdisjoint(every[0].ids):
            self._world.facts.wrong.append(f"{stored[0]} was accepted of a batch that was not")

    def _asking(self, drafts: Sequence[Draft]) -> list[Asked]:
        ids: list[UUID] = []
        number = self._world.server.number
        every = [
            Asked(
                draft.idempotency_key,
                cast("Any", draft.body)["text"],
                ids,
                server=number,
                began_us=self._world.db_us(),
                process=self._process.name,
                reminds=_reminds(draft),
            )
            for draft in drafts
        ]
        self._world.facts.asked += every
        self._world.scheduler.running().seed = every[0]
        return every

    def _is_late(self, begun: float) -> bool:
        return self._process.monotonic() - begun > self._world.settings.settle.total_seconds()

    def _perhaps_late(self, every: Sequence[Asked], begun: float) -> None:
        """Note messages that were stored together so late that they keep their times anyhow."""
        if self._is_late(begun):
            self._world.facts.committed_late.update(every[0].ids)

    def _unanswered(self, ids: Collection[UUID], begun: float) -> None:
        """Note messages that may be stored late and unchecked, or could not be taken back."""
        if self._is_late(begun):
            self._world.facts.perhaps_over_quota.update(ids)

    def _perhaps_kept(
        self, drafts: Sequence[Draft], results: Sequence[Message | Rejection], begun: float
    ) -> None:
        """Note keyed messages whose second look waited for Redis in vain: they are kept."""
        longest = self._world.settings.settle.total_seconds() + LOOKING_SECONDS
        if self._process.monotonic() - begun > longest:
            self._world.facts.committed_late.update(
                result.id
                for draft, result in zip(drafts, results, strict=False)
                if isinstance(result, Message) and draft.idempotency_key is not None
            )

    def _accepted(self, asked: Asked, message: Message) -> None:
        asked.told, asked.answer, asked.status = "ok", message.id, message.status
        asked.at_us = self._world.db_us()
        self._world.known_ids.append(message.id)
        if not asked.reminds:
            self._world.movable_ids.append(message.id)
        self._tell("is told", f"accepted {message.id}")

    def _no_trace(self, every: Sequence[Asked], why: str) -> None:
        """A refusal leaves no place, unless giving it back failed or a duplicate needs it."""
        world, first = self._world, every[0]
        is_keyed = any(asked.key is not None for asked in every)
        if is_keyed or first.leaks or first.server != world.server.number:
            return
        members = world.server.members() if first.ids else set()
        for id_ in first.ids:
            if id_.bytes in members and not (id_ in world.facts.pruned or world.store.row(id_)):
                world.facts.wrong.append(f"{id_} was refused with {why} and has a reservation")

    def _draft(self, keyed: float = 0.5) -> Draft:
        rng = self._rng
        if self._world.known_keys and rng.random() < 0.3 * keyed:
            key, known = rng.choice(self._world.known_keys[-6:])
            if rng.random() < 0.9:
                return known
        else:
            key = f"key {self._world.number()}"
        options: dict[str, Any] = {}
        if rng.random() < 0.5:
            options["on_conflict"] = "shift"
        if rng.random() < 0.3:
            options["expire_after"] = timedelta(seconds=rng.choice([1, 4, 20]))
        if rng.random() < 0.3:
            options["scopes"] = {"tenant": rng.choice(TENANTS)}
        number = self._world.number()
        delay_ms = rng.choice([0, 500, 5_000, 20_000, 40_000]) + rng.randrange(1_000)
        if rng.random() < _REMINDERS:
            options.pop("on_conflict", None)
            options |= {"event": f"event {number}", "event_at": self._organiser.some_time()}
            if self._world.events and rng.random() < 0.8:
                options = options | {"event": rng.choice(self._world.events[-3:])}
                del options["event_at"]
            else:
                self._world.events.append(options["event"])
            options["offset"] = timedelta(seconds=-rng.randrange(5))
        else:
            options["send_in"] = timedelta(milliseconds=delay_ms)
        draft = Draft(
            channel=rng.choice(_CHANNELS),
            recipient=rng.choice((*SCOPES, *REMINDED) if "event" in options else SCOPES),
            body={"text": str(number)},
            priority=PRIORITIES[number % len(PRIORITIES)],
            idempotency_key=key if rng.random() < keyed else None,
            on_unknown=rng.choice(["retry", "retry", "hold", None]),
            **options,
        )
        if draft.idempotency_key is not None:
            self._world.known_keys.append((key, draft))
        return draft

    # Changing

    def _cancel(self) -> None:
        id_ = self._rng.choice(self._world.known_ids[-10:])
        self._tell("asks: cancel", str(id_))
        self._world.facts.perhaps_cancelled.add(id_)
        for _ in range(3):
            try:
                [answer] = self._cases.cancellation.cancel_many([id_])
                if isinstance(answer, DispatcherError):
                    raise answer
            except (TooLate, MessageNotFound) as error:
                self._told_too_late(id_, error)
                self._tell("is told", type(error).__name__)
                return
            except DispatcherError as error:
                self._tell("is told", type(error).__name__)
            else:
                self._world.facts.cancelled.setdefault(id_, self._world.db_us())
                self._tell("is told", f"cancelled {id_}")
                return

    def _told_too_late(self, id_: UUID, error: DispatcherError) -> None:
        row = self._world.store.row(id_)
        # One that was being sent may have been put back since, and cancelled by another caller.
        was_final = not isinstance(error, TooLate) or error.status not in _OPEN
        if was_final and row is not None and row.status is Status.CANCELLED:
            wrong = f"{id_} is cancelled, but its caller was told {error}"
            self._world.facts.wrong.append(wrong)

    def _reschedule(self) -> None:
        # A reminder that has a time by hand follows its event no more.
        known = self._world.movable_ids
        if not known:
            return
        id_ = self._rng.choice(known[-2 if self._world.is_restless else -10 :])
        wish = NewTime(
            send_in=timedelta(milliseconds=self._rng.choice([500, 5_000, 20_000, 20_000])),
            on_conflict=self._rng.choice(["reject", "shift"]),
        )
        ids = [id_, *self._rng.sample(known, min(2, len(known)))]
        ids = ids[: self._rng.choice([1, 1, 3])]
        self._tell("asks: reschedule", ", ".join(map(str, ids)))
        for moved in self._cases.changes.reschedule_many(ids, wish):
            if isinstance(moved, DispatcherError):
                self._tell("is told", type(moved).__name__)
            else:
                self._tell("is told", f"moved {moved.id} to {moved.send_at.time()}")

    # Opting out

    def _opt_out(self) -> None:
        opt_outs, rng = self._world.facts.opt_outs, self._rng
        held = sorted(opt_outs.perhaps, key=str)
        if held and rng.random() < 0.7:
            who = rng.choice(held)
            self._tell("asks: unsuppress", str(who))
            with opt_outs.removing(who):
                self._told(lambda: self._cases.suppression_list.unsuppress(*who))
            return
        channel = None if rng.random() < _OF_ALL_CHANNELS else rng.choice(_CHANNELS)
        who = rng.choice(SCOPES), channel
        self._tell("asks: suppress", str(who))
        before = opt_outs.asked(who)
        if self._told(lambda: self._cases.suppression_list.suppress(*who)):
            opt_outs.confirmed(who, before)

    # Quotas and limits of single scopes

    def _change_own(self, what: str) -> None:
        quota_list, world = self._cases.quota_list, self._world
        put, known = {
            "quotas": (quota_list.put, OWN_QUOTAS), "limits": (quota_list.put_limits, OWN_LIMITS),
        }[what]  # fmt: skip
        tenant, rules = self._rng.choice(TENANTS), self._rng.choice(known)
        self._tell(f"asks: {what}", f"{tenant} {rules}")
        with world.facts.own_rules.changing(what, tenant, rules, world.db_us) as change:
            act = partial(put, "tenant", tenant, rules)
            change.is_sure = any(self._told(act) for _ in range(5))

    def _told(self, act: Callable[[], object]) -> bool:
        try:
            act()
        except DispatcherError as error:
            self._tell("is told", type(error).__name__)
            return False
        self._tell("is told", "done")
        return True


def _reminds(draft: Draft) -> dict[str, Any]:
    """Return what the line of a submit tells of its event."""
    if draft.event is None:
        return {}
    offset_ms = cast("timedelta", draft.offset) // timedelta(milliseconds=1)
    line: dict[str, Any] = {"event": draft.event, "offset_ms": offset_ms}
    return (
        line
        if draft.event_at is None
        else line | {"event_at_ms": to_ms(cast("datetime", draft.event_at))}
    )

"""Bugs that the simulation must find: each replaces named attributes of the package."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from secrets import token_hex
from typing import Any, NamedTuple

from sqlalchemy import and_

from dispatcher.delivery.group import permit_of
from dispatcher.errors import OutcomeUnknown, StoreUnavailable, TooLate
from dispatcher.message import MAX_PRIORITY, Status
from dispatcher.reservation.booking import BookingRequest
from dispatcher.reservation.encoding import Rules
from dispatcher.store.claims import _OPEN
from tests.simulation.faults import Fault
from tests.simulation.judge import Found, search
from tests.support.planting import Seams, nothing, planted

STORIES = 40
"""Within so many stories each bug is found; most take a few."""
_FREEZES = Fault.FREEZES_BEFORE, Fault.FREEZES_AFTER
_DEATHS = Fault.DIES_BEFORE, Fault.DIES_AFTER
_LOST = (Fault.LOST,)
_FAIR = (Fault.SLOW_BEFORE,)


class Bug(NamedTuple):
    """A bug, and the only kinds of faults in the stories that hunt it: those that bring it out."""

    seams: Seams
    kinds: Sequence[Fault] = ()


def hunt(name: str) -> Found:
    """Plant a bug, and play stories until one breaks a promise."""
    bug = BUGS[name]
    with planted(bug.seams):
        return search(stories=STORIES, kinds=bug.kinds)


def _last_claim_only(real: Any) -> Any:
    def may_be_sent(self: Any, token: int) -> bool:
        is_open = self.claim_token == token and self.status is not Status.FAILED
        return is_open and real(self, token)

    return may_be_sent


def _attempt_kept(real: Any) -> Any:
    def returned(self: Any, *arguments: Any) -> None:
        real(self, *arguments)
        self.attempt_count += 1

    return returned


def _attempt_forgotten(real: Any) -> Any:
    def failed(self: Any, *arguments: Any) -> None:
        real(self, *arguments)
        if self.status is Status.SCHEDULED:
            self.attempt_count -= 1

    return failed


def _never_held(real: Any) -> Any:
    def rescued(self: Any) -> None:
        self.on_unknown = "retry"
        real(self)

    return rescued


def _settled_first(real: Any) -> Any:
    def call(self: Any, transport: Any, claim: Any) -> Any:
        self._delivery.permits.settle([(permit_of(claim), timedelta(0))])
        return real(self, transport, claim)

    return call


def _only_scheduled(real: Any) -> Any:
    def cancel_many(self: Any, message_ids: Any, **named: Any) -> Any:
        if "because" not in named:  # a caller asks for one
            before = self.messages.get(*message_ids)
            if before.status is not Status.SCHEDULED:  # "no row was changed"
                return [TooLate(before.id, before.status)]
        return real(self, message_ids, **named)

    return cancel_many


def _keeping(keeps: Callable[[Sequence[BookingRequest]], bool]) -> Callable[[Any], Any]:
    def wrong(real: Any) -> Any:
        return lambda self, requests: None if keeps(requests) else real(self, requests)

    return wrong


def _blind(real: Any) -> Any:
    def begin(self: Any, *arguments: Any, **named: Any) -> None:
        real(self, *arguments, **named)
        self._timeout = -1e9

    return begin


def _never_again(real: Any) -> Any:
    def begin(self: Any) -> None:
        real(self)
        self.settings = self.settings.model_copy(update={"enqueue_grace": timedelta(days=100)})

    return begin


def _only_marked(_: Any) -> Any:
    def release(self: Any, limit: int) -> int:
        rows = self.store.unreleased(limit=limit)
        self.store.mark_released([row.message_id for row in rows])
        return len(rows)

    return release


def _withdrawn(real: Any) -> Any:
    def stored(self: Any, entry: Any, *, perhaps_stored: bool) -> Any:
        try:
            return real(self, entry, perhaps_stored=perhaps_stored)
        except OutcomeUnknown as error:
            self.reservations.withdraw([entry.slot.booked])
            raise StoreUnavailable(error.reason) from error

    return stored


def _first_legs(_: Any) -> Any:
    def withdraw(self: Any, requests: Any) -> Any:
        return self.shards.release_many(
            (self.legs(request.terms)[0], request.member, request.submit) for request in requests
        )

    return withdraw


def _suppressed_too(real: Any) -> Any:
    def claimable(tables: Any, where: Any) -> Any:
        return real(tables, and_(*(part for part in where.clauses if "suppress" not in str(part))))

    return claimable


def _tried_too(real: Any) -> Any:
    def overdue(*terms: Any) -> Any:
        return and_(*(part for part in real(*terms).clauses if "attempt_count" not in str(part)))

    return overdue


def _each_snooze(real: Any) -> Any:
    def untold(self: Any, unsent: Any, limits: Any) -> Any:
        untold = ((replace(claim.message, delayed_by=None), claim, wait) for claim, wait in unsent)
        pairs = [(replace(claim, message=message), wait) for message, claim, wait in untold]
        return real(self, pairs, limits)

    return untold


def _quotas_once(real: Any) -> Any:
    def read(self: Any) -> None:
        own = self.latest.own
        real(self)
        if own:
            self.latest = Rules(self._quotas, own, self.latest.limits)

    return read


def _too_far(real: Any) -> Any:
    def advance(self: Any, rows: Any) -> None:
        real(
            self,
            [row._replace(booked_until=row.booked_until + timedelta(seconds=5)) for row in rows],
        )

    return advance


def without_key(real: Any) -> Any:
    def occurring(*, idempotency_key: str, **fields: Any) -> Any:
        of_one = idempotency_key.partition(".")[2]
        return real(idempotency_key=f"series:{token_hex(6)}.{of_one}", **fields)

    return occurring


def _not_held(real: Any) -> Any:
    return lambda tables, connection, additions: real(
        tables, connection, [addition._replace(event_token=None) for addition in additions]
    )


def _but_the_first(name: str) -> Callable[[Any], Any]:
    """Let a change of an event leave out one of its messages."""

    def wrong(real: Any) -> Any:
        def change(self: Any, event: str, decide: Any) -> Any:
            def decided(*present: Any) -> Any:
                change = decide(*present)
                return change._replace(**{name: getattr(change, name)[1:]})

            return real(self, event, decided)

        return change

    return wrong


_LOCKED = "store.claims.LockedMessage"
_WITHDRAW = "submission.reserver.Reserver.withdraw"

BUGS: Mapping[str, Bug] = {
    "lost claims may record": Bug(
        {f"{_LOCKED}.is_open_for": lambda _: lambda self, _: self.status in _OPEN}, _FREEZES
    ),
    "late success forgotten": Bug({f"{_LOCKED}.may_be_sent": _last_claim_only}, _FREEZES),
    "a snooze counts an attempt": Bug({f"{_LOCKED}.returned": _attempt_kept}),
    "a retry forgets its attempt": Bug({f"{_LOCKED}.failed": _attempt_forgotten}, _FAIR),
    "rescue forgets hold": Bug({f"{_LOCKED}.rescued": _never_held}, _DEATHS),
    "permits settled before the send": Bug(
        {
            "delivery.group.Group._call": _settled_first,
            "delivery.group.Group._settle_permits": nothing,
        },
        _FREEZES,
    ),
    "cancel judged by the rows it changed": Bug(
        {"submission.changes.Cancellation.cancel_many": _only_scheduled}, _LOST
    ),
    "a failed submit keeps its reservation": Bug(
        {_WITHDRAW: _keeping(lambda batch: len(batch) == 1)}
    ),
    "a refused batch keeps its reservations": Bug(
        {_WITHDRAW: _keeping(lambda batch: len(batch) > 1)}
    ),
    "the rest of the claim not checked before the send": Bug(
        {"delivery.group.Group.__init__": _blind}, _FREEZES
    ),
    "sent without waiting for the instant": Bug(
        {
            "delivery.sender_pool.SenderPool.add": lambda real: (
                lambda self, group, claims: real(self, group, [(0.0, claim) for _, claim in claims])
            )
        }
    ),
    "no rescue": Bug({"delivery.sweep.Sweep.rescue": lambda _: lambda _: 0}, _DEATHS),
    "nothing enqueued a second time": Bug(
        {"delivery.sweep.Sweep.__post_init__": _never_again}, _DEATHS
    ),
    "reservations of cancelled and expired messages not released": Bug(
        {"delivery.reconciler.Reconciler._release_unneeded": _only_marked}, _LOST
    ),
    "an insert without an answer counts as not done": Bug(
        {"submission.sinks.OwnTransaction._stored": _withdrawn}, _LOST
    ),
    "unconfirmed reservations not settled": Bug(
        {"delivery.reconciler.Reconciler._settle_unconfirmed": lambda _: lambda _: Counter()},
        _DEATHS,
    ),
    "only the first shard withdrawn": Bug({"reservation.windows.Windows.withdraw": _first_legs}),
    "suppressed recipients are claimed": Bug({"store.claims._claimable": _suppressed_too}, _DEATHS),
    "a delay is told at each snooze": Bug({"delivery.group.Group._untold": _each_snooze}, _FAIR),
    "tried messages count as overdue": Bug({"app.overdue": _tried_too}, (Fault.REFUSED,)),
    "kept places given to every class": Bug(
        {
            "reservation.encoding.places": lambda real: (
                lambda quota, _, *more: real(quota, MAX_PRIORITY, *more)
            )
        },
        _FAIR,
    ),
    "quotas of single scopes read once": Bug(
        {"reservation.rulebook.RuleBook._read": _quotas_once}, _FAIR
    ),
    "limits of single scopes read once": Bug(
        {
            "limiters.permits.Permits._refresh": lambda real: (
                lambda self: None if self._known[0] else real(self)
            )
        },
        _FAIR,
    ),
    "permits of scopes not asked for": Bug(
        {"delivery.group.permit_of": lambda real: lambda *of: real(*of)._replace(scopes=None)},
        _FAIR,
    ),
    "permits of scopes not returned where the channel refuses": Bug(
        {"limiters.permits.Permits._return": nothing}, _FAIR
    ),
    "a pass advances past what it did not book": Bug({"store.series.SeriesRows.advance": _too_far}),
    "occurrences without their keys": Bug({"submission.series.Occurring": without_key}),
    "a change of a series that dies is not finished": Bug(
        {"submission.series.SeriesList._cancel_replaced": nothing}
    ),
    "a message stored though its event has moved": Bug(
        dict.fromkeys(["store.messages.hold_events", "store.outbox.hold_events"], _not_held)
    ),
    "a move of an event leaves a reminder behind": Bug(
        {"store.events.EventRows.change": _but_the_first("moves")}, _FAIR
    ),
    "a cancel of an event misses a reminder": Bug(
        {"store.events.EventRows.change": _but_the_first("cancelled")}, _FAIR
    ),
}

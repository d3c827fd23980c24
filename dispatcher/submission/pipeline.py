"""Accept drafts: validate, recall, reserve, store, enqueue. One draft is a batch of one."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, ClassVar
from uuid import UUID

from dispatcher.errors import (
    BatchRefused,
    DispatcherError,
    IdempotencyConflict,
    InvalidDraft,
    QuotaExceeded,
    SlotRefused,
    StoreUnavailable,
    Suppressed,
    alone,
)
from dispatcher.faults import fault
from dispatcher.message import (
    Draft,
    Message,
    Plan,
    Progress,
    Rejection,
    Status,
    new_ids,
    without_collector,
)
from dispatcher.reservation.booking import BookingRequest, Slot, is_planned_id
from dispatcher.settings import Settings
from dispatcher.store.events import EventChanged
from dispatcher.store.messages import GivenUp
from dispatcher.store.outbox import beside_the_loop
from dispatcher.store.schema import Addition, Event
from dispatcher.submission.enqueuer import Enqueuer
from dispatcher.submission.rows import DraftRow
from dispatcher.submission.validation import (
    DraftValidator,
    Occurring,
    ValidDraft,
    at_event,
    judge_times,
)
from dispatcher.telemetry.journal import Journal
from dispatcher.times.clock import Clock
from dispatcher.times.send_time import from_ms, to_ms

if TYPE_CHECKING:
    from dispatcher.reservation.plan import Copies
    from dispatcher.submission.reserver import Reserver
    from dispatcher.telemetry.spans import Answers, Spans

Result = Message | Rejection
OnProgress = Callable[[Progress], object]
Known = tuple[Message, str]
"""A message that has an idempotency key, and the fingerprint of the draft it was made of."""

BATCH = 1_000
_MOST_SIZE = 1_000_000
"""Most text of the rows of one batch: once read, it may take 25 times as much memory."""
_MINUTE_MS = 60_000
_EVENT_TRIES = 20


@dataclass(slots=True, eq=False)
class Entry:
    """One draft of a batch: ``valid``, then booked in ``slot``, then about to be stored.

    ``result`` is None until the draft is refused, recalled or composed; the sink replaces it if it
    stores another message or none. ``owned`` is the reservation that is released in the end; None
    where there is none, or its message is stored or may be. ``booked_at`` is of the monotonic
    clock. ``supersedes`` is the message that ended unsent and has the key. ``tries`` is how often
    it may be judged once more: where its reservation was released before it was stored, or its
    event moved. ``is_new``: its message was stored by this submit, and not by an earlier one.
    """

    number: int
    draft: Draft
    valid: ValidDraft = field(init=False)
    slot: Slot = field(init=False)
    addition: Addition = field(init=False)
    result: Message | DispatcherError | None = None
    owned: Slot | None = None
    booked_at: float = 0.0
    supersedes: UUID | None = None
    tries: int = _EVENT_TRIES
    is_new: bool = False

    def answer(self) -> Message:
        result = self.result
        if isinstance(result, Message):
            return result
        raise result or RuntimeError("a draft was not decided")


@dataclass(slots=True, eq=False)
class Batch:
    """Drafts that go through the pipeline together.

    ``atomic`` accepts all or none. ``firsts`` are the first entries with each idempotency key,
    ``open`` are to be reserved, ``booked`` have a reservation, the messages of ``stored`` are
    stored under its id. ``refused`` are requests without a slot, to be noted.
    """

    entries: list[Entry]
    atomic: bool = False
    firsts: Mapping[str, Entry] = field(default_factory=dict)
    open: list[Entry] = field(default_factory=list)
    booked: list[Entry] = field(default_factory=list)
    stored: list[Entry] = field(default_factory=list)
    refused: list[tuple[BookingRequest, SlotRefused]] = field(default_factory=list)

    def refuse_rest(self) -> bool:
        """Refuse the rest, but messages known before, where one is refused; return whether."""
        refused = [e.number for e in self.entries if isinstance(e.result, DispatcherError)]
        for entry in self.entries:
            if entry.result is None and refused:
                entry.result = BatchRefused(refused[0])
        return bool(refused)

    def answer_repeats(self, entries: Sequence[Entry]) -> list[Entry]:
        """Answer repeats of a key; return the entries to be judged in another turn.

        Where the first draft with a key was refused, the key is free, and the next one is judged
        on its own, as it would be in another batch.
        """
        firsts = self.firsts.items()
        _answer_known(entries, {
            key: (first.result, first.valid.fingerprint or "")
            for key, first in firsts if isinstance(first.result, Message)
        })  # fmt: skip
        return [entry for entry in entries if entry.result is None]


@dataclass(kw_only=True)
class Sink:
    """The steps of the pipeline that depend on where messages are stored.

    All may raise StoreUnavailable.
    """

    reservations: Reserver | Copies
    grace: timedelta = timedelta(0)
    """How much longer than usual a reservation may wait for its row."""
    recalls_unkeyed: ClassVar[bool] = False
    """Whether :meth:`recall` must be called for drafts without keys, too."""
    refuses_suppressed: ClassVar[bool] = True
    """Whether :meth:`store` refuses by itself a single recipient who has opted out."""

    def recall(self, keyed: Mapping[str, Entry]) -> Mapping[str, Known]:
        """Return the messages that have one of these idempotency keys, unless it is free again."""
        raise NotImplementedError

    def events(self, names: Sequence[str]) -> Mapping[str, Event]:
        raise NotImplementedError

    def suppressed(self, recipients: Iterable[tuple[str, str]]) -> Container[tuple[str, str]]:
        raise NotImplementedError

    def store(self, batch: Batch) -> None:
        """Store what is booked, and disown the reservations that stored messages need.

        An entry whose reservation was released meanwhile is refused with GivenUp.
        """
        raise NotImplementedError

    def enqueue(self, batch: Batch) -> None:
        """Enqueue what is committed."""


@dataclass(kw_only=True)
class Submitter:
    """The pipeline of every submit; a sink (``sinks.py``) stores and enqueues.

    When its process dies at any line, maintenance heals what is left: it releases a reservation
    without a message, and enqueues a message that was not enqueued.
    """

    settings: Settings
    clock: Clock
    enqueuer: Enqueuer
    own: Sink
    dry_run: Callable[[], AbstractContextManager[Sink]]
    journal: Journal
    validator: DraftValidator
    spans: Spans | None = None

    def submit(self, draft: Draft, sink: Sink) -> Entry:
        """Accept one draft, or raise its refusal; the entry has the message."""
        entry = Entry(0, draft)
        try:
            if self.spans is None:
                self.run([entry], sink)
                entry.answer()
            else:
                with self.spans.submitting() as accepted:
                    self.run([entry], sink)
                    accepted(entry.answer())
        except DispatcherError as error:
            self.journal.refused(error)
            raise
        return entry

    def submit_many(
        self,
        drafts: Iterable[Draft],
        *,
        total: int | None,
        progress: OnProgress | None,
        atomic: bool = False,
    ) -> Iterator[Result]:
        """Yield the result of each draft, in order, a batch at a time; with ``atomic`` of all."""
        batches = _batches(drafts)
        if atomic:
            batches = iter([[Entry(number, draft) for number, draft in enumerate(drafts)]])
        tally = Tally(total, progress)
        answers: Answers = (self._answered(entries, tally, atomic) for entries in batches)
        return chain.from_iterable(
            answers if self.spans is None else self.spans.submitting_many(answers)
        )

    def plan(
        self,
        drafts: Iterable[Draft],
        *,
        total: int | None,
        progress: OnProgress | None,
        refuse: Callable[[Rejection], object] | None = None,
    ) -> Plan:
        """Return what a submit of these drafts would do. They are read a batch at a time.

        ``refuse`` is called with each refusal; the plan then lists none.
        """
        tally = Tally(total, progress)
        rejections: list[Rejection] = []
        refuse = refuse or rejections.append
        with self.dry_run() as sink:
            for entries in _batches(drafts):
                with without_collector():
                    self.run(entries, sink)
                for result in tally.add(entries):
                    if isinstance(result, Rejection):
                        refuse(_without_planned_ids(result))
        return Plan(
            accepted=tally.accepted,
            known=tally.known,
            shifted=tally.shifted,
            first_send_at=tally.first_send_at,
            last_send_at=tally.last_send_at,
            rejections=tuple(rejections),
            asked=_by_minute(tally.asked),
            promised=_by_minute(tally.promised),
        )

    def _answered(self, entries: list[Entry], tally: Tally, atomic: bool) -> list[Result]:
        with without_collector():
            self.run(entries, self.own, atomic=atomic)
        results = tally.add(entries)
        for result in results:
            if isinstance(result, Rejection):
                self.journal.refused(result.error)
        return results

    def run(self, entries: list[Entry], sink: Sink, *, atomic: bool = False) -> None:
        """Take drafts through every step; each has a result then.

        Raises ReservationsUnavailable: then nothing is reserved; and StoreUnavailable and
        OutcomeUnknown as the sink does.
        """
        now = self.clock.now()
        beside_the_loop(partial(self._validate, entries, now))
        while entries:
            batch = Batch(entries, atomic)
            try:
                self._recall(batch, sink, now)
                self._reserve(batch, sink)
                self._store(batch, sink)
            finally:
                unneeded = [entry.owned.booked for entry in batch.booked if entry.owned is not None]
                if unneeded:
                    sink.reservations.withdraw(unneeded)
            sink.enqueue(batch)
            if batch.refused:  # at the end, so that a slow Redis delays no message
                sink.reservations.note(batch.refused)
            entries = [entry for entry in entries if entry.result is None]
            entries = batch.answer_repeats(entries) if entries else []

    def _validate(self, entries: Iterable[Entry], now: datetime) -> None:
        for entry in entries:
            try:
                entry.valid = self.validator.validate(entry.draft, now=now)
                if entry.valid.event_token is not None:  # an occurrence: that of its series
                    entry.tries = 1
            except InvalidDraft as error:
                entry.result = error

    def _recall(self, batch: Batch, sink: Sink, now: datetime) -> None:
        """Answer what was submitted before; judge the times of the others.

        A repeated call may come when its time has passed: it still gets its message.
        """
        undecided = [entry for entry in batch.entries if entry.result is None]
        if not undecided:
            return
        batch.firsts = firsts = _by_key(undecided)
        if firsts or sink.recalls_unkeyed:
            _answer_known(undecided, _known(firsts, sink))
        names = {e.valid.event or "" for e in undecided if e.result is None and e.valid.reminder}
        stored = sink.events([*names]) if names else {}
        new: dict[str, Event] = {}
        for entry in undecided:
            first = firsts.get(entry.valid.idempotency_key or "", entry)
            if entry.result is not None:
                continue
            if first is not entry:
                if batch.atomic and entry.valid.fingerprint != first.valid.fingerprint:
                    entry.result = IdempotencyConflict(entry.valid.idempotency_key or "", None)
                continue
            try:
                if (reminder := entry.valid.reminder) is not None:
                    entry.valid = at_event(
                        entry.valid, reminder, stored, new, settings=self.settings, now=now
                    )
                judge_times(entry.valid, now=now)
            except InvalidDraft as error:
                entry.result = error
            else:
                batch.open.append(entry)

    def _reserve(self, batch: Batch, sink: Sink) -> None:
        """Reserve for every entry that is open; of an atomic batch for all or none."""
        is_single = len(batch.entries) == 1 and not batch.atomic
        if not (is_single and sink.refuses_suppressed):
            _refuse_suppressed(batch.open, sink)
        booked_at = self.clock.monotonic()
        fault("submit.before_reserve")
        entries = [entry for entry in batch.open if entry.result is None]
        if (batch.atomic and batch.refuse_rest()) or not entries:
            return
        requests = [
            entry.valid.request(message_id, supersedes=entry.supersedes)
            for entry, message_id in zip(entries, new_ids(len(entries)), strict=True)
        ]
        answers = sink.reservations.reserve(requests, grace=sink.grace)
        refused: list[tuple[Entry, BookingRequest]] = []
        for entry, request, answer in zip(entries, requests, answers, strict=True):
            if isinstance(answer, Slot):
                entry.slot = entry.owned = answer
                entry.booked_at = booked_at
                batch.booked.append(entry)
            else:
                entry.result = answer
                refused.append((entry, request))
        if refused:
            self._explain(refused, sink, is_single=is_single)
            batch.refused = [
                (request, entry.result)
                for entry, request in refused
                if isinstance(entry.result, SlotRefused)
            ]
        fault("submit.after_reserve")

    def _explain(
        self, refused: Sequence[tuple[Entry, BookingRequest]], sink: Sink, *, is_single: bool
    ) -> None:
        """Find better answers for entries without a slot: a duplicate's message, or an opt-out."""
        entries = [entry for entry, _ in refused if isinstance(entry.result, SlotRefused)]
        if keyed := _by_key(entries):
            _answer_known(entries, sink.recall(keyed))
        if is_single and sink.refuses_suppressed:
            _refuse_suppressed([e for e in entries if isinstance(e.result, SlotRefused)], sink)

    def _store(self, batch: Batch, sink: Sink) -> None:
        if (batch.atomic and batch.refuse_rest()) or not batch.booked:
            return
        now = self.clock.now()
        created_at = now.replace(microsecond=now.microsecond // 1_000 * 1_000)
        trace = None if self.spans is None else self.spans.current()
        for entry in batch.booked:
            valid, (message_id, at_ms, request) = entry.valid, entry.slot
            # The same object, if it was not shifted: an instant is costly to make.
            send_at = valid.send_at if at_ms == request.asked_ms else from_ms(at_ms)
            enqueue_at = self.enqueuer.enqueue_at(send_at, now=created_at)
            entry.result = message = compose(
                valid,
                message_id,
                send_at,
                created_at=created_at,
                max_attempts=self.settings.channels[valid.channel].max_attempts,
                enqueued_at=created_at if enqueue_at > send_at else None,
                trace=trace,
            )
            entry.addition = Addition(
                message,
                enqueue_at,
                valid.fingerprint,
                valid.body_json,
                valid.status_url,
                entry.supersedes,
                valid.event_token,
                valid.new_event,
            )
        sink.store(batch)
        for entry in batch.booked:
            if isinstance(entry.result, (GivenUp, EventChanged)):
                entry.tries -= 1 if isinstance(entry.result, EventChanged) else _EVENT_TRIES // 2
                error: StoreUnavailable = entry.result
                if not isinstance(entry.draft, Occurring):  # its series tells the two apart
                    error = StoreUnavailable(error.reason, remedy="submit it again")
                entry.result = None if entry.tries > 0 else error


def _by_key(entries: Iterable[Entry]) -> dict[str, Entry]:
    firsts: dict[str, Entry] = {}
    for entry in entries:
        if (key := entry.valid.idempotency_key) is not None:
            firsts.setdefault(key, entry)
    return firsts


def _answer_known(entries: Iterable[Entry], known: Mapping[str, Known]) -> None:
    for entry in entries:
        try:
            entry.result = recalled(entry.valid, known) or entry.result
        except IdempotencyConflict as error:
            entry.result = error


def recalled(valid: ValidDraft, known: Mapping[str, Known]) -> Message | None:
    """Return the message with the draft's key. Raises IdempotencyConflict for other content."""
    key = valid.idempotency_key or ""
    if key not in known:
        return None
    message, fingerprint = known[key]
    if fingerprint != valid.fingerprint:
        raise IdempotencyConflict(key, message.id)
    return message


def _known(keyed: Mapping[str, Entry], sink: Sink) -> Mapping[str, Known]:
    try:
        return sink.recall(keyed)
    except StoreUnavailable as error:
        singly = _singly([*keyed.values()], error)
    known: dict[str, Known] = {}
    for entry in singly:
        known |= _known(_by_key([entry]), sink)
    return known


def _refuse_suppressed(entries: Sequence[Entry], sink: Sink) -> None:
    named = [(entry, (entry.valid.recipient, entry.valid.channel)) for entry in entries]
    if not named:
        return
    try:
        suppressed = sink.suppressed([recipient for _, recipient in named])
    except StoreUnavailable as error:
        for entry in _singly(entries, error):
            _refuse_suppressed([entry], sink)
        return
    for entry, recipient in named:
        if recipient in suppressed:
            entry.result = Suppressed(entry.valid.channel)


def _singly(entries: Sequence[Entry], error: StoreUnavailable) -> Sequence[Entry]:
    """Return the entries to ask for one by one: the database refuses a text of one of them.

    A single one has the error as its result. Raises another error.
    """
    if not error.refused:
        raise error
    if len(entries) > 1:
        return entries
    entries[0].result = error
    return ()


def compose(
    valid: ValidDraft,
    message_id: UUID,
    send_at: datetime,
    *,
    created_at: datetime,
    max_attempts: int,
    enqueued_at: datetime | None = None,
    trace: str | None = None,
) -> Message:
    return Message(
        id=message_id,
        channel=valid.channel,
        recipient=valid.recipient,
        scope=valid.scope,
        body=valid.body,
        send_at=send_at,
        next_attempt_at=send_at,
        expires_at=valid.expiry(send_at),
        status=Status.SCHEDULED,
        attempt_count=0,
        max_attempts=max_attempts,
        idempotency_key=valid.idempotency_key,
        created_at=created_at,
        finished_at=None,
        last_error=None,
        scopes=valid.scopes,
        zone=valid.zone,
        quiet_hours=valid.quiet_hours,
        on_unknown=valid.on_unknown,
        expire_after=valid.expire_after,
        # A repeat that asks for a length from now has the reservation of the first submit.
        asked_at=valid.send_at if valid.latest is not None and valid.send_at < send_at else None,
        trace=trace,
        enqueued_at=enqueued_at,
        campaign=valid.campaign,
        event=valid.event,
        wish=valid.wish,
        priority=valid.terms.priority,
    )


def _batches(drafts: Iterable[Draft]) -> Iterator[list[Entry]]:
    """Yield entries, numbered from 0, a batch at a time. Of long rows a batch has fewer."""
    entries: list[Entry] = []
    size = 0
    for number, draft in enumerate(drafts):
        entries.append(Entry(number, draft))
        size += draft.size if isinstance(draft, DraftRow) else 0
        if len(entries) == BATCH or size >= _MOST_SIZE:
            yield entries
            entries, size = [], 0
    if entries:
        yield entries


@dataclass(slots=True)
class Tally:
    """Counts the results of drafts, and reports progress.

    The times are those of new messages; ``promised`` counts these by minutes since 1970, ``asked``
    also the drafts that a quota or quiet hours refuse.
    """

    total: int | None = None
    on_progress: OnProgress | None = None
    accepted: int = 0
    refused: int = 0
    known: int = 0
    shifted: int = 0
    first_send_at: datetime | None = None
    last_send_at: datetime | None = None
    asked: Counter[int] = field(default_factory=Counter)
    promised: Counter[int] = field(default_factory=Counter)

    def add(self, entries: Sequence[Entry]) -> list[Result]:
        results: list[Result] = []
        for entry in entries:
            error = entry.result
            if isinstance(error, DispatcherError):
                results.append(Rejection(entry.number, entry.draft, alone(error)))
                self.refused += 1
                if isinstance(error, SlotRefused):
                    self.asked[to_ms(error.send_at) // _MINUTE_MS] += 1
                continue
            message = entry.answer()
            results.append(message)
            self.accepted += 1
            if not entry.is_new:
                self.known += 1
                continue
            send_at, at_ms = message.send_at, entry.slot.at_ms
            asked_ms = entry.slot.request.asked_ms
            self.shifted += at_ms != asked_ms
            self.asked[asked_ms // _MINUTE_MS] += 1
            self.promised[at_ms // _MINUTE_MS] += 1
            if self.first_send_at is None or send_at < self.first_send_at:
                self.first_send_at = send_at
            if self.last_send_at is None or send_at > self.last_send_at:
                self.last_send_at = send_at
        if self.on_progress is not None:
            self.on_progress(
                Progress(self.accepted, self.refused, self.total, self.known, self.shifted)
            )
        return results


def _by_minute(counted: Mapping[int, int]) -> dict[datetime, int]:
    return {from_ms(minute * _MINUTE_MS): counted[minute] for minute in sorted(counted)}


def _without_planned_ids(refused: Rejection) -> Rejection:
    """Return a refusal of a plan as it is shown: drafts in the way have no ids of messages."""
    error = refused.error
    if isinstance(error, IdempotencyConflict):
        if error.message_id is not None and is_planned_id(error.message_id):
            error = IdempotencyConflict(error.key, None)
    elif isinstance(error, QuotaExceeded):
        stored = [message_id for message_id in error.conflicting if not is_planned_id(message_id)]
        error = QuotaExceeded(
            quota=error.quota,
            scope=error.scope,
            send_at=error.send_at,
            conflicting=stored,
            next_slot=error.next_slot,
            latest=error.latest,
            most=error.most,
            drafts=len(error.conflicting) - len(stored),
        )
    return replace(refused, error=error)


class LazyResults(Iterator[Result]):
    """Results that are computed while they are read. Warns when they are never read."""

    def __init__(self, results: Iterator[Result]) -> None:
        self._results = results
        self._begun = False

    def __next__(self) -> Result:
        self._begun = True
        return next(self._results)

    def __del__(self) -> None:
        if not self._begun:
            warnings.warn(
                "submit_many was given an iterable and its results were never read: "
                "nothing was submitted",
                RuntimeWarning,
                stacklevel=2,
            )

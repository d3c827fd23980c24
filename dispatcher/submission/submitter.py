"""Accept drafts: validate, recall, reserve, store, enqueue. One draft is a batch of one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from dispatcher.errors import (
    DispatcherError,
    IdempotencyConflict,
    InvalidDraft,
    SlotRefused,
    StoreUnavailable,
    Suppressed,
)
from dispatcher.faults import fault
from dispatcher.message import Draft, Message
from dispatcher.settings import Settings
from dispatcher.store import Addition, GivenUp
from dispatcher.store.event_loop import beside_the_loop
from dispatcher.submission.batch import Batch, Entry, compose, recalled, requests_of
from dispatcher.submission.enqueuer import Enqueuer
from dispatcher.submission.sinks import Sink
from dispatcher.submission.validation import (
    Check,
    Prepare,
    ValidDraft,
    judge_times,
    validate,
)
from dispatcher.telemetry.journal import Journal
from dispatcher.times.clock import Clock
from dispatcher.times.send_time import from_ms, to_ms

if TYPE_CHECKING:
    from dispatcher.telemetry.spans import Spans


class Submitter:
    """The pipeline of every submit; a sink (``sinks.py``) stores and enqueues.

    When its process dies at any line, maintenance heals what is left: it releases a reservation
    without a message, and enqueues a message that was not enqueued.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        clock: Clock,
        enqueuer: Enqueuer,
        journal: Journal,
        check: Check,
        prepare: Prepare,
        lacks: Callable[[str], bool],
        spans: Spans | None = None,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._enqueuer = enqueuer
        self._journal = journal
        self._check = check
        self._prepare = prepare
        self._lacks = lacks
        self._spans = spans

    def submit(self, draft: Draft, sink: Sink) -> Message:
        return self.entered(draft, sink).answer()

    def entered(self, draft: Draft, sink: Sink) -> Entry:
        """Accept one draft; return its entry, which tells whether its message is new.

        Raises InvalidDraft, Suppressed, QuotaExceeded, QuietHours, IdempotencyConflict,
        ReservationsUnavailable, StoreUnavailable: then nothing is reserved or stored; and
        OutcomeUnknown.
        """
        entry = Entry(0, draft)
        try:
            if self._spans is None:
                self.run(Batch([entry]), sink)
                entry.answer()
            else:
                with self._spans.submitting() as accepted:
                    self.run(Batch([entry]), sink)
                    accepted(entry.answer())
        except DispatcherError as error:
            self._journal.refused(error)
            raise
        return entry

    def run(self, batch: Batch, sink: Sink) -> None:
        """Take a batch through every step; each entry is decided then.

        Raises ReservationsUnavailable: then nothing is reserved; and StoreUnavailable and
        OutcomeUnknown as the sink does.
        """
        now = self._clock.now()
        beside_the_loop(partial(self._validate, batch, now))
        self._recall(batch, sink, now)
        with _owned(batch, sink):
            self._reserve(batch, sink)
            self._store(batch, sink)
        sink.enqueue(batch)
        if batch.refused:
            sink.reservations.note(batch.refused)

    def _validate(self, batch: Batch, now: datetime) -> None:
        for entry in batch.entries:
            try:
                entry.valid = self._validated(entry.draft, now=now)
            except InvalidDraft as error:
                entry.result = error

    def _validated(self, draft: Draft, *, now: datetime) -> ValidDraft:
        """Judge every field of ``draft``, as the transports that carry it and its status do, too.

        Raises InvalidDraft, and StoreUnavailable where only the database knows what it can store.
        """
        if not isinstance(draft, Draft):
            raise InvalidDraft("draft", f"a {type(draft).__name__}", "a Draft")
        prepared, given_body = self._prepare(draft)
        valid = validate(prepared, settings=self._settings, now=now, given_body=given_body)
        self._check(valid.channel, valid.recipient, valid.body)
        if valid.status_url is not None:
            try:
                self._check(self._settings.status_channel, valid.status_url, {})
            except InvalidDraft as refused:
                raise InvalidDraft("status_url", refused.problem, refused.accepted) from None
        for name, text in valid.texts_beyond_ascii():
            if self._lacks(text):
                problem = "a character that the encoding of the database lacks"
                raise InvalidDraft(name, problem, "its characters, or a database in UTF-8")
        return valid

    def _recall(self, batch: Batch, sink: Sink, now: datetime) -> None:
        """Answer what was submitted before; judge the times of the others.

        A repeated call may come when its time has passed: it still gets its message.
        """
        open_ = batch.undecided()
        if not open_:
            return
        keyed: dict[str, Entry] = {}
        for entry in open_:
            key = entry.valid.idempotency_key
            if key is not None:
                first = keyed.setdefault(key, entry)
                entry.same_as = first if first is not entry else None
        known = sink.recall(keyed)
        for entry in open_:
            try:
                if known:
                    entry.result = recalled(entry.valid, known)
                if entry.result is None and entry.same_as is None:
                    judge_times(entry.valid, now=now)
            except (IdempotencyConflict, InvalidDraft) as error:
                entry.result = error
            if entry.result is not None:
                entry.same_as = None

    def _refuse_suppressed(self, entries: Iterable[Entry], sink: Sink) -> None:
        named = [(entry, (entry.valid.recipient, entry.valid.channel)) for entry in entries]
        if named:
            found = sink.suppressed([each for _, each in named])
            for entry, each in named:
                if each in found:
                    entry.result = Suppressed(entry.valid.channel)

    def _reserve(self, batch: Batch, sink: Sink) -> None:
        """Reserve for every entry that is undecided; of an atomic batch for all or none."""
        if not sink.refuses_suppressed(batch):
            self._refuse_suppressed(batch.undecided(), sink)
        if not (batch.atomic and batch.is_refused):
            self._book(batch, batch.undecided(), sink)
        if not batch.atomic:
            return
        batch.refuse_conflicts()
        if batch.is_refused:
            batch.refuse_all()

    def _book(self, batch: Batch, entries: Sequence[Entry], sink: Sink) -> None:
        """Reserve for these entries; each is refused, or has a reservation, or has been stored."""
        batch.started = self._clock.monotonic()
        fault("submit.before_reserve")
        if not entries:
            return
        requests = list(map(Entry.ask, entries, sink.ids(len(entries))))
        batch.note_answers(entries, sink.reservations.reserve(requests, grace=sink.grace))
        if len(batch.booked) < len(entries):
            refused = [entry for entry in entries if isinstance(entry.result, SlotRefused)]
            self._explain(refused, batch, sink)
        fault("submit.after_reserve")

    def _explain(self, refused: Sequence[Entry], batch: Batch, sink: Sink) -> None:
        """Find better answers for entries without a slot: a duplicate's message, or an opt-out.

        The others are noted at the end, so that a slow Redis delays no message.
        """
        keyed = {e.valid.idempotency_key: e for e in refused if e.valid.idempotency_key is not None}
        if keyed:
            known = sink.recall(keyed)
            for entry in keyed.values():
                try:
                    message = recalled(entry.valid, known)
                except IdempotencyConflict as error:
                    entry.result = error
                else:
                    if message is not None:
                        entry.result, entry.request = message, None
        if sink.refuses_suppressed(batch):
            left = [each for each in refused if isinstance(each.result, SlotRefused)]
            self._refuse_suppressed(left, sink)
        batch.refused += [
            (each.request, each.result)
            for each in refused
            if each.request is not None and isinstance(each.result, SlotRefused)
        ]

    def _store(self, batch: Batch, sink: Sink) -> None:
        """Store the messages that have a reservation.

        A message whose reservation was released before it was stored, because this process stood
        still in between, is reserved and stored once more.
        """
        if batch.atomic and batch.is_refused:
            return
        self._compose(batch)
        sink.store(batch)
        given_up = [entry for entry in batch.booked if isinstance(entry.result, GivenUp)]
        if given_up:
            lost = set(given_up)
            batch.booked = [entry for entry in batch.booked if entry not in lost]
            batch.stored = [entry for entry in batch.stored if entry not in lost]
            again = Batch([*given_up])
            for entry in given_up:
                entry.result, entry.keeps_reservation = None, False
            with _owned(again, sink):
                self._book(again, given_up, sink)
                self._compose(again)
                sink.store(again)
            for entry in again.booked:
                if isinstance(entry.result, GivenUp):
                    entry.result = StoreUnavailable(entry.result.reason, remedy="submit it again")
            batch.stored += again.stored
            batch.refused += again.refused

    def _compose(self, batch: Batch) -> None:
        """Make the messages that are to be stored, and the answers that are stored with them."""
        created_at = from_ms(to_ms(self._clock.now()))
        trace = None if self._spans is None else self._spans.current()
        for entry in batch.booked:
            valid, (message_id, at_ms) = entry.valid, entry.reservation
            # The same object, if it was not shifted: an instant is costly to make.
            is_as_asked = entry.request is not None and at_ms == entry.request.asked_ms
            send_at = valid.send_at if is_as_asked else from_ms(at_ms)
            enqueue_at = self._enqueuer.enqueue_at(send_at, now=created_at)
            entry.result = message = compose(
                valid,
                message_id,
                send_at,
                created_at=created_at,
                max_attempts=self._settings.channels[valid.channel].max_attempts,
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
            )


@contextmanager
def _owned(batch: Batch, sink: Sink) -> Iterator[None]:
    """Release in the end, also after an error, the reservations that no entry keeps."""
    try:
        yield
    finally:
        unneeded = [entry for entry in batch.booked if not entry.keeps_reservation]
        if unneeded:
            sink.reservations.withdraw(requests_of(unneeded))

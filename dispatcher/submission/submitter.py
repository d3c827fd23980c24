"""Accept drafts: validate, recall, reserve, store, enqueue. One draft is a batch of one.

Submit and plan many drafts, a batch at a time.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from dispatcher.errors import (
    DispatcherError,
    IdempotencyConflict,
    InvalidDraft,
    QuotaExceeded,
    SlotRefused,
    StoreUnavailable,
    Suppressed,
)
from dispatcher.faults import fault
from dispatcher.message import Draft, Message, Plan, Rejection, new_ids, without_collector
from dispatcher.reservation import is_planned_id
from dispatcher.settings import Settings
from dispatcher.store.event_loop import beside_the_loop
from dispatcher.store.messages import GivenUp
from dispatcher.store.schema import Addition
from dispatcher.submission.batch import (
    MINUTE_MS,
    Batch,
    Entry,
    OnProgress,
    Result,
    Tally,
    batch_of,
    batches,
    compose,
    recalled,
)
from dispatcher.submission.enqueuer import Enqueuer
from dispatcher.submission.sinks import DryRun, OwnTransaction, Sink
from dispatcher.submission.validation import DraftValidator, judge_times
from dispatcher.telemetry.journal import Journal
from dispatcher.times.clock import Clock
from dispatcher.times.send_time import from_ms, to_ms

if TYPE_CHECKING:
    from dispatcher.telemetry.spans import Answers, Spans


@dataclass(kw_only=True)
class Submitter:
    """The pipeline of every submit; a sink (``sinks.py``) stores and enqueues.

    When its process dies at any line, maintenance heals what is left: it releases a reservation
    without a message, and enqueues a message that was not enqueued.
    """

    settings: Settings
    clock: Clock
    enqueuer: Enqueuer
    own: OwnTransaction
    dry_run: Callable[[], DryRun]
    journal: Journal
    validator: DraftValidator
    spans: Spans | None = None

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
            if self.spans is None:
                self.run(Batch([entry]), sink)
                entry.answer()
            else:
                with self.spans.submitting() as accepted:
                    self.run(Batch([entry]), sink)
                    accepted(entry.answer())
        except DispatcherError as error:
            self.journal.refused(error)
            raise
        return entry

    def submit_each(
        self, drafts: Iterable[Draft], *, total: int | None, progress: OnProgress | None
    ) -> Iterator[Result]:
        """Yield the result of each draft, in order, a batch at a time.

        Raises ReservationsUnavailable and StoreUnavailable: what was yielded is accepted or
        refused, of the batch under way some may be stored. Run again with the same idempotency
        keys, it ends as if run once.
        """
        return self._results(batches(drafts), Tally(total, progress))

    def submit_all(self, drafts: Sequence[Draft], *, progress: OnProgress | None) -> list[Result]:
        """Accept all drafts or none. Raises like :meth:`submit_each`; then none is accepted."""
        batch = batch_of(drafts, atomic=True)
        return [*self._results([batch], Tally(len(batch.entries), progress))]

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
        Raises ReservationsUnavailable and StoreUnavailable.
        """
        tally = Tally(total, progress)
        rejections: list[Rejection] = []
        refuse = refuse or rejections.append
        dry_run = self.dry_run()
        with dry_run.reservations:
            for batch in batches(drafts):
                self._run_all(batch, dry_run)
                for each in tally.add(batch.entries):
                    if isinstance(each, Rejection):
                        refuse(_without_planned_ids(each))
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

    def run(self, batch: Batch, sink: Sink) -> None:
        """Take a batch through every step; each entry is decided then.

        Raises ReservationsUnavailable: then nothing is reserved; and StoreUnavailable and
        OutcomeUnknown as the sink does.
        """
        now = self.clock.now()
        beside_the_loop(partial(self._validate, batch, now))
        self._recall(batch, sink, now)
        with _owned(batch, sink):
            self._reserve(batch, sink)
            self._store(batch, sink)
        sink.enqueue(batch)
        if batch.refused:
            sink.reservations.note(batch.refused)

    def _results(self, some: Iterable[Batch], tally: Tally) -> Iterator[Result]:
        answers: Answers = (self._answered(batch, tally) for batch in some)
        return chain.from_iterable(
            answers if self.spans is None else self.spans.submitting_many(answers)
        )

    def _answered(self, batch: Batch, tally: Tally) -> list[Result]:
        """Run a batch, tell the journal of its refusals, and return all results."""
        self._run_all(batch, self.own)
        results = tally.add(batch.entries)
        for each in results:
            if isinstance(each, Rejection):
                self.journal.refused(each.error)
        return results

    def _run_all(self, batch: Batch, sink: Sink) -> None:
        """Run a batch, and again the entries that are judged anew because of a refusal.

        Every entry has a result then.
        """
        with without_collector():
            self.run(batch, sink)
            while again := batch.renewed():
                self.run(Batch(again), sink)
        batch.share_results()

    def _validate(self, batch: Batch, now: datetime) -> None:
        for entry in batch.entries:
            try:
                entry.valid = self.validator.validated(entry.draft, now=now)
            except InvalidDraft as error:
                entry.result = error

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
        if not (sink.refuses_suppressed and batch.is_single):
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
        batch.started = self.clock.monotonic()
        fault("submit.before_reserve")
        if not entries:
            return
        requests = list(map(Entry.ask, entries, new_ids(len(entries))))
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
        if sink.refuses_suppressed and batch.is_single:
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
        created_at = from_ms(to_ms(self.clock.now()))
        trace = None if self.spans is None else self.spans.current()
        for entry in batch.booked:
            valid, (message_id, at_ms, _) = entry.valid, entry.reservation
            # The same object, if it was not shifted: an instant is costly to make.
            is_as_asked = entry.request is not None and at_ms == entry.request.asked_ms
            send_at = valid.send_at if is_as_asked else from_ms(at_ms)
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
            )


@contextmanager
def _owned(batch: Batch, sink: Sink) -> Iterator[None]:
    """Release in the end, also after an error, the reservations that no entry keeps."""
    try:
        yield
    finally:
        unneeded = [entry for entry in batch.booked if not entry.keeps_reservation]
        if unneeded:
            sink.reservations.withdraw([entry.reservation.booked for entry in unneeded])


def _without_planned_ids(refused: Rejection) -> Rejection:
    """Return a refusal of a plan as it is shown: drafts in the way have no ids of messages."""
    error = refused.error
    if isinstance(error, IdempotencyConflict):
        if error.message_id is not None and is_planned_id(error.message_id):
            error = IdempotencyConflict(error.key, None)
    elif isinstance(error, QuotaExceeded):
        stored = [each for each in error.conflicting if not is_planned_id(each)]
        error = QuotaExceeded(
            quota=error.quota,
            scope=error.scope,
            send_at=error.send_at,
            conflicting=stored,
            next_slot=error.next_slot,
            latest=error.latest,
            drafts=len(error.conflicting) - len(stored),
        )
    return replace(refused, error=error)


def _by_minute(counted: Mapping[int, int]) -> dict[datetime, int]:
    return {from_ms(minute * MINUTE_MS): counted[minute] for minute in sorted(counted)}


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

"""Submit many: what submit does, for a batch at a time in a few round trips."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from dispatcher.errors import (
    DispatcherError,
    IdempotencyConflict,
    NoPlace,
    OutcomeUnknown,
    ReservationsUnavailable,
    StoreUnavailable,
    Suppressed,
)
from dispatcher.faults import fault
from dispatcher.message import Draft, Message, Rejection
from dispatcher.reservation import Booking, Bulk, Request, UnderWay
from dispatcher.settings import Settings
from dispatcher.store import Addition, BulkMessages, Suppressions
from dispatcher.submission.cases import (
    Case,
    OnProgress,
    Result,
    Tally,
    batches,
    cases_of,
    independent,
    judge,
    none_of,
    places,
    refuse_conflicts,
    refused,
    renewed,
    requests_of,
    settle,
    twins,
    undecided,
)
from dispatcher.submission.handover import Handover
from dispatcher.submission.submission import Submission
from dispatcher.submission.uncollected import uncollected
from dispatcher.telemetry.journal import Journal, Transition
from dispatcher.telemetry.tracing import Answers, Tracing
from dispatcher.times.clock import Clock
from dispatcher.times.send_time import from_ms, to_ms

log = logging.getLogger(__name__)

_TRIES = 3


@dataclass(slots=True)
class _Prepared:
    """A batch on its way: everything is decided but whether the store takes what is booked."""

    cases: list[Case]
    started: float
    atomic: bool
    waiting: list[Case] = field(default_factory=list)
    posting: UnderWay | None = None
    booked: list[Case] = field(default_factory=list)


class BulkSubmission:
    """The use case of those who submit by the thousand."""

    def __init__(
        self,
        *,
        settings: Settings,
        clock: Clock,
        bulk: Bulk,
        store: BulkMessages,
        suppressions: Suppressions,
        handover: Handover,
        submission: Submission,
        journal: Journal,
        tracing: Tracing | None = None,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._bulk = bulk
        self._store = store
        self._suppressions = suppressions
        self._handover = handover
        self._submission = submission
        self._journal = journal
        self._tracing = tracing

    def submit_each(
        self,
        drafts: Iterable[Draft],
        *,
        total: int | None,
        progress: OnProgress | None,
        ahead: bool = False,
    ) -> Iterator[Result]:
        """Yield what came of each draft, in order, a batch at a time.

        With ``ahead``, for callers who read without a pause, a batch is booked while the one before
        it is stored. Raises ReservationsUnavailable and StoreUnavailable: what was yielded is
        accepted or refused, of the batch under way some may be stored. Run again with the same
        idempotency keys, it ends as if run once.
        """
        return self._traced(self._each(drafts, Tally(total, progress), ahead=ahead))

    def submit_all(self, drafts: Sequence[Draft], *, progress: OnProgress | None) -> list[Result]:
        """Accept all drafts or none. Raises like :meth:`submit_each`; then none is accepted."""
        return list(self._traced(self._all(drafts, progress)))

    def _traced(self, answers: Answers) -> Answers:
        return answers if self._tracing is None else self._tracing.submitting_many(answers)

    def _each(self, drafts: Iterable[Draft], tally: Tally, *, ahead: bool) -> Answers:
        before: _Prepared | None = None
        begun: _Prepared | None = None
        try:
            for cases in batches(drafts):
                if before is not None and not independent(before.cases, cases):
                    done, before = before, None
                    yield from self._stored(done, tally)
                begun = self._begun(cases)
                if before is not None:
                    done, before = before, None
                    yield from self._stored(done, tally)
                batch, begun = begun, None
                before = self._collected(batch)
                if not ahead:
                    done, before = before, None
                    yield from self._stored(done, tally)
        except BaseException:
            if begun is not None:
                self._abandon(begun)
            if before is not None:
                try:
                    self._stored(before, tally)
                except DispatcherError as error:
                    log.warning("a batch that was booked is not stored as a whole: %s", error)
            raise
        if before is not None:
            yield from self._stored(before, tally)

    def _all(self, drafts: Sequence[Draft], progress: OnProgress | None) -> Answers:
        cases = cases_of(drafts)
        self._finish(self._collected(self._begun(cases, atomic=True)))
        yield from self._told(Tally(len(cases), progress).add(cases))

    @uncollected
    def _stored(self, batch: _Prepared, tally: Tally) -> list[Result]:
        """Finish a batch, and with it the cases that are judged again because of a refusal."""
        self._finish(batch)
        while again := renewed(batch.cases):
            self._finish(self._collected(self._begun(again)))
        return self._told(tally.add(batch.cases))

    def _told(self, results: list[Result]) -> list[Result]:
        for each in results:
            if isinstance(each, Rejection):
                self._journal.refused(each.error)
        return results

    @uncollected
    def _begun(self, cases: list[Case], *, atomic: bool = False) -> _Prepared:
        """Judge a batch, and send what books it."""
        started = self._clock.monotonic()
        now = self._clock.now()
        judge(
            cases,
            submission=self._submission,
            now=now,
            known=lambda keyed: self._store.with_keys(list(keyed)),
            unwanted=self._suppressions.among,
        )
        batch = _Prepared(cases, started, atomic)
        if not (atomic and refused(cases)):
            batch.waiting = undecided(cases)
            batch.posting = self._bulk.post(requests_of(batch.waiting))
        return batch

    @uncollected
    def _collected(self, batch: _Prepared) -> _Prepared:
        """Wait for the places: whatever is open after this has one."""
        if batch.posting is not None:
            try:
                fault("submit_many.after_post")
                found = self._bulk.collect(batch.posting)
            except BaseException:
                self._abandon(batch)
                raise
            batch.booked = settle(batch.waiting, found)
            fault("submit_many.after_reserve")
        if batch.atomic:
            refuse_conflicts(batch.cases)
        if batch.atomic and refused(batch.cases):
            self._withdraw(places(batch.booked))
            batch.booked.clear()
            none_of(batch.cases)
        return batch

    def _abandon(self, batch: _Prepared) -> None:
        """Give back what is perhaps booked for a batch that will not be stored."""
        if batch.posting is not None:
            self._bulk.abandon(batch.posting)
            self._withdraw(requests_of(batch.waiting))

    def _finish(self, batch: _Prepared) -> None:
        """Store and enqueue what was booked; all cases are decided then."""
        stored = self._add(batch)
        fault("submit_many.after_commit")
        took = self._clock.monotonic() - batch.started
        if stored and took > self._settings.settle.total_seconds():
            self._look_again(stored, keep=batch.atomic)
        accepted = [each.result for each in stored if isinstance(each.result, Message)]
        for message in accepted:
            self._journal.tell(Transition.SCHEDULED, message, send_at=message.send_at)
        self._handover.enqueue(*accepted)
        fault("submit_many.after_enqueue")

    def _add(self, batch: _Prepared) -> list[Case]:
        """Store what was booked; return the cases that are stored now."""
        booked = batch.booked
        created_at = from_ms(to_ms(self._clock.now()))
        for case in booked:
            message_id, at_ms, _ = case.place
            case.result = self._submission.message(
                case.valid_draft, message_id, from_ms(at_ms), created_at
            )
        if not booked:
            return []
        if batch.atomic:
            self._add_all(booked)
            return booked
        done = False if twins(booked) else self._store.add(self._additions(booked))
        if done:
            return booked
        return self._add_each(booked, perhaps_stored=done is None)

    def _additions(self, booked: Iterable[Case]) -> Iterator[Addition]:
        for case in booked:
            message, valid = case.result, case.valid_draft
            if isinstance(message, Message):
                at = self._handover.enqueue_at(message.send_at, now=message.created_at)
                yield Addition(message, at, valid.fingerprint, valid.body_json, valid.status_url)

    def _add_each(self, booked: Sequence[Case], *, perhaps_stored: bool) -> list[Case]:
        """Store one by one what could not be stored together."""
        stored = []
        for place, case in enumerate(booked):
            try:
                message, booking = self._submission.store(
                    case.valid_draft, case.booking, perhaps_stored=perhaps_stored
                )
            except (IdempotencyConflict, NoPlace, Suppressed) as error:
                case.refuse(error)
                continue
            except StoreUnavailable as error:
                if not error.refused:
                    if not perhaps_stored:
                        self._withdraw(places(booked[place + 1 :]))
                    raise
                case.refuse(error)
                continue
            case.result = message
            if message.id == booking.message_id:
                stored.append(case)
        return stored

    def _add_all(self, booked: Sequence[Case]) -> None:
        """Store all or none, and make sure which."""
        ids = [each.place.message_id for each in booked]
        perhaps_stored = False
        for _ in range(_TRIES):
            if twins(booked):
                break
            done = self._store.add(self._additions(booked))
            if done:
                return
            # The server may still be at it, and what it holds may be why the next try is refused.
            perhaps_stored |= done is None
            try:
                if self._store.has(ids):
                    return
            except StoreUnavailable as error:
                # The messages may be stored: reconcile finds out whether they need their places.
                raise OutcomeUnknown(error.reason, ids[0]) from error
        if perhaps_stored:
            raise OutcomeUnknown("the line to the database broke while it stored them", ids[0])
        self._withdraw(places(booked))
        raise StoreUnavailable("the database did not take the batch; nothing was stored")

    def _look_again(self, stored: Sequence[Case], *, keep: bool) -> None:
        """Make sure that the places are still ours, because storing took long."""
        until = self._submission.last_look()  # for all of them: each waits in vain alike
        for case in stored:
            if isinstance(case.result, Message) and case.request:
                message, terms = case.result, case.valid_draft.terms
                booking = Booking(message.id, terms, message.send_at, case.request.submit)
                try:
                    self._submission.look_again(message, booking, until=until, keep=keep)
                except DispatcherError as error:
                    case.refuse(error)

    def _withdraw(self, requests: Sequence[Request]) -> None:
        try:
            self._bulk.withdraw(requests)
        except ReservationsUnavailable as error:
            log.warning("the places of %d messages are freed later: %s", len(requests), error)

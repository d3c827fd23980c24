"""Submit many: what submit does, for a batch at a time in a few round trips."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from dispatcher.clock import Clock
from dispatcher.errors import (
    BatchRefused,
    DispatcherError,
    IdempotencyConflict,
    OutcomeUnknown,
    ReservationsUnavailable,
    StoreUnavailable,
)
from dispatcher.message import Draft, Message, Rejection
from dispatcher.reservation import Booking, Bulk, Request
from dispatcher.sendtime import from_ms, to_ms
from dispatcher.settings import Settings
from dispatcher.store import Addition, BulkMessages
from dispatcher.submission.cases import (
    Booked,
    Case,
    OnProgress,
    Result,
    Tally,
    batches,
    cases_of,
    judge,
    refuse_conflicts,
    renewed,
    requests_of,
    settle,
    undecided,
)
from dispatcher.submission.handover import Handover
from dispatcher.submission.submission import Submission

log = logging.getLogger(__name__)

_TRIES = 3


@dataclass(slots=True)
class _Prepared:
    """A batch on its way: everything is decided but whether the store takes what is booked."""

    cases: list[Case]
    started: float
    atomic: bool
    booked: list[Booked] = field(default_factory=list)


class Unread(Iterator[Result]):
    """Results that are made while they are read, and says so when nobody ever reads them."""

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


class BulkSubmission:
    """The use case of those who submit by the thousand."""

    def __init__(
        self,
        *,
        settings: Settings,
        clock: Clock,
        bulk: Bulk,
        store: BulkMessages,
        handover: Handover,
        submission: Submission,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._bulk = bulk
        self._store = store
        self._handover = handover
        self._submission = submission

    def submit_each(
        self, drafts: Iterable[Draft], *, total: int | None, progress: OnProgress | None
    ) -> Iterator[Result]:
        """Yield what came of each draft, in order, a batch at a time.

        Raises ReservationsUnavailable and StoreUnavailable: what was yielded is accepted or
        refused, of the batch under way some may be stored. Run again with the same idempotency
        keys, it ends as if run once.
        """
        tally = Tally()
        for cases in batches(drafts):
            self._finish(self._prepare(cases))
            while again := renewed(cases):
                self._finish(self._prepare(again))
            results = tally.add(cases)
            if progress is not None:
                progress(tally.progress(total))
            yield from results

    def submit_all(self, drafts: Sequence[Draft], *, progress: OnProgress | None) -> list[Result]:
        """Accept all drafts or none. Raises like :meth:`submit_each`; then none is accepted."""
        tally, cases = Tally(), cases_of(drafts)
        self._finish(self._prepare(cases, atomic=True))
        results = tally.add(cases)
        if progress is not None:
            progress(tally.progress(len(results)))
        return results

    def _prepare(self, cases: list[Case], *, atomic: bool = False) -> _Prepared:
        """Judge and book a batch: whatever is open after this has a place."""
        started = self._clock.monotonic()
        now = self._clock.now()
        judge(
            cases,
            settings=self._settings,
            now=now,
            known=lambda keyed: self._store.with_keys(list(keyed)),
        )
        prepared = _Prepared(cases, started, atomic)
        if not (atomic and _refused(cases)):
            self._reserve(prepared)
        if atomic:
            refuse_conflicts(cases)
        if atomic and _refused(cases):
            self._withdraw(_places(prepared.booked))
            prepared.booked.clear()
            _none_of(cases)
        return prepared

    def _finish(self, prepared: _Prepared) -> None:
        """Store and enqueue what was booked; all cases are decided then."""
        stored = self._add(prepared)
        took = self._clock.monotonic() - prepared.started
        if stored and took > self._settings.settle.total_seconds():
            self._look_again(stored, keep=prepared.atomic)
        self._handover.enqueue(
            *(each.result for each in stored if isinstance(each.result, Message))
        )

    def _reserve(self, prepared: _Prepared) -> None:
        """Book what is not decided yet."""
        cases = undecided(prepared.cases)
        requests = requests_of(cases)
        try:
            bookings = self._bulk.reserve(requests)
        except ReservationsUnavailable:
            self._withdraw(requests)
            raise
        prepared.booked = settle(cases, bookings)

    def _add(self, prepared: _Prepared) -> list[Case]:
        """Store what was booked; return the cases that are stored now."""
        booked = prepared.booked
        additions = []
        created_at = from_ms(to_ms(self._clock.now()))
        for case, valid, booking in booked:
            message = self._submission.message(valid, booking, created_at)
            case.result = message
            at = self._handover.enqueue_at(message.send_at, now=created_at)
            additions.append(Addition(message, at, valid.fingerprint))
        if prepared.atomic:
            self._add_all(booked, additions)
            return [case for case, _, _ in booked]
        done = False if _twins(booked) else self._store.add(additions)
        if done:
            return [case for case, _, _ in booked]
        return self._add_each(booked, perhaps_stored=done is None)

    def _add_each(self, booked: Sequence[Booked], *, perhaps_stored: bool) -> list[Case]:
        """Store one by one what could not be stored together."""
        stored = []
        for place, (case, valid, booking) in enumerate(booked):
            try:
                message = self._submission.add(valid, booking, perhaps_stored=perhaps_stored)
            except IdempotencyConflict as error:
                case.refuse(error)
                continue
            except StoreUnavailable as error:
                if not error.refused:
                    if not perhaps_stored:
                        self._withdraw(_places(booked[place + 1 :]))
                    raise
                case.refuse(error)
                continue
            case.result = message
            if message.id == booking.message_id:
                stored.append(case)
        return stored

    def _add_all(
        self,
        booked: Sequence[Booked],
        additions: Sequence[Addition],
    ) -> None:
        """Store all or none, and make sure which."""
        ids = [each.message.id for each in additions]
        done: bool | None = False
        for _ in range(_TRIES):
            if _twins(booked):
                break
            done = self._store.add(additions)
            if done:
                return
            try:
                if self._store.has(ids):
                    return
            except StoreUnavailable as error:
                # The messages may be stored: reconcile finds out whether they need their places.
                raise OutcomeUnknown(error.reason, ids[0]) from error
        if done is None:
            raise OutcomeUnknown("the line to the database broke again and again", ids[0])
        self._withdraw(_places(booked))
        raise StoreUnavailable("the database did not take the batch; nothing was stored")

    def _look_again(self, stored: Sequence[Case], *, keep: bool) -> None:
        """Make sure that the places are still ours, because storing took long."""
        for case in stored:
            if isinstance(case.result, Message) and case.valid and case.request:
                booking = Booking(
                    case.result.id, case.valid.terms, case.result.send_at, case.request.submit
                )
                try:
                    self._submission.look_again(case.result, booking, keep=keep)
                except DispatcherError as error:
                    case.refuse(error)

    def _withdraw(self, requests: Sequence[Request]) -> None:
        try:
            self._bulk.withdraw(requests)
        except ReservationsUnavailable as error:
            log.warning("the places of %d messages are freed later: %s", len(requests), error)


def _places(booked: Iterable[Booked]) -> list[Request]:
    """Return requests under the ids that are booked, which may be those of twins."""
    return [
        replace(case.request, message_id=booking.message_id)
        for case, _, booking in booked
        if case.request is not None
    ]


def _twins(booked: Sequence[Booked]) -> bool:
    """Whether somebody else is submitting one of these keys right now."""
    return any(
        case.request is not None and case.request.message_id != booking.message_id
        for case, _, booking in booked
    )


def _refused(cases: Iterable[Case]) -> bool:
    return any(isinstance(each.result, Rejection) for each in cases)


def _none_of(cases: Sequence[Case]) -> None:
    """Refuse every draft that was not refused itself."""
    first = next(each.number for each in cases if isinstance(each.result, Rejection))
    for case in cases:
        was_there = isinstance(case.result, Message) and case.request is None
        if not was_there and not isinstance(case.result, Rejection):
            case.refuse(BatchRefused(first))
        case.same_as = None

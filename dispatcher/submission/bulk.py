"""Submit many: what submit does, for a batch at a time in a few round trips."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice

from dispatcher.clock import Clock
from dispatcher.errors import (
    BatchRefused,
    DispatcherError,
    IdempotencyConflict,
    InvalidDraft,
    OutcomeUnknown,
    ReservationsUnavailable,
    StoreUnavailable,
)
from dispatcher.message import Draft, Message, Progress, Rejection, new_id
from dispatcher.reservation import Booking, Bulk, Request, Submit
from dispatcher.sendtime import to_ms
from dispatcher.settings import Settings
from dispatcher.store import Addition, BulkMessages
from dispatcher.submission.handover import Handover
from dispatcher.submission.schedule import ValidDraft, judge_times, schedule
from dispatcher.submission.submission import Submission

log = logging.getLogger(__name__)

Result = Message | Rejection
OnProgress = Callable[[Progress], object]

BATCH = 1_000
"""Drafts that are judged, booked and stored together."""
_TRIES = 3


@dataclass(slots=True)
class _Case:
    """One draft on its way through a batch. ``result`` is set once it is decided."""

    number: int
    draft: Draft
    valid: ValidDraft | None = None
    request: Request | None = None
    result: Result | None = None
    same_as: _Case | None = None

    def refuse(self, error: DispatcherError) -> None:
        self.result = Rejection(self.number, self.draft, error)


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
        source = iter(drafts)
        first = accepted = refused = 0
        while batch := list(islice(source, BATCH)):
            results = self._submit(batch, first, atomic=False)
            first += len(batch)
            accepted += sum(isinstance(each, Message) for each in results)
            refused = first - accepted
            if progress is not None:
                progress(Progress(accepted, refused, total))
            yield from results

    def submit_all(self, drafts: Sequence[Draft], *, progress: OnProgress | None) -> list[Result]:
        """Accept all drafts or none. Raises like :meth:`submit_each`; then none is accepted."""
        results = self._submit(drafts, 0, atomic=True)
        accepted = sum(isinstance(each, Message) for each in results)
        if progress is not None:
            progress(Progress(accepted, len(results) - accepted, len(results)))
        return results

    def _submit(self, drafts: Sequence[Draft], first: int, *, atomic: bool) -> list[Result]:
        cases = [_Case(first + place, draft) for place, draft in enumerate(drafts)]
        started = self._clock.monotonic()
        now = self._clock.now()
        self._schedule(cases, now)
        self._find_known(cases, now)
        if atomic and _refused(cases):
            return _none_of(cases)
        stored = self._reserve_and_add(cases, atomic=atomic)
        if stored and self._clock.monotonic() - started > self._settings.settle.total_seconds():
            self._look_again(stored)
        self._handover.enqueue(
            *(each.result for each in stored if isinstance(each.result, Message))
        )
        return [_result(each) for each in cases]

    def _schedule(self, cases: Sequence[_Case], now: datetime) -> None:
        for case in cases:
            if not isinstance(case.draft, Draft):
                kind = type(case.draft).__name__
                case.refuse(InvalidDraft("draft", f"a {kind}", "a Draft"))
                continue
            try:
                case.valid = schedule(case.draft, settings=self._settings, now=now)
            except InvalidDraft as error:
                case.refuse(error)

    def _find_known(self, cases: Sequence[_Case], now: datetime) -> None:
        """Answer what was submitted before; judge the times of the others."""
        keyed: dict[str, _Case] = {}
        for case in cases:
            key = case.valid.idempotency_key if case.valid else None
            if key is not None:
                twin = keyed.setdefault(key, case)
                case.same_as = twin if twin is not case else None
        known = self._store.with_keys(list(keyed))
        for case in cases:
            if case.valid is None:
                continue
            key, digest = case.valid.idempotency_key, case.valid.fingerprint
            if key is not None and key in known:
                case.same_as = None
                message, theirs = known[key]
                if theirs == digest:
                    case.result = message
                else:
                    case.refuse(IdempotencyConflict(key, message.id))
            elif case.same_as is None:
                try:
                    judge_times(case.valid, now=now)
                except InvalidDraft as error:
                    case.refuse(error)

    def _reserve_and_add(self, cases: Sequence[_Case], *, atomic: bool) -> list[_Case]:
        """Book and store what is open; return the cases that are stored now."""
        open_cases = [each for each in cases if each.result is None and each.same_as is None]
        requests = [_request(each) for each in open_cases]
        try:
            bookings = self._bulk.reserve(requests)
        except ReservationsUnavailable:
            self._withdraw(requests)
            raise
        booked: list[tuple[_Case, ValidDraft, Booking]] = []
        for case, request, booking in zip(open_cases, requests, bookings, strict=True):
            case.request = request
            if not isinstance(booking, Booking):
                case.refuse(booking)
            elif case.valid is not None:
                booked.append((case, case.valid, booking))
        if atomic and _refused(cases):
            self._withdraw(requests)
            _none_of(cases)
            return []
        return self._add(booked, atomic=atomic)

    def _add(
        self, booked: Sequence[tuple[_Case, ValidDraft, Booking]], *, atomic: bool
    ) -> list[_Case]:
        additions = []
        for case, valid, booking in booked:
            message = self._submission.message(valid, booking)
            case.result = message
            at = self._handover.enqueue_at(message.send_at)
            additions.append(Addition(message, at, valid.fingerprint))
        if atomic:
            self._add_all(booked, additions)
            return [case for case, _, _ in booked]
        if not _twins(booked) and self._store.add(additions):
            return [case for case, _, _ in booked]
        stored = []
        for place, (case, valid, booking) in enumerate(booked):
            try:
                message = self._submission.add(valid, booking)
            except IdempotencyConflict as error:
                case.refuse(error)
                continue
            except StoreUnavailable as error:
                if not error.refused:
                    later = [each.request for each, _, _ in booked[place + 1 :] if each.request]
                    self._withdraw(later)
                    raise
                case.refuse(error)
                continue
            case.result = message
            if message.id == booking.message_id:
                stored.append(case)
        return stored

    def _add_all(
        self,
        booked: Sequence[tuple[_Case, ValidDraft, Booking]],
        additions: Sequence[Addition],
    ) -> None:
        """Store all or none, and make sure which."""
        ids = [each.message.id for each in additions]
        for _ in range(_TRIES):
            if _twins(booked):
                break
            if self._store.add(additions):
                return
            try:
                if self._store.has(ids):
                    return
            except StoreUnavailable as error:
                # The messages may be stored: reconcile finds out whether they need their places.
                raise OutcomeUnknown(error.reason, ids[0]) from error
        self._withdraw([case.request for case, _, _ in booked if case.request])
        raise StoreUnavailable("the database did not take the batch; nothing was stored")

    def _look_again(self, stored: Sequence[_Case]) -> None:
        """Make sure that the places are still ours, because storing took long."""
        for case in stored:
            if isinstance(case.result, Message) and case.valid and case.request:
                booking = Booking(
                    case.result.id, case.valid.terms, case.result.send_at, case.request.submit
                )
                try:
                    self._submission.look_again(case.result, booking)
                except DispatcherError as error:
                    case.refuse(error)

    def _withdraw(self, requests: Sequence[Request]) -> None:
        try:
            self._bulk.withdraw(requests)
        except ReservationsUnavailable as error:
            log.warning("the places of %d messages are freed later: %s", len(requests), error)


def _request(case: _Case) -> Request:
    valid = case.valid
    if valid is None:
        raise InvalidDraft("draft", "not judged", "a Draft")
    submit = None
    if valid.idempotency_key is not None:
        submit = Submit(valid.idempotency_key, valid.fingerprint or "")
    asked_ms = to_ms(valid.send_at)
    latest_ms = asked_ms if valid.latest is None else max(asked_ms, to_ms(valid.latest))
    return Request(new_id(), valid.terms, asked_ms, latest_ms, submit)


def _result(case: _Case) -> Result:
    """Return what came of a draft; a repeated key within the batch shares its twin's message."""
    twin = case.same_as
    if twin is None or case.valid is None or twin.valid is None:
        result = case.result
    elif case.valid.fingerprint != twin.valid.fingerprint and isinstance(twin.result, Message):
        key = case.valid.idempotency_key or ""
        return Rejection(case.number, case.draft, IdempotencyConflict(key, twin.result.id))
    elif isinstance(twin.result, Rejection):
        result = Rejection(case.number, case.draft, twin.result.error)
    else:
        result = twin.result
    if result is None:
        raise StoreUnavailable("a draft was not decided")
    return result


def _twins(booked: Sequence[tuple[_Case, ValidDraft, Booking]]) -> bool:
    """Whether somebody else is submitting one of these keys right now."""
    return any(
        case.request is not None and case.request.message_id != booking.message_id
        for case, _, booking in booked
    )


def _refused(cases: Iterable[_Case]) -> bool:
    return any(isinstance(each.result, Rejection) for each in cases)


def _none_of(cases: Sequence[_Case]) -> list[Result]:
    """Refuse every draft that was not refused itself."""
    first = next(each.number for each in cases if isinstance(each.result, Rejection))
    for case in cases:
        was_there = isinstance(case.result, Message) and case.request is None
        if not was_there and not isinstance(case.result, Rejection):
            case.refuse(BatchRefused(first))
        case.same_as = None
    return [_result(each) for each in cases]

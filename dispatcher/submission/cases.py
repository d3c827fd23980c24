"""What submit many and plan share: drafts in batches, what is decided of each before it is booked.

A case is one draft on its way through a batch. Those that need no place are decided first: bad
drafts, and those whose idempotency key is known.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice

from dispatcher.errors import (
    BatchRefused,
    DispatcherError,
    IdempotencyConflict,
    InvalidDraft,
    ReservationsUnavailable,
    StoreUnavailable,
    Suppressed,
)
from dispatcher.message import Draft, Message, Progress, Rejection, new_id
from dispatcher.reservation import Booked, Booking, Place, Request, Submit
from dispatcher.submission.schedule import ValidDraft, judge_times
from dispatcher.submission.submission import Submission
from dispatcher.times.send_time import from_ms, to_ms

Result = Message | Rejection
OnProgress = Callable[[Progress], object]

BATCH = 1_000
"""Drafts that are judged, booked and stored together."""


@dataclass(slots=True)
class Case:
    """One draft on its way through a batch. ``result`` is set once it is decided.

    ``booked`` is set where it found a place. ``same_as`` is an earlier case of the batch with the
    same idempotency key, whose result it shares.
    """

    number: int
    draft: Draft
    valid: ValidDraft | None = None
    request: Request | None = None
    booked: Booked | None = None
    result: Result | None = None
    same_as: Case | None = None

    def refuse(self, error: DispatcherError) -> None:
        """Decide that the draft is not accepted."""
        self.result = Rejection(self.number, self.draft, error)

    @property
    def place(self) -> Place:
        """Where it is booked; the id is a twin's where a twin booked first."""
        if isinstance(self.booked, Place):
            return self.booked
        if self.request is None or self.booked is None:
            raise ReservationsUnavailable("a draft has no place")
        return Place(self.request.message_id, self.booked)

    @property
    def valid_draft(self) -> ValidDraft:
        """The draft, once it was found to be one."""
        if self.valid is None:
            raise InvalidDraft("draft", "not judged", "a Draft")
        return self.valid

    @property
    def booking(self) -> Booking:
        """What was booked, with all that it takes to give it back."""
        message_id, at_ms, _ = self.place
        submit = self.request.submit if self.request else None
        return Booking(message_id, self.valid_draft.terms, from_ms(at_ms), submit)


Known = Callable[[Mapping[str, Case]], Mapping[str, tuple[Message, str]]]
"""Takes cases by idempotency key; returns the messages of known keys with their fingerprints."""


Unwanted = Callable[[Iterable[tuple[str, str]]], Container[tuple[str, str]]]
"""Takes recipients with channels; returns those who have opted out of that."""


def batches(drafts: Iterable[Draft]) -> Iterator[list[Case]]:
    """Yield drafts as cases, numbered from 0, a batch at a time."""
    source, first = iter(drafts), 0
    while batch := list(islice(source, BATCH)):
        yield cases_of(batch, first)
        first += len(batch)


def cases_of(drafts: Iterable[Draft], first: int = 0) -> list[Case]:
    """Return drafts as cases, numbered from ``first``."""
    return [Case(first + place, draft) for place, draft in enumerate(drafts)]


def judge(
    cases: Sequence[Case],
    *,
    submission: Submission,
    now: datetime,
    known: Known,
    unwanted: Unwanted,
) -> None:
    """Decide the cases that need no place."""
    _schedule(cases, submission, now)
    _find_known(cases, now, known)
    _refuse_unwanted(cases, unwanted)


def undecided(cases: Iterable[Case]) -> list[Case]:
    """Return the cases that need a place, each with its request."""
    found = [each for each in cases if each.result is None and each.same_as is None]
    for case in found:
        case.request = _request(case)
    return found


def settle(cases: Sequence[Case], found: Sequence[Booked | DispatcherError]) -> list[Case]:
    """Refuse the cases that got no place; return the others, which have one."""
    for case, each in zip(cases, found, strict=True):
        if isinstance(each, DispatcherError):
            case.refuse(each)
        else:
            case.booked = each
    return [case for case in cases if case.booked is not None]


def renewed(cases: list[Case]) -> list[Case]:
    """Replace the cases that share a refusal by new ones, and return those.

    The first draft with a key was refused, so the key is free, and the next one is judged on its
    own, as it would be in another batch.
    """
    found: list[Case] = []
    for place, case in enumerate(cases):
        if case.same_as is not None and isinstance(case.same_as.result, Rejection):
            cases[place] = Case(case.number, case.draft)
            found.append(cases[place])
    return found


def refuse_conflicts(cases: Iterable[Case]) -> None:
    """Refuse the cases whose key an earlier one of the batch has for other content."""
    for case in cases:
        twin = case.same_as
        if twin is None or case.valid is None or twin.valid is None or twin.request is None:
            continue
        if case.valid.fingerprint != twin.valid.fingerprint:
            key = case.valid.idempotency_key or ""
            case.refuse(IdempotencyConflict(key, twin.request.message_id))
            case.same_as = None


def requests_of(cases: Iterable[Case]) -> list[Request]:
    """Return the requests of cases that need a place."""
    return [each.request for each in cases if each.request is not None]


def independent(before: Iterable[Case], cases: Iterable[Case]) -> bool:
    """Whether a batch can be booked before the one before it is stored.

    Not where they share an idempotency key, and not where the first has to book once more.
    """
    keys = set()
    for case in before:
        if case.same_as is not None:
            return False
        if case.valid is not None and case.valid.idempotency_key is not None:
            keys.add(case.valid.idempotency_key)
    return not keys or keys.isdisjoint(map(_key, cases))


def _key(case: Case) -> str | None:
    """Return the idempotency key of a case that is not judged yet: it may be anything."""
    key: object = case.draft.idempotency_key if isinstance(case.draft, Draft) else None
    return key if isinstance(key, str) else None


def places(booked: Iterable[Case]) -> list[Request]:
    """Return requests under the ids that are booked, which may be those of twins."""
    return [
        case.request._replace(message_id=case.place.message_id)
        for case in booked
        if case.request is not None
    ]


def twins(booked: Sequence[Case]) -> bool:
    """Whether somebody else is submitting one of these keys right now."""
    return any(isinstance(case.booked, Place) for case in booked)


def refused(cases: Iterable[Case]) -> bool:
    """Whether any draft is refused."""
    return any(isinstance(each.result, Rejection) for each in cases)


def none_of(cases: Sequence[Case]) -> None:
    """Refuse every draft that was not refused itself."""
    first = next(each.number for each in cases if isinstance(each.result, Rejection))
    for case in cases:
        was_there = isinstance(case.result, Message) and case.request is None
        if not was_there and not isinstance(case.result, Rejection):
            case.refuse(BatchRefused(first))
        case.same_as = None


@dataclass(slots=True)
class Tally:
    """Counts what came of drafts, and tells.

    The times are those of messages that were not known before. ``total`` is how many drafts there
    will be, where somebody knows.
    """

    total: int | None = None
    tell: OnProgress | None = None
    accepted: int = 0
    refused: int = 0
    known: int = 0
    shifted: int = 0
    first_send_at: datetime | None = None
    last_send_at: datetime | None = None

    def add(self, cases: Sequence[Case]) -> list[Result]:
        """Count what came of these, tell, and return it."""
        results = [_result(each) for each in cases]
        for case, result in zip(cases, results, strict=True):
            if isinstance(result, Rejection):
                self.refused += 1
                continue
            self.accepted += 1
            if case.request is None or case.request.message_id != result.id:
                self.known += 1
                continue
            self.shifted += to_ms(result.send_at) != case.request.asked_ms
            self.first_send_at = min(self.first_send_at or result.send_at, result.send_at)
            self.last_send_at = max(self.last_send_at or result.send_at, result.send_at)
        if self.tell is not None:
            so_far = (self.accepted, self.refused, self.total, self.known, self.shifted)
            self.tell(Progress(*so_far))
        return results


def _schedule(cases: Iterable[Case], submission: Submission, now: datetime) -> None:
    for case in cases:
        if not isinstance(case.draft, Draft):
            kind = type(case.draft).__name__
            case.refuse(InvalidDraft("draft", f"a {kind}", "a Draft"))
            continue
        try:
            case.valid = submission.scheduled(case.draft, now=now)
        except InvalidDraft as error:
            case.refuse(error)


def _find_known(cases: Sequence[Case], now: datetime, find: Known) -> None:
    """Answer what was submitted before; judge the times of the others."""
    keyed: dict[str, Case] = {}
    for case in cases:
        key = case.valid.idempotency_key if case.valid else None
        if key is not None:
            twin = keyed.setdefault(key, case)
            case.same_as = twin if twin is not case else None
    known = find(keyed)
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


def _refuse_unwanted(cases: Iterable[Case], unwanted: Unwanted) -> None:
    """Refuse what goes to those who have opted out; a repeated key shares its twin's refusal."""
    asked = [
        (case, (case.valid.recipient, case.valid.channel))
        for case in cases
        if case.valid is not None and case.result is None and case.same_as is None
    ]
    found = unwanted(each for _, each in asked)
    for case, (recipient, channel) in asked:
        if (recipient, channel) in found:
            case.refuse(Suppressed(channel))


def _request(case: Case) -> Request:
    valid = case.valid_draft
    submit = None
    if valid.idempotency_key is not None:
        submit = Submit(valid.idempotency_key, valid.fingerprint or "")
    asked_ms = to_ms(valid.send_at)
    latest_ms = asked_ms if valid.latest is None else max(asked_ms, to_ms(valid.latest))
    return Request(new_id(), valid.terms, asked_ms, latest_ms, submit)


def _result(case: Case) -> Result:
    """Return what came of a draft; a repeated key within the batch shares its twin's message."""
    twin = case.same_as
    if twin is None or case.valid is None or twin.valid is None:
        result = case.result
    elif case.valid.fingerprint != twin.valid.fingerprint and isinstance(twin.result, Message):
        key = case.valid.idempotency_key or ""
        return Rejection(case.number, case.draft, IdempotencyConflict(key, twin.result.id))
    else:
        result = twin.result
    if result is None:
        raise StoreUnavailable("a draft was not decided")
    return result

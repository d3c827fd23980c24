"""A batch: drafts on their way to be accepted, and the result of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from uuid import UUID

from dispatcher.errors import (
    BatchRefused,
    DispatcherError,
    IdempotencyConflict,
    SlotRefused,
    alone,
)
from dispatcher.message import Draft, Message, Progress, Rejection, Status
from dispatcher.reservation import Answer, BookingRequest, Slot, Submit
from dispatcher.store.schema import UNSENT_STATUSES, Addition
from dispatcher.submission.rows import DraftRow
from dispatcher.submission.validation import ValidDraft

Result = Message | Rejection
OnProgress = Callable[[Progress], object]
Known = tuple[Message, str]
"""A message that has an idempotency key, and the fingerprint of the draft it was made of."""

MINUTE_MS = 60_000
BATCH = 1_000
"""Drafts that are validated, reserved and stored together."""
_MOST_SIZE = 1_000_000
"""How much text of rows is together: what was read of it may take 25 times as much memory."""


@dataclass(slots=True, eq=False)
class Entry:
    """One draft of a batch.

    ``result`` is None until the draft is refused, recalled or composed; then the refusal, or the
    message, which the sink replaces if it stores another one or none.

    ``valid`` is set once the draft was found valid, ``request`` once a reservation is asked for
    (None again where the message was known), ``reservation`` once it has one, ``addition`` when it
    is about to be stored. ``is_duplicate``: another submit has reserved under the idempotency key,
    the reservation is that one's, and this one has not stored the message. ``keeps_reservation``:
    its message is stored, or may be; any other reservation is released. ``reserved_at`` is
    ``Batch.started``, for the end of a caller's transaction. ``same_as`` is an
    earlier entry with the same key, whose result this one gets by :meth:`Batch.share_results`.
    ``supersedes`` is the message that ended unsent and has the key.
    """

    number: int
    draft: Draft
    valid: ValidDraft = field(init=False)
    request: BookingRequest | None = None
    reservation: Slot = field(init=False)
    addition: Addition = field(init=False)
    result: Message | DispatcherError | None = None
    same_as: Entry | None = None
    is_duplicate: bool = False
    keeps_reservation: bool = False
    reserved_at: float = 0.0
    supersedes: UUID | None = None

    @property
    def is_new(self) -> bool:
        """Whether its message was stored by this submit, and not by an earlier one."""
        addition = getattr(self, "addition", None)  # unset before it is about to be stored
        return addition is not None and self.result is addition.message

    def answer(self) -> Message:
        result = self.result
        if isinstance(result, Message):
            return result
        raise result or RuntimeError("a draft was not decided")

    def ask(self, message_id: UUID) -> BookingRequest:
        valid, submit = self.valid, None
        self.is_duplicate = False
        if valid.idempotency_key is not None:
            fingerprint = valid.fingerprint or ""
            submit = Submit(valid.idempotency_key, fingerprint, supersedes=self.supersedes)
        self.request = valid.request(message_id, submit)
        return self.request


@dataclass(slots=True, eq=False)
class Batch:
    """Drafts that go through the pipeline together.

    ``atomic`` accepts all or none. ``booked`` are the entries that have a reservation, ``stored``
    those whose message is stored under its id. ``started`` is when the reservations were asked for,
    on the monotonic clock. ``refused`` are the requests without a slot, with their refusals, to be
    noted.
    """

    entries: list[Entry]
    atomic: bool = False
    started: float = 0.0
    booked: list[Entry] = field(default_factory=list)
    stored: list[Entry] = field(default_factory=list)
    refused: list[tuple[BookingRequest, SlotRefused]] = field(default_factory=list)

    @property
    def is_single(self) -> bool:
        return len(self.entries) == 1 and not self.atomic

    @property
    def is_refused(self) -> bool:
        return any(isinstance(each.result, DispatcherError) for each in self.entries)

    def keep_reservations(self, keeps: bool = True) -> None:
        for entry in self.booked:
            entry.keeps_reservation = keeps

    def undecided(self) -> list[Entry]:
        """Return the entries without a result that share no other one's."""
        return [each for each in self.entries if each.result is None and each.same_as is None]

    def note_answers(self, entries: Sequence[Entry], answers: Sequence[Answer]) -> None:
        for entry, answer in zip(entries, answers, strict=True):
            if isinstance(answer, DispatcherError):
                entry.result = answer
                continue
            entry.request, entry.reservation = answer.request, answer
            entry.is_duplicate = answer.message_id != answer.request.message_id
            self.booked.append(entry)

    def renewed(self) -> list[Entry]:
        """Renew the first entry of those that share a refusal, and return the renewed ones.

        The first draft with a key was refused, so the key is free, and the next one is judged on
        its own, as it would be in another batch. The others share its result then.
        """
        found: dict[Entry, Entry] = {}
        for index, entry in enumerate(self.entries):
            first = entry.same_as
            if first is None or not isinstance(first.result, DispatcherError):
                continue
            if first in found:
                entry.same_as = found[first]
            else:
                found[first] = self.entries[index] = Entry(entry.number, entry.draft)
        return list(found.values())

    def share_results(self) -> None:
        for entry in self.entries:
            first = entry.same_as
            if first is None:
                continue
            entry.result = first.result
            is_same = entry.valid.fingerprint == first.valid.fingerprint
            if isinstance(first.result, Message) and not is_same:
                key = entry.valid.idempotency_key or ""
                entry.result = IdempotencyConflict(key, first.result.id)

    def refuse_conflicts(self) -> None:
        """Refuse the entries whose key an earlier one of the batch has for other content."""
        for entry in self.entries:
            first = entry.same_as
            if first is None or first.request is None:
                continue
            if entry.valid.fingerprint != first.valid.fingerprint:
                key = entry.valid.idempotency_key or ""
                entry.result = IdempotencyConflict(key, None)
                entry.same_as = None

    def refuse_all(self) -> None:
        """Refuse every draft that was not refused itself, but for messages known before."""
        number = next(e.number for e in self.entries if isinstance(e.result, DispatcherError))
        for entry in self.entries:
            if entry.result is None:
                entry.result = BatchRefused(number)
            entry.same_as = None


def batches(drafts: Iterable[Draft]) -> Iterator[Batch]:
    """Yield drafts, numbered from 0, a batch at a time. Of long rows a batch has fewer."""
    source, first = iter(drafts), 0
    while some := list(_until_heavy(islice(source, BATCH))):
        yield batch_of(some, first)
        first += len(some)


def _until_heavy(drafts: Iterable[Draft]) -> Iterator[Draft]:
    size = 0
    for draft in drafts:
        yield draft
        size += draft.size if isinstance(draft, DraftRow) else 0
        if size >= _MOST_SIZE:
            return


def batch_of(drafts: Iterable[Draft], first: int = 0, *, atomic: bool = False) -> Batch:
    return Batch([Entry(number, each) for number, each in enumerate(drafts, first)], atomic)


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
    """Return the message that a draft becomes at the time that is reserved for it."""
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
    )


def occupied(
    keyed: Mapping[str, Entry],
    known: Mapping[str, Known],
    unsent: Callable[[Sequence[Message]], Container[UUID]],
) -> Mapping[str, Known]:
    """Return what is known under keys that are not free; note what the other entries supersede.

    A key is free once its message has ended and surely was not sent, which ``unsent`` finds out.
    """
    ended = [message for message, _ in known.values() if message.status in UNSENT_STATUSES]
    free = unsent(ended) if ended else ()
    for key, (message, _) in known.items():
        keyed[key].supersedes = message.id if message.id in free else None
    return {key: known[key] for key in known if known[key][0].id not in free}


def recalled(valid: ValidDraft, known: Mapping[str, Known]) -> Message | None:
    """Return the message that is known under the draft's key, if there is one.

    Raises IdempotencyConflict where that was made of other content.
    """
    key = valid.idempotency_key
    found = known.get(key) if key is not None else None
    if found is None:
        return None
    message, fingerprint = found
    if fingerprint != valid.fingerprint:
        raise IdempotencyConflict(key or "", message.id)
    return message


@dataclass(slots=True)
class Tally:
    """Counts the results of drafts, and reports progress.

    The times are those of messages that were not known before; ``asked`` and ``promised`` count
    them by minutes since 1970, ``asked`` with the refused ones. ``total`` is how many drafts there
    will be, None where that is not known.
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
        """Count the results of these entries, report progress, and return them."""
        results: list[Result] = []
        for entry in entries:
            result = entry.result
            if entry.request is not None:
                self.asked[entry.request.asked_ms // MINUTE_MS] += 1
            if not isinstance(result, Message):
                if result is None:
                    raise RuntimeError("a draft was not decided")
                results.append(Rejection(entry.number, entry.draft, alone(result)))
                self.refused += 1
                continue
            results.append(result)
            self.accepted += 1
            if (
                entry.request is None
                or entry.reservation.message_id != result.id
                or entry.is_duplicate
            ):
                self.known += 1
                continue
            send_at, send_ms = result.send_at, entry.reservation.at_ms
            self.shifted += send_ms != entry.request.asked_ms
            self.promised[send_ms // MINUTE_MS] += 1
            if self.first_send_at is None or send_at < self.first_send_at:
                self.first_send_at = send_at
            if self.last_send_at is None or send_at > self.last_send_at:
                self.last_send_at = send_at
        if self.on_progress is not None:
            so_far = (self.accepted, self.refused, self.total, self.known, self.shifted)
            self.on_progress(Progress(*so_far))
        return results

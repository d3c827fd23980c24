"""What SQL holds, in memory, and the database's clock."""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any
from uuid import UUID

from dispatcher.errors import StoreUnavailable
from dispatcher.message import Body, Message, Outcome, Status
from dispatcher.store import Addition, Claim
from dispatcher.store.changes import NOT_BEGUN
from dispatcher.store.schema import (
    EVERY_CHANNEL,
    PAUSED_CAMPAIGN,
    PAUSED_CHANNEL,
    PAUSED_RECIPIENT,
    UNSENT_STATUSES,
)

NAMES = tuple(field.name for field in fields(Message))
_values = attrgetter(*NAMES)
OPEN = (Status.SENDING, Status.HELD)
NO_RESERVATION = (Status.CANCELLED, Status.EXPIRED)


@dataclass(slots=True, kw_only=True)
class Row:
    """A row of ``messages``."""

    tables: Tables = field(repr=False, compare=False)
    id: UUID
    channel: str
    recipient: str
    scope: str
    body: Body
    send_at: datetime
    next_attempt_at: datetime
    expires_at: datetime | None
    status: Status
    attempt_count: int
    max_attempts: int
    idempotency_key: str | None
    created_at: datetime
    finished_at: datetime | None
    last_error: str | None
    scopes: Any
    zone: str | None
    quiet_hours: str | None
    on_unknown: Any
    expire_after: timedelta | None
    asked_at: datetime | None
    trace: str | None
    enqueued_at: datetime | None
    campaign: str | None
    enqueue_at: datetime
    fingerprint: str | None
    claim_token: int = 0
    claimed_by: UUID | None = None
    claim_expires_at: datetime | None = None
    reserved: bool = True
    move_token: int = 0
    status_url: str | None = None
    notified_status: Status | None = None

    def message(self) -> Message:
        """Return the message of this row."""
        return Message(**dict(zip(NAMES, _values(self), strict=True)))

    def end(self, status: Status, at: datetime, error: str | None = None) -> None:
        """Give it a final status."""
        self.status, self.finished_at = status, at
        self.tables.ended.append((at, self.id))
        if status in NO_RESERVATION and self.reserved:
            self.tables.unreleased[self.id] = self
        self.last_error = self.last_error if error is None else error
        self.claim_expires_at = None


_enqueue_at: Any = vars(Row)["enqueue_at"]


def _set_enqueue_at(row: Row, at: datetime) -> None:
    _enqueue_at.__set__(row, at)
    row.tables.index(row)


setattr(Row, "enqueue_at", property(_enqueue_at.__get__, _set_enqueue_at))  # noqa: B010 - mypy takes it for a field


@dataclass(slots=True)
class AttemptRow:
    """A row of ``attempts``."""

    message_id: UUID
    token: int
    started_at: datetime
    finished_at: datetime | None = None
    outcome: Outcome | None = None
    error: str | None = None
    receipt: str | None = None

    def end(self, outcome: Outcome, at: datetime) -> None:
        """Say what came of it."""
        self.outcome, self.finished_at = outcome, at


@dataclass(slots=True)
class PauseRow:
    """A row of ``pauses``."""

    paused_at: datetime
    resumed_at: datetime | None = None


class Tables:
    """What SQL holds, and the database's clock, to the millisecond."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self.messages: dict[UUID, Row] = {}
        self.attempts: dict[UUID, dict[int, AttemptRow]] = defaultdict(dict)
        self.keys: dict[str, UUID] = {}
        self.void: dict[UUID, datetime] = {}
        self.taken_back: dict[UUID, Row] = {}
        """Those of ``void`` whose reservation may still be there."""
        self.open: list[dict[UUID, Addition]] = []
        self.suppressed: dict[tuple[str, str], datetime] = {}
        self.pauses: dict[tuple[str, str], PauseRow] = {}
        self.unreleased: dict[UUID, Row] = {}
        """Those of ``messages`` that are cancelled or expired, and whose reservation is there."""
        self.ended: deque[tuple[datetime, UUID]] = deque()
        """The ends of messages, in order; some may be deleted, or tried again, since."""
        self._by_enqueue_at: list[tuple[datetime, int, int, Row]] = []
        self._kept_by_pauses: list[tuple[datetime, int, int, Row]] = []
        self._numbers: dict[UUID, int] = {}
        self._changes = itertools.count()

    def index(self, row: Row) -> None:
        """Let ``to_enqueue`` find a row by its time."""
        number = self._numbers.setdefault(row.id, len(self._numbers))
        entry = row.enqueue_at, number, next(self._changes), row
        heapq.heappush(self._by_enqueue_at, entry)

    def next_to_enqueue(self) -> datetime | None:
        """Return when the first scheduled message is to be enqueued; None where there is none.

        One that is paused is not.
        """
        waiting = self._by_enqueue_at
        while waiting:
            if not self._is_current(*waiting[0]):
                heapq.heappop(waiting)
            elif self.is_paused(waiting[0][-1]):
                self._kept_by_pauses.append(heapq.heappop(waiting))
            else:
                return waiting[0][0]
        return None

    def is_paused(self, row: Row) -> bool:
        """Return whether a pause keeps a row from being sent."""
        if not self.pauses:
            return False
        names = {
            **(row.scopes or {}),
            PAUSED_CHANNEL: row.channel,
            PAUSED_RECIPIENT: row.scope,
            PAUSED_CAMPAIGN: row.campaign,
        }
        found = (self.pauses.get((kind, name)) for kind, name in names.items() if name)
        return any(each is not None and each.resumed_at is None for each in found)

    def resume(self, kind: str, name: str) -> None:
        """End a pause, if there is one."""
        found = self.pauses.get((kind, name))
        if found is not None and found.resumed_at is None:
            found.resumed_at = self.now()
        for entry in self._kept_by_pauses:
            heapq.heappush(self._by_enqueue_at, entry)
        self._kept_by_pauses.clear()

    def to_enqueue(self, now: datetime) -> list[Row]:
        """Return the scheduled messages that are to be enqueued by now, in the order of times."""
        found: dict[UUID, tuple[datetime, int, int, Row]] = {}
        while (at := self.next_to_enqueue()) is not None and at <= now:
            entry = heapq.heappop(self._by_enqueue_at)
            found[entry[-1].id] = entry
        for entry in found.values():
            heapq.heappush(self._by_enqueue_at, entry)
        return [row for _, _, _, row in found.values()]

    def _is_current(self, at: datetime, _: int, __: int, row: Row) -> bool:
        is_there = self.messages.get(row.id) is row
        return is_there and row.status is Status.SCHEDULED and row.enqueue_at == at

    def now(self) -> datetime:
        """Return the present by the database's clock."""
        return cut(self._clock())

    def scheduled(self, message_id: UUID) -> Row | None:
        """Return a row that is scheduled."""
        row = self.messages.get(message_id)
        return row if row is not None and row.status is Status.SCHEDULED else None

    def is_suppressed(self, recipient: str, channel: str) -> bool:
        """Return whether a recipient gets nothing on a channel."""
        return any((recipient, each) in self.suppressed for each in (EVERY_CHANNEL, channel))

    def check_free(self, message_id: UUID, key: str | None) -> None:
        """Raise StoreUnavailable where an open transaction has the id, or the key: it is locked.

        A database waits for its end, and says so when that takes too long.
        """
        for staged in self.open:
            keys = {each.message.idempotency_key for each in staged.values()} - {None}
            if message_id in staged or key in keys:
                raise StoreUnavailable("the database waited for a lock for too long", refused=True)

    def insert(self, addition: Addition) -> None:
        """Store a message that is new."""
        message, enqueue_at, fingerprint, _, status_url, *_ = addition
        values: dict[str, Any] = {
            name: cut(value) if isinstance(value, datetime) else value
            for name, value in zip(NAMES, _values(message), strict=True)
        }
        self.messages[message.id] = Row(
            tables=self,
            **values,
            enqueue_at=cut(enqueue_at),
            fingerprint=fingerprint,
            status_url=status_url,
            notified_status=None if status_url is None else Status.SCHEDULED,
        )
        if message.idempotency_key is not None:
            superseded = self.messages.get(self.keys.get(message.idempotency_key, message.id))
            if superseded is not None and superseded.id != message.id:
                superseded.claim_token += 1
            self.keys[message.idempotency_key] = message.id

    def delete(self, message_id: UUID) -> None:
        """Delete a message and its attempts."""
        row = self.messages.pop(message_id)
        self.unreleased.pop(message_id, None)
        self.attempts.pop(message_id, None)
        if row.idempotency_key is not None and self.has_key(row):
            del self.keys[row.idempotency_key]

    def has_key(self, row: Row) -> bool:
        """Return whether a row has its idempotency key, and no later message took it over."""
        return row.idempotency_key is None or self.keys.get(row.idempotency_key) == row.id

    def is_unsent(self, message_id: UUID) -> bool:
        """Return whether a message has ended, and surely was not sent."""
        sent = (None, Outcome.SENT, Outcome.UNKNOWN)
        tries = self.outcomes(message_id)
        ended = self.messages[message_id].status in UNSENT_STATUSES
        return ended and not any(each in sent for each in tries)

    def take_back(self, row: Row) -> None:
        """Leave nothing of a message but its id, and its reservation."""
        self.void[row.id] = self.now()
        self.taken_back[row.id] = self.messages.pop(row.id)

    def outcomes(self, message_id: UUID, *, before: int = 2**31) -> list[Outcome | None]:
        """Return what came of the tries of a message, first one first, up to a token."""
        tries = self.attempts.get(message_id, {})
        return [tries[token].outcome for token in sorted(tries) if token < before]

    def ours(self, claim: Claim, statuses: Sequence[Status]) -> Row | None:
        """Return a row whose last claim is this one, if it has one of these statuses."""
        row = self.messages.get(claim.message.id)
        if row is None or row.claim_token != claim.token or row.status not in statuses:
            return None
        return row

    def sent_by(self, claim: Claim) -> Row | None:
        """Return a row that a success of this claim ends, be it the last claim or not."""
        row = self.messages.get(claim.message.id)
        ends = (*OPEN, Status.SCHEDULED, Status.FAILED)
        return row if row is not None and row.status in ends else None


@dataclass(frozen=True, slots=True)
class CatchUpRules:
    """Which channels do not simply send what is overdue, and how long after its time it is that."""

    after: timedelta
    expire: Collection[str] = ()
    reslot: Collection[str] = ()

    def keeps_back(self, row: Row, now: datetime) -> bool:
        """Whether a message is left to the one who catches up."""
        return self.is_overdue(row, now, [*self.expire, *self.reslot])

    def is_overdue(self, row: Row, now: datetime, channels: Collection[str]) -> bool:
        """Whether a message is overdue on one of these channels."""
        return (
            row.status is Status.SCHEDULED
            and row.next_attempt_at <= now - self.after
            and row.attempt_count == 0
            and row.channel in channels
        )


NO_CATCH_UP = CatchUpRules(timedelta(0))


def cut(instant: datetime) -> datetime:
    """Return an instant as SQLite keeps it: to the millisecond."""
    rest = instant.microsecond % 1_000
    return instant.replace(microsecond=instant.microsecond - rest) if rest else instant


def error_before(row: Row) -> str | None:
    """Return the error of a row whose worker lives: a death before the send is forgotten."""
    return None if row.last_error == NOT_BEGUN else row.last_error


def rounded(length: timedelta) -> timedelta:
    """Return a length to the millisecond, as the store adds it."""
    return timedelta(milliseconds=round(length.total_seconds() * 1_000))

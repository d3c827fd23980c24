"""The store in memory: the same answers and the same rows as SQL, by a clock of its own.

Each call is one transaction. ``test_store_double.py`` compares it with the store on SQLite.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from dispatcher.errors import MessageNotFound
from dispatcher.message import Attempt, Body, Message, Outcome, Status
from dispatcher.sendtime import to_ms
from dispatcher.store import (
    Claim,
    Due,
    Failure,
    GivenUp,
    Kept,
    Movable,
    Place,
    Rescued,
    Result,
    Settled,
    Unclaimed,
)
from dispatcher.store.upkeep import Taken

NAMES = tuple(field.name for field in fields(Message))
OPEN = (Status.SENDING, Status.HELD)
NO_PLACE = (Status.CANCELLED, Status.EXPIRED)
_NO_WAIT = timedelta(0)
_UNKNOWN = "the outcome of the last try is unknown: its worker died or lost its line"
_PAGE = 20
"""Rows in a page: fewer than the sweep asks for, so that others come between two of them."""


@dataclass(slots=True, kw_only=True)
class Row:
    """A row of ``messages``."""

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
    enqueue_at: datetime
    fingerprint: str | None
    claim_token: int = 0
    claim_expires_at: datetime | None = None
    reserved: bool = True
    move_token: int = 0

    def message(self) -> Message:
        """Return it as those who read see it."""
        return Message(**{name: getattr(self, name) for name in NAMES})

    def end(self, status: Status, at: datetime) -> None:
        """Give it a final status."""
        self.status, self.finished_at = status, at
        self.claim_expires_at = None


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


class Tables:
    """What SQL holds, and the database's clock, to the millisecond."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self.messages: dict[UUID, Row] = {}
        self.attempts: dict[UUID, dict[int, AttemptRow]] = defaultdict(dict)
        self.keys: dict[str, UUID] = {}
        self.void: set[UUID] = set()

    def now(self) -> datetime:
        """Return the present by the database's clock."""
        return cut(self._clock())

    def scheduled(self, message_id: UUID) -> Row | None:
        """Return a row that is scheduled."""
        row = self.messages.get(message_id)
        return row if row is not None and row.status is Status.SCHEDULED else None

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


class MemoryMessages:
    """Stands in for ``dispatcher.store.Messages``."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def add(
        self,
        message: Message,
        *,
        enqueue_at: datetime,
        fingerprint: str | None,
        body_json: str | None = None,
        status_url: str | None = None,
    ) -> Message:
        del body_json, status_url
        tables, key = self._tables, message.idempotency_key
        if message.id in tables.void:
            raise GivenUp
        known = message.id
        if known not in tables.messages and key is not None:
            known = tables.keys.get(key, known)
        if known in tables.messages:
            return tables.messages[known].message()
        values = {name: getattr(message, name) for name in NAMES}
        values |= {name: cut(value) for name, value in values.items() if _is_instant(value)}
        tables.messages[message.id] = Row(
            **values, enqueue_at=cut(enqueue_at), fingerprint=fingerprint
        )
        if key is not None:
            tables.keys[key] = message.id
        return message

    def get(self, message_id: UUID) -> Message:
        row = self._tables.messages.get(message_id)
        if row is None:
            raise MessageNotFound(message_id)
        return row.message()

    def with_key(self, idempotency_key: str) -> tuple[Message, str | None] | None:
        known = self._tables.keys.get(idempotency_key)
        if known is None:
            return None
        row = self._tables.messages[known]
        return row.message(), row.fingerprint

    def attempts(self, message_id: UUID) -> list[Attempt]:
        tries = self._tables.attempts.get(message_id, {})
        rows = [tries[token] for token in sorted(tries)]
        return [
            Attempt(**{each.name: getattr(row, each.name) for each in fields(row)}) for row in rows
        ]

    def cancel(self, message_id: UUID) -> Message:
        row = self._tables.scheduled(message_id)
        if row is not None:
            row.end(Status.CANCELLED, self._tables.now())
        return self.get(message_id)

    def movable(self, message_id: UUID) -> Movable:
        message = self.get(message_id)
        return Movable(message, self._tables.messages[message_id].move_token, self._tables.now())

    def move(
        self,
        found: Movable,
        *,
        within: timedelta,
        send_at: datetime,
        next_attempt_at: datetime | None = None,
        zone: str | None,
        expires_at: datetime | None,
        expire_after: timedelta | None,
        asked_at: datetime | None,
        enqueue_at: datetime,
    ) -> Movable:
        row = self._tables.scheduled(found.message.id)
        in_time = self._tables.now() <= found.read_at + within
        if row is not None and row.move_token == found.token and in_time:
            row.move_token += 1
            row.send_at, row.next_attempt_at = cut(send_at), cut(next_attempt_at or send_at)
            row.zone, row.expire_after = zone, expire_after
            row.asked_at = None if asked_at is None else cut(asked_at)
            row.expires_at = None if expires_at is None else cut(expires_at)
            row.enqueue_at = cut(enqueue_at)
        return self.movable(found.message.id)

    def update(self, message_id: UUID, *, body: Body) -> Message:
        row = self._tables.scheduled(message_id)
        if row is not None:
            row.body = body
        return self.get(message_id)

    def remove(self, message_id: UUID) -> bool:
        tables = self._tables
        row = tables.scheduled(message_id)
        if row is not None:
            del tables.messages[message_id]
            tables.attempts.pop(message_id, None)
            if row.idempotency_key is not None:
                del tables.keys[row.idempotency_key]
        return message_id not in tables.messages

    def enqueue_again(self, message_ids: Sequence[UUID]) -> None:
        for row in filter(None, map(self._tables.scheduled, message_ids)):
            row.enqueue_at = self._tables.now()


class MemoryClaims:
    """Stands in for ``dispatcher.store.Claims``."""

    def __init__(self, tables: Tables, *, ttl: timedelta) -> None:
        self._tables = tables
        self._ttl = ttl

    def claim(self, message_ids: Sequence[UUID], *, ahead: timedelta = _NO_WAIT) -> list[Claim]:
        tables, now = self._tables, self._tables.now()
        taken = []
        for message_id in set(message_ids):
            row = tables.scheduled(message_id)
            if row is None or row.next_attempt_at > now + ahead:
                continue
            if row.expires_at is not None and row.expires_at <= now:
                continue
            row.status = Status.SENDING
            row.claim_token += 1
            row.attempt_count += 1
            row.claim_expires_at = now + self._ttl
            begun = AttemptRow(row.id, row.claim_token, max(row.next_attempt_at, now))
            tables.attempts[row.id][row.claim_token] = begun
            taken.append(row)
        taken.sort(key=lambda row: (row.next_attempt_at, row.id))
        return [
            Claim(
                row.message(),
                row.claim_token,
                max(0.0, (row.next_attempt_at - now).total_seconds()),
                None if row.expires_at is None else (row.expires_at - now).total_seconds(),
                (now - row.send_at).total_seconds(),
            )
            for row in taken
        ]

    def renew(self, claims: Sequence[Claim]) -> set[UUID]:
        ours = [self._tables.ours(each, (Status.SENDING,)) for each in claims]
        for row in filter(None, ours):
            row.claim_expires_at = self._tables.now() + self._ttl
        return {row.id for row in ours if row is not None}

    def unclaimed(self, message_ids: Sequence[UUID]) -> Unclaimed:
        now = self._tables.now()
        waits, expired = {}, {}
        for row in filter(None, map(self._tables.scheduled, message_ids)):
            if row.next_attempt_at > now:
                waits[row.id] = row.next_attempt_at - now
            elif row.expires_at is not None and row.expires_at <= now:
                row.end(Status.EXPIRED, now)
                expired[row.id] = row.channel
        return Unclaimed(waits, expired, {})

    def enqueue_when_due(self, message_ids: Sequence[UUID]) -> None:
        for row in filter(None, map(self._tables.scheduled, message_ids)):
            row.enqueue_at = min(row.enqueue_at, row.next_attempt_at)

    def record(
        self, results: Sequence[Result], failures: Sequence[Failure], *, enqueue_in: timedelta
    ) -> set[UUID]:
        tables, now = self._tables, self._tables.now()
        expired: set[UUID] = set()
        for result in results:
            row = tables.sent_by(result.claim)
            if row is not None:
                self._overtake(row, result.claim)
                row.end(Status.SENT, now)
                row.last_error = None
            self._outcome(result.claim, Outcome.SENT, None, result.receipt)
        for failure in failures:
            row = tables.ours(failure.claim, OPEN)
            if row is not None:
                self._failed(row, failure, enqueue_in)
            if failure.wait is not None and not failure.is_held:
                expired |= self._expired(failure.claim)
            self._outcome(failure.claim, failure.outcome, failure.error, None)
        return expired

    def put_back(
        self, snoozed: Iterable[tuple[Claim, timedelta]], *, enqueue_in: timedelta
    ) -> None:
        tables = self._tables
        for claim, wait in list(snoozed):
            row = tables.ours(claim, OPEN)
            if row is not None:
                row.attempt_count -= 1
                self._again(row, wait, enqueue_in)
            attempt = tables.attempts[claim.message.id].get(claim.token)
            if attempt is None:
                continue
            held = tables.ours(claim, (Status.SCHEDULED, Status.HELD))
            was_held = held is not None and held.on_unknown == "hold"
            sent = tables.ours(claim, (Status.SENT,))
            is_unknown = attempt.outcome is Outcome.UNKNOWN
            if sent is not None and is_unknown:
                sent.attempt_count -= 1
            if attempt.finished_at is None or ((was_held or sent) and is_unknown):
                del tables.attempts[claim.message.id][claim.token]

    def _overtake(self, row: Row, claim: Claim) -> None:
        current = self._tables.attempts[row.id].get(row.claim_token)
        if row.claim_token != claim.token and row.claim_expires_at is not None and current:
            current.end(Outcome.UNKNOWN, row.claim_expires_at)

    def _failed(self, row: Row, failure: Failure, enqueue_in: timedelta) -> None:
        row.last_error = failure.error
        if failure.is_held:
            row.status, row.claim_expires_at = Status.HELD, None
            row.next_attempt_at = self._tables.now()
        elif failure.wait is None:
            row.end(Status.FAILED, self._tables.now())
        else:
            self._again(row, failure.wait, enqueue_in)

    def _again(self, row: Row, wait: timedelta, enqueue_in: timedelta) -> None:
        now = self._tables.now()
        row.status, row.claim_expires_at = Status.SCHEDULED, None
        row.next_attempt_at = now + rounded(wait)
        row.enqueue_at = now + rounded(max(_NO_WAIT, wait + enqueue_in))

    def _expired(self, claim: Claim) -> set[UUID]:
        row = self._tables.ours(claim, (Status.SCHEDULED,))
        if row is None or row.expires_at is None or row.expires_at > row.next_attempt_at:
            return set()
        row.end(Status.EXPIRED, self._tables.now())
        return {row.id}

    def _outcome(
        self, claim: Claim, outcome: Outcome, error: str | None, receipt: str | None
    ) -> None:
        attempt = self._tables.attempts[claim.message.id].get(claim.token)
        if attempt is None:
            return
        if attempt.finished_at is None or attempt.outcome is Outcome.UNKNOWN:
            attempt.end(outcome, self._tables.now())
            attempt.error, attempt.receipt = error, receipt


class MemoryStoreUpkeep:
    """Stands in for ``dispatcher.store.StoreUpkeep``."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def take_due(self, *, at_most: int, grace: timedelta) -> list[Due]:
        now = self._tables.now()
        rows = [
            row
            for row in self._tables.messages.values()
            if row.status is Status.SCHEDULED and row.enqueue_at <= now
        ]
        rows.sort(key=lambda row: row.enqueue_at)
        for row in rows[:at_most]:
            row.enqueue_at = max(row.next_attempt_at, now) + grace
        due = [
            Due(
                row.id,
                row.channel,
                row.next_attempt_at,
                is_suspect=row.last_error == _UNKNOWN,
                is_first=row.next_attempt_at == row.send_at,
            )
            for row in rows[:at_most]
        ]
        return sorted(due, key=lambda each: each.next_attempt_at)

    def rescue(self, *, at_most: int) -> list[Rescued]:
        now = self._tables.now()
        rows = [
            row
            for row in self._tables.messages.values()
            if row.status is Status.SENDING
            and row.claim_expires_at is not None
            and row.claim_expires_at <= now
        ]
        rows.sort(key=lambda row: row.claim_expires_at or now)
        for row in rows[:at_most]:
            self._rescue(row, now)
        return sorted(
            Rescued(row.id, row.channel, row.attempt_count, row.status) for row in rows[:at_most]
        )

    def _rescue(self, row: Row, now: datetime) -> None:
        for attempt in self._tables.attempts[row.id].values():
            if attempt.finished_at is None:
                attempt.end(Outcome.UNKNOWN, now)
        row.last_error = _UNKNOWN
        row.next_attempt_at = row.enqueue_at = now
        row.claim_expires_at = None
        if row.on_unknown == "hold":
            row.status = Status.HELD
        elif row.attempt_count >= row.max_attempts:
            row.end(Status.FAILED, now)
        elif row.expires_at is not None and row.expires_at <= now:
            row.end(Status.EXPIRED, now)
        else:
            row.status = Status.SCHEDULED

    def give_up(self, message_ids: Sequence[UUID]) -> Settled:
        void = set(message_ids) - self._tables.messages.keys()
        self._tables.void |= void
        return Settled(self.holding(message_ids), void, set())

    def holding(self, message_ids: Sequence[UUID]) -> dict[UUID, Kept]:
        found = (self._tables.messages.get(message_id) for message_id in message_ids)
        return {row.id: _kept(row) for row in found if row and row.status not in NO_PLACE}

    def places_of(self, message_ids: Sequence[UUID]) -> list[Place]:
        found = (self._tables.messages.get(message_id) for message_id in message_ids)
        return [_place(row) for row in found if row and row.status not in NO_PLACE]

    def bar_moves(self, message_ids: Sequence[UUID]) -> set[UUID]:
        rows = [row for row in map(self._tables.messages.get, message_ids) if row]
        for row in rows:
            row.move_token += 1
        return {row.id for row in rows}

    def unreleased(self, *, at_most: int) -> list[Place]:
        rows = [
            row for row in self._tables.messages.values() if row.reserved and row.status in NO_PLACE
        ]
        return [_place(row) for row in sorted(rows, key=lambda row: row.id)[:at_most]]

    def mark_released(self, message_ids: Sequence[UUID]) -> None:
        for message_id in message_ids:
            if message_id in self._tables.messages:
                self._tables.messages[message_id].reserved = False

    def places(
        self,
        *,
        memory: timedelta,
        batch: int,
        created: tuple[datetime, datetime] | None = None,
    ) -> Iterator[list[Place]]:
        last, end = UUID(int=0), UUID(int=2**128 - 1)
        if created is not None:
            last, end = _first_id(created[0]), _first_id(created[1])
        while True:
            rows = [row for row in self._holding_since(memory) if last < row.id < end]
            page = sorted(rows, key=lambda row: row.id)[: min(batch, _PAGE)]
            if not page:
                return
            yield [_place(row) for row in page]
            last = page[-1].id

    def count_places(self, *, memory: timedelta) -> int:
        return len(self._holding_since(memory))

    def permits(self, *, memory: timedelta, batch: int) -> Iterator[list[Taken]]:
        size = min(batch, _PAGE)
        last: tuple[Any, ...] = (UUID(int=0), -1)
        while page := self._page(lambda row: row.finished_at is None, last, size):
            yield [self._taken(row) for row in page]
            last = (page[-1].message_id, page[-1].token)
        last = (self._tables.now() - memory, UUID(int=2**128 - 1), 0)
        while page := self._page(lambda row: row.finished_at is not None, last, size):
            yield [self._taken(row) for row in page]
            last = (page[-1].finished_at, page[-1].message_id, page[-1].token)

    def _page(
        self, wanted: Callable[[AttemptRow], bool], last: tuple[Any, ...], size: int
    ) -> list[AttemptRow]:
        def place(row: AttemptRow) -> tuple[Any, ...]:
            end = () if row.finished_at is None else (row.finished_at,)
            return (*end, row.message_id, row.token)

        tries = (row for some in self._tables.attempts.values() for row in some.values())
        rows = [row for row in tries if wanted(row) and place(row) > last]
        return sorted(rows, key=place)[:size]

    def _taken(self, attempt: AttemptRow) -> Taken:
        row, now = self._tables.messages[attempt.message_id], self._tables.now()
        end = attempt.finished_at or row.claim_expires_at or now
        return Taken(row.id, attempt.token, row.scope, row.channel, now - end)

    def _holding_since(self, memory: timedelta) -> list[Row]:
        earliest = self._tables.now() - memory
        return [
            row
            for row in self._tables.messages.values()
            if row.reserved and row.status not in NO_PLACE and row.send_at > earliest
        ]


def cut(instant: datetime) -> datetime:
    """Return an instant as SQLite keeps it: to the millisecond."""
    return instant.replace(microsecond=instant.microsecond // 1_000 * 1_000)


def rounded(length: timedelta) -> timedelta:
    """Return a length to the millisecond, as the store adds it."""
    return timedelta(milliseconds=round(length.total_seconds() * 1_000))


def _is_instant(value: object) -> bool:
    return isinstance(value, datetime)


def _kept(row: Row) -> Kept:
    return Kept(row.send_at, row.move_token)


def _place(row: Row) -> Place:
    return Place(row.id, row.scope, row.send_at, row.channel, row.scopes or None)


def _first_id(instant: datetime) -> UUID:
    return UUID(int=max(0, to_ms(instant)) << 80)

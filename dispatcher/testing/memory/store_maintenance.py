"""The store of the sweep, in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID

from dispatcher.message import Message, Outcome, Status
from dispatcher.store import (
    Due,
    Movable,
    RescuedMessage,
    ReservationRow,
    ReservedTime,
    Settled,
    UnbegunClaim,
)
from dispatcher.store.changes import NOT_BEGUN
from dispatcher.store.maintenance import UNKNOWN, OverdueBatch
from dispatcher.store.reservations import PermitRow
from dispatcher.testing.memory.tables import (
    NO_CATCH_UP,
    NO_RESERVATION,
    OPEN,
    AttemptRow,
    CatchUpRules,
    Row,
    Tables,
    error_before,
    rounded,
)
from dispatcher.times.send_time import to_ms

_EXPIRED = "overdue: no worker took it in time"
_NO_SLOT = "overdue: no slot was left for it"
_PAGE = 20
"""Rows in a page: fewer than the sweep asks for, so that others come between two of them."""


class MemoryStoreMaintenance:
    """Stands in for ``dispatcher.store.StoreMaintenance``."""

    def __init__(self, tables: Tables, *, kept_back: CatchUpRules = NO_CATCH_UP) -> None:
        self._tables = tables
        self._rules = kept_back

    def has_resumed(self, *, within: timedelta) -> bool:
        since = self._tables.now() - within
        ends = (each.resumed_at for each in self._tables.pauses.values())
        return any(each is not None and each > since for each in ends)

    def due(self, *, limit: int, within: timedelta | None = None) -> list[UUID]:
        now = self._tables.now()
        rows = [
            row
            for row in self._tables.to_enqueue(now)
            if (within is None or row.enqueue_at > now - within)
            and not self._rules.keeps_back(row, now)
        ]
        return [row.id for row in rows[:limit]]

    def take_due(self, message_ids: Sequence[UUID], *, grace: timedelta) -> list[Due]:
        now = self._tables.now()
        found = map(self._tables.scheduled, message_ids)
        rows = [
            row
            for row in found
            if row is not None
            and row.enqueue_at <= now
            and not self._tables.is_paused(row)
            and not self._rules.keeps_back(row, now)
        ]
        for row in rows:
            graces = (2 * late for late in (8, 4) if row.next_attempt_at <= now - late * grace)
            row.enqueue_at = max(row.next_attempt_at, now) + next(graces, 1) * grace
            row.enqueued_at = now
        due = [
            Due(
                row.id,
                row.channel,
                row.next_attempt_at,
                is_suspect=_is_suspect(row),
                is_first=row.next_attempt_at == row.send_at,
            )
            for row in rows
        ]
        return sorted(due, key=lambda each: each.next_attempt_at)

    def rescue(self, *, limit: int, within: timedelta | None = None) -> list[RescuedMessage]:
        now = self._tables.now()
        rows = [
            row
            for row in self._tables.messages.values()
            if row.status is Status.SENDING
            and row.claim_expires_at is not None
            and row.claim_expires_at <= now
            and (within is None or row.claim_expires_at > now - within)
        ]
        rows.sort(key=lambda row: row.claim_expires_at or now)
        for row in rows[:limit]:
            self._rescue(row, now)
        return sorted(
            RescuedMessage(row.id, row.channel, row.attempt_count, row.status)
            for row in rows[:limit]
        )

    def _rescue(self, row: Row, now: datetime) -> None:
        for attempt in self._tables.attempts[row.id].values():
            if attempt.finished_at is None:
                attempt.end(Outcome.UNKNOWN, now)
        row.last_error = UNKNOWN
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

    def unbegun(
        self, message_ids: Sequence[UUID], *, mark: UUID, died: bool = True
    ) -> list[UnbegunClaim]:
        found = (self._tables.messages.get(each) for each in sorted(set(message_ids)))
        return [
            UnbegunClaim(
                row.id,
                row.claim_token,
                row.scope,
                row.channel,
                row.attempt_count,
                died and _is_suspect(row),
                Status.FAILED
                if died and _is_suspect(row) and row.attempt_count >= row.max_attempts
                else Status.SCHEDULED,
            )
            for row in found
            if row and row.status is Status.SENDING and row.claimed_by == mark
        ]

    def put_back(
        self, unbegun: Sequence[UnbegunClaim], *, wait: timedelta, died: bool = True
    ) -> None:
        for each in unbegun:
            row = self._tables.messages.get(each.message_id)
            if row and row.claim_token == each.token and row.status in OPEN:
                row.last_error = NOT_BEGUN if died else error_before(row)
                self._put_back(row, each, wait)
            self._undo(each)

    def _put_back(self, row: Row, unbegun: UnbegunClaim, wait: timedelta) -> None:
        now = self._tables.now()
        row.claim_expires_at = None
        if unbegun.status is Status.FAILED:
            row.end(Status.FAILED, now)
            return
        row.status, row.enqueue_at = Status.SCHEDULED, now
        if unbegun.counts:
            row.next_attempt_at = row.enqueue_at = now + rounded(wait)
        else:
            row.attempt_count -= 1

    def _undo(self, unbegun: UnbegunClaim) -> None:
        tries = self._tables.attempts[unbegun.message_id]
        attempt = tries.get(unbegun.token)
        if attempt is None:
            return
        is_open = attempt.finished_at is None
        is_unknown = attempt.outcome is Outcome.UNKNOWN
        if unbegun.counts and (is_open or is_unknown):
            attempt.end(Outcome.TEMPORARY, self._tables.now())
            attempt.error = NOT_BEGUN
        elif is_open or (is_unknown and self._was_held(unbegun)):
            del tries[unbegun.token]

    def _was_held(self, unbegun: UnbegunClaim) -> bool:
        row = self._tables.messages[unbegun.message_id]
        is_ours = row.claim_token == unbegun.token and row.on_unknown == "hold"
        return is_ours and row.status in (Status.SCHEDULED, Status.HELD)

    def give_up(self, message_ids: Sequence[UUID]) -> Settled:
        under_way = {each for each in message_ids for some in self._tables.open if each in some}
        void = set(message_ids) - self._tables.messages.keys() - under_way
        for message_id in void:
            self._tables.void.setdefault(message_id, self._tables.now())
        return Settled(self.reserved_times(message_ids), void, under_way)

    def prune(self, *, older_than: timedelta, limit: int) -> int:
        tables, before = self._tables, self._tables.now() - older_than
        pruned, kept = 0, []
        while pruned < limit and tables.ended and tables.ended[0][0] <= before:
            at, message_id = tables.ended.popleft()
            row = tables.messages.get(message_id)
            if row is None or row.finished_at != at:
                continue
            if (row.status in NO_RESERVATION and row.reserved) or row.notified_status not in (
                None,
                row.status,
            ):
                kept.append((at, message_id))
                continue
            tables.delete(message_id)
            pruned += 1
        tables.ended.extendleft(reversed(kept))
        void = sorted((at, id_) for id_, at in tables.void.items() if id_ not in tables.taken_back)
        for at, message_id in void[: limit - pruned]:
            if at <= before:
                del tables.void[message_id]
                pruned += 1
        return pruned

    def keep_days(self, *, older_than: timedelta) -> list[date]:
        del older_than
        return []

    def reserved_times(self, message_ids: Sequence[UUID]) -> dict[UUID, ReservedTime]:
        found = (self._tables.messages.get(message_id) for message_id in message_ids)
        return {row.id: _kept(row) for row in found if row and row.status not in NO_RESERVATION}

    def reservations_of(self, message_ids: Sequence[UUID]) -> list[ReservationRow]:
        found = (self._tables.messages.get(message_id) for message_id in message_ids)
        return [_reservation_row(row) for row in found if row and row.status not in NO_RESERVATION]

    def bar_moves(self, message_ids: Sequence[UUID]) -> set[UUID]:
        rows = [row for row in map(self._tables.messages.get, message_ids) if row]
        for row in rows:
            row.move_token += 1
        return {row.id for row in rows}

    def unreleased(self, *, limit: int) -> list[ReservationRow]:
        rows = [*self._tables.unreleased.values(), *self._tables.taken_back.values()]
        return [_reservation_row(row) for row in sorted(rows, key=lambda row: row.id)[:limit]]

    def mark_released(self, message_ids: Sequence[UUID]) -> None:
        for message_id in message_ids:
            self._tables.taken_back.pop(message_id, None)
            self._tables.unreleased.pop(message_id, None)
            if message_id in self._tables.messages:
                self._tables.messages[message_id].reserved = False

    def reservations(
        self,
        *,
        memory: timedelta,
        batch: int,
        created: tuple[datetime, datetime] | None = None,
    ) -> Iterator[list[ReservationRow]]:
        last, end = UUID(int=0), UUID(int=2**128 - 1)
        if created is not None:
            last, end = _first_id(created[0]), _first_id(created[1])
        while True:
            rows = [row for row in self._holding_since(memory) if last < row.id < end]
            page = sorted(rows, key=lambda row: row.id)[: min(batch, _PAGE)]
            if not page:
                return
            yield [_reservation_row(row) for row in page]
            last = page[-1].id

    def count_reservations(self, *, memory: timedelta) -> int:
        return len(self._holding_since(memory))

    def permits(self, *, memory: timedelta, batch: int) -> Iterator[list[PermitRow]]:
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

    def _taken(self, attempt: AttemptRow) -> PermitRow:
        row, now = self._tables.messages[attempt.message_id], self._tables.now()
        end = attempt.finished_at or row.claim_expires_at or now
        is_under_way = attempt.finished_at is None
        return PermitRow(row.id, attempt.token, row.scope, row.channel, now - end, is_under_way)

    def ages(self, these: Sequence[tuple[UUID, int]]) -> dict[tuple[UUID, int], timedelta | None]:
        now = self._tables.now()
        return {
            (row.message_id, row.token): now - row.finished_at if row.finished_at else None
            for message_id in {id_ for id_, _ in these}
            for row in self._tables.attempts.get(message_id, {}).values()
        }

    def snoozed(self, *, batch: int) -> Iterator[list[UUID]]:
        now, size = self._tables.now(), min(batch, _PAGE)
        last = (datetime.min.replace(tzinfo=UTC), UUID(int=0))
        while True:
            rows = [
                row
                for row in self._tables.messages.values()
                if row.status is Status.SCHEDULED
                and row.send_at <= now < row.next_attempt_at
                and row.claim_token not in self._tables.attempts[row.id]
                and (row.enqueue_at, row.id) > last
            ]
            page = sorted(rows, key=lambda row: (row.enqueue_at, row.id))[:size]
            if not page:
                return
            last = (page[-1].enqueue_at, page[-1].id)
            yield [row.id for row in page]
            now = self._tables.now()

    def bring_forward(self, message_ids: Sequence[UUID]) -> set[UUID]:
        now = self._tables.now()
        rows = [row for row in map(self._tables.messages.get, message_ids) if row]
        for row in rows:
            if row.status is Status.SCHEDULED and row.send_at <= now < row.next_attempt_at:
                row.next_attempt_at = row.enqueue_at = now
        waits = (Status.SCHEDULED, Status.SENDING)
        return {row.id for row in rows if row.status in waits and row.next_attempt_at <= now}

    def _holding_since(self, memory: timedelta) -> list[Row]:
        earliest = self._tables.now() - memory
        return [
            row
            for row in self._tables.messages.values()
            if row.reserved and row.status not in NO_RESERVATION and row.send_at > earliest
        ]


class MemoryOverdue:
    """Stands in for ``dispatcher.store.Overdue``."""

    def __init__(self, tables: Tables, catching_up: CatchUpRules) -> None:
        self._tables = tables
        self._rules = catching_up

    def expire(self, *, limit: int) -> dict[UUID, str]:
        now = self._tables.now()
        rows = [
            row
            for row in self._tables.messages.values()
            if row.enqueue_at <= now
            and not self._tables.is_paused(row)
            and (
                self._rules.is_overdue(row, now, self._rules.expire)
                or (self._is_to_move(row) and row.expires_at and row.expires_at <= now)
            )
        ]
        rows.sort(key=lambda row: row.enqueue_at)
        for row in rows[:limit]:
            row.end(Status.EXPIRED, now, _EXPIRED)
        return {row.id: row.channel for row in rows[:limit]}

    def take(self, *, limit: int, ttl: timedelta) -> OverdueBatch | None:
        now = self._tables.now()
        waiting = [row for row in self._tables.messages.values() if self._is_to_move(row)]
        rows = [row for row in waiting if row.enqueue_at <= now]
        rows.sort(key=lambda row: (row.send_at, row.id))
        if not rows:
            return None
        for row in rows[:limit]:
            row.enqueue_at = now + ttl
        first = rows[0].send_at
        if any(row.enqueue_at <= now + ttl and row.send_at < first for row in waiting):
            self.put_back([row.message() for row in rows[:limit]])
            return None
        return OverdueBatch(
            [Movable(row.message(), row.move_token, now) for row in rows[:limit]], now
        )

    def put_back(self, taken: Sequence[Message]) -> None:
        for row in filter(None, (self._tables.messages.get(each.id) for each in taken)):
            if self._is_to_move(row):
                row.enqueue_at = self._tables.now()

    def give_up(self, message: Message) -> bool:
        row = self._tables.messages.get(message.id)
        if row is None:
            return False
        if row.send_at == message.send_at and self._is_to_move(row):
            row.end(Status.EXPIRED, self._tables.now(), _NO_SLOT)
        return row.status is Status.EXPIRED and row.last_error == _NO_SLOT

    def _is_to_move(self, row: Row) -> bool:
        is_overdue = self._rules.is_overdue(row, self._tables.now(), self._rules.reslot)
        return is_overdue and not self._tables.is_paused(row)


def _kept(row: Row) -> ReservedTime:
    return ReservedTime(row.send_at, row.move_token)


def _reservation_row(row: Row) -> ReservationRow:
    return ReservationRow(row.id, row.scope, row.send_at, row.channel, row.scopes or None)


def _first_id(instant: datetime) -> UUID:
    return UUID(int=max(0, to_ms(instant)) << 80)


def _is_suspect(row: Row) -> bool:
    return row.last_error in (UNKNOWN, NOT_BEGUN)

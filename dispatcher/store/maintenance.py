"""Periodic maintenance in SQL: enqueue, rescue, reconcile, prune; all in bounded batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from itertools import chain
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Row,
    Select,
    and_,
    case,
    delete,
    exists,
    false,
    func,
    literal,
    or_,
    select,
    true,
    tuple_,
    update,
)

from dispatcher.faults import fault
from dispatcher.message import Outcome, Status
from dispatcher.store.changes import Changes
from dispatcher.store.database import Database
from dispatcher.store.engines.types import database_now, later
from dispatcher.store.orphans import Settled, give_up
from dispatcher.store.reservations import (
    PermitRow,
    ReservationRow,
    ReservedTime,
    reservation_columns,
    time_columns,
)
from dispatcher.store.schema import Tables
from dispatcher.times.send_time import to_ms

T = TypeVar("T")
# Stored in last_error, and compared with it (_is_suspect): a row with another text is no suspect.
UNKNOWN = "the outcome of the last try is unknown: its worker died or lost its line"
NOT_BEGUN = "not sent: before its send began, its worker died or could not put it back"


class Due(NamedTuple):
    """A message to enqueue.

    ``is_suspect``: its last worker died while it had it. ``is_first``: it is due at its send time,
    not at that of a retry or after a snooze.
    """

    message_id: UUID
    channel: str
    next_attempt_at: datetime
    is_suspect: bool
    is_first: bool


class Rescued(NamedTuple):
    """A message whose claim ran out, and its new status."""

    message_id: UUID
    channel: str
    attempt: int
    status: Status


class Unbegun(NamedTuple):
    """A message whose worker died before it began to send it, and the claim.

    ``counts``: the worker before died too, so the message may be the cause. Then the attempt
    counts, as a failed one; ``status`` is the status of the message after that.
    """

    message_id: UUID
    token: int
    scope: str
    channel: str
    attempt: int
    counts: bool
    status: Status


class StoreUpkeep:
    """The statements of periodic maintenance. Any number of sweeps may run side by side.

    Messages to which ``leaves`` applies are not enqueued.
    """

    def __init__(self, database: Database, *, leaves: ColumnElement[bool] | None = None) -> None:
        self._database = database
        self._tables = database.tables
        self._changes = Changes(database)
        self._takes = true() if leaves is None else ~leaves
        last_error = func.coalesce(database.tables.messages.c.last_error, "")
        self._is_suspect = last_error.in_([UNKNOWN, NOT_BEGUN])

    def take_due(self, *, at_most: int, grace: timedelta) -> list[Due]:
        """Return messages whose time to be enqueued has come, soonest first.

        Each is returned again ``grace`` after it is due if it is not claimed by then: its task was
        lost.
        """
        messages = self._tables.messages
        now = database_now()
        wanted = (
            select(messages.c.id)
            .where(
                messages.c.status == Status.SCHEDULED.value,
                messages.c.enqueue_at <= now,
                self._takes,
            )
            .order_by(messages.c.enqueue_at)
            .limit(at_most)
            .with_for_update(skip_locked=True)
        )
        due_from = case((messages.c.next_attempt_at > now, messages.c.next_attempt_at), else_=now)
        put_off = update(messages).values(
            enqueue_at=later(due_from, grace.total_seconds()), enqueued_at=now
        )
        columns = (
            messages.c.id,
            messages.c.channel,
            messages.c.next_attempt_at,
            self._is_suspect,
            messages.c.next_attempt_at == messages.c.send_at,
        )
        rows = self._database.update_returning(wanted, put_off, *columns)
        return sorted((Due._make(row) for row in rows), key=lambda due: due.next_attempt_at)

    def rescue(self, *, at_most: int) -> list[Rescued]:
        """End the claims that have run out; return their messages.

        The outcome of the attempt is unknown: its worker may have died anywhere between claim and
        record. A message whose ``on_unknown`` is ``hold`` is held; another is due again at once,
        unless its attempts or its time are used up. ``next_attempt_at`` becomes the present.
        """
        messages, attempts = self._tables.messages, self._tables.attempts
        now = database_now()
        run_out = (messages.c.status == Status.SENDING.value, messages.c.claim_expires_at <= now)
        chosen = (
            select(messages.c.id, messages.c.channel, messages.c.attempt_count)
            .where(*run_out)
            .order_by(messages.c.claim_expires_at)
            .limit(at_most)
            .with_for_update(skip_locked=True)
        )
        hold = messages.c.on_unknown == "hold"
        used_up = messages.c.attempt_count >= messages.c.max_attempts
        too_late = messages.c.expires_at <= now

        def work(connection: Connection) -> list[Rescued]:
            rows = connection.execute(chosen).all()
            if not rows:
                return []
            ids = [row.id for row in rows]
            connection.execute(
                update(attempts)
                .where(
                    attempts.c.message_id.in_(ids),
                    attempts.c.finished_at.is_(None),
                )
                .values(finished_at=now, outcome=Outcome.UNKNOWN.value)
            )
            fault("rescue.in_transaction")
            connection.execute(
                update(messages)
                .where(messages.c.id.in_(ids), *run_out)
                .values(
                    status=case(
                        (hold, Status.HELD.value),
                        (used_up, Status.FAILED.value),
                        (too_late, Status.EXPIRED.value),
                        else_=Status.SCHEDULED.value,
                    ),
                    finished_at=case((and_(~hold, or_(used_up, too_late)), now), else_=None),
                    next_attempt_at=now,
                    enqueue_at=now,
                    claimed_by=None,
                    claim_expires_at=None,
                    last_error=UNKNOWN,
                )
            )
            standing = select(messages.c.id, messages.c.status).where(messages.c.id.in_(ids))
            now_is = dict(tuple(row) for row in connection.execute(standing))
            return sorted(Rescued(*row, Status(now_is[row.id])) for row in rows)

        return self._database.transact(work)

    def unbegun(self, message_ids: Sequence[UUID], *, mark: UUID) -> list[Unbegun]:
        """Return those of these messages that the claim with this mark has; none was sent."""
        messages = self._tables.messages
        is_last = messages.c.attempt_count >= messages.c.max_attempts
        query = (
            select(
                messages.c.id,
                messages.c.claim_token,
                messages.c.scope,
                messages.c.channel,
                messages.c.attempt_count,
                self._is_suspect.label("counts"),
                and_(self._is_suspect, is_last).label("fails"),
            )
            .where(
                self._database.one_of(messages.c.id, message_ids),
                messages.c.claimed_by == mark,
                self._tables.has_status(Status.SENDING),
            )
            .order_by(messages.c.id)
        )
        return [
            Unbegun(
                row.id,
                row.claim_token,
                row.scope,
                row.channel,
                row.attempt_count,
                bool(row.counts),
                Status.FAILED if row.fails else Status.SCHEDULED,
            )
            for row in self._database.read(query)
        ]

    def put_back(self, unbegun: Sequence[Unbegun], *, wait: timedelta) -> None:
        """Put back messages that no worker has begun to send.

        Each is due as before, and no attempt counts; those whose attempt counts are due ``wait``
        from now, or fail after their last attempt.
        """
        pause = {"wait": wait.total_seconds(), "enqueue": wait.total_seconds()}
        values = {"error": NOT_BEGUN, "outcome": Outcome.TEMPORARY.value, "receipt": None} | pause
        uncounted, again, failed = (
            [
                values | {"id": each.message_id, "token": each.token}
                for each in unbegun
                if (each.counts, each.status) == kind
            ]
            for kind in (
                (False, Status.SCHEDULED), (True, Status.SCHEDULED), (True, Status.FAILED),
            )
        )  # fmt: skip

        changes = self._changes

        def work(connection: Connection) -> None:
            changes.not_begun.run(connection, uncounted)
            changes.undone_attempt.run(connection, uncounted)
            changes.again.run(connection, again)
            changes.failed.run(connection, failed)
            changes.outcome.run(connection, [*again, *failed])

        self._database.transact(work)

    def prune(self, *, older_than: timedelta, at_most: int) -> int:
        """Delete messages that ended longer ago than that; return how many.

        Not those whose last status is not reported to their status URL yet.
        """
        tables = self._tables
        messages = tables.messages
        wanted = (
            select(messages.c.id)
            .where(
                messages.c.finished_at <= later(database_now(), -older_than.total_seconds()),
                ~and_(tables.holds_no_reservation, messages.c.reserved),
                or_(messages.c.told.is_(None), messages.c.told == messages.c.status),
            )
            .order_by(messages.c.finished_at)
            .limit(at_most)
            .with_for_update(skip_locked=True)
        )
        deleted = self._database.update_returning(wanted, delete(messages), messages.c.id)
        fault("prune.after_batch")
        return len(deleted)

    def holding(self, message_ids: Sequence[UUID]) -> dict[UUID, ReservedTime]:
        """Return the send times of those of the messages that hold a reservation."""
        rows = self._database.read(self._holding(time_columns(self._tables), message_ids))
        return {row.id: ReservedTime(row.send_at, row.move_token) for row in rows}

    def reservations_of(self, message_ids: Sequence[UUID]) -> list[ReservationRow]:
        """Return the reservations of those of the messages that hold one."""
        rows = self._database.read(self._holding(reservation_columns(self._tables), message_ids))
        return [ReservationRow._make(row) for row in rows]

    def bar_moves(self, message_ids: Sequence[UUID]) -> set[UUID]:
        """Bar moves of these messages that have begun by now; return the messages so barred.

        Not those that are not stored, and those that another transaction is changing.
        """
        messages = self._tables.messages
        wanted = (
            select(messages.c.id)
            .where(self._database.one_of(messages.c.id, message_ids), self._tables.is_message)
            .with_for_update(skip_locked=True)
        )
        bar = update(messages).values(move_token=messages.c.move_token + 1)
        rows = self._database.update_returning(wanted, bar, messages.c.id)
        return {row.id for row in rows}

    def give_up(self, message_ids: Sequence[UUID]) -> Settled:
        """Prevent these messages from being stored from now on; return their state."""
        return give_up(self._database, message_ids)

    def unreleased(self, *, at_most: int) -> list[ReservationRow]:
        """Return messages that ended, or were taken back, and may still have a reservation."""
        tables = self._tables
        messages = tables.messages
        query = (
            select(*reservation_columns(tables))
            .where(tables.holds_no_reservation, messages.c.reserved == true())
            .order_by(messages.c.id)
            .limit(at_most)
        )
        return [ReservationRow._make(row) for row in self._database.read(query)]

    def mark_released(self, message_ids: Sequence[UUID]) -> None:
        """Note that the reservations of these messages are released."""
        messages = self._tables.messages
        these = self._database.one_of(messages.c.id, message_ids)
        statement = update(messages).where(these).values(reserved=false())
        self._database.execute(statement)

    def reservations(
        self,
        *,
        memory: timedelta,
        batch: int,
        created: tuple[datetime, datetime] | None = None,
    ) -> Iterator[list[ReservationRow]]:
        """Yield all reservations that still count: times from ``memory`` ago on.

        With ``created``, only of messages whose ids were made between those two instants. The next
        page is read while the caller works on one: at most two are in memory.
        """
        tables = self._tables
        messages = tables.messages
        by_id = messages.c.id
        query = select(*reservation_columns(tables)).where(*_holding_since(tables, memory))
        if created is not None:
            first, end = map(_first_id, created)
            query = query.where(by_id > first, by_id < end)
        pages = self._pages(query.order_by(by_id), (by_id,), batch, lambda row: (row.id,))
        return _ahead([ReservationRow._make(row) for row in page] for page in pages)

    def count_reservations(self, *, memory: timedelta) -> int:
        """Return how many reservations :meth:`reservations` would yield now."""
        messages = self._tables.messages
        query = (
            select(func.count()).select_from(messages).where(*_holding_since(self._tables, memory))
        )
        found: int = self._database.read(query)[0][0]
        return found

    def permits(self, *, memory: timedelta, batch: int) -> Iterator[list[PermitRow]]:
        """Yield the permits of all attempts whose send may lie within ``memory``.

        One that ends while this reads may be yielded twice. Reads ahead like :meth:`reservations`.
        """
        messages, attempts = self._tables.messages, self._tables.attempts
        now = database_now()
        query = select(
            attempts.c.message_id,
            attempts.c.token,
            messages.c.scope,
            messages.c.channel,
            attempts.c.finished_at,
            func.coalesce(attempts.c.finished_at, messages.c.claim_expires_at, now).label("end"),
            now.label("now"),
        ).join(messages, messages.c.id == attempts.c.message_id)
        key: tuple[Column[Any], ...] = (attempts.c.message_id, attempts.c.token)
        under_way = query.where(attempts.c.finished_at.is_(None)).order_by(*key)
        recent = attempts.c.finished_at > later(now, -memory.total_seconds())
        at = (attempts.c.finished_at, *key)
        ended = query.where(recent).order_by(*at)
        rows = chain(
            self._pages(under_way, key, batch, lambda row: (row.message_id, row.token)),
            self._pages(ended, at, batch, lambda row: (row.end, row.message_id, row.token)),
        )
        return _ahead([_taken(row) for row in page] for page in rows)

    def ages(self, these: Sequence[tuple[UUID, int]]) -> dict[tuple[UUID, int], timedelta | None]:
        """Return how long ago attempts ended, by message and token; None for one under way.

        Without those whose claim was put back.
        """
        attempts = self._tables.attempts
        query = select(
            attempts.c.message_id,
            attempts.c.token,
            attempts.c.finished_at,
            database_now().label("now"),
        ).where(self._database.one_of(attempts.c.message_id, sorted({id_ for id_, _ in these})))
        return {
            (row.message_id, row.token): row.now - row.finished_at if row.finished_at else None
            for row in self._database.read(query)
        }

    def snoozed(self, *, batch: int) -> Iterator[list[UUID]]:
        """Yield snoozed messages: past their send time, due later, no attempt of their claim.

        A limit, a silent destination or a worker that ended has put them back. Not those that wait
        for a retry: their providers may have asked for that.
        """
        messages, attempts = self._tables.messages, self._tables.attempts
        now = database_now()
        was_tried = exists().where(
            attempts.c.message_id == messages.c.id, attempts.c.token == messages.c.claim_token
        )
        key: tuple[Column[Any], ...] = (messages.c.enqueue_at, messages.c.id)
        query = (
            select(*key)
            .where(
                messages.c.status == Status.SCHEDULED.value,
                messages.c.send_at <= now,
                messages.c.next_attempt_at > now,
                ~was_tried,
            )
            .order_by(*key)
        )
        for page in self._pages(query, key, batch, lambda row: (row.enqueue_at, row.id)):
            yield [row.id for row in page]

    def bring_forward(self, message_ids: Sequence[UUID]) -> set[UUID]:
        """Make snoozed messages due now; return those that are due or being sent after that.

        Maintenance enqueues them. A message whose send time is to come stays as it is.
        """
        now, messages = database_now(), self._tables.messages
        these = self._database.one_of(messages.c.id, message_ids)
        statement = (
            update(messages)
            .where(
                these,
                messages.c.status == Status.SCHEDULED.value,
                messages.c.send_at <= now,
                messages.c.next_attempt_at > now,
            )
            .values(next_attempt_at=now, enqueue_at=now)
        )
        self._database.execute(statement)
        come = select(messages.c.id).where(
            these,
            self._tables.has_status(Status.SCHEDULED, Status.SENDING),
            messages.c.next_attempt_at <= now,
        )
        return {row.id for row in self._database.read(come)}

    def _pages(
        self,
        query: Select[Any],
        key: tuple[Column[Any], ...],
        batch: int,
        key_of: Callable[[Row[Any]], tuple[Any, ...]],
    ) -> Iterator[Sequence[Row[Any]]]:
        page = query.limit(batch)
        while True:
            rows = self._database.read(page)
            if rows:
                yield rows
            if len(rows) < batch:
                return
            first, *more = last = [
                literal(value, column.type)
                for column, value in zip(key, key_of(rows[-1]), strict=True)
            ]
            behind = [key[0] > first]
            if more:  # redundant: MariaDB does not seek in an index by a tuple
                behind = [key[0] >= first, tuple_(*key) > tuple_(*last)]
            page = query.where(*behind).limit(batch)

    def _holding(
        self, columns: tuple[Column[Any], ...], message_ids: Sequence[UUID]
    ) -> Select[Any]:
        these = self._database.one_of(self._tables.messages.c.id, message_ids)
        return select(*columns).where(these, ~self._tables.holds_no_reservation)


def _ahead(pages: Iterator[list[T]]) -> Iterator[list[T]]:
    """Yield the pages; a thread reads the next one meanwhile."""
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(next, pages, None)
        while (page := coming.result()) is not None:
            coming = thread.submit(next, pages, None)
            yield page


def _taken(row: Row[Any]) -> PermitRow:
    return PermitRow(
        row.message_id,
        row.token,
        row.scope,
        row.channel,
        row.now - row.end,
        is_under_way=row.finished_at is None,
    )


def _holding_since(tables: Tables, memory: timedelta) -> tuple[ColumnElement[bool], ...]:
    messages = tables.messages
    earliest = later(database_now(), -memory.total_seconds())
    return (
        messages.c.reserved == true(),
        ~tables.holds_no_reservation,
        messages.c.send_at > earliest,
    )


def _first_id(instant: datetime) -> UUID:
    """Return the lowest version 7 UUID of that millisecond: its time is its first 48 bits."""
    return UUID(int=max(0, to_ms(instant)) << 80)

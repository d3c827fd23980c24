"""Periodic maintenance in SQL: enqueue, rescue, reconcile, prune, catch up; in bounded batches."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple
from uuid import UUID

import sqlalchemy as sa

from dispatcher.faults import fault
from dispatcher.message import Outcome, Status
from dispatcher.scope import Scope, counted
from dispatcher.store.claims import NOT_BEGUN, UNKNOWN, AttemptEnd, LockedMessages, locked
from dispatcher.store.database import Database
from dispatcher.store.engines.base import pages
from dispatcher.store.engines.types import database_now, later, one_of
from dispatcher.store.listing import counts_against
from dispatcher.store.messages import free_key
from dispatcher.store.schema import Tables
from dispatcher.store.void_ids import ReservedTime
from dispatcher.times.send_time import to_ms

OVERDUE = "overdue: no worker took it in time"
_NONE = sa.false()
_LATE = (8, 4)
MOST_GRACES = 2 * _LATE[0]
"""After so many times ``enqueue_grace`` an unclaimed message is enqueued again at the latest."""


class Due(NamedTuple):
    """``is_suspect``: its last worker died while it had it. ``is_first``: due at its send time."""

    message_id: UUID
    channel: str
    next_attempt_at: datetime
    is_suspect: bool
    is_first: bool
    priority: int = 0
    scope: str = ""
    scopes: Mapping[str, str] | None = None
    campaign: str | None = None


class RescuedMessage(NamedTuple):
    message_id: UUID
    channel: str
    attempt: int
    status: Status


class UnbegunClaim(NamedTuple):
    """A claimed message whose send had not begun.

    ``counts`` if its worker and the one before it died: the message may be the cause. Then the
    attempt counts as failed, and the message gets this ``status``.
    """

    message_id: UUID
    token: int
    scope: str
    channel: str
    attempt: int
    scopes: Mapping[str, str] | None
    counts: bool
    status: Status


class ReservationRow(NamedTuple):
    """The reservation that a message should have, and what its scopes follow from."""

    message_id: UUID
    scope: str
    send_at: datetime
    channel: str
    scopes: Mapping[str, str] | None
    tail: str

    def counted(self, kinds: Container[str]) -> tuple[Scope, ...]:
        return counted(kinds, scope=self.scope, channel=self.channel, scopes=self.scopes)


class PermitRow(NamedTuple):
    """``age``: the time since the latest instant of its send, negative while it may happen."""

    message_id: UUID
    token: int
    scope: str
    channel: str
    age: timedelta
    is_under_way: bool
    scopes: Mapping[str, str] | None


class ReservationState(NamedTuple):
    """Whether a message ``holds`` its reservation; ``frees``: it ended a short while ago."""

    row: ReservationRow
    holds: bool
    frees: bool


class StoreMaintenance:
    """The statements of periodic maintenance. Any number of sweeps may run side by side.

    Messages ``to_expire`` or ``paused``, by these conditions, are not enqueued.
    """

    def __init__(
        self,
        database: Database,
        *,
        to_expire: sa.ColumnElement[bool] = _NONE,
        paused: sa.ColumnElement[bool] = _NONE,
    ) -> None:
        self._database = database
        self._tables = database.tables
        self._locked = LockedMessages(database)
        self._free_key = free_key(database.tables, sa.bindparam("key"), sa.bindparam("id"))
        self._to_expire = sa.and_(to_expire, ~paused)
        self._not_kept_back = sa.and_(~to_expire, ~paused)
        row, now = database.tables.messages.c, database_now()
        self._is_suspect = sa.func.coalesce(row.last_error, "").in_([UNKNOWN, NOT_BEGUN])
        self._reserved = sa.select(
            row.id, row.scope, row.send_at, row.channel, row.scopes, row.tail
        )
        self._is_put_off = (
            database.tables.is_plainly(Status.SCHEDULED),
            row.send_at <= now,
            row.next_attempt_at > now,
        )

    def due(self, *, limit: int, within: timedelta | None = None) -> list[UUID]:
        """Return messages whose time to be enqueued has come, ``within`` at most, soonest first.

        Without ``within`` it reads all entries that an open transaction keeps in the index.
        """
        messages = self._tables.messages
        time_came = (
            self._tables.is_plainly(Status.SCHEDULED),
            messages.c.enqueue_at <= database_now(),
            *_since(messages.c.enqueue_at, within),
        )
        query = sa.select(messages.c.id).where(*time_came, self._not_kept_back)
        rows = self._database.read(query.order_by(messages.c.enqueue_at).limit(limit))
        return [row.id for row in rows]

    def take_due(self, message_ids: Sequence[UUID], *, grace: timedelta) -> list[Due]:
        """Return those of these messages that are to be enqueued now, soonest first.

        No other sweep takes them. Each is due again ``grace`` after its time if it is not claimed
        by then. What is late by four times ``grace`` is due again after eight times, by eight after
        sixteen: else tasks of a backlog would be enqueued faster than workers end them.
        """
        messages = self._tables.messages
        now = database_now()
        is_due = (
            self._tables.has_id(message_ids),
            self._tables.is_scheduled,
            messages.c.enqueue_at <= now,
        )
        due_at = messages.c.next_attempt_at
        again_at = sa.case(
            (due_at > now, later(due_at, grace)),
            *(
                (due_at <= later(now, -graces * grace), later(now, 2 * graces * grace))
                for graces in _LATE
            ),
            else_=later(now, grace),
        )
        put_off = (
            sa.update(messages)
            .where(self._tables.is_live)
            .values(enqueue_at=again_at, enqueued_at=now)
        )
        columns = (
            messages.c.id,
            messages.c.channel,
            messages.c.next_attempt_at,
            self._is_suspect,
            messages.c.next_attempt_at == messages.c.send_at,
            messages.c.priority,
            messages.c.scope,
            messages.c.scopes,
            messages.c.campaign,
        )
        due = sa.select(*columns).where(*is_due, self._not_kept_back)
        rows = self._database.change(due.with_for_update(skip_locked=True), put_off)
        return sorted((Due._make(row) for row in rows), key=lambda due: due.next_attempt_at)

    def has_resumed(self, *, within: timedelta) -> bool:
        pauses = self._tables.pauses
        lately = pauses.c.resumed_at > later(database_now(), -within)
        return bool(self._database.read(sa.select(pauses.c.kind).where(lately).limit(1)))

    def rescue(self, *, limit: int, within: timedelta | None = None) -> list[RescuedMessage]:
        """End the claims that have run out, no longer ago than ``within``; return their messages.

        The outcome of the attempt is unknown. A message whose ``on_unknown`` is ``hold`` is held;
        another is due again at once, unless its attempts or its time are used up.
        """
        messages, attempts = self._tables.messages, self._tables.attempts
        run_out = (
            self._tables.is_plainly(Status.SENDING),
            messages.c.claim_expires_at <= database_now(),
            *_since(messages.c.claim_expires_at, within),
        )
        first = self._locked.query.where(*run_out).order_by(messages.c.claim_expires_at)
        chosen = first.limit(limit).with_for_update(skip_locked=True)

        def work(connection: sa.Connection) -> list[RescuedMessage]:
            rows = locked(connection.execute(chosen)).values()
            if not rows:
                return []
            of_these = one_of(attempts.c.message_id, [row.id for row in rows])
            end = sa.update(attempts).where(of_these, self._tables.is_under_way)
            unknown = {"finished_at": database_now(), "outcome": Outcome.UNKNOWN.value}
            connection.execute(end.values(**unknown))
            fault("rescue.in_transaction")
            for row in rows:
                row.rescued()
            self._locked.write(connection, rows)
            return sorted(
                RescuedMessage(row.id, row.channel, row.attempt_count, row.status) for row in rows
            )

        return self._database.transact(work)

    def unbegun(
        self, message_ids: Sequence[UUID], *, mark: UUID, died: bool = True
    ) -> list[UnbegunClaim]:
        row = self._tables.messages.c
        columns = (row.id, row.claim_token, row.scope, row.channel, row.attempt_count, row.scopes)
        counts = self._is_suspect if died else sa.false()
        fails = sa.and_(counts, row.attempt_count >= row.max_attempts)
        query = (
            sa.select(*columns, counts.label("counts"), fails.label("fails"))
            .where(
                self._tables.has_id(message_ids),
                row.claimed_by == mark,
                self._tables.has_status(Status.SENDING),
            )
            .order_by(row.id)
        )
        return [
            UnbegunClaim._make((*claim, bool(counts), Status.FAILED if fails else Status.SCHEDULED))
            for *claim, counts, fails in self._database.read(query)
        ]

    def put_back(
        self, unbegun: Sequence[UnbegunClaim], *, wait: timedelta, died: bool = True
    ) -> None:
        """Put them back, due as before; where the attempt ``counts`` after ``wait``, or failed."""

        def work(connection: sa.Connection) -> None:
            rows = self._locked.take(connection, [claim.message_id for claim in unbegun])
            counted, undone = [], []
            for claim in unbegun:
                row = rows.get(claim.message_id)
                attempt = claim.message_id, claim.token
                if claim.counts:
                    counted.append(AttemptEnd(*attempt, Outcome.TEMPORARY.value, NOT_BEGUN))
                if row is None or not row.is_open_for(claim.token):
                    continue
                if claim.counts:
                    row.not_begun(wait)
                else:
                    row.returned(NOT_BEGUN if died else None)
                    undone.append(attempt)
            self._locked.undo_attempts(connection, undone)
            self._locked.write(connection, rows.values())
            self._locked.end_attempts(connection, counted)

        self._database.transact(work)

    def prune(self, *, older_than: timedelta, limit: int) -> int:
        """Delete messages that ended longer ago, with their attempts; return how many.

        A message stays until its reservation is released and its last status is reported.
        """
        backend, messages = self._database.backend, self._tables.messages
        attempts, since = self._tables.attempts, messages.c.next_attempt_at
        until = later(database_now(), -backend.kept_for(older_than))
        kinds = (
            (messages.c.finished_at, messages.c.finished_at <= until),
            (since, sa.and_(self._tables.is_void, since <= until)),
        )

        delete = sa.delete(messages).where(messages.c.id == sa.bindparam("id"))

        def work(connection: sa.Connection) -> int:
            rows: list[sa.Row[Any]] = []
            for order, is_old in kinds:
                old = sa.select(messages.c.id, messages.c.idempotency_key)
                old = old.where(is_old, self._tables.is_prunable).order_by(order)
                locking = old.limit(limit - len(rows)).with_for_update(skip_locked=True)
                rows += connection.execute(locking)
            if rows:
                # Each by its id: MariaDB might read the whole table, and wait for locked rows.
                connection.execute(delete, [{"id": row.id} for row in rows])
                tried = one_of(attempts.c.message_id, [row.id for row in rows])
                connection.execute(sa.delete(attempts).where(tried))
            keyed = [
                {"id": row.id, "key": row.idempotency_key}
                for row in rows
                if row.idempotency_key is not None
            ]
            if keyed:
                connection.execute(self._free_key, sorted(keyed, key=itemgetter("key")))
            return len(rows)

        deleted = self._database.transact(work)
        fault("prune.after_batch")
        return deleted

    def prune_events(self, *, older_than: timedelta) -> None:
        """Delete events that were longer ago, where none of their messages has yet to be sent."""
        messages, event = self._tables.messages.c, self._tables.events.c
        to_come = sa.exists().where(messages.event == event.name, messages.finished_at.is_(None))
        old = (event.at < later(database_now(), -older_than), event.definition.is_(None))
        self._database.execute(sa.delete(self._tables.events).where(*old, ~to_come))

    def keep_days(self, *, older_than: timedelta) -> list[date]:
        database = self._database
        return database.run(
            lambda connection: database.backend.keep_days(connection, database.tables, older_than)
        )

    def reserved_times(self, message_ids: Sequence[UUID]) -> dict[UUID, ReservedTime]:
        states = self.reservation_states(message_ids, grace=timedelta(0))
        return {
            message_id: ReservedTime(state.row.send_at, state.row.tail)
            for message_id, state in states.items()
            if state.holds
        }

    def reservation_states(
        self, message_ids: Sequence[UUID], *, grace: timedelta
    ) -> dict[UUID, ReservationState]:
        """Return the reservations of those that are stored; they last ``grace`` after the end."""
        columns, ended = self._tables.messages.c, self._tables.holds_no_reservation
        ended_at = sa.func.coalesce(columns.finished_at, columns.next_attempt_at)
        is_young = ended_at > later(database_now(), -grace)
        frees = sa.and_(ended, columns.reserved == sa.true(), is_young)
        query = self._reserved.where(self._tables.has_id("values"))
        query = query.add_columns((~ended).label("holds"), frees.label("frees"))
        return {
            row.id: ReservationState(
                ReservationRow._make(row[:-2]), bool(row.holds), bool(row.frees)
            )
            for row in self._database.read_of(query, message_ids)
        }

    def bar_moves(self, message_ids: Sequence[UUID]) -> set[UUID]:
        """Bar moves that have begun by now; return whose, without what is locked or not stored."""
        messages = self._tables.messages
        query = sa.select(messages.c.id).where(self._tables.has_id(message_ids))
        bar = sa.update(messages).values(move_token=messages.c.move_token + 1)
        rows = self._database.change(query.with_for_update(skip_locked=True), bar)
        return {row.id for row in rows}

    def unreleased(self, *, limit: int) -> list[ReservationRow]:
        tables = self._tables
        messages = tables.messages
        query = (
            self._reserved.where(tables.holds_no_reservation, messages.c.reserved == sa.true())
            .order_by(messages.c.id)
            .limit(limit)
        )
        return [ReservationRow._make(row) for row in self._database.read(query)]

    def mark_released(self, message_ids: Sequence[UUID]) -> None:
        change = sa.update(self._tables.messages).where(self._tables.has_id(message_ids))
        self._database.execute(change.values(reserved=sa.false()))

    def reservations(
        self,
        *,
        memory: timedelta,
        batch: int,
        created: tuple[datetime, datetime] | None = None,
        past_of: Scope | None = None,
    ) -> Iterator[list[ReservationRow]]:
        """Yield reservations of times from ``memory`` ago on, of messages made in ``created``.

        With ``past_of`` only those of past times that count against this scope.
        """
        row = self._tables.messages.c
        query = self._reserved.where(*self._holding_since(memory))
        if created is not None:
            first, end = map(_first_id, created)
            query = query.where(row.id > first, row.id < end)
        if past_of is not None:
            counts = counts_against(self._tables.messages, past_of.kind, past_of.name)
            query = query.where(row.send_at <= database_now(), counts)
        for page in pages(self._database.read, query, [row.id], batch):
            yield [ReservationRow._make(row) for row in page]

    def count_reservations(self, *, memory: timedelta) -> int:
        messages = self._tables.messages
        counted = sa.select(sa.func.count()).select_from(messages)
        holding = counted.where(*self._holding_since(memory))
        return int(self._database.read(holding)[0][0])

    def _holding_since(self, memory: timedelta) -> tuple[sa.ColumnElement[bool], ...]:
        row = self._tables.messages.c
        return (
            row.reserved == sa.true(),
            ~self._tables.holds_no_reservation,
            row.send_at > later(database_now(), -memory),
            self._tables.ended_since(memory),
        )

    def permits(self, *, memory: timedelta, batch: int) -> Iterator[list[PermitRow]]:
        """Yield the permits of sends within ``memory``; perhaps twice what ends meanwhile."""
        messages, attempts = self._tables.messages, self._tables.attempts
        now = database_now()
        query = sa.select(
            attempts.c.message_id,
            attempts.c.token,
            messages.c.scope,
            messages.c.channel,
            messages.c.scopes,
            attempts.c.finished_at,
            sa.func.coalesce(attempts.c.finished_at, messages.c.claim_expires_at, now).label("end"),
            now.label("now"),
        ).join(messages, messages.c.id == attempts.c.message_id)
        key: tuple[sa.Column[Any], ...] = (attempts.c.message_id, attempts.c.token)
        under_way = query.where(attempts.c.finished_at.is_(None))
        ended = query.where(
            attempts.c.finished_at > later(now, -memory), self._tables.ended_since(memory)
        )
        rows = chain(
            pages(self._database.read, under_way, key, batch),
            pages(self._database.read, ended, (attempts.c.finished_at, *key), batch),
        )
        for page in rows:
            yield [
                PermitRow._make((*row[:4], row.now - row.end, row.finished_at is None, row.scopes))
                for row in page
            ]

    def ages(self, tries: Sequence[tuple[UUID, int]]) -> dict[tuple[UUID, int], timedelta | None]:
        """Return how long ago attempts ended; None for one under way. Not those put back."""
        attempts = self._tables.attempts
        columns = (attempts.c.message_id, attempts.c.token, attempts.c.finished_at)
        query = sa.select(*columns, database_now().label("now"))
        query = query.where(one_of(attempts.c.message_id, "values"))
        ids = sorted({message_id for message_id, _ in tries})
        return {
            (row.message_id, row.token): row.now - row.finished_at if row.finished_at else None
            for row in self._database.read_of(query, ids)
        }

    def snoozed(self, *, batch: int) -> Iterator[list[UUID]]:
        messages, attempts = self._tables.messages, self._tables.attempts
        was_tried = sa.exists().where(
            attempts.c.message_id == messages.c.id, attempts.c.token == messages.c.claim_token
        )
        key: tuple[sa.Column[Any], ...] = (messages.c.enqueue_at, messages.c.id)
        query = sa.select(*key).where(*self._is_put_off, ~was_tried)
        for page in pages(self._database.read, query, key, batch):
            yield [row.id for row in page]

    def bring_forward(self, message_ids: Sequence[UUID]) -> set[UUID]:
        now, messages = database_now(), self._tables.messages
        has_id = self._tables.has_id(message_ids)
        due = sa.update(messages).where(has_id, *self._is_put_off)
        self._database.execute(due.values(next_attempt_at=now, enqueue_at=now))
        come = sa.select(messages.c.id).where(
            has_id,
            self._tables.has_status(Status.SCHEDULED, Status.SENDING),
            messages.c.next_attempt_at <= now,
        )
        return {row.id for row in self._database.read(come)}

    def expire_overdue(self, *, limit: int) -> dict[UUID, str]:
        messages = self._tables.messages
        now = database_now()
        first = sa.select(messages.c.id, messages.c.channel).order_by(messages.c.enqueue_at)
        first = first.where(self._to_expire, messages.c.enqueue_at <= now).limit(limit)
        expired = {"status": Status.EXPIRED.value, "finished_at": now, "last_error": OVERDUE}
        end = sa.update(messages).where(self._to_expire).values(**expired)
        rows = self._database.change(first.with_for_update(skip_locked=True), end)
        return dict(tuple(row) for row in rows)


def overdue(tables: Tables, channels: Collection[str], after: timedelta) -> sa.ColumnElement[bool]:
    messages = tables.messages
    return sa.and_(
        tables.is_live,
        messages.c.status == Status.SCHEDULED.value,
        messages.c.next_attempt_at <= later(database_now(), -after),
        messages.c.attempt_count == 0,
        messages.c.channel.in_(sorted(channels)),
    )


def _since(instant: sa.Column[datetime], within: timedelta | None) -> list[sa.ColumnElement[bool]]:
    return [] if within is None else [instant > later(database_now(), -within)]


def _first_id(instant: datetime) -> UUID:
    """Return the lowest version 7 UUID of that millisecond: its time is its first 48 bits."""
    return UUID(int=max(0, to_ms(instant)) << 80)

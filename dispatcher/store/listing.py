"""Messages for operators, however many are stored: selected ones in pages, and numbers of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from math import inf
from operator import ge, gt, le, lt
from typing import Any, Literal, NamedTuple, Self
from uuid import UUID

from sqlalchemy import ColumnElement, Row, Select, Table, and_, case, func, literal, select, tuple_

from dispatcher.errors import MessageNotFound
from dispatcher.message import Message, Status
from dispatcher.scope import NO_SCOPE, OWN_SCOPE, of_channel, of_scope_on
from dispatcher.selection import Page, Selection
from dispatcher.store.database import Database
from dispatcher.store.engines.types import database_now, later, minute_of
from dispatcher.store.schema import UNSENT_STATUSES, Movable, Tables, to_message
from dispatcher.times.clock import SystemClock
from dispatcher.times.send_time import from_ms, to_ms

_EXAMINED = 5_000
"""How many messages one statement reads, where no index leads to the matches."""
_COUNTED = 20_000
_FEW = frozenset({Status.SENDING, Status.HELD})
MOST_COUNTED = 1_000_000
"""The most messages that one number is counted from, so that a count takes bounded time."""

_MINUTE, _HOUR = timedelta(minutes=1), timedelta(hours=1)
_HOUR_MS = 3_600_000
_HOURS = 24
_ENDED = ("sent", "failed", "expired", "late")

Of = Literal["scope", "recipient", "channel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How many messages of each channel have each status. Instants are the database's.

    Ended ones count if they did so within ``since`` before ``now``. Not ``complete``: more are.
    """

    now: datetime
    since: timedelta
    by_channel: dict[str, dict[Status, int]]
    complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OverdueFigure:
    """How many messages are overdue, the one that was due first, and how long ago it was."""

    many: int
    oldest: UUID | None
    longest: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How many messages are due in each minute from ``start`` on. Not ``complete``: more are."""

    start: datetime
    minutes: tuple[int, ...]
    complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DueByMinute:
    """How many messages of each channel are due in each minute from ``start`` on, if any.

    ``late`` were due before ``start``. All of those due before ``counted_until`` are counted.
    """

    start: datetime
    by_channel: dict[str, dict[datetime, int]]
    late: dict[str, int]
    complete: bool
    counted_until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedInHour:
    at: datetime
    sent: int
    failed: int
    expired: int
    late: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DueCount:
    name: str
    messages: int
    next_at: datetime


class MessageDetails(NamedTuple):
    message: Message
    enqueue_at: datetime
    claim_expires_at: datetime | None
    status_url: str | None
    notified_status: str | None
    tail: str


class StoredVersion(NamedTuple):
    """A message's id and what its edits change. A snooze changes none of it."""

    id: UUID
    move_token: int
    attempt_count: int
    max_attempts: int
    status: Status

    @classmethod
    def of(cls, movable: Movable) -> Self:
        message, token = movable.message, movable.token
        counts = (message.attempt_count, message.max_attempts)
        return cls(message.id, token, *counts, message.status)


class _IndexScan(NamedTuple):
    """The index along which messages are read, and the conditions that lead to it.

    A column before the last one is compared as a range of one value: by equality a database might
    read the primary key in its order. With its ``value`` both are compared as a tuple, so that
    PostgreSQL reads the index alone. ``finds``: another index finds the matches, in one statement.
    """

    columns: Sequence[ColumnElement[Any]]
    where: Sequence[ColumnElement[bool]]
    oldest_first: bool = True
    value: str | None = None
    finds: bool = False

    @property
    def order(self) -> list[ColumnElement[Any]]:
        return [column.asc() if self.oldest_first else column.desc() for column in self.columns]

    def between(self, start: Any, end: Any) -> list[ColumnElement[bool]]:
        behind, up_to = (gt, le) if self.oldest_first else (lt, ge)
        edges = ((behind, start), (up_to, end))
        return [compare(*self._compared(edge)) for compare, edge in edges if edge is not None]

    def _compared(self, edge: Any) -> tuple[ColumnElement[Any], Any]:
        if self.value is None:
            return self.columns[-1], edge
        values = (literal(self.value, self.columns[0].type), literal(edge, self.columns[1].type))
        return tuple_(*self.columns), tuple_(*values)

    def stretches(
        self, database: Database, *, start: Any = None, size: int
    ) -> Iterator[tuple[Any, Any]]:
        """Yield the edges of stretches of ``size``, or more where many have one value.

        The last one has no end.
        """
        last_two = select(self.columns[-1]).where(*self.where).order_by(*self.order)
        last_two = last_two.offset(size - 1).limit(2)
        if self.finds:
            yield start, None
            return
        while True:
            rows = database.read(last_two.where(*self.between(start, None)))
            end = rows[0][0] if len(rows) > 1 else None
            yield start, end
            if end is None:
                return
            start = end


class Listing:
    """Reads selected messages by their ids, in the order in which messages were made.

    Each statement reads the next 5,000 messages where no index leads to the matches. A message is
    overdue ``late`` after its time; maintenance enqueues it again ``put_off`` later at the latest.
    """

    def __init__(self, database: Database, *, late: timedelta, put_off: timedelta) -> None:
        self._database = database
        self._tables = database.tables
        self._clock = SystemClock()
        self._late = late
        self._put_off = put_off

    def pages(
        self,
        selection: Selection,
        *,
        size: int,
        before: UUID | None = None,
        oldest_first: bool = False,
    ) -> Iterator[list[Message]]:
        """Yield pages, perhaps empty, newest first, of ids smaller than ``before``."""
        columns = self._tables.message_columns
        stretches = self._stretches(
            selection, columns, size=size, before=before, oldest_first=oldest_first
        )
        return (list(map(to_message, rows)) for rows, _ in stretches)

    def ids(self, selection: Selection, *, size: int) -> Iterator[list[UUID]]:
        """Yield pages of ids, perhaps empty, the oldest first."""
        columns = [self._tables.messages.c.id]
        stretches = self._stretches(selection, columns, size=size, oldest_first=True)
        return ([row.id for row in rows] for rows, _ in stretches)

    def _stretches(
        self,
        selection: Selection,
        columns: Sequence[ColumnElement[Any]],
        *,
        size: int,
        oldest_first: bool,
        after: UUID | None = None,
        before: UUID | None = None,
    ) -> Iterator[tuple[Sequence[Row[Any]], UUID | None]]:
        scan = self._scan(selection, before, oldest_first=oldest_first)
        where = self._conditions(selection, scan)
        start = after or selection.made_after if oldest_first else after
        message_id = self._tables.messages.c.id
        by: ColumnElement[UUID] = message_id
        if selection.status is not Status.HELD:
            # By an expression, or the primary key would be read in its order until enough is found.
            by = func.coalesce(message_id, message_id)
        for begin, end in scan.stretches(self._database, start=start, size=_EXAMINED):
            cursor, is_full = begin, True
            while is_full:
                stretch = where + scan.between(cursor, end)
                # Not by their ids: PostgreSQL would look for each of them in every partition.
                query = select(*columns).where(*stretch).order_by(*scan.order).limit(size)
                if scan.finds:
                    ids = select(message_id).where(*stretch).limit(size)
                    first = ids.order_by(*scan._replace(columns=[by]).order).subquery()
                    query = select(*columns).join(first, first.c.id == message_id)
                    query = query.order_by(*scan.order)
                rows = self._database.read(query)
                is_full = len(rows) == size
                cursor = rows[-1].id if is_full else end
                yield rows, cursor

    def page(
        self,
        selection: Selection,
        *,
        after: UUID | None,
        limit: int,
        oldest_first: bool = False,
        patience: timedelta | None = None,
    ) -> Page:
        """Return at most so many selected messages, newest first, from behind ``after`` on.

        After ``patience`` the page ends where it is. With it, messages made an hour after
        ``until_at`` are not read: none was promised for a time before it was made.
        """
        if patience is not None and selection.until_at is not None and not oldest_first:
            first = UUID(int=max(0, to_ms(selection.until_at) + _HOUR_MS) << 80)
            after = first if after is None else min(after, first)
        columns = self._tables.message_columns
        rows, after = self._read(
            selection, columns, after, limit, patience, oldest_first=oldest_first
        )
        return Page(messages=tuple(map(to_message, rows)), after=after)

    def longest_held(self, selection: Selection, *, limit: int) -> list[UUID]:
        """Return ids of held messages, those held longest first, of the first 20,000 made."""
        columns = self._tables.messages.c
        where = self._conditions(selection, self._scan(selection))
        first = select(columns.id, columns.next_attempt_at).where(*where)
        first = first.order_by(columns.id).limit(_COUNTED)
        held = first.subquery().c
        query = select(held.id).order_by(held.next_attempt_at, held.id).limit(limit)
        return [row.id for row in self._database.read(query)]

    def versions(
        self, selection: Selection, *, after: UUID | None, limit: int, patience: timedelta
    ) -> tuple[list[StoredVersion], UUID | None]:
        columns = [self._tables.messages.c[name] for name in StoredVersion._fields]
        rows, after = self._read(selection, columns, after, limit, patience, oldest_first=True)
        return [StoredVersion._make((*row[:-1], Status(row.status))) for row in rows], after

    def _read(
        self,
        selection: Selection,
        columns: Sequence[ColumnElement[Any]],
        after: UUID | None,
        limit: int,
        patience: timedelta | None,
        *,
        oldest_first: bool,
    ) -> tuple[list[Row[Any]], UUID | None]:
        read: list[Row[Any]] = []
        until = self._until(patience)
        for rows, looked in self._stretches(
            selection, columns, size=limit + 1, after=after, oldest_first=oldest_first
        ):
            read += rows
            if len(read) > limit:
                return read[:limit], read[limit - 1].id
            if self._clock.monotonic() >= until:
                return read, looked
        return read, None

    def _until(self, patience: timedelta | None) -> float:
        return inf if patience is None else self._clock.monotonic() + patience.total_seconds()

    def count(self, selection: Selection) -> int:
        counts, _ = self.counted(selection)
        return sum(sum(by_status.values()) for by_status in counts.values())

    def counted(
        self, selection: Selection, *, patience: timedelta | None = None, most: float = inf
    ) -> tuple[dict[str, dict[Status, int]], bool]:
        messages, scan = self._tables.messages, self._scan(selection)
        where = self._conditions(selection, scan)
        kinds = (messages.c.channel, messages.c.status)
        until = self._until(patience)
        size = _COUNTED if patience is None else _EXAMINED
        counted = select(*kinds, func.count()).where(*where).group_by(*kinds)
        rows: list[Any] = []
        end = None
        for start, end in scan.stretches(self._database, start=selection.made_after, size=size):
            rows += self._database.read(counted.where(*scan.between(start, end)))
            is_enough = sum(count for _, _, count in rows) >= most
            if is_enough or self._clock.monotonic() >= until:
                break
        return _by_channel(rows), end is None

    def campaigns(self, *, after: str = "") -> Iterator[str]:
        campaign = self._tables.messages.c.campaign
        names = select(campaign).order_by(campaign).limit(1)
        while rows := self._database.read(names.where(campaign > after)):
            after = rows[0].campaign
            yield after

    def details(self, message_id: UUID) -> MessageDetails:
        columns = [self._tables.messages.c[name] for name in MessageDetails._fields[1:]]
        query = self._tables.stored.add_columns(*columns)
        rows = self._database.read(query.where(self._tables.messages.c.id == message_id))
        if not rows:
            raise MessageNotFound(message_id)
        return MessageDetails(to_message(rows[0]), *rows[0][-len(columns) :])

    def _scan(
        self, selection: Selection, before: UUID | None = None, *, oldest_first: bool = True
    ) -> _IndexScan:
        tables, row = self._tables, self._tables.messages.c
        where = [] if before is None else [row.id < before]
        if selection.made_after is not None:
            where.append(row.id > selection.made_after)
        columns: list[ColumnElement[Any]] = [row.id]
        value: Status | None = None
        named = selection.recipient is not None or selection.idempotency_key is not None
        if named or selection.overdue or selection.status in _FEW:
            return _IndexScan(columns, where, oldest_first, finds=True)
        labels = ((row.event, selection.event), (row.campaign, selection.campaign))
        label = next((label for label in labels if label[1] is not None), None)
        if label is not None:
            columns.insert(0, label[0])
            where.append(label[0].between(label[1], label[1]))
        elif selection.status in UNSENT_STATUSES and self._database.backend.has_partial_indexes:
            columns.insert(0, row.status)
            value = selection.status
            where += [tables.has_ended, tables.is_unsent, row.status.between(value, value)]
        elif selection.status is not None:
            where.append(tables.lies_with(selection.status))
        return _IndexScan(columns, where, oldest_first, value)

    def _conditions(self, selection: Selection, scan: _IndexScan) -> list[ColumnElement[bool]]:
        tables = self._tables
        messages, keys = tables.messages, tables.keys
        named = {messages.c.recipient: selection.recipient, messages.c.scope: selection.scope}
        one_of = [messages.c.channel.in_(selection.channels)] if selection.channels else []
        where: list[ColumnElement[bool]] = [tables.is_message, *one_of, *scan.where]
        where += [column == value for column, value in named.items() if value is not None]
        where += [counts_against(messages, kind, name) for kind, name in selection.scopes]
        labels = {messages.c.campaign: selection.campaign, messages.c.event: selection.event}
        where += [
            column == value
            for column, value in labels.items()
            if value is not None and column is not scan.columns[0]
        ]
        if selection.idempotency_key is not None:
            having = select(keys.c.message_id).where(
                keys.c.idempotency_key == selection.idempotency_key
            )
            where.append(messages.c.id.in_(having))
        if selection.key_prefix is not None:
            # Not LIKE, which on SQLite takes capitals for small letters.
            key = func.substr(messages.c.idempotency_key, 1, len(selection.key_prefix))
            where.append(key == selection.key_prefix)
        low = {messages.c.send_at: selection.from_at, messages.c.priority: selection.priority_from}
        where += [column >= value for column, value in low.items() if value is not None]
        if selection.until_at is not None:
            where.append(messages.c.send_at < selection.until_at)
        status = Status.SCHEDULED if selection.overdue else selection.status
        if status is not None and scan.columns[0] is not messages.c.status:
            where.append(tables.is_plainly(status))
        # Redundant, so that the index of claims is used: a message that is being sent has a
        # claim; a held one has none, by which MariaDB finds it.
        if selection.status is Status.SENDING:
            where.append(messages.c.claim_expires_at > from_ms(0))
        if selection.status is Status.HELD:
            where.append(messages.c.claim_expires_at.is_(None))
        if selection.overdue:
            where += overdue_since(tables, self._late, self._put_off)
        return where


class Figures:
    def __init__(self, database: Database, *, late: timedelta, put_off: timedelta) -> None:
        self._database = database
        self._tables = database.tables
        self._late = late
        self._put_off = put_off

    def counts(self, *, since: timedelta) -> Counts:
        tables, row = self._tables, self._tables.messages.c
        counted: list[Any] = []
        complete = True
        [(now,)] = self._database.read(select(database_now()))
        for by, has_status, place in (
            (row.enqueue_at, tables.is_in_index(Status.SCHEDULED), tables.is_live),
            (row.claim_expires_at, tables.is_in_index(Status.SENDING), tables.is_live),
            (row.id, tables.is_in_index(Status.HELD), tables.is_live),
            (row.finished_at, row.finished_at > now - since, tables.has_ended),
        ):
            query = (
                select(row.channel, row.status, func.count())
                .where(has_status, place)
                .group_by(row.channel, row.status)
            )
            rows, edge = self._counted(query, _IndexScan([by], [has_status]))
            counted += rows
            complete = complete and edge is None
        return Counts(now=now, since=since, by_channel=_by_channel(counted), complete=complete)

    def overdue(self) -> OverdueFigure:
        messages = self._tables.messages
        where = (
            self._tables.is_plainly(Status.SCHEDULED),
            *overdue_since(self._tables, self._late, self._put_off),
        )
        counted = select(func.count(), func.min(messages.c.next_attempt_at), database_now())
        [(count, first, now)] = self._database.read(counted.where(*where))
        if not count:
            return OverdueFigure(many=0, oldest=None, longest=timedelta(0))
        oldest = select(messages.c.id).where(*where, messages.c.next_attempt_at <= first).limit(1)
        rows = self._database.read(oldest)
        return OverdueFigure(many=count, oldest=rows[0].id if rows else None, longest=now - first)

    def load(self) -> Load:
        due = self.due(within=_HOUR)
        total = sum(map(Counter, due.by_channel.values()), Counter[datetime]())
        at = (due.start + number * _MINUTE for number in range(_HOUR // _MINUTE))
        minutes = tuple(total[minute] for minute in at)
        return Load(start=due.start, minutes=minutes, complete=due.complete)

    def last_day(self) -> list[EndedInHour]:
        """Count by the hour, this one last; of more than 1,000,000 the latest, in whole hours."""
        row = self._tables.messages.c
        [(now,)] = self._database.read(select(minute_of(database_now())))
        latest = now.replace(minute=0)
        hours = [latest - number * _HOUR for number in range(_HOURS - 1, -1, -1)]
        ended = row.finished_at >= hours[0]
        is_late = case((row.finished_at > later(row.send_at, self._late), 1), else_=0)
        minute = minute_of(row.finished_at)
        query = (
            select(minute, row.status, func.count(), func.sum(is_late))
            .where(ended, self._tables.has_ended)
            .group_by(minute, row.status)
        )
        counts: dict[datetime, Counter[str]] = {}
        latest_first = _IndexScan([row.finished_at], [ended], oldest_first=False)
        rows, edge = self._counted(query, latest_first)
        for at, status, count, late in rows:
            hour = counts.setdefault(at.replace(minute=0), Counter())
            hour[status] += count
            if status == Status.SENT:
                hour["late"] += int(late)
        return [
            EndedInHour(at=at, **{name: counts.get(at, Counter())[name] for name in _ENDED})
            for at in hours
            if edge is None or at > edge
        ]

    def due(self, *, within: timedelta) -> DueByMinute:
        """Count what is due in each minute from this one on, by channel; at most 1,000,000."""
        messages = self._tables.messages
        [(start,)] = self._database.read(select(minute_of(database_now())))
        end = start + within
        minute = minute_of(messages.c.next_attempt_at)
        where = (
            self._tables.is_in_index(Status.SCHEDULED),
            messages.c.enqueue_at < end + self._put_off,
        )
        query = (
            select(messages.c.channel, minute, func.count())
            .where(*where, self._tables.is_live, messages.c.next_attempt_at < end)
            .group_by(messages.c.channel, minute)
        )
        by_channel: dict[str, Counter[datetime]] = {}
        late: Counter[str] = Counter()
        rows, edge = self._counted(query, _IndexScan([messages.c.enqueue_at], where))
        for channel, at, count in rows:
            minutes = by_channel.setdefault(channel, Counter())
            if at < start:
                late[channel] += count
            else:
                minutes[at] += count
        return DueByMinute(
            start=start,
            by_channel={name: dict(by_channel[name]) for name in sorted(by_channel)},
            late=dict(late),
            complete=edge is None,
            # Each is enqueued at most so long after it is due.
            counted_until=end if edge is None else edge - self._put_off,
        )

    def _counted(self, query: Select[Any], scan: _IndexScan) -> tuple[list[Any], Any]:
        size = min(_COUNTED, MOST_COUNTED)
        stretches = scan.stretches(self._database, size=size)
        rows: list[Any] = []
        end = None
        for start, end in islice(stretches, MOST_COUNTED // size):
            rows += self._database.read(query.where(*scan.between(start, end)))
        return rows, end

    def busiest(self, of: Of, *, within: timedelta, limit: int) -> tuple[list[DueCount], bool]:
        messages = self._tables.messages
        [(now,)] = self._database.read(select(database_now()))
        column = messages.c[of]
        end = now + within
        due = (
            select(column, messages.c.next_attempt_at)
            .where(
                self._tables.is_plainly(Status.SCHEDULED),
                messages.c.next_attempt_at < end,
                messages.c.enqueue_at < end + self._put_off,
            )
            .order_by(messages.c.enqueue_at)
            .limit(MOST_COUNTED + 1)
            .subquery()
        )
        count = func.count().label("messages")
        query = (
            select(due.c[of], count, func.min(due.c.next_attempt_at))
            .where(due.c[of] != NO_SCOPE)
            .group_by(due.c[of])
            .order_by(count.desc(), due.c[of])
            .limit(limit)
        )
        rows = self._database.read(query)
        [(total,)] = self._database.read(select(func.count()).select_from(due))
        busy = [DueCount(name=name, messages=count, next_at=at) for name, count, at in rows]
        return busy, total <= MOST_COUNTED


def overdue_since(tables: Tables, late: timedelta, put_off: timedelta) -> list[ColumnElement[bool]]:
    """Return the conditions of what was due ``late`` ago; by ``put_off`` the index finds it."""
    messages = tables.messages
    now = database_now()
    return [
        messages.c.next_attempt_at <= later(now, -late),
        messages.c.enqueue_at <= later(now, put_off),
    ]


def _by_channel(rows: Iterable[tuple[str, str, int]]) -> dict[str, dict[Status, int]]:
    counts: dict[str, Counter[Status]] = {}
    for channel, status, count in rows:
        counts.setdefault(channel, Counter())[Status(status)] += count
    return {channel: dict(counts[channel]) for channel in sorted(counts)}


def counts_against(messages: Table, kind: str, name: str) -> ColumnElement[bool]:
    _, _, channel = kind.partition(".")
    if kind == OWN_SCOPE:
        return and_(messages.c.scope == name)
    if of_scope_on(channel) == kind:
        return and_(messages.c.channel == channel, messages.c.scope == name)
    if of_channel(channel) == kind:
        return and_(messages.c.channel == channel, messages.c.channel == name)
    named: ColumnElement[bool] = messages.c.scopes[kind].as_string() == name
    return named

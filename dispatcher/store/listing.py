"""Messages for operators, however many are stored: selected ones in pages, and numbers of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import inf
from operator import ge, gt, le, lt
from typing import Any, Literal, NamedTuple, Self
from uuid import UUID

from sqlalchemy import (
    Column,
    ColumnElement,
    Row,
    Select,
    Table,
    and_,
    case,
    func,
    literal,
    select,
    tuple_,
)

from dispatcher.errors import MessageNotFound
from dispatcher.message import Attempt, Message, Status
from dispatcher.scope import NO_SCOPE, of_channel, of_scope_on
from dispatcher.selection import Page, Selection
from dispatcher.store.database import Database
from dispatcher.store.engines.types import database_now, later, minute_of
from dispatcher.store.messages import attempts_of
from dispatcher.store.schema import Movable, Tables, to_message
from dispatcher.times.clock import SystemClock
from dispatcher.times.send_time import from_ms, to_ms

_EXAMINED = 5_000
"""How many messages one statement reads, where no index leads to the matches."""
_COUNTED = 20_000
_FEW = frozenset({Status.SENDING, Status.HELD})
_UNSENT = frozenset({Status.FAILED, Status.EXPIRED, Status.CANCELLED})
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

    Messages that have ended count if they did so within ``since`` before ``now``. Not ``complete``:
    there are more.
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
    """How many messages of each channel are due in each minute from ``start`` on.

    Minutes without any are left out. ``late`` are scheduled, and were due before ``start``. Not
    ``complete``: there are more, and all of those due before ``counted_until`` are counted.
    """

    start: datetime
    by_channel: dict[str, dict[datetime, int]]
    late: dict[str, int]
    complete: bool
    counted_until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedInHour:
    """How many messages ended in the hour from ``at`` on; ``late`` ones are of those sent."""

    at: datetime
    sent: int
    failed: int
    expired: int
    late: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DueCount:
    """A scope, recipient or channel, how many of its messages are due, and when the first is."""

    name: str
    messages: int
    next_at: datetime


class MessageDetails(NamedTuple):
    message: Message
    enqueue_at: datetime
    claim_expires_at: datetime | None
    attempts: list[Attempt]
    status_url: str | None
    notified_status: Status | None
    tail: str


class StoredVersion(NamedTuple):
    """A message's id and what its edits change. A snooze changes none of it."""

    id: UUID
    move_token: int
    attempt_count: int
    max_attempts: int
    status: Status

    @classmethod
    def of(cls, found: Movable) -> Self:
        message, token = found.message, found.token
        counts = (message.attempt_count, message.max_attempts)
        return cls(message.id, token, *counts, message.status)


class _IndexScan(NamedTuple):
    """The index along which messages are read: the primary key, or one of ``value`` and id.

    The column of ``value`` is compared as a range, and ordered by: were it compared for equality, a
    database might read the primary key in its order until enough is found. ``where`` leads to the
    index and to the partitions.

    ``by_row``: ids are compared together with ``value``. For the row ``(value, id)`` PostgreSQL
    reads all that have the value in the index, and may sort it; without it, it may read and sort a
    stretch of whole messages where ``where`` makes it expect too few.
    """

    columns: Sequence[ColumnElement[Any]]
    value: str | None = None
    where: Sequence[ColumnElement[bool]] = ()
    by_row: bool = False

    @property
    def bounds(self) -> list[ColumnElement[bool]]:
        if self.value is None:
            return [*self.where]
        return [*self.where, self.columns[0].between(self.value, self.value)]

    def between(
        self, cursor: UUID | None, end: UUID | None, *, oldest_first: bool
    ) -> list[ColumnElement[bool]]:
        found = []
        if cursor is not None:
            by, edge = self._compared(cursor)
            found.append(by > edge if oldest_first else by < edge)
        if end is not None:
            by, edge = self._compared(end)
            found.append(by <= edge if oldest_first else by >= edge)
        return found

    def _compared(self, message_id: UUID) -> tuple[ColumnElement[Any], Any]:
        if not self.by_row:
            return self.columns[-1], message_id
        edge = zip((self.value, message_id), self.columns, strict=True)
        return tuple_(*self.columns), tuple_(*(literal(each, by.type) for each, by in edge))


class Listing:
    """Reads selected messages by their ids, which are in the order in which messages were made.

    Where an index leads to the matches (a recipient, an idempotency key, messages that are held,
    being sent or overdue) a page is one statement. Otherwise each statement reads the next 5,000
    messages by the primary key, or of a campaign or those that ended unsent by their indexes, so
    that none takes long, however rare the matches are.

    ``late`` is how long after its time a message is overdue, ``put_off`` how much later than that
    maintenance may enqueue it again.
    """

    def __init__(self, database: Database, *, late: timedelta, put_off: timedelta) -> None:
        self._database = database
        self._tables = database.tables
        self._clock = SystemClock()
        self._late = late
        self._put_off = put_off

    def pages(
        self,
        wanted: Selection,
        *,
        size: int,
        after: UUID | None = None,
        before: UUID | None = None,
        oldest_first: bool = False,
    ) -> Iterator[list[Message]]:
        """Yield pages, perhaps empty, newest first: behind ``after``, smaller than ``before``."""
        stretches = self._stretches(
            wanted, self._tables.message_columns, size=size, after=after, before=before,
            oldest_first=oldest_first,
        )  # fmt: skip
        return (list(map(to_message, rows)) for rows, _ in stretches)

    def _stretches(
        self,
        wanted: Selection,
        columns: Sequence[ColumnElement[Any]],
        *,
        size: int,
        after: UUID | None,
        before: UUID | None = None,
        oldest_first: bool,
    ) -> Iterator[tuple[Sequence[Row[Any]], UUID | None]]:
        """Yield rows like :meth:`pages`, with the id up to which it looked, None at the end."""
        found_by_index, scan = _is_found_by_index(wanted), self._scan(wanted)
        where = self._conditions(wanted, scan)
        bounds = self._bounds(wanted.made_after, before) + scan.bounds
        start = after or wanted.made_after if oldest_first else after
        cursor: UUID | None = start
        end: UUID | None = None
        is_last = found_by_index
        while True:
            if end is None and not is_last:
                end = self._edge(scan, cursor, bounds, oldest_first=oldest_first, many=_EXAMINED)
                is_last = end is None
            stretch = scan.between(cursor, end, oldest_first=oldest_first)
            if found_by_index:  # one statement, which no stretch bounds
                query = self._found_by_index(
                    wanted, where + bounds + stretch, columns, size, oldest_first=oldest_first
                )
            else:
                # Not by their ids: PostgreSQL would look for each of them in every partition.
                order = _order(scan.columns, oldest_first=oldest_first)
                query = (
                    select(*columns).where(*where, *bounds, *stretch).order_by(*order).limit(size)
                )
            rows = self._database.read(query)
            if len(rows) == size:
                cursor = rows[-1].id
            elif end is None:
                yield rows, None
                return
            else:
                cursor, end = end, None
            yield rows, cursor

    def _found_by_index(
        self,
        wanted: Selection,
        where: Sequence[ColumnElement[bool]],
        columns: Sequence[ColumnElement[Any]],
        size: int,
        *,
        oldest_first: bool,
    ) -> Select[Any]:
        """Return the query of what an index of its own leads to: ids first, by that index alone."""
        message_id = self._tables.messages.c.id
        by: ColumnElement[UUID] = message_id
        if wanted.status is not Status.HELD:
            # By an expression, or the primary key would be read in its order until enough is found.
            by = func.coalesce(message_id, message_id)
        ids = select(message_id).where(*where).order_by(*_order([by], oldest_first=oldest_first))
        query = self._tables.found_by(ids.limit(size), columns)
        return query.order_by(*_order([message_id], oldest_first=oldest_first))

    def page(
        self,
        wanted: Selection,
        *,
        after: UUID | None,
        limit: int,
        oldest_first: bool = False,
        patience: timedelta | None = None,
    ) -> Page:
        """Return at most so many selected messages, newest first, from behind ``after`` on.

        After ``patience``, which is looked at between two statements, the page ends where it is.
        With it, messages that were made an hour after ``until_at`` are left out unread: none was
        promised for a time before it was made, by clocks that agree within the hour.
        """
        if patience is not None and wanted.until_at is not None and not oldest_first:
            first = UUID(int=max(0, to_ms(wanted.until_at) + _HOUR_MS) << 80)
            after = first if after is None else min(after, first)
        stretches = self._stretches(
            wanted, self._tables.message_columns, size=limit + 1, after=after,
            oldest_first=oldest_first,
        )  # fmt: skip
        rows, after = self._read_until(stretches, limit, patience)
        return Page(messages=tuple(map(to_message, rows)), after=after)

    def longest_held(self, wanted: Selection, *, limit: int) -> list[UUID]:
        """Return ids of held messages, those held longest first, of the first 20,000 made."""
        row = self._tables.messages.c
        where = self._conditions(wanted, self._scan(wanted))
        first = select(row.id, row.next_attempt_at).where(*where).order_by(row.id).limit(_COUNTED)
        held = first.subquery().c
        query = select(held.id).order_by(held.next_attempt_at, held.id).limit(limit)
        return [each.id for each in self._database.read(query)]

    def versions(
        self, wanted: Selection, *, after: UUID | None, limit: int, patience: timedelta
    ) -> tuple[list[StoredVersion], UUID | None]:
        """Return versions, oldest first, and where to go on, as :meth:`page` does."""
        row = self._tables.messages.c
        columns = (row.id, row.move_token, row.attempt_count, row.max_attempts, row.status)
        stretches = self._stretches(wanted, columns, size=limit + 1, after=after, oldest_first=True)
        rows, after = self._read_until(stretches, limit, patience)
        return [StoredVersion._make((*each[:-1], Status(each.status))) for each in rows], after

    def _read_until(
        self,
        stretches: Iterator[tuple[Sequence[Row[Any]], UUID | None]],
        limit: int,
        patience: timedelta | None,
    ) -> tuple[list[Row[Any]], UUID | None]:
        found: list[Row[Any]] = []
        until = None if patience is None else self._clock.monotonic() + patience.total_seconds()
        for rows, looked in stretches:
            found += rows
            if len(found) > limit:
                return found[:limit], found[limit - 1].id
            if until is not None and self._clock.monotonic() >= until:
                return found, looked
        return found, None

    def count(self, wanted: Selection) -> int:
        return sum(many for some in self.counts(wanted).values() for many in some.values())

    def counts(self, wanted: Selection) -> dict[str, dict[Status, int]]:
        found, _ = self.counted(wanted)
        return found

    def counted(
        self, wanted: Selection, *, patience: timedelta | None = None, most: float = inf
    ) -> tuple[dict[str, dict[Status, int]], bool]:
        """Return the counts, and whether all were counted, the oldest first.

        Between two statements it may end: after ``patience``, or when it has counted ``most``.
        """
        messages, scan = self._tables.messages, self._scan(wanted)
        bounds = self._bounds(wanted.made_after, None) + scan.bounds
        where = self._conditions(wanted, scan) + bounds
        kinds = (messages.c.channel, messages.c.status)
        until = None if patience is None else self._clock.monotonic() + patience.total_seconds()
        many_at_once = _COUNTED if patience is None else _EXAMINED
        counted = select(*kinds, func.count()).where(*where).group_by(*kinds)
        found: dict[str, Counter[Status]] = {}
        cursor, is_last = wanted.made_after, _is_found_by_index(wanted)
        while True:
            stretch: list[ColumnElement[bool]] = []
            if not is_last:
                end = self._edge(scan, cursor, scan.bounds, oldest_first=True, many=many_at_once)
                stretch = scan.between(cursor, end, oldest_first=True)
                cursor, is_last = end, end is None
            for channel, status, many in self._database.read(counted.where(*stretch)):
                found.setdefault(channel, Counter())[Status(status)] += many
            is_enough = sum(some.total() for some in found.values()) >= most
            if is_last or is_enough or (until is not None and self._clock.monotonic() >= until):
                return {channel: dict(found[channel]) for channel in sorted(found)}, is_last

    def campaigns(self, *, after: str = "") -> Iterator[str]:
        """Yield the campaigns by name; each is one look into their index."""
        campaign = self._tables.messages.c.campaign
        names = select(campaign).order_by(campaign).limit(1)
        while rows := self._database.read(names.where(campaign > after)):
            after = rows[0].campaign
            yield after

    def details(self, message_id: UUID) -> MessageDetails:
        tables = self._tables
        messages = tables.messages
        query = select(
            *tables.message_columns,
            messages.c.enqueue_at,
            messages.c.claim_expires_at,
            messages.c.status_url,
            messages.c.notified_status,
            messages.c.tail,
        ).where(messages.c.id == message_id, tables.is_message)
        rows = self._database.read(query)
        if not rows:
            raise MessageNotFound(message_id)
        [row] = rows
        return MessageDetails(
            to_message(row),
            row.enqueue_at,
            row.claim_expires_at,
            attempts_of(self._database, message_id),
            row.status_url,
            None if row.notified_status is None else Status(row.notified_status),
            row.tail,
        )

    def _edge(
        self,
        scan: _IndexScan,
        cursor: UUID | None,
        bounds: Sequence[ColumnElement[bool]],
        *,
        oldest_first: bool,
        many: int,
    ) -> UUID | None:
        messages = self._tables.messages
        query = (
            select(messages.c.id)
            .where(*scan.between(cursor, None, oldest_first=oldest_first), *bounds)
            .order_by(*_order(scan.columns, oldest_first=oldest_first))
            .offset(many - 1)
            .limit(1)
        )
        rows = self._database.read(query)
        return rows[0].id if rows else None

    def _scan(self, wanted: Selection) -> _IndexScan:
        tables, row = self._tables, self._tables.messages.c
        if _is_found_by_index(wanted):
            return _IndexScan([row.id])
        if wanted.campaign is not None:
            return _IndexScan([row.campaign, row.id], wanted.campaign)
        if wanted.status in _UNSENT and self._database.backend.has_partial_indexes:
            where = [tables.has_ended, tables.is_unsent]
            return _IndexScan([row.status, row.id], wanted.status, where, by_row=True)
        if wanted.status is not None:
            return _IndexScan([row.id], where=[tables.lies_with(wanted.status)])
        return _IndexScan([row.id])

    def _bounds(self, made_after: UUID | None, before: UUID | None) -> list[ColumnElement[bool]]:
        by = self._tables.messages.c.id
        found = [] if before is None else [by < before]
        return found if made_after is None else [*found, by > made_after]

    def _conditions(self, wanted: Selection, scan: _IndexScan) -> list[ColumnElement[bool]]:
        tables = self._tables
        messages, keys = tables.messages, tables.keys
        named = {
            messages.c.recipient: wanted.recipient,
            messages.c.scope: wanted.scope,
        }
        one_of = [messages.c.channel.in_(wanted.channels)] if wanted.channels else []
        where: list[ColumnElement[bool]] = [tables.is_message, *one_of]
        where += [column == value for column, value in named.items() if value is not None]
        where += [_counts_against(messages, kind, name) for kind, name in wanted.scopes]
        if wanted.campaign is not None and _is_found_by_index(wanted):
            where.append(messages.c.campaign == wanted.campaign)
        if wanted.idempotency_key is not None:
            having = select(keys.c.message_id).where(
                keys.c.idempotency_key == wanted.idempotency_key
            )
            where.append(messages.c.id.in_(having))
        if wanted.key_prefix is not None:
            # Not LIKE, which on SQLite takes capitals for small letters.
            key = func.substr(messages.c.idempotency_key, 1, len(wanted.key_prefix))
            where.append(key == wanted.key_prefix)
        if wanted.from_at is not None:
            where.append(messages.c.send_at >= wanted.from_at)
        if wanted.until_at is not None:
            where.append(messages.c.send_at < wanted.until_at)
        status = Status.SCHEDULED if wanted.overdue else wanted.status
        if status is not None and scan.columns[0] is not messages.c.status:
            where.append(tables.is_plainly(status))
        # Redundant, so that the index of claims is used: a message that is being sent has a
        # claim; a held one has none, by which MariaDB finds it.
        if wanted.status is Status.SENDING:
            where.append(messages.c.claim_expires_at > from_ms(0))
        if wanted.status is Status.HELD:
            where.append(messages.c.claim_expires_at.is_(None))
        if wanted.overdue:
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
        found: dict[str, Counter[Status]] = {}
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
            edge = None
            for stretch, ends_before in self._stretches(by, has_status):
                edge = ends_before
                for channel, status, many in self._database.read(query.where(*stretch)):
                    found.setdefault(channel, Counter())[Status(status)] += many
            complete = complete and edge is None
        by_channel = {name: dict(found[name]) for name in sorted(found)}
        return Counts(now=now, since=since, by_channel=by_channel, complete=complete)

    def overdue(self) -> OverdueFigure:
        messages = self._tables.messages
        where = (
            self._tables.is_plainly(Status.SCHEDULED),
            *overdue_since(self._tables, self._late, self._put_off),
        )
        counted = select(func.count(), func.min(messages.c.next_attempt_at), database_now())
        [(many, first, now)] = self._database.read(counted.where(*where))
        if not many:
            return OverdueFigure(many=0, oldest=None, longest=timedelta(0))
        oldest = select(messages.c.id).where(*where, messages.c.next_attempt_at <= first).limit(1)
        rows = self._database.read(oldest)
        return OverdueFigure(many=many, oldest=rows[0].id if rows else None, longest=now - first)

    def load(self) -> Load:
        due = self.due(within=_HOUR)
        every = due.by_channel.values()
        at = [due.start + number * _MINUTE for number in range(_HOUR // _MINUTE)]
        minutes = tuple(sum(some.get(each, 0) for some in every) for each in at)
        return Load(start=due.start, minutes=minutes, complete=due.complete)

    def last_day(self) -> list[EndedInHour]:
        """Count what ended in each hour of the last day, this one last.

        Of more than 1,000,000 the latest are counted, and hours that are not counted as a whole are
        left out. A message is late if it was sent ``late`` after its promised time.
        """
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
        found: dict[datetime, Counter[str]] = {}
        edge = None
        for stretch, ends_before in self._stretches(row.finished_at, ended, latest_first=True):
            edge = ends_before
            for at, status, many, late in self._database.read(query.where(*stretch)):
                hour = found.setdefault(at.replace(minute=0), Counter())
                hour[status] += many
                if status == Status.SENT:
                    hour["late"] += int(late)
        return [
            EndedInHour(at=at, **{name: found.get(at, Counter())[name] for name in _ENDED})
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
        edge = None
        for stretch, ends_before in self._stretches(messages.c.enqueue_at, *where):
            edge = ends_before
            for channel, at, many in self._database.read(query.where(*stretch)):
                some = by_channel.setdefault(channel, Counter())
                if at < start:
                    late[channel] += many
                else:
                    some[at] += many
        return DueByMinute(
            start=start,
            by_channel={name: dict(by_channel[name]) for name in sorted(by_channel)},
            late=dict(late),
            complete=edge is None,
            # Each is enqueued at most so long after it is due.
            counted_until=end if edge is None else edge - self._put_off,
        )

    def _stretches(
        self, by: Column[Any], *where: ColumnElement[bool], latest_first: bool = False
    ) -> Iterator[tuple[list[ColumnElement[bool]], Any]]:
        """Yield conditions that part those messages by an index, so that no statement takes long.

        Each is yielded with the value of ``by`` before which it ends, which is None for the last
        one; with ``latest_first`` all run the other way. They end after 1,000,000 messages, or more
        where many have one value: these are in one stretch. An index alone tells the edges, so the
        statement that counts a stretch need not read it in an order.
        """
        size = min(_COUNTED, MOST_COUNTED)
        onward, beyond, before = (le, lt, gt) if latest_first else (ge, gt, lt)
        order = by.desc() if latest_first else by.asc()
        values = select(by).where(*where).order_by(order).limit(1)
        cursor: Any = None
        for _ in range(MOST_COUNTED // size):
            stretch = [] if cursor is None else [onward(by, cursor)]
            edge = self._first(values.where(*stretch).offset(size))
            if edge is not None and edge == cursor:
                edge = self._first(values.where(beyond(by, cursor)))
            yield stretch if edge is None else [*stretch, before(by, edge)], edge
            if edge is None:
                return
            cursor = edge

    def _first(self, query: Select[Any]) -> Any:
        rows = self._database.read(query)
        return rows[0][0] if rows else None

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
        many = func.count().label("many")
        query = (
            select(due.c[of], many, func.min(due.c.next_attempt_at))
            .where(due.c[of] != NO_SCOPE)
            .group_by(due.c[of])
            .order_by(many.desc(), due.c[of])
            .limit(limit)
        )
        rows = self._database.read(query)
        [(total,)] = self._database.read(select(func.count()).select_from(due))
        busy = [DueCount(name=name, messages=count, next_at=at) for name, count, at in rows]
        return busy, total <= MOST_COUNTED


def overdue_since(tables: Tables, late: timedelta, put_off: timedelta) -> list[ColumnElement[bool]]:
    """Return the conditions that a scheduled message was due ``late`` ago.

    Maintenance enqueues it again at most ``put_off`` from now: by this the index finds it.
    """
    messages = tables.messages
    now = database_now()
    return [
        messages.c.next_attempt_at <= later(now, -late),
        messages.c.enqueue_at <= later(now, put_off),
    ]


def _is_found_by_index(wanted: Selection) -> bool:
    named = wanted.recipient is not None or wanted.idempotency_key is not None
    return named or wanted.overdue or wanted.status in _FEW


def _counts_against(messages: Table, kind: str, name: str) -> ColumnElement[bool]:
    _, _, channel = kind.partition(".")
    if of_scope_on(channel) == kind:
        return and_(messages.c.channel == channel, messages.c.scope == name)
    if of_channel(channel) == kind:
        return and_(messages.c.channel == channel, messages.c.channel == name)
    named: ColumnElement[bool] = messages.c.scopes[kind].as_string() == name
    return named


def _order(by: Sequence[ColumnElement[Any]], *, oldest_first: bool) -> list[ColumnElement[Any]]:
    return [each.asc() if oldest_first else each.desc() for each in by]

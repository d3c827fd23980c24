"""Messages for operators, however many are stored: selected ones in pages, and numbers of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple
from uuid import UUID

from sqlalchemy import ColumnElement, Table, and_, func, select

from dispatcher.errors import MessageNotFound
from dispatcher.message import Attempt, Message, Status
from dispatcher.scope import NOBODY, of_channel, of_scope_on
from dispatcher.selection import Page, Selection
from dispatcher.store.database import Database
from dispatcher.store.engines.types import database_now, later, minute_of
from dispatcher.store.messages import attempts_of
from dispatcher.store.schema import Tables, to_message
from dispatcher.times.send_time import from_ms

_EXAMINED = 5_000
"""How many messages one statement reads, where no index leads to the matches."""
_COUNTED = 50_000
_FEW = frozenset({Status.SENDING, Status.HELD})
MOST_COUNTED = 1_000_000
"""The most messages that one number is counted from, so that a count takes bounded time."""
_MINUTES = 60

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
class Busy:
    """A scope, recipient or channel, how many of its messages are due, and when the first is."""

    name: str
    messages: int
    next_at: datetime


class Traced(NamedTuple):
    """A message, when maintenance is to enqueue it, the end of its claim, and its attempts.

    ``status_url`` receives its status webhooks, and ``told`` is the status last reported there.
    """

    message: Message
    enqueue_at: datetime
    claim_expires_at: datetime | None
    attempts: list[Attempt]
    status_url: str | None
    told: Status | None


class Listing:
    """Reads selected messages by their ids, which are in the order in which messages were made.

    Where an index leads to the matches (a recipient, an idempotency key, messages that are held,
    being sent or overdue) a page is one statement. Otherwise each statement reads the next 5,000
    messages by the primary key, so that none takes long, however rare the matches are.

    ``late`` is how long after its time a message is overdue, ``put_off`` how much later than that
    maintenance may enqueue it again.
    """

    def __init__(self, database: Database, *, late: timedelta, put_off: timedelta) -> None:
        self._database = database
        self._tables = database.tables
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
        """Yield the selected messages, newest first, in pages of at most ``size``.

        Pages may be empty. Only ids behind ``after`` in that order, and smaller than ``before``.
        """
        tables = self._tables
        messages = tables.messages
        where, bounds = self._conditions(wanted), self._bounds(wanted.made_after, before)
        found_by_index = _is_found_by_index(wanted)
        by: ColumnElement[UUID] = messages.c.id
        if found_by_index and wanted.status is not Status.HELD:
            # By an expression, or the primary key would be read in its order until enough is found.
            by = func.coalesce(messages.c.id, messages.c.id)
        start = after or wanted.made_after if oldest_first else after
        cursor, end, is_last = start, None, found_by_index
        while True:
            if end is None and not is_last:
                end = self._edge(cursor, bounds, oldest_first=oldest_first, many=_EXAMINED)
                is_last = end is None
            stretch = _between(cursor, end, by=messages.c.id, oldest_first=oldest_first)
            first = select(messages.c.id).where(*where, *bounds, *stretch).limit(size)
            query = tables.found_by(first.order_by(_order(by, oldest_first=oldest_first)))
            ordered = query.order_by(_order(messages.c.id, oldest_first=oldest_first))
            found = [to_message(row) for row in self._database.read(ordered)]
            yield found
            if len(found) == size:
                cursor = found[-1].id
            elif end is None:
                return
            else:
                cursor, end = end, None

    def page(self, wanted: Selection, *, after: UUID | None, limit: int) -> Page:
        """Return at most so many selected messages, newest first, from behind ``after`` on."""
        found: list[Message] = []
        for some in self.pages(wanted, size=limit + 1, after=after):
            found += some
            if len(found) > limit:
                return Page(messages=tuple(found[:limit]), after=found[limit - 1].id)
        return Page(messages=tuple(found), after=None)

    def count(self, wanted: Selection) -> int:
        """Return how many messages are selected; concurrent changes may be missed."""
        messages = self._tables.messages
        where = self._conditions(wanted) + self._bounds(wanted.made_after, None)
        counted = select(func.count()).select_from(messages)
        if _is_found_by_index(wanted):
            return int(self._database.read(counted.where(*where))[0][0])
        total, cursor = 0, wanted.made_after
        while True:
            end = self._edge(cursor, (), oldest_first=True, many=_COUNTED)
            stretch = _between(cursor, end, by=messages.c.id, oldest_first=True)
            total += int(self._database.read(counted.where(*where, *stretch))[0][0])
            if end is None:
                return total
            cursor = end

    def traced(self, message_id: UUID) -> Traced:
        """Return a message, its attempts and its claim. Raises MessageNotFound."""
        tables = self._tables
        messages = tables.messages
        query = select(
            *tables.message_columns,
            messages.c.enqueue_at,
            messages.c.claim_expires_at,
            messages.c.status_url,
            messages.c.told,
        ).where(messages.c.id == message_id, tables.is_message)
        rows = self._database.read(query)
        if not rows:
            raise MessageNotFound(message_id)
        [row] = rows
        return Traced(
            to_message(row),
            row.enqueue_at,
            row.claim_expires_at,
            attempts_of(self._database, message_id),
            row.status_url,
            None if row.told is None else Status(row.told),
        )

    def _edge(
        self,
        cursor: UUID | None,
        bounds: Sequence[ColumnElement[bool]],
        *,
        oldest_first: bool,
        many: int,
    ) -> UUID | None:
        """Return the id so many messages further on; None where there are not so many."""
        messages = self._tables.messages
        query = (
            select(messages.c.id)
            .where(*_between(cursor, None, by=messages.c.id, oldest_first=oldest_first), *bounds)
            .order_by(_order(messages.c.id, oldest_first=oldest_first))
            .offset(many - 1)
            .limit(1)
        )
        rows = self._database.read(query)
        return rows[0].id if rows else None

    def _bounds(self, made_after: UUID | None, before: UUID | None) -> list[ColumnElement[bool]]:
        by = self._tables.messages.c.id
        found = [] if before is None else [by < before]
        return found if made_after is None else [*found, by > made_after]

    def _conditions(self, wanted: Selection) -> list[ColumnElement[bool]]:
        tables = self._tables
        messages, keys = tables.messages, tables.keys
        named = {
            messages.c.channel: wanted.channel,
            messages.c.recipient: wanted.recipient,
            messages.c.scope: wanted.scope,
        }
        where: list[ColumnElement[bool]] = [tables.is_message]
        where += [column == value for column, value in named.items() if value is not None]
        where += [_counts_against(messages, kind, name) for kind, name in wanted.scopes]
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
        if status is not None:
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
    """Counts live messages, and those that ended lately, by their indexes.

    ``late`` and ``put_off`` are those of :class:`Listing`. Every call raises StoreUnavailable.
    """

    def __init__(self, database: Database, *, late: timedelta, put_off: timedelta) -> None:
        self._database = database
        self._tables = database.tables
        self._late = late
        self._put_off = put_off

    def counts(self, *, since: timedelta) -> Counts:
        """Count messages by channel and status."""
        tables = self._tables
        messages = tables.messages
        found: dict[str, Counter[Status]] = {}
        complete = True
        ended = messages.c.finished_at > later(database_now(), -since)
        for where in (*(tables.is_plainly(each) for each in Status if not each.is_final), ended):
            some = (
                select(messages.c.channel, messages.c.status)
                .where(where, tables.is_message)
                .limit(MOST_COUNTED + 1)
                .subquery()
            )
            query = select(some.c.channel, some.c.status, func.count()).group_by(
                some.c.channel, some.c.status
            )
            rows = self._database.read(query)
            complete = complete and sum(many for *_, many in rows) <= MOST_COUNTED
            for channel, status, many in rows:
                found.setdefault(channel, Counter())[Status(status)] += many
        [(now,)] = self._database.read(select(database_now()))
        by_channel = {name: dict(found[name]) for name in sorted(found)}
        return Counts(now=now, since=since, by_channel=by_channel, complete=complete)

    def overdue(self) -> OverdueFigure:
        """Return how many messages are overdue, and the first of them."""
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
        """Count what is due in each minute of the next hour."""
        messages = self._tables.messages
        [(start,)] = self._database.read(select(minute_of(database_now())))
        due = self._due(start, start + timedelta(minutes=_MINUTES), messages.c.next_attempt_at)
        minute = minute_of(due.c.next_attempt_at)
        counted: dict[datetime, int] = dict(
            tuple(row) for row in self._database.read(select(minute, func.count()).group_by(minute))
        )
        at = (start + timedelta(minutes=number) for number in range(_MINUTES))
        minutes = tuple(counted.get(each, 0) for each in at)
        return Load(start=start, minutes=minutes, complete=sum(minutes) <= MOST_COUNTED)

    def busiest(self, of: Of, *, within: timedelta, limit: int) -> tuple[list[Busy], bool]:
        """Return those with most messages due ``within`` from now; whether all were counted."""
        messages = self._tables.messages
        [(now,)] = self._database.read(select(database_now()))
        column = messages.c[of]
        due = self._due(None, now + within, column, messages.c.next_attempt_at)
        many = func.count().label("many")
        query = (
            select(due.c[of], many, func.min(due.c.next_attempt_at))
            .where(due.c[of] != NOBODY)
            .group_by(due.c[of])
            .order_by(many.desc(), due.c[of])
            .limit(limit)
        )
        rows = self._database.read(query)
        [(total,)] = self._database.read(select(func.count()).select_from(due))
        busy = [Busy(name=name, messages=count, next_at=at) for name, count, at in rows]
        return busy, total <= MOST_COUNTED

    def _due(self, start: datetime | None, end: datetime, *columns: Any) -> Any:
        """Return the messages that are due from ``start`` until before ``end``, soonest first."""
        messages = self._tables.messages
        query = select(*columns).where(
            self._tables.is_plainly(Status.SCHEDULED),
            messages.c.next_attempt_at < end,
            messages.c.enqueue_at < end + self._put_off,
        )
        if start is not None:
            query = query.where(messages.c.next_attempt_at >= start)
        return query.order_by(messages.c.enqueue_at).limit(MOST_COUNTED + 1).subquery()


def overdue_since(tables: Tables, late: timedelta, put_off: timedelta) -> list[ColumnElement[bool]]:
    """Return the conditions that a scheduled message was due ``late`` ago.

    Maintenance enqueues it again at most ``put_off`` from now: by this condition the index
    finds it.
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
    """Return the condition that a message counts against the scope of that kind and name."""
    _, _, channel = kind.partition(".")
    if of_scope_on(channel) == kind:
        return and_(messages.c.channel == channel, messages.c.scope == name)
    if of_channel(channel) == kind:
        return and_(messages.c.channel == channel, messages.c.channel == name)
    named: ColumnElement[bool] = messages.c.scopes[kind].as_string() == name
    return named


def _order(by: ColumnElement[UUID], *, oldest_first: bool) -> ColumnElement[Any]:
    return by.asc() if oldest_first else by.desc()


def _between(
    cursor: UUID | None, end: UUID | None, *, by: ColumnElement[UUID], oldest_first: bool
) -> list[ColumnElement[bool]]:
    """Return the conditions that an id lies behind ``cursor``, and not behind ``end``."""
    found = []
    if cursor is not None:
        found.append(by > cursor if oldest_first else by < cursor)
    if end is not None:
        found.append(by <= end if oldest_first else by >= end)
    return found

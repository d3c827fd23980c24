"""Messages by the filters of operators, in pages, however many are stored."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import ColumnElement, Table, and_, bindparam, func, select

from dispatcher.errors import MessageNotFound
from dispatcher.message import Attempt, Message, Status
from dispatcher.scope import of_channel, of_scope_on
from dispatcher.selection import Page, Selection
from dispatcher.store.database import Database
from dispatcher.store.engines.types import database_now, later
from dispatcher.store.rows import to_attempt, to_message
from dispatcher.store.schema import Tables
from dispatcher.times.send_time import from_ms

_EXAMINED = 5_000
"""How many messages one statement reads, where no index leads to the matches."""
_COUNTED = 50_000
_FEW = frozenset({Status.SENDING, Status.HELD})


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
        self._late = late.total_seconds()
        self._put_off = put_off.total_seconds()

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
        where = self._conditions(wanted)
        if before is not None:
            where.append(messages.c.id < before)
        found_by_index = _is_found_by_index(wanted)
        by: ColumnElement[UUID] = messages.c.id
        if found_by_index and wanted.status is not Status.HELD:
            # By an expression, or the primary key would be read in its order until enough is found.
            by = func.coalesce(messages.c.id, messages.c.id)
        start = after or wanted.made_after if oldest_first else after
        cursor, end, is_last = start, None, found_by_index
        while True:
            if end is None and not is_last:
                end = self._edge(
                    cursor, before, wanted.made_after, oldest_first=oldest_first, many=_EXAMINED
                )
                is_last = end is None
            stretch = _between(cursor, end, by=messages.c.id, oldest_first=oldest_first)
            first = (
                select(messages.c.id)
                .where(*where, *stretch)
                .order_by(_order(by, oldest_first=oldest_first))
                .limit(size)
                .subquery()
            )
            query = (
                select(*tables.message_columns)
                .join(first, first.c.id == messages.c.id)
                .order_by(_order(messages.c.id, oldest_first=oldest_first))
            )
            found = [to_message(row) for row in self._database.read(query)]
            yield found
            if len(found) == size:
                cursor = found[-1].id
            elif end is None:
                return
            else:
                cursor, end = end, None

    def page(self, wanted: Selection, *, after: UUID | None, at_most: int) -> Page:
        """Return at most so many selected messages, newest first, from behind ``after`` on."""
        found: list[Message] = []
        for some in self.pages(wanted, size=at_most + 1, after=after):
            found += some
            if len(found) > at_most:
                return Page(messages=tuple(found[:at_most]), after=found[at_most - 1].id)
        return Page(messages=tuple(found), after=None)

    def count(self, wanted: Selection) -> int:
        """Return how many messages are selected; concurrent changes may be missed."""
        messages = self._tables.messages
        where = self._conditions(wanted)
        counted = select(func.count()).select_from(messages)
        if _is_found_by_index(wanted):
            return int(self._database.read(counted.where(*where))[0][0])
        total, cursor = 0, wanted.made_after
        while True:
            end = self._edge(cursor, None, None, oldest_first=True, many=_COUNTED)
            stretch = _between(cursor, end, by=messages.c.id, oldest_first=True)
            total += int(self._database.read(counted.where(*where, *stretch))[0][0])
            if end is None:
                return total
            cursor = end

    def traced(self, message_id: UUID) -> Traced:
        """Return a message, its attempts and its claim. Raises MessageNotFound."""
        tables = self._tables
        messages = tables.messages
        attempts = tables.attempts
        query = select(
            *tables.message_columns,
            messages.c.enqueue_at,
            messages.c.claim_expires_at,
            messages.c.status_url,
            messages.c.told,
        ).where(messages.c.id == message_id, tables.is_message)
        tried = (
            select(attempts).where(attempts.c.message_id == message_id).order_by(attempts.c.token)
        )
        rows = self._database.read(query)
        if not rows:
            raise MessageNotFound(message_id)
        [row] = rows
        return Traced(
            to_message(row),
            row.enqueue_at,
            row.claim_expires_at,
            [to_attempt(each) for each in self._database.read(tried)],
            row.status_url,
            None if row.told is None else Status(row.told),
        )

    def _edge(
        self,
        cursor: UUID | None,
        before: UUID | None,
        made_after: UUID | None,
        *,
        oldest_first: bool,
        many: int,
    ) -> UUID | None:
        """Return the id so many messages further on; None where there are not so many."""
        messages = self._tables.messages
        query = (
            select(messages.c.id)
            .where(*_between(cursor, None, by=messages.c.id, oldest_first=oldest_first))
            .order_by(_order(messages.c.id, oldest_first=oldest_first))
            .offset(many - 1)
            .limit(1)
        )
        if before is not None:
            query = query.where(messages.c.id < before)
        if made_after is not None:
            query = query.where(messages.c.id > made_after)
        rows = self._database.read(query)
        return rows[0].id if rows else None

    def _conditions(self, wanted: Selection) -> list[ColumnElement[bool]]:
        tables = self._tables
        messages = tables.messages
        named = {
            messages.c.channel: wanted.channel,
            messages.c.recipient: wanted.recipient,
            messages.c.scope: wanted.scope,
            messages.c.idempotency_key: wanted.idempotency_key,
        }
        where: list[ColumnElement[bool]] = [tables.is_message]
        where += [column == value for column, value in named.items() if value is not None]
        where += [_counts_against(messages, kind, name) for kind, name in wanted.scopes]
        if wanted.key_prefix is not None:
            # Not LIKE, which on SQLite takes capitals for small letters.
            key = func.substr(messages.c.idempotency_key, 1, len(wanted.key_prefix))
            where.append(key == wanted.key_prefix)
        if wanted.made_after is not None:
            where.append(messages.c.id > wanted.made_after)
        if wanted.from_at is not None:
            where.append(messages.c.send_at >= wanted.from_at)
        if wanted.until_at is not None:
            where.append(messages.c.send_at < wanted.until_at)
        status = Status.SCHEDULED if wanted.overdue else wanted.status
        if status is not None:
            where.append(is_plainly(tables, status))
        # Redundant, so that the index of claims is used: a message that is being sent has a
        # claim; a held one has none, by which MariaDB finds it.
        if wanted.status is Status.SENDING:
            where.append(messages.c.claim_expires_at > from_ms(0))
        if wanted.status is Status.HELD:
            where.append(messages.c.claim_expires_at.is_(None))
        if wanted.overdue:
            where += overdue_since(tables, self._late, self._put_off)
        return where


def is_plainly(tables: Tables, status: Status) -> ColumnElement[bool]:
    """Return the condition that a row has this status, written out, so that its index is found.

    SQLite takes a partial index only where it sees the value.
    """
    messages = tables.messages
    return messages.c.status == bindparam(None, status.value, literal_execute=True)


def overdue_since(tables: Tables, late: float, put_off: float) -> list[ColumnElement[bool]]:
    """Return the conditions that a scheduled message was due ``late`` seconds ago.

    Maintenance enqueues it again at most ``put_off`` seconds from now: by this condition the index
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

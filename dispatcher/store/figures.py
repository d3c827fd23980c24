"""Numbers for operators: how many messages there are, what is overdue, what comes next."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from sqlalchemy import func, select

from dispatcher.message import Status
from dispatcher.scope import NOBODY
from dispatcher.store.database import Database
from dispatcher.store.engines.types import database_now, later, minute_of
from dispatcher.store.listing import is_plainly, overdue_since

MOST_COUNTED = 1_000_000
"""The most messages that one number is counted from, so that a count takes bounded time."""
_MINUTES = 60
_LIVE = (Status.SCHEDULED, Status.SENDING, Status.HELD)

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


class Figures:
    """Counts live messages, and those that ended lately, by their indexes.

    ``late`` and ``put_off`` are those of :class:`Listing`. Every call raises StoreUnavailable.
    """

    def __init__(self, database: Database, *, late: timedelta, put_off: timedelta) -> None:
        self._database = database
        self._tables = database.tables
        self._late = late.total_seconds()
        self._put_off = put_off.total_seconds()

    def counts(self, *, since: timedelta) -> Counts:
        """Count messages by channel and status."""
        tables = self._tables
        messages = tables.messages
        found: dict[str, Counter[Status]] = {}
        complete = True
        ended = messages.c.finished_at > later(database_now(), -since.total_seconds())
        for where in (*(is_plainly(tables, each) for each in _LIVE), ended):
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
            is_plainly(self._tables, Status.SCHEDULED),
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

    def busiest(self, of: Of, *, within: timedelta, at_most: int) -> tuple[list[Busy], bool]:
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
            .limit(at_most)
        )
        rows = self._database.read(query)
        [(total,)] = self._database.read(select(func.count()).select_from(due))
        busy = [Busy(name=name, messages=count, next_at=at) for name, count, at in rows]
        return busy, total <= MOST_COUNTED

    def _due(self, start: datetime | None, end: datetime, *columns: Any) -> Any:
        """Return the messages that are due from ``start`` until before ``end``, soonest first."""
        messages = self._tables.messages
        query = select(*columns).where(
            is_plainly(self._tables, Status.SCHEDULED),
            messages.c.next_attempt_at < end,
            messages.c.enqueue_at < end + timedelta(seconds=self._put_off),
        )
        if start is not None:
            query = query.where(messages.c.next_attempt_at >= start)
        return query.order_by(messages.c.enqueue_at).limit(MOST_COUNTED + 1).subquery()

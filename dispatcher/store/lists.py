"""Recipients who have opted out, and pauses: every claim reads both tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import Connection, delete, select, true, tuple_, update

from dispatcher.store.database import Database
from dispatcher.store.engines.types import database_now, later
from dispatcher.store.schema import AS_NAMED, EVERY_CHANNEL, Tables

REASON = "its recipient is suppressed"
_KEPT = timedelta(hours=1)
"""How long a pause that has ended is stored: longer than any sweep looks back for one."""


class Suppression(NamedTuple):
    """One recipient gets nothing on one channel, None for any, since ``created_at`` (aware UTC)."""

    recipient: str
    channel: str | None
    created_at: datetime


def is_suppressed(tables: Tables, connection: Connection, recipient: str, channel: str) -> bool:
    query = select(tables.suppressed(recipient, channel))
    return bool(connection.scalar(query, execution_options=AS_NAMED))


class Suppressions:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._tables = database.tables

    def add(self, recipient: str, channel: str | None) -> None:
        row = {"recipient": recipient, "channel": channel or EVERY_CHANNEL}
        table = self._tables.suppressions
        self._database.add_if_absent(table, created_at=database_now(), **row)

    def remove(self, recipient: str, channel: str | None) -> None:
        suppressions = self._tables.suppressions
        rows = suppressions.c
        statement = delete(suppressions).where(
            rows.recipient == recipient, rows.channel == (channel or EVERY_CHANNEL)
        )
        self._database.execute(statement)

    def among(self, recipients: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
        rows, wanted = self._tables.suppressions.c, set(recipients)
        names = list({recipient for recipient, _ in wanted})
        query = select(rows.recipient, rows.channel)
        stored = {tuple(row) for row in self._database.read_of(query, rows.recipient, names)}
        if not stored:
            return set()
        return {each for each in wanted if not stored.isdisjoint((each, (each[0], EVERY_CHANNEL)))}

    def page(
        self, recipient: str | None, *, after: tuple[str, str] | None, limit: int
    ) -> Sequence[Suppression]:
        suppressions = self._tables.suppressions
        key = (suppressions.c.recipient, suppressions.c.channel)
        query = select(*key, suppressions.c.created_at).order_by(*key).limit(limit)
        if recipient is not None:
            query = query.where(suppressions.c.recipient == recipient)
        if after is not None:
            # Redundant: MariaDB does not seek in an index by a tuple.
            query = query.where(suppressions.c.recipient >= after[0], tuple_(*key) > tuple_(*after))
        return [
            Suppression(row.recipient, row.channel or None, row.created_at)
            for row in self._database.read(query)
        ]

    def scheduled(
        self, recipient: str, channel: str | None, *, after: UUID | None, limit: int
    ) -> list[UUID]:
        tables = self._tables
        messages = tables.messages
        query = (
            select(messages.c.id)
            .where(
                messages.c.recipient == recipient,
                tables.is_scheduled,
                true() if channel is None else messages.c.channel == channel,
                true() if after is None else messages.c.id > after,
            )
            .order_by(messages.c.id)
            .limit(limit)
        )
        return [row.id for row in self._database.read(query)]


class Pause(NamedTuple):
    """Messages of one scope or campaign that are not sent since ``paused_at`` (aware UTC)."""

    kind: str
    name: str
    paused_at: datetime


class Pauses:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._pauses = database.tables.pauses

    def add(self, kind: str, name: str) -> None:
        row, now = self._pauses.c, database_now()
        this = (row.kind == kind, row.name == name)
        ended = update(self._pauses).where(*this, row.resumed_at.is_not(None))
        # In this order: else a resume in between might delete the row of a pause long ended.
        self._database.execute(ended.values(paused_at=now, resumed_at=None))
        self._database.add_if_absent(self._pauses, kind=kind, name=name, paused_at=now)

    def end(self, kind: str, name: str) -> None:
        row, now = self._pauses.c, database_now()
        self._database.execute(
            update(self._pauses)
            .where(row.kind == kind, row.name == name, row.resumed_at.is_(None))
            .values(resumed_at=now)
        )
        self._database.execute(delete(self._pauses).where(row.resumed_at < later(now, -_KEPT)))

    def in_force(self) -> Sequence[Pause]:
        row = self._pauses.c
        query = select(row.kind, row.name, row.paused_at).where(row.resumed_at.is_(None))
        return [Pause(*each) for each in self._database.read(query.order_by(row.kind, row.name))]

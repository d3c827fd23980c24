"""The doctor's questions to the database. Changes nothing: its one write is rolled back."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from datetime import datetime, timedelta
from secrets import token_hex
from typing import Any, NamedTuple
from uuid import uuid4

from sqlalchemy import Connection, func, insert, inspect, select

from dispatcher.message import Status
from dispatcher.store.database import Database
from dispatcher.store.engines.base import Durability, Housekeeping
from dispatcher.store.engines.errors import translated
from dispatcher.store.engines.types import database_now, later
from dispatcher.store.listing import overdue_since
from dispatcher.store.void_ids import VOID_VALUES

_TRIED_BYTES = 8_192
"""Above a page of PostgreSQL's: a table without room has to grow."""


class _RolledBack(Exception):
    pass


class LateCount(NamedTuple):
    messages: int = 0
    longest: timedelta = timedelta(0)


class StoreSurvey:
    def __init__(self, database: Database) -> None:
        self.database = database
        self._tables = database.tables

    @property
    def lacks_file(self) -> bool:
        file = self.database.backend.file
        return file is not None and not os.path.exists(file)  # noqa: PTH110 - never raises

    def now(self) -> datetime:
        now: datetime = self.database.read(select(database_now()))[0][0]
        return now

    def missing_indexes(self) -> tuple[str, ...]:
        def missing(connection: Connection) -> set[str]:
            names, inspector, schema = set[str](), inspect(connection), self._tables.schema
            for table in self._tables.metadata.tables.values():
                if not inspector.has_table(table.name, schema):
                    continue
                there = {index["name"] for index in inspector.get_indexes(table.name, schema)}
                names |= {str(index.name) for index in table.indexes} - there
                # Not by its name: MariaDB calls each one PRIMARY.
                holder = self.database.backend.key_holder(table, self._tables)
                key = inspector.get_pk_constraint(holder, schema)["constrained_columns"]
                if key != table.primary_key.columns.keys():
                    names.add(str(table.primary_key.name))
            return names

        with translated():
            return tuple(sorted(self.database.run(missing)))

    def try_write(self) -> None:
        values = VOID_VALUES | {"id": uuid4(), "body": {"text": token_hex(_TRIED_BYTES)}}
        row = insert(self._tables.messages).values(values)

        def work(connection: Connection) -> None:
            connection.execute(row)
            raise _RolledBack

        with suppress(_RolledBack):
            self.database.transact(work)

    def durability(self) -> Durability:
        return self.database.run(self.database.backend.durable.read)

    def housekeeping(self) -> Housekeeping:
        backend, tables = self.database.backend, self._tables
        return self.database.run(lambda connection: backend.housekeeping(connection, tables))

    def not_pruned(self, *, retention: timedelta) -> timedelta:
        """Return how long ago ``prune`` should have deleted a message, the first one; 0 if none."""
        kept_for = self.database.backend.kept_for(retention)
        ended, now = self._tables.messages.c.finished_at, database_now()
        is_old = ended <= later(now, -kept_for)
        query = select(ended, now).where(is_old, self._tables.is_prunable).order_by(ended).limit(1)
        for first, present in self.database.read(query):
            late: timedelta = present - first - kept_for
            return late
        return timedelta(0)

    def not_enqueued(self, *, older_than: timedelta) -> LateCount:
        is_scheduled = self._tables.is_plainly(Status.SCHEDULED)
        return self._late(self._tables.messages.c.enqueue_at, older_than, is_scheduled)

    def overdue(self, *, older_than: timedelta, grace: timedelta) -> LateCount:
        """Return the messages that were due longer ago and are not claimed.

        Each may be enqueued again ``grace`` after it was due: with that the index finds them.
        """
        is_scheduled = self._tables.is_plainly(Status.SCHEDULED)
        where = (is_scheduled, *overdue_since(self._tables, older_than, grace))
        return self._late(self._tables.messages.c.next_attempt_at, older_than, *where)

    def waiting(self, *, older_than: timedelta) -> LateCount:
        row, is_scheduled = self._tables.messages.c, self._tables.is_plainly(Status.SCHEDULED)
        to_come = row.next_attempt_at > database_now()
        return self._late(row.send_at, older_than, is_scheduled, to_come)

    def not_rescued(self, *, older_than: timedelta) -> LateCount:
        is_sending = self._tables.is_plainly(Status.SENDING)
        return self._late(self._tables.messages.c.claim_expires_at, older_than, is_sending)

    def late_notifications(self, *, older_than: timedelta) -> LateCount:
        messages = self._tables.messages
        since = func.coalesce(messages.c.finished_at, messages.c.next_attempt_at)
        is_due, _ = self.database.backend.due_notifications(self._tables)
        return self._late(since, older_than, is_due)

    def unknown_channels(self, known: Collection[str]) -> dict[str, int]:
        messages = self._tables.messages
        query = (
            select(messages.c.channel, func.count())
            .where(
                self._tables.is_plainly(Status.SCHEDULED), messages.c.channel.notin_(list(known))
            )
            .group_by(messages.c.channel)
            .order_by(messages.c.channel)
        )
        return dict(map(tuple, self.database.read(query)))

    def _late(self, since: Any, older_than: timedelta, *where: Any) -> LateCount:
        now = database_now()
        before = later(now, -older_than)
        query = select(func.count(), func.min(since), now).where(since <= before, *where)
        [(messages, first, present)] = self.database.read(query)
        return LateCount(messages, present - first) if messages else LateCount()

"""Adding and cancelling many messages with one statement."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Row, and_, insert, or_, select

from dispatcher.errors import StoreUnavailable
from dispatcher.message import Message
from dispatcher.store.database import Database
from dispatcher.store.engines.errors import translated
from dispatcher.store.messages import cancellation, having_key
from dispatcher.store.rows import WRITTEN, Addition, to_message, to_row, to_values
from dispatcher.store.schema import TAKEN_BACK

log = logging.getLogger(__name__)

_ROWS_AT_ONCE = 1_000


class BulkMessages:
    """Stores messages by the thousand: COPY on PostgreSQL, one transaction elsewhere."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._tables = database.tables

    def add(self, additions: Iterable[Addition]) -> bool | None:
        """Store all of these messages or none; return whether they are stored.

        False where the database refused, for instance because a key exists: nothing is stored. None
        where the connection broke and they may be stored; then add them one by one.
        """
        every = list(additions)  # the work may be run again
        try:
            if self._database.backend.copies:
                self._copy(every)
            else:
                self._insert(every)
        except StoreUnavailable as error:
            log.warning(
                "batch of %d messages not stored together, storing each alone: %s",
                len(every),
                error,
            )
            return False if error.refused else None
        return True

    def has(self, message_ids: Sequence[UUID]) -> bool:
        """Return whether all of these messages are stored, and none was taken back.

        Check all, also of messages that are added together: a duplicate submit that uses the
        reservation of one may have stored that one alone, under the same id.
        """
        tables = self._tables
        messages = tables.messages
        error = messages.c.last_error
        stored = and_(tables.is_message, or_(error.is_(None), error != TAKEN_BACK))
        for start in range(0, len(message_ids), _ROWS_AT_ONCE):
            some = message_ids[start : start + _ROWS_AT_ONCE]
            these = self._database.one_of(messages.c.id, some)
            there = self._database.read(select(messages.c.id).where(these, stored))
            if len(there) < len(set(some)):
                return False
        return True

    def with_keys(self, keys: Sequence[str]) -> dict[str, tuple[Message, str]]:
        """Return the messages that have one of these idempotency keys, with their fingerprints."""
        rows: list[Row[Any]] = []
        for start in range(0, len(keys), _ROWS_AT_ONCE):
            some = keys[start : start + _ROWS_AT_ONCE]
            rows += self._database.read(having_key(self._tables, some))
        return {row.idempotency_key: (to_message(row), row.fingerprint) for row in rows}

    def these(self, message_ids: Sequence[UUID]) -> list[Message]:
        """Return those of these messages that are stored."""
        tables = self._tables
        these = self._database.one_of(tables.messages.c.id, message_ids)
        query = select(*tables.message_columns).where(these, tables.is_message)
        return [to_message(row) for row in self._database.read(query)]

    def cancel(
        self, message_ids: Sequence[UUID], *, because: str | None = None
    ) -> dict[UUID, Message]:
        """Cancel those that are still scheduled; return all that are stored, as they now are.

        ``because`` becomes their ``last_error``.
        """
        tables = self._tables
        these = self._database.one_of(tables.messages.c.id, message_ids)
        change = cancellation(tables, these, because=because)
        query = select(*tables.message_columns).where(these, tables.is_message)
        return {row.id: to_message(row) for row in self._database.change(change, query)}

    def _copy(self, additions: Sequence[Addition]) -> None:
        database = self._database
        rows = map(to_values, additions)
        with translated(), database.engine.connect() as connection:
            database.backend.copy(connection, self._tables.messages, WRITTEN, rows)

    def _insert(self, additions: Sequence[Addition]) -> None:
        statement = insert(self._tables.messages)

        def work(connection: Connection) -> None:
            rows = (
                to_row(
                    each.message,
                    enqueue_at=each.enqueue_at,
                    fingerprint=each.fingerprint,
                    status_url=each.status_url,
                )
                for each in additions
            )
            while some := list(islice(rows, _ROWS_AT_ONCE)):
                connection.execute(statement, some)

        self._database.transact(work)

"""Adding and cancelling many messages with one statement."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Row, Select, insert, select, update

from dispatcher.errors import StoreUnavailable
from dispatcher.message import Message, Status
from dispatcher.store import copied
from dispatcher.store.copied import Addition
from dispatcher.store.database import Database
from dispatcher.store.instants import database_now
from dispatcher.store.messages import to_message, to_row

log = logging.getLogger(__name__)

_ROWS_AT_ONCE = 1_000


class BulkMessages:
    """Stores messages by the thousand: COPY on PostgreSQL, one transaction elsewhere."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._tables = database.tables
        self._copies = database.url.get_backend_name() == "postgresql"

    def add(self, additions: Iterable[Addition]) -> bool | None:
        """Store all of these messages or none; tell whether they are stored.

        False where the database refused, because some key is taken, say: nothing is stored. None
        where the line broke and nobody knows. Adding them one by one then finds out about each.
        """
        try:
            if self._copies:
                self._copy(additions)
            else:
                self._insert(additions)
        except StoreUnavailable as error:
            log.warning("a batch was not stored together: %s", error)
            return False if error.refused else None
        return True

    def has(self, message_ids: Sequence[UUID]) -> bool:
        """Tell whether all of these messages are stored.

        One alone tells nothing, also of messages that are added together: a twin that relies on
        the place of one stores it under the same id.
        """
        tables = self._tables
        messages = tables.messages
        for start in range(0, len(message_ids), _ROWS_AT_ONCE):
            some = message_ids[start : start + _ROWS_AT_ONCE]
            these = self._database.one_of(messages.c.id, some)
            if len(self._read(select(messages.c.id).where(these, tables.is_message))) < len(
                set(some)
            ):
                return False
        return True

    def with_keys(self, keys: Sequence[str]) -> dict[str, tuple[Message, str]]:
        """Return the messages that have one of these idempotency keys, with their fingerprints."""
        tables = self._tables
        messages = tables.messages
        if not keys:
            return {}
        query = select(*tables.message_columns, messages.c.fingerprint)
        rows: list[Row[Any]] = []
        for start in range(0, len(keys), _ROWS_AT_ONCE):
            some = messages.c.idempotency_key.in_(keys[start : start + _ROWS_AT_ONCE])
            rows += self._read(query.where(some))
        return {row.idempotency_key: (to_message(row), row.fingerprint) for row in rows}

    def these(self, message_ids: Sequence[UUID]) -> list[Message]:
        """Return those of these messages that are stored."""
        tables = self._tables
        messages = tables.messages
        query = select(*tables.message_columns).where(
            self._database.one_of(messages.c.id, message_ids), tables.is_message
        )
        return [to_message(row) for row in self._read(query)]

    def cancel(
        self, message_ids: Sequence[UUID], *, because: str | None = None
    ) -> dict[UUID, Message]:
        """Cancel those that are still scheduled; return all that are stored as they now stand.

        ``because`` becomes their ``last_error``.
        """
        tables = self._tables
        messages = tables.messages
        these = self._database.one_of(messages.c.id, message_ids)
        statement = (
            update(messages)
            .where(these, tables.has_status(Status.SCHEDULED))
            .values(
                status=Status.CANCELLED.value,
                finished_at=database_now(),
                last_error=messages.c.last_error if because is None else because,
            )
        )
        query = select(*tables.message_columns).where(these, tables.is_message)

        def work(connection: Connection) -> Sequence[Row[Any]]:
            connection.execute(statement)
            return connection.execute(query).all()

        return {row.id: to_message(row) for row in self._database.run(work)}

    def _read(self, query: Select[Any]) -> Sequence[Row[Any]]:
        return self._database.run(lambda connection: connection.execute(query).all())

    def _insert(self, additions: Iterable[Addition]) -> None:
        messages = self._tables.messages
        statement = insert(messages)
        every = list(additions)  # the work may be run again

        def work(connection: Connection) -> None:
            rows = (
                to_row(
                    each.message,
                    enqueue_at=each.enqueue_at,
                    fingerprint=each.fingerprint,
                    status_url=each.status_url,
                )
                for each in every
            )
            while some := list(islice(rows, _ROWS_AT_ONCE)):
                connection.execute(statement, some)

        self._database.transact(work)

    def _copy(self, additions: Iterable[Addition]) -> None:
        messages = self._tables.messages
        from dispatcher.store import postgres  # noqa: PLC0415 - its driver is an extra

        postgres.copy(self._database.engine, messages, copied.COLUMNS, copied.parts(additions))

"""Adding many messages with one statement."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, Row, Select, insert, select

from dispatcher.errors import StoreUnavailable
from dispatcher.message import Message, dump_json
from dispatcher.store.database import Database
from dispatcher.store.messages import MESSAGE_COLUMNS, to_message, to_row
from dispatcher.store.schema import messages

log = logging.getLogger(__name__)

_ROWS_AT_ONCE = 1_000
_COLUMNS = [column.name for column in messages.columns]
_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"})


class Addition(NamedTuple):
    """A message to store, when the sweep is to hand it over, and its fingerprint."""

    message: Message
    enqueue_at: datetime
    fingerprint: str | None


class BulkMessages:
    """Stores messages by the thousand: COPY on PostgreSQL, one transaction on SQLite."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._copies = database.url.get_backend_name() == "postgresql"

    def add(self, additions: Sequence[Addition]) -> bool:
        """Store all of these messages or none; tell whether they are stored for certain.

        False after any failure: some key may be taken, or the line broke and nobody knows. The
        caller then adds them one by one, which finds out.
        """
        if not additions:
            return True
        try:
            if self._copies:
                self._copy(additions)
            else:
                self._insert(additions)
        except StoreUnavailable as error:
            log.warning("%d messages are stored one by one: %s", len(additions), error)
            return False
        return True

    def has(self, message_ids: Sequence[UUID]) -> bool:
        """Tell whether messages that were added together are stored: all are, or none."""
        query = select(messages.c.id).where(messages.c.id == message_ids[0])
        return bool(self._database.run(lambda connection: connection.execute(query).all()))

    def with_keys(self, keys: Sequence[str]) -> dict[str, tuple[Message, str]]:
        """Return the messages that have one of these idempotency keys, with their fingerprints."""
        if not keys:
            return {}
        query = select(*MESSAGE_COLUMNS, messages.c.fingerprint)
        rows: list[Row[Any]] = []
        for start in range(0, len(keys), _ROWS_AT_ONCE):
            some = messages.c.idempotency_key.in_(keys[start : start + _ROWS_AT_ONCE])
            rows += self._read(query.where(some))
        return {row.idempotency_key: (to_message(row), row.fingerprint) for row in rows}

    def _read(self, query: Select[Any]) -> Sequence[Row[Any]]:
        return self._database.run(lambda connection: connection.execute(query).all())

    def _insert(self, additions: Sequence[Addition]) -> None:
        statement = insert(messages)

        def work(connection: Connection) -> None:
            for rows in _in_parts(additions):
                connection.execute(statement, rows)

        self._database.transact(work)

    def _copy(self, additions: Sequence[Addition]) -> None:
        from dispatcher.store import postgres  # noqa: PLC0415 - its driver is an extra

        lines = ("".join(map(_line, rows)) for rows in _in_parts(additions))
        postgres.copy(self._database.engine, messages.name, _COLUMNS, lines)


def _in_parts(additions: Sequence[Addition]) -> Iterator[list[dict[str, Any]]]:
    for start in range(0, len(additions), _ROWS_AT_ONCE):
        yield [
            to_row(each.message, enqueue_at=each.enqueue_at, fingerprint=each.fingerprint)
            for each in additions[start : start + _ROWS_AT_ONCE]
        ]


def _line(row: dict[str, Any]) -> str:
    """Return a row in PostgreSQL's text format for COPY."""
    return "\t".join([_text(row.get(column)) for column in _COLUMNS]) + "\n"


def _text(value: object) -> str:
    if value is None:
        return "\\N"
    if isinstance(value, str):
        return value.translate(_ESCAPES) if _needs_escape(value) else value
    if isinstance(value, bool):
        return "t" if value else "f"
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, dict):
        return _text(dump_json(value))
    return str(value)


def _needs_escape(value: str) -> bool:
    return not value.isprintable() or "\\" in value

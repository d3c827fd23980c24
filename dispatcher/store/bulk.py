"""Adding many messages with one statement."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from datetime import datetime
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
COPIED = (
    "id", "channel", "recipient", "scope", "body", "send_at", "next_attempt_at", "enqueue_at",
    "expires_at", "status", "max_attempts", "idempotency_key", "fingerprint", "created_at",
    "scopes", "zone", "quiet_hours", "attempt_count", "claim_token", "reserved",
)  # fmt: skip
"""The columns that a new message has; the others are NULL."""
_NULL = "\\N"
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

    def add(self, additions: Sequence[Addition]) -> bool | None:
        """Store all of these messages or none; tell whether they are stored.

        False where the database refused, because some key is taken, say: nothing is stored. None
        where the line broke and nobody knows. Adding them one by one then finds out about each.
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
            return False if error.refused else None
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

        parts = (
            "".join(map(_line, additions[start : start + _ROWS_AT_ONCE]))
            for start in range(0, len(additions), _ROWS_AT_ONCE)
        )
        postgres.copy(self._database.engine, messages.name, COPIED, parts)


def _in_parts(additions: Sequence[Addition]) -> Iterator[list[dict[str, Any]]]:
    for start in range(0, len(additions), _ROWS_AT_ONCE):
        yield [
            to_row(each.message, enqueue_at=each.enqueue_at, fingerprint=each.fingerprint)
            for each in additions[start : start + _ROWS_AT_ONCE]
        ]


def _line(addition: Addition) -> str:
    """Return a row in PostgreSQL's text format for COPY: the columns of ``COPIED``."""
    message, enqueue_at, fingerprint = addition
    send_at = message.send_at.isoformat()
    recipient = _text(message.recipient)
    same = message.scope == message.recipient
    return "\t".join(
        (
            message.id.hex,
            message.channel,
            recipient,
            recipient if same else _text(message.scope),
            _text(dump_json(message.body)),
            send_at,
            send_at,
            enqueue_at.isoformat(),
            message.expires_at.isoformat() if message.expires_at else _NULL,
            message.status,
            str(message.max_attempts),
            _text(message.idempotency_key) if message.idempotency_key else _NULL,
            fingerprint or _NULL,
            message.created_at.isoformat(),
            _text(dump_json(message.scopes)) if message.scopes else _NULL,
            message.zone or _NULL,
            message.quiet_hours or _NULL,
            "0",
            "0",
            "t\n",
        )
    )


def _text(value: str) -> str:
    return value if value.isprintable() and "\\" not in value else value.translate(_ESCAPES)

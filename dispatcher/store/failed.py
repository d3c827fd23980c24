"""What those who give failed messages another round need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, Row, Select, exists, or_, select, update

from dispatcher.message import Message, Outcome, Status
from dispatcher.store.changes import Change
from dispatcher.store.database import Database
from dispatcher.store.instants import database_now
from dispatcher.store.messages import to_message
from dispatcher.store.schema import Tables

_MOST_ATTEMPTS = 32_767


class Standstill(NamedTuple):
    """A message as it is stored, and what decides whether it may be tried again.

    ``is_unknown`` tells that nobody knows what came of its last try.
    """

    message: Message
    token: int
    is_unknown: bool


class FailedMessages:
    """Messages that failed and may be tried again. Every call may be run again."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._tables = database.tables
        self._retried = _retried(database.tables)

    def look(self, message_ids: Sequence[UUID]) -> dict[UUID, Standstill]:
        """Return how those of these messages stand that are stored."""
        query = self._standing(message_ids)
        rows = self._database.run(lambda connection: connection.execute(query).all())
        return {row.id: _standstill(row) for row in rows}

    def retry(self, wanted: Sequence[tuple[Standstill, int]]) -> dict[UUID, Standstill]:
        """Give failed messages so many tries more, the first one at once, in one transaction.

        Each only if it is as it was found, and not past its expiry. Return how they now stand.
        """
        rows: list[dict[str, Any]] = [
            {
                "id": found.message.id,
                "token": found.token,
                "max_attempts": min(found.message.attempt_count + tries, _MOST_ATTEMPTS),
            }
            for found, tries in sorted(wanted, key=lambda each: each[0].message.id)
        ]
        query = self._standing([row["id"] for row in rows])

        def work(connection: Connection) -> Sequence[Row[Any]]:
            self._retried.run(connection, rows)
            return connection.execute(query).all()

        run = self._database.transact if len(rows) > 1 else self._database.run
        return {row.id: _standstill(row) for row in run(work)}

    def _standing(self, message_ids: Sequence[UUID]) -> Select[Any]:
        tables = self._tables
        messages, attempts = tables.messages, tables.attempts
        unknown = exists().where(
            attempts.c.message_id == messages.c.id,
            attempts.c.token == messages.c.claim_token,
            attempts.c.outcome == Outcome.UNKNOWN.value,
        )
        these = self._database.one_of(messages.c.id, message_ids)
        columns = (*tables.message_columns, messages.c.claim_token, unknown.label("is_unknown"))
        return select(*columns).where(these, tables.is_message)


def _standstill(row: Row[Any]) -> Standstill:
    return Standstill(to_message(row), row.claim_token, bool(row.is_unknown))


def _retried(tables: Tables) -> Change:
    """Return the change of what failed: another try at once, if it is not past its expiry."""
    messages, now = tables.messages, database_now()
    return Change(
        lambda given: update(messages)
        .where(
            messages.c.id == given("id"),
            messages.c.claim_token == given("token"),
            tables.has_status(Status.FAILED),
            or_(messages.c.expires_at.is_(None), messages.c.expires_at > now),
        )
        .values(
            status=Status.SCHEDULED.value,
            finished_at=None,
            next_attempt_at=now,
            enqueue_at=now,
            max_attempts=given("max_attempts"),
            told=tables.told_anew,
        ),
        "max_attempts",
    )  # fmt: skip

"""The decisions of operators on held and failed messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Row, Select, Update, and_, case, exists, or_, select, update

from dispatcher.message import Message, Outcome, Status
from dispatcher.store.database import Database, Given, GuardedChange
from dispatcher.store.engines.types import database_now
from dispatcher.store.messages import changed
from dispatcher.store.schema import MOST_ATTEMPTS, to_message

DROPPED = "dropped: the outcome of the last attempt is unknown; it may have been sent"
"""The error of a dropped message; the reason follows, where one was given."""


class StoppedMessage(NamedTuple):
    """``is_unknown``: its last attempt's outcome. ``is_superseded``: a later one has its key."""

    message: Message
    token: int
    is_unknown: bool
    is_superseded: bool


class StoppedMessages:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._tables = tables = database.tables
        self._is_held = tables.has_status(Status.HELD)
        self._retried = GuardedChange(database.backend, self._retry)

    def release(self, found: Message) -> Message:
        """Give a held message one more attempt, at once; expire it past its expiry.

        It is not changed if it was tried since it was found. Raises MessageNotFound.
        """
        tables = self._tables
        messages = tables.messages
        now = database_now()
        too_late = messages.c.expires_at <= now
        used_up = messages.c.attempt_count >= messages.c.max_attempts
        one_more = case((used_up, messages.c.attempt_count + 1), else_=messages.c.max_attempts)
        return self._change(
            found,
            status=case((too_late, Status.EXPIRED.value), else_=Status.SCHEDULED.value),
            finished_at=case((too_late, now), else_=None),
            next_attempt_at=now,
            enqueue_at=now,
            max_attempts=one_more,
            notified_status=tables.notified_status_reset,
        )

    def drop(self, found: Message, *, reason: str | None = None) -> Message:
        error = DROPPED if reason is None else f"{DROPPED}; {reason}"
        return self._change(
            found, status=Status.FAILED.value, finished_at=database_now(), last_error=error
        )

    def _change(self, found: Message, **values: Any) -> Message:
        messages = self._tables.messages
        # Every attempt counts one more: held again, it is another decision.
        is_same = messages.c.attempt_count == found.attempt_count
        change = update(messages).where(messages.c.id == found.id, self._is_held, is_same)
        return changed(self._database, found.id, change.values(**values))

    def look(self, message_ids: Sequence[UUID]) -> dict[UUID, StoppedMessage]:
        return _standing(self._database.read(self._query(message_ids)))

    def retry(self, wanted: Sequence[tuple[StoppedMessage, int]]) -> dict[UUID, StoppedMessage]:
        """Give failed messages more attempts, unless they have changed or are past their expiry."""
        rows: list[dict[str, Any]] = [
            {
                "id": found.message.id,
                "token": found.token,
                "max_attempts": min(found.message.attempt_count + more, MOST_ATTEMPTS),
            }
            for found, more in sorted(wanted, key=lambda each: each[0].message.id)
        ]
        query = self._query([row["id"] for row in rows])
        return _standing(self._retried.run_and_read(self._database, rows, query))

    def _retry(self, given: Given) -> Update:
        tables, messages, now = self._tables, self._tables.messages, database_now()
        return (
            update(messages)
            .where(
                given.finds(messages.c.id),
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
                notified_status=tables.notified_status_reset,
            )
        )

    def _query(self, message_ids: Sequence[UUID]) -> Select[Any]:
        tables = self._tables
        messages, attempts = tables.messages, tables.attempts
        unknown = exists().where(
            attempts.c.message_id == messages.c.id,
            attempts.c.token == messages.c.claim_token,
            attempts.c.outcome == Outcome.UNKNOWN.value,
        )
        these = self._database.one_of(messages.c.id, message_ids)
        has_key = exists().where(
            tables.keys.c.idempotency_key == messages.c.idempotency_key,
            tables.keys.c.message_id == messages.c.id,
        )
        superseded = and_(messages.c.idempotency_key.is_not(None), ~has_key)
        columns = (
            *tables.message_columns, messages.c.claim_token,
            unknown.label("is_unknown"), superseded.label("is_superseded"),
        )  # fmt: skip
        return select(*columns).where(these, tables.is_message)


def _standing(rows: Sequence[Row[Any]]) -> dict[UUID, StoppedMessage]:
    return {
        row.id: StoppedMessage(
            to_message(row), row.claim_token, bool(row.is_unknown), bool(row.is_superseded)
        )
        for row in rows
    }

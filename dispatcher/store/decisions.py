"""What operators decide: messages that are held or have failed, and another try for them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Row, Select, case, exists, or_, select, update

from dispatcher.message import Message, Outcome, Status
from dispatcher.store.changes import Change
from dispatcher.store.database import Database
from dispatcher.store.engines.types import database_now
from dispatcher.store.messages import changed
from dispatcher.store.rows import to_message

DROPPED = "dropped: the outcome of its last try is unknown, it may have been sent"
_MOST_ATTEMPTS = 32_767


class HeldMessages:
    """Messages that wait for a person. Every call may be run again."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._tables = database.tables
        self._is_held = self._tables.messages.c.status == Status.HELD.value

    def find(self, *, at_most: int) -> list[Message]:
        """Return what is held, oldest first."""
        tables = self._tables
        messages = tables.messages
        # Nothing held has a claim, so MariaDB reads the ids, in order, in the index of
        # claims; asked for whole rows, it would rather read all messages from the oldest on.
        first = (
            select(messages.c.id)
            .where(self._is_held, messages.c.claim_expires_at.is_(None))
            .order_by(messages.c.id)
            .limit(at_most)
            .subquery()
        )
        query = (
            select(*tables.message_columns)
            .join(first, first.c.id == messages.c.id)
            .order_by(messages.c.id)
        )
        return [to_message(row) for row in self._database.read(query)]

    def release(self, message_id: UUID) -> Message:
        """Let a held message be tried once more, at once; end it where its time is up.

        Return it as it now stands. Raises MessageNotFound.
        """
        tables = self._tables
        messages = tables.messages
        now = database_now()
        too_late = messages.c.expires_at <= now
        used_up = messages.c.attempt_count >= messages.c.max_attempts
        statement = (
            update(messages)
            .where(messages.c.id == message_id, self._is_held)
            .values(
                status=case((too_late, Status.EXPIRED.value), else_=Status.SCHEDULED.value),
                finished_at=case((too_late, now), else_=None),
                next_attempt_at=now,
                enqueue_at=now,
                max_attempts=case(
                    (used_up, messages.c.attempt_count + 1), else_=messages.c.max_attempts
                ),
                told=tables.told_anew,
            )
        )
        return changed(self._database, message_id, statement)

    def drop(self, message_id: UUID) -> Message:
        """Give a held message up; return it as it now stands. Raises MessageNotFound."""
        messages = self._tables.messages
        statement = (
            update(messages)
            .where(messages.c.id == message_id, self._is_held)
            .values(status=Status.FAILED.value, finished_at=database_now(), last_error=DROPPED)
        )
        return changed(self._database, message_id, statement)


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
        self._retried = _retried(database)

    def look(self, message_ids: Sequence[UUID]) -> dict[UUID, Standstill]:
        """Return how those of these messages stand that are stored."""
        rows = self._database.read(self._standing(message_ids))
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

        change = partial(self._retried.run, rows=rows)
        found = self._database.change(change, query, together=len(rows) > 1)
        return {row.id: _standstill(row) for row in found}

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


def _retried(database: Database) -> Change:
    """Return the change of what failed: another try at once, if it is not past its expiry."""
    tables = database.tables
    messages, now = tables.messages, database_now()
    return Change(
        database.backend,
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

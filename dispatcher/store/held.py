"""What those who decide about unknown outcomes need: find what is held, release it, drop it."""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import Connection, Row, Update, case, select, update

from dispatcher.errors import MessageNotFound
from dispatcher.message import Message, Status
from dispatcher.store.database import Database
from dispatcher.store.instants import database_now
from dispatcher.store.messages import to_message

DROPPED = "dropped: the outcome of its last try is unknown, it may have been sent"


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
        # Nothing held has a claim, so MariaDB and MySQL read the ids, in order, in the index of
        # claims; asked for whole rows, they would rather read all messages from the oldest on.
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
        rows = self._database.run(lambda connection: connection.execute(query).all())
        return [to_message(row) for row in rows]

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
        return self._changed(message_id, statement)

    def drop(self, message_id: UUID) -> Message:
        """Give a held message up; return it as it now stands. Raises MessageNotFound."""
        messages = self._tables.messages
        statement = (
            update(messages)
            .where(messages.c.id == message_id, self._is_held)
            .values(status=Status.FAILED.value, finished_at=database_now(), last_error=DROPPED)
        )
        return self._changed(message_id, statement)

    def _changed(self, message_id: UUID, statement: Update) -> Message:
        tables = self._tables
        messages = tables.messages
        query = select(*tables.message_columns).where(
            messages.c.id == message_id, tables.is_message
        )

        def work(connection: Connection) -> Row[tuple[object, ...]] | None:
            connection.execute(statement)
            return connection.execute(query).one_or_none()

        row = self._database.transact(work)
        if row is None:
            raise MessageNotFound(message_id)
        return to_message(row)

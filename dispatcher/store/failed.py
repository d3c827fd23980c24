"""What those who give failed messages another round need."""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from sqlalchemy import exists, select, update

from dispatcher.errors import MessageNotFound
from dispatcher.message import Message, Outcome, Status
from dispatcher.store.database import Database
from dispatcher.store.instants import database_now
from dispatcher.store.messages import MESSAGE_COLUMNS, to_message
from dispatcher.store.schema import IS_MESSAGE, TOLD_ANEW, attempts, has_status, messages

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

    def look(self, message_id: UUID) -> Standstill:
        """Return how a message stands. Raises MessageNotFound."""
        unknown = exists().where(
            attempts.c.message_id == messages.c.id,
            attempts.c.token == messages.c.claim_token,
            attempts.c.outcome == Outcome.UNKNOWN.value,
        )
        query = select(
            *MESSAGE_COLUMNS,
            messages.c.claim_token,
            unknown.label("is_unknown"),
        ).where(messages.c.id == message_id, IS_MESSAGE)
        row = self._database.run(lambda connection: connection.execute(query).one_or_none())
        if row is None:
            raise MessageNotFound(message_id)
        return Standstill(to_message(row), row.claim_token, bool(row.is_unknown))

    def retry(self, found: Standstill, *, tries: int) -> Standstill:
        """Give a failed message so many tries more, the first one at once.

        Only if it is as it was found, and not past its expiry; return how it now stands. Raises
        MessageNotFound.
        """
        now = database_now()
        message = found.message
        statement = (
            update(messages)
            .where(
                messages.c.id == message.id,
                has_status(Status.FAILED),
                messages.c.claim_token == found.token,
                (messages.c.expires_at.is_(None)) | (messages.c.expires_at > now),
            )
            .values(
                status=Status.SCHEDULED.value,
                finished_at=None,
                next_attempt_at=now,
                enqueue_at=now,
                max_attempts=min(message.attempt_count + tries, _MOST_ATTEMPTS),
                told=TOLD_ANEW,
            )
        )
        self._database.run(lambda connection: connection.execute(statement))
        return self.look(message.id)

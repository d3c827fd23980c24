"""What those who submit need: add, read, cancel."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, Engine, Insert, Row, Update, delete, select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from dispatcher.errors import MessageNotFound, OutcomeUnknown, StoreUnavailable, Suppressed
from dispatcher.message import Attempt, Body, Message, Outcome, Status, dump_json
from dispatcher.store.database import (
    Database,
    Unanswered,
    cause,
    is_disconnect,
    unavailable,
    worth_another_try,
)
from dispatcher.store.given_up import GivenUp
from dispatcher.store.instants import database_now, to_length_ms
from dispatcher.store.once import insert_if_wanted, unless_there
from dispatcher.store.schema import IS_MESSAGE, VOID, attempts, has_status, messages
from dispatcher.store.suppressions import is_suppressed

MESSAGE_COLUMNS = tuple(messages.c[name] for name in Message.__dataclass_fields__)
MOVABLE_COLUMNS = (*MESSAGE_COLUMNS, messages.c.move_token, database_now().label("read_at"))
_WRITTEN = (
    "id", "channel", "recipient", "scope", "body", "send_at", "next_attempt_at", "enqueue_at",
    "expires_at", "status", "attempt_count", "max_attempts", "claim_token", "reserved",
    "idempotency_key", "fingerprint", "created_at", "scopes", "zone", "quiet_hours", "on_unknown",
    "expire_after", "asked_at", "trace", "status_url", "told", "enqueued_at",
)  # fmt: skip
"""The columns of a new message, in the order of the table, in which they are written."""
_ADD_TRIES = 3


class Movable(NamedTuple):
    """A message, and what its move is guarded by.

    ``token`` rises whenever its time changes, or moves are barred. It was read at ``read_at``, by
    the database's clock.
    """

    message: Message
    token: int
    read_at: datetime


class Messages:
    """Messages by id and by idempotency key."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._is_postgres = database.url.get_backend_name() == "postgresql"
        insert = insert_if_wanted(database.engine.dialect.name, _WRITTEN)
        self._insert = insert.execution_options(preserve_rowcount=True)
        self._written = _written(insert, database.engine) if self._is_postgres else b""

    def add(
        self,
        message: Message,
        *,
        enqueue_at: datetime,
        fingerprint: str | None,
        body_json: str | None = None,
        status_url: str | None = None,
    ) -> Message:
        """Store ``message`` and return what is stored. ``body_json`` is its body, if at hand.

        ``status_url`` is told what becomes of it.

        That is another message when its idempotency key was there before. When the line breaks
        the insert is run again, which does nothing if the first one was done; so the answer is
        read back from state. Raises StoreUnavailable when nothing was stored, Suppressed when its
        recipient has opted out, GivenUp when its place was given back before, OutcomeUnknown when
        that cannot be found out.
        """
        unknown = False
        if self._is_postgres:
            try:
                text = dump_json(message.body) if body_json is None else body_json
                if self._insert_quickly(message, enqueue_at, fingerprint, text, status_url):
                    return message
            except Unanswered as fault:
                unknown = fault.perhaps_done
        row = to_row(message, enqueue_at=enqueue_at, fingerprint=fingerprint, status_url=status_url)
        for tries_left in reversed(range(_ADD_TRIES - unknown)):
            asked = False
            try:
                with self._database.engine.connect() as connection:
                    asked = True
                    if self._is_new(connection, row):
                        return message
                    stored = self._stored(connection, message)
                if stored is not None:
                    return stored
            except (DBAPIError, PoolTimeout) as error:
                broken = asked and isinstance(error, DBAPIError) and is_disconnect(error)
                unknown = unknown or broken
                if tries_left and asked and worth_another_try(error):
                    continue
                failure = unavailable(error)
                if unknown:
                    raise OutcomeUnknown(failure.reason, message.id) from cause(error)
                raise failure from cause(error)
        raise StoreUnavailable("the idempotency key was freed and taken again and again")

    def get(self, message_id: UUID) -> Message:
        """Return a message. Raises MessageNotFound."""
        query = select(*MESSAGE_COLUMNS).where(messages.c.id == message_id, IS_MESSAGE)
        row = self._database.run(lambda connection: connection.execute(query).one_or_none())
        if row is None:
            raise MessageNotFound(message_id)
        return to_message(row)

    def with_key(self, idempotency_key: str) -> tuple[Message, str] | None:
        """Return the message that has the key, and its fingerprint."""
        query = select(*MESSAGE_COLUMNS, messages.c.fingerprint).where(
            messages.c.idempotency_key == idempotency_key
        )
        row = self._database.run(lambda connection: connection.execute(query).one_or_none())
        return (to_message(row), row.fingerprint) if row is not None else None

    def attempts(self, message_id: UUID) -> list[Attempt]:
        """Return the tries of a message, first one first."""
        query = (
            select(attempts).where(attempts.c.message_id == message_id).order_by(attempts.c.token)
        )
        rows = self._database.run(lambda connection: connection.execute(query).all())
        return [to_attempt(row) for row in rows]

    def movable(self, message_id: UUID) -> Movable:
        """Return a message with what its move is to be guarded by. Raises MessageNotFound."""
        return self._changed(message_id, None)

    def cancel(self, message_id: UUID) -> Message:
        """Cancel a message if it is still scheduled; return it as it now stands.

        Raises MessageNotFound. The caller reads from the status whether it is cancelled.
        """
        statement = (
            update(messages)
            .where(messages.c.id == message_id, has_status(Status.SCHEDULED))
            .values(status=Status.CANCELLED.value, finished_at=database_now())
        )
        return self._changed(message_id, statement).message

    def move(
        self,
        found: Movable,
        *,
        within: timedelta,
        send_at: datetime,
        next_attempt_at: datetime | None = None,
        zone: str | None,
        expires_at: datetime | None,
        expire_after: timedelta | None,
        asked_at: datetime | None,
        enqueue_at: datetime,
    ) -> Movable:
        """Give a message another time if nobody has moved it since it was found, or barred that.

        And no later than ``within`` after that: its place is held for no longer. ``zone`` is what
        the new time was judged by. The next try is at that time unless ``next_attempt_at`` says
        otherwise. Return the message as it now stands. Raises MessageNotFound.
        """
        due_at = next_attempt_at or send_at
        # The sweep looks at it before it is due, unless whoever moves it gives it to Celery.
        enqueued = {"enqueued_at": database_now()} if enqueue_at > due_at else {}
        statement = (
            update(messages)
            .where(
                messages.c.id == found.message.id,
                has_status(Status.SCHEDULED),
                messages.c.move_token == found.token,
                database_now() <= found.read_at + within,
            )
            .values(
                send_at=send_at,
                next_attempt_at=due_at,
                enqueue_at=enqueue_at,
                zone=zone,
                expires_at=expires_at,
                expire_after=expire_after,
                asked_at=asked_at,
                move_token=messages.c.move_token + 1,
                **enqueued,
            )
        )
        return self._changed(found.message.id, statement)

    def update(self, message_id: UUID, *, body: Body) -> Message:
        """Give a message another body if it is still scheduled; return it as it now stands.

        Raises MessageNotFound.
        """
        statement = (
            update(messages)
            .where(messages.c.id == message_id, has_status(Status.SCHEDULED))
            .values(body=body)
        )
        return self._changed(message_id, statement).message

    def _changed(self, message_id: UUID, statement: Update | None) -> Movable:
        """Run a guarded statement, then read what is there: it may have been run before."""
        query = select(*MOVABLE_COLUMNS).where(messages.c.id == message_id, IS_MESSAGE)

        def work(connection: Connection) -> Row[Any] | None:
            if statement is not None:
                connection.execute(statement)
            return connection.execute(query).one_or_none()

        row = self._database.run(work)
        if row is None:
            raise MessageNotFound(message_id)
        return to_movable(row)

    def remove(self, message_id: UUID) -> bool:
        """Delete a message that nobody has been told of, if it is still scheduled.

        Return whether it is gone.
        """
        statement = delete(messages).where(
            messages.c.id == message_id, has_status(Status.SCHEDULED)
        )
        query = select(messages.c.id).where(messages.c.id == message_id)

        def work(connection: Connection) -> bool:
            connection.execute(statement)
            return connection.execute(query).one_or_none() is None

        return self._database.run(work)

    def enqueue_again(self, message_ids: Sequence[UUID]) -> None:
        """Let the sweep hand these over at its next turn, because their tasks are lost."""
        statement = (
            update(messages)
            .where(
                messages.c.id.in_(message_ids), has_status(Status.SCHEDULED)
            )
            .values(enqueue_at=database_now(), enqueued_at=None)
        )  # fmt: skip
        self._database.run(lambda connection: connection.execute(statement))

    def _is_new(self, connection: Connection, row: dict[str, Any]) -> bool:
        new = {f"new_{name}": row[name] for name in _WRITTEN}
        return unless_there(lambda: connection.execute(self._insert, new).rowcount == 1)

    def _insert_quickly(
        self,
        message: Message,
        enqueue_at: datetime,
        fingerprint: str | None,
        body_json: str,
        status_url: str | None,
    ) -> bool:
        """Insert a row past SQLAlchemy, which takes as long as the driver itself.

        False where it was there before, or its recipient has opted out. Raises Unanswered when it
        went wrong: the ordinary way then says why.
        """
        from dispatcher.store import postgres  # noqa: PLC0415 - its driver is an extra

        values = (
            message.id, message.channel, message.recipient, message.scope, body_json,
            message.send_at, message.next_attempt_at, enqueue_at, message.expires_at,
            message.status.value, message.attempt_count, message.max_attempts, 0, True,
            message.idempotency_key, fingerprint, message.created_at,
            dump_json(message.scopes) if message.scopes else None, message.zone,
            message.quiet_hours, message.on_unknown,
            None if message.expire_after is None else to_length_ms(message.expire_after),
            message.asked_at, message.trace, status_url, told_at_first(status_url),
            message.enqueued_at,
            message.recipient, message.channel,
        )  # fmt: skip
        return postgres.execute(self._database.engine, self._written, values) == 1

    def _stored(self, connection: Connection, message: Message) -> Message | None:
        query = select(*MESSAGE_COLUMNS)
        mine = connection.execute(query.where(messages.c.id == message.id)).one_or_none()
        if mine is None and message.idempotency_key is not None:
            key = messages.c.idempotency_key == message.idempotency_key
            mine = connection.execute(query.where(key)).one_or_none()
        if mine is not None and mine.status == VOID:
            raise GivenUp
        if mine is None and is_suppressed(connection, message.recipient, message.channel):
            raise Suppressed(message.channel)
        return to_message(mine) if mine is not None else None


def _written(insert: Insert, engine: Engine) -> bytes:
    """Return the statement that inserts the columns of ``_WRITTEN``, given by their places.

    The last two are recipient and channel, by which it looks whether it is wanted.
    """
    text = str(insert.compile(engine))
    for name in _WRITTEN:
        text = text.replace(f"%(new_{name})s", "%s")
    return text.encode()


def told_at_first(status_url: str | None) -> str | None:
    """Return what stands for the status last told of a new message; None where nobody asked."""
    return None if status_url is None else Status.SCHEDULED.value


def to_row(
    message: Message, *, enqueue_at: datetime, fingerprint: str | None, status_url: str | None
) -> dict[str, Any]:
    """Turn a message that nobody has claimed yet into the row that is inserted."""
    return {name: getattr(message, name) for name in Message.__dataclass_fields__} | {
        "status": message.status.value,
        "enqueue_at": enqueue_at,
        "claim_token": 0,
        "reserved": True,
        "fingerprint": fingerprint,
        "scopes": message.scopes or None,
        "status_url": status_url,
        "told": told_at_first(status_url),
    }


def to_message(row: Sequence[Any]) -> Message:
    """Turn a row that begins with the columns of a message into one."""
    values = dict(zip(Message.__dataclass_fields__, row, strict=False))
    values["status"] = Status(values["status"])
    values["scopes"] = values["scopes"] or {}
    return Message(**values)


def to_movable(row: Row[Any]) -> Movable:
    """Turn a row of ``MOVABLE_COLUMNS``, and perhaps more, into what they tell."""
    return Movable(to_message(row), row.move_token, row.read_at)


def to_attempt(row: Row[Any]) -> Attempt:
    """Turn a row of attempts into one."""
    values = dict(row._mapping)
    values["outcome"] = Outcome(values["outcome"]) if values["outcome"] else None
    return Attempt(**values)

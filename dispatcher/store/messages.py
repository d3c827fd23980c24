"""What those who submit need: add, read, cancel."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Insert,
    Row,
    Select,
    Update,
    case,
    select,
    update,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from dispatcher.errors import MessageNotFound, OutcomeUnknown, StoreUnavailable, Suppressed
from dispatcher.message import Attempt, Body, Message, Outcome, Status, dump_json
from dispatcher.store.changes import Change
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
from dispatcher.store.schema import VOID, Tables
from dispatcher.store.suppressions import is_suppressed

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


class NewTime(NamedTuple):
    """What a move writes into the row of a message that was ``found`` so.

    ``zone`` is what ``send_at`` was judged by; the next try is at ``next_attempt_at``.
    """

    found: Movable
    send_at: datetime
    next_attempt_at: datetime
    enqueue_at: datetime
    zone: str | None
    expires_at: datetime | None
    expire_after: timedelta | None
    asked_at: datetime | None


class Messages:
    """Messages by id and by idempotency key."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._tables = database.tables
        self._moved = moved(database.tables)
        self._is_postgres = database.url.get_backend_name() == "postgresql"
        insert = insert_if_wanted(database.tables, database.engine.dialect.name, _WRITTEN)
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
        tables = self._tables
        messages = tables.messages
        query = select(*tables.message_columns).where(
            messages.c.id == message_id, tables.is_message
        )
        row = self._database.run(lambda connection: connection.execute(query).one_or_none())
        if row is None:
            raise MessageNotFound(message_id)
        return to_message(row)

    def with_key(self, idempotency_key: str) -> tuple[Message, str] | None:
        """Return the message that has the key, and its fingerprint."""
        tables = self._tables
        messages = tables.messages
        query = select(*tables.message_columns, messages.c.fingerprint).where(
            messages.c.idempotency_key == idempotency_key
        )
        row = self._database.run(lambda connection: connection.execute(query).one_or_none())
        return (to_message(row), row.fingerprint) if row is not None else None

    def attempts(self, message_id: UUID) -> list[Attempt]:
        """Return the tries of a message, first one first."""
        attempts = self._tables.attempts
        query = (
            select(attempts).where(attempts.c.message_id == message_id).order_by(attempts.c.token)
        )
        rows = self._database.run(lambda connection: connection.execute(query).all())
        return [to_attempt(row) for row in rows]

    def movable(self, message_id: UUID) -> Movable:
        """Return a message with what its move is to be guarded by. Raises MessageNotFound."""
        found = self.movables([message_id]).get(message_id)
        if found is None:
            raise MessageNotFound(message_id)
        return found

    def movables(self, message_ids: Sequence[UUID]) -> dict[UUID, Movable]:
        """Return those of these messages that are stored, as :meth:`movable` does."""
        query = self._movables(message_ids)
        rows = self._database.run(lambda connection: connection.execute(query).all())
        return {row.id: to_movable(row) for row in rows}

    def cancelled(self, message_ids: Sequence[UUID]) -> list[Message]:
        """Return those of these messages that are cancelled."""
        tables = self._tables
        these = self._database.one_of(tables.messages.c.id, message_ids)
        query = select(*tables.message_columns).where(these, tables.has_status(Status.CANCELLED))
        rows = self._database.run(lambda connection: connection.execute(query).all())
        return [to_message(row) for row in rows]

    def cancel(self, message_id: UUID) -> Message:
        """Cancel a message if it is still scheduled; return it as it now stands.

        Raises MessageNotFound. The caller reads from the status whether it is cancelled.
        """
        tables = self._tables
        messages = tables.messages
        statement = (
            update(messages)
            .where(messages.c.id == message_id, tables.has_status(Status.SCHEDULED))
            .values(status=Status.CANCELLED.value, finished_at=database_now())
        )
        return self._changed(message_id, statement)

    def move(self, moves: Sequence[NewTime], *, within: timedelta) -> dict[UUID, Movable]:
        """Give messages other times, each if nobody moved it since it was found, or barred that.

        And no later than ``within`` after that: its place is held for no longer. Return those that
        are stored as they now stand. All are changed in one transaction.
        """
        rows: list[dict[str, Any]] = [
            {
                "id": each.found.message.id,
                "token": each.found.token,
                "until": each.found.read_at + within,
                **{name: getattr(each, name) for name in NewTime._fields[1:]},
            }
            for each in sorted(moves, key=lambda each: each.found.message.id)
        ]
        query = self._movables([row["id"] for row in rows])

        def work(connection: Connection) -> Sequence[Row[Any]]:
            self._moved.run(connection, rows)
            return connection.execute(query).all()

        run = self._database.transact if len(rows) > 1 else self._database.run
        return {row.id: to_movable(row) for row in run(work)}

    def _movables(self, message_ids: Sequence[UUID]) -> Select[Any]:
        tables = self._tables
        these = self._database.one_of(tables.messages.c.id, message_ids)
        return select(*movable_columns(tables)).where(these, tables.is_message)

    def update(self, message_id: UUID, *, body: Body) -> Message:
        """Give a message another body if it is still scheduled; return it as it now stands.

        Raises MessageNotFound.
        """
        tables = self._tables
        messages = tables.messages
        statement = (
            update(messages)
            .where(messages.c.id == message_id, tables.has_status(Status.SCHEDULED))
            .values(body=body)
        )
        return self._changed(message_id, statement)

    def _changed(self, message_id: UUID, statement: Update) -> Message:
        """Run a guarded statement, then read what is there: it may have been run before."""
        tables = self._tables
        these = tables.messages.c.id == message_id
        query = select(*tables.message_columns).where(these, tables.is_message)

        def work(connection: Connection) -> Row[Any] | None:
            connection.execute(statement)
            return connection.execute(query).one_or_none()

        row = self._database.run(work)
        if row is None:
            raise MessageNotFound(message_id)
        return to_message(row)

    def take_back(self, message: Message) -> bool:
        """Take a message out of the schedule that lost its reservation while it was stored.

        Return whether that is so; it is not once the message was claimed. Without an idempotency
        key its submit alone knows of it, so the row is no message any more. With a key a duplicate
        submit may have returned it, so it is cancelled, and the key is free for the next submit.
        The sweep gives the reservation back.
        """
        tables = self._tables
        messages = tables.messages
        values: dict[str, Any] = {"status": Status.CANCELLED.value}
        if message.idempotency_key is None:
            values = {"status": VOID, "body": {}, "status_url": None, "told": None}
        statement = (
            update(messages)
            .where(messages.c.id == message.id, tables.has_status(Status.SCHEDULED))
            .values(
                **values, idempotency_key=None, fingerprint=None, finished_at=database_now()
            )
        )  # fmt: skip
        query = select(messages.c.status).where(messages.c.id == message.id)

        def work(connection: Connection) -> bool:
            connection.execute(statement)
            status = connection.execute(query).scalar_one_or_none()
            return status in (None, VOID, Status.CANCELLED.value)

        return self._database.run(work)

    def enqueue_again(self, message_ids: Sequence[UUID]) -> None:
        """Let the sweep hand these over at its next turn, because their tasks are lost."""
        tables = self._tables
        messages = tables.messages
        statement = (
            update(messages)
            .where(
                messages.c.id.in_(message_ids), tables.has_status(Status.SCHEDULED)
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
        tables = self._tables
        messages = tables.messages
        query = select(*tables.message_columns)
        mine = connection.execute(query.where(messages.c.id == message.id)).one_or_none()
        if mine is None and message.idempotency_key is not None:
            key = messages.c.idempotency_key == message.idempotency_key
            mine = connection.execute(query.where(key)).one_or_none()
        if mine is not None and (mine.status == VOID or _lacks_key(mine, message)):
            raise GivenUp  # or taken back
        if mine is None and is_suppressed(tables, connection, message.recipient, message.channel):
            raise Suppressed(message.channel)
        return to_message(mine) if mine is not None else None


def _lacks_key(row: Row[Any], message: Message) -> bool:
    return row.idempotency_key is None and message.idempotency_key is not None


def _written(insert: Insert, engine: Engine) -> bytes:
    """Return the statement that inserts the columns of ``_WRITTEN``, given by their places.

    The last two are recipient and channel, by which it looks whether it is wanted.
    """
    text = str(insert.compile(engine))
    for name in _WRITTEN:
        text = text.replace(f"%(new_{name})s", "%s")
    return text.encode()


def moved(tables: Tables) -> Change:
    """Return the change of a time, if nobody moved it since its token was read, or barred that.

    The sweep looks at it before it is due, unless whoever moves it gives it to Celery.
    """
    messages = tables.messages
    return Change(
        lambda given: update(messages)
        .where(
            messages.c.id == given("id"),
            messages.c.move_token == given("token"),
            tables.has_status(Status.SCHEDULED),
            given("until") >= database_now(),
        )
        .values(
            send_at=given("send_at"),
            next_attempt_at=given("next_attempt_at"),
            enqueue_at=given("enqueue_at"),
            zone=given("zone"),
            expires_at=given("expires_at"),
            expire_after=given("expire_after"),
            asked_at=given("asked_at"),
            move_token=messages.c.move_token + 1,
            enqueued_at=case(
                (given("enqueue_at") > given("next_attempt_at"), database_now()),
                else_=messages.c.enqueued_at,
            ),
        ),
        "until", "send_at", "next_attempt_at", "enqueue_at", "zone", "expires_at", "expire_after",
        "asked_at",
    )  # fmt: skip


def movable_columns(tables: Tables) -> tuple[ColumnElement[Any], ...]:
    """Return the columns of a message, and what its move is guarded by."""
    return (
        *tables.message_columns, tables.messages.c.move_token, database_now().label("read_at")
    )  # fmt: skip


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
    """Turn a row of :func:`movable_columns`, and perhaps more, into what they tell."""
    return Movable(to_message(row), row.move_token, row.read_at)


def to_attempt(row: Row[Any]) -> Attempt:
    """Turn a row of attempts into one."""
    values = dict(row._mapping)
    values["outcome"] = Outcome(values["outcome"]) if values["outcome"] else None
    return Attempt(**values)

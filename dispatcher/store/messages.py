"""Messages by id and by idempotency key: add, read, change, cancel."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    Update,
    bindparam,
    case,
    select,
    update,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from dispatcher.errors import MessageNotFound, OutcomeUnknown, StoreUnavailable, Suppressed
from dispatcher.message import Attempt, Body, Message, Status, dump_json
from dispatcher.store.changes import Change
from dispatcher.store.database import Database
from dispatcher.store.engines import Unanswered
from dispatcher.store.engines.errors import cause, is_disconnect, unavailable, worth_another_try
from dispatcher.store.engines.types import database_now
from dispatcher.store.orphans import GivenUp
from dispatcher.store.rows import (
    WRITTEN,
    Addition,
    Movable,
    movable_columns,
    to_attempt,
    to_message,
    to_movable,
    to_row,
    to_values,
)
from dispatcher.store.schema import TAKEN_BACK, VOID, Tables
from dispatcher.store.suppressions import is_suppressed

_ADD_TRIES = 3


class NewTime(NamedTuple):
    """The values that a move writes into the row of the message that was ``found``.

    ``zone`` is the zone by which ``send_at`` was judged; the next attempt is at
    ``next_attempt_at``.
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
        self._moved = moved(database)
        messages = database.tables.messages
        self._given = [f"new_{name}" for name in WRITTEN]
        given = {name: bindparam(f"new_{name}", type_=messages.c[name].type) for name in WRITTEN}
        wanted = ~database.tables.suppressed(given["recipient"], given["channel"])
        row = select(*given.values()).where(wanted)
        self._insert = database.backend.insert_if_absent(messages, WRITTEN, row)
        self._insert_directly = database.backend.direct(
            database.engine, self._insert.returning(messages.c.id)
        )

    def add(
        self,
        message: Message,
        *,
        enqueue_at: datetime,
        fingerprint: str | None,
        body_json: str | None = None,
        status_url: str | None = None,
    ) -> Message:
        """Store ``message`` and return the stored message.

        ``body_json`` is its body, if already encoded; ``status_url`` receives status webhooks.
        It returns another message where that has the idempotency key, and ``message`` itself where
        this call stored it, or perhaps did. When the connection breaks,
        the insert is run again, which does nothing if the first one was done; so the answer is
        read back from state. Raises StoreUnavailable when nothing was stored, Suppressed when its
        recipient has opted out, GivenUp when its reservation was released before, OutcomeUnknown
        when it is not known whether it was stored.
        """
        unknown = False
        if self._insert_directly is not None:
            text = dump_json(message.body) if body_json is None else body_json
            values = to_values(Addition(message, enqueue_at, fingerprint, text, status_url))
            try:
                if self._insert_directly(dict(zip(self._given, values, strict=True))):
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
                    # Perhaps the row is this call's own, whose answer was lost.
                    return message if unknown and stored.id == message.id else stored
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
        return _only(message_id, self._database.read(message_of(self._tables, message_id)))

    def with_key(self, idempotency_key: str) -> tuple[Message, str] | None:
        """Return the message that has the key, and its fingerprint."""
        for row in self._database.read(having_key(self._tables, [idempotency_key])):
            return to_message(row), row.fingerprint
        return None

    def attempts(self, message_id: UUID) -> list[Attempt]:
        """Return the attempts of a message, first one first."""
        attempts = self._tables.attempts
        query = (
            select(attempts).where(attempts.c.message_id == message_id).order_by(attempts.c.token)
        )
        return [to_attempt(row) for row in self._database.read(query)]

    def movable(self, message_id: UUID) -> Movable:
        """Return a message with the guard of its move. Raises MessageNotFound."""
        found = self.movables([message_id]).get(message_id)
        if found is None:
            raise MessageNotFound(message_id)
        return found

    def movables(self, message_ids: Sequence[UUID]) -> dict[UUID, Movable]:
        """Return those of these messages that are stored, as :meth:`movable` does."""
        rows = self._database.read(self._movables(message_ids))
        return {row.id: to_movable(row) for row in rows}

    def cancelled(self, message_ids: Sequence[UUID]) -> list[Message]:
        """Return those of these messages that are cancelled."""
        tables = self._tables
        these = self._database.one_of(tables.messages.c.id, message_ids)
        query = select(*tables.message_columns).where(these, tables.has_status(Status.CANCELLED))
        return [to_message(row) for row in self._database.read(query)]

    def cancel(self, message_id: UUID) -> Message:
        """Cancel a message if it is still scheduled; return it as it now is.

        Raises MessageNotFound. Its status says whether it is cancelled.
        """
        these = self._tables.messages.c.id == message_id
        return changed(self._database, message_id, cancellation(self._tables, these))

    def move(self, moves: Sequence[NewTime], *, within: timedelta) -> dict[UUID, Movable]:
        """Give messages other times, each unless its move token has changed since it was read.

        And no later than ``within`` after it was read: its new time is held for no longer. Return
        those that are stored, as they now are. All are changed in one transaction.
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
        read = self._movables([row["id"] for row in rows])
        change = partial(self._moved.run, rows=rows)
        found = self._database.change(change, read, together=len(rows) > 1)
        return {row.id: to_movable(row) for row in found}

    def _movables(self, message_ids: Sequence[UUID]) -> Select[Any]:
        tables = self._tables
        these = self._database.one_of(tables.messages.c.id, message_ids)
        return select(*movable_columns(tables)).where(these, tables.is_message)

    def update(self, message_id: UUID, *, body: Body) -> Message:
        """Give a message another body if it is still scheduled; return it as it now is.

        Raises MessageNotFound.
        """
        tables = self._tables
        messages = tables.messages
        statement = (
            update(messages)
            .where(messages.c.id == message_id, tables.has_status(Status.SCHEDULED))
            .values(body=body)
        )
        return changed(self._database, message_id, statement)

    def take_back(self, message: Message) -> bool:
        """Take back a message that lost its reservation while it was stored.

        Return whether it was taken back; it is not once it was claimed. Without an idempotency key
        no other call has returned it, so its row becomes void, without recipient, body and trace.
        With a key a duplicate submit may have returned it, so it is cancelled, and the key is free
        for the next submit. Reconcile releases the reservation.
        """
        tables = self._tables
        messages = tables.messages
        values: dict[str, Any] = {"status": Status.CANCELLED.value, "last_error": TAKEN_BACK}
        if message.idempotency_key is None:
            values = {
                "status": VOID, "recipient": "", "body": {}, "trace": None, "status_url": None,
                "told": None,
            }  # fmt: skip
        statement = (
            update(messages)
            .where(messages.c.id == message.id, tables.has_status(Status.SCHEDULED))
            .values(
                **values, idempotency_key=None, fingerprint=None, finished_at=database_now()
            )
        )  # fmt: skip
        query = select(messages.c.status).where(messages.c.id == message.id)
        rows = self._database.change(statement, query)
        return all(row.status in {VOID, Status.CANCELLED.value} for row in rows)

    def enqueue_again(self, message_ids: Sequence[UUID]) -> None:
        """Let maintenance enqueue these at its next run, because their tasks are lost."""
        tables = self._tables
        messages = tables.messages
        statement = (
            update(messages)
            .where(
                messages.c.id.in_(message_ids), tables.has_status(Status.SCHEDULED)
            )
            .values(enqueue_at=database_now(), enqueued_at=None)
        )  # fmt: skip
        self._database.execute(statement)

    def _is_new(self, connection: Connection, row: dict[str, Any]) -> bool:
        new = {f"new_{name}": row[name] for name in WRITTEN}
        return self._database.backend.is_inserted(connection, self._insert, new)

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


def message_of(tables: Tables, message_id: UUID) -> Select[Any]:
    """Return the query of one message."""
    these = tables.messages.c.id == message_id
    return select(*tables.message_columns).where(these, tables.is_message)


def having_key(tables: Tables, keys: Sequence[str]) -> Select[Any]:
    """Return the query of the messages that have one of these keys, with their fingerprints."""
    messages = tables.messages
    query = select(*tables.message_columns, messages.c.fingerprint)
    return query.where(messages.c.idempotency_key.in_(keys))


def cancellation(
    tables: Tables, these: ColumnElement[bool], *, because: str | None = None
) -> Update:
    """Return the statement that cancels those of ``these`` that are still scheduled.

    ``because`` becomes their ``last_error``.
    """
    messages = tables.messages
    reason = {} if because is None else {"last_error": because}
    return (
        update(messages)
        .where(these, tables.has_status(Status.SCHEDULED))
        .values(status=Status.CANCELLED.value, finished_at=database_now(), **reason)
    )


def changed(database: Database, message_id: UUID, change: Update) -> Message:
    """Change one message, if its guard allows it; return it as it now is.

    Raises MessageNotFound.
    """
    rows = database.change(change, message_of(database.tables, message_id))
    return _only(message_id, rows)


def _only(message_id: UUID, rows: Sequence[Row[Any]]) -> Message:
    if not rows:
        raise MessageNotFound(message_id)
    return to_message(rows[0])


def moved(database: Database) -> Change:
    """Return the change of a time, unless the move token has changed since it was read.

    Maintenance enqueues the message before it is due, unless the caller does.
    """
    tables = database.tables
    messages = tables.messages
    return Change(
        database.backend,
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

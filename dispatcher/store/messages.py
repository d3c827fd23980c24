"""Messages by id and by idempotency key: add, read, change and cancel one, or many together."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Connection,
    Delete,
    Insert,
    Row,
    Select,
    Table,
    Update,
    and_,
    bindparam,
    case,
    delete,
    exists,
    func,
    insert,
    literal_column,
    or_,
    select,
    update,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from dispatcher.errors import MessageNotFound, OutcomeUnknown, StoreUnavailable, Suppressed
from dispatcher.message import Attempt, Body, Message, Status, dump_json
from dispatcher.store.changes import Change, Given
from dispatcher.store.database import Database
from dispatcher.store.engines import Prepared, Unanswered
from dispatcher.store.engines.errors import (
    cause,
    translated,
    unavailable,
    worth_another_try,
)
from dispatcher.store.engines.types import database_now, later
from dispatcher.store.schema import (
    AS_NAMED,
    CLOCK_STEP,
    KEYED,
    TAKEN_BACK,
    VOID,
    WRITTEN,
    Addition,
    Movable,
    Tables,
    to_attempt,
    to_keyed,
    to_message,
    to_movable,
    to_values,
)
from dispatcher.store.suppressions import is_suppressed

log = logging.getLogger(__name__)

_ADD_TRIES = 3
_ROWS_AT_ONCE = 1_000


class GivenUp(StoreUnavailable):
    """The reservation was released before the message was stored: it cannot be stored any more."""

    def __init__(self) -> None:
        super().__init__("storing it took longer than its reservation lasted", refused=True)


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


class _NotInserted(Exception):
    """The id of a message, or its idempotency key, is stored already, or it is not wanted."""


class _New:
    """The statements that store one new message.

    ``names`` are those of their values: the columns of a message, then its fingerprint.
    """

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._given = {
            name: bindparam(f"new_{name}", type_=tables.messages.c[name].type) for name in WRITTEN
        }
        self._fingerprint = bindparam("new_fingerprint", type_=tables.keys.c.fingerprint.type)
        self.names = [each.key for each in (*self._given.values(), self._fingerprint)]
        self._is_wanted = ~tables.suppressed(self._given["recipient"], self._given["channel"])

    def message(self, insert_if_absent: Callable[[Table], Insert]) -> Insert:
        """Return the statement that stores a message whose id is new, if it is wanted."""
        row = select(*self._given.values()).where(self._is_wanted)
        return insert_if_absent(self._tables.messages).from_select(WRITTEN, row)

    def keyed(self, insert_if_absent: Callable[[Table], Insert]) -> Select[Any]:
        """Return the statement that also stores its key; it returns a row if both are stored.

        Nothing is stored where the key is. An id that another transaction stores meanwhile is an
        error, so that no key is stored without its message.
        """
        messages, keys, given = self._tables.messages, self._tables.keys, self._given
        # A message ends after it was made: earlier days are not looked at. The length is written
        # out, because a prepared statement has no other values.
        step: ColumnElement[float] = literal_column(f"-{CLOCK_STEP.total_seconds()}")
        later_than_made = messages.c.finished_at >= later(given["created_at"], step)
        may_be_it = or_(messages.c.finished_at.is_(None), later_than_made)
        is_new = ~exists().where(messages.c.id == given["id"], may_be_it)
        values = (given["idempotency_key"], given["id"], self._fingerprint)
        row = select(*values).where(self._is_wanted, is_new)
        key = insert_if_absent(keys).from_select(KEYED, row).returning(keys.c.message_id)
        of_key = select(*given.values()).select_from(key.cte("keyed"))
        added = insert(messages).from_select(WRITTEN, of_key).returning(messages.c.id)
        return select(added.cte("added").c.id)


class Messages:
    """Messages by id and by idempotency key."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._tables = database.tables
        self._moved = moved(database)
        self._movable = select(*self._tables.movable_columns).where(self._tables.is_message)
        new = _New(database.tables)
        insert_if_absent, engine = database.backend.insert_if_absent, database.engine
        self._insert = Prepared(engine, new.message(insert_if_absent), new.names)
        self._insert_key = Prepared(engine, insert_if_absent(database.tables.keys), KEYED)
        self._insert_directly = database.backend.direct_insert(engine, self._insert)
        self._insert_keyed_directly = database.backend.direct_insert(
            engine, Prepared(engine, new.keyed(insert_if_absent), new.names)
        )

    def add(
        self,
        message: Message,
        *,
        enqueue_at: datetime,
        fingerprint: str | None,
        body_json: str | None = None,
        status_url: str | None = None,
        perhaps_stored: bool = False,
    ) -> Message:
        """Store ``message`` and return the stored message.

        ``body_json`` is its body, if already encoded; ``status_url`` receives status webhooks.
        ``perhaps_stored``: a call before may have stored it. The stored one is another where that
        has the idempotency key, and ``message`` itself where this call stored it, or perhaps did:
        when the connection breaks, the INSERT is run again, and the answer is read back from state.
        Raises StoreUnavailable when nothing was stored,
        Suppressed when its recipient has opted out, GivenUp when its reservation was released
        before, OutcomeUnknown when it is not known whether it was stored.
        """
        unknown = False
        text = dump_json(message.body) if body_json is None else body_json
        addition = Addition(message, enqueue_at, fingerprint, text, status_url)
        keyed = message.idempotency_key is not None
        insert_directly = self._insert_keyed_directly if keyed else self._insert_directly
        if insert_directly is not None and not perhaps_stored:
            try:
                if insert_directly((*to_values(addition), fingerprint)):
                    return message
            except Unanswered as fault:
                unknown = fault.perhaps_done
        for tries_left in reversed(range(_ADD_TRIES - unknown)):
            asked = False
            try:
                with self._database.engine.connect() as connection:
                    asked = True
                    if self._is_inserted(connection, addition):
                        return message
                    stored = self._stored(connection, message)
                if stored is not None:
                    # Perhaps the row is this call's own, whose answer was lost.
                    return message if unknown and stored.id == message.id else stored
            except (DBAPIError, PoolTimeout) as error:
                broken = asked and isinstance(error, DBAPIError) and error.connection_invalidated
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
        this = self._tables.messages.c.id == message_id
        return _only(message_id, self._database.read(self._tables.stored.where(this)))

    def with_key(self, idempotency_key: str) -> tuple[Message, str] | None:
        """Return the message that has the key, and its fingerprint."""
        for row in self._database.read(having_key(self._tables, idempotency_key)):
            return to_message(row), row.fingerprint
        return None

    def attempts(self, message_id: UUID) -> list[Attempt]:
        """Return the attempts of a message, first one first."""
        return attempts_of(self._database, message_id)

    def movable(self, message_id: UUID) -> Movable:
        """Return a message with the guard of its move. Raises MessageNotFound."""
        found = self.movables([message_id]).get(message_id)
        if found is None:
            raise MessageNotFound(message_id)
        return found

    def movables(self, message_ids: Sequence[UUID]) -> dict[UUID, Movable]:
        """Return those of these messages that are stored, as :meth:`movable` does."""
        query = self._movable.where(self._database.one_of(self._tables.messages.c.id, message_ids))
        return {row.id: to_movable(row) for row in self._database.read(query)}

    def cancelled(self, message_ids: Sequence[UUID]) -> list[Message]:
        """Return those of these messages that are cancelled."""
        tables = self._tables
        query = select(*tables.message_columns).where(tables.has_status(Status.CANCELLED))
        rows = self._database.read_of(query, tables.messages.c.id, message_ids)
        return [to_message(row) for row in rows]

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
        these = self._database.one_of(self._tables.messages.c.id, [row["id"] for row in rows])
        found = self._moved.run_and_read(self._database, rows, self._movable.where(these))
        return {row.id: to_movable(row) for row in found}

    def update(self, message_id: UUID, *, body: Body) -> Message:
        """Give a message another body if it is still scheduled; return it as it now is.

        Raises MessageNotFound.
        """
        messages = self._tables.messages
        these = (messages.c.id == message_id, self._tables.is_scheduled)
        return changed(self._database, message_id, update(messages).where(*these).values(body=body))

    def take_back(self, message: Message) -> bool:
        """Take back a message that lost its reservation while it was stored.

        Return whether it was taken back; it is not once it was claimed. Without an idempotency key
        no other call has returned it, so its row becomes void, without recipient, body and trace.
        With a key a duplicate submit may have returned it, so it is cancelled, and the key is free
        for the next submit. Reconcile releases the reservation.
        """
        messages = self._tables.messages
        values: dict[str, Any] = {
            "status": Status.CANCELLED.value,
            "last_error": TAKEN_BACK,
            "idempotency_key": None,
            "finished_at": database_now(),
        }
        if message.idempotency_key is None:
            values = {
                "status": VOID, "recipient": "", "body": {}, "trace": None, "status_url": None,
                "told": None, "next_attempt_at": database_now(),
            }  # fmt: skip
        this = messages.c.id == message.id
        statement = update(messages).where(this, self._tables.is_scheduled).values(**values)
        query = select(messages.c.status, messages.c.idempotency_key).where(this)

        key = message.idempotency_key

        def work(connection: Connection) -> bool:
            connection.execute(statement)
            rows = connection.execute(query).all()
            if key is not None and any(row.idempotency_key is None for row in rows):
                connection.execute(_free_key(self._tables, key, message.id))
            return all(row.status in {VOID, Status.CANCELLED.value} for row in rows)

        return self._database.run(work) if key is None else self._database.transact(work)

    def enqueue_again(self, message_ids: Sequence[UUID]) -> None:
        """Let maintenance enqueue these at its next run, because their tasks are lost."""
        messages = self._tables.messages
        these = (messages.c.id.in_(message_ids), self._tables.is_scheduled)
        again = update(messages).where(*these).values(enqueue_at=database_now(), enqueued_at=None)
        self._database.execute(again)

    def _is_inserted(self, connection: Connection, addition: Addition) -> bool:
        """Store a message and its key, both or none; return whether they were stored.

        Where a message that has ended lies in another partition, no key of this one sees it. So it
        is looked for once this one is inserted: nobody else can store it between.
        """
        backend, message = self._database.backend, addition.message
        key, values = message.idempotency_key, to_values(addition)
        if key is None and not backend.has_partitions:
            return backend.is_inserted(connection, self._insert, values)

        def work() -> None:
            if key is not None:
                given = to_keyed(addition)
                if not backend.is_inserted(connection, self._insert_key, given):
                    raise _NotInserted
            if not backend.is_inserted(connection, self._insert, values):
                raise _NotInserted
            if not backend.has_partitions:
                return
            if not is_stored_once(self._tables, connection, message.id):
                raise _NotInserted

        try:
            self._database.transact_on(connection, work)
        except _NotInserted:
            return False
        return True

    def _stored(self, connection: Connection, message: Message) -> Message | None:
        tables, key = self._tables, message.idempotency_key
        query = select(*tables.message_columns)
        mine = connection.execute(query.where(tables.messages.c.id == message.id)).one_or_none()
        if mine is None and key is not None:
            mine = connection.execute(having_key(tables, key)).one_or_none()
        if mine is None:
            if is_suppressed(tables, connection, message.recipient, message.channel):
                raise Suppressed(message.channel)
            if key is not None:
                free_key_without_message(tables, connection, key)
            return None
        lost_its_key = mine.idempotency_key is None and message.idempotency_key is not None
        if mine.status == VOID or lost_its_key:
            raise GivenUp  # or taken back
        return to_message(mine)


class BulkMessages:
    """Stores messages by the thousand: COPY on PostgreSQL, one transaction elsewhere."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._tables = database.tables
        engine, tables = database.engine, database.tables
        self._insert_rows = Prepared(engine, insert(tables.messages), WRITTEN)
        self._insert_keys = Prepared(engine, insert(tables.keys), KEYED)

    def add(self, additions: Iterable[Addition]) -> bool | None:
        """Store all of these messages or none; return whether they are stored.

        False where the database refused, for instance because a key exists: nothing is stored. None
        where the connection broke and they may be stored; then add them one by one.
        """
        every = list(additions)  # the work may be run again
        try:
            if self._database.backend.copies:
                self._copy(every)
            else:
                self._insert(every)
        except StoreUnavailable as error:
            log.warning(
                "batch of %d messages not stored together, storing each alone: %s",
                len(every), error,
            )  # fmt: skip
            return False if error.refused else None
        return True

    def has(self, message_ids: Sequence[UUID]) -> bool:
        """Return whether all of these messages are stored, and none was taken back.

        Check all, also of messages that are added together: a duplicate submit that uses the
        reservation of one may have stored that one alone, under the same id.
        """
        messages, error = self._tables.messages, self._tables.messages.c.last_error
        stored = and_(self._tables.is_message, or_(error.is_(None), error != TAKEN_BACK))
        query = select(messages.c.id).where(stored)
        rows = self._database.read_of(query, messages.c.id, message_ids)
        return {row.id for row in rows} == set(message_ids)

    def with_keys(self, keys: Sequence[str]) -> dict[str, tuple[Message, str]]:
        """Return the messages that have one of these idempotency keys, with their fingerprints."""
        query = _with_fingerprint(self._tables)
        rows = self._database.read_of(query, self._tables.keys.c.idempotency_key, keys)
        return {row.idempotency_key: (to_message(row), row.fingerprint) for row in rows}

    def these(self, message_ids: Sequence[UUID]) -> list[Message]:
        """Return those of these messages that are stored."""
        ids = self._tables.messages.c.id
        rows = self._database.read_of(self._tables.stored, ids, message_ids)
        return [to_message(row) for row in rows]

    def cancel(
        self, message_ids: Sequence[UUID], *, because: str | None = None
    ) -> dict[UUID, Message]:
        """Cancel those that are still scheduled; return all that are stored, as they now are.

        ``because`` becomes their ``last_error``.
        """
        tables = self._tables
        these = self._database.one_of(tables.messages.c.id, message_ids)
        change = cancellation(tables, these, because=because)
        rows = self._database.change(change, tables.stored.where(these))
        return {row.id: to_message(row) for row in rows}

    def _copy(self, additions: Sequence[Addition]) -> None:
        database, copy = self._database, self._database.backend.copy
        keyed = [to_keyed(each) for each in additions if each.message.idempotency_key is not None]

        def work() -> None:
            copy(connection, self._tables.messages, WRITTEN, map(to_values, additions))
            if keyed:
                copy(connection, self._tables.keys, KEYED, keyed)

        with translated(), database.engine.connect() as connection:
            if keyed:
                database.transact_on(connection, work)
            else:
                work()

    def _insert(self, additions: Sequence[Addition]) -> None:
        def work(connection: Connection) -> None:
            keyed = (each for each in additions if each.message.idempotency_key is not None)
            for statement, rows in (
                (self._insert_rows, map(to_values, additions)),
                (self._insert_keys, map(to_keyed, keyed)),
            ):
                while some := list(islice(rows, _ROWS_AT_ONCE)):
                    statement.run(connection, some)

        self._database.transact(work)


def attempts_of(database: Database, message_id: UUID) -> list[Attempt]:
    """Return the attempts of a message, first one first."""
    attempts = database.tables.attempts
    query = select(attempts).where(attempts.c.message_id == message_id).order_by(attempts.c.token)
    return [to_attempt(row) for row in database.read(query)]


def having_key(tables: Tables, key: str) -> Select[Any]:
    """Return the query of the message that has an idempotency key, with its fingerprint."""
    return _with_fingerprint(tables).where(tables.keys.c.idempotency_key == key)


def _with_fingerprint(tables: Tables) -> Select[Any]:
    messages, keys = tables.messages, tables.keys
    query = select(*tables.message_columns, keys.c.fingerprint)
    return query.select_from(keys).join(messages, messages.c.id == keys.c.message_id)


def _free_key(tables: Tables, key: str, message_id: UUID) -> Delete:
    """Return the statement that frees an idempotency key, if this message has it."""
    row = tables.keys.c
    return delete(tables.keys).where(row.idempotency_key == key, row.message_id == message_id)


def free_key_without_message(tables: Tables, connection: Connection, key: str) -> None:
    """Free an idempotency key whose message is deleted.

    Both are stored in one transaction, and no id is stored again: a key that one statement sees
    without its message will never have it again.
    """
    messages, keys = tables.messages, tables.keys
    has_message = exists().where(messages.c.id == keys.c.message_id)
    query = select(keys.c.message_id).where(keys.c.idempotency_key == key, ~has_message)
    for (message_id,) in connection.execute(query, execution_options=AS_NAMED).all():
        connection.execute(_free_key(tables, key, message_id), execution_options=AS_NAMED)


def is_stored_once(tables: Tables, connection: Connection, message_id: UUID) -> bool:
    """Return whether a message that was just inserted is the only one with its id."""
    same = select(func.count()).where(tables.messages.c.id == message_id)
    return connection.scalar(same, execution_options=AS_NAMED) == 1


def cancellation(
    tables: Tables, these: ColumnElement[bool], *, because: str | None = None
) -> Update:
    """Return the statement that cancels those of ``these`` that are still scheduled.

    ``because`` becomes their ``last_error``.
    """
    messages = tables.messages
    reason = {} if because is None else {"last_error": because}
    end = {"status": Status.CANCELLED.value, "finished_at": database_now()}
    return update(messages).where(these, tables.is_scheduled).values(**end, **reason)


def changed(database: Database, message_id: UUID, change: Update) -> Message:
    """Change one message, if its guard allows it; return it as it now is.

    Raises MessageNotFound.
    """
    this = database.tables.messages.c.id == message_id
    return _only(message_id, database.change(change, database.tables.stored.where(this)))


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

    def make(given: Given) -> Update:
        is_enqueued = given("enqueue_at") > given("next_attempt_at")
        return (
            update(messages)
            .where(
                messages.c.id == given("id"),
                messages.c.move_token == given("token"),
                tables.is_scheduled,
                given("until") >= database_now(),
            )
            .values(
                **{name: given(name) for name in NewTime._fields[1:]},
                move_token=messages.c.move_token + 1,
                enqueued_at=case((is_enqueued, database_now()), else_=messages.c.enqueued_at),
            )
        )

    return Change(database.backend, make)

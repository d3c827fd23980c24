"""Storing messages in a transaction of the caller's, and noticing how it ended.

SQLAlchemy tells a connection's listeners that a COMMIT is about to be sent, never that it is done.
So the end is noticed where the connection goes back to its pool, which a Session does at the end of
each transaction, or begins another transaction; and what came of it is read from the store.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from threading import Lock
from typing import Any, Generic, TypeVar
from uuid import UUID
from weakref import ref

from sqlalchemy import Connection, event, select
from sqlalchemy.exc import InvalidRequestError, SQLAlchemyError
from sqlalchemy.pool import ConnectionPoolEntry

from dispatcher.errors import InvalidDraft, StoreUnavailable, Suppressed
from dispatcher.message import Message
from dispatcher.store import numbers
from dispatcher.store.callers import (
    Joinable,
    commits_by_itself,
    connection_of,
    cuts_values,
    unusable,
)
from dispatcher.store.columns import MYSQL
from dispatcher.store.database import Database, unavailable
from dispatcher.store.identity import Identity
from dispatcher.store.messages import to_message, to_row
from dispatcher.store.once import insert_once, unless_there
from dispatcher.store.schema import AS_NAMED, Tables
from dispatcher.store.suppressions import is_suppressed

log = logging.getLogger(__name__)

T = TypeVar("T")

_IDS_AT_ONCE = 1_000
_WATCHES = "dispatcher.watches"
_listening = Lock()


class Watch(Generic[T]):
    """One transaction of a caller's, from the first message that joins it to its end.

    ``joined`` is what the use case remembers of each message. ``undone`` tells that a savepoint was
    rolled back, so that some of the rows may be gone already. ``on_end`` is called once, after the
    transaction, with what joined it and whether rows that are missing then are missing for good;
    nothing it raises reaches the caller. It is not called for a connection that was never closed.
    """

    def __init__(self, connection: Connection, on_end: Callable[[Sequence[T], bool], None]) -> None:
        self.joined: list[T] = []
        self.undone = False
        self.on_end = on_end
        self._connection = ref(connection)
        self._may_commit = False

    def commit_is_sent(self) -> None:
        """Note that from now on only an answer can tell what the database did."""
        self._may_commit = True

    def end(self, *, answered: bool) -> None:
        """Tell the use case; ``answered`` is False where the line broke."""
        if self._connection() is None:
            return  # this is the garbage collector at work, in the midst of anything
        try:
            self.on_end(self.joined, answered or not self._may_commit)
        except Exception:
            log.warning("the sweep settles %d messages", len(self.joined), exc_info=True)


class JoinedTransaction(Generic[T]):
    """A transaction of a caller's that is under way, and what is done in it.

    Whatever fails is undone alone, so that the caller can go on; where the database or the line
    does not allow that, the caller's next statement says so. Raises StoreUnavailable.
    """

    def __init__(self, tables: Tables, connection: Connection, watch: Watch[T]) -> None:
        self.watch = watch
        self._tables = tables
        self._connection = connection
        # SQLite undoes a statement that fails by itself. Its driver begins a transaction only with
        # the first write, so that a savepoint before would be one that commits when it is released.
        self._needs_savepoints = connection.dialect.name != "sqlite"
        self._is_mysql = connection.dialect.name in MYSQL
        self._insert = insert_once(tables, connection.dialect.name)
        self._was_asked = False

    def with_key(self, idempotency_key: str) -> tuple[Message, str] | None:
        """Return the message that has the key, as seen from inside, and its fingerprint."""
        tables = self._tables
        messages = tables.messages
        query = select(*tables.message_columns, messages.c.fingerprint).where(
            messages.c.idempotency_key == idempotency_key
        )
        if self._is_mysql and self._was_asked:
            # It may be younger than the transaction's snapshot; only a lock looks past that.
            query = query.with_for_update(read=True)
        self._was_asked = True
        with self._undone_alone():
            row = self._connection.execute(query, execution_options=AS_NAMED).one_or_none()
        return (to_message(row), row.fingerprint) if row is not None else None

    def add(
        self,
        message: Message,
        *,
        enqueue_at: datetime,
        fingerprint: str | None,
        status_url: str | None = None,
    ) -> bool:
        """Store ``message``; False when its id or its idempotency key was there before.

        Raises Suppressed where its recipient has opted out. That is asked apart: on MariaDB and
        MySQL an INSERT that reads would keep others from opting out until the transaction ends.
        """
        row = to_row(message, enqueue_at=enqueue_at, fingerprint=fingerprint, status_url=status_url)
        with self._undone_alone():
            self._check_wanted(message.recipient, message.channel)
            return unless_there(lambda: self._is_inserted(row))

    def check_wanted(self, recipient: str, channel: str) -> None:
        """Raise Suppressed where a recipient gets nothing on a channel, as seen from inside."""
        with self._undone_alone():
            self._check_wanted(recipient, channel)

    def present(self, message_ids: Sequence[UUID]) -> set[UUID]:
        """Return those of the messages that are stored, as seen from inside."""
        with self._undone_alone():
            return _present(self._tables, self._connection, message_ids)

    def _check_wanted(self, recipient: str, channel: str) -> None:
        if is_suppressed(self._tables, self._connection, recipient, channel):
            raise Suppressed(channel)

    def _is_inserted(self, row: dict[str, Any]) -> bool:
        messages = self._tables.messages
        if self._is_mysql:
            self._connection.execute(self._insert, row, execution_options=AS_NAMED)
            return True
        returning = self._insert.returning(messages.c.id)
        found = self._connection.execute(returning, row, execution_options=AS_NAMED)
        return found.one_or_none() is not None

    @contextmanager
    def _undone_alone(self) -> Iterator[None]:
        try:
            if self._needs_savepoints:
                with self._connection.begin_nested():
                    yield
            else:
                yield
        except SQLAlchemyError as error:
            ended = numbers.ended(error) if self._is_mysql else None
            if ended is not None:
                # What the caller wrote is gone, but the next statement would begin anew unseen.
                self._connection.invalidate()
            # The caller's engine may put our values into its text.
            raise unavailable(ended or error) from None
        except (UnicodeError, OverflowError) as error:
            reason = f"the driver refused a value ({type(error).__name__})"
            raise StoreUnavailable(reason, refused=True) from None


class JoinedMessages:
    """Messages that callers store in transactions of their own."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._tables = database.tables
        self._identity = Identity(database)

    def join(
        self, session: Joinable, on_end: Callable[[Sequence[T], bool], None]
    ) -> JoinedTransaction[T]:
        """Return the transaction that ``session`` is in; begin one if it is in none.

        ``on_end`` is called when it has ended, however it did (:class:`Watch`). Raises
        InvalidDraft for what cannot be joined, also where the database surely is another one
        (:class:`Identity`), StoreUnavailable where no transaction begins.
        """
        connection = connection_of(session)
        ours, theirs = self._database.engine.dialect.name, connection.dialect.name
        if theirs != ours and not {theirs, ours} <= set(MYSQL):
            raise InvalidDraft("session", f"is on {theirs}", f"one on the dispatcher's {ours}")
        try:
            if not connection.in_transaction():
                connection.begin()
            if commits_by_itself(connection):
                raise InvalidDraft(
                    "session", "commits each statement by itself", "one that is not in AUTOCOMMIT"
                )
            if cuts_values(connection):
                raise InvalidDraft(
                    "session", "cuts values that do not fit", "an sql_mode with STRICT_ALL_TABLES"
                )
            if self._identity.differs(connection):
                raise InvalidDraft("session", "is on another database", "one on the dispatcher's")
            return JoinedTransaction(self._tables, connection, _watch(connection, on_end))
        except InvalidRequestError as error:
            raise unusable(error) from None
        except SQLAlchemyError as error:
            raise unavailable(error) from None

    def stored(self, message_ids: Sequence[UUID]) -> set[UUID]:
        """Return those of the messages that are committed. Raises StoreUnavailable."""
        return self._database.run(
            lambda connection: _present(self._tables, connection, message_ids)
        )


def _present(tables: Tables, connection: Connection, message_ids: Sequence[UUID]) -> set[UUID]:
    messages = tables.messages
    found: set[UUID] = set()
    for start in range(0, len(message_ids), _IDS_AT_ONCE):
        some = messages.c.id.in_(message_ids[start : start + _IDS_AT_ONCE])
        query = select(messages.c.id).where(some, tables.is_message)
        found.update(connection.scalars(query, execution_options=AS_NAMED))
    return found


def _watch(connection: Connection, on_end: Callable[[Sequence[T], bool], None]) -> Watch[T]:
    """Return the watch of this transaction for this use case, a new one if there is none."""
    watches: list[Watch[Any]] = connection.info.setdefault(_WATCHES, [])
    for each in watches:
        if each.on_end == on_end:
            return each
    _listen(connection)
    watch = Watch(connection, on_end)
    watches.append(watch)
    return watch


def _listen(connection: Connection) -> None:
    """Listen to a connection and to its pool; once for each, however often this is called."""
    for name, listener in (
        ("begin", _begins),
        ("begin_twophase", _begins),
        ("commit", _commits),
        ("prepare_twophase", _commits),
        ("rollback_savepoint", _undoes),
    ):
        event.listen(connection, name, listener)
    with _listening:
        pool = connection.engine.pool
        if not event.contains(pool, "checkin", _returns):
            event.listen(pool, "checkin", _returns)


def _watches(connection: Connection) -> list[Watch[Any]]:
    if connection.closed or connection.invalidated:
        return []
    found: list[Watch[Any]] = connection.info.get(_WATCHES, [])
    return found


def _begins(connection: Connection, *_: object) -> None:
    ended = _watches(connection)
    if ended:
        del connection.info[_WATCHES]
    for watch in ended:
        watch.end(answered=True)


def _commits(connection: Connection, *_: object) -> None:
    for watch in _watches(connection):
        watch.commit_is_sent()


def _undoes(connection: Connection, *_: object) -> None:
    for watch in _watches(connection):
        watch.undone = True


def _returns(driver: object, entry: ConnectionPoolEntry) -> None:
    """End what was under way on a connection that goes back; ``driver`` is None if it broke."""
    watches: list[Watch[Any]] = entry.info.pop(_WATCHES, [])
    for watch in watches:
        watch.end(answered=driver is not None)

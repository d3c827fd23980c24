"""Store messages in a transaction of the caller's, and notice how it ends.

SQLAlchemy tells a connection's listeners that a COMMIT is about to be sent, never that it is done.
So the end is noticed where the connection goes back to its pool, which a Session does at the end of
each transaction, or begins another transaction; and its result is read from the store.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import cache, partial
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from uuid import UUID
from weakref import WeakSet, ref

from sqlalchemy import Connection, Row, Select, delete, event
from sqlalchemy.exc import InvalidRequestError, SQLAlchemyError, UnboundExecutionError
from sqlalchemy.pool import ConnectionPoolEntry, Pool
from sqlalchemy.util import await_only
from sqlalchemy.util.concurrency import in_greenlet

from dispatcher.errors import InvalidDraft, StoreUnavailable, Suppressed, kind_of
from dispatcher.message import Message
from dispatcher.store.database import Database
from dispatcher.store.engines.base import Location, StoreEngine, files_of, is_added
from dispatcher.store.engines.errors import refused_by_driver, unavailable
from dispatcher.store.engines.types import insert_if_absent
from dispatcher.store.events import events_named, hold_events
from dispatcher.store.lists import is_suppressed
from dispatcher.store.messages import (
    free_key,
    free_key_without_message,
    take_keys_over,
    unsent,
    with_keys,
)
from dispatcher.store.schema import AS_NAMED, KEYED, Addition, Event, Tables, to_keyed, to_row

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

log = logging.getLogger(__name__)

T = TypeVar("T")

_ACCEPTED = "a Session or a Connection of SQLAlchemy"
_ACCEPTED_OF_LOOP = (
    "an AsyncSession or an AsyncConnection of SQLAlchemy; with a Session or a Connection call "
    "submit"
)

_IDS_AT_ONCE = 1_000
_WATCHES = "dispatcher.watches"


def beside_the_loop(work: Callable[[], T], *, to_its_end: bool = False) -> T:
    """Do work that waits for servers: where a session of an event loop calls, in a thread.

    Raises CancelledError where its task is cancelled, at once or ``to_its_end``; it is done anyway.
    """
    if "greenlet" not in sys.modules or not in_greenlet():
        return work()
    # In a bounded pool it could wait for work that waits for a lock of the caller's transaction.
    thread = ThreadPoolExecutor(1, thread_name_prefix="dispatcher")
    running = thread.submit(copy_context().run, work)
    thread.shutdown(wait=False)  # it ends with the work
    return await_only(_done(running, to_its_end=to_its_end))


async def _done(work: Future[T], *, to_its_end: bool) -> T:
    running = asyncio.wrap_future(work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while to_its_end and not running.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([running])
        raise


class Watch(Generic[T]):
    """One transaction of a caller's, from the first message that joins it to its end.

    ``undone``: a savepoint was rolled back. ``on_end`` is called once, after the end, with what
    ``joined``, and whether rows that are missing are so for good; never for an open connection.
    """

    def __init__(self, connection: Connection, on_end: Callable[[Sequence[T], bool], None]) -> None:
        self.joined: list[T] = []
        self.undone = False
        self.on_end = on_end
        self.may_commit = False
        """Whether COMMIT was sent, so that only an answer shows whether the database committed."""
        self._connection = ref(connection)

    @property
    def is_abandoned(self) -> bool:
        """Whether the garbage collector returns the connection, in the midst of anything."""
        return self._connection() is None

    def end(self, *, answered: bool) -> None:
        try:
            self.on_end(self.joined, answered or not self.may_commit)
        except Exception:
            count = len(self.joined)
            log.warning(
                "%d messages of a caller's transaction were left to enqueue_due and reconcile",
                count, exc_info=True,
            )  # fmt: skip


class JoinedTransaction(Generic[T]):
    """A transaction of a caller's that is under way, and the statements that we run in it.

    A statement that fails is undone alone; where that cannot be, the caller's next one fails.
    """

    def __init__(
        self, tables: Tables, backend: StoreEngine, connection: Connection, watch: Watch[T]
    ) -> None:
        self.watch = watch
        self._tables = tables
        self._backend = backend
        self._connection = connection
        self._insert = insert_if_absent(tables.messages)
        self._insert_key = insert_if_absent(tables.keys)
        self._was_asked = False

    def with_keys(self, keys: Sequence[str]) -> dict[str, tuple[Message, str]]:
        """Return the messages that have these keys, as this transaction sees them."""
        looks_past = self._backend.sees_a_snapshot and self._was_asked
        self._was_asked = True

        def read(query: Select[Any]) -> Sequence[Row[Any]]:
            # A message may be younger than the snapshot; only a lock looks past that.
            query = query.with_for_update(read=True) if looks_past else query
            values = {"values": keys}
            return self._connection.execute(query, values, execution_options=AS_NAMED).all()

        with self._undone_alone():
            return with_keys(self._tables, read)

    def events(self, names: Sequence[str]) -> dict[str, Event]:
        """Return events as they are now, whatever snapshot this transaction reads from."""

        def read(query: Select[Any]) -> Sequence[Row[Any]]:
            query = query.with_for_update() if self._backend.sees_a_snapshot else query
            values = {"values": names}
            return self._connection.execute(query, values, execution_options=AS_NAMED).all()

        with self._undone_alone():
            return events_named(self._tables, read)

    def unsent(self, messages: Sequence[Message]) -> set[UUID]:
        with self._undone_alone():
            return unsent(self._tables, self._connection, messages)

    def add(self, addition: Addition) -> bool:
        """Store a message; False where its id or its idempotency key exists.

        Opt-outs are asked before: MariaDB would lock them for a subquery of the INSERT. Raises
        Suppressed and EventChanged.
        """
        message, connection = addition.message, self._connection
        key = message.idempotency_key
        row = to_row(addition)
        with self._undone_alone():
            if is_suppressed(self._tables, connection, message.recipient, message.channel):
                raise Suppressed(message.channel)
            hold_events(self._tables, connection, [addition])
            take_keys_over(self._tables, connection, [addition])
            # The key first, as everywhere: twins in the opposite order would wait for each other.
            if key is not None and not self._takes_key(addition, key):
                return False
            was_absent = is_added(connection, self._insert, row, AS_NAMED)
            if was_absent and (
                key is None
                or not self._backend.ended_before(connection, self._tables, [message.id])
            ):
                return True
            # Not all databases undo the statements here, so they are undone by hand.
            if was_absent:
                this = (self._tables.messages.c.id == message.id, self._tables.is_live)
                undo = delete(self._tables.messages).where(*this)
                connection.execute(undo, execution_options=AS_NAMED)
            if key is not None:
                undo = free_key(self._tables, key, message.id)
                connection.execute(undo, execution_options=AS_NAMED)
            return False

    def is_suppressed(self, recipient: str, channel: str) -> bool:
        with self._undone_alone():
            return is_suppressed(self._tables, self._connection, recipient, channel)

    def present(self, message_ids: Sequence[UUID]) -> set[UUID]:
        query, present = self._tables.present, set[UUID]()
        with self._undone_alone():
            for start in range(0, len(message_ids), _IDS_AT_ONCE):
                page = {"values": message_ids[start : start + _IDS_AT_ONCE]}
                present.update(self._connection.scalars(query, page, execution_options=AS_NAMED))
        return present

    def _takes_key(self, addition: Addition, key: str) -> bool:
        row = dict(zip(KEYED, to_keyed(addition), strict=True))
        insert = partial(is_added, self._connection, self._insert_key, row, AS_NAMED)
        if insert():
            return True
        free_key_without_message(self._tables, self._connection, key)
        return insert()

    @contextmanager
    def _undone_alone(self) -> Iterator[None]:
        try:
            with self._backend.undone_alone(self._connection):
                yield
        except SQLAlchemyError as error:
            ended = self._backend.ended_by(error)
            if ended is not None:
                # The caller's writes are gone, but its next statement would silently begin anew.
                self._connection.invalidate()
            # The caller's engine may put our values into its text.
            raise unavailable(ended or error) from None
        except (UnicodeError, OverflowError) as error:
            raise refused_by_driver(error) from None


class JoinedMessages:
    """Joins transactions of callers on the store's database.

    Servers are asked who they are, once for each pool. Where the question fails a database passes.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._tables = database.tables
        self._lock = Lock()
        self._ours: Location | None = None
        self._pools_of_ours: WeakSet[Pool] = WeakSet()

    def join(
        self, session: object, on_end: Callable[[Sequence[T], bool], None]
    ) -> JoinedTransaction[T]:
        """Return the transaction that ``session`` is in, or begin one.

        Raises InvalidDraft, also where the database surely is another one, and StoreUnavailable.
        """
        connection = connection_of(session)
        backend = self._database.backend
        if (theirs := connection.dialect.name) not in backend.names:
            ours = backend.names[0]
            raise InvalidDraft("session", f"is on {theirs}", f"one on the dispatcher's {ours}")
        with _translated():
            if not connection.in_transaction():
                connection.begin()
            if backend.commits_by_itself(connection):
                raise InvalidDraft(
                    "session", "commits each statement by itself", "one that is not in AUTOCOMMIT"
                )
            if backend.cuts_values(connection):
                raise InvalidDraft(
                    "session", "cuts values that do not fit", "an sql_mode with STRICT_ALL_TABLES"
                )
            if self._is_elsewhere(connection):
                raise InvalidDraft("session", "is on another database", "one on the dispatcher's")
            watch = watch_of(connection, on_end)
            return JoinedTransaction(self._tables, backend, connection, watch)

    def stored(self, message_ids: Sequence[UUID]) -> set[UUID]:
        return {row.id for row in self._database.read_of(self._tables.present, message_ids)}

    def _is_elsewhere(self, connection: Connection) -> bool:
        pool, backend = connection.engine.pool, self._database.backend
        with self._lock:
            if pool in self._pools_of_ours:
                return False
        try:
            ours = beside_the_loop(self._location_of_store)
            with backend.undone_alone(connection):
                theirs = backend.location(connection)
            if not ours & theirs:
                self._ours = None  # it may be on another server since a failover
                ours = beside_the_loop(self._location_of_store)
        except (SQLAlchemyError, StoreUnavailable, OSError):
            return False
        if not ours & theirs:
            return True
        with self._lock:
            self._pools_of_ours.add(pool)
        return False

    def _location_of_store(self) -> Location:
        backend = self._database.backend
        if backend.file is not None:
            # Not through a connection: the caller's transaction may block others.
            return files_of([backend.file])
        if self._ours is None:
            self._ours = self._database.run(backend.location)
        return self._ours


def watch_of(connection: Connection, on_end: Callable[[Sequence[T], bool], None]) -> Watch[T]:
    watches: list[Watch[Any]] = connection.info.setdefault(_WATCHES, [])
    for watch in watches:
        if watch.on_end == on_end:
            return watch
    for name, listener in (
        ("begin", _begins),
        ("begin_twophase", _begins),
        ("commit", _commits),
        ("prepare_twophase", _commits),
        ("rollback_savepoint", _undoes),
    ):
        event.listen(connection, name, listener)  # once for each, however often this is called
    _listen_to_pools()
    watch = Watch(connection, on_end)
    watches.append(watch)
    return watch


def _watches(connection: Connection) -> list[Watch[Any]]:
    if connection.closed or connection.invalidated:
        return []
    watches: list[Watch[Any]] = connection.info.get(_WATCHES, [])
    return watches


def _begins(connection: Connection, *_: object) -> None:
    ended = _watches(connection)
    if ended:
        del connection.info[_WATCHES]
    _end(ended, answered=True)


def _commits(connection: Connection, *_: object) -> None:
    for watch in _watches(connection):
        watch.may_commit = True


def _undoes(connection: Connection, *_: object) -> None:
    for watch in _watches(connection):
        watch.undone = True


def _returns(driver: object, entry: ConnectionPoolEntry) -> None:
    watches = entry.info.pop(_WATCHES, None)
    if watches:
        _end(watches, answered=driver is not None)


def _end(watches: Sequence[Watch[Any]], *, answered: bool) -> None:
    # Asked now: a thread may come when the caller's task, cancelled, has let go of the connection.
    ended = [watch for watch in watches if not watch.is_abandoned]

    def end_each() -> None:
        for watch in ended:
            watch.end(answered=answered)

    try:
        if ended:
            beside_the_loop(end_each)
    except asyncio.CancelledError:
        # The pool must get its connection back: the task is cancelled at its next await instead.
        task = asyncio.current_task()
        if task is not None:
            task.uncancel()
            task.cancel()


@cache
def _listen_to_pools() -> None:
    # To all of the process. The pool to which a connection goes back is not known before, because
    # an engine that is disposed of meanwhile gets another one. event.contains cannot tell whether a
    # pool has its listener: it takes a new pool for an earlier one at the same address.
    event.listen(Pool, "checkin", _returns)


def connection_of(session: object) -> Connection:
    if isinstance(session, Connection):
        if session.closed or session.invalidated:
            raise InvalidDraft("session", "is closed", "an open one")
        return session
    from sqlalchemy.orm import Session, scoped_session  # noqa: PLC0415 - slow, and rarely needed

    if isinstance(session, Session):
        with _translated():
            return session.connection()
    accepted = _ACCEPTED
    if isinstance(session, scoped_session):
        accepted += "; a scoped_session returns its Session when called"
    elif _is_of_loop(session):
        accepted += "; with an asynchronous one: await dispatcher.asubmit(…, session=session)"
    raise InvalidDraft("session", kind_of(session), accepted)


def session_of_loop(session: object) -> AsyncSession | AsyncConnection:
    if _is_of_loop(session):
        from sqlalchemy.ext.asyncio import (  # noqa: PLC0415 - slow, and rarely needed
            AsyncConnection,
            AsyncSession,
        )

        if isinstance(session, AsyncConnection | AsyncSession):
            return session
    raise InvalidDraft("session", kind_of(session), _ACCEPTED_OF_LOOP)


def _is_of_loop(session: object) -> bool:
    return any(
        kind.__module__.startswith("sqlalchemy.ext.asyncio") for kind in type(session).__mro__
    )


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except UnboundExecutionError:
        problem, accepted = "is bound to no database, or to several", "one with a single bind"
        raise InvalidDraft("session", problem, f"{accepted}, or its Connection") from None
    except InvalidRequestError as error:
        problem = f"has no transaction that could be used ({type(error).__name__})"
        accepted = "an active one; after an error, roll it back first"
        raise InvalidDraft("session", problem, accepted) from None
    except SQLAlchemyError as error:
        raise unavailable(error) from None

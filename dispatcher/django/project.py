"""The dispatcher of a Django project, which is built when a process first uses it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from threading import RLock
from typing import Any, NamedTuple, cast
from weakref import finalize, ref

from django.core.signals import setting_changed
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from sqlalchemy import Connection, Engine, NullPool, create_engine

from dispatcher.client import Dispatcher, app_of
from dispatcher.django import configuration
from dispatcher.errors import InvalidDraft
from dispatcher.message import Draft, Message, dump_json

_DRIVERS = {
    "sqlite3.dbapi2": "sqlite",
    "psycopg": "postgresql+psycopg",
    "MySQLdb": "mysql+mysqldb",
    "pymysql": "mysql+pymysql",
}
_FIELD = "transaction.atomic"
_OF_CLIENT = frozenset(
    {"settings", "_app", "_threads", "_state_lock", "_is_closed", "_turns", "_joined", "_lent"}
)


class _Built(NamedTuple):
    """A client and the entry of ``DATABASES`` that it is built for."""

    database: Mapping[str, Any] | None
    client: Dispatcher
    blocks: AtomicBlocks | None


class ProjectDispatcher(Dispatcher):
    """A :class:`~dispatcher.Dispatcher` with the settings of the Django project.

    A :meth:`submit` inside ``transaction.atomic()`` joins that transaction; the other calls have
    their own, whatever is open. Each process builds its own, also after a fork; it is built anew
    where the project's database is another one, as in a test run. Raises InvalidSettings at the
    first use.
    """

    _built: _Built | None = None

    def __init__(self) -> None:
        self._building = RLock()

    def __getattr__(self, name: str) -> Any:
        if name not in _OF_CLIENT:
            raise AttributeError(
                f"{type(self).__name__!r} has no attribute {name!r}", name=name, obj=self
            )
        if name == "settings" and configuration.is_in_memory_here():
            # A test run on SQLite in memory: MemoryDispatcher needs the settings and no database.
            return configuration.without_djangos_database()
        return getattr(self._present().client, name)

    def _present(self) -> _Built:
        """Return what is built for the present database.

        It locks only to build: close() waits, with the lock, for awaited calls that come by here.
        """
        alias = configuration.database_alias()
        database = None if alias is None else dict(connections.settings[alias])
        built = self._built
        if built is not None and built.database == database:
            return built
        with self._building:
            built = self._built
            if built is None or built.database != database:
                client = Dispatcher(configuration.load())
                if built is not None:
                    # Not client.close(): it waits for awaited calls, of which this may be one.
                    app_of(built.client).close()
                blocks = None if alias is None else AtomicBlocks(alias)
                self._built = built = _Built(database, client, blocks)
            return built

    @property
    def joins(self) -> bool:
        """Whether a submit would join a transaction of Django's now."""
        blocks = self._present().blocks
        return blocks is not None and blocks.is_open()

    def close(self) -> None:
        """Close the connections; the next use builds everything anew."""
        with self._building:
            built = self._built
            self.forget()  # before it is closed, so that no other call begins on it
        if built is not None:
            built.client.close()

    def forget(self) -> None:
        """Let go of everything without closing it: after a fork the parent has it open."""
        vars(self).clear()
        self._building = RLock()

    def submit_many(self, drafts: Iterable[Draft], **options: Any) -> Any:
        """Submit many drafts; inside ``transaction.atomic()`` it raises InvalidDraft."""
        if self.joins:
            accepted = "submit for each draft, or transaction.on_commit(lambda: submit_many(…))"
            raise InvalidDraft("submit_many", "does not join transaction.atomic()", accepted)
        return super().submit_many(drafts, **options)

    def _submit(self, draft: Draft, session: object) -> Message:
        blocks = self._present().blocks
        if session is not None or blocks is None:
            return super()._submit(draft, session)
        with blocks.joined() as joined:
            return super()._submit(draft, joined)


dispatcher = ProjectDispatcher()
os.register_at_fork(after_in_child=dispatcher.forget)


def _settings_changed(*, setting: str, **_: object) -> None:
    if setting in (configuration.NAME, "DATABASES"):
        dispatcher.close()


setting_changed.connect(_settings_changed, dispatch_uid="dispatcher.django")


class BorrowedConnection:
    """A driver's connection that Django has made. Only Django ends its transactions and closes it.

    SQLAlchemy sets up the connections that it makes; this one stays as Django has set it up.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def _left_to_django(self, *_: object, **__: object) -> None:
        pass

    commit = rollback = close = _left_to_django
    create_function = add_notice_handler = _left_to_django

    def cursor(self) -> Any:
        return self._connection.cursor()


class BorrowedPsycopg(BorrowedConnection):
    """Reads values as the driver does: Django's give naive instants where USE_TZ is false."""

    def cursor(self) -> Any:
        from psycopg import Cursor  # noqa: PLC0415 - an extra
        from psycopg.types.datetime import TimestamptzLoader  # noqa: PLC0415

        cursor = Cursor(self._connection)
        cursor.adapters.register_loader("timestamptz", TimestamptzLoader)
        return cursor


class AtomicBlocks:
    """The transactions of Django's on one of its databases, as those that submits can join.

    A submit gets a connection of SQLAlchemy over the one that Django has open. Django has no signal
    for a rollback. But it keeps what is to be done on commit in a list (``transaction.on_commit``),
    and lets go of an entry once its transaction or savepoint has ended, however it did. So each
    transaction, and each savepoint, that a submit joins gets such an entry.
    """

    def __init__(self, alias: str) -> None:
        self._alias = alias
        self._engine: Engine | None = None

    @contextmanager
    def joined(self) -> Iterator[Connection | None]:
        """Give a connection in this thread's transaction, None without one. Raises InvalidDraft."""
        django = connections[self._alias]
        if not self.is_open():
            yield None
            return
        if django.needs_rollback:
            problem = "an error has ended this block, and it will be rolled back"
            raise InvalidDraft(_FIELD, problem, "a block without an error, or a submit after it")
        joined = self._joined(django)
        try:
            yield joined
        finally:
            if joined.invalidated:
                django.needs_rollback = True  # the database has undone all; what follows would stay

    def is_open(self) -> bool:
        """Whether this thread is in a transaction. Raises InvalidDraft for one begun by hand."""
        django = connections[self._alias]
        if django.in_atomic_block:
            return True
        if django.connection is not None and not django.autocommit:
            problem = "Django's autocommit is off, so no hook runs on commit"
            raise InvalidDraft(_FIELD, problem, "autocommit, and a transaction by atomic()")
        return False

    def _joined(self, django: BaseDatabaseWrapper) -> Connection:
        savepoints = set(django.savepoint_ids)
        engine = self._engine = self._engine or _engine_over(self._alias, django)
        for entry in reversed(django.run_on_commit):
            end = entry[1]
            if isinstance(end, _End) and end.engine is engine and entry[0] == savepoints:
                return end.connection
        end = _End(engine, django)
        django.on_commit(end, robust=True)
        return end.connection


class _End:
    """What Django calls on commit, and lets go of on rollback: then the store learns of the end."""

    __qualname__ = "dispatcher"  # Django names it where it fails

    def __init__(self, engine: Engine, django: BaseDatabaseWrapper) -> None:
        self.engine = engine
        self.connection = engine.connect()
        self._django = ref(django)
        self._undone = finalize(self, _rolled_back, self.connection, self._django)
        self._undone.atexit = False

    def __call__(self) -> None:
        django = self._django()
        if django is not None and django.in_atomic_block:
            return  # not yet: a test runs the callbacks (captureOnCommitCallbacks)
        if self._undone.detach() is not None:
            self.connection.commit()
            self.connection.close()


def _rolled_back(connection: Connection, django: ref[BaseDatabaseWrapper]) -> None:
    there = django()
    # Inside the block a savepoint was undone, whatever error came before.
    if there is None or (there.errors_occurred and not there.in_atomic_block):
        # A COMMIT may have been sent, and its answer lost.
        connection.commit()
        connection.invalidate()
    connection.close()


def _engine_over(alias: str, django: BaseDatabaseWrapper) -> Engine:
    """Return an engine whose connections are those of Django's in the calling thread."""
    module = cast("Any", django).Database.__name__
    driver = _DRIVERS.get(module)
    if driver is None:
        problem = f"Django's connection {alias} is one of {module}"
        raise InvalidDraft(_FIELD, problem, f"one of {', '.join(_DRIVERS)}")
    borrow, more = BorrowedConnection, dict[str, Any]()
    if driver == "postgresql+psycopg":
        borrow, more = BorrowedPsycopg, {"use_native_hstore": False}
    return create_engine(
        f"{driver}://",
        creator=lambda: borrow(connections[alias].connection),
        poolclass=NullPool,
        pool_reset_on_return=None,
        json_serializer=dump_json,
        json_deserializer=json.loads,
        hide_parameters=True,
        **more,
    )

"""The dispatcher of a Django project: its settings, and the transactions that it joins.

The settings are ``DISPATCHER = {…}``. The dispatcher is built when a process first uses it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from threading import RLock
from typing import Any, NamedTuple, cast
from weakref import finalize, ref

from django.conf import settings as django_settings
from django.core.signals import setting_changed
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from sqlalchemy import URL, Connection, Engine, NullPool, create_engine

from dispatcher.client import Dispatcher, app_of
from dispatcher.errors import InvalidDraft, InvalidSettings, kind_of, quoted
from dispatcher.message import Draft, Message, dump_json
from dispatcher.settings import Settings
from dispatcher.transports.mail import read_sender

NAME = "DISPATCHER"
_DATABASE, _EMAIL_CHANNEL = "database", "email_channel"
_OWN = "another database_url in DISPATCHER"
_OF_DJANGO = {
    "sqlite": {"timeout", "init_command", "transaction_mode", "check_same_thread"},
    "postgresql": {
        "pool", "isolation_level", "server_side_binding", "prepare_threshold", "cursor_factory",
        "client_encoding",
    },
    "mysql": {"charset", "init_command", "sql_mode", "isolation_level", "conv", "use_unicode"},
}  # fmt: skip
"""Options that concern Django's own connections: the dispatcher has values of its own."""
_DRIVERS = {
    "sqlite3.dbapi2": "sqlite",
    "psycopg": "postgresql+psycopg",
    "MySQLdb": "mysql+mysqldb",
    "pymysql": "mysql+pymysql",
}
_FIELD = "transaction.atomic"


def load_settings() -> Settings:
    """Return the settings: ``DISPATCHER``, then environment, then file. Raises InvalidSettings.

    Where none of these has a ``database_url`` it is that of Django's database.
    """
    alias = database_alias()
    if alias is None or "database_url" in without_djangos_database().model_fields_set:
        return _for_emails(Settings.load(**_of_dispatcher()))
    url = database_url(connections[alias])
    return _for_emails(Settings.load(**_of_dispatcher(), database_url=url))


def without_djangos_database() -> Settings:
    return _for_emails(Settings.load(**_of_dispatcher() | {"table_schema": ""}))


def senders() -> list[str]:
    """Return the addresses among the senders that Django's settings name."""
    named = []
    for text in (django_settings.DEFAULT_FROM_EMAIL, django_settings.SERVER_EMAIL):
        with suppress(InvalidDraft):
            read_sender(text)
            named.append(str(text))
    return named


def _for_emails(settings: Settings) -> Settings:
    """Let channels carry e-mails of Django's as Django would.

    Bodies by SMTP may name Django's senders, unless the channel says which; and the channel of the
    e-mails takes them without quotas, unless it has some.
    """
    channels = dict(settings.channels)
    for name, channel in channels.items():
        if channel.transport == "smtp":
            options = {"senders": senders()} | channel.options
            channels[name] = channel.model_copy(update={"options": options})
    emails = channels.get(email_channel())
    has_quotas = emails is not None and bool(emails.quotas or emails.recipient_quotas)
    if emails is not None and emails.without_quotas == "never" and not has_quotas:
        channels[email_channel()] = emails.model_copy(update={"without_quotas": "allowed"})
    return settings.model_copy(update={"channels": channels})


def is_in_memory_here() -> bool:
    """Whether Django's database is in memory, as in a test run. Raises InvalidSettings."""
    alias = database_alias()
    return alias is not None and is_in_memory(connections[alias])


def database_alias() -> str | None:
    """Return which of ``DATABASES`` has the tables; None if none has. Raises InvalidSettings."""
    alias: str | None = _given().get(_DATABASE, DEFAULT_DB_ALIAS)
    if alias is not None and alias not in connections.settings:
        raise InvalidSettings(
            f"{NAME}.{_DATABASE}", f"there is no {quoted(alias)} in DATABASES",
            f"one of {', '.join(connections.settings)}, or None",
        )  # fmt: skip
    return alias


def email_channel() -> str:
    """Return the channel of :class:`~dispatcher.django.EmailBackend`. Raises InvalidSettings."""
    name = _given().get(_EMAIL_CHANNEL, "email")
    if not isinstance(name, str):
        raise InvalidSettings(f"{NAME}.{_EMAIL_CHANNEL}", kind_of(name), "the name of a channel")
    return name


def is_in_memory(connection: BaseDatabaseWrapper) -> bool:
    """Whether it is an SQLite in memory, as in tests: only Django's own connection has it."""
    name = str(connection.settings_dict["NAME"])
    return connection.vendor == "sqlite" and (":memory:" in name or "mode=memory" in name)


def database_url(connection: BaseDatabaseWrapper) -> str:
    entry, kind = connection.settings_dict, connection.vendor
    where = f"DATABASES.{connection.alias}"
    if kind not in _OF_DJANGO:
        accepted = f"SQLite, PostgreSQL, MariaDB, or {_OWN}"
        raise InvalidSettings(f"{where}.ENGINE", f"is {kind}", accepted)
    name = str(entry["NAME"])
    if kind == "sqlite" and (is_in_memory(connection) or name.startswith("file:")):
        accepted = f'the path of a file (for tests TEST = {{"NAME": …}}), or {_OWN}'
        raise InvalidSettings(f"{where}.NAME", "is no path of a file", accepted)
    query = _query(where, kind, entry.get("OPTIONS") or {})
    host = str(entry.get("HOST") or "")
    if host.startswith("/"):
        query["host" if kind == "postgresql" else "unix_socket"] = host
        host = ""
    url = URL.create(
        kind,
        username=entry.get("USER") or None,
        password=entry.get("PASSWORD") or None,
        host=host or None,
        port=int(entry["PORT"]) if entry.get("PORT") else None,
        database=name,
        query=query,
    )
    return url.render_as_string(hide_password=False)


def _query(where: str, kind: str, options: Mapping[str, Any]) -> dict[str, str]:
    query = {name: value for name, value in options.items() if name not in _OF_DJANGO[kind]}
    for name, value in query.items():
        is_plain = isinstance(value, str | int) and not isinstance(value, bool)
        if name == "assume_role" or not is_plain:
            field, accepted = f"{where}.OPTIONS.{name}", f"no such option, or {_OWN}"
            raise InvalidSettings(field, "cannot be written into a URL", accepted)
    return {name: str(value) for name, value in query.items()}


def _of_dispatcher() -> dict[str, Any]:
    ours = (_DATABASE, _EMAIL_CHANNEL)
    return {name: value for name, value in _given().items() if name not in ours}


def _given() -> Mapping[str, Any]:
    settings = getattr(django_settings, NAME, {})
    if not isinstance(settings, Mapping):
        raise InvalidSettings(NAME, kind_of(settings), "a dict of settings by their names")
    return settings


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
        if name.startswith("__"):  # what others look for in any object builds nothing
            raise AttributeError(name, name=name, obj=self)
        if name == "settings" and is_in_memory_here():
            # A test run on SQLite in memory: MemoryDispatcher needs the settings and no database.
            return without_djangos_database()
        return getattr(self._present().client, name)

    def _present(self) -> _Built:
        """Return what is built for the present database.

        It locks only to build: close() waits, with the lock, for awaited calls that come by here.
        """
        alias = database_alias()
        database = None if alias is None else dict(connections.settings[alias])
        built = self._built
        if built is not None and built.database == database:
            return built
        with self._building:
            built = self._built
            if built is None or built.database != database:
                client = Dispatcher(load_settings())
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
    if setting in (NAME, "DATABASES"):
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

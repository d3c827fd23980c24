"""One engine, and what the dispatcher needs to know when it fails."""

from __future__ import annotations

import logging
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self, TypeVar

from sqlalchemy import (
    ARRAY,
    Column,
    ColumnElement,
    Connection,
    Executable,
    any_,
    create_engine,
    event,
    literal,
)
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DataError,
    DBAPIError,
    IntegrityError,
    NoSuchModuleError,
    SQLAlchemyError,
    StatementError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout

from dispatcher.errors import InvalidSettings, StoreUnavailable, quoted
from dispatcher.message import dump_json, load_json
from dispatcher.settings import TABLE_PREFIX, Settings
from dispatcher.store import numbers
from dispatcher.store.columns import MYSQL
from dispatcher.store.schema import tables_named
from dispatcher.times.clock import SystemClock

T = TypeVar("T")
log = logging.getLogger(__name__)

_BETWEEN_WAL_TRIES_SECONDS = 0.05

_BUSY_SECONDS = 5.0
# Deadlock, serialization failure: the database undid the transaction and says so.
_UNDONE = frozenset({"40P01", "40001"})
_DRIVERS = dict.fromkeys(("postgresql", "postgres"), "postgresql+psycopg") | dict.fromkeys(
    ("mysql", "mariadb", "mariadb+pymysql"), "mysql+pymysql"
)
_EXTRAS = {
    "postgresql": "dispatcher[postgres]",
    "mysql": "dispatcher[mysql]",
    "mariadb": "dispatcher[mysql]",
}
_TRIES = 3
# An error of a PostgreSQL connection has no SQLSTATE, only what the server wrote.
_NO_DATABASE = re.compile(r'FATAL:\s+database ".*" does not exist')
# A table or a column: PostgreSQL, then MariaDB and MySQL.
_NO_SUCH_TABLE = frozenset({"42P01", "42703", 1146, 1054})
_NO_SUCH_IN_SQLITE = re.compile(r"no such table|no such column|table \w+ has no column")


class Unanswered(Exception):
    """A statement that was run past SQLAlchemy went wrong.

    ``perhaps_done`` tells that the line broke, so that it may have been done.
    """

    def __init__(self, *, perhaps_done: bool) -> None:
        super().__init__("perhaps done" if perhaps_done else "not done")
        self.perhaps_done = perhaps_done


class Database:
    """Runs pieces of work on pooled connections in autocommit mode.

    Every piece of work must be safe to run again: it is, up to two more times, when the line
    breaks, because then nobody knows whether it was done. Raises StoreUnavailable for what the
    database or the driver cannot do.
    """

    def __init__(
        self, url: str, *, table_prefix: str = TABLE_PREFIX, table_schema: str | None = None
    ) -> None:
        self.url = _with_driver(url)
        self.tables = tables_named(table_prefix, table_schema)
        sqlite = self.url.get_backend_name() == "sqlite"
        self._begin = "BEGIN IMMEDIATE" if sqlite else "BEGIN"
        try:
            self.engine = create_engine(
                self.url,
                isolation_level="AUTOCOMMIT",
                pool_reset_on_return=None,
                pool_size=5,
                max_overflow=27,
                pool_timeout=2,
                json_serializer=dump_json,
                json_deserializer=load_json,
                hide_parameters=True,
                connect_args={"timeout": _BUSY_SECONDS} if sqlite else {},
            )
        except (ImportError, NoSuchModuleError) as error:
            extra = _EXTRAS.get(self.url.get_backend_name(), "")
            raise InvalidSettings(
                "database_url",
                f"its driver is missing ({error})",
                f"an installed driver{extra and f': pip install {extra!r}'}",
            ) from error
        if sqlite:
            event.listen(self.engine, "connect", _prepare_sqlite)
        elif self.engine.dialect.name in MYSQL:
            event.listen(self.engine, "do_connect", _connect_mariadb)
        else:
            event.listen(self.engine, "do_connect", _connect_postgres)

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return the database of these settings, with its tables under their names."""
        return cls(
            settings.database_url,
            table_prefix=settings.table_prefix,
            table_schema=settings.table_schema or None,
        )

    def close(self) -> None:
        """Close the pooled connections."""
        self.engine.dispose()

    def one_of(self, column: Column[Any], values: Sequence[Any]) -> ColumnElement[bool]:
        """Return the condition that ``column`` is one of ``values``.

        On PostgreSQL that is one parameter: a long list takes longer to write than to look for.
        """
        if self.url.get_backend_name() == "postgresql":
            return column == any_(literal(list(values), ARRAY(column.type)))
        return column.in_(values)

    def straight(self, statement: Executable) -> Callable[[Mapping[str, Any]], list[Any] | None]:
        """Return a call that runs a statement past SQLAlchemy, where the database allows that.

        It answers with the rows, or with None where the ordinary way is to be taken: what it was to
        do may then be done, or not. Raises StoreUnavailable where the server waited for too long.
        """
        if self.url.get_backend_name() != "postgresql":
            return lambda _: None
        from dispatcher.store import postgres  # noqa: PLC0415 - its driver is an extra

        run = postgres.Straight(self.engine, statement)

        def call(values: Mapping[str, Any]) -> list[Any] | None:
            try:
                return run(values)
            except Unanswered as fault:
                if not fault.perhaps_done:
                    log.warning("a statement is asked again in the ordinary way")
                return None

        return call

    def run(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` with each statement committed on its own."""
        tries_left = _TRIES
        while True:
            tries_left -= 1
            try:
                with self.engine.connect() as connection:
                    return work(connection)
            except (StatementError, PoolTimeout) as error:
                if not tries_left or not worth_another_try(error):
                    raise unavailable(error, self.url) from cause(error)
            except (UnicodeError, OverflowError) as error:
                reason = f"the driver refused a value ({type(error).__name__})"
                raise StoreUnavailable(reason, refused=True) from None

    def transact(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` in one transaction."""

        def in_transaction(connection: Connection) -> T:
            connection.exec_driver_sql(self._begin)
            try:
                result = work(connection)
                connection.exec_driver_sql("COMMIT")
            except BaseException:
                _undo(connection)
                raise
            return result

        return self.run(in_transaction)


def unavailable(error: SQLAlchemyError, url: URL | None = None) -> StoreUnavailable:
    """Say what went wrong without statements, values or secrets; of ``url`` the place is named."""
    if isinstance(error, PoolTimeout):
        return StoreUnavailable("no connection became free in time")
    if not isinstance(error, DBAPIError):
        return StoreUnavailable(type(error).__name__)
    name, number = type(error.orig).__name__, numbers.of(error)
    if error.connection_invalidated or name in {"ConnectionTimeout", "AdminShutdown"}:
        return StoreUnavailable("the connection to the database broke")
    code = (
        number
        or getattr(error.orig, "sqlstate", None)
        or getattr(error.orig, "sqlite_errorname", None)
    )
    if number == numbers.NO_DATABASE or (code is None and _NO_DATABASE.search(str(error.orig))):
        name = quoted(url.database) if url and _at(url) else "of that name"
        remedy = "create it, or correct database_url"
        return StoreUnavailable(f"the server has no database {name}", remedy=remedy)
    if (code is None and name == "OperationalError") or number in numbers.NOT_REACHED:
        return StoreUnavailable(f"the database{_at(url)} cannot be reached")
    refused = isinstance(error, IntegrityError | DataError) or number in numbers.CHECKS
    reason, remedy = _answer(error, code or name)
    return StoreUnavailable(reason, refused=refused, remedy=remedy)


def _answer(error: DBAPIError, code: object) -> tuple[str, str]:
    """Return what the database said, and what helps."""
    if code in _NO_SUCH_TABLE or _NO_SUCH_IN_SQLITE.match(str(error.orig)):
        return f"its schema is behind ({code})", "run `dispatcher migrate`"
    if code == "SQLITE_CANTOPEN":
        made = "`dispatcher up` or `dispatcher migrate` makes it, in a folder that can be written"
        return f"the file cannot be opened ({code})", made
    return f"the database answered {code}", ""


def _at(url: URL | None) -> str:
    """Return " at HOST:PORT", or at a socket, without user, password and options."""
    if url is None or "@" in f"{url.host}{url.database}":  # of a password, unless it is written %40
        return ""
    host = url.host or url.query.get("host") or url.query.get("unix_socket")
    if not isinstance(host, str):  # none is named, or several
        return ""
    port = url.port or {"postgresql": 5432, "mysql": 3306}.get(url.get_backend_name())
    return f" at {host}" if host.startswith("/") else f" at {host}:{port}"


def cause(error: SQLAlchemyError) -> SQLAlchemyError | None:
    """Return the error to chain to ours: none where the database may quote the row in it."""
    if isinstance(error, IntegrityError | DataError) or numbers.quotes(error):
        return None
    return error


def is_disconnect(error: DBAPIError) -> bool:
    """Whether the line broke, so that what was sent may or may not have been done."""
    return bool(error.connection_invalidated)


def worth_another_try(error: SQLAlchemyError) -> bool:
    """Whether the line broke, or another transaction was in the way."""
    if not isinstance(error, DBAPIError):
        return False
    undone = getattr(error.orig, "sqlstate", None) in _UNDONE or numbers.of(error) in numbers.UNDONE
    return undone or is_disconnect(error)


@contextmanager
def translated(url: URL | None = None) -> Iterator[None]:
    """Raise StoreUnavailable for whatever SQLAlchemy raises inside."""
    try:
        yield
    except SQLAlchemyError as error:
        raise unavailable(error, url) from cause(error)


def _undo(connection: Connection) -> None:
    if connection.invalidated or connection.closed:
        return
    try:
        connection.exec_driver_sql("ROLLBACK")
    except DBAPIError:
        connection.invalidate()


def _with_driver(text: str) -> URL:
    accepted = "sqlite:///…, postgresql://…, mysql://… or mariadb://…"
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        raise InvalidSettings("database_url", "cannot be read", accepted) from None
    if url.get_backend_name() == "sqlite" and url.database in {None, "", ":memory:"}:
        raise InvalidSettings("database_url", "SQLite without a file", accepted)
    url = url.set(drivername=_DRIVERS.get(url.drivername, url.drivername))
    ours = {"postgresql+psycopg", "mysql+pymysql"}
    if url.get_backend_name() != "sqlite" and url.drivername not in ours:
        raise InvalidSettings("database_url", f"a database {url.drivername}", accepted)
    return url


def _prepare_sqlite(connection: Any, record: object) -> None:
    del record
    _to_wal(connection)
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA foreign_keys=ON")


def _to_wal(connection: sqlite3.Connection) -> None:
    """Let the file have a write-ahead log. Of several who first do so SQLite lets none wait."""
    clock = SystemClock()
    deadline = clock.monotonic() + _BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or clock.monotonic() >= deadline:
                raise
            clock.sleep(_BETWEEN_WAL_TRIES_SECONDS)
        else:
            return


def _connect_postgres(
    dialect: object, record: object, arguments: list[Any], parameters: dict[str, Any]
) -> Any:
    del dialect, record
    from dispatcher.store import postgres  # noqa: PLC0415 - its driver is an extra

    return postgres.connect(arguments, parameters)


def _connect_mariadb(
    dialect: object, record: object, arguments: list[Any], parameters: dict[str, Any]
) -> Any:
    del dialect, record
    from dispatcher.store import mariadb  # noqa: PLC0415 - its driver is an extra

    return mariadb.connect(arguments, parameters)

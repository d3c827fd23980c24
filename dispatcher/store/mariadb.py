"""What a MariaDB or MySQL connection must have beyond the driver's habits, and what errors mean."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import pymysql
from pymysql.constants import CR
from sqlalchemy import Connection, inspect
from sqlalchemy.exc import DBAPIError

from dispatcher.store import numbers

if TYPE_CHECKING:
    from alembic.ddl.impl import DefaultImpl

    from dispatcher.store.schema import Tables

_STATEMENT_SECONDS = 10
_LOCK_SECONDS = 3  # a wait for a lock is begun three times
_ANSWER_SECONDS = _STATEMENT_SECONDS + 1.0
_MIGRATION_SECONDS = 31_536_000  # a year: the longest wait a server takes
_LINE = {"connect_timeout": 3, "read_timeout": _ANSWER_SECONDS, "write_timeout": _ANSWER_SECONDS}
_ENCODING = {"charset": "utf8mb4", "use_unicode": True}
_PACKET_TOO_LARGE = 1153
_DONE_BEFORE = frozenset({1050, 1060, 1061, 1091, 1826, 3821, 3822})
"""The table, the column, the index, the constraint is there already, or gone already."""
_ISOLATION = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"
_SESSION = (
    "SET SESSION sql_mode = 'TRADITIONAL', time_zone = '+00:00', "
    f"innodb_lock_wait_timeout = {_LOCK_SECONDS}, lock_wait_timeout = {_LOCK_SECONDS}, "
)
# MySQL ends only what reads; for the rest there is the driver's own limit.
_LIMITS_ON_MARIADB = f"max_statement_time = {_STATEMENT_SECONDS}, idle_transaction_timeout = 30"
_LIMITS_ON_MYSQL = f"max_execution_time = {_STATEMENT_SECONDS * 1_000}"


class BoundedConnection(pymysql.Connection):
    """A connection that gives up when the server stays silent, and sends nothing it will not take.

    ``largest`` is what the server takes in one packet, in bytes; on a larger one it hangs up, which
    looks like a broken line.
    """

    largest: int | None = None
    _read_timeout: float | None
    _write_timeout: float | None

    def connect(self, sock: Any = None) -> None:
        """Connect; the greetings, too, must come within the time for connecting."""
        patience, self._read_timeout = self._read_timeout, self.connect_timeout
        asked, self.init_command = self.init_command, None
        try:
            super().connect(sock)
            self._prepare(asked)
        except pymysql.OperationalError as error:
            if error.args[0] in {CR.CR_SERVER_LOST, CR.CR_SERVER_GONE_ERROR}:
                # Nothing was asked, so nothing was done: not a line that broke.
                raise pymysql.OperationalError(CR.CR_CONN_HOST_ERROR, error.args[1]) from None
            raise
        finally:
            self._read_timeout, self.init_command = patience, asked

    def _create_ssl_ctx(self, asked: Any) -> ssl.SSLContext:
        """Return what to encrypt with; unless certificates are asked for, one for all lines.

        The driver would read the system's certificates for each line, and then check none.
        """
        if not asked:
            return _unverified()
        made: ssl.SSLContext = super()._create_ssl_ctx(asked)  # type: ignore[misc]  # not in its stubs
        return made

    def query(self, sql: str | bytes, unbuffered: bool = False) -> int:
        """Run one statement. What stops it in the midst of an answer ends the connection, too.

        Else the next statement would read the rest as its own answer.
        """
        if isinstance(sql, str):
            sql = sql.encode(self.encoding)
        if self.largest is not None and len(sql) >= self.largest:
            raise pymysql.DataError(_PACKET_TOO_LARGE, "larger than max_allowed_packet")
        try:
            return super().query(sql, unbuffered)
        except pymysql.MySQLError:
            raise  # a whole answer, or the line is closed already
        except BaseException:
            self.close()
            raise

    def be_patient(self) -> None:
        """Let statements take their time."""
        self._read_timeout = self._write_timeout = None

    def _prepare(self, asked: str | None) -> None:
        with self.cursor() as cursor:
            cursor.execute(_ISOLATION)
            cursor.execute("SELECT @@max_allowed_packet, VERSION()")
            self.largest, version = cursor.fetchone() or (None, "")
            is_mariadb = "MariaDB" in version
            cursor.execute(_SESSION + (_LIMITS_ON_MARIADB if is_mariadb else _LIMITS_ON_MYSQL))
            if asked is not None:
                cursor.execute(asked)


@cache
def _unverified() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def connect(arguments: list[Any], parameters: dict[str, Any]) -> BoundedConnection:
    """Connect with settings that a submit can rely on.

    Those of the URL win, also its ``init_command``, but for the encoding.
    """
    return BoundedConnection(*arguments, **(_LINE | parameters | _ENCODING))


@contextmanager
def taking_turns(connection: Connection) -> Iterator[None]:
    """Keep other migrations of this database waiting; statements inside may take their time.

    The connection does not go back to the pool.
    """
    connection.detach()
    driver = connection.connection.driver_connection
    if isinstance(driver, BoundedConnection):
        driver.be_patient()
    is_mariadb = getattr(connection.dialect, "is_mariadb", False)
    unlimited = "max_statement_time" if is_mariadb else "max_execution_time"
    connection.exec_driver_sql(
        f"SET SESSION {unlimited} = 0, lock_wait_timeout = {_MIGRATION_SECONDS}"
    )
    name = "LEFT(CONCAT('dispatcher.', DATABASE()), 64)"
    connection.exec_driver_sql(f"SELECT GET_LOCK({name}, {_MIGRATION_SECONDS})")
    try:
        yield
    finally:
        connection.exec_driver_sql(f"SELECT RELEASE_LOCK({name})")


def finish_what_was_begun(impl: DefaultImpl, tables: Tables) -> None:
    """Let a migration go on past what is done already, if a migration was here before.

    These databases commit each statement of a migration, so one that was interrupted has left its
    first statements. Without the table of versions nothing here is ours.
    """
    connection = impl.connection
    if connection is None or not inspect(connection).has_table(tables.version):
        return
    execute = impl._exec

    def unless_done(*given: Any, **more: Any) -> Any:
        try:
            return execute(*given, **more)
        except DBAPIError as error:
            if numbers.of(error) not in _DONE_BEFORE:
                raise
            return None

    impl._exec = unless_done  # type: ignore[method-assign]  # of this one run

"""MariaDB: no partial indexes, snapshots in callers' transactions, migrations that commit."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any

import pymysql
import sqlalchemy as sa
from pymysql.constants import CR
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from dispatcher.errors import StoreUnavailable
from dispatcher.message import Status
from dispatcher.store.engines.base import Backlog, Durability, Housekeeping, StoreEngine
from dispatcher.store.engines.errors import code_of
from dispatcher.store.engines.types import MARIADB
from dispatcher.store.schema import NOTIFIED_STATUSES, Tables

if TYPE_CHECKING:
    from alembic.ddl.impl import DefaultImpl

_STATEMENT_SECONDS = 10
_LOCK_SECONDS = 3  # a wait for a lock is begun three times
_ANSWER_SECONDS = _STATEMENT_SECONDS + 1.0
_MIGRATION_SECONDS = 31_536_000  # a year: the longest wait a server takes
_LINE = {"connect_timeout": 3, "read_timeout": _ANSWER_SECONDS, "write_timeout": _ANSWER_SECONDS}
_ENCODING = {"charset": "utf8mb4", "use_unicode": True}
_PACKET_TOO_LARGE = 1153
_NO_SAVEPOINT = 1305
_ENDED = frozenset({1020, 1213})
_DONE_BEFORE = frozenset({1050, 1060, 1061, 1091, 1826, 3821, 3822})
"""The table, the column, the index, the constraint is there already, or gone already."""
_ISOLATION = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"
_SESSION = (
    "SET SESSION sql_mode = 'TRADITIONAL', time_zone = '+00:00', "
    f"innodb_lock_wait_timeout = {_LOCK_SECONDS}, lock_wait_timeout = {_LOCK_SECONDS}, "
    f"max_statement_time = {_STATEMENT_SECONDS}, idle_transaction_timeout = 30"
)
_FORBIDDEN = 1227
"""A right of the whole server is missing."""
# Its instants are those of the server's own time zone, whatever the session's is.
_OLDEST = sa.text(
    "SELECT MAX(TIMESTAMPDIFF(SECOND, CONVERT_TZ(trx_started, 'SYSTEM', '+00:00'), "
    "UTC_TIMESTAMP())) FROM information_schema.innodb_trx "
    "WHERE trx_mysql_thread_id <> CONNECTION_ID()"
)
_UNDO = sa.text("SHOW GLOBAL STATUS LIKE 'Innodb_history_list_length'")
_USUAL_UNDO = 1_000_000
_IS_STRICT = "dispatcher.is_strict"


class MariaDBConnection(pymysql.Connection):
    largest: int | None = None
    _read_timeout: float | None
    _write_timeout: float | None

    def connect(self, sock: Any = None) -> None:
        """Connect; the greetings, too, must come within the time for connecting."""
        patience, self._read_timeout = self._read_timeout, self.connect_timeout
        init_command, self.init_command = self.init_command, None
        try:
            super().connect(sock)
            self._prepare(init_command)
        except pymysql.OperationalError as error:
            if error.args[0] in {CR.CR_SERVER_LOST, CR.CR_SERVER_GONE_ERROR}:
                # Nothing was asked, so nothing was done: not a line that broke.
                raise pymysql.OperationalError(CR.CR_CONN_HOST_ERROR, error.args[1]) from None
            raise
        finally:
            self._read_timeout, self.init_command = patience, init_command

    def _create_ssl_ctx(self, asked: Any) -> ssl.SSLContext:
        """Return one context for all: the driver would read all certificates, and check none."""
        if not asked:
            return _unverified()
        made: ssl.SSLContext = super()._create_ssl_ctx(asked)  # type: ignore[misc]  # not in its stubs
        return made

    def query(self, sql: str | bytes, unbuffered: bool = False) -> int:
        """Run one statement. An exception in the midst of an answer closes the connection."""
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

    def _prepare(self, init_command: str | None) -> None:
        with self.cursor() as cursor:
            cursor.execute(_ISOLATION)
            cursor.execute("SELECT @@max_allowed_packet, VERSION()")
            self.largest, version = cursor.fetchone() or (None, "")
            check_version(version)
            cursor.execute(_SESSION)
            if init_command is not None:
                cursor.execute(init_command)


class MariaDBEngine(StoreEngine):
    names = MARIADB
    durable = Durability(
        "SELECT @@GLOBAL.{}",
        {"innodb_flush_log_at_trx_commit": ("1",)},
        "set innodb_flush_log_at_trx_commit = 1 in the server's configuration",
    )
    # A server has no number of its own, a cluster of them has.
    whereabouts = sa.text(
        "SELECT DATABASE(), COALESCE((SELECT NULLIF(variable_value, '') "
        "FROM information_schema.global_status WHERE variable_name = 'WSREP_CLUSTER_STATE_UUID'), "
        "CONCAT_WS(' ', @@hostname, @@port, @@datadir))"
    )
    sees_a_snapshot = True
    has_partial_indexes = False

    def connect(
        self, _dialect: object, _record: object, arguments: list[Any], parameters: dict[str, Any]
    ) -> MariaDBConnection:
        # Parameters of the URL win, also ``init_command``, but for the encoding.
        driver = MariaDBConnection(*arguments, **(_LINE | parameters | _ENCODING))
        if self.statement_seconds is not None:
            driver.query(f"SET SESSION max_statement_time = {self.statement_seconds}")
        return driver

    def due_notifications(
        self, tables: Tables
    ) -> tuple[sa.ColumnElement[bool], tuple[sa.Column[Any], ...]]:
        """Return equalities, so that the index ``unreleased`` finds the messages.

        ``reserved`` lies between the other two in it, so the condition names both of its values.
        """
        row = tables.messages.c
        reported = [Status.SCHEDULED.value, *(status.value for status in NOTIFIED_STATUSES)]
        pairs = (
            sa.and_(
                row.status == status.value,
                row.notified_status.in_([other for other in reported if other != status]),
            )
            for status in NOTIFIED_STATUSES
        )
        where = sa.and_(row.reserved.in_([False, True]), sa.or_(*pairs))
        return where, (row.status, row.reserved, row.notified_status, row.id)

    @contextmanager
    def impatient(self, connection: sa.Connection) -> Iterator[None]:
        usual = connection.exec_driver_sql("SELECT @@innodb_lock_wait_timeout").scalar_one()
        connection.exec_driver_sql("SET innodb_lock_wait_timeout = 0")
        try:
            yield
        finally:
            if not connection.invalidated:
                connection.exec_driver_sql(f"SET innodb_lock_wait_timeout = {usual}")

    def cuts_values(self, connection: sa.Connection) -> bool:
        if not connection.info.get(_IS_STRICT):
            mode: str = connection.exec_driver_sql("SELECT @@SESSION.sql_mode").scalar_one()
            connection.info[_IS_STRICT] = "STRICT_" in mode
        return not connection.info[_IS_STRICT]

    def ended_by(self, error: SQLAlchemyError) -> SQLAlchemyError | None:
        """Return a deadlock or a change since the snapshot, also behind "no such savepoint"."""
        if code_of(error) != _NO_SAVEPOINT:
            return error if code_of(error) in _ENDED else None
        cause = error.__context__
        while cause is not None:
            if isinstance(cause, SQLAlchemyError) and code_of(cause) not in {None, _NO_SAVEPOINT}:
                return cause
            cause = cause.__context__
        return error

    def housekeeping(self, connection: sa.Connection, _tables: Tables) -> Housekeeping:
        undo = connection.execute(_UNDO).one_or_none()
        backlogs = (Backlog("the undo log", int(undo[1]), _USUAL_UNDO),) if undo else ()
        try:
            seconds = connection.scalar(_OLDEST)
        except DBAPIError as error:
            if code_of(error) != _FORBIDDEN:
                raise
            return Housekeeping(None, backlogs, limited_to="no transaction", right="PROCESS")
        return Housekeeping(None if seconds is None else timedelta(seconds=seconds), backlogs)

    @contextmanager
    def migrating(self, connection: sa.Connection) -> Iterator[None]:
        connection.detach()
        driver = connection.connection.driver_connection
        if isinstance(driver, MariaDBConnection):
            driver._read_timeout = driver._write_timeout = None
        connection.exec_driver_sql(
            f"SET SESSION max_statement_time = 0, lock_wait_timeout = {_MIGRATION_SECONDS}"
        )
        name = "LEFT(CONCAT('dispatcher.', DATABASE()), 64)"
        connection.exec_driver_sql(f"SELECT GET_LOCK({name}, {_MIGRATION_SECONDS})")
        try:
            yield
        finally:
            connection.exec_driver_sql(f"SELECT RELEASE_LOCK({name})")

    def skip_applied_statements(self, impl: DefaultImpl, tables: Tables) -> None:
        connection = impl.connection
        if connection is None or not sa.inspect(connection).has_table(tables.version):
            return
        execute = impl._exec

        def unless_done(*args: Any, **options: Any) -> Any:
            try:
                return execute(*args, **options)
            except DBAPIError as error:
                if code_of(error) not in _DONE_BEFORE:
                    raise
                return None

        impl._exec = unless_done  # type: ignore[method-assign]  # of this one run


def check_version(version: str) -> None:
    """Raise StoreUnavailable for a server that is not MariaDB; MySQL speaks the same protocol."""
    if "MariaDB" not in version:
        raise StoreUnavailable(
            f"the server is MySQL {version}, which is not supported",
            refused=True,
            remedy="use MariaDB, PostgreSQL or SQLite",
        )


@cache
def _unverified() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context

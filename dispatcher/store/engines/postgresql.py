"""PostgreSQL: arrays as parameters, COPY, an INSERT past SQLAlchemy, and waits with a bound."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self, cast

import psycopg
import sqlalchemy as sa
from psycopg import sql
from psycopg.abc import RV, PQGen
from sqlalchemy.exc import SQLAlchemyError

from dispatcher.errors import StoreUnavailable
from dispatcher.store.engines import partitions
from dispatcher.store.engines.base import (
    AtOnce,
    Backlog,
    Days,
    Durability,
    Housekeeping,
    InsertFailed,
    Prepared,
    Slot,
    transaction,
)
from dispatcher.store.engines.errors import answered, takes_no_writes
from dispatcher.store.engines.types import database_now

if TYPE_CHECKING:
    from dispatcher.store.schema import Tables

log = logging.getLogger(__name__)

_STATEMENT_SECONDS = 10
_ANSWER_SECONDS = _STATEMENT_SECONDS + 1.0
_TIMEOUTS = {
    "statement_timeout": f"{_STATEMENT_SECONDS}s",
    "lock_timeout": "5s",
    "idle_in_transaction_session_timeout": "30s",
}
_OPTIONS = {
    # Rows are found by indexes. A plan made while the tables were empty would read them whole.
    "enable_seqscan": "off",
    "synchronous_commit": "on",
    **_TIMEOUTS,
}
_ENCODING = {"client_encoding": "utf8"}
"""As a parameter it wins over PGCLIENTENCODING."""
_PREPARED_AFTER = "5"
"""After how many runs the driver prepares a statement."""
_CURSOR = "dispatcher.cursor"
_MIGRATION_LOCK = 0x64697370  # "disp": two migrations at a time take turns
_TRY_TO_LOCK = sa.text(f"SELECT pg_try_advisory_xact_lock({_MIGRATION_LOCK})")
_LOCK = sa.text(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})")
_USUALLY_DEAD = 250_000
"""As many as 1,000 messages a second leave behind in a minute and a half."""
_ALL_STATISTICS = "pg_read_all_stats"
# A transaction without a snapshot and without an id keeps no row. VACUUM keeps none either.
_OLDEST = sa.text(
    "SELECT max(age) FROM ("
    "SELECT clock_timestamp() - xact_start AS age FROM pg_stat_activity "
    "WHERE datname = current_database() AND pid <> pg_backend_pid() "
    "AND (backend_xid IS NOT NULL OR backend_xmin IS NOT NULL) "
    "AND backend_type <> 'autovacuum worker' "
    "AND pid NOT IN (SELECT pid FROM pg_stat_progress_vacuum) "
    "UNION ALL SELECT clock_timestamp() - prepared FROM pg_prepared_xacts "
    "WHERE database = current_database()) AS open"
)
_SEES_ALL = sa.text(f"SELECT pg_has_role('{_ALL_STATISTICS}', 'USAGE')")
_DEAD = sa.text(
    "SELECT n_dead_tup, n_live_tup FROM pg_stat_all_tables WHERE relid = CAST(:name AS regclass)"
)
_SLOTS = sa.text(
    "SELECT slot_name, active, CASE WHEN restart_lsn IS NULL OR pg_is_in_recovery() THEN 0 "
    "ELSE CAST(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn) AS bigint) END, "
    "COALESCE(age(xmin), 0) FROM pg_replication_slots ORDER BY slot_name"
)
_LINE = {
    "connect_timeout": 3,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": int(_ANSWER_SECONDS * 1_000),
}


# The second condition on the id is redundant: without it PostgreSQL may read the whole index
# where a vacuum has counted no row, and that may have millions of entries of dead rows. An index of
# a status would be as wrong.
_RECORD = """
WITH given AS (
    SELECT * FROM unnest(
        CAST(:ids AS uuid[]), CAST(:tokens AS integer[]), CAST(:receipts AS text[])
    ) AS given (id, token, receipt)
), done AS (
    UPDATE {messages} AS message
    SET status = 'sent', finished_at = statement_timestamp(), last_error = NULL,
        claimed_by = NULL, claim_expires_at = NULL
    FROM given
    WHERE message.id = given.id AND message.id = ANY (CAST(:ids AS uuid[]))
        AND message.claim_token = given.token
        AND message.status || '' = 'sending' AND message.finished_at IS NULL
    RETURNING message.id
), recorded AS (
    UPDATE {attempts} AS attempt
    SET outcome = 'sent', finished_at = statement_timestamp(), receipt = given.receipt
    FROM given
    WHERE attempt.message_id = given.id AND attempt.message_id = ANY (CAST(:ids AS uuid[]))
        AND attempt.token = given.token AND attempt.finished_at IS NULL
        AND attempt.message_id IN (SELECT id FROM done)
)
SELECT id FROM given WHERE id NOT IN (SELECT id FROM done)
"""
_PUT_BACK = """
WITH given AS (
    SELECT * FROM unnest(
        CAST(:ids AS uuid[]), CAST(:tokens AS integer[]),
        CAST(:waits AS float[]), CAST(:enqueues AS float[])
    ) AS given (id, token, wait, enqueue)
), done AS (
    UPDATE {messages} AS message
    SET status = 'scheduled', attempt_count = attempt_count - 1,
        next_attempt_at = GREATEST(
            next_attempt_at, statement_timestamp() + make_interval(secs => wait)
        ),
        enqueue_at = statement_timestamp() + make_interval(secs => enqueue),
        enqueued_at = CASE WHEN enqueue > wait THEN statement_timestamp() ELSE enqueued_at END,
        last_error = NULLIF(last_error, CAST(:not_begun AS text)),
        claimed_by = NULL, claim_expires_at = NULL
    FROM given
    WHERE message.id = given.id AND message.id = ANY (CAST(:ids AS uuid[]))
        AND message.claim_token = given.token
        AND message.status || '' = 'sending' AND message.finished_at IS NULL
    RETURNING message.id
), undone AS (
    DELETE FROM {attempts} AS attempt USING given
    WHERE attempt.message_id = given.id AND attempt.message_id = ANY (CAST(:ids AS uuid[]))
        AND attempt.token = given.token AND attempt.finished_at IS NULL
        AND attempt.message_id IN (SELECT id FROM done)
)
SELECT id FROM given WHERE id NOT IN (SELECT id FROM done)
"""


class PostgreSQLConnection(psycopg.Connection[Any]):
    """A connection that gives up when the server is silent for longer than ``patience``, in s.

    Behind a pooler (``is_pooled``) each transaction may have another session, which others use in
    between: nothing is prepared there, and ``timeouts`` are set in each transaction. ``bound`` is
    the timeout of statements outside of one, in seconds, where they have their own.
    """

    patience: float | None = _ANSWER_SECONDS
    is_pooled = False
    timeouts: Mapping[str, str] = _TIMEOUTS
    bound: int | None = None

    def begin(self, **timeouts: str) -> str:
        chosen = {**self.timeouts, **timeouts}
        return "; ".join(["BEGIN", *(f"SET LOCAL {name} = '{chosen[name]}'" for name in chosen)])

    def wait(self, gen: PQGen[RV], interval: float = 0.1, timeout: float | None = None) -> RV:
        """Wait for the server, but not for ever. Raises OperationalError and closes itself."""
        limit = self.patience if timeout is None else timeout
        try:
            return super().wait(gen, interval, limit)
        except psycopg.OperationalError as error:
            if error.sqlstate is None:  # not from the server: the connection broke or is silent
                self.close()
            raise


class PooledCursor(psycopg.Cursor[Any]):
    def execute(self, query: Any, params: Any = None, **options: Any) -> Self:
        line = cast("PostgreSQLConnection", self.connection)
        if query == "BEGIN":
            return super().execute(line.begin())
        is_alone = line.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        if line.bound is None or not is_alone:
            return super().execute(query, params, **options)
        around = psycopg.Cursor(line)
        around.execute(line.begin(statement_timeout=f"{line.bound}s").encode())
        try:
            return super().execute(query, params, **options)
        finally:  # after an error it is a ROLLBACK
            if not line.closed:
                around.execute("COMMIT")


class PostgreSQLEngine(partitions.PartitionedEngine):
    names = ("postgresql",)
    durable = Durability(
        "SHOW {}",
        {"fsync": ("on",), "synchronous_commit": ("on", "remote_apply")},
        "set fsync = on in postgresql.conf, and leave synchronous_commit out of the URL",
    )
    whereabouts = sa.text(
        "SELECT current_database(), (SELECT system_identifier FROM pg_control_system())"
    )

    def connect(
        self, _dialect: object, _record: object, arguments: list[Any], parameters: dict[str, Any]
    ) -> PostgreSQLConnection:
        """Connect with settings that a submit can rely on, or find that a pooler is in between.

        Settings of the URL win, but for the encoding. A pooler invents the process that it tells.
        """
        threshold = parameters.get("prepare_threshold", _PREPARED_AFTER)
        merged = _LINE | parameters | _ENCODING
        merged["prepare_threshold"] = None if threshold.lower() == "none" else int(threshold)
        driver = PostgreSQLConnection.connect(*arguments, **merged, autocommit=True)
        theirs = parameters.get("options", "").replace("-", "_").lower()
        ours = ", ".join(
            f"set_config('{name}', '{value}', false)"
            for name, value in _OPTIONS.items()
            if not re.search(rf"(_c *|__){name}=", theirs)
        )
        direct = f"SELECT {ours} WHERE pg_backend_pid() = {driver.info.backend_pid}"
        try:
            driver.is_pooled = driver.execute(direct.encode()).rowcount == 0
        except BaseException:
            driver.close()
            raise
        if driver.is_pooled:
            driver.cursor_factory, driver.bound = PooledCursor, self.statement_seconds
            # PgBouncer from 1.21 on follows prepared statements, where it is told to.
            if "prepare_threshold" not in parameters or driver.prepare_threshold == 0:
                driver.prepare_threshold = None
        elif self.statement_seconds is not None:
            driver.execute(f"SET statement_timeout = '{self.statement_seconds}s'".encode())
        return driver

    def insert_rows(
        self, connection: sa.Connection, insert: Prepared, rows: Iterator[Sequence[Any]]
    ) -> None:
        table = cast("sa.Table", cast("sa.Insert", insert.statement).table)
        types = [_copied_as(table.c[name], connection) for name in insert.names]
        copying = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT BINARY)").format(
            _name(table), sql.SQL(", ").join(map(sql.Identifier, insert.names))
        )
        driver = cast("psycopg.Connection[Any]", connection.connection.driver_connection)
        try:
            with driver.cursor() as cursor, cursor.copy(copying) as stream:
                stream.set_types(types)
                for row in rows:
                    stream.write_row(row)
        except psycopg.Error as error:
            if takes_no_writes(error):  # SQLAlchemy, which would let go of them all, sees no error
                driver.close()
                connection.engine.dispose()
            # Its text may quote the row.
            reason = answered(error.sqlstate or type(error).__name__)
            # Else the connection broke, and the rows may be stored.
            refused = bool(error.sqlstate) or isinstance(error, psycopg.DataError)
            raise StoreUnavailable(reason, refused=refused) from None
        except BaseException:
            driver.close()  # the statement may still be under way
            raise
        finally:
            if driver.closed:
                connection.invalidate()

    def direct_insert(self, engine: sa.Engine, insert: Prepared) -> Callable[[Sequence[Any]], bool]:
        """Return what gives an INSERT to the driver alone, which takes its values as they are."""
        text, indexes = insert.text.encode(), insert.indexes

        def run(values: Sequence[Any]) -> bool:
            try:
                pooled = engine.raw_connection()
            except (psycopg.Error, SQLAlchemyError):
                raise InsertFailed(perhaps_done=False) from None
            driver = cast("psycopg.Connection[Any]", pooled.driver_connection)
            try:
                cursor = pooled.info.get(_CURSOR)
                if cursor is None:  # the pool forgets it with its connection
                    cursor = pooled.info[_CURSOR] = driver.cursor()
                cursor.execute(text, [values[index] for index in indexes])
            except (psycopg.errors.LockNotAvailable, psycopg.errors.QueryCanceled) as error:
                raise StoreUnavailable(answered(error.sqlstate)) from None
            except (psycopg.Error, ValueError, OverflowError) as error:
                if isinstance(error, psycopg.ProgrammingError) and error.sqlstate is None:
                    raise  # a mistake in our call of the driver
                raise InsertFailed(perhaps_done=driver.closed) from None
            except BaseException:
                driver.close()
                raise
            else:
                return bool(cursor.rowcount > 0)
            finally:
                if driver.closed:
                    pooled.invalidate()
                else:
                    pooled.close()

        return run

    def at_once(self, tables: Tables, claimable: sa.Select[Any], take: sa.Update) -> AtOnce:
        messages, chosen = tables.messages, claimable.cte("claimable")
        taken = (
            take.where(messages.c.id == chosen.c.id)
            .returning(*tables.message_columns, messages.c.claim_token)
            .cte("taken")
        )
        started_at = sa.func.greatest(taken.c.next_attempt_at, database_now())
        begun = sa.insert(tables.attempts).from_select(
            ["message_id", "token", "started_at"],
            sa.select(taken.c.id, taken.c.claim_token, started_at),
        )
        # The later the clock is read, the shorter is the wait of a message that is not due yet.
        claim = (
            sa.select(*taken.c, now_read_late().label("now"))
            .order_by(taken.c.next_attempt_at, taken.c.id)
            .add_cte(begun.cte("begun"))
        )
        named = {
            "messages": _name(messages).as_string(), "attempts": _name(tables.attempts).as_string()
        }  # fmt: skip
        record, put_back = (sa.text(text.format_map(named)) for text in (_RECORD, _PUT_BACK))
        return AtOnce(claim, record, put_back)

    @contextmanager
    def impatient(self, connection: sa.Connection) -> Iterator[None]:
        connection.exec_driver_sql("SET LOCAL lock_timeout = 200")
        yield

    def unset_behind_pooler(self, connection: sa.Connection) -> tuple[str, ...] | None:
        driver = cast("PostgreSQLConnection", connection.connection.driver_connection)
        if not driver.is_pooled:
            return None
        values = {name: connection.exec_driver_sql(f"SHOW {name}").scalar() for name in _TIMEOUTS}
        return tuple(name for name, value in values.items() if value == "0")

    def encoding(self, connection: sa.Connection) -> str:
        return str(connection.exec_driver_sql("SHOW server_encoding").scalar_one())

    def housekeeping(self, connection: sa.Connection, tables: Tables) -> Housekeeping:
        sees_all = connection.scalar(_SEES_ALL)
        backlogs = []
        for table in (tables.messages, tables.attempts):
            name = partitions.live_name(connection, table)
            for dead, live in connection.execute(_DEAD, {"name": name}):
                backlogs.append(Backlog(table.name, dead, _USUALLY_DEAD + live // 5))
        return Housekeeping(
            connection.scalar(_OLDEST),
            tuple(backlogs),
            tuple(Slot._make(row) for row in connection.execute(_SLOTS)),
            Days._make(partitions.state(connection, tables)),
            "" if sees_all else "transactions of the role in database_url",
            "" if sees_all else _ALL_STATISTICS,
        )

    @contextmanager
    def migrating(self, connection: sa.Connection) -> Iterator[None]:
        """Migrate in one transaction; its lock holds behind a pooler, too."""
        driver = cast("PostgreSQLConnection", connection.connection.driver_connection)
        connection.detach()
        driver.patience = None
        driver.timeouts = dict.fromkeys(_TIMEOUTS, "0")
        if not driver.is_pooled:
            for name in _TIMEOUTS:
                connection.exec_driver_sql(f"SET {name} = 0")
        with transaction(connection):
            if not connection.scalar(_TRY_TO_LOCK):
                log.warning("another migration of this database runs: waiting for its end")
                connection.execute(_LOCK)
            yield


def _name(table: sa.Table) -> sql.Identifier:
    return sql.Identifier(table.schema, table.name) if table.schema else sql.Identifier(table.name)


def now_read_late() -> sa.ColumnElement[Any]:
    """Return the present when the row is made, never later than the clock."""
    # The capitals keep the time of tests out of the difference.
    return database_now() + (sa.func.clock_timestamp() - sa.func.STATEMENT_TIMESTAMP())


def _copied_as(column: sa.Column[Any], connection: sa.Connection) -> str:
    if isinstance(column.type, (sa.String, sa.JSON)):
        return "text"  # the binary form of json is its text
    return column.type.compile(connection.dialect).lower()

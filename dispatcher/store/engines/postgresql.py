"""PostgreSQL: arrays as parameters, COPY, statements past SQLAlchemy, and waits with a bound."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import psycopg
from psycopg import sql
from psycopg.abc import RV, PQGen
from sqlalchemy import (
    ARRAY,
    ClauseElement,
    Column,
    ColumnElement,
    Connection,
    Engine,
    Executable,
    FromClause,
    Insert,
    Select,
    Table,
    any_,
    bindparam,
    column,
    event,
    func,
    literal,
    text,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.types import TypeEngine

from dispatcher.errors import StoreUnavailable
from dispatcher.store.engines.base import DurableSettings, Location, StoreEngine, Unanswered

if TYPE_CHECKING:
    from dispatcher.store.schema import Tables

_STATEMENT_SECONDS = 10
_ANSWER_SECONDS = _STATEMENT_SECONDS + 1.0
_OPTIONS = {
    # Rows are found by indexes. A plan made while the tables were empty would read them whole.
    "enable_seqscan": "off",
    "synchronous_commit": "on",
    "statement_timeout": f"{_STATEMENT_SECONDS}s",
    "lock_timeout": "5s",
    "idle_in_transaction_session_timeout": "30s",
}
_ENCODING = {"client_encoding": "utf8"}
"""Given like this it also wins over the environment."""
_MIGRATION_LOCK = 0x64697370  # "disp": two migrations at a time take turns
_PLACE = text("SELECT current_database(), (SELECT system_identifier FROM pg_control_system())")
_LINE = {
    "connect_timeout": 3,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": int(_ANSWER_SECONDS * 1_000),
}


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that gives up when the server stays silent.

    The server ends statements that take too long. A frozen server cannot, nor one whose connection
    is cut silently. ``patience`` is how long it may be silent, in seconds; None for ever.
    """

    patience: float | None = _ANSWER_SECONDS

    def wait(self, gen: PQGen[RV], interval: float = 0.1, timeout: float | None = None) -> RV:
        """Wait for the server, but not for ever. Raises OperationalError and closes itself."""
        limit = self.patience if timeout is None else timeout
        try:
            return super().wait(gen, interval, limit)
        except psycopg.OperationalError as error:
            if error.sqlstate is None:  # not from the server: the connection broke or is silent
                self.close()
            raise


class PostgreSQLEngine(StoreEngine):
    """PostgreSQL, by psycopg 3."""

    names = ("postgresql",)
    durable = DurableSettings(
        {"fsync": ("on",), "synchronous_commit": ("on", "remote_apply")},
        "set fsync = on in postgresql.conf, and leave synchronous_commit out of the URL",
    )
    copies = True
    takes_arrays = True

    def prepare(self, engine: Engine) -> None:
        """Make connections by :func:`_connect`."""
        event.listen(engine, "do_connect", _connect)

    def one_of(self, column: Column[Any], values: Sequence[Any]) -> ColumnElement[bool]:
        """Compare with one array: a long list takes longer to write than to look for."""
        return column == any_(literal(list(values), ARRAY(column.type)))

    def rows_from(self, types: Mapping[str, TypeEngine[Any]]) -> FromClause:
        """Unnest arrays."""
        columns = [column(name, each) for name, each in types.items()]
        given = [
            bindparam(f"given_{name}", type_=postgresql.ARRAY(each)) for name, each in types.items()
        ]
        return func.unnest(*given).table_valued(*columns, name="given").render_derived()

    def insert_if_absent(
        self, table: Table, columns: Sequence[str] = (), rows: Select[Any] | None = None
    ) -> Insert:
        """Return INSERT … ON CONFLICT DO NOTHING."""
        statement = postgresql.insert(table)
        if rows is not None:
            statement = statement.from_select(list(columns), rows)
        return statement.on_conflict_do_nothing()

    def copy(
        self, connection: Connection, table: Table, names: Sequence[str], rows: Iterable[Any]
    ) -> None:
        """Store rows by COPY. Raises StoreUnavailable."""
        whole = [table.schema, table.name] if table.schema else [table.name]
        copying = sql.SQL("COPY {} ({}) FROM STDIN").format(
            sql.Identifier(*whole), sql.SQL(", ").join(map(sql.Identifier, names))
        )
        driver = cast("psycopg.Connection[Any]", connection.connection.driver_connection)
        try:
            with driver.cursor() as cursor, cursor.copy(copying) as stream:
                for row in rows:
                    stream.write_row(row)
        except psycopg.Error as error:
            # Its text may quote the row.
            answered = error.sqlstate or type(error).__name__
            # Else the connection broke, and the rows may be stored.
            refused = bool(error.sqlstate) or isinstance(error, psycopg.DataError)
            raise StoreUnavailable(f"the database answered {answered}", refused=refused) from None
        except BaseException:
            driver.close()  # the statement may still be under way
            raise
        finally:
            if driver.closed:
                connection.invalidate()

    def direct(self, engine: Engine, statement: Executable) -> DirectStatement:
        """Return what compiles the statement once and has it run by the driver alone."""
        return DirectStatement(engine, statement)

    def _among(self, ids: Column[UUID], query: Select[tuple[UUID]]) -> ColumnElement[bool]:
        """Compare with an array.

        PostgreSQL may join what stands behind IN to the table, and run a query with LIMIT and SKIP
        LOCKED anew for each row. It runs the query of an ARRAY once.
        """
        return ids == any_(func.array(query.scalar_subquery(), type_=ARRAY(ids.type)))

    @contextmanager
    def impatient(self, connection: Connection) -> Iterator[None]:
        """Wait for a lock 200 ms at most."""
        connection.exec_driver_sql("SET LOCAL lock_timeout = 200")
        yield

    def location(self, connection: Connection) -> Location:
        """Return the database, and the number that its server got when it was set up."""
        return frozenset({tuple(connection.execute(_PLACE).one())})

    def setting_query(self, name: str) -> str:
        """Return SHOW."""
        return f"SHOW {name}"

    @contextmanager
    def migrating(self, connection: Connection, tables: Tables) -> Iterator[None]:
        """Migrate in one transaction. The connection does not go back to the pool."""
        del tables
        connection.detach()
        driver = connection.connection.driver_connection
        if isinstance(driver, BoundedConnection):
            driver.patience = None
        connection.exec_driver_sql("SET statement_timeout = 0")
        connection.exec_driver_sql("SET lock_timeout = 0")
        connection.exec_driver_sql(self.begin)
        try:
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})")
            yield
            connection.exec_driver_sql("COMMIT")
        except BaseException:
            connection.exec_driver_sql("ROLLBACK")
            raise


class DirectStatement:
    """A statement that goes past SQLAlchemy: compiled once, then run by the driver alone."""

    def __init__(self, engine: Engine, statement: Executable) -> None:
        compiled = cast("ClauseElement", statement).compile(engine)
        self._engine = engine
        self._text = str(compiled).encode()
        self._constants = compiled.params

    def __call__(self, values: Mapping[str, Any]) -> list[Any]:
        """Run it, committed on its own; return the rows.

        Raises StoreUnavailable where the server has waited as long as it may, since asking again
        would double that; Unanswered for any other failure.
        """
        given = self._constants | {
            name: _array(value) if isinstance(value, list) else value
            for name, value in values.items()
        }
        with _driver(self._engine) as driver:
            cursor = driver.execute(self._text, given)
            return [_in_utc(row) for row in cursor.fetchall()] if cursor.description else []


def _array(values: list[Any]) -> str:
    """Return an array as PostgreSQL writes it: the driver takes its time over long ones."""
    return "{" + ",".join(map(_element, values)) + "}"


def _element(value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value)


def _in_utc(row: Sequence[Any]) -> list[Any]:
    return [each.astimezone(UTC) if type(each) is datetime else each for each in row]


@contextmanager
def _driver(engine: Engine) -> Iterator[psycopg.Connection[Any]]:
    try:
        pooled = engine.raw_connection()
    except (psycopg.Error, SQLAlchemyError):
        raise Unanswered(perhaps_done=False) from None
    driver = cast("psycopg.Connection[Any]", pooled.driver_connection)
    try:
        yield driver
    except (psycopg.errors.LockNotAvailable, psycopg.errors.QueryCanceled) as error:
        raise StoreUnavailable(f"the database answered {error.sqlstate}") from None
    except (psycopg.Error, ValueError, OverflowError) as error:
        if isinstance(error, psycopg.ProgrammingError) and error.sqlstate is None:
            raise  # a mistake in our call of the driver
        raise Unanswered(perhaps_done=driver.closed) from None
    except BaseException:
        driver.close()
        raise
    finally:
        if driver.closed:
            pooled.invalidate()
        else:
            pooled.close()


def _connect(
    dialect: object, record: object, arguments: list[Any], parameters: dict[str, Any]
) -> BoundedConnection:
    """Connect with settings that a submit can rely on.

    Those of the URL win, but for the encoding.
    """
    del dialect, record
    options = " ".join(f"-c {name}={value}" for name, value in _OPTIONS.items())
    merged = _LINE | parameters | _ENCODING
    merged["options"] = f"{options} {parameters.get('options', '')}".strip()
    return BoundedConnection.connect(*arguments, **merged)

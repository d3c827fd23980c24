"""What a PostgreSQL connection must have beyond the driver's habits: it never waits for ever."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, cast

import psycopg
from psycopg import sql
from psycopg.abc import RV, PQGen
from sqlalchemy import ClauseElement, Connection, Engine, Executable, Table
from sqlalchemy.exc import SQLAlchemyError

from dispatcher.errors import StoreUnavailable
from dispatcher.store.database import Unanswered, translated

STATEMENT_SECONDS = 10
_ANSWER_SECONDS = STATEMENT_SECONDS + 1.0
_OPTIONS = {
    # Rows are found by indexes. A plan made while the tables were empty would read them whole.
    "enable_seqscan": "off",
    "synchronous_commit": "on",
    "statement_timeout": f"{STATEMENT_SECONDS}s",
    "lock_timeout": "5s",
    "idle_in_transaction_session_timeout": "30s",
}
_ENCODING = {"client_encoding": "utf8"}
"""What rows are copied in. Given like this it also wins over the environment."""
_LINE = {
    "connect_timeout": 3,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": int(_ANSWER_SECONDS * 1_000),
}


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that gives up when the server stays silent.

    The server ends statements that take too long; a server that is frozen, or a line that is cut
    without a word, cannot. ``patience`` is how long it may be silent, in seconds; None for ever.
    """

    patience: float | None = _ANSWER_SECONDS

    def wait(self, gen: PQGen[RV], interval: float = 0.1, timeout: float | None = None) -> RV:
        """Wait for the server, but not for ever. Raises OperationalError and closes itself."""
        limit = self.patience if timeout is None else timeout
        try:
            return super().wait(gen, interval, limit)
        except psycopg.OperationalError as error:
            if error.sqlstate is None:  # not the server's word: the line is broken or silent
                self.close()
            raise


def be_patient(connection: Connection) -> None:
    """Let statements on this connection take their time. It does not go back to the pool."""
    connection.detach()
    driver = connection.connection.driver_connection
    if isinstance(driver, BoundedConnection):
        driver.patience = None
    connection.exec_driver_sql("SET statement_timeout = 0")
    connection.exec_driver_sql("SET lock_timeout = 0")


def copy(engine: Engine, table: Table, columns: Sequence[str], parts: Iterable[bytes]) -> None:
    """Store rows in the binary format of COPY, all or none. Raises StoreUnavailable."""
    names = sql.SQL(", ").join(map(sql.Identifier, columns))
    whole = [table.schema, table.name] if table.schema else [table.name]
    copying = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT binary)").format(
        sql.Identifier(*whole), names
    )
    with translated(), engine.connect() as connection:
        driver = connection.connection.driver_connection
        if not isinstance(driver, psycopg.Connection):
            raise StoreUnavailable("the driver cannot copy")
        try:
            with driver.cursor() as cursor, cursor.copy(copying) as stream:
                for part in parts:
                    stream.write(part)
        except psycopg.Error as error:
            # Its text may quote the row.
            answered = error.sqlstate or type(error).__name__
            refused = bool(error.sqlstate)  # else the line broke, and the rows may be stored
            raise StoreUnavailable(f"the database answered {answered}", refused=refused) from None
        except BaseException:
            driver.close()  # the statement may still be under way
            raise
        finally:
            if driver.closed:
                connection.invalidate()


class Straight:
    """A statement that goes past SQLAlchemy: compiled once, then run by the driver alone."""

    def __init__(self, engine: Engine, statement: Executable) -> None:
        compiled = cast("ClauseElement", statement).compile(engine)
        self._engine = engine
        self._text = str(compiled).encode()
        self._constants = compiled.params

    def __call__(self, values: Mapping[str, Any]) -> list[Any]:
        """Run it, committed on its own; return the rows. Raises what :func:`execute` does."""
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


def execute(engine: Engine, statement: bytes, values: Sequence[Any]) -> int:
    """Run one statement on a pooled connection; return how many rows it touched.

    Raises Unanswered, whatever went wrong; but StoreUnavailable where the server has waited as
    long as it may, since asking again would double that.
    """
    with _driver(engine) as driver:
        return driver.execute(statement, values).rowcount


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
            raise  # the driver was asked for nonsense
        raise Unanswered(perhaps_done=driver.closed) from None
    except BaseException:
        driver.close()
        raise
    finally:
        if driver.closed:
            pooled.invalidate()
        else:
            pooled.close()


def connect(arguments: list[Any], parameters: dict[str, Any]) -> BoundedConnection:
    """Connect with settings that a submit can rely on.

    Those of the URL win, but for the encoding.
    """
    options = " ".join(f"-c {name}={value}" for name, value in _OPTIONS.items())
    merged = _LINE | parameters | _ENCODING
    merged["options"] = f"{options} {parameters.get('options', '')}".strip()
    return BoundedConnection.connect(*arguments, **merged)

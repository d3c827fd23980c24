"""What a PostgreSQL connection must have beyond the driver's habits: it never waits for ever."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import psycopg
from psycopg import sql
from psycopg.abc import RV, PQGen
from sqlalchemy import Connection, Engine

from dispatcher.errors import StoreUnavailable
from dispatcher.store.database import translated

STATEMENT_SECONDS = 10
_ANSWER_SECONDS = STATEMENT_SECONDS + 1.0
_OPTIONS = {
    "synchronous_commit": "on",
    "statement_timeout": f"{STATEMENT_SECONDS}s",
    "lock_timeout": "5s",
    "idle_in_transaction_session_timeout": "30s",
}
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


def copy(engine: Engine, table: str, columns: Sequence[str], lines: Iterable[str]) -> None:
    """Store rows in the text format of COPY, all or none. Raises StoreUnavailable."""
    names = sql.SQL(", ").join(map(sql.Identifier, columns))
    statement = sql.SQL("COPY {} ({}) FROM STDIN").format(sql.Identifier(table), names)
    with translated(), engine.connect() as connection:
        driver = connection.connection.driver_connection
        if not isinstance(driver, psycopg.Connection):
            raise StoreUnavailable("the driver cannot copy")
        try:
            with driver.cursor() as cursor, cursor.copy(statement) as stream:
                for line in lines:
                    stream.write(line)
        except psycopg.Error as error:
            if driver.closed:
                connection.invalidate()
            # Its text may quote the row.
            answered = error.sqlstate or type(error).__name__
            refused = bool(error.sqlstate)  # else the line broke, and the rows may be stored
            raise StoreUnavailable(f"the database answered {answered}", refused=refused) from None


def connect(arguments: list[Any], parameters: dict[str, Any]) -> BoundedConnection:
    """Connect with settings that a submit can rely on; those of the URL win over the line's."""
    options = " ".join(f"-c {name}={value}" for name, value in _OPTIONS.items())
    merged = _LINE | parameters
    merged["options"] = f"{options} {parameters.get('options', '')}".strip()
    return BoundedConnection.connect(*arguments, **merged)

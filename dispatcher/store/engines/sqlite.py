"""SQLite: one file, one writer at a time, a write-ahead log."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, Insert, Table, event
from sqlalchemy.dialects.sqlite import insert

from dispatcher.store.engines.base import (
    DurableSettings,
    Location,
    StoreEngine,
    files_of,
    transaction,
)
from dispatcher.times.clock import SystemClock

_BUSY_SECONDS = 5.0
_BETWEEN_WAL_TRIES_SECONDS = 0.05


class SQLiteEngine(StoreEngine):
    """SQLite 3, by Python's own driver."""

    names = ("sqlite",)
    begin = "BEGIN IMMEDIATE"
    durable = DurableSettings(
        {"journal_mode": ("wal",), "synchronous": ("2", "3")},
        "keep the file on a local disk that takes WAL, and let no other program change it",
    )
    has_one_writer = True
    rebuilds_tables = True

    def connect_args(self) -> dict[str, Any]:
        """Wait for another writer, but not for ever."""
        return {"timeout": _BUSY_SECONDS}

    def prepare(self, engine: Engine) -> None:
        """Let connections write to a write-ahead log, and to the disk at each commit."""
        event.listen(engine, "connect", _prepare)

    @property
    def file(self) -> Path | None:
        """The file of the database."""
        return Path(self.url.database or "")

    def insert_if_absent(self, table: Table) -> Insert:
        """Return INSERT … ON CONFLICT DO NOTHING."""
        return insert(table).on_conflict_do_nothing()

    def undone_alone(self, connection: Connection) -> AbstractContextManager[object]:
        """Return nothing but a context: SQLite undoes a failed statement alone.

        Its driver begins a transaction only with the first write, so that a savepoint before would
        be one that commits when it is released.
        """
        del connection
        return nullcontext()

    def commits_by_itself(self, connection: Connection) -> bool:
        """Whether no transaction is open."""
        if connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT":
            return True
        driver: Any = connection.connection.driver_connection
        # Callers that write BEGIN themselves, as SQLAlchemy recommends, have no isolation level.
        alone = driver.isolation_level is None or getattr(driver, "autocommit", None) is True
        return alone and not driver.in_transaction

    def location(self, connection: Connection) -> Location:
        """Return the files of the connection, also attached ones."""
        attached = connection.exec_driver_sql("PRAGMA database_list")
        return files_of(Path(row[2]) for row in attached if row[2])

    def setting_query(self, name: str) -> str:
        """Return a PRAGMA."""
        return f"PRAGMA {name}"

    @contextmanager
    def migrating(self, connection: Connection) -> Iterator[None]:
        """Migrate in one transaction."""
        # A table is changed by making it anew; dropping the old one would take the attempts along.
        connection.exec_driver_sql("PRAGMA foreign_keys = OFF")
        try:
            with transaction(connection, self.begin):
                yield
        finally:
            connection.exec_driver_sql("PRAGMA foreign_keys = ON")


def _prepare(connection: Any, record: object) -> None:
    del record
    _to_wal(connection)
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA foreign_keys=ON")


def _to_wal(connection: sqlite3.Connection) -> None:
    """Give the file a write-ahead log. SQLite lets no process wait while another does so first."""
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

"""SQLite: one file, one writer at a time, a write-ahead log."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, event

from dispatcher.errors import StoreUnavailable
from dispatcher.store.engines.base import Durability, Location, StoreEngine, files_of, transaction
from dispatcher.times.clock import SystemClock

_BUSY_SECONDS = 5.0
_BETWEEN_WAL_TRIES_SECONDS = 0.05


class SQLiteEngine(StoreEngine):
    names = ("sqlite",)
    begin = "BEGIN IMMEDIATE"
    durable = Durability(
        "PRAGMA {}",
        {"journal_mode": ("wal",), "synchronous": ("2", "3")},
        "keep the file on a local disk that takes WAL, and let no other program change it",
    )
    has_one_writer = True

    def __init__(self, url: URL) -> None:
        super().__init__(url)
        name = url.database or ""
        # Found once, as SQLAlchemy does, so that a process may change its directory.
        self.file = None if name.startswith("file:") else Path(name).absolute()

    def prepare(self, engine: Engine) -> None:
        """Let connections write to a write-ahead log, and to the disk at each commit.

        They make no file, unless a ``file:`` URI says so: a wrong path is an error.
        """
        super().prepare(engine)
        event.listen(engine, "connect", _prepare)

    def make(self) -> None:
        """Make the empty file. Where it cannot be made, the first connection says why."""
        if self.file is not None:
            with suppress(OSError):
                self.file.touch(mode=0o644)  # as SQLite does

    def undone_alone(self, _connection: Connection) -> AbstractContextManager[object]:
        """Return no savepoint: SQLite undoes a failed statement alone.

        Its driver begins with the first write, so that one before would commit when it is released.
        """
        return nullcontext()

    def commits_by_itself(self, connection: Connection) -> bool:
        if connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT":
            return True
        driver: Any = connection.connection.driver_connection
        # Callers that write BEGIN themselves, as SQLAlchemy recommends, have no isolation level.
        alone = driver.isolation_level is None or getattr(driver, "autocommit", None) is True
        return alone and not driver.in_transaction

    def location(self, connection: Connection) -> Location:
        attached = connection.exec_driver_sql("PRAGMA database_list")
        return files_of(Path(row[2]) for row in attached if row[2])

    @contextmanager
    def migrating(self, connection: Connection) -> Iterator[None]:
        # A table is changed by making it anew; dropping the old one would take the attempts along.
        connection.exec_driver_sql("PRAGMA foreign_keys = OFF")
        try:
            with transaction(connection, self.begin):
                yield
        finally:
            connection.exec_driver_sql("PRAGMA foreign_keys = ON")

    def connect(
        self, _dialect: object, _record: object, _arguments: object, parameters: dict[str, Any]
    ) -> None:
        parameters["timeout"] = _BUSY_SECONDS
        path = self.file
        if path is None:
            return
        try:
            path.stat()
        except (FileNotFoundError, NotADirectoryError):
            if path.parent.is_dir():
                remedy = "run `dispatcher migrate`, or correct database_url"
                raise StoreUnavailable(f"there is no file {path}", remedy=remedy) from None
            remedy = (
                "make it, or correct database_url; `dispatcher up` and `dispatcher migrate` make "
                "the folder of data_dir"
            )
            raise StoreUnavailable(f"there is no folder {path.parent}", remedy=remedy) from None
        except OSError:
            return  # SQLite names the error


def _prepare(connection: Any, _record: object) -> None:
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

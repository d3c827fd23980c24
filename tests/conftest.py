"""Servers and databases for all tests."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import zoneinfo
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from dispatcher.quota import AnyQuota, Quota
from dispatcher.store.database import Database
from dispatcher.times import zones
from tests.support import canaries
from tests.support.compiled import compile_once
from tests.support.examples import ALL
from tests.support.house_fixtures import build, house, slow
from tests.support.http_receiver import Receiver, receiving
from tests.support.mariadb import MariaDBServer
from tests.support.proxy import FarDatabase, Proxy
from tests.support.rabbitmq import own_queue, rabbitmq
from tests.support.reserving import Reserving, reserving
from tests.support.servers import PostgresServer, RedisServer
from tests.support.sharing import begins_late, pytest_xdist_make_scheduler
from tests.support.tables import migrate_at
from tests.support.workplace import workplace

if zones.database().source == zones.PACKAGE:
    zoneinfo.reset_tzpath(())  # what tests compare with goes by the same tz database
    zoneinfo.ZoneInfo.clear_cache()

__all__ = ["build", "house", "own_queue", "pytest_xdist_make_scheduler", "rabbitmq", "slow"]

_OF_STORE = "tests/store/"
_ON_POSTGRESQL = (
    "tests/acceptance/",
    *(f"tests/delivery/test_{each}" for each in ("crashes", "delivery_faults", "unknown")),
    *(
        f"tests/submission/test_{each}"
        for each in (
            "async", "crashes", "if_unchanged", "late_duplicates",
            "slow_store", "store_faults", "transaction",
        )
    ),
)  # fmt: skip
"""Where use cases meet what databases do differently: side by side, broken off, in transactions."""
_SERVERS = {
    "redis_session", "own_redis", "postgres", "mariadb", "rabbitmq", "database_url",
    "empty_database_url", "far",
}  # fmt: skip
"""The fixtures that start a server."""


@pytest.fixture(autouse=True)
def no_log_tells_a_secret() -> Iterator[None]:
    """Look into every record that a test makes some logger write."""
    with canaries.watched() as leaks:
        yield
    assert leaks == []


@pytest.fixture(autouse=True)
def the_environment_stays() -> Iterator[None]:
    """Fail a test that leaves a variable behind: the processes of later tests would inherit it."""
    before = _variables()
    yield
    left = {name for name, _ in before.items() ^ _variables().items()}
    for name in left:
        if name in before:
            os.environ[name] = before[name]
        else:
            del os.environ[name]
    assert left == set()


def _variables() -> dict[str, str]:
    """Return the variables, without those of pytest and of the Django project, set up once."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "SHOP_"))}


@pytest.fixture(scope="session")
def redis_session() -> Iterator[RedisServer]:
    """One Redis for the whole run. Tests that stop or starve a server start their own."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def redis_server(redis_session: RedisServer) -> RedisServer:
    with redis_session.client() as client:
        client.flushall()
    return redis_session


@pytest.fixture
def redis_client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with redis_server.client() as client:
        yield client


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[Proxy]:
    """Give a line to Redis that can be broken."""
    with Proxy(redis_server.socket) as line:
        yield line


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as one:
        yield one


@pytest.fixture
def folder() -> Iterator[Path]:
    """Give a folder in which every process ends with the test."""
    with workplace() as path:
        yield path


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
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sqlite") / "template.db"
    migrate_at(f"sqlite:///{path}")
    return path


@pytest.fixture
def sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    return f"sqlite:///{shutil.copy(sqlite_template, tmp_path / 'store.db')}"


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDBServer]:
    with MariaDBServer() as server:
        yield server


def pytest_configure(config: pytest.Config) -> None:
    """Compile the store's statements once; note ``--all`` before files that ask for it are read."""
    if config.getoption("all"):
        os.environ[ALL] = "1"
    compile_once()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Let a failed test show warnings only: thousands of lines at DEBUG would hide them."""
    logs: Any = session.config.pluginmanager.get_plugin("logging-plugin")
    logs.report_handler.setLevel(logging.WARNING)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Set the level before shared fixtures begin, and again before each repeat of a test."""
    canaries.log_everything()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that runs every test."""
    parser.addoption("--all", action="store_true", help="run also what `make test` leaves out")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect without looking for garbage: what is imported stays, and half the time went there."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests on MariaDB that do not ask for it and, without ``--all``, the long way round.

    Without ``--all`` a test of the store runs on SQLite and PostgreSQL, one of the whole system, or
    of what databases do differently, on PostgreSQL, any other one on SQLite, where they can. Those
    marked ``long`` do not run.
    """
    for item in items:
        if not _SERVERS.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker("server")
    left_out = {item for item in items if _is_on("mariadb", item) and not _asks_for_mariadb(item)}
    if not config.getoption("all"):
        left_out |= {item for item in items if item.get_closest_marker("long") is not None}
        left_out |= _elsewhere(items)
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = sorted((item for item in items if item not in left_out), key=begins_late)


def _elsewhere(items: list[pytest.Item]) -> set[pytest.Item]:
    """Return the tests that run on another database, too."""
    names = {item.nodeid for item in items}
    left_out = set()
    for item in items:
        kinds = ["sqlite", "postgresql", "mariadb"]
        if item.nodeid.startswith(_ON_POSTGRESQL):
            kinds.sort(key="postgresql".__ne__)
        needed = 2 if item.nodeid.startswith(_OF_STORE) else 1
        for place, kind in enumerate(kinds):
            if (
                place >= needed
                and _is_on(kind, item)
                and any(item.nodeid.replace(kind, better) in names for better in kinds[:place])
            ):
                left_out.add(item)
    return left_out


def _is_on(kind: str, item: pytest.Item) -> bool:
    call = getattr(item, "callspec", None)
    return call is not None and kind in call.params.values()


def _asks_for_mariadb(item: pytest.Item) -> bool:
    if item.get_closest_marker("every_database") is not None:
        return True
    named = [mark.args[0] for mark in item.iter_markers("parametrize")]
    return any(kind in names for kind in ("database_url", "far") for names in named)


def _server(request: pytest.FixtureRequest) -> PostgresServer | MariaDBServer:
    name = {"postgresql": "postgres", "mariadb": "mariadb"}[request.param]
    server: PostgresServer | MariaDBServer = request.getfixturevalue(name)
    return server


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def empty_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        path = tmp_path / "empty.db"
        path.touch()  # only migrations make a file
        yield f"sqlite:///{path}"
        return
    server = _server(request)
    name = server.create_database()
    yield server.url(name)
    server.drop_database(name)


@pytest.fixture
def postgres_name(postgres: PostgresServer) -> str:
    return postgres.migrated(migrate_at)


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def database_url(request: pytest.FixtureRequest) -> str:
    """Give the URL of a migrated database, on each kind; on MariaDB where the test asks for it.

    A test, or its module, does so by the mark ``every_database``.
    """
    if request.param == "sqlite":
        return str(request.getfixturevalue("sqlite_url"))
    server = _server(request)
    return server.url(server.migrated(migrate_at))


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    database = Database(database_url)
    yield database
    database.close()


@pytest.fixture
def postgres_proxy(postgres: PostgresServer) -> Iterator[Proxy]:
    """Give a line to PostgreSQL that can be broken."""
    with Proxy(postgres.socket) as proxy:
        yield proxy


@pytest.fixture(params=["postgresql", "mariadb"])
def far(request: pytest.FixtureRequest) -> Iterator[FarDatabase]:
    """Give a migrated database at the end of a line that can be broken, on each kind of server."""
    server = _server(request)
    with Proxy(server.upstream) as proxy:
        yield FarDatabase(server, server.migrated(migrate_at), proxy)

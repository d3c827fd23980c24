"""The pytest plugin: fixtures for tests of programs that submit messages.

pytest imports this module in every run of an environment that has the dispatcher, so nothing else
is imported before a test asks for a fixture. It lies beside the package, because a project may have
a package ``dispatcher`` of its own: its tests run, and only these fixtures fail there.
``-p no:quota_dispatcher`` leaves the plugin out. A fixture of the same name in a project's
``conftest.py`` or test module takes the place of one of these.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from dispatcher.testing.travel import MemoryDispatcher, Outbox, Travel


_DATABASE_OPTION = "--dispatcher-database-url"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a run choose the database of the dispatcher."""
    parser.getgroup("quota-dispatcher").addoption(
        _DATABASE_OPTION,
        metavar="URL",
        help="the database for the fixtures of quota-dispatcher (default: a new SQLite database "
        "for each test); ALL ROWS of the dispatcher's tables in it are deleted before each test",
    )


@pytest.fixture
def dispatcher_database_url(pytestconfig: pytest.Config) -> str | None:
    """Give the database of the run; None for a new SQLite database for each test."""
    url: str | None = pytestconfig.getoption(_DATABASE_OPTION)
    return url


@pytest.fixture
def memory_dispatcher(dispatcher_database_url: str | None) -> Iterator[MemoryDispatcher]:
    """Give a dispatcher for a test, with the settings of the environment and ``dispatcher.toml``.

    The other fixtures are parts of it. Override it to choose settings, or the instant at which it
    starts.
    """
    try:
        from dispatcher.testing.travel import MemoryDispatcher  # noqa: PLC0415 - see above
    except ModuleNotFoundError as error:
        if not str(error.name).startswith("dispatcher"):
            raise
        found = find_spec("dispatcher")
        pytest.fail(
            "the fixtures of quota-dispatcher need its package dispatcher, but here dispatcher is "
            f"{found and found.origin}; -p no:quota_dispatcher leaves the fixtures out",
            pytrace=False,
        )

    with MemoryDispatcher(database_url=dispatcher_database_url) as made:
        yield made


@pytest.fixture
def dispatcher(memory_dispatcher: MemoryDispatcher) -> MemoryDispatcher:
    """Give the dispatcher of the test."""
    return memory_dispatcher


@pytest.fixture
def outbox(memory_dispatcher: MemoryDispatcher) -> Outbox:
    """Give what it has sent."""
    return memory_dispatcher.outbox


@pytest.fixture
def travel(memory_dispatcher: MemoryDispatcher) -> Travel:
    """Give what moves its time."""
    return memory_dispatcher.travel

"""Houses: wired dispatchers on real servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.house import House, hour_ago, house_on
from tests.support.servers import RedisServer

Build = Callable[..., House]
on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
on_postgresql = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
on_mariadb = pytest.mark.parametrize("database_url", ["mariadb"], indirect=True)


@pytest.fixture
def build(redis_server: RedisServer, database_url: str) -> Iterator[Build]:
    made: list[House] = []

    def make(
        *, server: RedisServer = redis_server, url: str = database_url, **more: object
    ) -> House:
        made.append(house_on(server, url, **more))  # type: ignore[arg-type]  # passed on
        return made[-1]

    yield make
    for house in made:
        house.close()


@pytest.fixture
def house(build: Build) -> House:
    """Give a house whose clock stands in 2100: nothing submitted is ever due."""
    return build()


@pytest.fixture
def slow(build: Build) -> House:
    """Give a house whose clock is an hour slow: what is submitted now is due at once."""
    return build(clock=hour_ago())

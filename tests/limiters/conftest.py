"""A Redis whose clock the tests move, and every limiter on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.limiters import START_US, Clocked, Ways
from tests.support.servers import RedisServer


@pytest.fixture
def moved(redis_server: RedisServer) -> Iterator[Clocked]:
    """Give a client of the run's Redis whose scripts see the test's time."""
    client = Clocked(str(redis_server.socket))
    yield client
    client.close()


@pytest.fixture(scope="module")
def shared(redis_session: RedisServer) -> Iterator[Clocked]:
    """Give such a client to examples, each of which empties it or uses keys of its own."""
    with Clocked(str(redis_session.socket)) as client:
        client.flushall()
        client.set_us(START_US)
        yield client


@pytest.fixture
def ways(redis_server: RedisServer) -> Callable[..., Ways]:
    """Give what makes a limiter on the run's Redis, through either client."""
    return lambda limit, way: Ways(limit, way, {"unix_socket_path": str(redis_server.socket)})

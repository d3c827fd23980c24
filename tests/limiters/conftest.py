"""A Redis whose clock the tests move, and every limiter on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.limiters import Clocked, clocked
from tests.support.servers import RedisServer


@pytest.fixture
def moved(redis_server: RedisServer) -> Iterator[Clocked]:
    """Give a client of the run's Redis whose scripts see the test's time."""
    client = clocked(str(redis_server.socket))
    yield client
    client.close()

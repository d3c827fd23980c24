"""What the examples run on: a real Redis that is open, and a migrated SQLite database."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from dispatcher.times.clock import SystemClock
from tests.support.house import House, house_on
from tests.support.servers import RedisServer

TOMORROW = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)


@pytest.fixture
def house(redis_server: RedisServer, sqlite_url: str) -> Iterator[House]:
    """Give a house with a channel for e-mail; the example under test has its settings."""
    channels = {"email": {"transport": "memory"}}
    with house_on(redis_server, sqlite_url, clock=SystemClock(), channels=channels) as house:
        yield house

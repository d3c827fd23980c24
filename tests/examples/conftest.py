"""What the examples run on: a real Redis that is open, and a migrated SQLite database."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dispatcher.times.clock import SystemClock
from tests.support.house import House, house_on
from tests.support.servers import RedisServer

TOMORROW = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)


@pytest.fixture
def house(redis_server: RedisServer, sqlite_template: Path, tmp_path: Path) -> Iterator[House]:
    """Give a house with a channel for e-mail; the example under test has its settings."""
    path = tmp_path / "store.db"
    path.write_bytes(sqlite_template.read_bytes())
    channels = {"email": {"transport": "memory"}}
    url = f"sqlite:///{path}"
    with house_on(redis_server, url, clock=SystemClock(), channels=channels) as house:
        yield house

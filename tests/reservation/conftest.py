"""Windows behind a line that breaks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.proxy import Proxy
from tests.support.reserving import Reserving, reserving
from tests.support.servers import RedisServer


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[Proxy]:
    with Proxy(redis_server.socket) as line:
        yield line


@pytest.fixture
def through(proxy: Proxy) -> Iterator[Reserving]:
    """Windows whose every connection goes through the proxy."""
    with reserving(f"redis://127.0.0.1:{proxy.port}", retries=3, timeout=1.0) as real:
        real.open()
        yield real

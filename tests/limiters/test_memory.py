"""The Redis in memory: whatever limiters must do on a Redis, they do on it, by the same scripts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from dispatcher.limiters import AsyncMemoryRedis, FixedWindow, MemoryRedis
from dispatcher.testing import TravelClock
from tests.limiters.test_conformance import *  # noqa: F403 - the suite, with the fixtures below
from tests.support.clock import MovableClock
from tests.support.limiters import START_US, Shown, Ways

del test_processes_together_get_exactly_the_limit  # noqa: F821 - memory belongs to one process


@pytest.fixture
def redis_client() -> Shown:
    return Shown()


@pytest.fixture
def moved() -> Shown:
    memory = Shown(MovableClock())
    memory.set_us(START_US)
    return memory


@pytest.fixture
def ways(redis_client: Shown) -> Callable[..., Ways]:
    return lambda limit, way: Ways(limit, redis_client, way)


@pytest.mark.parametrize("kind", [MemoryRedis, AsyncMemoryRedis])
def test_a_wait_takes_the_time_of_its_clock_and_no_other(
    kind: type[MemoryRedis | AsyncMemoryRedis],
) -> None:
    """The promise: a test waits neither for real nor for ever."""
    clock = TravelClock()
    limiter: Any = FixedWindow(1, "day").on(kind(clock=clock))
    for _ in range(2):
        taken = limiter.acquire("ada", wait=True)
        assert asyncio.run(taken) if kind is AsyncMemoryRedis else taken
    assert clock.monotonic() == 86_400

"""Limiters on a real Redis whose clock a test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from inspect import isabstract
from pathlib import Path
from typing import Any, cast

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from dispatcher import limiters
from dispatcher.limiters import (
    GCRA,
    Algorithm,
    AsyncLimiter,
    Concurrency,
    CounterPerKey,
    FixedWindow,
    Limiter,
    Limits,
    SlidingCounter,
    SlidingList,
    SlidingLog,
)
from dispatcher.testing.clock import RedisTime

_GONE = -2
MS = timedelta(milliseconds=1)
MINUTE = timedelta(minutes=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
START_US = 1_763_730_000_123_456
"""A time in 2025 that is no round one."""

_LEFT = "return redis.call('PTTL', KEYS[1])"


class Clocked(redis.Redis):
    """A client whose scripts see the time that the test set."""

    def __init__(self, unix_socket_path: str) -> None:
        super().__init__(unix_socket_path=unix_socket_path)
        self.now_us = START_US
        present = lambda: EPOCH + timedelta(microseconds=self.now_us)  # noqa: E731 - one word
        self._time = RedisTime(Path(unix_socket_path), present)
        self.time_of(self)

    def time_of(self, client: redis.Redis) -> redis.Redis:
        """Return a client that has no connections yet, by the same time from now on."""
        return self._time.told_by(client)

    def set_us(self, now_us: int) -> None:
        self.now_us = now_us

    def advance(self, length: timedelta) -> None:
        self.now_us += length // timedelta(microseconds=1)

    def everything(self) -> dict[bytes, bytes | None]:
        keys = cast("list[bytes]", self.keys("*"))
        return {key: self.dump(key) for key in keys if self.left(key) != _GONE}

    def left(self, key: bytes | str) -> int:
        return cast(int, self.eval(_LEFT, 1, key))


COUNTED: Mapping[str, Callable[[int, timedelta], Algorithm]] = {
    "FixedWindow": FixedWindow,
    "CounterPerKey": CounterPerKey,
    "SlidingLog": SlidingLog,
    "SlidingList": SlidingList,
    "SlidingCounter": SlidingCounter,
    "GCRA": lambda count, period: GCRA(count, period, max_burst=count - 1),
    "Concurrency": lambda count, period: Concurrency(count, hold=period),
    "AlignedWindow": lambda count, period: FixedWindow(count, period, align="Asia/Kolkata"),
}
"""Every algorithm that counts and takes a length, by its name: makes N per length."""


def exported_limits() -> list[type[Algorithm]]:
    exports = (getattr(limiters, name) for name in limiters.__all__)
    return [
        kind
        for kind in exports
        if isinstance(kind, type) and issubclass(kind, Algorithm) and not isabstract(kind)
    ]


ALL: Mapping[str, Callable[[int], Algorithm]] = {
    **{name: (lambda count, make=make: make(count, MINUTE)) for name, make in COUNTED.items()},  # type: ignore[misc]  # binds make
    "AlignedWindow": lambda count: FixedWindow(count, "day", align="Asia/Shanghai"),
}
"""Every algorithm that counts: makes N per minute or day."""


@dataclass
class Ways:
    """One limiter through clients of either kind, a new one for each call."""

    limit: Algorithm | Limits
    way: str
    connection: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*positional: Any, **named: Any) -> Any:
            again = Retry(NoBackoff(), 3)
            with redis.Redis(retry=again, **self.connection) as client:
                return getattr(self.limit.on(client, **self.options), name)(*positional, **named)

        async def awaited(*positional: Any, **named: Any) -> Any:
            again = AsyncRetry(NoBackoff(), 3)
            async with redis.asyncio.Redis(retry=again, **self.connection) as client:
                limiter: AsyncLimiter = self.limit.on(client, **self.options)
                answer = await getattr(limiter, name)(*positional, **named)
                in_use = cast("Any", client.connection_pool)._in_use_connections
                assert len(in_use) == (client.connection is not None), "but for one of its own"
                return answer

        if self.way == "sync":
            return call
        return lambda *positional, **named: asyncio.run(awaited(*positional, **named))


def taken(limiter: Limiter, key: str, times: int) -> int:
    """Ask that many times for one permit; return how many were given."""
    return sum(limiter.acquire(key).allowed for _ in range(times))

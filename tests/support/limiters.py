"""Limiters on a Redis whose clock a test moves.

The scripts run as they ship, on a real server. A few lines before them stand between a script and
Redis: ``TIME`` gives the test's time, and expiries go by it as well, as Redis would do it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from functools import cache
from inspect import isabstract
from pathlib import Path
from typing import Any, cast

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

import dispatcher
from dispatcher import limiters
from dispatcher.limiters import (
    GCRA,
    Algorithm,
    AsyncLimiter,
    AsyncMemoryRedis,
    Concurrency,
    CounterPerKey,
    FixedWindow,
    Limiter,
    Limits,
    MemoryRedis,
    SlidingCounter,
    SlidingList,
    SlidingLog,
)
from dispatcher.redis.scripts import Script, script
from dispatcher.times.clock import Clock
from tests.support.clock import MovableClock

MS = timedelta(milliseconds=1)
MINUTE = timedelta(minutes=1)
CLOCK = "test:clock"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
START_US = 1_763_730_000_123_456
"""A time in 2025 that is no round one."""

PRELUDE = """
local real, redis = redis, {}
local test_us = tonumber(real.call('HGET', 'test:clock', 'now'))
local test_ms = math.floor(test_us / 1000)
local function test_expiry(key, at)
  real.call('HSET', 'test:clock', 'end of ' .. key, string.format('%.0f', at))
end
for _, key in ipairs(KEYS) do
  local at = real.call('HGET', 'test:clock', 'end of ' .. key)
  if at and (test_ms > tonumber(at) or real.call('EXISTS', key) == 0) then
    real.call('DEL', key)
    real.call('HDEL', 'test:clock', 'end of ' .. key)
  end
end
function redis.call(command, key, ...)
  local given = {...}
  if command == 'TIME' then
    return {string.format('%.0f', math.floor(test_us / 1000000)),
            string.format('%.0f', test_us % 1000000)}
  elseif command == 'PEXPIRE' then
    return test_expiry(key, test_ms + given[1])
  elseif command == 'PEXPIREAT' then
    return test_expiry(key, given[1])
  elseif command == 'PTTL' then
    local at = real.call('HGET', 'test:clock', 'end of ' .. key)
    return at and at - test_ms or -1
  elseif command == 'SET' and given[2] == 'PX' then
    test_expiry(key, test_ms + given[3])
    return real.call('SET', key, given[1])
  elseif command == 'SET' and given[3] == 'PX' then
    local done = real.call('SET', key, given[1], given[2])
    if done then
      test_expiry(key, test_ms + given[4])
    end
    return done
  end
  return real.call(command, key, ...)
end
"""


@cache
def _with_clocks() -> dict[str, str]:
    """Return the digests of our scripts, and those that they have behind the prelude."""
    folder = Path(dispatcher.__file__).parent
    names = (f"{path.parts[-3]}/{path.stem}" for path in folder.glob("*/lua/*.lua"))
    return {
        each.sha: Script.of(PRELUDE + each.text).sha for each in (script(name) for name in names)
    }


class Clocked(redis.Redis):
    """A client whose scripts see the time that the test set."""

    def script_load(self, script: Any) -> Any:
        return super().script_load(PRELUDE + script)

    def execute_command(self, *args: Any, **options: Any) -> Any:
        execute: Any = super().execute_command
        return execute(*self._with_clock(args), **options)

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> Any:
        pipeline: Any = super().pipeline(transaction, shard_hint)
        execute = pipeline.execute_command
        pipeline.execute_command = lambda *args, **options: execute(
            *self._with_clock(args), **options
        )
        return pipeline

    def _with_clock(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        if args[0] != "EVALSHA":
            return args
        return (args[0], _with_clocks().get(args[1], args[1]), *args[2:])

    def register_script(self, script: Any) -> Any:
        return super().register_script(PRELUDE + script)

    def time(self, **_: Any) -> tuple[int, int]:
        return divmod(self.now_us, 1_000_000)

    def set_us(self, now_us: int) -> None:
        self.hset(CLOCK, "now", now_us)

    @property
    def now_us(self) -> int:
        return int(cast(bytes, self.hget(CLOCK, "now")))

    def advance(self, length: timedelta) -> None:
        self.set_us(self.now_us + length // timedelta(microseconds=1))

    def everything(self) -> dict[bytes, bytes | None]:
        """Return all that limiters keep and that has not expired."""
        ends = cast("dict[bytes, bytes]", self.hgetall(CLOCK))
        now_ms = self.now_us // 1_000
        return {
            key: self.dump(key)
            for key in cast("list[bytes]", self.keys("*"))
            if key != CLOCK.encode() and int(ends.get(b"end of " + key, now_ms)) >= now_ms
        }


def clocked(path: str) -> Clocked:
    """Return such a client, and set the time to START_US."""
    client = Clocked(unix_socket_path=path)
    client.set_us(START_US)
    return client


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
    """Return the classes of limits that callers may use."""
    found = (getattr(limiters, name) for name in limiters.__all__)
    return [
        each
        for each in found
        if isinstance(each, type) and issubclass(each, Algorithm) and not isabstract(each)
    ]


ALL: Mapping[str, Callable[[int], Algorithm]] = {
    **{name: (lambda count, make=make: make(count, MINUTE)) for name, make in COUNTED.items()},  # type: ignore[misc]  # binds make
    "AlignedWindow": lambda count: FixedWindow(count, "day", align="Asia/Shanghai"),
}
"""Every algorithm that counts: makes N per minute or day."""


@dataclass
class Ways:
    """One limiter through either client, called the same way; or on a Redis in memory."""

    limit: Algorithm | Limits
    path: str | MemoryRedis
    way: str
    more: dict[str, Any] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        path = self.path
        if isinstance(path, MemoryRedis):
            return self._in_memory(path, name)
        if self.way == "sync":
            again = Retry(NoBackoff(), 3)
            with redis.Redis(unix_socket_path=path, retry=again) as client:
                return getattr(self.limit.on(client, **self.more), name)

        def call(*positional: Any, **named: Any) -> Any:
            async def run() -> Any:
                again = AsyncRetry(NoBackoff(), 3)
                async with redis.asyncio.Redis(unix_socket_path=path, retry=again) as client:
                    limiter: AsyncLimiter = self.limit.on(client, **self.more)
                    called: Awaitable[Any] = getattr(limiter, name)(*positional, **named)
                    return await called

            return asyncio.run(run())

        return call

    def _in_memory(self, memory: MemoryRedis, name: str) -> Any:
        if self.way == "sync":
            return getattr(self.limit.on(memory, **self.more), name)
        awaited = AsyncMemoryRedis(clock=memory.clock)
        awaited._interpreter = memory._interpreter
        limiter = self.limit.on(awaited, **self.more)
        return lambda *args, **named: asyncio.run(getattr(limiter, name)(*args, **named))


class Shown(MemoryRedis):
    """A Redis in memory whose keys a test sees, and whose clock it moves."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock=clock)

    def _entries(self) -> dict[bytes, Any]:
        self._interpreter.keyspace.begin()
        return self._interpreter.keyspace.entries()

    def keys(self, pattern: str) -> list[bytes]:
        return [name for name in self._entries() if fnmatchcase(name.decode(), pattern)]

    def dump(self, name: bytes) -> bytes:
        value = self._entries()[name][0]
        return repr(getattr(value, "ordered", value)).encode()

    def pttl(self, name: bytes) -> int:
        return cast(int, self._interpreter.keyspace.call(b"PTTL", name))

    def everything(self) -> dict[bytes, bytes]:
        """Return all that limiters keep and that has not expired."""
        return {name: self.dump(name) for name in self.keys("*")}

    def flushall(self) -> None:
        for name in self._entries():
            self._interpreter.keyspace.call(b"DEL", name)

    @property
    def now_us(self) -> int:
        return (self.clock.now() - EPOCH) // timedelta(microseconds=1)

    def set_us(self, now_us: int) -> None:
        cast(MovableClock, self.clock).set_wall(EPOCH + timedelta(microseconds=now_us))

    def advance(self, length: timedelta) -> None:
        cast(MovableClock, self.clock).advance(length)


def taken(limiter: Limiter, key: str, times: int) -> int:
    """Ask that many times for one permit; return how many were given."""
    return sum(limiter.acquire(key).allowed for _ in range(times))

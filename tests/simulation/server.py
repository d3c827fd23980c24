"""The Redis of a story: what may happen to it, and what it holds."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import cached_property
from typing import Any, cast

from redis import Redis

from dispatcher.redis.keys import scope_of
from dispatcher.reservation.fence import Fence
from dispatcher.testing.app import servers
from dispatcher.testing.clock import RedisTime
from dispatcher.times.send_time import to_ms

_FACTOR = 64
"""The ends of keys are multiples of it (``travel.lua``)."""
_Kept = dict[bytes, tuple[bytes, int]]


class Server:
    """One Redis that may become another one, with older data."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self.number = 1
        self._now = now
        self.client.flushdb()
        self._kept: _Kept = {}

    @cached_property
    def client(self) -> Redis:
        client = RedisTime(servers().socket, self._now).client()
        vars(client)["info"] = self._info
        return client

    def _info(self, *_: object) -> dict[str, Any]:
        return {"run_id": f"run {self.number}", "maxmemory_policy": "noeviction"}

    def now_ms(self) -> int:
        return to_ms(self._now())

    def flush(self) -> None:
        self.client.flushdb()

    def keep(self) -> None:
        """Remember how things stand, as a replica does that lags behind."""
        names = self._names()
        pipeline = self.client.pipeline(transaction=True)
        pipeline.time()
        for name in names:
            pipeline.dump(name)
            pipeline.pttl(name)
        (seconds, micros), *found = pipeline.execute()
        now_ms = seconds * 1_000 + micros // 1_000
        self._kept = {
            name: (dump, 0 if life < 0 else round((now_ms + life) / _FACTOR) * _FACTOR)
            for name, dump, life in zip(names, found[::2], found[1::2], strict=True)
        }

    def fail_over(self, fence: Fence) -> None:
        """Become another server with what was kept. Whoever connects takes the epochs back."""
        pipeline = self.client.pipeline(transaction=True)
        pipeline.flushdb()
        for name, (dump, ends_at) in self._kept.items():
            pipeline.restore(name, ends_at, dump, absttl=ends_at > 0)
        pipeline.execute()
        self.number += 1
        fence.incomplete(self.client, fence.parts)

    def members(self) -> set[bytes]:
        """Return the members of all windows."""
        pipeline = self.client.pipeline(transaction=False)
        for name in self._names():
            if scope_of(name) is not None:
                pipeline.zrange(name, 0, -1)
        return {member for members in pipeline.execute() for member in members}

    def unconfirmed(self, fence: Fence) -> int:
        return sum(int(cast("Any", self.client.zcard(keys.pending))) for keys in fence.keys)

    def scores(self, name: str) -> dict[bytes, float]:
        return dict(cast("Any", self.client.zrange(name, 0, -1, withscores=True)))

    def _names(self) -> list[bytes]:
        return sorted(cast("list[bytes]", self.client.keys("{sim:*")))

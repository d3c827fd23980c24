"""Forgetting what no quota can count any more.

Windows do not expire by themselves: an expiry would cost each small window half its weight again,
and every booking a command that takes it back.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import redis

from dispatcher.redis.keys import ShardKeys, all_of, kind_of, start_of
from dispatcher.redis.scripts import source
from dispatcher.reservation.fence import Fence
from dispatcher.reservation.foreign import Foreign

KEEP_MS = 86_400_000
"""How much longer than the longest quota a reservation is kept: room for clocks that are wrong."""

_MOST_FORGOTTEN = 1_000
_FOR_EVER = -1
_PLAN_LIFE_MS = 600_000


class Tidy:
    """Trims windows, a few at a time."""

    def __init__(self, client: redis.Redis, fence: Fence, foreign: Foreign) -> None:
        self._client = client
        self._foreign = foreign
        self._namespace = fence.namespace
        self._keys = {keys.contents.encode(): keys for keys in fence.keys}
        self._script = client.register_script(source("reservation/tidy"))
        self._cursor = 0

    def windows(self, found: Iterable[tuple[bytes, ShardKeys]], pipeline: Any) -> None:
        """Trim these windows when ``pipeline`` is executed."""
        for window, keys in found:
            words: list[int | str] = [KEEP_MS, f"reach:{kind_of(window)}", _MOST_FORGOTTEN]
            self._script(keys=[window, keys.epoch], args=words, client=pipeline)

    def some(self, *, keys_at_once: int) -> int:
        """Trim the windows among the next ``keys_at_once`` keys or so; return members forgotten.

        What is foreign among them is set aside.
        """
        self._cursor, names = self._client.scan(
            self._cursor, match=all_of(self._namespace), count=keys_at_once
        )
        pipeline = self._client.pipeline(transaction=False)
        found = [(name, self._keys.get(start_of(name))) for name in cast("list[bytes]", names)]
        windows = [(name, keys) for name, keys in found if keys is not None]
        self._foreign.set_aside(windows)
        self.windows(windows, pipeline)
        forgotten: int = sum(pipeline.execute())
        self._end_plans([name for name, keys in found if keys is None and b"}:plan:" in name])
        return forgotten

    def _end_plans(self, names: list[bytes]) -> None:
        """Give what a killed plan left behind a life that ends."""
        for name in names:
            if self._client.pttl(name) == _FOR_EVER:
                self._client.pexpire(name, _PLAN_LIFE_MS)

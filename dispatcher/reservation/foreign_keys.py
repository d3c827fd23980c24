"""Keys that have the names of windows and were not written by the dispatcher.

A script that reads one fails, and with it everything behind it in the same call.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import cast
from uuid import uuid4

import redis

from dispatcher.redis.keys import ShardKeys, all_of, aside_of, scope_of, start_of
from dispatcher.redis.scripts import source
from dispatcher.reservation.fence import Fence

log = logging.getLogger(__name__)

_AT_ONCE = 500
_MOST_LOOKED_AT = 1_000
"""How many members are looked at from each end: as many as the sweep reads of what is pending."""
_TYPES = ("string", "list", "set", "hash", "stream")


class ForeignKeys:
    """Finds foreign keys and renames them. Their shards are then rebuilt from the store."""

    def __init__(self, client: redis.Redis, fence: Fence) -> None:
        self._client = client
        self._fence = fence
        self._keys = {keys.contents.encode(): keys for keys in fence.keys}
        self._script = client.register_script(source("reservation/set_aside"))

    def set_aside(self, windows: Iterable[tuple[bytes, ShardKeys]]) -> int:
        """Set aside what is foreign among these windows; return how many keys that were."""
        return self._set_aside((name, keys, "window") for name, keys in windows)

    def set_all_aside(self) -> int:
        """Set aside what is foreign among all windows and what is pending."""
        many = self._set_aside(
            (keys.pending.encode(), keys, "pending") for keys in self._fence.keys
        )
        names = self._client.scan_iter(match=all_of(self._fence.namespace), count=_AT_ONCE)
        while some := list(islice(names, _AT_ONCE)):
            known = ((name, self._keys.get(start_of(name))) for name in cast("list[bytes]", some))
            many += self.set_aside((name, keys) for name, keys in known if keys is not None)
        return many

    def names(self) -> Iterator[bytes]:
        """Yield the names of windows that are of another type than a window."""
        for kind in _TYPES:
            pattern = f"{all_of(self._fence.namespace)}:window*"
            for name in self._client.scan_iter(match=pattern, count=_AT_ONCE, _type=kind):
                if scope_of(name) is not None:
                    yield name

    def kept(self) -> int:
        """Return how many keys were set aside and are still there."""
        pattern = aside_of(all_of(self._fence.namespace) + "}:*", "*")
        return sum(1 for _ in self._client.scan_iter(match=pattern, count=_AT_ONCE))

    def _set_aside(self, names: Iterable[tuple[bytes, ShardKeys, str]]) -> int:
        pipeline = self._client.pipeline(transaction=False)
        token = uuid4().hex[:12]
        for name, keys, kind in names:
            kept = aside_of(name.decode("utf-8", "surrogateescape"), token)
            self._script(
                keys=[name, keys.epoch, kept.encode("utf-8", "surrogateescape")],
                args=[kind, _MOST_LOOKED_AT],
                client=pipeline,
            )
        many: int = sum(pipeline.execute())
        if many:
            log.error(
                "%d keys in Redis under the names of windows are not ours; set aside, and their "
                "shards are rebuilt from the store: see them by SCAN with MATCH %s, find out who "
                "wrote them, then delete them",
                many, aside_of(all_of(self._fence.namespace) + "}:*", "*"),
            )  # fmt: skip
        return many

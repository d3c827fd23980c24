"""Keys that have the names of windows and were not written by the dispatcher.

A script that reads one fails, and with it everything behind it in the same call.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from uuid import uuid4

import redis

from dispatcher.redis.keys import ShardKeys, all_of, aside_of, scope_of
from dispatcher.redis.scripts import Call, replies_of, script
from dispatcher.reservation.fence import Fence

log = logging.getLogger(__name__)

_AT_ONCE = 500
_MOST_LOOKED_AT = 1_000
"""How many members are looked at from each end: as many as the sweep reads of what is pending."""
_MOST_WINDOWS = 10_000
"""How many windows the doctor looks into."""
_Named = tuple[bytes, ShardKeys]
_TYPES = ("string", "list", "set", "hash", "stream")


class ForeignKeys:
    """Finds foreign keys and renames them. Their shards are then rebuilt from the store."""

    def __init__(self, client: redis.Redis, fence: Fence) -> None:
        self._client = client
        self._fence = fence
        self._script = script("reservation/set_aside")

    def set_aside(self, ours: Iterable[_Named]) -> int:
        """Set aside what is foreign among windows and what is pending; return how many keys."""
        many = sum(self._judge(ours, "set_aside"))
        if many:
            log.error(
                "%d keys in Redis with names of windows are not ours: they are set aside, and "
                "their shards are rebuilt from the store; find the writer, then "
                "delete the keys that SCAN with MATCH %s finds",
                many, self._pattern,
            )  # fmt: skip
        return many

    def set_all_aside(self) -> int:
        """Set aside what is foreign among all windows and what is pending."""
        many = self.set_aside(self._pending())
        names = self._client.scan_iter(match=all_of(self._fence.namespace), count=_AT_ONCE)
        while some := list(islice(names, _AT_ONCE)):
            many += self.set_aside(self._windows(some))
        return many

    def names(self) -> Iterator[bytes]:
        """Yield the names of windows that are of another type than a window."""
        for kind in _TYPES:
            pattern = f"{all_of(self._fence.namespace)}:window*"
            for name in self._client.scan_iter(match=pattern, count=_AT_ONCE, _type=kind):
                if scope_of(name) is not None:
                    yield name

    def there(self) -> int:
        """Return how many keys are foreign now, of any type or by their members.

        The members of the first ``_MOST_WINDOWS`` windows are looked at, so that the work is
        bounded; the sweep looks at all in turn.
        """
        pattern = f"{all_of(self._fence.namespace)}:window*"
        found = self._client.scan_iter(match=pattern, count=_AT_ONCE, _type="zset")
        many = sum(1 for _ in self.names())
        these = chain(self._pending(), self._windows(islice(found, _MOST_WINDOWS)))
        while some := list(islice(these, _AT_ONCE)):
            many += sum(self._judge(some, "look"))
        return many

    def kept(self) -> int:
        """Return how many keys were set aside and are still there."""
        return sum(1 for _ in self._client.scan_iter(match=self._pattern, count=_AT_ONCE))

    @property
    def _pattern(self) -> str:
        """What matches the names of keys that were set aside."""
        return aside_of(all_of(self._fence.namespace) + "}:*", "*")

    def _pending(self) -> Iterator[_Named]:
        return ((keys.pending.encode(), keys) for keys in self._fence.keys)

    def _windows(self, names: Iterable[bytes]) -> Iterator[_Named]:
        known = ((name, self._fence.shard_of(name)) for name in names)
        return ((name, keys) for name, keys in known if keys is not None)

    def _judge(self, ours: Iterable[_Named], then: str) -> list[int]:
        token = uuid4().hex[:12]
        calls: list[Call] = []
        for name, keys in ours:
            kind = "pending" if name == keys.pending.encode() else "window"
            kept = aside_of(name.decode("utf-8", "surrogateescape"), token)
            names: list[bytes | str] = [name, keys.epoch, kept.encode("utf-8", "surrogateescape")]
            calls.append((names, [kind, _MOST_LOOKED_AT, then]))
        return replies_of(self._client, self._script, calls)

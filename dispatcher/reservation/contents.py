"""What the windows hold, read in pages, so that no reading keeps Redis busy for long."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, cast

import redis

from dispatcher.errors import ReservationsUnavailable
from dispatcher.redis.clock import now_ms
from dispatcher.redis.errors import translated
from dispatcher.redis.keys import ShardKeys, all_of, pending_of, scope_of, shard_of, tag_of
from dispatcher.redis.scripts import source
from dispatcher.reservation.fence import Fence
from dispatcher.reservation.foreign_keys import ForeignKeys
from dispatcher.reservation.shards import closed
from dispatcher.scope import Scope

_PAGE = 1_000
_MOST_AT_ONCE = 250
_NAMES_AT_ONCE = 500
_FIRST_PAGE = 20
"""How many members of each of many windows are read together; few windows hold more."""

Member = tuple[bytes, int]
"""What stands in a window, a message's id or a hold that begins with it, and its time in ms."""

_Page = list[tuple[bytes, float]]


class Held(NamedTuple):
    """One member of one window."""

    window: bytes
    member: bytes
    at_ms: int


class Seen(NamedTuple):
    """What Redis says of one member: its time, None without one, and since when it is pending."""

    at_ms: int | None
    pending_since_ms: int | None


class Contents:
    """Reads windows. Every call raises ReservationsUnavailable like Windows."""

    def __init__(self, client: redis.Redis, fence: Fence) -> None:
        self._client = client
        self._fence = fence
        self._foreign_keys = ForeignKeys(client, fence)
        self._look = client.register_script(source("reservation/look"))
        self._by_tag = {keys.tag: keys for keys in fence.keys}

    @property
    def shards(self) -> Sequence[ShardKeys]:
        """All shards."""
        return self._fence.keys

    def now_ms(self) -> int:
        """Return the present by Redis, in ms since 1970."""
        with translated(ReservationsUnavailable):
            return now_ms(self._client)

    def opened(self) -> dict[ShardKeys, int]:
        """Return the shards that are complete, and when each was opened, in ms since 1970."""
        with translated(ReservationsUnavailable):
            pipeline = self._client.pipeline(transaction=False)
            for keys in self._fence.keys:
                pipeline.hget(keys.epoch, "opened_at_ms")
            replies = pipeline.execute()
        return {
            keys: int(opened)
            for keys, opened in zip(self._fence.keys, replies, strict=True)
            if opened
        }

    def shard_of(self, window: bytes) -> ShardKeys | None:
        """Return the shard in which a window lies; None where the layout has no such shard."""
        return self._by_tag.get(tag_of(window))

    def window_of(self, scope: Scope) -> tuple[ShardKeys, bytes]:
        """Return the shard of a scope and the name of its window."""
        keys = self._fence.keys[shard_of(scope.home, len(self._fence.keys))]
        return keys, keys.window(scope.name, scope.kind).encode()

    def members(
        self,
        keys: ShardKeys,
        window: str,
        from_ms: int,
        until_ms: int,
        *,
        at_most: int,
        backwards: bool = False,
    ) -> tuple[list[Member], bool]:
        """Return the members of a window from ``from_ms`` until before ``until_ms``, in order.

        At most so many: the first ones, or with ``backwards`` the last ones. The flag tells
        whether these are all. Raises ReservationsUnavailable also where the shard is not complete.
        """

        def read(edge_ms: int | str, skip: int) -> _Page:
            with self._client.pipeline(transaction=True) as pipeline:
                pipeline.exists(keys.epoch)
                if backwards:
                    pipeline.zrevrangebyscore(window, edge_ms, from_ms, skip, _PAGE, True)
                else:
                    pipeline.zrangebyscore(window, edge_ms, f"({until_ms}", skip, _PAGE, True)
                complete, page = pipeline.execute()
            if not complete:
                raise closed()
            return cast("_Page", page)

        found: list[Member] = []
        with translated(ReservationsUnavailable):
            for page in _paged(read, f"({until_ms}" if backwards else from_ms):
                found += page
                if len(found) > at_most:
                    break
        some = found[:at_most]
        return some[::-1] if backwards else some, len(found) <= at_most

    def counts(
        self, keys: ShardKeys, window: str, stretches: Sequence[tuple[int, int]]
    ) -> list[int]:
        """Return how many members a window has in each stretch, from a time until before another.

        Raises ReservationsUnavailable also where the shard is not complete.
        """
        with translated(ReservationsUnavailable):
            pipeline = self._client.pipeline(transaction=False)
            pipeline.exists(keys.epoch)
            for from_ms, until_ms in stretches:
                pipeline.zcount(window, from_ms, f"({until_ms}")
            complete, *found = pipeline.execute()
        if not complete:
            raise closed()
        return found

    def is_there(self, window: str) -> bool:
        """Tell whether a window has a member at all."""
        with translated(ReservationsUnavailable):
            return bool(self._client.exists(window))

    def look(self, members: Sequence[tuple[bytes, bytes]]) -> list[Seen]:
        """Return what Redis says of these members, each given as window and member."""
        by_shard: dict[str, list[int]] = {}
        for number, (window, _) in enumerate(members):
            by_shard.setdefault(tag_of(window), []).append(number)
        batches = [
            (tag, numbers[start : start + _MOST_AT_ONCE])
            for tag, numbers in by_shard.items()
            for start in range(0, len(numbers), _MOST_AT_ONCE)
        ]
        with translated(ReservationsUnavailable):
            pipeline = self._client.pipeline(transaction=False)
            for tag, numbers in batches:
                windows: dict[bytes, int] = {}
                words: list[int | bytes] = []
                for number in numbers:
                    window, member = members[number]
                    words += (windows.setdefault(window, len(windows) + 1), member)
                self._look(keys=[pending_of(tag), *windows], args=words, client=pipeline)
            replies = pipeline.execute()
        seen = [Seen(None, None)] * len(members)
        for (_, numbers), reply in zip(batches, replies, strict=True):
            for number, *each in zip(numbers, reply[::2], reply[1::2], strict=True):
                seen[number] = Seen(*each)
        return seen

    def foreign(self) -> set[bytes]:
        """Return the windows that are of another type than a window."""
        with translated(ReservationsUnavailable):
            return set(self._foreign_keys.names())

    def everything(self) -> Iterator[list[Held]]:
        """Yield all members of all windows of the namespace, in pages.

        What comes or goes meanwhile may be missed or yielded twice.
        """
        names: list[bytes] = []
        with translated(ReservationsUnavailable):
            found = self._client.scan_iter(
                match=all_of(self._fence.namespace), count=_NAMES_AT_ONCE
            )
            for name in found:
                if scope_of(name) is not None:
                    names.append(name)
                if len(names) == _NAMES_AT_ONCE:
                    yield from self._of(names)
                    names = []
            yield from self._of(names)

    def _of(self, windows: Sequence[bytes]) -> Iterator[list[Held]]:
        pipeline = self._client.pipeline(transaction=False)
        for window in windows:
            pipeline.zrange(window, 0, _FIRST_PAGE - 1, withscores=True)
        replies = pipeline.execute(raise_on_error=False)
        first = {
            window: reply
            for window, reply in zip(windows, replies, strict=True)
            if not isinstance(reply, redis.ResponseError)
        }
        yield [
            Held(window, member, int(score))
            for window, members in first.items()
            if len(members) < _FIRST_PAGE
            for member, score in members
        ]
        for window, members in first.items():
            if len(members) == _FIRST_PAGE:
                for page in self._whole(window):
                    yield [Held(window, *each) for each in page]

    def _whole(self, window: bytes) -> Iterator[list[Member]]:
        def read(edge_ms: int | str, skip: int) -> _Page:
            found = self._client.zrangebyscore(window, edge_ms, "+inf", skip, _PAGE, True)
            return cast("_Page", found)

        return _paged(read, "-inf")


def _paged(read: Callable[[int | str, int], _Page], edge_ms: int | str) -> Iterator[list[Member]]:
    """Yield pages by score. Those at the time of the last one are skipped by their number."""
    skip = 0
    while True:
        page = [(member, int(score)) for member, score in read(edge_ms, skip)]
        if page:
            yield page
        if len(page) < _PAGE:
            return
        last_ms = page[-1][1]
        ties = sum(at_ms == last_ms for _, at_ms in page)
        skip = ties + (skip if edge_ms == last_ms else 0)
        edge_ms = last_ms

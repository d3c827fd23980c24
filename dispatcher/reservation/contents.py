"""What the windows hold, read in pages that keep Redis busy for a moment; how servers are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from math import inf
from pathlib import Path
from typing import Any, NamedTuple, cast

import redis

from dispatcher.errors import ReservationsUnavailable
from dispatcher.redis.client import now_ms
from dispatcher.redis.cluster import Cluster, masters_of
from dispatcher.redis.errors import translated
from dispatcher.redis.keys import ShardKeys, all_of, epoch_of, pending_of, scope_of, tag_of
from dispatcher.redis.scripts import replies_to
from dispatcher.reservation.fence import Fence, Part, fields_of, server_of
from dispatcher.reservation.shards import closed
from dispatcher.settings import open_to_others
from dispatcher.times.clock import MILLISECOND
from dispatcher.times.send_time import from_ms

_PAGE = 1_000
_NAMES_AT_ONCE = 500
_OTHER_TYPES = ("string", "list", "set", "hash", "stream")
_FIRST_PAGE = 20
"""How many members of each of many windows are read together; few windows hold more."""

Member = tuple[bytes, int]
"""What stands in a window, a message's id and perhaps a tail, and its time in ms."""


class Held(NamedTuple):
    window: bytes
    member: bytes
    at_ms: int


class MemberState(NamedTuple):
    """What Redis says of one member: its time, None without one, and since when it is pending."""

    at_ms: int | None
    pending_since_ms: int | None


class Contents:
    """Reads windows. Every call raises ReservationsUnavailable like Windows.

    Reads of one window raise it for a shard that is not complete, too.
    """

    def __init__(self, client: redis.Redis, fence: Fence) -> None:
        self._client = client
        self.fence = fence

    def now_ms(self) -> int:
        with translated(ReservationsUnavailable):
            return now_ms(self._client)

    def _ask(self, commands: Iterable[Sequence[Any]]) -> list[Any]:
        return replies_to(self._client, commands)

    def opened(self) -> dict[ShardKeys, int]:
        """Return the shards that are complete, and when each was opened, in ms since 1970."""
        replies = self._ask(("HGET", keys.epoch, "opened_at_ms") for keys in self.fence.keys)
        return {
            keys: int(opened)
            for keys, opened in zip(self.fence.keys, replies, strict=True)
            if opened
        }

    def members(
        self, window: bytes, from_ms: int, until_ms: int, *, most: float = inf
    ) -> list[Member]:
        """Return the members of a window in a stretch of time in order, about ``most`` of them."""
        members: list[Member] = []
        stretch = ("ZRANGEBYSCORE", window, from_ms, f"({until_ms}", "WITHSCORES", "LIMIT")
        while True:
            [page] = self._of_open(window, [(*stretch, len(members), _PAGE)])
            members += (
                (member, int(score)) for member, score in zip(page[::2], page[1::2], strict=True)
            )
            if len(page) < 2 * _PAGE or len(members) >= most:
                return members

    def counts(self, window: bytes, stretches: Sequence[tuple[int, int]]) -> list[int]:
        """Return how many members a window has in each stretch of time, without its end."""
        return self._of_open(
            window, [("ZCOUNT", window, from_ms, f"({until_ms}") for from_ms, until_ms in stretches]
        )

    def _of_open(self, window: bytes, commands: Sequence[Sequence[Any]]) -> list[Any]:
        complete, *replies = self._ask([("EXISTS", epoch_of(tag_of(window))), *commands])
        if not complete:
            raise closed()
        return replies

    def look(self, members: Sequence[tuple[bytes, bytes]]) -> list[MemberState]:
        """Return what Redis says of these members, each given as window and member."""
        scores = self._ask(
            command
            for window, member in members
            for command in (
                ("ZSCORE", window, member),
                ("ZSCORE", pending_of(tag_of(window)), member + window),
            )
        )
        times = [None if score is None else int(score) for score in scores]
        return [*map(MemberState, times[::2], times[1::2])]

    def foreign(self) -> set[bytes]:
        """Return the keys of windows and of ``pending`` that are no ZSET: another program's."""
        match, count = all_of(self.fence.namespace), _NAMES_AT_ONCE
        with translated(ReservationsUnavailable):
            return {
                name
                for kind in _OTHER_TYPES
                for name in self._client.scan_iter(match=match, count=count, _type=kind)
                if scope_of(name) is not None or name == pending_of(tag_of(name)).encode()
            }

    def everything(self) -> Iterator[list[Held]]:
        """Yield all members in pages; what comes or goes meanwhile may be missed, or come twice."""
        with translated(ReservationsUnavailable):
            keys = self._client.scan_iter(match=all_of(self.fence.namespace), count=_NAMES_AT_ONCE)
            windows = filter(scope_of, keys)
            while names := [*islice(windows, _NAMES_AT_ONCE)]:
                yield from self._of(names)

    def _of(self, windows: Sequence[bytes]) -> Iterator[list[Held]]:
        pipeline = self._client.pipeline(transaction=False)
        for window in windows:
            pipeline.zrange(window, 0, _FIRST_PAGE - 1, withscores=True)
        replies = pipeline.execute(raise_on_error=False)
        members_of_small: list[Held] = []
        for window, members in zip(windows, replies, strict=True):
            if isinstance(members, redis.ResponseError):
                continue  # another program wrote it
            if len(members) < _FIRST_PAGE:
                members_of_small += (Held(window, member, int(at)) for member, at in members)
                continue
            scanned = self._client.zscan_iter(window, count=_PAGE)
            held = (Held(window, member, int(at)) for member, at in scanned)
            while page := [*islice(held, _PAGE)]:
                yield page
        yield members_of_small


class RedisNode(NamedTuple):
    """What a server answers to INFO, and to what else the doctor asks it.

    ``name`` is its host and port where it is one of a cluster, else empty.
    """

    name: str
    info: Mapping[str, Any]
    database: int = 0
    is_private: bool = False
    """Whether it is reached by a socket that no other user of this machine may open."""
    has_snapshots: bool | None = None
    """None where the server does not tell."""
    cluster: Mapping[str, str] | None = None
    """The answer to CLUSTER INFO of one that is in a cluster."""
    all_nodes_asked: bool = False
    """Whether ``redis_url`` is that of a cluster."""


class RedisSurvey(Contents):
    """What the doctor asks Redis, by a client without a fence, which would take back epochs."""

    def clocks(self) -> list[Callable[[], datetime]]:
        def now(server: redis.Redis) -> datetime:
            with translated(ReservationsUnavailable):
                return from_ms(now_ms(server))

        with translated(ReservationsUnavailable):
            return [partial(now, server) for server in masters_of(self._client).values()]

    def servers(self) -> list[RedisNode]:
        with translated(ReservationsUnavailable):
            return [self._node(*master) for master in masters_of(self._client).items()]

    def _node(self, name: str, server: Any) -> RedisNode:
        info, options = server.info(), server.connection_pool.connection_kwargs
        in_cluster = info.get("cluster_enabled")
        return RedisNode(
            name=name,
            info=info,
            database=int(options.get("db") or 0),
            is_private="path" in options and not open_to_others(Path(options["path"])),
            has_snapshots=_has_snapshots(server),
            cluster=fields_of(server.execute_command("CLUSTER INFO")) if in_cluster else None,
            all_nodes_asked=isinstance(self._client, Cluster),
        )

    def parts(self) -> dict[str, list[str]]:
        """Return the parts that are ``complete``, ``closed`` or ``being rebuilt``, by the fence."""
        with translated(ReservationsUnavailable):
            holders = self.fence.holders(self._client, self.fence.parts, identify=server_of)
        replies = self._ask(
            command
            for part in self.fence.parts
            for command in (("HGETALL", part.epoch), ("EXISTS", part.rebuild))
        )
        states: dict[str, list[str]] = {"complete": [], "closed": [], "being rebuilt": []}
        for part, epoch, marked in zip(self.fence.parts, replies[::2], replies[1::2], strict=True):
            state = "being rebuilt" if marked else "closed"
            if self._is_complete(part, epoch, holders[part]):
                state = "complete"
            kind = "shard" if isinstance(part, ShardKeys) else "permit shard"
            states[state].append(f"{kind} {part.shard}")
        return states

    def unconfirmed(self, *, older_than: timedelta) -> int:
        before = self.now_ms() - older_than // MILLISECOND
        return sum(self._ask(("ZCOUNT", keys.pending, "-inf", before) for keys in self.fence.keys))

    def _is_complete(self, part: Part, epoch: Mapping[bytes, bytes], server: str) -> bool:
        shards, *reaches = self.fence.layout(part)
        if (epoch.get(b"server"), epoch.get(b"shards")) != (server.encode(), str(shards).encode()):
            return False
        pairs = zip(reaches[::2], reaches[1::2], strict=True)
        return all(int(epoch.get(f"reach:{name}".encode(), 0)) >= int(ms) for name, ms in pairs)


def _has_snapshots(server: redis.Redis) -> bool | None:
    try:
        options = cast("dict[str, str]", server.config_get("save"))
    except redis.ResponseError:  # hosted servers may refuse CONFIG
        return None
    return bool(options.get("save"))

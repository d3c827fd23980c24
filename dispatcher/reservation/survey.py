"""What the doctor asks Redis. Changes nothing.

The client has no fence: that refuses a server which evicts, and takes back epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import redis

from dispatcher.errors import ReservationsUnavailable
from dispatcher.redis.client import now_ms
from dispatcher.redis.cluster import Cluster, masters_of
from dispatcher.redis.errors import translated
from dispatcher.redis.keys import ShardKeys
from dispatcher.reservation.contents import Contents
from dispatcher.reservation.fence import Part, fields_of, server_of
from dispatcher.settings import open_to_others
from dispatcher.times.clock import MILLISECOND
from dispatcher.times.send_time import from_ms


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
    """Asks Redis. Every call raises ReservationsUnavailable."""

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
            pipeline = self._client.pipeline(transaction=False)
            for part in self.fence.parts:
                pipeline.hgetall(part.epoch)
                pipeline.exists(part.rebuild)
            replies = pipeline.execute()
        states: dict[str, list[str]] = {"complete": [], "closed": [], "being rebuilt": []}
        for part, epoch, marked in zip(self.fence.parts, replies[::2], replies[1::2], strict=True):
            state = "being rebuilt" if marked else "closed"
            if self._is_complete(part, epoch, holders[part]):
                state = "complete"
            kind = "shard" if isinstance(part, ShardKeys) else "permit shard"
            states[state].append(f"{kind} {part.shard}")
        return states

    def unconfirmed(self, *, older_than: timedelta) -> int:
        with translated(ReservationsUnavailable):
            before = now_ms(self._client) - older_than // MILLISECOND
            pipeline = self._client.pipeline(transaction=False)
            for keys in self.fence.keys:
                pipeline.zcount(keys.pending, "-inf", before)
            return sum(pipeline.execute())

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

"""What the doctor asks Redis. Changes nothing.

The client has no fence: that refuses a server which evicts, and takes back epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import redis

from dispatcher.errors import ReservationsUnavailable
from dispatcher.file_modes import open_to_others
from dispatcher.redis.client import Cluster, masters_of, now_ms
from dispatcher.redis.errors import translated
from dispatcher.redis.keys import PermitKeys, ShardKeys
from dispatcher.reservation.fence import Fence, Part, fields_of, server_of
from dispatcher.reservation.taken_keys import taken_keys
from dispatcher.times.lengths import MILLISECOND
from dispatcher.times.send_time import from_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisFacts:
    """What a server says of itself. None stands for what it does not tell."""

    name: str
    """Its host and port where it is one of a cluster, else empty."""
    version: str
    """Of Redis; of Valkey, the one of Redis that it is like."""
    valkey: str
    """Version of Valkey; empty for Redis."""
    is_private: bool
    """Whether it is reached by a socket that no other user of this machine may open."""
    run_id: str
    database: int
    policy: str
    is_replica: bool
    failed_writes: tuple[str, ...]
    """Of ``log`` and ``snapshot``, those that could not be written last time."""
    has_log: bool
    has_snapshots: bool | None
    replicas: int
    waits_for_replicas: bool
    used_bytes: int
    most_bytes: int
    """0 where there is no ``maxmemory``."""
    cluster: ClusterFacts | None


class ClusterFacts(NamedTuple):
    """What a node says of its cluster: whether it serves, and how many nodes share its slots.

    ``all_nodes_asked`` says that ``redis_url`` is that of a cluster, so that all nodes are asked.
    """

    serves: bool
    nodes: int
    all_nodes_asked: bool


class Readiness(NamedTuple):
    complete: tuple[str, ...]
    being_rebuilt: tuple[str, ...]
    closed: tuple[str, ...]


class RedisSurvey:
    """Asks Redis. Every call raises ReservationsUnavailable."""

    def __init__(self, client: redis.Redis, fence: Fence) -> None:
        self._client = client
        self._fence = fence

    def clocks(self) -> list[Callable[[], datetime]]:
        """Return what tells the present by each clock that decides about permits."""

        def now(server: redis.Redis) -> datetime:
            with translated(ReservationsUnavailable):
                return from_ms(now_ms(server))

        with translated(ReservationsUnavailable):
            return [partial(now, server) for server in masters_of(self._client).values()]

    def servers(self) -> list[RedisFacts]:
        with translated(ReservationsUnavailable):
            return [self._facts(*each) for each in masters_of(self._client).items()]

    def _facts(self, name: str, server: redis.Redis) -> RedisFacts:
        info = server.info()
        in_cluster = bool(info.get("cluster_enabled"))
        options = server.connection_pool.connection_kwargs
        return RedisFacts(
            name=name,
            version=str(info.get("redis_version", "")),
            valkey=str(info.get("valkey_version", "")),
            is_private="path" in options and not open_to_others(Path(options["path"])),
            run_id=str(info.get("run_id", "")),
            database=int(options.get("db") or 0),
            policy=str(info.get("maxmemory_policy", "unknown")),
            is_replica=info.get("role") == "slave",
            failed_writes=_failed_writes(info),
            has_log=bool(info.get("aof_enabled")),
            has_snapshots=_has_snapshots(server),
            replicas=int(info.get("connected_slaves", 0)),
            waits_for_replicas="min_slaves_good_slaves" in info,
            used_bytes=int(info.get("used_memory", 0)),
            most_bytes=int(info.get("maxmemory", 0)),
            cluster=self._cluster(server) if in_cluster else None,
        )

    def readiness(self) -> Readiness:
        """Tell which parts are complete for these settings, as the fence would judge them."""
        with translated(ReservationsUnavailable):
            holders = self._fence.holders(self._client, self._fence.parts, identify=server_of)
            pipeline = self._client.pipeline(transaction=False)
            for part in self._fence.parts:
                pipeline.hgetall(part.epoch)
                pipeline.exists(part.rebuild)
            replies = pipeline.execute()
        complete: list[str] = []
        being_rebuilt: list[str] = []
        closed: list[str] = []
        for part, epoch, marked in zip(self._fence.parts, replies[::2], replies[1::2], strict=True):
            if self._is_complete(part, epoch, holders[part]):
                complete.append(_name(part))
            else:
                (being_rebuilt if marked else closed).append(_name(part))
        return Readiness(tuple(complete), tuple(being_rebuilt), tuple(closed))

    def unconfirmed(self, *, older_than: timedelta) -> int:
        with translated(ReservationsUnavailable):
            before = now_ms(self._client) - older_than // MILLISECOND
            pipeline = self._client.pipeline(transaction=False)
            for keys in self._fence.keys:
                pipeline.zcount(keys.pending, "-inf", before)
            return sum(pipeline.execute())

    def taken(self) -> tuple[str, ...]:
        """Return the keys of reservations that other programs wrote."""
        with translated(ReservationsUnavailable):
            keys = taken_keys(self._client, self._fence.namespace)
            return tuple(name.decode("utf-8", "backslashreplace") for name in sorted(keys))

    def _is_complete(self, part: Part, epoch: Mapping[bytes, bytes], server: str) -> bool:
        shards, *reaches = self._fence.layout(part)
        if (epoch.get(b"server"), epoch.get(b"shards")) != (server.encode(), str(shards).encode()):
            return False
        pairs = zip(reaches[::2], reaches[1::2], strict=True)
        return all(int(epoch.get(f"reach:{name}".encode(), 0)) >= int(ms) for name, ms in pairs)

    def _cluster(self, server: Any) -> ClusterFacts:
        found = fields_of(server.execute_command("CLUSTER INFO"))
        return ClusterFacts(
            serves=found.get("cluster_state") == "ok",
            nodes=int(found.get("cluster_size") or 0),
            all_nodes_asked=isinstance(self._client, Cluster),
        )


def _has_snapshots(server: redis.Redis) -> bool | None:
    try:
        found = cast("dict[str, str]", server.config_get("save"))
    except redis.ResponseError:  # hosted servers may refuse CONFIG
        return None
    return bool(found.get("save"))


def _failed_writes(info: Mapping[str, Any]) -> tuple[str, ...]:
    names = {"aof_last_write_status": "log", "rdb_last_bgsave_status": "snapshot"}
    return tuple(word for name, word in names.items() if info.get(name, "ok") != "ok")


def _name(part: ShardKeys | PermitKeys) -> str:
    return f"{'shard' if isinstance(part, ShardKeys) else 'permit shard'} {part.shard}"

"""What the doctor asks Redis. Changes nothing.

The client has no fence: that refuses a server which evicts, and takes back epochs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, cast

import redis

from dispatcher.errors import ReservationsUnavailable
from dispatcher.file_modes import open_to_others
from dispatcher.redis.clock import now_ms
from dispatcher.redis.errors import translated
from dispatcher.redis.keys import PermitKeys, ShardKeys
from dispatcher.reservation.fence import Fence, Part, server_of
from dispatcher.reservation.foreign_keys import ForeignKeys
from dispatcher.times.send_time import from_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisFacts:
    """What a server says of itself. None stands for what it does not tell."""

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
    """What a node says of its cluster: whether it serves, and how many nodes share its slots."""

    serves: bool
    nodes: int


class Readiness(NamedTuple):
    """The parts of Redis by how complete they are."""

    complete: tuple[str, ...]
    being_rebuilt: tuple[str, ...]
    closed: tuple[str, ...]


class ForeignFacts(NamedTuple):
    """How many keys under the names of windows are of another type, and how many are set aside."""

    there: int
    set_aside: int


class RedisSurvey:
    """Asks Redis. Every call raises ReservationsUnavailable."""

    def __init__(self, client: redis.Redis, fence: Fence) -> None:
        self._client = client
        self._fence = fence
        self._foreign_keys = ForeignKeys(client, fence)

    def now(self) -> datetime:
        """Return the present by the clock that decides about permits."""
        with translated(ReservationsUnavailable):
            return from_ms(now_ms(self._client))

    def server(self) -> RedisFacts:
        """Return what the server says of itself."""
        with translated(ReservationsUnavailable):
            info = self._client.info()
            in_cluster = bool(info.get("cluster_enabled"))
            return RedisFacts(
                version=str(info.get("redis_version", "")),
                valkey=str(info.get("valkey_version", "")),
                is_private=self._is_private(),
                run_id=str(info.get("run_id", "")),
                database=int(self._client.connection_pool.connection_kwargs.get("db") or 0),
                policy=str(info.get("maxmemory_policy", "unknown")),
                is_replica=info.get("role") == "slave",
                failed_writes=_failed_writes(info),
                has_log=bool(info.get("aof_enabled")),
                has_snapshots=self._has_snapshots(),
                replicas=int(info.get("connected_slaves", 0)),
                waits_for_replicas="min_slaves_good_slaves" in info,
                used_bytes=int(info.get("used_memory", 0)),
                most_bytes=int(info.get("maxmemory", 0)),
                cluster=self._cluster() if in_cluster else None,
            )

    def readiness(self) -> Readiness:
        """Tell which parts are complete for these settings, as the fence would judge them."""
        with translated(ReservationsUnavailable):
            info = self._client.info()
            pipeline = self._client.pipeline(transaction=False)
            for part in self._fence.parts:
                pipeline.hgetall(part.epoch)
                pipeline.exists(part.rebuild)
            replies = pipeline.execute()
        server = server_of({name: str(value) for name, value in info.items()})
        complete: list[str] = []
        being_rebuilt: list[str] = []
        closed: list[str] = []
        for part, epoch, marked in zip(self._fence.parts, replies[::2], replies[1::2], strict=True):
            if self._is_complete(part, epoch, server):
                complete.append(_name(part))
            else:
                (being_rebuilt if marked else closed).append(_name(part))
        return Readiness(tuple(complete), tuple(being_rebuilt), tuple(closed))

    def unconfirmed(self, *, older_than: timedelta) -> int:
        """Return how many reservations have waited for the store longer than that."""
        with translated(ReservationsUnavailable):
            before = now_ms(self._client) - older_than // timedelta(milliseconds=1)
            pipeline = self._client.pipeline(transaction=False)
            for keys in self._fence.keys:
                pipeline.zcount(keys.pending, "-inf", before)
            return sum(pipeline.execute())

    def foreign(self) -> ForeignFacts:
        """Return how many keys under the names of windows are none of ours."""
        with translated(ReservationsUnavailable):
            there, kept = sum(1 for _ in self._foreign_keys.names()), self._foreign_keys.kept()
            return ForeignFacts(there, kept)

    def _is_complete(self, part: Part, epoch: Mapping[bytes, bytes], server: str) -> bool:
        shards, *reaches = self._fence.layout(part)
        if (epoch.get(b"server"), epoch.get(b"shards")) != (server.encode(), str(shards).encode()):
            return False
        pairs = zip(reaches[::2], reaches[1::2], strict=True)
        return all(int(epoch.get(f"reach:{name}".encode(), 0)) >= int(ms) for name, ms in pairs)

    def _is_private(self) -> bool:
        path = self._client.connection_pool.connection_kwargs.get("path")
        return path is not None and not open_to_others(Path(path))

    def _has_snapshots(self) -> bool | None:
        try:
            found = cast("dict[str, str]", self._client.config_get("save"))
        except redis.ResponseError:  # hosted servers do not let everybody ask
            return None
        return bool(found.get("save"))

    def _cluster(self) -> ClusterFacts:
        client: Any = self._client  # its types leave this one out
        answer = client.execute_command("CLUSTER INFO")
        found = answer if isinstance(answer, dict) else _fields(answer)
        return ClusterFacts(found.get("cluster_state") == "ok", int(found.get("cluster_size") or 0))


def _failed_writes(info: Mapping[str, Any]) -> tuple[str, ...]:
    names = {"aof_last_write_status": "log", "rdb_last_bgsave_status": "snapshot"}
    return tuple(word for name, word in names.items() if info.get(name, "ok") != "ok")


def _fields(answer: bytes | str) -> dict[str, str]:
    text = answer.decode() if isinstance(answer, bytes) else answer
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def _name(part: ShardKeys | PermitKeys) -> str:
    return f"shard {part.shard}" if isinstance(part, ShardKeys) else "permits"

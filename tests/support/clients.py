"""Clients of whatever ``redis_url`` leads to, without the dispatcher's fence."""

from __future__ import annotations

from typing import Any, cast

import redis
from redis.cluster import ClusterNode, RedisCluster
from redis.sentinel import Sentinel

CLUSTER, SENTINEL = "redis+cluster://", "redis+sentinel://"


def client_of(url: str) -> redis.Redis:
    if url.startswith(CLUSTER):
        seeds = [cast("Any", ClusterNode)(*each) for each in _addresses(url, CLUSTER)]
        return cast("redis.Redis", RedisCluster(startup_nodes=seeds, protocol=2))
    if url.startswith(SENTINEL):
        _, name, db = url.removeprefix(SENTINEL).split("/")
        sentinel = cast("Any", Sentinel)(_addresses(url, SENTINEL))
        return cast("redis.Redis", sentinel.master_for(name, db=int(db)))
    return redis.Redis.from_url(url)


def _addresses(url: str, scheme: str) -> list[tuple[str, int]]:
    hosts = url.removeprefix(scheme).partition("/")[0].split(",")
    return [(host, int(port)) for host, _, port in (each.partition(":") for each in hosts)]

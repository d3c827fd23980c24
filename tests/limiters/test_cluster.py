"""Limiters on a Redis in cluster mode: one call touches one slot."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import redis
import redis.asyncio

from dispatcher import InvalidValue, LimitersUnavailable
from dispatcher.limiters import CoolDown, Limits, Request
from tests.support.cluster import cluster_of_one
from tests.support.limiters import ALL, taken
from tests.support.servers import RedisServer

LIMITS = Limits([*(make(4) for make in ALL.values()), CoolDown()])


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[RedisServer, int]]:
    """One Redis that is a cluster of its own."""
    with cluster_of_one() as found:
        yield found


@pytest.fixture
def cluster(server: tuple[RedisServer, int]) -> Iterator[redis.RedisCluster]:
    """Give a cluster client of it, emptied."""
    with redis.RedisCluster(host="127.0.0.1", port=server[1]) as client:
        client.flushall()
        yield client


def test_all_limiters_count_in_a_cluster(cluster: redis.RedisCluster) -> None:
    limiter = LIMITS.on(cluster)
    for key in ("ada", "ben", "a}b{c", "{x}", "利用者"):
        assert taken(limiter, key, 6) == 4
        decision = limiter.peek(key)
        assert not decision.allowed
        limiter.reset(key)
        held = limiter.acquire(key, 2)
        assert limiter.renew(key, held.permit)
        assert limiter.give_back(key, held.permit) == 2
    limiter.close("ada", ALL["GCRA"](1).period)  # type: ignore[attr-defined]  # a minute
    assert limiter.acquire("ada").refused_by == "cool-down"


def test_coroutines_count_in_a_cluster(server: tuple[RedisServer, int]) -> None:
    async def story() -> list[bool]:
        async with redis.asyncio.RedisCluster(host="127.0.0.1", port=server[1]) as client:
            await client.flushall()
            limiter = LIMITS.on(client)
            return [(await limiter.acquire("ada")).allowed for _ in range(5)]

    assert asyncio.run(story()) == [True] * 4 + [False]


def test_a_cluster_that_is_gone_is_an_error_of_ours() -> None:
    with (
        cluster_of_one() as (server, port),
        redis.RedisCluster(host="127.0.0.1", port=port) as client,
    ):
        limiter = LIMITS.on(client)
        assert limiter.acquire("ada").allowed
        server.stop()
        with pytest.raises(LimitersUnavailable):
            limiter.acquire("ada")
        server.start()


def test_keys_in_several_slots_are_refused_before_anything_is_sent(
    cluster: redis.RedisCluster,
) -> None:
    limits = Limits([ALL["SlidingLog"](5), ALL["FixedWindow"](5)])
    with pytest.raises(InvalidValue, match="several slots"):
        limits.on(cluster).acquire(["ada", "everybody"])
    tagged = limits.on(cluster, tag="all")
    assert tagged.acquire(["ada", "everybody"]).allowed
    decisions = tagged.acquire_each([Request([key, "everybody"]) for key in "abcde"])
    assert [each.allowed for each in decisions] == [True] * 4 + [False]

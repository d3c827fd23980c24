"""Limiters on a Redis in cluster mode: one call touches one slot."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress

import pytest
import redis
import redis.asyncio

from dispatcher import InvalidValue, LimitersUnavailable
from dispatcher.limiters import CoolDown, Limits, Request
from dispatcher.redis.keys import LimiterKeys
from tests.support.cluster import CLUSTERS, Member, cluster_of_one, slot_of, three_masters
from tests.support.limiters import ALL, taken

LIMITS = Limits([*(make(4) for make in ALL.values()), CoolDown()])


@pytest.fixture(scope="module", params=CLUSTERS)
def nodes(request: pytest.FixtureRequest) -> Iterator[Sequence[Member]]:
    with request.param() as cluster:
        yield cluster.nodes


@pytest.fixture
def port(nodes: Sequence[Member]) -> int:
    """Give the port of a node of the cluster, emptied."""
    for node in nodes:
        if node.is_master:
            node.command("FLUSHALL")
    return nodes[0].port


@pytest.fixture
def cluster(port: int) -> Iterator[redis.RedisCluster]:
    """Give a client of the cluster."""
    with redis.RedisCluster(host="127.0.0.1", port=port) as client:
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


def test_coroutines_count_in_a_cluster(port: int) -> None:
    async def story() -> list[bool]:
        async with redis.asyncio.RedisCluster(host="127.0.0.1", port=port) as client:
            limiter = LIMITS.on(client)
            return [(await limiter.acquire("ada")).allowed for _ in range(5)]

    assert asyncio.run(story()) == [True] * 4 + [False]


def test_a_cluster_that_is_gone_is_an_error_of_ours() -> None:
    with (
        cluster_of_one() as server,
        redis.RedisCluster(host="127.0.0.1", port=server.port) as client,
    ):
        limiter = LIMITS.on(client)
        assert limiter.acquire("ada").allowed
        server.stop()
        with pytest.raises(LimitersUnavailable):
            limiter.acquire("ada")
        server.start()


@pytest.mark.long
def test_permits_are_counted_while_their_slot_moves() -> None:
    """Where its keys are in two places a call is answered in time, if only by an error."""
    limits = Limits([ALL["SlidingLog"](9), ALL["FixedWindow"](9)])
    with (
        three_masters() as cluster,
        redis.RedisCluster(host="127.0.0.1", port=cluster.nodes[0].port) as client,
    ):
        limiter = limits.on(client)
        [slot] = {slot_of(LimiterKeys("limits").hash_tag("ada"))}
        taken_now = [taken(limiter, "ada", 2)]
        with cluster.moving(slot, cluster.elsewhere(cluster.master_of(slot))) as move_one:
            for _ in range(4):
                with suppress(LimitersUnavailable):
                    taken_now.append(taken(limiter, "ada", 1))
                move_one()
        taken_now.append(taken(limiter, "ada", 20))
        assert sum(taken_now) == 9
        assert not limiter.acquire("ada").allowed


def test_keys_in_several_slots_are_refused_before_anything_is_sent(
    cluster: redis.RedisCluster,
) -> None:
    limits = Limits([ALL["SlidingLog"](5), ALL["FixedWindow"](5)])
    with pytest.raises(InvalidValue, match="several slots"):
        limits.on(cluster).acquire(["ada", "everybody"])
    tagged = limits.on(cluster, tag="all")
    assert tagged.acquire(["ada", "everybody"]).allowed
    decisions = tagged.acquire_each([Request([key, "everybody"]) for key in "abcde"])
    assert [decision.allowed for decision in decisions] == [True] * 4 + [False]

"""One master of a cluster that is away, frozen, full or evicting does not close the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from datetime import timedelta
from functools import partial

import pytest
import redis

from dispatcher import ReservationsUnavailable
from dispatcher.redis.client import connect_redis, ping
from tests.support.cluster import Cluster, Member, three_masters
from tests.support.house import House, hour_ago, house_on
from tests.support.reserving import own_terms
from tests.support.servers import RedisServer

SHARDS = 64
HOUR = timedelta(hours=1)

pytestmark = [pytest.mark.long, pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Three masters; none is replaced by its replica."""
    with three_masters() as found:
        yield found


@pytest.fixture
def house(cluster: Cluster, redis_server: RedisServer, database_url: str) -> Iterator[House]:
    for node in cluster.masters:
        node.command("FLUSHALL")
    with house_on(
        redis_server, database_url, gate=cluster, clock=hour_ago(), shards=SHARDS, quotas="2/hour"
    ) as built:
        yield built


@contextmanager
def frozen(node: Member) -> Iterator[None]:
    node.freeze()
    try:
        yield
    finally:
        node.thaw()


@contextmanager
def configured(node: Member, *, name: str, value: str | int, usual: str | int) -> Iterator[None]:
    node.command("CONFIG", "SET", name, value)
    try:
        yield
    finally:
        node.command("CONFIG", "SET", name, usual)


FAULTS: dict[str, Callable[[Member], AbstractContextManager[None]]] = {
    "frozen": frozen,
    "full": Member.full,
    # It refuses writes, because too few replicas have them.
    "without replicas": partial(configured, name="min-replicas-to-write", value=2, usual=0),
    "evicting": partial(
        configured, name="maxmemory-policy", value="allkeys-lru", usual="noeviction"
    ),
}


def people_on(house: House, cluster: Cluster, node: Member, count: int = 4) -> list[str]:
    """Return names whose windows a master holds."""
    names = (f"person {number}" for number in range(10_000))
    people = (name for name in names if cluster.master_of_key(house.keys(name).epoch) is node)
    return [next(people) for _ in range(count)]


@pytest.mark.parametrize("fault", FAULTS)
def test_the_other_masters_book_and_are_rebuilt(house: House, cluster: Cluster, fault: str) -> None:
    away, here, _ = cluster.masters
    [lost], [first, second] = people_on(house, cluster, away, 1), people_on(house, cluster, here, 2)
    house.submit(first, send_in=HOUR)
    keys = house.keys(first)
    away.command("DEL", house.keys(lost).epoch)
    with FAULTS[fault](away):
        with pytest.raises(ReservationsUnavailable):
            house.submit(lost, send_in=HOUR)
        house.submit(second, send_in=HOUR)
        # A part that is closed there has to wait; it must not keep another one closed.
        here.command("DEL", keys.epoch)
        with pytest.raises(ReservationsUnavailable):
            house.submit(first, send_in=HOUR)
        sweep(house)
        house.submit(first, send_in=HOUR)
    sweep(house)
    house.submit(lost, send_in=HOUR)
    assert house.dispatcher.verify_windows().equal


def sweep(house: House) -> None:
    with suppress(ReservationsUnavailable):  # of one node; told in the log of the sweep
        house.parts.reconciler.reconcile(settle=timedelta(0))


def test_a_silent_master_keeps_no_other_one_from_its_calls(house: House, cluster: Cluster) -> None:
    """P6: what a batch releases goes on every master that answers."""
    masters = cluster.masters
    people = [name for node in masters for name in people_on(house, cluster, node, 1)]
    windows = [house.keys(name).window(name) for name in people]
    messages = [house.submit(name, send_in=HOUR) for name in people]
    booked = [
        (leg, message.id.bytes, None)
        for name, message in zip(people, messages, strict=True)
        for leg in house.parts.windows.legs(own_terms(name))
    ]
    with frozen(masters[0]):
        with pytest.raises(ReservationsUnavailable):
            house.parts.windows.shards.release_many(booked)
        answering = [*zip(masters, windows, strict=True)][1:]
        assert [node.command("ZCARD", window) for node, window in answering] == [0, 0]


def test_the_probe_finds_the_master_that_took_over(house: House, cluster: Cluster) -> None:
    with closing(connect_redis(cluster.url)) as client:
        ping(client)
        old = cluster.masters[0]
        promoted = cluster.fail_over(old)
        old.kill()
        with suppress(redis.RedisError):
            ping(client)
        ping(client)
        old.start()
        cluster.wait_for_replicas()
        assert promoted in cluster.masters

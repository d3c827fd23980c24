"""Redis cannot be trusted: the submit is refused, and nothing is stored."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from dispatcher import ReservationsUnavailable, Status
from dispatcher.times.send_time import to_ms
from tests.submission.test_store_faults import SOON, WAYS
from tests.support.house import House
from tests.support.house_fixtures import Build
from tests.support.proxy import Proxy
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

MINUTE = timedelta(minutes=1)


@pytest.fixture
def shaky(build: Build, own_redis: RedisServer) -> House:
    """Give a house on a Redis that the test may stop and starve, with one message in it."""
    house = build(server=own_redis)
    house.submit("before", send_at=SOON)
    return house


def refuses_everything(house: House, *, says: str) -> None:
    rows = house.rows()
    for way in WAYS:
        with pytest.raises(ReservationsUnavailable, match=says) as caught:
            house.submit(send_at=SOON, **way)
        assert house.server.url not in str(caught.value)
        assert "ada" not in str(caught.value)
    with pytest.raises(ReservationsUnavailable):
        house.dispatcher.next_slot(recipient="ada")
    assert house.rows() == rows


def accepts_again(house: House) -> None:
    for n, way in enumerate(WAYS):
        house.submit(send_at=SOON + n * MINUTE, **way)
    assert house.reservations() == house.all_members()


def test_redis_is_down(shaky: House) -> None:
    shaky.server.stop()
    refuses_everything(shaky, says="cannot be reached")
    shaky.server.start()
    refuses_everything(shaky, says="being rebuilt")
    shaky.open()
    accepts_again(shaky)


def test_redis_is_empty(house: House) -> None:
    house.submit("before", send_at=SOON)
    house.redis.flushall()
    refuses_everything(house, says="being rebuilt")
    assert house.redis.keys("*") == []
    house.open()
    accepts_again(house)


def test_only_the_shard_that_lost_its_epoch_is_refused(house: House) -> None:
    other = next(name for name in "bcdefgh" if house.keys(name) != house.keys("ada"))
    house.redis.delete(house.keys("ada").epoch)
    refuses_everything(house, says="being rebuilt")
    house.submit(other, send_at=SOON)


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_redis_evicts(shaky: House, build: Build, policy: str) -> None:
    shaky.redis.config_set("maxmemory-policy", policy)
    with pytest.raises(ReservationsUnavailable, match=rf"{policy}.*must be noeviction"):
        shaky.parts.reconciler.reconcile()
    assert shaky.redis.keys("*:epoch") == [], "existing epochs are taken back"
    refuses_everything(shaky, says="being rebuilt")
    refuses_everything(build(server=shaky.server, opened=False), says="must be noeviction")
    shaky.redis.config_set("maxmemory-policy", "noeviction")
    shaky.open()
    accepts_again(shaky)


def test_redis_is_full(shaky: House) -> None:
    [kept], before = shaky.dispatcher.select(), shaky.snapshot()
    shaky.redis.config_set("maxmemory", 1)
    for way in WAYS:
        with pytest.raises(ReservationsUnavailable, match="out of memory"):
            shaky.submit(send_at=SOON, **way)
    assert shaky.snapshot() == before
    assert shaky.dispatcher.cancel(kept.id).status is Status.CANCELLED
    assert shaky.all_members() == {}, "what gives back works, else it never recovers"
    shaky.redis.config_set("maxmemory", 0)
    accepts_again(shaky)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_lost_reply_of_redis_reserves_once(
    build: Build, proxy: Proxy, way: dict[str, Any]
) -> None:
    house = build(redis_url=f"redis://127.0.0.1:{proxy.port}")
    house.submit("ben", send_at=SOON, **way | {"idempotency_key": "first"})
    proxy.drop_reply(b":window:ada")
    message = house.submit(send_at=SOON, **way)
    assert proxy.dropped == 1
    assert message.send_at == SOON
    assert house.members() == {message.id: to_ms(SOON)}
    assert house.reservations() == house.all_members()


def test_a_place_booked_right_before_redis_went_away_is_given_back_after_the_grace(
    build: Build, proxy: Proxy
) -> None:
    graces = {"settle": 0.001, "reconcile_grace": 0.002}
    house = build(redis_url=f"redis://127.0.0.1:{proxy.port}", **graces)
    proxy.drop_reply(b":window:ada", then_refuse=True)
    with pytest.raises(ReservationsUnavailable):
        house.submit(send_at=SOON)
    assert len(house.members()) == 1
    assert house.rows() == []
    proxy.pass_all()
    wait_until(lambda: house.reconciled().members() == {})
    accepts_again(house)

"""A shard is open only on the server and for the settings its windows were checked for."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from dispatcher.errors import QuotaExceeded, ReservationsUnavailable
from dispatcher.quota import Quota
from tests.support.reserving import SHARDS, Reserving, cancel, reserving, stored, times_of
from tests.support.servers import RedisServer

NOON = datetime(2100, 1, 1, 12, tzinfo=UTC)
Opened = Callable[..., Reserving]


def is_open(real: Reserving, scope: str = "ann") -> bool:
    """Book and give back."""
    try:
        booking = real.book(NOON, scope)
    except ReservationsUnavailable as error:
        if "being rebuilt" not in error.reason:
            raise
        return False
    cancel(real.windows, booking.message_id, booking.terms)
    return True


@pytest.mark.parametrize("end", [RedisServer.stop, RedisServer.kill])
def test_a_restarted_redis_is_closed_although_its_data_came_back(
    own_redis: RedisServer, end: Callable[[RedisServer], None]
) -> None:
    with reserving(own_redis.url) as real:
        # On a slow disk the log may lie up to two seconds behind, which a kill would lose.
        real.client.config_set("appendfsync", "always")
        real.open()
        booking = real.book(NOON)
        end(own_redis)
        own_redis.start()
        with own_redis.client() as plain:
            epoch = plain.hgetall(real.keys("ann").epoch)
            assert epoch, "its log brought the epoch back: only the fence can tell"
        assert not is_open(real)
        assert set(real.members("ann")) == {booking.message_id}
        real.open()
        assert is_open(real, "bob")


def test_a_longer_quota_closes_the_shards_and_a_shorter_one_does_not(
    redis_server: RedisServer, opened: Opened
) -> None:
    opened(Quota(1, 60_000))
    with reserving(redis_server.url, [Quota(1, 30_000)]) as shorter:
        assert is_open(shorter)
    with reserving(redis_server.url, [Quota(1, 60_000), Quota(5, 61_000)]) as longer:
        assert not is_open(longer)
        longer.open()
        assert is_open(longer)


def test_shards_that_another_number_left_behind_are_closed_too(
    redis_server: RedisServer, opened: Opened
) -> None:
    opened()
    with reserving(redis_server.url, shards=SHARDS // 2) as fewer:
        fewer.open()
        assert all(is_open(fewer, f"scope {n}") for n in range(50))
    with reserving(redis_server.url) as again:
        assert not any(is_open(again, f"scope {n}") for n in range(50))


def test_a_process_with_shorter_quotas_keeps_what_longer_ones_still_count(
    redis_server: RedisServer, opened: Opened
) -> None:
    week_ms = 7 * 86_400_000
    real = opened(Quota(2, week_ms))
    now = datetime.now(UTC)
    for days in (-6, -5):
        real.book(now + timedelta(days=days))
    with reserving(redis_server.url, [Quota(1, 1_000)]) as shorter:
        entries = shorter.upkeep.unconfirmed(older_than=timedelta(0), limit=10)
        assert shorter.upkeep.confirm(entries, stored(times_of(real, entries))) == 0
    assert len(real.members("ann")) == 2
    with pytest.raises(QuotaExceeded):
        real.book(now)


def test_a_marker_of_another_server_does_not_block_a_rebuild(own_redis: RedisServer) -> None:
    with reserving(own_redis.url) as real:
        assert real.upkeep.begin() is not None
        own_redis.stop()
        own_redis.start()
        assert real.upkeep.begin() is not None, "the rebuilder before the restart is gone"


def test_a_rebuild_leaves_nothing_of_another_number_of_shards(
    redis_server: RedisServer, opened: Opened
) -> None:
    real = opened()
    for n in range(50):
        real.book(NOON, f"scope {n}")
    with reserving(redis_server.url, shards=SHARDS // 2) as fewer:
        rebuild = fewer.upkeep.begin()
        assert rebuild is not None
        fewer.upkeep.wipe(rebuild)
        fewer.upkeep.open(rebuild)
        assert all(is_open(fewer, f"scope {n}") for n in range(50))
        with reserving(redis_server.url) as again:
            assert not any(is_open(again, f"scope {n}") for n in range(50))
        fewer.fence.close(fewer.client, fewer.fence.parts)
    with reserving(redis_server.url) as again:
        assert not any(is_open(again, f"scope {n}") for n in range(50))

"""How full the limits of channels are, told without taking anything."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from dispatcher.errors import LimitersUnavailable
from dispatcher.limiters import Fills, InHand, LogLimit, Permit, Permits
from dispatcher.message import new_id
from dispatcher.quota import Limit, parse_limit
from dispatcher.redis.keys import PermitKeys
from dispatcher.times.clock import SystemClock

NAMESPACE = "fills"
HOLD = timedelta(seconds=10)
Make = Callable[..., tuple[Permits, Fills]]


@pytest.fixture
def make(redis_client: redis.Redis) -> Make:
    """Give a maker of permits and what looks at them."""

    def build(**limits: list[LogLimit]) -> tuple[Permits, Fills]:
        redis_client.hset(PermitKeys(NAMESPACE, 0).epoch, mapping={"server": "here"})
        permits = Permits(
            redis_client,
            namespace=NAMESPACE,
            shards=1,
            scope_limits=[],
            channel_limits=limits,
            clock=SystemClock(),
        )
        return permits, Fills(redis_client, namespace=NAMESPACE, shards=1, channel_limits=limits)

    return build


def take(permits: Permits, channel: str, many: int) -> list[Permit]:
    wanted = [Permit(new_id(), 1, f"scope {n}", channel) for n in range(many)]
    permits.acquire(wanted, within=HOLD)
    return wanted


def test_each_kind_of_limit_tells_how_much_of_it_is_used(
    make: Make, redis_client: redis.Redis
) -> None:
    limits = [Limit(5, 60_000), parse_limit("10/day in UTC"), InHand(4)]
    permits, fills = make(sms=limits, mail=[Limit(1, 1_000)])
    taken = take(permits, "sms", 3)
    permits.settle([(each, timedelta(0)) for each in taken[:1]])
    permits.give_back(taken[1:2])
    before = redis_client.keys("*")
    sms, mail = fills.read()
    assert [(each.limit, each.used, each.most) for each in sms.limits] == [
        ("5/minute", 2, 5), ("10/day in UTC", 2, 10), ("concurrency 4", 1, 4),
    ]  # fmt: skip
    assert (sms.channel, sms.waiting, sms.closed_until) == ("sms", 0, None)
    assert [each.used for each in mail.limits] == [0]
    assert redis_client.keys("*") == before, "looking takes nothing"


def test_a_redis_that_is_away_says_so() -> None:
    away = redis.Redis(port=1, retry=Retry(NoBackoff(), 0))
    with pytest.raises(LimitersUnavailable):
        Fills(away, namespace=NAMESPACE, shards=1, channel_limits={"sms": [Limit(1, 1)]}).read()

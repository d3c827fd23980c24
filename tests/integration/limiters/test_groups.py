"""Permits for groups of requests, in one script."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
import redis

from dispatcher import InvalidValue
from dispatcher.limiters import (
    GCRA,
    Algorithm,
    Concurrency,
    CoolDown,
    FixedWindow,
    Limits,
    Request,
    SlidingList,
    SlidingLog,
)
from tests.support.limiters import COUNTED, MS, Clocked

SECOND = timedelta(seconds=1)


def test_each_of_a_group_is_judged_by_its_scope_and_its_channel(redis_client: redis.Redis) -> None:
    limits = [SlidingLog(1, "minute", name="scope"), SlidingLog(3, "hour", name="channel"),
              Concurrency(20), CoolDown()]  # fmt: skip
    limiter = Limits(limits).on(redis_client, tag="sms")
    wanted = ["ada", "ben", "ada", "cleo", "dora"]
    decisions = limiter.acquire_each(
        [Request((each, "sms", "sms", "sms"), permit=f"{n}") for n, each in enumerate(wanted)]
    )
    assert [each.allowed for each in decisions] == [True, True, False, True, False]
    assert [each.refused_by for each in decisions if not each] == ["1/minute", "3/hour"]
    again = limiter.acquire_each([Request(("ada", "sms", "sms", "sms"), permit="0")])
    assert again[0].allowed, "asked again under the same id"
    assert limiter.peek(("x", "sms", "sms", "sms")).remaining == 0


def test_a_request_may_name_some_of_the_limits(redis_client: redis.Redis) -> None:
    limits = [SlidingList(1, "minute"), SlidingList(2, "hour")]
    limiter = Limits(limits).on(redis_client, tag="t")
    decisions = limiter.acquire_each(
        [Request("a", limits=(1,)), Request("a", limits=(0,)), Request(("b", "a")),
         Request("a", limits=(1,)), Request("a", limits=())]
    )  # fmt: skip
    assert [each.allowed for each in decisions] == [True, True, True, False, True]
    assert decisions[3].refused_by == "2/hour"


@pytest.mark.parametrize("make", COUNTED.values(), ids=COUNTED)
def test_those_refused_are_told_different_times_in_order(
    make: Callable[[int, timedelta], Algorithm], moved: Clocked
) -> None:
    limiter = make(5, SECOND).on(moved)
    for _ in range(5):
        limiter.acquire("sms")
        moved.advance(100 * MS)
    decisions = limiter.acquire_each([Request("sms") for _ in range(23)])
    waits = [each.retry_after // MS for each in decisions if not each.allowed]
    assert waits == sorted(waits)
    assert all(waits.count(each) <= 5 for each in waits), "no more at once than fit"
    begin = moved.now_us
    for number, wait in enumerate(waits):
        moved.set_us(begin + wait * 1_000)
        assert limiter.acquire("sms").allowed, f"number {number} comes back in vain"


def test_those_refused_by_spacing_come_back_one_by_one(moved: Clocked) -> None:
    limiter = GCRA(10, "second").on(moved)
    decisions = limiter.acquire_each([Request("sms") for _ in range(5)])
    assert [each.retry_after // MS for each in decisions] == [0, 100, 200, 300, 400]


def test_a_refusal_of_one_limit_keeps_no_place_in_another(moved: Clocked) -> None:
    limits = [FixedWindow(1, "hour", name="scope"), FixedWindow(1, "second", name="channel")]
    limiter = Limits(limits).on(moved, tag="t")
    decisions = limiter.acquire_each(
        [Request((key, "sms")) for key in ("ada", "ada", "ada", "ben", "cleo")]
    )
    hour, second = 3_600_000, 1_000
    waits = [each.retry_after // MS for each in decisions]
    assert waits[:3] == [0, hour, 2 * hour]
    assert waits[3] >= second
    assert waits[4] > waits[3]


def test_a_request_may_want_more_than_limits_give_that_it_does_not_name(
    redis_client: redis.Redis,
) -> None:
    limiter = Limits([SlidingList(1, "minute"), SlidingList(50, "hour")]).on(redis_client)
    assert limiter.acquire_each([Request("a", 50, limits=(1,))])[0].granted == 50


def test_a_group_that_would_run_long_is_refused(redis_client: redis.Redis) -> None:
    limiter = SlidingLog(1_000_000, "hour").on(redis_client)
    with pytest.raises(InvalidValue, match="10000 together"):
        limiter.acquire_each([Request("a", 5_001), Request("a", 5_000)])
    assert redis_client.keys("*") == []


@pytest.mark.parametrize("make", COUNTED.values(), ids=COUNTED)
def test_the_work_for_each_of_a_group_does_not_grow_with_the_group(
    make: Callable[[int, timedelta], Algorithm], redis_client: redis.Redis
) -> None:
    limiter = make(1, timedelta(minutes=1)).on(redis_client)
    limiter.acquire_each([Request("sms")])

    def work(requests: int) -> int:
        redis_client.config_resetstat()
        limiter.acquire_each([Request("sms")] * requests)
        return int(redis_client.info("commandstats")["cmdstat_evalsha"]["usec"])

    few, many = work(200), work(4_000)
    for _ in range(30):  # on a busy machine the server stands still in the midst of a script
        if many < 100 * few:
            break
        few, many = min(few, work(200)), min(many, work(4_000))
    assert many < 100 * few, "20 times as many; 400 times if each looked at all before it"


def test_no_request_is_no_call(redis_client: redis.Redis) -> None:
    assert FixedWindow(1, "second").on(redis_client).acquire_each([]) == []
    assert redis_client.keys("*") == []


def test_a_group_of_several_keys_needs_a_tag(redis_client: redis.Redis) -> None:
    limiter = FixedWindow(1, "second").on(redis_client)
    with pytest.raises(InvalidValue, match="a tag"):
        limiter.acquire_each([Request("a"), Request("b")])

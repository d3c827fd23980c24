"""What is special to one algorithm."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
import redis

from dispatcher.limiters import (
    GCRA,
    Algorithm,
    Concurrency,
    CounterPerKey,
    FixedWindow,
    Limits,
    SlidingCounter,
    SlidingList,
    SlidingLog,
    State,
)
from dispatcher.limiters.algorithms import CountPerLength
from dispatcher.times.periods import CalendarUnit, bounds
from tests.support.clock import MovableClock
from tests.support.limiters import MINUTE, MS, START_US, Clocked, taken

SECOND = timedelta(seconds=1)


@pytest.mark.parametrize("make", [SlidingLog, lambda n, length: Concurrency(n, hold=length)])
def test_an_id_used_again_for_fewer_permits_revives_none_of_the_first(
    make: Callable[[int, timedelta], Algorithm], moved: Clocked
) -> None:
    limiter = make(5, MINUTE).on(moved)
    assert limiter.acquire("ada", 3, permit="x").remaining == 2
    moved.advance(MINUTE)
    assert limiter.acquire("ada", 1, permit="x").remaining == 4
    assert limiter.acquire("ada", 3, permit="x").granted == 1
    if isinstance(make(1, MINUTE), Concurrency):
        moved.advance(SECOND)
        assert limiter.renew("ada", "x")
        assert limiter.peek("ada").remaining == 4
        assert limiter.end_holds("ada", "x") == 1
    else:
        assert limiter.give_back("ada", "x") == 1
    assert limiter.peek("ada").remaining == 5


def test_an_id_is_known_while_the_longest_log_has_it(moved: Clocked) -> None:
    hour = SlidingLog(5, "hour")
    limiter = Limits([hour, SlidingLog(5, "minute")]).on(moved)
    for _ in range(2):
        assert limiter.acquire("ada", permit="x").granted == 1
        moved.advance(2 * MINUTE)
    assert hour.on(moved).peek("ada").remaining == 4


def test_an_id_that_was_given_back_takes_its_permits_anew(moved: Clocked) -> None:
    limiter = FixedWindow(5, "hour").on(moved)
    for _ in range(2):  # the ids of two spans are kept apart
        limiter.acquire("ada", permit="x")
        assert limiter.give_back("ada", "x") == 1
        assert limiter.acquire("ada", permit="x").remaining == 4
        limiter.reset("ada")
        moved.advance(MINUTE)


def test_a_permit_is_given_back_right_after_it_was_taken(redis_client: redis.Redis) -> None:
    limiter = CounterPerKey(5, "minute").on(redis_client)
    decisions = [limiter.acquire(f"{number}") for number in range(300)]
    back = [limiter.give_back(f"{number}", take.permit) for number, take in enumerate(decisions)]
    assert sum(back) == 300, "also where a millisecond ended within a script"


def test_a_permit_taken_in_the_millisecond_in_which_older_ids_end_is_remembered(
    moved: Clocked,
) -> None:
    span = timedelta(minutes=1)
    limiter = FixedWindow(5, "hour").on(moved, remember=span)
    moved.set_us(START_US // 60_000_000 * 60_000_000)
    limiter.acquire("ada", permit="old")
    moved.advance(2 * span)
    assert limiter.acquire("ada", permit="x").remaining == 3
    moved.advance(MS)
    assert limiter.acquire("ada", permit="x").remaining == 3
    assert limiter.acquire("ada", permit="old").remaining == 2, "no longer than two spans"
    moved.advance(span)
    assert limiter.acquire("ada", permit="x").remaining == 2, "for a span, wherever that began"


def test_a_counter_is_a_number_that_get_shows(redis_client: redis.Redis) -> None:
    limiter = CounterPerKey(5, "minute", name="hits").on(redis_client, remember=None)
    limiter.acquire("ada", 3)
    assert redis_client.keys("*") == [b"{limits:ada}:counter_per_key-60000=hits"]
    assert redis_client.get("{limits:ada}:counter_per_key-60000=hits") == b"3"


@pytest.mark.parametrize("make", [FixedWindow, GCRA, SlidingList, SlidingLog, SlidingCounter])
def test_a_clock_that_is_set_back_makes_permits_count_for_longer_by_as_much(
    make: type[CountPerLength], moved: Clocked
) -> None:
    limiter = make(1, MINUTE).on(moved)
    limiter.acquire("ada")
    wait = limiter.peek("ada").retry_after
    moved.set_us(moved.now_us - 30_000_000)
    refused = limiter.acquire("ada")
    assert refused.retry_after == wait + 30 * SECOND
    moved.advance(refused.retry_after)
    assert limiter.acquire("ada").allowed


@pytest.mark.parametrize("make", [SlidingList, SlidingLog])
def test_a_permit_that_is_over_is_not_given_back_while_others_count(
    make: type[CountPerLength], moved: Clocked
) -> None:
    limiter = make(2, MINUTE).on(moved)
    permits = []
    for _ in range(2):
        permits.append(limiter.acquire("ada").permit)
        moved.advance(MINUTE / 2)
    assert [limiter.give_back("ada", permit) for permit in permits] == [0, 1]


def ms(instant: datetime) -> int:
    return int(instant.timestamp() * 1_000)


@pytest.mark.parametrize("unit", ["hour", "day", "week", "month"])
def test_windows_of_a_zone_end_to_the_millisecond_where_its_clocks_change(
    unit: CalendarUnit, moved: Clocked
) -> None:
    zone = "America/New_York"
    limiter = FixedWindow(2, unit, align=zone).on(moved)
    for text in ("2024-03-10T06:30Z", "2024-11-03T05:30Z"):
        begins, ends, after = bounds(unit, zone, ms(datetime.fromisoformat(text)), 2)
        for begin, end in ((begins, ends), (ends, after)):
            limiter.reset("ada")
            moved.set_us(begin * 1_000)
            assert taken(limiter, "ada", 3) == 2
            moved.set_us((end - 1) * 1_000)
            refused = limiter.acquire("ada")
            assert (refused.allowed, refused.retry_after) == (False, MS)
            assert ms(refused.reset_at) == end
            moved.set_us(end * 1_000)
            assert limiter.acquire("ada").allowed


@pytest.mark.parametrize("years", [-30, 30])
def test_a_clock_that_is_years_off_costs_one_more_round_trip_once(
    years: int, redis_client: redis.Redis
) -> None:
    clock = MovableClock(datetime(2026 + years, 1, 1, tzinfo=UTC))
    limit = FixedWindow(3, "hour", align="Europe/Berlin")
    limiter, right = limit.on(redis_client, clock=clock), limit.on(redis_client)
    first = limiter.acquire("ada")
    assert first.reset_at == right.peek("ada").reset_at

    def calls() -> int:
        stats = redis_client.info("commandstats")
        return sum(int(stats[name]["calls"]) for name in stats if "evalsha" in name)

    before = calls()
    assert limiter.acquire("ada").state is State.ALLOWED
    assert calls() == before + 1

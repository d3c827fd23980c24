"""What every limiter must do, whatever its algorithm."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, cast

import pytest
import redis

from dispatcher.limiters import (
    GCRA,
    Algorithm,
    Concurrency,
    CoolDown,
    Decision,
    FixedWindow,
    LimitReached,
    Limits,
    Request,
    SlidingList,
    SlidingLog,
    State,
)
from tests.support.clock import MovableClock
from tests.support.doubles import at_once
from tests.support.limiters import ALL, COUNTED, MINUTE, MS, Clocked, Ways, taken

THREADS = 100
DAY = timedelta(days=1)
"""Under load many callers together may take more than a second: a permit of 50 a minute is back."""
every = pytest.mark.parametrize("make", ALL.values(), ids=ALL)
counted = pytest.mark.parametrize("make", COUNTED.values(), ids=COUNTED)
Make = Callable[[int], Algorithm]
MakeLength = Callable[[int, timedelta], Algorithm]


def everything(client: redis.Redis) -> dict[bytes, bytes | None]:
    return {key: client.dump(key) for key in cast("list[bytes]", client.keys("*"))}


@counted
def test_threads_together_get_exactly_the_limit(
    make: MakeLength, redis_client: redis.Redis
) -> None:
    limiter = make(37, DAY).on(redis_client)
    answers = at_once([partial(taken, limiter, "ada", 3) for _ in range(THREADS)])
    assert sum(cast("list[int]", answers)) == 37


@every
def test_more_than_a_limit_ever_gives_is_refused_by_a_state_of_its_own(
    make: Make, redis_client: redis.Redis
) -> None:
    limiter = make(5).on(redis_client)
    limiter.acquire("ada", permit="x")
    before = everything(redis_client)
    for decision in (
        limiter.acquire("ada", 6),
        limiter.acquire("ada", 10_000_001, permit="y"),
        limiter.acquire("ada", 6, wait=True),
        limiter.acquire_each([Request("ada", 20_000_000)])[0],
        limiter.peek("ada", 6),
    ):
        assert (decision.allowed, decision.state) == (False, State.OVERSIZED)
        assert (decision.granted, decision.remaining, decision.limit) == (0, 4, 5)
        assert decision.retry_after == timedelta.max
        assert decision.refused_by == str(make(5))
    assert everything(redis_client) == before
    assert limiter.acquire("ada", 6, permit="x").granted == 1, "asked for again: as the first time"
    assert limiter.acquire_up_to("ada", 10_000).granted == 4


SUMMING = {name: make for name, make in COUNTED.items() if not make(1, MINUTE).keeps_each}


@pytest.mark.parametrize("make", SUMMING.values(), ids=SUMMING)
def test_a_limit_that_keeps_only_sums_grants_ten_million_at_once(
    make: MakeLength, moved: Clocked
) -> None:
    limiter = make(10_000_000, DAY).on(moved)
    assert limiter.acquire("ada", 9_999_999, permit="x").remaining == 1
    assert limiter.acquire("ada", 9_999_999, permit="x").granted == 9_999_999
    assert limiter.acquire("ada", 2).state is State.REFUSED
    assert limiter.give_back("ada", "x") == 9_999_999
    assert limiter.acquire_up_to("ada", 20_000_000).granted == 10_000_000


@every
def test_every_key_expires(make: Make, redis_client: redis.Redis) -> None:
    limiter = make(5).on(redis_client)
    limiter.acquire("ada", 2)
    limiter.acquire("ada")
    spare = limiter.acquire("ada")
    limiter.give_back("ada", spare.permit)
    keys = cast("list[bytes]", redis_client.keys("*"))
    assert keys
    assert all(0 < redis_client.pttl(key) <= 86_400_000 for key in keys)


@every
def test_the_clock_of_the_client_decides_nothing(make: Make, redis_client: redis.Redis) -> None:
    clock = MovableClock(datetime(1999, 12, 31, 23, 59, 59, tzinfo=UTC))
    limiter, others = make(3).on(redis_client, clock=clock), make(3).on(redis_client)
    answers: list[Decision] = []
    for turn in (limiter, others, limiter, others):
        answers.append(turn.acquire("ada"))
        clock.advance(timedelta(days=400))
    assert [answer.remaining for answer in answers] == [2, 1, 0, 0]
    resets = [answer.reset_at for answer in answers]
    assert max(resets) - min(resets) < MINUTE


@counted
def test_a_permit_that_counts_no_more_is_not_given_back(make: MakeLength, moved: Clocked) -> None:
    limiter = make(5, timedelta(seconds=1)).on(moved)
    one, other = limiter.acquire("ada"), limiter.acquire("ada")
    moved.advance(timedelta(seconds=2))
    assert limiter.give_back("ada", one.permit) == 0
    limiter.acquire("ada", 2)
    assert limiter.give_back("ada", other.permit) == 0
    assert limiter.peek("ada").remaining == 3


def named(period: timedelta, count: int = 3) -> list[Algorithm]:
    """Return a limit of each algorithm and of each kind of window, all of one name."""
    limits = [make(count, period) for make in COUNTED.values()]
    limits += [FixedWindow(count, period, align="UTC"), CoolDown()]
    return [replace(cast(Any, limit), name="x") for limit in limits]


def test_a_name_is_shared_by_no_two_algorithms_and_no_two_periods(moved: Clocked) -> None:
    limits = named(MINUTE)
    limits += [limit for limit in named(timedelta(hours=1)) if limit.length_ms]
    for limit in limits:
        if isinstance(limit, CoolDown):
            limit.on(moved).close("ada", MINUTE)
        else:
            limit.on(moved).acquire_up_to("ada", 3)
    for limit in limits:
        refused = limit.on(moved).acquire("ada")
        assert (refused.allowed, refused.remaining) == (False, 0), limit
    assert len(cast("list[bytes]", moved.keys("*=x"))) == len(limits)


@counted
def test_a_name_keeps_its_count_when_the_limit_is_raised(
    make: MakeLength, redis_client: redis.Redis
) -> None:
    low, high = (replace(cast(Any, make(n, MINUTE)), name="x") for n in (2, 5))
    if low.scale != high.scale:  # its rate is the unit of what it counts
        high = replace(high, count=low.count)
    low.on(redis_client).acquire("ada", 2)
    assert taken(high.on(redis_client), "ada", 5) == 3


@every
def test_waiting_ends_when_a_permit_is_free(make: Make, redis_client: redis.Redis) -> None:
    clock = MovableClock()
    limiter = make(1).on(redis_client, clock=clock)
    limiter.acquire("ada")
    gave_up = limiter.acquire("ada", wait=True, timeout=0.05)
    assert gave_up.state is State.REFUSED
    assert sum(clock.sleeps) <= 0.05
    clock.sleeps.clear()
    clock.meanwhile = partial(limiter.reset, "ada")
    assert limiter.acquire("ada", wait=True).allowed
    assert len(clock.sleeps) == 1


@pytest.mark.parametrize("way", ["sync", "async"])
def test_waiting_is_real(way: str, ways: Callable[..., Ways]) -> None:
    limiter = ways(SlidingLog(1, 150 * MS), way)
    first = limiter.acquire("ada")
    second = limiter.acquire("ada", wait=True, timeout=10)
    assert second.allowed
    assert second.reset_at - first.reset_at >= 150 * MS


SPACING = 0.1
EVEN = [GCRA(10, "second"), SlidingList(1, 100 * MS)]


def sleeps(
    limit: Algorithm, moved: Clocked, *, quicker: int, timeout: float | None = None
) -> list[float]:
    """Return how long a caller sleeps where others are quicker so many times."""
    others, clock, turns = limit.on(moved), MovableClock(), iter(range(quicker))
    others.acquire_up_to("ada", 9_999)

    def meanwhile() -> None:
        moved.advance(timedelta(seconds=clock.sleeps[-1]) + 50 * MS)
        if next(turns, None) is not None:
            others.acquire_up_to("ada", 9_999)

    clock.meanwhile = meanwhile
    decision = limit.on(moved, clock=clock).acquire("ada", wait=True, timeout=timeout)
    assert decision.allowed == (timeout is None)
    moved.advance(2 * MINUTE)
    return clock.sleeps


@pytest.mark.parametrize("limit", EVEN, ids=str)
def test_the_first_wait_is_as_told_and_further_ones_spread_over_the_spacing(
    limit: Algorithm, moved: Clocked
) -> None:
    assert sleeps(limit, moved, quicker=0) == [SPACING]
    waits = [wait for _ in range(8) for wait in sleeps(limit, moved, quicker=2)[1:]]
    assert len(waits) == 16
    assert all(SPACING <= wait <= 2 * SPACING for wait in waits)
    assert len(set(waits)) > 8
    assert max(waits) - min(waits) > SPACING / 4


def test_waits_for_windows_of_a_calendar_spread_as_well(moved: Clocked) -> None:
    _, again = sleeps(FixedWindow(600, "minute", align="UTC"), moved, quicker=1)
    assert 60 - 0.1 <= again <= 60 + SPACING


def test_no_wait_exceeds_its_timeout(moved: Clocked) -> None:
    for _ in range(8):
        waits = sleeps(EVEN[0], moved, quicker=99, timeout=0.35)
        assert sum(waits) <= 0.35 + 1e-5, "the clock of the test goes by microseconds"
        assert len(waits) >= 2


def test_a_refusal_names_every_limit_that_refused(redis_client: redis.Redis) -> None:
    limits = [
        SlidingList(1, "minute"), FixedWindow(9, "hour"), FixedWindow(1, "minute"),
        FixedWindow(1, "hour", name="mine"), FixedWindow(1, "hour", name="yours"),
        CoolDown(), Concurrency(2),
    ]  # fmt: skip
    limiter = Limits(limits).on(redis_client)
    assert limiter.acquire("ada").refusals == ()
    limiter.close("ada", timedelta(days=1))
    told = {
        "cool-down", "mine (1/hour)", "yours (1/hour)",
        "1/minute (limit 1 of 7)", "1/minute (limit 3 of 7)",
    }  # fmt: skip
    for refused in (limiter.acquire("ada"), limiter.peek("ada")):
        assert {refusal.limit for refusal in refused.refusals} == told
        assert {refusal.limit: refusal.index for refusal in refused.refusals}["mine (1/hour)"] == 3
        waits = [refusal.retry_after for refusal in refused.refusals]
        assert waits == sorted(waits, reverse=True)
        assert timedelta(0) < waits[-1] <= MINUTE
        assert (refused.refused_by, refused.retry_after) == ("cool-down", waits[0])
    oversized = limiter.acquire("ada", 3)
    assert oversized.state is State.OVERSIZED
    assert oversized.refused_by == "1/minute (limit 1 of 7)"
    never = {part.limit for part in oversized.refusals if part.retry_after == timedelta.max}
    assert never == {*told - {"cool-down"}, "2 at once"}
    with pytest.raises(LimitReached, match="cool-down is reached") as raised, limiter.permit("ada"):
        pytest.fail("it ran")
    assert {raised.value.limit, *raised.value.others} == told
    with (
        pytest.raises(LimitReached, match=r"never gives so many") as raised,
        limiter.permit("ada", 3, wait=True),
    ):
        pytest.fail("it ran")
    assert pickle.loads(pickle.dumps(raised.value)).others == raised.value.others  # noqa: S301 - ours


@pytest.mark.parametrize(("one", "other"), list(itertools.pairwise(ALL)), ids="-".join)
def test_two_algorithms_go_together(one: str, other: str, redis_client: redis.Redis) -> None:
    limiter = Limits([ALL[one](3), ALL[other](2)]).on(redis_client)
    assert taken(limiter, "ada", 4) == 2
    alone = ALL[one](3).on(redis_client)
    assert alone.peek("ada").remaining == 1, "what one limit refused took nothing from the other"
    limiter.reset("ada")
    decision = limiter.acquire("ada", 2)
    assert limiter.acquire("ada", 2, permit=decision.permit).granted == 2
    assert limiter.give_back("ada", decision.permit) == 2
    assert (limiter.peek("ada").remaining, alone.peek("ada").remaining) == (2, 3)

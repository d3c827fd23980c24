"""Permits for groups of requests: one script decides, and several as one would."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher import InvalidValue
from dispatcher.limiters import (
    Algorithm,
    Concurrency,
    CoolDown,
    FixedWindow,
    Limits,
    Request,
    SlidingList,
    SlidingLog,
    State,
)
from dispatcher.limiters import limiter as limiter_module
from tests.support.examples import examples
from tests.support.limiters import COUNTED, MINUTE, MS, START_US, Clocked

SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)


def test_each_of_a_group_is_judged_by_its_scope_and_its_channel(redis_client: redis.Redis) -> None:
    limits = [SlidingLog(1, "minute", name="scope"), SlidingLog(3, "hour", name="channel"),
              Concurrency(20), CoolDown()]  # fmt: skip
    limiter = Limits(limits).on(redis_client, tag="sms")
    keys = ["ada", "ben", "ada", "cleo", "dora"]
    decisions = limiter.acquire_each(
        [Request((key, "sms", "sms", "sms"), permit=f"{n}") for n, key in enumerate(keys)]
    )
    assert [decision.allowed for decision in decisions] == [True, True, False, True, False]
    assert [decision.refused_by for decision in decisions if not decision] == [
        "scope (1/minute)", "channel (3/hour)",
    ]  # fmt: skip
    again = limiter.acquire_each([Request(("ada", "sms", "sms", "sms"), permit="0")])
    assert again[0].allowed, "asked again under the same id"
    assert limiter.peek(("x", "sms", "sms", "sms")).remaining == 0


@pytest.mark.parametrize("make", COUNTED.values(), ids=COUNTED)
def test_permits_go_back_to_the_limits_that_gave_them(
    redis_client: redis.Redis, make: Callable[[int, timedelta], Algorithm]
) -> None:
    """A request names some of the limits: the others have given it nothing."""
    limits = [make(5, HOUR), SlidingList(9, "hour", name="x"), make(6, 2 * HOUR)]
    limiter = Limits(limits).on(redis_client, tag="t")
    full, taken = limiter.acquire_each(
        [Request("a", 6, limits=(2,)), Request("a", 2, limits=(1, 0))]
    )
    assert full.allowed
    assert limiter.give_back("a", taken.permit) == 2
    answers = limiter.acquire_each([Request("a", limits=(2,)), Request("a", 5, limits=(0, 1))])
    assert [answer.allowed for answer in answers] == [False, True]


@pytest.mark.parametrize("further", [[], [Request("a")]])
def test_the_first_of_a_group_may_name_no_limit(
    further: list[Request], redis_client: redis.Redis
) -> None:
    limiter = SlidingList(1, "minute").on(redis_client)
    decisions = limiter.acquire_each([Request("a", limits=()), *further])
    assert [(decision.allowed, decision.limit) for decision in decisions] == [(True, 0), (True, 1)][
        : 1 + len(further)
    ]


@pytest.mark.parametrize("make", COUNTED.values(), ids=COUNTED)
def test_refused_requests_of_a_group_get_different_times_in_order(
    make: Callable[[int, timedelta], Algorithm], moved: Clocked
) -> None:
    limiter = make(5, SECOND).on(moved)
    for _ in range(5):
        limiter.acquire("sms")
        moved.advance(100 * MS)
    decisions = limiter.acquire_each([Request("sms") for _ in range(23)])
    waits = [decision.retry_after // MS for decision in decisions if not decision.allowed]
    assert waits == sorted(waits)
    assert all(waits.count(wait) <= 5 for wait in waits), "no more at once than fit"
    begin = moved.now_us
    for number, wait in enumerate(waits):
        moved.set_us(begin + wait * 1_000)
        assert limiter.acquire("sms").allowed, f"number {number} comes back in vain"


def test_a_refusal_of_one_limit_keeps_no_place_in_another(moved: Clocked) -> None:
    limits = [FixedWindow(1, "hour", name="scope"), FixedWindow(1, "second", name="channel")]
    limiter = Limits(limits).on(moved, tag="t")
    decisions = limiter.acquire_each(
        [Request((key, "sms")) for key in ("ada", "ada", "ada", "ben", "cleo")]
    )
    hour, second = 3_600_000, 1_000
    waits = [decision.retry_after // MS for decision in decisions]
    assert waits[:3] == [0, hour, 2 * hour]
    assert waits[3] >= second
    assert waits[4] > waits[3]


def test_a_request_that_is_never_granted_makes_no_other_one_wait(moved: Clocked) -> None:
    limits = [FixedWindow(1, "hour", name="scope"), FixedWindow(2, "second", name="channel")]
    limiter = Limits(limits).on(moved, tag="t")
    full = [Request((key, "sms")) for key in ("ada", "ben")]
    decisions = limiter.acquire_each([*full, Request(("cleo", "sms"), 2), Request(("dora", "sms"))])
    assert [decision.state for decision in decisions[2:]] == [State.OVERSIZED, State.REFUSED]
    assert decisions[3].retry_after == SECOND


def test_a_large_group_is_asked_in_several_scripts(redis_client: redis.Redis) -> None:
    each_kept, counted = SlidingLog(9_000, "hour"), FixedWindow(10_000_000, "hour", name="x")
    groups = [
        (each_kept, [Request("a")] * 1_501, 4),
        (each_kept, [Request("a", 300)] * 4, 4),
        (each_kept, [Request("a", 1_000), Request("a")], 2),
        (counted, [Request("a", 5_000)] * 500, 1),
        (Limits([each_kept, counted]), [Request("a", 2, limits=(1,)), Request("a", 499)], 1),
    ]
    for limits, requests, scripts in groups:
        redis_client.flushall()
        limiter = limits.on(redis_client)
        limiter.acquire_each([Request("a")])
        redis_client.config_resetstat()
        decisions = limiter.acquire_each(requests)
        assert [decision.granted for decision in decisions] == [request.n for request in requests]
        assert redis_client.info("commandstats")["cmdstat_evalsha"]["calls"] == scripts


EVERY = {**COUNTED, "CoolDown": lambda *_: CoolDown()}
requests = st.builds(
    Request,
    st.sampled_from(["a", "b"]),
    st.sampled_from([0, 1, 1, 1, 1, 2, 5]),
    limits=st.sampled_from([None, (0,)]),
)


@settings(max_examples=examples(60), deadline=None, database=None)
@given(
    names=st.lists(st.sampled_from(sorted(EVERY)), min_size=2, max_size=2),
    counts=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    group=st.lists(requests, min_size=1, max_size=30),
    most=st.integers(1, 8),
)
def test_a_group_that_is_cut_is_decided_as_if_it_were_not(
    shared: Clocked, names: list[str], counts: tuple[int, int], group: list[Request], most: int
) -> None:
    """Whatever the parts, requests count against each other, and each has its turn."""
    limits = [EVERY[name](n, MINUTE) for name, n in zip(names, counts, strict=True)]
    if limits[0] == limits[1]:
        limits.pop()
    limiter = Limits(limits).on(shared, tag="t")
    answers = []
    for work in (10**9, most):
        shared.flushall()
        shared.set_us(START_US)
        limiter.acquire("a", 0)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(limiter_module, "_MOST_IN_A_SCRIPT", work)
            answers.append(limiter.acquire_each(group))
    whole, cut = ([(answer.state, answer.granted) for answer in decisions] for decisions in answers)
    assert whole == cut
    if all(request.n <= 1 for request in group):
        told, told_cut = ([decision.refusals for decision in decisions] for decisions in answers)
        assert told == told_cut


@pytest.mark.parametrize("make", COUNTED.values(), ids=COUNTED)
def test_permits_freed_between_two_scripts_go_to_requests_refused_before(
    make: Callable[[int, timedelta], Algorithm], moved: Clocked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limiter_module, "_MOST_IN_A_SCRIPT", 1)
    limiter, real = make(1, SECOND).on(moved), limiter_module.Operations._acquire_part

    async def later(*args: Any) -> Any:
        answer = await real(*args)
        moved.advance(SECOND)
        return answer

    monkeypatch.setattr(limiter_module.Operations, "_acquire_part", later)
    decisions = limiter.acquire_each([Request("sms")] * 6)
    assert [decision.allowed for decision in decisions] == [True, False, False, False, False, False]


def test_a_group_of_several_keys_needs_a_tag(redis_client: redis.Redis) -> None:
    limiter = FixedWindow(1, "second").on(redis_client)
    with pytest.raises(InvalidValue, match="a tag"):
        limiter.acquire_each([Request("a"), Request("b")])
    assert limiter.acquire_each([]) == []

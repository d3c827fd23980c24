"""Windows of up to ten thousand members: jumps, scans, and judgements that take several calls."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dispatcher.quota import Quota
from tests.support.large_windows import BASE, PATTERNS, Calls, Filled, lone
from tests.support.model import next_free
from tests.support.reserving import Reserving
from tests.support.servers import RedisServer
from tests.support.soak import examples

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
verbs = st.sampled_from(["reserve", "reserve", "next_slot", "move", "many"])


@dataclass(frozen=True)
class Plan:
    """What is in a window, and what is asked for after one another."""

    count: int
    gap: int
    pattern: str
    seed: int
    further: list[Quota]
    near: list[Quota]
    steps: list[tuple[str, float, int]]

    @property
    def members(self) -> list[int]:
        return PATTERNS[self.pattern](Random(self.seed), self.count, self.gap)  # noqa: S311 - no secret


def quotas(gap: int, most: int) -> st.SearchStrategy[Quota]:
    return st.builds(
        lambda count, eighths: Quota(count, count * gap * eighths // 8),
        st.integers(1, most),
        st.integers(8, 20),
    )


def plans(gap: int) -> st.SearchStrategy[Plan]:
    return st.builds(
        Plan,
        st.one_of(st.integers(50, 5_000), st.sampled_from([2_000, 3_500, 5_000])),
        st.just(gap),
        st.sampled_from(sorted(PATTERNS)),
        st.integers(0, 2**32),
        st.lists(quotas(gap, 400), max_size=1),
        st.lists(quotas(gap, 5_000), max_size=1),
        st.lists(
            st.tuples(verbs, st.floats(-0.1, 1.1), st.sampled_from([0, 0, 1, 3, 50, 5_000])),
            min_size=1,
            max_size=4,
        ),
    )


@settings(
    max_examples=examples(15),
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(plan=st.sampled_from([1, 7, 1_000]).flatmap(plans))
def test_a_large_window_answers_as_the_rule_says(redis_session: RedisServer, plan: Plan) -> None:
    main = Quota(plan.count, plan.count * plan.gap)
    one = Filled(redis_session.url, [main, *plan.further], plan.members, near=plan.near)
    with one.real:
        for verb, place, room in plan.steps:
            asked = BASE + int(place * 3 * plan.count) * plan.gap + plan.seed % plan.gap
            getattr(one, verb)(asked, room * plan.gap)
            one.check_windows()


@pytest.mark.parametrize(
    ("verb", "room", "both"),
    [
        ("reserve", 20_000, True),
        ("reserve", 0, False),
        ("next_slot", 0, False),
        ("move", 0, True),
        ("many", 20_000, False),
    ],
)
def test_a_booking_too_long_for_one_call_is_held_and_checked(
    redis_session: RedisServer, verb: str, room: int, both: bool
) -> None:
    """In each row of N one place is free, so that no run is tight and all have to be looked at."""
    count, calls = 5_000, Calls()
    free = [n for n in range(3 * count) if n % (count - 1)]
    two = [Quota(count, count), Quota(count + 1, count + 1)]
    near = [Quota(count + 700, count + 100)] if both else []
    one = Filled(redis_session.url, two, free, calls=calls, near=near)
    with one.real:
        getattr(one, verb)(BASE + 3 * count // 2, room)
        one.check_windows()
        assert calls.made["check checking"] >= 1
        if verb == "next_slot":
            assert calls.made["next_slot unsure"] >= 1
        assert one.real.client.zcard(one.real.keys("ada").pending) <= 12


def test_a_crowd_is_seen_before_a_longer_quota_takes_several_calls(
    redis_session: RedisServer,
) -> None:
    """The short quota was given when the window was full. A crowd may thin out between calls."""
    count, asked, calls = 5_000, BASE + 7_500, Calls()
    free = [n for n in range(3 * count) if n % (count - 1)]
    two = [Quota(count, count), Quota(16, 65)]
    one = Filled(redis_session.url, two, free, calls=calls)
    with one.real:
        one.reserve(asked, 0)
        assert calls.made["reserve"] == 1
        assert calls.made["check"] == 0
        one.check_windows()


@pytest.mark.parametrize("verb", ["reserve", "next_slot"])
@pytest.mark.parametrize(("count", "other"), [(1_166, 2), (3_500, 2), (3_500, 40)])
def test_a_long_quota_is_not_judged_anew_at_each_step_of_another(
    redis_session: RedisServer, count: int, other: int, verb: str
) -> None:
    """The other one blocks stretch after stretch; the long one all but blocks."""
    calls, near = Calls(), [Quota(other, other)]
    free = [n for n in range(3 * count) if n % (count - 1)]
    one = Filled(redis_session.url, [Quota(count, count)], free, calls=calls, near=near)
    asked = BASE + 138
    assert next_free(one.intervals(), asked) - asked > count // 2
    with one.real:
        getattr(one, verb)(asked, 0)
        assert calls.made.total() < 25


def test_one_call_counts_no_more_than_its_budget(redis_session: RedisServer) -> None:
    """Each minute is taken, and four longer quotas are to be looked at for each: none blocks."""
    hours = [Quota(count, 60 * MINUTE) for count in (65, 70, 80, 100)]
    minutes = [n * MINUTE for n in range(5_000)]
    one = Filled(redis_session.url, [Quota(1, MINUTE), *hours], minutes)
    shards: Any = one.real.windows.shards
    run, made = shards._run, list[int]()

    def counted(script: Any, calls: Any) -> Any:
        before = sum(commands(one.real).values())
        replies = run(script, calls)
        made.append(sum(commands(one.real).values()) - before)
        return replies

    shards._run = counted
    with one.real:
        one.next_slot(BASE, 0)
    assert 2 <= len(made) <= 18
    assert max(made) < 2_200


def test_a_search_reads_no_run_but_the_one_that_it_tells(redis_session: RedisServer) -> None:
    """A run has a hundred members, and each leap is over one."""
    taken = [n * MINUTE for n in range(5_000)]
    one = Filled(redis_session.url, [Quota(100, 101 * MINUTE)], taken)
    of_runs = "cmdstat_zrangebyscore"
    with one.real:
        one.real.client.config_resetstat()
        one.next_slot(BASE, 0)
        one.reserve(BASE, 6_000 * MINUTE)
        assert of_runs not in commands(one.real)
        one.reserve(BASE, 0)
        assert commands(one.real)[of_runs] == 1, "only who is refused is told"


def commands(real: Reserving) -> dict[str, int]:
    """Return how often the server was given each command, also by scripts."""
    stats: Any = real.client.info("commandstats")
    return {name: each["calls"] for name, each in stats.items()}


@pytest.mark.parametrize("verb", ["reserve", "move"])
def test_nothing_is_booked_after_the_latest_time_where_that_takes_long_to_judge(
    redis_session: RedisServer, verb: str
) -> None:
    """A full row blocks the time asked for; where it ends, judging takes more than one call."""
    count = 5_000
    row = range(count)
    after = [count + n for n in range(1, 2 * count) if n % (count - 1)]
    one = Filled(redis_session.url, [Quota(count, count)], [*row, *after])
    asked = BASE + count // 2
    slot = next_free(one.intervals(), asked)
    assert slot > asked
    with one.real:
        getattr(one, verb)(asked, slot - asked - 1)
        one.check_windows()
        getattr(one, verb)(asked, slot - asked)
        one.check_windows()


@pytest.mark.parametrize("count", [17, 40])
def test_a_lone_tight_run_is_seen_wherever_it_ends(redis_session: RedisServer, count: int) -> None:
    for start in range(-count, 2):
        one = Filled(redis_session.url, [Quota(count, count)], lone(count, start))
        with one.real:
            one.next_slot(BASE, 0)
            if start in {-count, -count + 1, -1, 0, 1}:
                one.reserve(BASE, 0)


# Scopes so full that one call of a script cannot reach the next slot, or may just reach it.


@st.composite
def full_groups(draw: st.DrawFn) -> list[int]:
    """Draw full groups of one or two, one length apart, with groups left out."""
    holes = draw(st.frozensets(st.integers(0, 1_299), max_size=3))
    count, groups = draw(st.integers(1, 2)), draw(st.integers(1_010, 1_300))
    left = [10 * group for group in range(groups) if group not in holes]
    return sorted(left * count)


@settings(
    max_examples=examples(40),
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(members=full_groups(), offset=st.integers(0, 40), room=st.integers(0, 15_000))
def test_a_search_longer_than_one_call_finds_the_first_slot(
    redis_session: RedisServer, members: list[int], offset: int, room: int
) -> None:
    one = Filled(redis_session.url, [Quota(members.count(members[0]), 10)], members)
    asked = BASE + offset
    with one.real:
        slot = next_free(one.intervals(), asked)
        one.next_slot(asked, 0)
        for latest in (asked, slot - 1, max(slot, asked + room)):
            if latest >= asked:
                one.reserve(asked, latest - asked)
        one.check_windows()


def runs(*starts_and_counts: tuple[int, int]) -> list[int]:
    """Members a second apart, so many from each start on."""
    return sorted(start + n * SECOND for start, count in starts_and_counts for n in range(count))


QUOTAS = [Quota.parse("1/second"), Quota.parse("1000/day")]
WITH_ROOM = runs((-23 * HOUR, 500), (0, 499), (23 * HOUR, 500))
"""There is room for one in the day."""


@pytest.mark.parametrize(
    ("members", "least", "most"),
    [
        pytest.param(WITH_ROOM, 1, 1_000, id="room for one in the day"),
        pytest.param(
            runs((-23 * HOUR, 400), (0, 600), (23 * HOUR, 400)), 1, 1_000, id="no room in the day"
        ),
        pytest.param(runs((0, 999)), 1, 1, id="room for one after a full row"),
        pytest.param(runs((0, 999), (DAY, 999)), 2, 1_000, id="room for one after each of two"),
    ],
)
def test_only_a_long_search_is_cut_into_several_calls(
    redis_session: RedisServer, members: list[int], least: int, most: int
) -> None:
    """The members, 1,000 to 2,000, keep both a short and a long quota."""
    calls = Calls()
    one = Filled(redis_session.url, QUOTAS, members, calls=calls)
    with one.real:
        for verb, room in (("next_slot", 0), ("reserve", 0), ("reserve", DAY)):
            calls.made.clear()
            getattr(one, verb)(BASE, room)
            assert least <= calls.made.total() <= most
        one.next_slot(BASE + 250 * SECOND + 7, 0)
        one.check_windows()


def test_a_booking_that_fits_takes_one_call_in_a_packed_scope(redis_session: RedisServer) -> None:
    calls = Calls()
    one = Filled(redis_session.url, QUOTAS, WITH_ROOM, calls=calls)
    with one.real:
        one.reserve(BASE + 499 * SECOND, 0)
        one.check_windows()
    assert calls.made == {"reserve": 1}

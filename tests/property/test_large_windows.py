"""Windows of up to ten thousand members: jumps, scans, and judgements that take several calls."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dispatcher.quota import Quota
from tests.support.examples import a_third_of, examples
from tests.support.reserving import Reserving
from tests.support.servers import RedisServer
from tests.support.stories import BASE, PATTERNS, Calls, Step, large, lone

SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000
MOST_CALLS = 120
"""One answer takes at most so many script calls; each reads at most about two thousand members."""
verbs = st.sampled_from(["shift", "shift", "slot", "push", "many"])


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
    with large(redis_session.url, [main, *plan.further], plan.members, near=plan.near) as story:
        for verb, place, room in plan.steps:
            offset = int(place * 3 * plan.count) * plan.gap + plan.seed % plan.gap
            story.play([Step(verb, offset, room * plan.gap, plan.seed)])


@pytest.mark.parametrize(
    ("verb", "room", "both"),
    a_third_of([pytest.param(*case) for case in (
        ("shift", 20_000, True), ("shift", 0, False), ("push", 0, True),
        ("slot", 0, False), ("many", 20_000, False),
    )]),
)  # fmt: skip
def test_a_booking_too_long_for_one_call_is_held_and_checked(
    redis_session: RedisServer, verb: str, room: int, both: bool
) -> None:
    """In each row of N one place is free, so that no run is tight and all have to be looked at."""
    count, calls = 5_000, Calls()
    free = [n for n in range(3 * count) if n % (count - 1)]
    two = [Quota(count, count), Quota(count + 1, count + 1)]
    near = [Quota(count + 700, count + 100)] if both else []
    with large(redis_session.url, two, free, near=near) as story:
        calls.watch(story.real)
        story.play([Step(verb, 3 * count // 2, room)])
        assert calls.made["check checking"] >= 1
        assert calls.made.total() <= MOST_CALLS * (4 if verb == "many" else 1)
        if verb == "slot":
            assert calls.made["next_slot unsure"] >= 1
        assert story.real.client.zcard(story.real.keys("ada").pending) <= 12


def test_a_crowd_is_seen_before_a_longer_quota_takes_several_calls(
    redis_session: RedisServer,
) -> None:
    """The short quota was given when the window was full. A crowd may thin out between calls."""
    count, calls = 5_000, Calls()
    free = [n for n in range(3 * count) if n % (count - 1)]
    with large(redis_session.url, [Quota(count, count), Quota(16, 65)], free) as story:
        calls.watch(story.real)
        story.play([Step("book", 7_500)])
        assert (calls.made["reserve"], calls.made["check"]) == (1, 0)


@pytest.mark.parametrize("verb", ["book", "slot"])
@pytest.mark.parametrize(
    ("count", "other"),
    a_third_of([pytest.param(*pair) for pair in ((3_500, 2), (1_166, 2), (3_500, 40))]),
)
def test_a_long_quota_is_not_judged_anew_at_each_step_of_another(
    redis_session: RedisServer, count: int, other: int, verb: str
) -> None:
    """The other one blocks stretch after stretch; the long one all but blocks."""
    calls, near = Calls(), [Quota(other, other)]
    free = [n for n in range(3 * count) if n % (count - 1)]
    with large(redis_session.url, [Quota(count, count)], free, near=near) as story:
        calls.watch(story.real)
        asked = BASE + 138
        assert story.slot_after(asked) - asked > count // 2
        story.play([Step(verb, 138)])
        assert calls.made.total() < 25


def test_one_call_counts_no_more_than_its_budget(redis_session: RedisServer) -> None:
    """Each minute is taken, and four longer quotas are to be looked at for each: none blocks."""
    hours = [Quota(count, 60 * MINUTE) for count in (65, 70, 80, 100)]
    minutes = [n * MINUTE for n in range(5_000)]
    with large(redis_session.url, [Quota(1, MINUTE), *hours], minutes) as story:
        shards: Any = story.real.windows.shards
        run, made = shards._run, list[int]()

        def counted(script: Any, calls: Any) -> Any:
            before = sum(commands(story.real).values())
            replies = run(script, calls)
            made.append(sum(commands(story.real).values()) - before)
            return replies

        shards._run = counted
        story.play([Step("slot", 0)])
    assert 2 <= len(made) <= 18
    assert max(made) < 2_200


def test_a_search_reads_no_run_but_the_one_that_it_tells(redis_session: RedisServer) -> None:
    """A run has a hundred members, and each leap is over one."""
    taken = [n * MINUTE for n in range(5_000)]
    of_runs = "cmdstat_zrangebyscore"
    with large(redis_session.url, [Quota(100, 101 * MINUTE)], taken) as story:
        story.real.client.config_resetstat()
        story.slot(Step("slot", 0))
        story.shift(Step("shift", 0, 6_000 * MINUTE))
        assert of_runs not in commands(story.real)
        story.book(Step("book", 0))
        assert commands(story.real)[of_runs] == 1, "only who is refused is told"


def commands(real: Reserving) -> dict[str, int]:
    """Return how often the server was given each command, also by scripts."""
    stats: Any = real.client.info("commandstats")
    return {name: each["calls"] for name, each in stats.items()}


@pytest.mark.parametrize("verb", ["shift", "push"])
def test_nothing_is_booked_after_the_latest_time_where_that_takes_long_to_judge(
    redis_session: RedisServer, verb: str
) -> None:
    """A full row blocks the time asked for; where it ends, judging takes more than one call."""
    count = 5_000
    row = range(count)
    after = [count + n for n in range(1, 2 * count) if n % (count - 1)]
    with large(redis_session.url, [Quota(count, count)], [*row, *after]) as story:
        asked = count // 2
        room = story.slot_after(BASE + asked) - BASE - asked
        assert room > 0
        story.play([Step(verb, asked, room - 1), Step(verb, asked, room)])


@pytest.mark.parametrize("count", [17, 40])
def test_a_lone_tight_run_is_seen_wherever_it_ends(redis_session: RedisServer, count: int) -> None:
    for start in range(-count, 2):
        with large(redis_session.url, [Quota(count, count)], lone(count, start)) as story:
            story.play([Step("slot", 0), Step("book", 0)])


def test_a_booking_that_fits_takes_one_call_in_a_packed_scope(redis_session: RedisServer) -> None:
    """There is room for one in the day."""
    calls, two = Calls(), [Quota.parse("1/second"), Quota.parse("1000/day")]
    rows = ((-23 * HOUR, 500), (0, 499), (23 * HOUR, 500))
    members = [start + n * SECOND for start, count in rows for n in range(count)]
    with large(redis_session.url, two, members) as story:
        calls.watch(story.real)
        story.play([Step("book", 499 * SECOND)])
    assert calls.made == {"reserve": 1}

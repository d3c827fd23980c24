"""Who goes first where a channel's limit is short: priorities, fair shares, kept turns.

Clients ask, come back when they are told plus a delay, and use what they get. Time is that of a
Redis whose clock the test moves.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from heapq import heappop, heappush
from itertools import count
from typing import Any, cast
from uuid import UUID

import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.limiters.permits import LogLimit, Permit, Permits
from dispatcher.quota import Limit, parse_limit
from dispatcher.redis.keys import LogKeys, permit_parts
from tests.support.examples import a_third_of, examples
from tests.support.limiters import MS, Clocked
from tests.support.model import is_broken

SECOND = timedelta(seconds=1)
HOLD = timedelta(seconds=30)
NUMBERS = count()


@dataclass
class Clients:
    """Messages of one channel that ask for permits, in groups, and come back as they are told."""

    client: Clocked
    limits: Sequence[LogLimit]
    weights: dict[str, float] = field(default_factory=dict)
    delay_ms: Callable[[], int] = lambda: 5
    sent: list[tuple[int, Permit]] = field(default_factory=list)
    asked: Counter[UUID] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.namespace = f"turns{next(NUMBERS)}"
        [self.keys] = permit_parts(self.namespace, 1)
        self.log = self.keys.channel("mail")
        self.client.hset(self.keys.epoch, "server", "any")
        self.permits = self.permits_on(self.client, self.weights)
        self.start_ms = self.now_ms
        self._ids = count(1)
        self._events: list[tuple[int, int, Permit]] = []
        self._numbers = count()

    def permits_on(self, client: redis.Redis, weights: dict[str, float]) -> Permits:
        return Permits(
            client,
            namespace=self.namespace,
            shards=1,
            scope_limits=[],
            channel_limits={"mail": self.limits},
            weights={"mail": weights},
        )

    @property
    def now_ms(self) -> int:
        return self.client.now_us // 1_000

    def permit(self, share: str = "", priority: int = 0) -> Permit:
        return Permit(UUID(int=next(self._ids)), 1, "", "mail", priority, share)

    def come(
        self, share: str = "", number: int = 1, *, at_ms: int = 0, priority: int = 0
    ) -> list[Permit]:
        """Let new messages come so long after the start."""
        permits = [self.permit(share, priority) for _ in range(number)]
        for permit in permits:
            self.put(self.start_ms + at_ms, permit)
        return permits

    def put(self, at_ms: int, permit: Permit) -> None:
        heappush(self._events, (at_ms, next(self._numbers), permit))

    def run(self, until_ms: int, *, group: int = 50, apart_ms: int = 9) -> None:
        """Play until so long after the start; what comes within ``apart_ms`` asks together."""
        while self._events and self._events[0][0] <= self.start_ms + until_ms:
            at_ms = max(self._events[0][0] + apart_ms, self.now_ms)
            self.client.set_us(at_ms * 1_000)
            here: list[Permit] = []
            while self._events and self._events[0][0] <= at_ms and len(here) < group:
                here.append(heappop(self._events)[-1])
            self.ask(here)
        self.client.set_us(max(self.now_ms, self.start_ms + until_ms) * 1_000)

    def ask(self, group: Sequence[Permit]) -> None:
        answers = self.permits.acquire(group, within=HOLD)
        granted = [permit for permit, answer in zip(group, answers, strict=True) if answer.allowed]
        used = []
        for permit, answer in zip(group, answers, strict=True):
            self.asked[permit.message_id] += 1
            if answer.allowed:
                self.sent.append((self.now_ms, permit))
                used.append((permit, timedelta(0)))
            else:
                self.put(self.now_ms + answer.retry_after // MS + self.delay_ms(), permit)
        self.permits.settle(used)
        self.judge(group, granted)

    def judge(self, group: Sequence[Permit], granted: Sequence[Permit]) -> None:
        """Fail where a permit was given past a message of a higher class that was there."""
        if not granted:
            return
        lowest = min(permit.priority for permit in granted)
        higher = {permit for permit in group if permit.priority > lowest}
        assert higher <= {*granted}

    def shares(self, from_ms: int = 0, until_ms: int = 10**9) -> Counter[str]:
        """Count what each share sent, so long after the start."""
        return Counter(
            permit.share for at, permit in self.sent if from_ms <= at - self.start_ms < until_ms
        )

    def waits(self, permits: Iterable[Permit]) -> list[int]:
        """Return how long after the start each was sent, in ms; all must be."""
        sent = {permit: at - self.start_ms for at, permit in self.sent}
        return [sent[permit] for permit in permits]

    def check_limit(self, most: int, length_ms: int) -> None:
        assert not is_broken([at for at, _ in self.sent], (most, length_ms))


Build = Callable[..., Clients]


@pytest.fixture
def build(moved: Clocked) -> Build:
    def make(*limits: str, **more: Any) -> Clients:
        return Clients(moved, [parse_limit(text) for text in limits], **more)

    return make


def late(most_ms: int) -> Callable[[], int]:
    """Return a maker of delays of at most so many ms, mostly short."""
    chance = random.Random(most_ms)  # noqa: S311 - a test
    return lambda: int(most_ms * chance.random() ** 3)


@pytest.mark.parametrize(
    "weights", a_third_of([{"a": 0.5, "b": 7, "c": 0.01, "d": 1.5}, {}, {"a": 3.0}])
)
def test_shares_that_always_wait_get_what_they_weigh(
    build: Build, weights: dict[str, float]
) -> None:
    """Within 2 % over 60 s, the limit used by 95 % and never exceeded."""
    clients = build("50/second", weights=weights, delay_ms=late(60))
    names = "abcd"
    total = sum(weights.get(name, 1) for name in names)
    for name in names:
        clients.come(name, round(3_300 * weights.get(name, 1) / total) + 70)
    clients.run(62_000)
    shares = clients.shares(2_000, 62_000)
    assert 2_850 <= shares.total() <= 3_000
    for name in names:
        part = weights.get(name, 1) / total * shares.total()
        assert abs(shares[name] - part) <= max(2, 0.02 * part)
    clients.check_limit(50, 1_000)


@pytest.mark.parametrize("delay", a_third_of([60, 0]))
def test_small_shares_pass_a_large_one_and_keep_the_limit_used(build: Build, delay: int) -> None:
    clients = build("100/second", delay_ms=late(delay))
    large = {*clients.come("large", 5_000)}
    small = [
        permit for n in range(99) for permit in clients.come(f"small {n}", 10, at_ms=1_000 + n)
    ]
    clients.run(30_000)
    assert max(clients.waits(small)) < 12_500
    assert len(clients.sent) >= 2_850
    large_sent = [permit.message_id for _, permit in clients.sent if permit in large]
    assert sum(clients.asked[id_] for id_ in large_sent) <= 4.5 * len(large_sent)
    clients.check_limit(100, 1_000)


def test_a_higher_class_passes_all_that_wait(build: Build) -> None:
    clients = build("100/second", delay_ms=late(30))
    clients.come("large", 3_000)
    codes = [
        clients.come("large", 1, at_ms=at_ms, priority=50)[0] for at_ms in range(3_000, 9_000, 500)
    ]
    late_ones = clients.come("large", 5, at_ms=5_000, priority=-1)
    clients.run(20_000)
    for at_ms, waited in zip(range(3_000, 9_000, 500), clients.waits(codes), strict=True):
        assert waited - at_ms <= 1_050, "one period: all permits may be of one moment"
    assert not {*late_ones} & {permit for _, permit in clients.sent}
    assert len(clients.sent) >= 1_900


def test_an_idle_share_has_saved_nothing(build: Build) -> None:
    clients = build("50/second")
    clients.come("a", 1)
    for name in "bc":
        clients.come(name, 1_500)
    clients.come("a", 600, at_ms=20_000)
    clients.run(32_000)
    shares = clients.shares(20_000, 23_000)
    assert shares["a"] <= 50 + 3, "a third of three seconds"
    assert clients.shares(20_000, 32_000)["a"] >= 190


def test_a_message_that_does_not_come_holds_nobody_up(build: Build) -> None:
    """It was told its turn, and comes 29 s after it, or never."""
    clients = build("50/second")
    clients.come("b", 1_000)
    clients.run(1_000)
    [absent] = clients.permits.acquire([clients.permit("a")], within=HOLD)
    assert not absent.allowed
    clients.run(22_000)
    assert clients.shares(1_000, 11_000)["b"] >= 475
    assert clients.client.zcard(LogKeys.of(clients.log).line) == 1
    clients.client.advance(2 * 60 * SECOND)
    clients.ask([clients.permit("c")])
    assert not clients.client.exists(LogKeys.of(clients.log).line, LogKeys.of(clients.log).order)


def test_who_takes_a_free_permit_out_of_turn_moves_no_other_share_back(build: Build) -> None:
    clients = build("10/second")
    clients.permits.acquire([clients.permit("a") for _ in range(200)], within=MS)
    clients.client.advance(15 * SECOND)
    late = clients.permits.acquire([clients.permit("a") for _ in range(12)], within=MS)
    assert sum(answer.allowed for answer in late) >= 8, "those before them have not come"
    [other] = clients.permits.acquire([clients.permit("b")], within=MS)
    assert not other.allowed
    assert other.retry_after <= 1.1 * SECOND


def test_thousands_that_left_the_line_hold_nobody_up(build: Build) -> None:
    """Their messages were cancelled or paused, and they never come to their turns."""
    clients = build("100/second")
    clients.permits.acquire([clients.permit() for _ in range(2_000)], within=HOLD)
    came = clients.come("", 300, at_ms=31_000)
    clients.run(40_000)
    assert max(clients.waits(came)) < 35_000


@pytest.mark.parametrize("delay", [0, 60, 120])
def test_without_shares_each_comes_back_about_once(build: Build, delay: int) -> None:
    clients = build("200/second", delay_ms=late(delay))
    asked = clients.come("", 3_000)
    clients.run(16_500, apart_ms=0)
    assert clients.waits(asked), "all are sent in time"
    assert sum(clients.asked.values()) <= 2.1 * len(asked)
    if not delay:
        assert [permit for _, permit in clients.sent] == asked


def test_turns_survive_other_settings_and_an_older_version(build: Build) -> None:
    """Shares are switched on, off and on; some entries have no place, some no turn."""
    clients = build("50/second", delay_ms=late(20))
    came = list[Permit]()
    for start, shares in enumerate([["", ""], ["a:x", "a:y"], ["", ""], ["b:x", "b:"]]):
        for share in shares:
            came += clients.come(share, 100, at_ms=start * 500)
    for at_ms in (250, 750, 1_250, 1_750):
        clients.run(at_ms)
        members = clients.client.zrange(LogKeys.of(clients.log).line, 0, 9)
        clients.client.zrem(LogKeys.of(clients.log).order, *members[:5])
        clients.client.zrem(LogKeys.of(clients.log).line, *members[5:])
    clients.run(40_000)
    assert len(clients.waits(came)) == 800
    assert max(clients.waits(came)) <= 17_500
    left = LogKeys.of(clients.log)[1:]
    assert not clients.client.exists(*left)
    clients.check_limit(50, 1_000)


class Oracle:
    """Start-time fair queueing in plain Python: the tags of those who wait, by class."""

    def __init__(self, weights: dict[str, float]) -> None:
        self.weights = weights
        self.tags: dict[Permit, float] = {}
        self.times: dict[int, float] = {}
        self.ends: dict[tuple[int, str], float] = {}

    def ask(self, group: Sequence[Permit], granted: Sequence[bool]) -> None:
        """Note a call; the heads of the classes are those before it."""
        heads = dict[int, float]()
        for permit, tag in self.tags.items():
            heads[permit.priority] = min(tag, heads.get(permit.priority, tag))
        for permit, is_granted in zip(group, granted, strict=True):
            name, class_ = (permit.priority, permit.share), permit.priority
            time = max(self.times.get(class_, 0), heads.get(class_, 0))
            self.times[class_] = time
            if (start := self.tags.get(permit)) is None:
                start = max(time, self.ends.get(name, 0))
                self.ends[name] = start + 10_000 / self.weights.get(permit.share, 1)
            if is_granted:
                self.tags.pop(permit, None)
                self.times[class_] = max(time, min(start, heads.get(class_, start)))
            else:
                self.tags[permit] = start
        if not self.tags:
            self.times.clear()
            self.ends.clear()


arrivals = st.lists(
    st.tuples(
        st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([0, 0, 5])), max_size=6),
        st.integers(0, 1_200),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=examples(80), deadline=None)
@given(plan=arrivals, most=st.integers(1, 6), weight=st.sampled_from([1, 2, 0.5, 8]))
def test_the_order_is_that_of_start_time_fair_queueing(
    shared: Clocked, plan: list[tuple[list[tuple[str, int]], int]], most: int, weight: float
) -> None:
    clients = Clients(shared, [Limit(most, 1_000)], {"a": weight}, delay_ms=lambda: 0)
    oracle = Oracle(clients.weights)
    acquire = clients.permits.acquire

    def watched(group: Sequence[Permit], *, within: timedelta) -> Any:
        answers = acquire(group, within=within)
        oracle.ask(group, [answer.allowed for answer in answers])
        order = clients.client.zrange(LogKeys.of(clients.log).order, 0, -1, withscores=True)
        expected = {
            permit.message_id.bytes: tag - permit.priority * 2.0**45
            for permit, tag in oracle.tags.items()
        }
        assert dict(cast("list[tuple[bytes, float]]", order)) == pytest.approx(expected, abs=1)
        return answers

    cast("Any", clients.permits).acquire = watched
    at_ms = 0
    for names, pause in plan:
        for share, priority in names:
            clients.come(share, at_ms=at_ms, priority=priority)
        clients.run(at_ms)
        at_ms += pause
    clients.run(at_ms + 80_000, apart_ms=0)
    assert len(clients.sent) == sum(len(names) for names, _ in plan)
    clients.check_limit(most, 1_000)

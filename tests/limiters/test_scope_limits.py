"""Single scopes have limits of their own: at hand-over, beside those of the channel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any
from uuid import UUID

import pytest

from dispatcher.limiters import permits
from dispatcher.limiters.permits import LogLimit, Permit, PermitAnswer, Permits
from dispatcher.quota import parse_limit
from dispatcher.redis.keys import permit_parts, shard_of
from tests.support.limiters import MS, Clocked
from tests.support.model import is_broken

HOLD = timedelta(seconds=30)
NUMBERS = count()
Own = Mapping[tuple[str, str], Sequence[LogLimit]]


def own(**limits: str) -> Own:
    return {("tenant", name): [parse_limit(text)] for name, text in limits.items()}


@dataclass
class World:
    """Workers that share a Redis; each knows limits of its own, ``lag`` after they are set."""

    client: Clocked
    shards: int = 1
    channel: str = "1000/second"
    workers: int = 2
    known: list[Own] = field(default_factory=list)
    sent: dict[UUID, tuple[int, Permit]] = field(default_factory=dict)
    asked: Counter[UUID] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.namespace = f"own{next(NUMBERS)}"
        self.parts = permit_parts(self.namespace, self.shards)
        for keys in self.parts:
            self.client.hset(keys.epoch, "server", "any")
        self.known = [{}] * self.workers
        self.permits = [
            Permits(
                self.client,
                namespace=self.namespace,
                shards=self.shards,
                scope_limits=[parse_limit("50/second")],
                channel_limits={"mail": [parse_limit(self.channel)], "sms": []},
                own_limits=partial(self.known_to, number),
            )
            for number in range(self.workers)
        ]
        self.start_ms = self.now_ms
        self._ids = count(1)
        self._events: list[tuple[int, int, Permit]] = []
        self._numbers = count()

    def known_to(self, worker: int) -> Own:
        return self.known[worker]

    @property
    def now_ms(self) -> int:
        return self.client.now_us // 1_000

    def set(self, limits: Own) -> None:
        self.known = [limits] * self.workers

    def permit(self, channel: str = "mail", **scopes: str) -> Permit:
        number = next(self._ids)
        return Permit(
            UUID(int=number),
            1,
            f"to {number}",
            channel,
            0,
            scopes.get("tenant", ""),
            scopes or None,
        )

    def come(self, number: int, channel: str = "mail", **scopes: str) -> list[Permit]:
        permits = [self.permit(channel, **scopes) for _ in range(number)]
        for permit in permits:
            heappush(self._events, (self.now_ms, next(self._numbers), permit))
        return permits

    def run(self, seconds: float, random: Random) -> None:
        until_ms = self.now_ms + int(seconds * 1_000)
        while self._events and self._events[0][0] <= until_ms:
            at_ms = max(self._events[0][0] + 9, self.now_ms)
            self.client.set_us(at_ms * 1_000)
            here: list[Permit] = []
            while self._events and self._events[0][0] <= at_ms and len(here) < 50:
                here.append(heappop(self._events)[-1])
            self.ask(here, random.randrange(self.workers))
        self.client.set_us(max(self.now_ms, until_ms) * 1_000)

    def ask(self, group: Sequence[Permit], worker: int = 0) -> list[PermitAnswer]:
        answers = self.permits[worker].acquire(group, within=HOLD)
        used = []
        for permit, answer in zip(group, answers, strict=True):
            self.asked[permit.message_id] += 1
            if answer.allowed:
                assert permit.message_id not in self.sent
                self.sent[permit.message_id] = self.now_ms, permit
                used.append((permit, timedelta(0)))
            else:
                at_ms = self.now_ms + answer.retry_after // MS + 5
                heappush(self._events, (at_ms, next(self._numbers), permit))
        self.permits[worker].settle(used)
        return answers

    def times(self, tenant: str, since_ms: int = 0) -> list[int]:
        of = [(at, permit.scopes or {}) for at, permit in self.sent.values()]
        return [at for at, scopes in of if scopes.get("tenant") == tenant and at >= since_ms]


def test_threads_that_ask_first_at_once_meet_a_limit(
    moved: Clocked, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(moved, workers=1)
    world.set(own(beta="1/minute"))
    make = permits._LogKind

    def slowly(*args: Any, **more: Any) -> Any:
        monkeypatch.undo()
        world.ask([world.permit(tenant="beta")])
        return make(*args, **more)

    monkeypatch.setattr(permits, "_LogKind", slowly)
    world.ask([world.permit(tenant="beta")])
    assert len(world.sent) == 1


@pytest.mark.parametrize("shards", [1, 8])
@pytest.mark.parametrize("channel", ["1000/second", "25/second"])
def test_two_workers_never_exceed_a_limit_that_is_set_changed_and_ended(
    moved: Clocked, shards: int, channel: str
) -> None:
    """A herd of one tenant, on two channels, beside others; none is lost, and few ask often."""
    world, random = World(moved, shards, channel), Random(7)  # noqa: S311 - the same each time
    of_beta = [*world.come(150, tenant="beta"), *world.come(150, "sms", tenant="beta")]
    others = [*world.come(60, tenant="other"), *world.come(60)]
    for text, length_ms in (("10/second", 1_000), ("4/2 second", 2_000), ("15/second", 1_000)):
        world.set(own(beta=text))
        since_ms, limit = world.now_ms, parse_limit(text)
        world.run(6, random)
        times = world.times("beta", since_ms)
        assert not is_broken(times, (limit.count, length_ms))
        assert len(times) >= 0.8 * limit.count * 6_000 / length_ms, "it is used"
    assert len(world.times("beta")) < 300
    assert all(permit.message_id in world.sent for permit in others)
    world.set({})
    world.run(60, random)
    assert len(world.sent) == len(of_beta) + len(others), "none is lost"
    assert sum(world.asked.values()) < 12 * len(world.sent), "no herd"


@pytest.mark.parametrize("shards", [1, 8])
def test_a_scope_is_served_also_where_its_channel_is_short(moved: Clocked, shards: int) -> None:
    """Whoever waits for the channel keeps its place in the line of its scope."""
    world, random = World(moved, shards, "25/second"), Random(7)  # noqa: S311 - the same each time
    world.set(own(beta="10/second"))
    world.come(400, tenant="beta")
    world.come(900, tenant="other")
    for _ in range(30):
        world.run(1, random)
        world.come(4, tenant="beta")
        world.come(9, tenant="other")
    late = world.start_ms + 5_000
    assert len(world.times("beta", late)) >= 0.8 * 10 * 25
    assert len(world.times("other", late)) + len(world.times("beta", late)) >= 0.95 * 25 * 25
    assert not is_broken(world.times("beta"), (10, 1_000))


def test_the_line_of_a_scope_has_turns(moved: Clocked) -> None:
    world = World(moved)
    world.set(own(beta="10/second"))
    group = world.come(50, tenant="beta")
    waits = [answer.retry_after // timedelta(seconds=1) for answer in world.ask(group)]
    assert Counter(waits) == {0: 10, 1: 10, 2: 10, 3: 10, 4: 10}
    [refused] = world.ask([world.permit(tenant="beta")])
    assert refused.limit == "tenant: 10/second"


@pytest.mark.parametrize("shards", [1, 8])
def test_a_permit_that_one_of_its_scopes_or_its_channel_refuses_is_taken_from_none(
    moved: Clocked, shards: int
) -> None:
    """Whatever shards they lie in; and what is given back makes room in each."""
    limits = {("tenant", "beta"): 2, ("plan", "free"): 1, ("team", "red"): 2}
    world = World(moved, shards, "2/second")
    world.set({named: [parse_limit(f"{n}/hour")] for named, n in limits.items()})
    scopes = {"tenant": "beta", "plan": "free", "team": "red"}

    def used() -> list[int]:
        keys = {named: world.parts[shard_of(":".join(named), shards)] for named in limits}
        logs = [keys[named].further(*named) for named in limits]
        mail = world.parts[shard_of("mail", shards)].channel("mail")
        return [int(moved.zcard(log)) for log in (*logs, mail)]

    def allowed(permit: Permit) -> bool:
        return world.permits[0].acquire([permit], within=HOLD)[0].allowed

    first = world.permit(**scopes)
    assert allowed(first)
    assert used() == [1, 1, 1, 1]
    assert not allowed(world.permit(**scopes))
    assert used() == [1, 1, 1, 1]
    assert allowed(world.permit(tenant="beta"))
    assert not allowed(world.permit(team="red")), "the channel"
    assert used() == [2, 1, 1, 2]
    world.permits[1].give_back([first])
    assert used() == [1, 0, 0, 1], "also by a process that had not asked"
    assert allowed(world.permit(**scopes))


def test_what_is_rebuilt_counts_by_a_process_that_never_asked(moved: Clocked) -> None:
    world = World(moved, 8)
    world.set(own(beta="2/hour"))
    group = [world.permit(tenant="beta") for _ in range(2)]
    world.ask(group)
    markers: dict[Any, str] = dict.fromkeys(world.parts, "marker")
    moved.flushall()
    for keys in world.parts:
        moved.set(keys.rebuild, "marker")
        moved.hset(keys.epoch, "server", "any")
    taken = [(permit, timedelta(seconds=9)) for permit in group]
    world.permits[1].restore(taken, markers, marker_life=HOLD)
    [answer] = world.ask([world.permit(tenant="beta")])
    assert answer.retry_after > timedelta(minutes=59)


def test_what_is_rebuilt_stays_where_and_as_long_as_it_counts(moved: Clocked) -> None:
    """Sends of an hour ago are read for one tenant: they fill no log that forgets in a second."""
    world = World(moved)
    world.set(own(beta="2/hour"))
    [keys] = world.parts
    moved.set(keys.rebuild, "marker")
    old, new = world.permit(tenant="beta"), world.permit(tenant="beta")
    taken = [(old, timedelta(minutes=50)), (new, timedelta(0))]
    world.permits[0].restore(taken, {keys: "marker"}, marker_life=HOLD)
    of_beta, mail = keys.further("tenant", "beta"), keys.channel("mail")
    assert moved.zcard(of_beta) == 2
    for log in (mail, keys.scope(new.scope)):
        assert moved.zrange(log, 0, -1) == [new.member]
        assert 0 < moved.left(log) <= 1_001
    assert not moved.exists(keys.scope(old.scope))


def test_without_such_limits_a_send_asks_for_nothing_more(moved: Clocked) -> None:
    world = World(moved, 8)
    world.set(own(beta="2/hour"))
    world.ask([world.permit(tenant="other", plan="free"), world.permit()])
    assert not moved.keys("*:of:*")

"""Random histories of every limiter, alone and beside a cool-down, against plain models in Python.

To the millisecond.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import Phase
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from dispatcher.limiters import Algorithm, CoolDown, Decision, FixedWindow, Limits, State
from dispatcher.times.periods import bounds
from tests.support.examples import examples, play
from tests.support.limiter_models import MODELS, Model, WindowModel
from tests.support.limiters import COUNTED, MINUTE, MS, START_US, Clocked, exported_limits

ZONE = "America/St_Johns"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class AlignedModel(WindowModel):
    """Windows by the clocks of a zone that is not a whole number of hours from UTC."""

    def bounds(self, now: int) -> tuple[int, int]:
        begin, end = bounds(self.length, ZONE, now, 1)
        return begin, end


Pair = Callable[[int, int], tuple[Algorithm, Model]]


def _pair(make: Callable[[int, timedelta], Algorithm], model: type[Model]) -> Pair:
    return lambda n, ms: (make(n, ms * MS), model(n, ms))


PAIRS: dict[str, Pair] = {
    "AlignedWindow": lambda n, ms: (
        FixedWindow(n, max(ms // 1_000, 1) * 1_000 * MS, align=ZONE),
        AlignedModel(n, max(ms // 1_000, 1) * 1_000),
    ),
    **{name: _pair(COUNTED[name], model) for name, model in MODELS.items()},
}


class Story(RuleBasedStateMachine):
    """One key of one limiter."""

    pair: Pair
    client: Clocked

    @initialize(
        count=st.integers(1, 6),
        length=st.sampled_from([10, 997, 60_000, 3_600_000]),
        cool_first=st.booleans(),
    )
    def begin(self, count: int, length: int, cool_first: bool) -> None:
        self.client.flushall()
        self.client.set_us(START_US // 1_000_000 * 1_000_000)
        self.limit, self.model = self.pair(count, length)
        self.cool_first = cool_first
        self.limiter = self.limits().on(self.client)
        self.closed_until = 0
        self.permits = 0
        self.known: dict[str, bool] = {}

    @property
    def now(self) -> int:
        return self.client.now_us // 1_000

    @property
    def closed(self) -> int:
        return max(0, self.closed_until - self.now)

    def limits(self) -> Algorithm | Limits:
        return self.limit

    def judge_refusal(self, decision: Decision, n: int, room: int) -> None:
        assert decision.refusals
        if n > self.model.count:
            assert (decision.state, decision.retry_after) == (State.OVERSIZED, timedelta.max)
            assert decision.remaining == max(0, room)
            return
        wait, closed = self.model.wait(n, self.now), self.closed
        cool_decides = closed > wait or (closed == wait and self.cool_first)
        assert decision.state is State.REFUSED
        assert decision.retry_after // MS == max(wait, closed)
        assert decision.refused_by == ("cool-down" if cool_decides else str(self.limit))
        assert decision.remaining == (0 if cool_decides else max(0, room))

    @rule(n=st.integers(1, 8))
    def acquire(self, n: int) -> None:
        self.permits += 1
        self.take(f"permit {self.permits}", n)

    @rule(permit=st.sampled_from(["permit 1", "never taken"]))
    def acquire_nothing(self, permit: str) -> None:
        before = self.client.everything()
        room = 0 if self.closed else max(0, self.model.room(self.now))
        for decision in (
            self.limiter.acquire("ada", 0, permit=permit),
            self.limiter.acquire_up_to("ada", 0, permit=permit),
        ):
            assert (decision.allowed, decision.granted, decision.remaining) == (True, 0, room)
        assert self.client.everything() == before

    def take(self, permit: str, n: int) -> None:
        now, room = self.now, self.model.room(self.now)
        fits = room >= n and not self.closed
        before = None if fits else self.client.everything()
        decision = self.limiter.acquire("ada", n, permit=permit)
        assert decision.allowed == fits, (decision, room)
        if decision.allowed:
            self.model.take(permit, n, now)
            self.known[permit] = True
            assert not decision.refusals
            assert decision.remaining == room - n
            assert decision.state is (State.ALLOWED if room > n else State.REACHED)
        else:
            self.judge_refusal(decision, n, room)
            assert self.client.everything() == before

    @rule(n=st.integers(1, 9))
    def acquire_up_to(self, n: int) -> None:
        now, room = self.now, 0 if self.closed else self.model.room(self.now)
        self.permits += 1
        permit = f"permit {self.permits}"
        decision = self.limiter.acquire_up_to("ada", n, permit=permit)
        assert decision.granted == max(0, min(n, room))
        if decision.allowed:
            self.model.take(permit, decision.granted, now)
            self.known[permit] = True

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def ask_again(self, data: st.DataObject) -> None:
        permit = data.draw(st.sampled_from(sorted(self.known)))
        call = self.model.calls.get(permit)
        age = 0 if call is None else self.now - call.at
        is_known = call is not None and self.known[permit]
        if not is_known or (self.limit.knows_permits and age >= self.model.length):
            self.take(permit, data.draw(st.integers(1, self.model.count)))  # for other work
            return
        assert call is not None
        if not self.limit.knows_permits and age >= 60_000:
            return  # may be known or not
        before = self.client.everything()
        n = data.draw(st.integers(1, 8))
        assert self.limiter.acquire("ada", n, permit=permit).granted == call.n
        assert self.client.everything() == before

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        permit = data.draw(st.sampled_from(sorted(self.known)))
        call = self.model.calls.get(permit)
        if call and not self.limit.knows_permits and self.now - call.at >= 60_000:
            return  # may be known or not
        expected = self.model.give_back(permit, self.now) if self.known[permit] else 0
        assert self.limiter.give_back("ada", permit) == expected
        self.known[permit] = False

    @rule()
    def reset(self) -> None:
        self.limiter.reset("ada")
        self.closed_until = 0
        self.model = type(self.model)(self.model.count, self.model.length)
        self.known = dict.fromkeys(self.known, False)

    @rule(n=st.integers(1, 4))
    def peek(self, n: int) -> None:
        before, room = self.client.everything(), self.model.room(self.now)
        decision = self.limiter.peek("ada", n)
        assert decision.allowed == (room >= n and not self.closed)
        if decision.allowed:
            assert decision.remaining == room
        else:
            self.judge_refusal(decision, n, room)
        assert self.client.everything() == before

    @rule(ms=st.one_of(st.integers(1, 12), st.integers(1, 1_100), st.integers(1, 4_000_000)))
    def time_passes(self, ms: int) -> None:
        self.client.advance(ms * MS)

    @rule()
    def until_nothing_counts(self) -> None:
        """``reset_at`` is when, to the millisecond."""
        limiter, counts = self.limit.on(self.client), self.model.room(self.now) < self.model.count
        left = (limiter.peek("ada").reset_at - EPOCH) // MS - self.now
        if counts:
            self.client.advance((left - 1) * MS)
            assert limiter.peek("ada").remaining < self.model.count
        self.client.advance(MS if counts else left * MS)
        assert limiter.peek("ada").remaining == self.model.count

    @rule()
    def until_the_next_permit(self) -> None:
        wait = self.limiter.peek("ada").retry_after
        if wait > MS:
            self.client.advance(wait - MS)
            assert not self.limiter.peek("ada").allowed
        if wait:
            self.client.advance(min(wait, MS))
            assert self.limiter.peek("ada").allowed


class CooledStory(Story):
    """One key that is also closed now and then."""

    def limits(self) -> Limits:
        self.cool_down = CoolDown().on(self.client)
        both = [CoolDown(), self.limit]
        return Limits(both if self.cool_first else both[::-1])

    @rule(ms=st.one_of(st.integers(1, 12), st.integers(1, 2_000)))
    def close_for_a_length(self, ms: int) -> None:
        until = self.limiter.close("ada", ms * MS)
        self.closed_until = max(self.closed_until, self.now + ms)
        assert (until - EPOCH) // MS == self.closed_until

    @rule(ms=st.integers(-50, 2_000))
    def close_until_some_time(self, ms: int) -> None:
        until = self.cool_down.close("ada", until=EPOCH + (self.now + ms) * MS)
        if ms > 0:
            self.closed_until = max(self.closed_until, self.now + ms)
        assert (until - EPOCH) // MS == max(self.now, self.closed_until)

    @rule()
    def ask_the_cool_down_alone(self) -> None:
        before = self.client.everything()
        decision = self.cool_down.acquire("ada")
        assert (decision.allowed, decision.retry_after // MS) == (not self.closed, self.closed)
        assert (decision.limit, decision.remaining) == (0, 0)
        assert (decision.reset_at - EPOCH) // MS == self.now + self.closed
        assert self.client.everything() == before, "it counts nothing"

    @rule()
    def until_it_opens(self) -> None:
        if self.closed:
            self.client.advance((self.closed - 1) * MS)
            assert not self.cool_down.acquire("ada").allowed
            self.client.advance(MS)
            assert self.cool_down.acquire("ada").allowed


def test_every_limit_that_counts_has_a_model() -> None:
    assert set(PAIRS) == set(COUNTED)
    tried = {type(make(1, MINUTE)) for make in COUNTED.values()}
    assert {*exported_limits()} - tried == {CoolDown}, "which counts nothing"


@pytest.mark.parametrize(
    ("name", "kind"),
    [*((name, Story) for name in PAIRS), ("SlidingList", CooledStory), ("GCRA", CooledStory)],
)
def test_a_limiter_does_what_its_model_does(name: str, kind: type[Story], shared: Clocked) -> None:
    story = type(kind.__name__, (kind,), {"pair": staticmethod(PAIRS[name]), "client": shared})
    play(story, stories=examples(30), steps=25, phases=(Phase.generate, Phase.shrink))

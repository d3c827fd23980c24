"""Random histories of a cool-down beside a log against a plain model, to the millisecond."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import Phase
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from dispatcher.limiters import CoolDown, Decision, Limits, SlidingList, State
from tests.support.limiter_models import LogModel
from tests.support.limiters import MS, START_US, Clocked
from tests.support.soak import SOAKING, examples, play

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
COOL, LOG = "cool-down", "log"
lengths = st.one_of(st.integers(1, 12), st.integers(1, 2_000))


class Story(RuleBasedStateMachine):
    """One key that is closed now and then."""

    client: Clocked

    @initialize(
        count=st.integers(1, 4), length=st.sampled_from([10, 997]), cool_first=st.booleans()
    )
    def begin(self, count: int, length: int, cool_first: bool) -> None:
        self.client.flushall()
        self.client.set_us(START_US // 1_000_000 * 1_000_000)
        listed = SlidingList(count, length * MS)
        limits = [CoolDown(), listed] if cool_first else [listed, CoolDown()]
        self.names = {str(listed): LOG, str(CoolDown()): COOL}
        self.order = [self.names[str(each)] for each in limits]
        self.limiter = Limits(limits).on(self.client)
        self.alone = CoolDown().on(self.client)
        self.model = LogModel(count, length)
        self.closed_until = 0
        self.permits = 0

    @property
    def now(self) -> int:
        return self.client.now_us // 1_000

    def waits(self, n: int) -> dict[str, int]:
        """Return how long each of the two makes one wait."""
        waits = {LOG: self.model.wait(n, self.now), COOL: max(0, self.closed_until - self.now)}
        return {name: waits[name] for name in self.order}

    def judge(self, decision: Decision, n: int) -> None:
        waits, room = self.waits(n), self.model.room(self.now)
        longest = max(waits.values())
        assert decision.allowed == (longest == 0)
        assert decision.retry_after // MS == longest
        if longest:
            slowest = next(name for name in self.order if waits[name] == longest)
            assert self.names[decision.refused_by or ""] == slowest
            assert decision.remaining == (0 if slowest == COOL else room)

    @rule(n=st.integers(1, 4))
    def acquire(self, n: int) -> None:
        n = min(n, self.model.count)
        self.permits += 1
        permit, room, before = str(self.permits), self.model.room(self.now), self.everything()
        decision = self.limiter.acquire("ada", n, permit=permit)
        self.judge(decision, n)
        if decision.allowed:
            self.model.take(permit, n, self.now)
            assert decision.remaining == room - n
            assert decision.state is (State.ALLOWED if room > n else State.REACHED)
        else:
            assert self.everything() == before

    @rule(n=st.integers(1, 4))
    def peek(self, n: int) -> None:
        n, before = min(n, self.model.count), self.everything()
        self.judge(self.limiter.peek("ada", n), n)
        assert self.everything() == before

    @rule()
    def ask_the_cool_down_alone(self) -> None:
        before = self.everything()
        decision, left = self.alone.acquire("ada"), max(0, self.closed_until - self.now)
        assert (decision.allowed, decision.retry_after // MS) == (left == 0, left)
        assert (decision.limit, decision.remaining) == (0, 0)
        assert (decision.reset_at - EPOCH) // MS == self.now + left
        assert self.everything() == before, "it counts nothing"

    @rule(ms=lengths)
    def close_for_a_length(self, ms: int) -> None:
        until = self.limiter.close("ada", ms * MS)
        self.closed_until = max(self.closed_until, self.now + ms)
        assert (until - EPOCH) // MS == self.closed_until

    @rule(ms=st.integers(-50, 2_000))
    def close_until_some_time(self, ms: int) -> None:
        at = self.now + ms
        until = self.alone.close("ada", until=EPOCH + at * MS)
        if at > self.now:
            self.closed_until = max(self.closed_until, at)
        assert (until - EPOCH) // MS == max(self.now, self.closed_until)

    @rule()
    def reset(self) -> None:
        self.limiter.reset("ada")
        self.closed_until = 0
        self.model = LogModel(self.model.count, self.model.length)

    @rule(ms=lengths)
    def time_passes(self, ms: int) -> None:
        self.client.advance(ms * MS)

    @rule()
    def until_it_opens(self) -> None:
        wait = self.closed_until - self.now
        if wait > 0:
            self.client.advance((wait - 1) * MS)
            assert not self.alone.acquire("ada").allowed
            self.client.advance(MS)
            assert self.alone.acquire("ada").allowed

    def everything(self) -> dict[bytes, bytes | None]:
        return self.client.everything()


@pytest.mark.timeout(3_600 if SOAKING else 300)
def test_a_cool_down_does_what_its_model_does(shared: Clocked) -> None:
    story = type("CoolDownStory", (Story,), {"client": shared})
    play(story, stories=examples(30), steps=25, phases=(Phase.generate, Phase.shrink))

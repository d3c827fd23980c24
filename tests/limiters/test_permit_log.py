"""Permit logs in one shard: counts, waits, what is kept and given back, with lost replies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from uuid import UUID

import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.backoff import NoBackoff
from redis.retry import Retry

from dispatcher import LimitersUnavailable
from dispatcher.limiters.permits import Permit, PermitAnswer, Permits
from dispatcher.quota import Limit
from dispatcher.redis.client import repeated
from dispatcher.redis.keys import line_of
from dispatcher.redis.scripts import Call
from dispatcher.scope import NO_SCOPE
from tests.limiters.conftest import World
from tests.support.limiters import Clocked
from tests.support.proxy import Proxy
from tests.support.soak import examples

MS, SECOND = timedelta(milliseconds=1), timedelta(seconds=1)
TRIES = 3
HOLD = timedelta(seconds=30)


def permit(name: bytes, scope: str = "log", channel: str = "unlimited") -> Permit:
    """Return a permit whose id has that name in it."""
    return Permit(UUID(bytes=name.ljust(16, b"~")), 1, scope, channel)


ONE = permit(b"one", channel="wide")


class Logs(World):
    """The log of a scope, and that of the channel ``wide``, with the same limits."""

    def __init__(self, client: Clocked, *limits: Limit) -> None:
        super().__init__(client, shards=1, scope_limits=limits, wide=limits)
        self.log, self.wide = self.keys("log").scope("log"), self.keys("wide").channel("wide")

    def ask(self, *names: bytes, within: timedelta = HOLD) -> list[PermitAnswer]:
        """Ask for permits of one scope, in one script."""
        return self.permits.acquire([permit(name) for name in names], within=within)

    def settle(self, name: bytes, *, since_ms: int = 0) -> None:
        """Note that a permit was used so long ago."""
        self.permits.settle([(permit(name), since_ms * MS)])

    def restore(self, *taken: tuple[Permit, timedelta]) -> None:
        """Put permits back into the logs by a rebuild."""
        [keys] = self.shards
        self.client.set(keys.rebuild, "mine")
        self.permits.restore(taken, {keys: "mine"}, marker_life=HOLD)

    def put(self, ages_ms: dict[bytes, int]) -> None:
        """Write sends of these ages into the log."""
        if ages_ms:
            times = {name.ljust(16, b"~"): self.now_ms - age for name, age in ages_ms.items()}
            self.client.zadd(self.log, times)

    def names(self, log: str | None = None) -> dict[bytes, int]:
        """Return the names of permits in a log, each with its time in ms."""
        times = self.times(log or self.log)
        return {member[:16].rstrip(b"~"): time for member, time in times.items()}

    @property
    def now_ms(self) -> int:
        return self.client.now_us // 1_000


Make = Callable[..., Logs]


@pytest.fixture
def make(moved: Clocked) -> Make:
    return lambda *limits: Logs(moved, *map(Limit.parse, limits))


def test_a_refused_request_leaves_a_note_that_it_waits_and_nothing_else(make: Make) -> None:
    logs = make("1/hour")
    logs.ask(b"1")
    before = logs.client.everything()
    for _ in range(3):
        assert not logs.ask(b"2")[0].allowed
    after = logs.client.everything()
    assert after.pop(line_of(logs.log).encode()) is not None
    assert after == before


def test_the_only_one_in_line_may_lose_its_turn_and_get_its_permit_in_one_call(make: Make) -> None:
    logs = make("2/minute")
    first, second, late, other = (permit(b"%d" % n, NO_SCOPE, "wide") for n in range(4))
    assert logs.acquire(first, second, late, within=MS) == [True, True, False]
    logs.client.advance(61 * SECOND)  # its turn has come, and it has not
    assert logs.acquire(other, late, within=MS) == [True, True]
    assert not logs.client.exists(line_of(logs.wide))


def test_a_permit_in_hand_counts_at_the_latest_time_it_can_be_used(make: Make) -> None:
    logs = make("1/second")
    logs.ask(b"1", within=20 * SECOND)
    assert logs.names() == {b"1": logs.now_ms + 20_000}
    [refused] = logs.ask(b"2")
    assert refused.retry_after == SECOND, "as if the one in hand were used now"


@pytest.mark.parametrize("micros", [0, 1, 999])
def test_no_hand_over_counts_from_earlier_than_it_was(make: Make, micros: int) -> None:
    logs = make("1000/hour")
    logs.client.set_us(logs.now_ms * 1_000 + micros)
    logs.ask(b"1")
    logs.settle(b"1")
    assert logs.names() == {b"1": logs.now_ms + 1}
    logs.client.delete(logs.log)
    logs.restore((permit(b"1"), timedelta(0)))
    assert logs.names() == {b"1": logs.now_ms + 1}


def test_settle_does_not_bring_back_what_was_given_back_or_lost(make: Make) -> None:
    logs = make("1/hour")
    logs.ask(b"1")
    logs.permits.give_back([permit(b"1")])
    logs.settle(b"1")
    logs.settle(b"never")
    assert logs.names() == {}


def extended(logs: Logs) -> None:
    """A send that lasts must not be forgotten with its log."""
    logs.ask(b"1", b"2", within=SECOND)
    for _ in range(3):
        logs.settle(b"1", since_ms=-300_000)
        logs.settle(b"2", since_ms=-300_000)


def settled_after_it_was_extended(logs: Logs) -> None:
    extended(logs)
    logs.settle(b"1")


def extended_after_it_was_restored(logs: Logs) -> None:
    """Else no claim of a long send is renewed after Redis has lost its data."""
    taken = [permit(name) for name in (b"1", b"2")]
    logs.restore(*[(claimed, -SECOND) for claimed in taken])
    logs.permits.settle([(claimed, -timedelta(minutes=5)) for claimed in taken])


def beside_one_with_less_time(logs: Logs) -> None:
    """The permit of another claim is still in hand, and counts."""
    logs.ask(b"1", within=HOLD)
    logs.ask(b"2", within=500 * MS)


@pytest.mark.parametrize(
    ("story", "left_ms"),
    [
        (extended, 360_001),
        (settled_after_it_was_extended, 360_001),
        (extended_after_it_was_restored, 360_002),
        (beside_one_with_less_time, 90_000),
    ],
)
def test_a_log_lives_as_long_as_its_latest_permit_counts(
    make: Make, story: Callable[[Logs], None], left_ms: int
) -> None:
    logs = make("2/minute", "2/second")
    story(logs)
    assert logs.client.left(logs.log) == left_ms


def test_permits_older_than_the_period_are_trimmed(make: Make) -> None:
    logs = make("5/minute")
    logs.put({b"old": 60_000, b"recent": 59_999})
    logs.ask(b"new")
    assert logs.names().keys() == {b"recent", b"new"}


def test_a_claim_that_had_no_permit_gets_none_by_a_rebuild(make: Make) -> None:
    """The store knows which claims are under way, not which of them have asked."""
    logs = make("2/minute")
    logs.restore(*[(permit(name), -HOLD) for name in (b"a", b"b", b"c")])
    [other] = logs.ask(b"d")
    answers = [answer.allowed for answer in logs.ask(b"a", b"b", b"c")]

    assert not other.allowed  # they count until they are asked for
    assert answers == [False, True, True]  # three were restored where two fit
    assert logs.names().keys() == {b"b", b"c"}
    [repeated] = logs.ask(b"b")
    assert repeated.allowed


def test_a_rebuild_restores_many_logs_a_few_hundred_permits_at_a_time(
    make: Make, trips: list[list[Call]]
) -> None:
    logs = make("3/hour")
    scopes = [f"log {number % 211}" for number in range(700)]
    logs.restore(
        *(
            (permit(b"%d" % number, scope, "wide"), number * SECOND)
            for number, scope in enumerate(scopes)
        )
    )
    assert max(len(words) for calls in trips for _, words in calls) < 1_250
    for scope in {*scopes}:
        log = logs.keys(scope).scope(scope)
        assert logs.names(log).keys() == {b"%d" % n for n, of in enumerate(scopes) if of == scope}
        assert logs.client.left(log) > 0
    assert len(logs.channel("wide")) == 700


@pytest.fixture
def logs(make: Make) -> Logs:
    return make("2/hour")


@pytest.fixture
def through(logs: Logs, proxy: Proxy) -> Iterator[Permits]:
    """Give the permits of these logs over a line that loses replies."""
    again = repeated(Retry(NoBackoff(), TRIES))
    with redis.Redis(port=proxy.port, socket_timeout=5, **again) as client:
        yield logs.permits_on(logs.client.time_of(client))


@pytest.mark.parametrize("lost", [1, TRIES])
def test_permits_are_granted_once_however_often_their_reply_is_lost(
    logs: Logs, through: Permits, proxy: Proxy, lost: int
) -> None:
    two, three = (permit(name, channel="wide") for name in (b"two", b"three"))
    through.acquire([ONE], within=HOLD)
    proxy.drop_reply(b"two", times=lost)
    answers = through.acquire([two, three], within=HOLD)
    assert proxy.dropped == lost
    assert [answer.allowed for answer in answers] == [True, False]
    assert logs.names(logs.wide).keys() == logs.names().keys() == {b"one", b"two"}


def test_without_any_reply_a_permit_may_count_and_is_not_given(
    logs: Logs, through: Permits, proxy: Proxy
) -> None:
    proxy.drop_reply(b"one", times=99)
    with pytest.raises(LimitersUnavailable):
        through.acquire([ONE], within=HOLD)
    assert proxy.dropped == 1 + TRIES
    assert logs.names().keys() == {b"one"}
    proxy.pass_all()
    through.give_back([ONE])
    assert logs.names() == {}


@pytest.mark.parametrize(("since_ms", "lost"), [(0, 1), (40, TRIES), (-60_000, 1)])
def test_a_permit_that_is_settled_again_counts_from_its_use(
    logs: Logs, through: Permits, proxy: Proxy, since_ms: int, lost: int
) -> None:
    logs.acquire(ONE, permit(b"two", channel="wide"), within=HOLD)
    proxy.drop_reply(b"one", times=lost)
    through.settle([(ONE, since_ms * MS)])
    assert proxy.dropped == lost
    used, in_hand = logs.now_ms + 1 - since_ms, logs.now_ms + HOLD // MS
    assert logs.names(logs.wide) == logs.names() == {b"one": used, b"two": in_hand}


@settings(max_examples=examples(80), deadline=None)
@given(
    ages=st.lists(st.integers(0, 60_000), max_size=12),
    limits=st.lists(st.tuples(st.integers(1, 6), st.integers(10, 50_000)), min_size=1, max_size=3),
    asked=st.integers(1, 8),
)
def test_decisions_are_those_of_a_plain_count(
    shared: Clocked, ages: Sequence[int], limits: list[tuple[int, int]], asked: int
) -> None:
    logs = Logs(shared, *(Limit(*words) for words in limits))
    logs.put({bytes([n]): age for n, age in enumerate(ages)})
    answers = logs.ask(*(bytes([100 + n]) for n in range(asked)), within=timedelta(0))
    taken, refused = list(ages), 0
    for answer in answers:
        left = [count - sum(age < length for age in taken) for count, length in limits]
        assert answer.allowed == (min(left) > 0)
        if answer.allowed:
            taken.append(0)
            assert answer.retry_after == timedelta(0)
        else:
            waits = [
                length * (1 + refused // count) - sorted(taken)[count - 1 - refused % count]
                for (count, length), room in zip(limits, left, strict=True)
                if room <= 0
            ]
            refused += 1
            assert answer.retry_after == max(waits) * MS

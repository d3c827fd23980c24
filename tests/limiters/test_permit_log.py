"""Permit logs: counts, waits, what is kept and given back, side by side, with lost replies."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, cast
from uuid import UUID, uuid4

import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.backoff import NoBackoff
from redis.retry import Retry

from dispatcher import LimitersUnavailable
from dispatcher.limiters import Permit, PermitAnswer, Permits, permits
from dispatcher.quota import Limit
from dispatcher.redis import scripts
from dispatcher.redis.client import repeated
from dispatcher.redis.keys import PermitKeys, line_of
from dispatcher.redis.scripts import Call, Script
from dispatcher.scope import NO_SCOPE
from dispatcher.times.clock import SystemClock
from tests.support.limiters import Clocked
from tests.support.model import is_broken
from tests.support.processes import in_processes
from tests.support.proxy import Proxy
from tests.support.servers import RedisServer
from tests.support.soak import examples

MS = timedelta(milliseconds=1)
TRIES = 3
KEYS = PermitKeys("test", 0)
HOLD = timedelta(seconds=30)
LOG, WIDE = KEYS.scope("log"), KEYS.channel("wide")


def permit(name: bytes, scope: str = "log", channel: str = "unlimited") -> Permit:
    """Return a permit whose id has that name in it."""
    return Permit(UUID(bytes=name.ljust(16, b"~")), 1, scope, channel)


def permits_on(client: redis.Redis, *limits: Limit) -> Permits:
    """Return permits in one shard: each scope, and the channel ``wide``, has these limits."""
    return Permits(
        client,
        namespace="test",
        shards=1,
        scope_limits=limits,
        channel_limits={"wide": limits},
        clock=SystemClock(),
    )


class Logs(AbstractContextManager["Logs"]):
    """Permits, and their logs as they are."""

    def __init__(self, path: str, *limits: Limit) -> None:
        self.client = redis.Redis(unix_socket_path=path)
        self.permits = permits_on(self.client, *limits)

    def open(self) -> None:
        self.client.hset(KEYS.epoch, "server", "any")

    def acquire(self, *names: bytes, within: timedelta = HOLD) -> list[PermitAnswer]:
        """Ask for permits of one scope, in one script."""
        return self.permits.acquire([permit(each) for each in names], within=within)

    def settle(self, name: bytes, *, since_ms: int = 0) -> None:
        """Note that a permit was used so long ago."""
        self.permits.settle([(permit(name), timedelta(milliseconds=since_ms))])

    def restore(self, taken: Sequence[tuple[Permit, timedelta]], marker: str = "mine") -> None:
        """Put permits back into the logs, of which the rebuild ``mine`` has the marker."""
        self.permits.restore(taken, {KEYS: marker}, marker_life=HOLD)

    def members(self, log: str = LOG) -> dict[bytes, int]:
        """A log as it is: name of the permit and time in ms."""
        found = cast("list[tuple[bytes, float]]", self.client.zrange(log, 0, -1, withscores=True))
        return {member[:16].rstrip(b"~"): int(score) for member, score in found}

    def put(self, ages_ms: dict[bytes, int]) -> int:
        """Write sends of these ages into the log; return the server's time in ms."""
        now = self.now()
        if ages_ms:
            self.client.zadd(LOG, {name: now - age for name, age in ages_ms.items()})
        return now

    def now(self) -> int:
        """The server's time in ms."""
        seconds, micros = self.client.time()
        return seconds * 1_000 + micros // 1_000

    def __exit__(self, *_: object) -> None:
        self.client.close()


def logs_on(server: RedisServer, *limits: str) -> Logs:
    """Build open logs with these limits."""
    logs = Logs(str(server.socket), *(Limit.parse(each) for each in limits))
    logs.open()
    return logs


Make = Callable[..., Logs]
ONE = permit(b"one", channel="wide")


@pytest.fixture
def make(redis_server: RedisServer) -> Iterator[Make]:
    """Give a maker of open logs."""
    made: list[Logs] = []

    def build(*limits: str) -> Logs:
        made.append(logs_on(redis_server, *limits))
        return made[-1]

    yield build
    for each in made:
        each.client.close()


def everything(logs: Logs) -> dict[bytes, bytes | None]:
    keys = cast("list[bytes]", logs.client.keys("*"))
    return {key: logs.client.dump(key) for key in keys}


def test_a_refused_request_leaves_a_note_that_it_waits_and_nothing_else(make: Make) -> None:
    logs = make("1/hour")
    logs.acquire(b"1")
    before = everything(logs)
    for _ in range(3):
        assert not logs.acquire(b"2")[0].allowed
    after = everything(logs)
    assert after.pop(line_of(LOG).encode()) is not None
    assert after == before


def test_the_only_one_in_line_may_lose_its_turn_and_get_its_permit_in_one_call(
    moved: Clocked,
) -> None:
    permits = permits_on(moved, Limit(2, 60_000))
    moved.hset(KEYS.epoch, "server", "any")
    first, second, late, other = (Permit(uuid4(), 1, NO_SCOPE, "wide") for _ in range(4))
    assert [each.allowed for each in permits.acquire([first, second, late], within=MS)] == [
        True, True, False,
    ]  # fmt: skip
    moved.advance(timedelta(seconds=61))  # its turn has come, and it has not

    answers = permits.acquire([other, late], within=MS)

    assert [each.allowed for each in answers] == [True, True]
    assert not moved.exists(line_of(WIDE))


@pytest.mark.parametrize(("count", "nth"), [(1, 0), (2, 1), (3, 2), (5, 4)])
def test_the_wait_is_right_to_the_millisecond(make: Make, count: int, nth: int) -> None:
    logs = make(f"{count}/hour")
    logs.put({bytes([n]): 1_000_000 + n * 1_234 for n in range(8)})
    scores = sorted(logs.members().values(), reverse=True)
    began = logs.now()
    refused = logs.acquire(b"new")[0]
    ended = logs.now()
    free_at = scores[nth] + 3_600_000  # when the count-th latest one leaves the period
    assert free_at - ended <= refused.retry_after // MS <= free_at - began


def test_a_permit_in_hand_counts_at_the_latest_time_it_can_be_used(make: Make) -> None:
    logs = make("1/second")
    began = logs.now()
    logs.acquire(b"1", within=timedelta(seconds=20))
    [at] = logs.members().values()
    assert began + 20_000 <= at <= logs.now() + 20_000
    refused = logs.acquire(b"2")[0]
    assert refused.retry_after == timedelta(seconds=1), "as if the one in hand were used now"


def test_no_hand_over_counts_from_earlier_than_it_was(make: Make) -> None:
    logs = make("1000/hour")
    logs.client.set(KEYS.rebuild, "mine")
    for number in range(50):
        name = number.to_bytes(2, "big")
        logs.acquire(name)
        seconds, microseconds = logs.client.time()
        logs.settle(name)
        assert logs.members()[name] * 1_000 >= seconds * 1_000_000 + microseconds
        logs.client.delete(LOG)
        seconds, microseconds = logs.client.time()
        logs.restore([(permit(name), timedelta(0))])
        assert logs.members()[name] * 1_000 >= seconds * 1_000_000 + microseconds


def test_settle_does_not_bring_back_what_was_given_back_or_lost(make: Make) -> None:
    logs = make("1/hour")
    logs.acquire(b"1")
    logs.permits.give_back([permit(b"1")])
    logs.settle(b"1")
    logs.settle(b"never")
    assert logs.members() == {}


def test_a_log_lives_as_long_as_the_permits_that_are_extended_in_it(make: Make) -> None:
    """A send that lasts must not be forgotten with its log."""
    logs = make("2/minute")
    assert logs.acquire(b"1", b"2", within=1_000 * MS)[0].allowed
    for _ in range(3):
        logs.settle(b"1", since_ms=-300_000)
        logs.settle(b"2", since_ms=-300_000)
    assert 359_000 < logs.client.pttl(LOG) <= 361_000, "the hold, and the length of the limit"
    logs.settle(b"1", since_ms=0)
    assert logs.client.pttl(LOG) > 359_000


def test_a_permit_that_a_rebuild_restored_is_extended(make: Make) -> None:
    """Else no claim of a long send is renewed after Redis has lost its data."""
    logs = make("2/minute")
    logs.client.set(KEYS.rebuild, "mine")
    taken = [permit(each) for each in (b"1", b"2")]
    logs.restore([(each, -timedelta(seconds=1)) for each in taken])
    logs.permits.extend(taken, within=timedelta(minutes=5))
    assert 359_000 < logs.client.pttl(LOG) <= 361_000


def test_a_request_with_less_time_does_not_shorten_the_life_of_a_log(make: Make) -> None:
    """The permit of another claim is still in hand, and counts."""
    logs = make("2/second")
    logs.acquire(b"1", within=timedelta(seconds=30))
    logs.acquire(b"2", within=500 * MS)
    assert 30_000 < logs.client.pttl(LOG) <= 31_000


def test_a_log_expires_when_it_counts_no_more(make: Make) -> None:
    logs = make("1/minute", "5/hour")
    logs.acquire(b"1", within=timedelta(seconds=30))
    left = logs.client.pttl(LOG)
    assert 3_600_000 + 29_000 < left <= 3_600_000 + 30_000


def test_permits_older_than_the_period_are_trimmed(make: Make) -> None:
    logs = make("5/minute")
    logs.put({b"old": 61_000, b"recent": 59_000})
    logs.acquire(b"new")
    assert set(logs.members()) == {b"recent", b"new"}


def test_a_claim_that_had_no_permit_gets_none_by_a_rebuild(make: Make) -> None:
    """The store knows which claims are under way, not which of them have asked."""
    logs = make("2/minute")
    logs.client.set(KEYS.rebuild, "mine")

    logs.restore([(permit(each), -HOLD) for each in (b"a", b"b", b"c")])
    (other,) = logs.acquire(b"d")
    answers = [each.allowed for each in logs.acquire(b"a", b"b", b"c")]

    assert not other.allowed  # they count until they are asked for
    assert answers == [False, True, True]  # three were restored where two fit
    assert logs.members().keys() == {b"b", b"c"}
    (repeated,) = logs.acquire(b"b")
    assert repeated.allowed


def test_a_rebuild_restores_many_logs_a_few_hundred_permits_at_a_time(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = make("3/hour")
    logs.client.set(KEYS.rebuild, "mine")
    scopes = [f"log {number % 211}" for number in range(700)]
    taken = [
        (permit(b"%d" % number, scope, "wide"), timedelta(seconds=number))
        for number, scope in enumerate(scopes)
    ]
    words: list[int] = []
    replies_of = scripts.replies_of

    def counted(client: redis.Redis, script: Script, calls: Sequence[Call]) -> list[Any]:
        words.extend(len(each) for _, each in calls)
        return replies_of(client, script, calls)

    monkeypatch.setattr(permits, "replies_of", counted)
    logs.restore(taken)
    assert max(words) < 1_250
    for scope in {*scopes}:
        log = KEYS.scope(scope)
        assert set(logs.members(log)) == {
            b"%d" % n for n, each in enumerate(scopes) if each == scope
        }
        assert logs.client.pttl(log) > 0
    assert logs.client.zcard(WIDE) == 700


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[Proxy]:
    with Proxy(redis_server.socket) as line:
        yield line


@pytest.fixture
def through(proxy: Proxy) -> Iterator[Permits]:
    again = repeated(Retry(NoBackoff(), TRIES))
    with redis.Redis(port=proxy.port, socket_timeout=5, **again) as client:
        yield permits_on(client, Limit.parse("2/hour"))


@pytest.mark.parametrize("lost", [1, TRIES])
def test_permits_are_granted_once_however_often_their_reply_is_lost(
    make: Make, through: Permits, proxy: Proxy, lost: int
) -> None:
    logs = make("2/hour")
    one, two, three = (permit(each, channel="wide") for each in (b"one", b"two", b"three"))
    through.acquire([one], within=HOLD)
    proxy.drop_reply(b"two", times=lost)
    answers = through.acquire([two, three], within=HOLD)
    assert proxy.dropped == lost
    assert [each.allowed for each in answers] == [True, False]
    assert set(logs.members(WIDE)) == set(logs.members()) == {b"one", b"two"}


def test_without_any_reply_a_permit_may_count_and_is_not_given(
    make: Make, through: Permits, proxy: Proxy
) -> None:
    logs = make("2/hour")
    proxy.drop_reply(b"one", times=99)
    with pytest.raises(LimitersUnavailable):
        through.acquire([ONE], within=HOLD)
    assert proxy.dropped == 1 + TRIES
    assert set(logs.members()) == {b"one"}
    proxy.pass_all()
    through.give_back([ONE])
    assert logs.members() == {}


@pytest.mark.parametrize(("since_ms", "lost"), [(0, 1), (40, TRIES), (-60_000, 1)])
def test_a_permit_that_is_settled_again_never_counts_from_earlier(
    make: Make, through: Permits, proxy: Proxy, since_ms: int, lost: int
) -> None:
    logs = make("2/hour")
    logs.permits.acquire([ONE, permit(b"two", channel="wide")], within=HOLD)
    before = logs.members()[b"two"]
    proxy.drop_reply(b"one", times=lost)
    asked = logs.now()
    through.settle([(ONE, timedelta(milliseconds=since_ms))])
    answered = logs.now()
    assert proxy.dropped == lost
    for log in (WIDE, LOG):
        found = logs.members(log)
        assert asked < found[b"one"] + since_ms <= answered + 1
        assert found[b"two"] == before


PROCESSES = 3


def _hammer(gate: Any, number: int, path: str) -> tuple[list[int], int]:
    """Take and settle permits in a tight loop; return the sends by the server's clock."""
    handed_over: list[int] = []
    refused = 0
    with Logs(path, Limit(5, 100), Limit(20, 1_000)) as logs:
        gate.wait(60)
        end = logs.now() + 1_200
        for turn in itertools.count():
            name = bytes([number]) + turn.to_bytes(4, "big")
            if logs.now() > end:
                return handed_over, refused
            if logs.acquire(name, within=timedelta(seconds=5))[0].allowed:
                at = logs.now()
                handed_over.append(at)
                logs.settle(name, since_ms=logs.now() - at)
            else:
                refused += 1
    raise AssertionError("unreachable")


def test_processes_never_hand_over_more_than_the_limit_in_any_period(
    redis_server: RedisServer,
) -> None:
    with logs_on(redis_server, "5/second") as logs:
        answers = in_processes(PROCESSES, _hammer, str(redis_server.socket))
        assert logs.client.exists(LOG)
    times = sorted(at for handed_over, _ in answers for at in handed_over)
    assert len(times) >= 20, "the limits are not merely closed"
    assert sum(refused for _, refused in answers) > 0
    assert not is_broken(times, (5, 100))
    assert not is_broken(times, (20, 1_000))


STEP = 10_000
ages = st.lists(st.integers(0, 60).map(lambda n: n * STEP), max_size=12)
some_limits = st.lists(
    st.tuples(st.integers(1, 6), st.integers(1, 50).map(lambda n: n * STEP + STEP // 2)),
    min_size=1,
    max_size=3,
)


@pytest.fixture(scope="module")
def shared(redis_session: RedisServer) -> RedisServer:
    """Give the Redis of the run to examples that each use a log of their own."""
    with redis_session.client() as client:
        client.flushall()
    return redis_session


@settings(max_examples=examples(80), deadline=None)
@given(ages=ages, limits=some_limits, wanted=st.integers(1, 8))
def test_decisions_are_those_of_a_plain_count(
    shared: RedisServer, ages: list[int], limits: list[tuple[int, int]], wanted: int
) -> None:
    written = [f"{count}/{length // 1_000} second" for count, length in limits]
    with logs_on(shared, *written) as logs:
        logs.client.delete(LOG)
        logs.put({bytes([n]): age for n, age in enumerate(ages)})
        answers = logs.acquire(*(bytes([100 + n]) for n in range(wanted)), within=timedelta(0))
        # No age lies within 5 s of a length, so the ms that pass meanwhile decide nothing.
        taken, refused = list(ages), 0
        for answer in answers:
            left = [count - sum(age < length for age in taken) for count, length in limits]
            assert answer.allowed == (min(left) > 0)
            assert answer.remaining == max(0, min(left) - answer.allowed)
            if answer.allowed:
                taken.append(0)
                assert answer.retry_after == timedelta(0)
            else:
                waits = [
                    length * (1 + refused // count) - sorted(taken)[count - 1 - refused % count]
                    for (count, length), each in zip(limits, left, strict=True)
                    if each <= 0
                ]
                refused += 1
                error = timedelta(milliseconds=max(waits)) - answer.retry_after
                assert timedelta(0) <= error < timedelta(seconds=5)

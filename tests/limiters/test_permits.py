"""Permits of deliveries in one shard and in several: counts, waits, what is kept and given back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import count
from typing import Any, cast
from uuid import UUID, uuid4

import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.backoff import NoBackoff
from redis.retry import Retry

from dispatcher import LimitersUnavailable
from dispatcher.limiters import permits
from dispatcher.limiters.permits import (
    CLOSED_BY_PROVIDER,
    Fills,
    InHand,
    LogLimit,
    Permit,
    PermitAnswer,
    Permits,
)
from dispatcher.quota import Limit, parse_limit
from dispatcher.redis import scripts
from dispatcher.redis.client import repeated
from dispatcher.redis.keys import LogKeys, PermitKeys, permit_parts, shard_of
from dispatcher.redis.scripts import Call, Script
from dispatcher.scope import NO_SCOPE
from tests.support.doubles import WorkerDied
from tests.support.examples import examples
from tests.support.limiters import MINUTE, MS, Clocked
from tests.support.model import is_broken
from tests.support.proxy import Proxy

SECOND = timedelta(seconds=1)
TRIES = 3
MARKER_LIFE = timedelta(seconds=9)
EVER = Limit(1_000, 60_000)
SHARDS = 8
HOLD = timedelta(seconds=30)
NUMBERS = count()
"""Give each example a namespace of its own."""


class World:
    """Permits of open shards, and what lies in their logs."""

    def __init__(
        self,
        client: Clocked,
        *,
        scope_limits: Sequence[LogLimit],
        shards: int = SHARDS,
        **channels: Sequence[LogLimit],
    ) -> None:
        self.client = client
        self.namespace = f"shards{next(NUMBERS)}"
        self.shards = permit_parts(self.namespace, shards)
        self.scope_limits = scope_limits
        self.channel_limits = channels
        self.permits = self.permits_on(client)
        for keys in self.shards:
            client.hset(keys.epoch, "server", "any")

    def permits_on(self, client: redis.Redis) -> Permits:
        return Permits(
            client,
            namespace=self.namespace,
            shards=len(self.shards),
            scope_limits=self.scope_limits,
            channel_limits=self.channel_limits,
        )

    def keys(self, name: str) -> PermitKeys:
        """Return the keys of the shard of a scope or a channel."""
        return self.shards[shard_of(name, len(self.shards))]

    def times(self, log: str) -> dict[bytes, int]:
        """Return the permits of a log, each with the time in ms at which it counts."""
        permits = self.client.zrange(log, 0, -1, withscores=True)
        return {name: int(score) for name, score in cast("list[tuple[bytes, float]]", permits)}

    def scope(self, name: str) -> dict[bytes, int]:
        return self.times(self.keys(name).scope(name))

    def channel(self, name: str) -> dict[bytes, int]:
        return self.times(self.keys(name).channel(name))

    def acquire(self, *group: Permit, within: timedelta = HOLD) -> list[bool]:
        """Ask for a group; return who was granted."""
        return [answer.allowed for answer in self.permits.acquire(group, within=within)]

    def logs(self) -> list[bytes]:
        """Return the names of all logs that hold a permit."""
        names = self.client.keys(f"{{{self.namespace}:permits:*}}:log:*")
        return sorted(cast("list[bytes]", names))


@pytest.fixture
def world(moved: Clocked) -> Callable[..., World]:
    """Give a maker of permits in several shards."""

    def build(*scope_limits: LogLimit, **more: Any) -> World:
        return World(moved, scope_limits=scope_limits, **more)

    return build


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> list[list[Call]]:
    """Give a list that gets the calls of scripts of each round trip."""
    made: list[list[Call]] = []

    def counted(client: redis.Redis, script: Script, calls: Sequence[Call]) -> list[Any]:
        made.append([*calls])
        return scripts.replies_of(client, script, calls)

    monkeypatch.setattr(permits, "replies_of", counted)
    return made


# One shard.


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
    assert after.pop(LogKeys.of(logs.log).line.encode()) is not None
    assert after == before


def test_the_only_one_in_line_may_lose_its_turn_and_get_its_permit_in_one_call(make: Make) -> None:
    logs = make("2/minute")
    first, second, late, other = (permit(b"%d" % n, NO_SCOPE, "wide") for n in range(4))
    assert logs.acquire(first, second, late, within=MS) == [True, True, False]
    logs.client.advance(61 * SECOND)  # its turn has come, and it has not
    assert logs.acquire(other, late, within=MS) == [True, True]
    assert not logs.client.exists(LogKeys.of(logs.wide).line)


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
    assert answers == [True, True, False]  # three were restored where two fit
    assert logs.names().keys() == {b"a", b"b"}
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
    assert max(len(words) for calls in trips for _, words in calls) < 1_750
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


# Several shards.


def named(start: str, shard: int) -> str:
    """Return a name that lies in that shard."""
    return next(name for n in count() if shard_of(name := f"{start} {n}", SHARDS) == shard)


SMS, MAIL = named("sms", 1), named("mail", 2)
NEAR, FAR, ALONE = named("near", 1), named("far", 2), named("alone", 5)
"""Scopes: in the shard of one channel, of the other, of none."""


def wanted(scope: str, channel: str = SMS) -> Permit:
    return Permit(uuid4(), 1, scope, channel)


def test_a_group_takes_one_round_trip_for_its_scopes_and_one_for_its_channel(
    world: Callable[..., World], trips: list[list[Call]]
) -> None:
    made = world(EVER, **{SMS: [EVER]})
    group = [wanted(f"scope {n}") for n in range(50)]
    assert made.acquire(*group) == [True] * 50
    assert [*map(len, trips)] == [SHARDS - 1, 1], "one script judges the scopes of its own shard"
    made.permits.settle([(permit, timedelta(0)) for permit in group])
    made.permits.give_back(group)
    assert [*map(len, trips[2:])] == [SHARDS, SHARDS]
    assert made.logs() == []


@pytest.mark.parametrize("channel", [SMS, "unlimited"])
def test_a_closed_channel_refuses_whoever_has_room_in_its_scope(
    world: Callable[..., World], channel: str
) -> None:
    made = world(Limit(1, 60_000), **{SMS: [Limit(5, 60_000)]})
    made.permits.close(channel, MINUTE)
    [refused] = made.permits.acquire([wanted(ALONE, channel)], within=HOLD)
    assert refused.retry_after == MINUTE
    assert made.logs() == []
    made.client.advance(MINUTE + MS)
    assert made.acquire(wanted(ALONE, channel), wanted(NO_SCOPE, channel)) == [True, True]


@pytest.mark.parametrize("shards", [1, SHARDS])
@pytest.mark.parametrize(
    ("of_scopes", "of_sms", "name"),
    [
        ("9/day, 1/minute", "2/hour", "scope: 1/minute"),
        ("9/day, 5/minute", "4/day in UTC, 1/hour", f"channel {SMS}: 1/hour"),
        ("9/day", "9/hour, 1/day in UTC", f"channel {SMS}: 1/day in UTC"),
        ("9/day, 1/day in UTC", "9/hour, 2/day in UTC", "scope: 1/day in UTC"),
        ("9/day", "9/hour", f"channel {SMS}: concurrency 1"),
    ],
)
def test_a_refusal_names_the_limit_that_makes_it_wait_longest(
    world: Callable[..., World], shards: int, of_scopes: str, of_sms: str, name: str
) -> None:
    scope_limits = [parse_limit(text) for text in of_scopes.split(", ")]
    limits: list[LogLimit] = [parse_limit(text) for text in of_sms.split(", ")]
    made = world(*scope_limits, shards=shards, **{SMS: [InHand(1), *limits]})
    first, *others = [wanted(ALONE) for _ in range(4)]
    assert [answer.limit for answer in made.permits.acquire([first], within=HOLD)] == [""]
    answers = made.permits.acquire(others, within=HOLD)
    assert {answer.limit for answer in answers} == {name}
    again = made.permits.acquire(others, within=HOLD)
    assert {answer.limit for answer in again} == {name}, "also in the line"
    made.permits.close(SMS, timedelta(days=30))
    [closed] = made.permits.acquire([wanted(NEAR)], within=HOLD)
    assert closed.limit == CLOSED_BY_PROVIDER


@pytest.mark.parametrize("closed", [SMS, ALONE])
def test_where_a_shard_is_closed_a_group_can_give_all_back(
    world: Callable[..., World], closed: str
) -> None:
    made = world(EVER, **{SMS: [EVER]})
    made.client.delete(made.keys(closed).epoch)
    group = [wanted(scope) for scope in (ALONE, FAR, NEAR)]
    with pytest.raises(LimitersUnavailable, match="being rebuilt"):
        made.permits.acquire(group, within=HOLD)
    made.permits.give_back(group)
    assert made.logs() == []


def killed(*_: object) -> None:
    raise WorkerDied


def test_a_process_that_dies_between_two_shards_leaves_a_scope_stricter(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = world(Limit(2, 60_000), **{SMS: [EVER]})
    dead = wanted(ALONE)
    with monkeypatch.context() as patched, suppress(WorkerDied):
        calls: Iterator[Callable[..., Any]] = iter([scripts.replies_of, killed])
        patched.setattr(permits, "replies_of", lambda *words: next(calls)(*words))  # noqa: PLW0108 - another one each time
        made.permits.acquire([dead], within=HOLD)
    assert made.scope(ALONE).keys() == {dead.member}
    assert not made.channel(SMS)
    assert made.acquire(wanted(ALONE), wanted(ALONE)) == [True, False]
    made.client.advance(HOLD + MINUTE)
    assert made.acquire(wanted(ALONE), wanted(ALONE)) == [True, True]


def test_the_server_says_in_which_calendar_period_it_is(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of this process is months ahead of the server's."""
    made = world(parse_limit("2/day in Asia/Kathmandu"), **{SMS: [parse_limit("9/week in UTC")]})
    group = [wanted(scope) for scope in (FAR, FAR, FAR, ALONE)]
    assert made.acquire(*group) == [True, True, False, True]
    monkeypatch.setattr(permits, "now_ms", lambda _: made.client.now_us // 1_000 + 3 * 86_400_000)
    with pytest.raises(LimitersUnavailable, match="clocks of the Redis servers"):
        made.acquire(wanted(ALONE))


def test_a_rebuild_restores_the_logs_of_its_shards_alone(world: Callable[..., World]) -> None:
    made = world(EVER, **{SMS: [EVER]})
    ours = [made.keys(ALONE), made.keys("nothing of this")]
    for keys in made.shards:
        made.client.set(keys.rebuild, "mine" if keys in ours else "another's")
    made.client.advance(SECOND)
    taken = [(wanted(scope), MINUTE / 2) for scope in (ALONE, FAR)]
    made.permits.restore(taken, dict.fromkeys(ours, "mine"), marker_life=MARKER_LIFE)
    assert made.scope(ALONE).keys() == {taken[0][0].member}
    assert made.logs() == [made.keys(ALONE).scope(ALONE).encode()]
    markers = {keys: made.client.get(keys.rebuild) for keys in made.shards}
    assert {keys for keys, marker in markers.items() if marker == b"mine+"} == {*ours}, "kept alive"


def test_room_is_noted_in_the_shard_of_each_log_and_found_in_all(
    world: Callable[..., World],
) -> None:
    made = world(Limit(1, 60_000), **{SMS: [Limit(1, 60_000)], MAIL: [Limit(9, 60_000)]})
    of_scope, of_channel = wanted(ALONE, MAIL), wanted(NO_SCOPE)
    waits_for_scope, waits_for_channel = wanted(ALONE, MAIL), wanted(FAR)
    assert made.acquire(of_scope, waits_for_scope) == [True, False]
    assert made.acquire(of_channel, waits_for_channel) == [True, False]
    made.client.delete(*(keys.room for keys in made.shards))  # of the scope that was asked ahead
    made.permits.give_back([of_scope, of_channel])

    assert len(made.permits.waiting(logs=1, messages=9)) == 1
    waiting = made.permits.waiting(logs=9, messages=9)
    assert waiting == {
        made.keys(ALONE).scope(ALONE): [waits_for_scope.message_id],
        made.keys(SMS).channel(SMS): [waits_for_channel.message_id],
    }
    for log, ids in waiting.items():
        made.permits.give_turns(log, ids, {waits_for_channel.message_id})
    assert made.permits.waiting(logs=9, messages=9) == {made.keys(ALONE).scope(ALONE): []}
    made.permits.give_turns(made.keys(ALONE).scope(ALONE), [], set())
    assert made.permits.waiting(logs=9, messages=9) == {}
    assert made.acquire(waits_for_channel) == [True]


def test_fills_read_each_channel_in_its_shard(world: Callable[..., World]) -> None:
    """Each kind of limit tells how much of it is used, and looking takes nothing."""
    of_mail: list[LogLimit] = [Limit(5, 60_000), parse_limit("10/day in UTC"), InHand(4)]
    made = world(EVER, **{SMS: [Limit(2, 60_000)], MAIL: of_mail})
    fills = Fills(
        client=made.client,
        namespace=made.namespace,
        shards=SHARDS,
        channel_limits=made.channel_limits,
    )
    made.acquire(*[wanted(f"scope {n}") for n in range(4)])
    used, unused, _ = group = [wanted(ALONE, MAIL) for _ in range(3)]
    assert made.acquire(*group) == [True] * 3
    made.permits.settle([(used, timedelta(0))])
    made.permits.give_back([unused])
    made.client.advance(MS)  # a use is noted for the millisecond to come
    made.permits.close(MAIL, MINUTE)
    before = made.client.everything()

    sms, mail = fills.read()

    assert (sms.limits[0].used, sms.waiting, sms.closed_until) == (2, 2, None)
    assert [(limit.limit, limit.used, limit.most) for limit in mail.limits] == [
        ("5/minute", 2, 5), ("10/day in UTC", 2, 10), ("concurrency 4", 1, 4),
    ]  # fmt: skip
    assert (mail.channel, mail.waiting) == (MAIL, 0)
    assert mail.closed_until is not None
    assert made.client.everything() == before
    made.client.delete(made.keys(MAIL).epoch)
    with pytest.raises(LimitersUnavailable, match="being rebuilt"):
        fills.read()


# Random groups against plain counting.

CHANNELS = (SMS, MAIL, "unlimited")
SCOPES = (NEAR, FAR, ALONE, named("far too", 2), NO_SCOPE)
few = st.lists(
    st.builds(Limit, st.integers(1, 4), st.integers(1, 20).map(lambda n: n * 1_000)),
    min_size=1,
    max_size=2,
)
groups = st.lists(st.tuples(st.sampled_from(SCOPES), st.sampled_from(CHANNELS)), max_size=8)
steps = st.lists(
    st.tuples(
        groups,
        st.integers(0, 8_000),
        st.lists(st.sampled_from(["use", "give back", "forget"]), min_size=8, max_size=8),
        st.sampled_from([None, None, None, *CHANNELS]),
    ),
    min_size=1,
    max_size=8,
)


class Model:
    """Counts by hand what is granted, and knows when each permit was used."""

    def __init__(self, made: World, scope_limits: Sequence[Limit]) -> None:
        self.made = made
        self.scope_limits = scope_limits
        self.counted: dict[Permit, int] = {}
        self.sent: list[tuple[Permit, int]] = []
        self.closed: Counter[str] = Counter()

    def limits_of(self, permit: Permit) -> Iterator[tuple[Callable[[Permit], bool], Limit]]:
        """Yield the limits that a permit meets, and who else does."""
        if permit.scope != NO_SCOPE:
            for limit in self.scope_limits:
                yield lambda other: other.scope == permit.scope, limit
        for channel_limit in self.made.channel_limits.get(permit.channel, ()):
            assert isinstance(channel_limit, Limit)
            yield lambda other: other.channel == permit.channel, channel_limit

    def judge(self, group: Sequence[Permit], answers: Sequence[bool], now_ms: int) -> None:
        """Fail where a refusal has no reason, or a grant or a refusal is not whole."""
        hold_ms = HOLD // MS
        self.counted |= {
            permit: now_ms + hold_ms for permit, ok in zip(group, answers, strict=True) if ok
        }
        refused = [permit for permit, ok in zip(group, answers, strict=True) if not ok]
        in_two_shards = [
            permit
            for permit in refused
            if permit.scope != NO_SCOPE
            and self.made.keys(permit.scope) != self.made.keys(permit.channel)
        ]
        # The permits of their scopes went back; others may have been refused for them.
        for permit, allowed in zip(group, answers, strict=True):
            known = permit.member
            has = [
                known in self.made.scope(permit.scope),
                known in self.made.channel(permit.channel),
            ]
            meets = [permit.scope != NO_SCOPE, permit.channel in self.made.channel_limits]
            assert has == ([False, False] if not allowed else meets)
            log = self.made.keys(permit.channel).channel(permit.channel)
            assert (
                allowed
                or any(other.scope == permit.scope for other in in_two_shards if other != permit)
                or self.closed[permit.channel] > now_ms
                or self.made.client.zcard(LogKeys.of(log).line)
                or any(
                    sum(mine(other) and at > now_ms - limit.length_ms
                        for other, at in self.counted.items()) >= limit.count
                    for mine, limit in self.limits_of(permit)
                )
            ), "refused, though each of its limits has room"  # fmt: skip

    def check(self) -> None:
        """Fail where more was sent in a period than a limit allows."""
        for permit, _ in self.sent:
            for mine, limit in self.limits_of(permit):
                times = [at for other, at in self.sent if mine(other)]
                assert not is_broken(times, (limit.count, limit.length_ms))


@pytest.mark.parametrize("shards", [1, SHARDS])
@settings(max_examples=examples(120), deadline=None)
@given(limits=st.tuples(few, few, few), plan=steps)
def test_no_limit_is_exceeded_and_every_grant_is_whole(
    shared: Clocked,
    shards: int,
    limits: tuple[list[Limit], list[Limit], list[Limit]],
    plan: list[tuple[list[tuple[str, str]], int, list[str], str | None]],
) -> None:
    scope_limits, sms, mail = limits
    made = World(shared, scope_limits=scope_limits, shards=shards, **{SMS: sms, MAIL: mail})
    model = Model(made, scope_limits)
    ids = (UUID(int=n) for n in count(1))
    refused: list[Permit] = []
    for names, pass_ms, fates, closes in plan:
        if closes is not None:
            made.permits.close(closes, 3 * SECOND)
            model.closed[closes] = max(model.closed[closes], shared.now_us // 1_000 + 3_000)
        group = [*refused, *(Permit(next(ids), 1, *name) for name in names)]
        now_ms = shared.now_us // 1_000
        answers = made.acquire(*group)
        model.judge(group, answers, now_ms)
        refused = [permit for permit, ok in zip(group, answers, strict=True) if not ok][:4]
        granted = [permit for permit, ok in zip(group, answers, strict=True) if ok]
        shared.advance(pass_ms * MS)
        at_ms = shared.now_us // 1_000
        for permit, fate in zip(granted, [*fates, *fates], strict=False):
            if fate == "use":
                model.sent.append((permit, at_ms))
                made.permits.settle([(permit, timedelta(0))])
                model.counted[permit] = at_ms + 1
            elif fate == "give back":
                made.permits.give_back([permit])
                del model.counted[permit]
        model.check()

"""Permits whose scope and channel lie in different shards: whole grants, and no limit exceeded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import count
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher import LimitersUnavailable
from dispatcher.limiters import permits
from dispatcher.limiters.permits import Fills, InHand, LogLimit, Permit
from dispatcher.quota import Limit, parse_limit
from dispatcher.redis import scripts
from dispatcher.redis.keys import line_of, shard_of
from dispatcher.redis.scripts import Call
from dispatcher.scope import NO_SCOPE
from tests.limiters.conftest import HOLD, SHARDS, World, a_permit, member
from tests.support.limiters import Clocked
from tests.support.model import is_broken
from tests.support.soak import examples

MS, SECOND, MINUTE = timedelta(milliseconds=1), timedelta(seconds=1), timedelta(minutes=1)
MARKER_LIFE = timedelta(seconds=9)
EVER = Limit(1_000, 60_000)


def named(start: str, shard: int) -> str:
    """Return a name that lies in that shard."""
    return next(name for n in count() if shard_of(name := f"{start} {n}", SHARDS) == shard)


SMS, MAIL = named("sms", 1), named("mail", 2)
NEAR, FAR, ALONE = named("near", 1), named("far", 2), named("alone", 5)
"""Scopes: in the shard of one channel, of the other, of none."""


def wanted(scope: str, channel: str = SMS) -> Permit:
    return a_permit(scope, channel)


def test_a_group_takes_one_round_trip_for_its_scopes_and_one_for_its_channel(
    world: Callable[..., World], trips: list[list[Call]]
) -> None:
    made = world(EVER, **{SMS: [EVER]})
    group = [wanted(f"scope {n}") for n in range(50)]
    assert made.acquire(*group) == [True] * 50
    assert [*map(len, trips)] == [SHARDS - 1, 1], "one script judges the scopes of its own shard"
    made.permits.settle([(each, timedelta(0)) for each in group])
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


@pytest.mark.parametrize("closed", [SMS, ALONE])
def test_where_a_shard_is_closed_a_group_can_give_all_back(
    world: Callable[..., World], closed: str
) -> None:
    made = world(EVER, **{SMS: [EVER]})
    made.client.delete(made.keys(closed).epoch)
    group = [wanted(scope) for scope in (ALONE, FAR, NEAR)]
    with pytest.raises(LimitersUnavailable, match="not complete"):
        made.permits.acquire(group, within=HOLD)
    made.permits.give_back(group)
    assert made.logs() == []


class Killed(BaseException):
    """Stands for the end of the process."""


def killed(*_: object) -> None:
    raise Killed


def test_a_process_that_dies_between_two_shards_leaves_a_scope_stricter(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = world(Limit(2, 60_000), **{SMS: [EVER]})
    dead = wanted(ALONE)
    with monkeypatch.context() as patched, suppress(Killed):
        calls: Iterator[Callable[..., Any]] = iter([scripts.replies_of, killed])
        patched.setattr(permits, "replies_of", lambda *given: next(calls)(*given))  # noqa: PLW0108 - another one each time
        made.permits.acquire([dead], within=HOLD)
    assert made.scope(ALONE).keys() == {member(dead)}
    assert not made.channel(SMS)
    assert made.acquire(wanted(ALONE), wanted(ALONE)) == [True, False]
    made.client.advance(HOLD + MINUTE)
    assert made.acquire(wanted(ALONE), wanted(ALONE)) == [True, True]


def test_each_shard_selects_the_calendar_period_of_its_own_clock(
    world: Callable[..., World], trips: list[list[Call]]
) -> None:
    """The clock of this process is months ahead of these servers."""
    made = world(parse_limit("2/day in Asia/Kathmandu"), **{SMS: [parse_limit("9/week in UTC")]})
    group = [wanted(scope) for scope in (FAR, FAR, FAR, ALONE)]
    assert made.acquire(*group) == [True, True, False, True]
    assert [*map(len, trips)] == [2, 2, 1, 1]
    assert made.acquire(wanted(FAR), wanted(ALONE)) == [False, True]
    assert [*map(len, trips[4:])] == [2, 1], "it remembers by how much"


def test_a_rebuild_restores_the_logs_of_its_shards_alone(world: Callable[..., World]) -> None:
    made = world(EVER, **{SMS: [EVER]})
    ours = [made.keys(ALONE), made.keys("nothing of this")]
    for keys in made.shards:
        made.client.set(keys.rebuild, "mine" if keys in ours else "another's")
    made.client.advance(SECOND)
    taken = [(wanted(scope), MINUTE / 2) for scope in (ALONE, FAR)]
    made.permits.restore(taken, dict.fromkeys(ours, "mine"), marker_life=MARKER_LIFE)
    assert made.scope(ALONE).keys() == {member(taken[0][0])}
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

    assert len(made.permits.waiting(logs=1, each=9)) == 1
    found = made.permits.waiting(logs=9, each=9)
    assert found == {
        made.keys(ALONE).scope(ALONE): [waits_for_scope.message_id],
        made.keys(SMS).channel(SMS): [waits_for_channel.message_id],
    }
    made.permits.give_turns(found, {waits_for_channel.message_id})
    assert made.permits.waiting(logs=9, each=9) == {made.keys(ALONE).scope(ALONE): []}
    made.permits.give_turns({made.keys(ALONE).scope(ALONE): []}, set())
    assert made.permits.waiting(logs=9, each=9) == {}
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
    assert [(each.limit, each.used, each.most) for each in mail.limits] == [
        ("5/minute", 2, 5), ("10/day in UTC", 2, 10), ("concurrency 4", 1, 4),
    ]  # fmt: skip
    assert (mail.channel, mail.waiting) == (MAIL, 0)
    assert mail.closed_until is not None
    assert made.client.everything() == before
    made.client.delete(made.keys(MAIL).epoch)
    with pytest.raises(LimitersUnavailable, match="not complete"):
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
        for each in self.made.channel_limits.get(permit.channel, ()):
            assert isinstance(each, Limit)
            yield lambda other: other.channel == permit.channel, each

    def judge(self, group: Sequence[Permit], answers: Sequence[bool], now_ms: int) -> None:
        """Fail where a refusal has no reason, or a grant or a refusal is not whole."""
        hold_ms = HOLD // MS
        self.counted |= {
            each: now_ms + hold_ms for each, ok in zip(group, answers, strict=True) if ok
        }
        refused = [each for each, ok in zip(group, answers, strict=True) if not ok]
        in_two_shards = [
            each
            for each in refused
            if each.scope != NO_SCOPE and self.made.keys(each.scope) != self.made.keys(each.channel)
        ]
        """The permits of their scopes, which others may have been refused, went back."""
        for permit, allowed in zip(group, answers, strict=True):
            known = member(permit)
            has = [
                known in self.made.scope(permit.scope),
                known in self.made.channel(permit.channel),
            ]
            meets = [permit.scope != NO_SCOPE, permit.channel in self.made.channel_limits]
            assert has == ([False, False] if not allowed else meets)
            log = self.made.keys(permit.channel).channel(permit.channel)
            assert (
                allowed
                or any(each.scope == permit.scope for each in in_two_shards if each != permit)
                or self.closed[permit.channel] > now_ms
                or self.made.client.zcard(line_of(log))
                or any(
                    sum(mine(each) and at > now_ms - limit.length_ms
                        for each, at in self.counted.items()) >= limit.count
                    for mine, limit in self.limits_of(permit)
                )
            ), "refused, though each of its limits has room"  # fmt: skip

    def check(self) -> None:
        """Fail where more was sent in a period than a limit allows."""
        for permit, _ in self.sent:
            for mine, limit in self.limits_of(permit):
                times = [at for each, at in self.sent if mine(each)]
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
        group = [*refused, *(Permit(next(ids), 1, *each) for each in names)]
        now_ms = shared.now_us // 1_000
        answers = made.acquire(*group)
        model.judge(group, answers, now_ms)
        refused = [each for each, ok in zip(group, answers, strict=True) if not ok][:4]
        granted = [each for each, ok in zip(group, answers, strict=True) if ok]
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

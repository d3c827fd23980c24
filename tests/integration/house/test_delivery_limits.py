"""Actual hand-overs never exceed a limit, whatever is late, grouped or shared."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

from dispatcher import Status
from dispatcher.redis_keys import PermitKeys
from tests.integration.house.conftest import Build
from tests.support.doubles import at_once
from tests.support.house import House, hour_ago
from tests.support.model import is_broken
from tests.support.waiting import wait_until

MINUTE = timedelta(minutes=1)


def script_calls(house: House) -> int:
    stats = house.redis.info("commandstats")
    return int(stats.get("cmdstat_evalsha", {"calls": 0})["calls"])


def test_two_late_messages_of_one_scope_do_not_go_out_together(slow: House) -> None:
    first = slow.submit()
    second = slow.submit(send_in=MINUTE)
    before = slow.database_time()
    assert slow.deliver(first, second) == 1
    assert slow.sent == [first.id]
    put_back = slow.again(second)
    assert (put_back.status, put_back.attempt_count) == (Status.SCHEDULED, 0)
    assert put_back.last_error is None
    assert slow.dispatcher.attempts(second.id) == []
    wait = put_back.next_attempt_at - before
    assert timedelta(seconds=59) < wait < timedelta(seconds=65)
    [enqueue_at] = slow.columns(second, "enqueue_at")
    lead = put_back.next_attempt_at - enqueue_at
    assert abs(lead - slow.settings.horizon) < timedelta(seconds=1)
    assert len(slow.permits()) == 1


def test_the_numbers_of_every_quota_limit_the_hand_overs(build: Build) -> None:
    house = build(clock=hour_ago(), quotas="2/minute, 3/hour")
    messages = [house.submit(send_in=n * MINUTE) for n in range(3)]
    assert house.deliver(*messages) == 2
    third = house.again(messages[2])
    assert third.next_attempt_at - house.database_time() < MINUTE
    # As if a minute had passed: the third goes, and then the hour is full.
    key = PermitKeys(house.settings.namespace).scope("ada")
    for permit, at in house.permits().items():
        house.redis.zadd(key, {permit: at - 60_000})
    house.change([third], next_attempt_at=third.send_at)
    assert house.deliver(third) == 1
    fourth = house.submit(send_at=house.clock.now() + 63 * MINUTE)
    house.change([fourth], next_attempt_at=messages[0].send_at)
    assert house.deliver(fourth) == 0
    wait = house.again(fourth).next_attempt_at - house.database_time()
    assert 58 * MINUTE < wait <= 59 * MINUTE


def test_scopes_do_not_limit_each_other_and_a_shared_scope_does(slow: House) -> None:
    apart = [slow.submit(name) for name in ("ada", "ben")]
    shared = [slow.submit("cleo", scope="s"), slow.submit("dora", scope="s", send_in=MINUTE)]
    assert slow.deliver(*apart, *shared) == 3
    assert slow.again(shared[1]).status is Status.SCHEDULED


def test_a_channel_has_limits_of_its_own_beside_those_of_the_scopes(build: Build) -> None:
    channels = {
        "memory": {"transport": "memory", "limits": ["3/hour"]},
        "other": {"transport": "memory"},
    }
    house = build(clock=hour_ago(), channels=channels)
    messages = [house.submit(f"name {n}") for n in range(5)]
    free = [house.submit(f"other {n}", channel="other") for n in range(5)]
    assert house.deliver(*messages, *free) == 8
    waiting = [each for each in messages if house.again(each).status is Status.SCHEDULED]
    assert len(waiting) == 2
    for message in waiting:
        wait = house.again(message).next_attempt_at - house.database_time()
        assert 59 * MINUTE < wait <= 60 * MINUTE
        assert house.permits(message.scope) == {}, "the scope's log keeps nothing of a refusal"


def test_a_group_takes_and_settles_its_permits_in_one_script_each(slow: House) -> None:
    slow.deliver(slow.submit("warm"))
    messages = [slow.submit(f"name {n}") for n in range(50)]
    before = script_calls(slow)
    assert slow.deliver(*messages) == 50
    assert script_calls(slow) - before <= 1 + 5, "one to take; to settle, one each 50 ms of work"


def test_a_short_wait_for_a_permit_is_spent_in_hand(build: Build) -> None:
    house = build(clock=hour_ago(), quotas="1/second")
    first = house.submit()
    second = house.submit(send_in=timedelta(seconds=1))
    assert house.deliver(first) == 1
    [handed_over] = house.permits().values()
    house.moved.meanwhile = lambda: wait_until(lambda: house.redis_ms() >= handed_over + 1_000)
    assert house.deliver(second) == 1
    assert len(house.moved.sleeps) == 1
    assert not is_broken(house.permits().values(), (1, 1_000))


def test_what_may_go_does_not_wait_for_what_may_not(build: Build) -> None:
    house = build(clock=hour_ago(), quotas="1/second")
    late = [house.submit(send_in=timedelta(seconds=n)) for n in range(2)]
    other = house.submit("ben")
    assert house.deliver(*late, other) == 2
    assert house.moved.sleeps == []
    assert set(house.sent) == {late[0].id, other.id}


def test_many_workers_together_stay_within_the_limit(build: Build) -> None:
    workers = [build(clock=hour_ago(), quotas="5/minute") for _ in range(4)]
    messages = [workers[0].submit(send_in=n * 12 * timedelta(seconds=1)) for n in range(40)]
    mixed = [messages[n::4] for n in range(4)]
    counts = at_once([partial(workers[n].deliver, *mixed[n]) for n in range(4)])
    assert sum(each for each in counts if isinstance(each, int)) == 5
    assert sum(len(worker.sent) for worker in workers) == 5
    statuses = [workers[0].again(message).status for message in messages]
    assert statuses.count(Status.SENT) == 5
    assert statuses.count(Status.SCHEDULED) == 35


def test_a_permit_is_counted_from_the_hand_over_not_from_the_end_of_the_claim(slow: House) -> None:
    start = slow.redis_ms()
    slow.deliver(slow.submit())
    [at] = slow.permits().values()
    assert start <= at <= slow.redis_ms()

"""Actual sends never exceed a limit, whatever is late, grouped or shared."""

from __future__ import annotations

from datetime import timedelta
from typing import cast

import pytest

from dispatcher import Message, Status, TemporaryFailure
from dispatcher.redis.keys import LogKeys
from tests.support.house import House, hour_ago
from tests.support.house_fixtures import Build
from tests.support.model import is_broken
from tests.support.waiting import wait_until

MINUTE = timedelta(minutes=1)


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
    assert timedelta(seconds=59) < wait < 2 * MINUTE
    [enqueue_at] = slow.columns(second, "enqueue_at")
    lead = put_back.next_attempt_at - enqueue_at
    assert abs(lead - slow.settings.horizon) < timedelta(seconds=1)
    assert len(slow.permits()) == 1


def test_a_channel_has_limits_of_its_own_beside_those_of_the_scopes(build: Build) -> None:
    channels = {
        "memory": {"transport": "memory", "limits": ["3/hour"]},
        "other": {"transport": "memory"},
    }
    house = build(clock=hour_ago(), channels=channels)
    messages = [house.submit(f"name {n}") for n in range(5)]
    free = [house.submit(f"other {n}", channel="other") for n in range(5)]
    assert house.deliver(*messages, *free) == 8
    waiting = [message for message in messages if house.again(message).status is Status.SCHEDULED]
    assert len(waiting) == 2
    for message in waiting:
        wait = house.again(message).next_attempt_at - house.database_time()
        assert 59 * MINUTE < wait <= 60 * MINUTE
        assert house.permits(message.scope) == {}, "the scope's log keeps nothing of a refusal"


def test_a_short_wait_for_a_permit_is_spent_in_hand(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dispatcher.delivery.group._LONGEST_ASKING_SECONDS", 20.0)
    house = build(clock=hour_ago(), quotas="1/20 second", claim_ttl=300)
    first = house.submit()
    second = house.submit(send_in=timedelta(seconds=20))
    assert house.deliver(first) == 1
    log = house.permit_keys("ada").scope("ada")
    house.moved.meanwhile = lambda: let_time_pass(house, log, by=timedelta(seconds=20))
    assert house.deliver(second) == 1
    assert len(house.moved.sleeps) == 1
    assert not is_broken(house.permits().values(), (1, 20_000))


def let_time_pass(house: House, *names: str, by: timedelta) -> None:
    for name in names:
        for member in cast("list[bytes]", house.redis.zrange(name, 0, -1)):
            house.redis.zincrby(name, -(by // timedelta(milliseconds=1)), member)


def limited(build: Build, **channel: object) -> House:
    settings = {"memory": {"transport": "memory", **channel}}
    return build(clock=hour_ago(), quotas="1000/second", channels=settings)


def test_snoozed_messages_come_back_in_order(build: Build) -> None:
    """Groups do not know each other: the line does."""
    house = limited(build, limits=["2/minute"])
    messages = [house.submit(f"to {n}") for n in range(10)]
    before = house.database_time()
    for start in range(0, 10, 2):
        house.deliver(*messages[start : start + 2])
    assert house.sent == [message.id for message in messages[:2]]
    turns = [house.again(message).next_attempt_at - before for message in messages[2:]]
    assert turns == sorted(turns)
    minutes = [round(turn / MINUTE) for turn in turns]
    assert minutes == [1, 1, 2, 2, 3, 3, 4, 4]


def test_a_turn_that_has_come_is_judged_by_the_limit_alone(build: Build) -> None:
    house = limited(build, limits=["2/minute"])
    messages = [house.submit(f"to {n}") for n in range(6)]
    house.deliver(*messages)
    log = house.permit_keys("memory").channel("memory")
    assert house.redis.zcard(LogKeys.of(log).line) == 4
    let_time_pass(house, log, LogKeys.of(log).line, by=MINUTE)
    house.make_due(*messages[2:])
    assert house.deliver(*messages[4:], *messages[2:4]) == 2
    assert house.sent == [message.id for message in messages[:4]], "the others come too early"
    assert house.redis.zcard(LogKeys.of(log).line) == 2


def test_no_more_are_in_hand_than_a_channel_takes(build: Build) -> None:
    house = limited(build, concurrency=2)
    log = house.permit_keys("memory").channel("memory")
    in_hand: list[int] = []

    def look(message: Message) -> None:
        del message
        in_hand.append(house.redis.zcount(log, f"({house.redis_ms() + 1}", "+inf"))

    house.memory.before = look
    waiting = [house.submit(f"to {n}") for n in range(7)]

    def are_sent() -> bool:
        """Deliver those that wait: as those before are sent, there is room."""
        house.deliver(*waiting)
        waiting[:] = [
            message for message in waiting if house.again(message).status is Status.SCHEDULED
        ]
        house.make_due(*waiting)
        return not waiting

    wait_until(are_sent)
    assert len(house.sent) == 7
    assert max(in_hand) == 2


def test_a_provider_that_asks_everybody_to_wait_closes_its_channel(build: Build) -> None:
    house = limited(build)
    messages = [house.submit(f"to {n}") for n in range(4)]
    busy = TemporaryFailure("429", timedelta(minutes=5), closes_channel=True)
    house.fail_sends(busy)
    before = house.database_time()
    assert house.deliver(*messages[:3]) == 0
    assert house.deliver(messages[3]) == 0, "other workers know it, too"
    waits = [house.again(message).next_attempt_at - before for message in messages]
    assert min(waits) > timedelta(minutes=4, seconds=55)
    counts = [house.again(message).attempt_count for message in messages]
    assert counts == [1, 0, 0, 0], "only the first one was tried, and to wait is no try"
    house.redis.delete(house.permit_keys("memory").closing("memory"))
    house.make_due(*messages)
    assert house.deliver(*messages) == 4


def test_a_closed_channel_uses_up_no_attempt(build: Build) -> None:
    """However long a provider's quota lasts, no message fails of it."""
    house = limited(build, max_attempts=2)
    message = house.submit()
    for number in range(6):
        busy = TemporaryFailure("quota exceeded", timedelta(minutes=5), closes_channel=number < 4)
        house.fail_sends(busy)
        house.redis.delete(house.permit_keys("memory").closing("memory"))
        house.make_due(message)
        house.deliver(message)
        expected = Status.SCHEDULED if number < 5 else Status.FAILED
        assert house.again(message).status is expected


def test_a_granted_permit_does_not_wait_for_a_refused_one(build: Build) -> None:
    house = build(clock=hour_ago(), quotas="1/second")
    late = [house.submit(send_in=timedelta(seconds=n)) for n in range(2)]
    other = house.submit("ben")
    assert house.deliver(*late, other) == 2
    assert house.moved.sleeps == []
    assert set(house.sent) == {late[0].id, other.id}

"""A permit counts for a try that was made or may be; what waits for one that is given back comes.

P2 is kept either way. Here nobody waits for a permit that belongs to no try.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from unittest.mock import patch

import pytest

from dispatcher import LimitersUnavailable, Message
from dispatcher.delivery.group import permit_of
from dispatcher.message import Outcome
from dispatcher.store.claims import Claim, Claims, Failure, Success
from tests.support.doubles import Between, a_group, once
from tests.support.house import House, hour_ago
from tests.support.house_fixtures import Build

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
NOW = timedelta(0)
HERD = 60


def claimed(house: House, *messages: Message) -> list[Claim]:
    """Claim messages as a worker does that is about to ask for permits."""
    claims = Claims(house.parts.database, ttl=house.settings.claim_ttl)
    taken: list[Claim] = claims.claim([message.id for message in messages], ahead=NOW)
    assert len(taken) == len(messages)
    return taken


def in_hand(house: House, message: Message) -> Claim:
    """Claim a message and take its permit, as a worker does that is about to send."""
    [claim] = claimed(house, message)
    [granted] = house.parts.permits.acquire([permit_of(claim)], within=MINUTE / 2)
    assert granted.allowed
    return claim


def both_due(build: Build) -> tuple[House, Message, Message]:
    """Return a house, and two messages that are due of which one an hour may be sent."""
    house = build(clock=hour_ago(), quotas="1/hour")
    first, second = house.submit(), house.submit(send_in=HOUR)
    house.change([second], send_at=first.send_at, next_attempt_at=first.send_at)
    return house, first, second


def emptied_while(house: House, meanwhile: object, *, when: str) -> None:
    """Empty Redis and rebuild it; something happens when the permits were read from the store."""
    house.redis.flushall()
    sweep = vars(house.parts.reconciler)
    act = once(meanwhile)  # type: ignore[arg-type]  # a call without arguments
    sweep["permits"] = Between(house.parts.permits, **{when: {"restore": act}})
    house.open()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_claim_put_back_while_redis_is_rebuilt_keeps_no_permit(slow: House, when: str) -> None:
    claims = claimed(slow, *(slow.submit(f"name {n}") for n in range(5)))

    def put_back() -> None:
        a_group(slow.parts.delivery).put_back([(claim, NOW) for claim in claims])

    emptied_while(slow, put_back, when=when)
    assert [slow.permits(f"name {n}") for n in range(5)] == [{}] * 5


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_try_recorded_while_redis_is_rebuilt_counts_from_its_end(slow: House, when: str) -> None:
    [claim] = claimed(slow, slow.submit())

    def record() -> None:
        Claims(slow.parts.database, ttl=MINUTE).record([Success(claim, None)], [], enqueue_in=NOW)
        slow.parts.permits.settle([(permit_of(claim), NOW)])

    emptied_while(slow, record, when=when)
    [at_ms] = slow.permits().values()
    assert at_ms <= slow.redis_ms() + 1, "not from the end of its claim"


def snoozed(house: House, messages: Sequence[Message]) -> list[Message]:
    """Return those that wait for more than a minute."""
    late = house.database_time() + MINUTE
    again = [house.again(message) for message in messages]
    return [message for message in again if message.next_attempt_at > late]


def test_a_snoozed_message_comes_when_its_scopes_permit_is_given_back(build: Build) -> None:
    house = build(clock=hour_ago(), quotas="2/hour")
    first, second, third = (house.submit(send_in=n * HOUR / 2) for n in range(3))
    house.change([second, third], send_at=first.send_at, next_attempt_at=first.send_at)
    claim = in_hand(house, first)
    assert house.deliver(second, third) == 1
    [waiting] = snoozed(house, [second, third])
    house.open()
    assert snoozed(house, [waiting]), "there is no room"

    a_group(house.parts.delivery).put_back([(claim, HOUR / 2)])
    house.open()
    assert snoozed(house, [waiting]) == []
    assert house.deliver(waiting) == 1
    house.open()
    assert house.redis.exists(*(keys.room for keys in house.permit_shards())) == 0


def test_a_permit_that_redis_did_not_take_back_keeps_no_message_waiting(build: Build) -> None:
    house, first, second = both_due(build)
    claim, away = in_hand(house, first), LimitersUnavailable("redis is away")
    with patch.object(house.parts.permits, "_return", side_effect=away):
        a_group(house.parts.delivery).put_back([(claim, HOUR)])
    assert len(house.permits()) == 1
    assert house.deliver(second) == 0
    assert house.permits() == {}
    house.open()
    assert snoozed(house, [second]) == []
    assert house.deliver(second) == 1


def test_of_a_herd_as_many_come_as_permits_are_given_back(build: Build) -> None:
    channels = {"memory": {"transport": "memory", "limits": ["10/hour"]}}
    house = build(clock=hour_ago(), channels=channels)
    herd = [house.submit(f"name {n}") for n in range(HERD)]
    claims = claimed(house, *herd[:10])
    answers = house.parts.permits.acquire([permit_of(claim) for claim in claims], within=MINUTE / 2)
    assert all(answer.allowed for answer in answers)
    assert house.deliver(*herd[10:]) == 0
    house.open()
    assert len(snoozed(house, herd)) == HERD - 10

    a_group(house.parts.delivery).put_back([(claim, 2 * HOUR) for claim in claims[:4]])
    house.open()
    waiting = snoozed(house, herd[10:])
    assert len(waiting) == HERD - 14
    come = [message for message in herd[10:] if message.id not in {one.id for one in waiting}]
    house.open()
    assert len(snoozed(house, herd[10:])) == HERD - 14, "each is brought forward once"
    assert house.deliver(*come) == 4


@pytest.mark.parametrize("end", ["cancelled", "promised for later"])
def test_room_goes_to_the_next_where_the_first_in_line_comes_no_more(
    build: Build, end: str
) -> None:
    house = build(clock=hour_ago(), quotas="1/hour")
    first, second, third = (house.submit(send_in=n * HOUR) for n in range(3))
    house.change([second, third], send_at=first.send_at, next_attempt_at=first.send_at)
    claim = in_hand(house, first)
    assert house.deliver(second) == 0
    assert house.deliver(third) == 0
    assert len(snoozed(house, [second, third])) == 2
    if end == "cancelled":
        house.dispatcher.cancel(second.id)
    else:
        later = house.database_time() + 3 * HOUR
        house.change([second], send_at=later, next_attempt_at=later)

    a_group(house.parts.delivery).put_back([(claim, 2 * HOUR)])
    for _ in range(4):
        house.open()
    assert snoozed(house, [third]) == []


def test_a_message_snoozed_before_a_flush_of_redis_is_judged_once_more(build: Build) -> None:
    house, first, second = both_due(build)
    claim = in_hand(house, first)
    assert house.deliver(second) == 0
    house.redis.flushall()
    house.open()
    assert snoozed(house, [second]) == []
    assert house.deliver(second) == 0
    house.open()
    assert snoozed(house, [second]), "there is no room yet, and it is judged once more only"

    a_group(house.parts.delivery).put_back([(claim, HOUR)])
    house.open()
    assert snoozed(house, [second]) == []
    assert house.deliver(second) == 1


def test_a_rebuild_does_not_shorten_a_backoff(slow: House) -> None:
    message = slow.submit()
    [claim] = claimed(slow, message)
    failure = Failure(claim, Outcome.TEMPORARY, "busy", HOUR)
    Claims(slow.parts.database, ttl=MINUTE).record([], [failure], enqueue_in=NOW)
    slow.redis.flushall()
    slow.open()
    assert snoozed(slow, [message])

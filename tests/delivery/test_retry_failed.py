"""A failed message gets another round of tries: once more due, guarded as ever, and never late."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from dispatcher import (
    InvalidValue,
    Message,
    PermanentFailure,
    Status,
    TemporaryFailure,
    TooLate,
)
from dispatcher.times.send_time import to_ms
from tests.support.house import House, hour_ago
from tests.support.house_fixtures import Build, on_sqlite

CHANNELS = {"memory": {"transport": "memory", "max_attempts": 2}}
MINUTE = timedelta(minutes=1)


@pytest.fixture
def slow(build: Build) -> House:
    """Give a house in which what is submitted is due at once, and is tried twice."""
    return build(clock=hour_ago(), channels=CHANNELS)


def failed(house: House, **asked: Any) -> Message:
    """Submit a message, and let its first try fail for good."""
    message = house.submit(**asked)
    house.fail_sends(PermanentFailure("no such number"))
    house.deliver(message)
    found = house.again(message)
    assert found.status is Status.FAILED
    return found


@pytest.mark.every_database
def test_it_is_due_at_once_with_all_its_tries_and_its_reservation(slow: House) -> None:
    message = failed(slow)
    again = slow.dispatcher.retry(message.id)
    with pytest.raises(TooLate, match="already scheduled"):
        slow.dispatcher.retry(message.id)
    assert again == slow.again(message)
    assert (again.status, again.finished_at) == (Status.SCHEDULED, None)
    assert (again.attempt_count, again.max_attempts) == (1, 3)
    assert again.send_at == message.send_at
    assert abs(again.next_attempt_at - slow.database_time()) < MINUTE
    assert slow.members() == {message.id: to_ms(message.send_at)}
    assert slow.parts.sweep.enqueue_due() == 1
    slow.redis.delete(*slow.redis.keys("*:permits:*:log*"))  # the first send counts, too
    assert slow.deliver(message) == 1
    assert slow.again(message).status is Status.SENT
    assert slow.outcomes(message) == ["permanent", "sent"]


@on_sqlite
def test_it_fails_again_after_its_round(slow: House) -> None:
    message = failed(slow)
    slow.dispatcher.retry(message.id)
    for _ in range(2):
        slow.redis.delete(*slow.redis.keys("*:permits:*:log*"))
        slow.make_due(message)
        slow.fail_sends(TemporaryFailure("busy", retry_after=timedelta(0)))
        slow.deliver(message)
    assert slow.again(message).status is Status.FAILED
    assert len(slow.dispatcher.attempts(message.id)) == 3
    assert slow.dispatcher.retry(message.id).max_attempts == 5


@pytest.mark.every_database
def test_retry_of_an_unknown_outcome_must_be_confirmed(slow: House) -> None:
    message = slow.submit(on_unknown="hold")
    slow.parts.delivery.shared.claims.claim([message.id])
    slow.end_claims(message)
    assert slow.parts.sweep.rescue() == 1
    slow.dispatcher.drop(message.id)
    with pytest.raises(InvalidValue, match="may have been sent") as refused:
        slow.dispatcher.retry(message.id)
    assert refused.value.field == "perhaps_sent"
    assert slow.again(message).status is Status.FAILED
    again = slow.dispatcher.retry(message.id, perhaps_sent=True)
    assert again.status is Status.SCHEDULED

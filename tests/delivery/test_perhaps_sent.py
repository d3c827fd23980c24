"""A transport says that nobody knows whether the provider has the message."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher import Attempt, Message, Outcome, PerhapsSent, Status
from tests.support.house import House, hour_ago
from tests.support.house_fixtures import Build

pytestmark = pytest.mark.every_database


def lose_the_answer(_: Message) -> None:
    raise PerhapsSent("no answer after the final dot")


@pytest.fixture
def house(build: Build) -> House:
    house = build(clock=hour_ago(), quotas="100/minute")
    house.memory.before = lose_the_answer
    return house


def tried(house: House, **asked: Any) -> tuple[Message, list[Attempt]]:
    message = house.submit(**asked)
    house.deliver(message)
    return house.again(message), house.dispatcher.attempts(message.id)


def test_it_is_held_where_it_is_to_be_held(house: House) -> None:
    message, [attempt] = tried(house, on_unknown="hold")
    assert message.status is Status.HELD
    assert message.last_error == "PerhapsSent: no answer after the final dot"
    assert (attempt.outcome, attempt.error) == (Outcome.UNKNOWN, message.last_error)
    assert house.dispatcher.release(message.id).status is Status.SCHEDULED


def test_otherwise_there_is_another_try_and_the_attempt_says_what_is_known(house: House) -> None:
    message, [attempt] = tried(house)
    assert (message.status, message.attempt_count) == (Status.SCHEDULED, 1)
    assert attempt.outcome is Outcome.UNKNOWN
    assert message.next_attempt_at > message.send_at, "after a backoff"

    house.memory.before = None
    house.change([message], next_attempt_at=message.send_at)
    assert house.deliver(message) == 1
    assert house.again(message).status is Status.SENT
    assert house.sent == [message.id]


def test_without_tries_left_it_has_failed(house: House) -> None:
    message = house.submit()
    house.change([message], max_attempts=1)
    house.deliver(message)
    assert house.again(message).status is Status.FAILED
    [attempt] = house.dispatcher.attempts(message.id)
    assert attempt.outcome is Outcome.UNKNOWN

"""From submit to a receiver that verifies what it got, through the whole house."""

from __future__ import annotations

import base64
from datetime import timedelta
from typing import Any

import pytest
from standardwebhooks import Webhook

from dispatcher import Message, Outcome, Status
from tests.support.house import House, hour_ago
from tests.support.house_fixtures import Build
from tests.support.http_receiver import Receiver

SECRET = "whsec_" + base64.b64encode(b"a key of some twenty-nine bytes").decode()


@pytest.fixture
def house(build: Build, receiver: Receiver) -> House:
    inner: dict[str, Any] = {
        "http": True, "allow": ["127.0.0.1"], "secrets": [SECRET], "ports": [receiver.port],
    }  # fmt: skip
    channels = {
        "fixed": {"transport": "webhook", "options": inner | {"url": receiver.url}},
        "open": {"transport": "webhook", "options": inner},
        "strict": {"transport": "webhook"},
    }
    return build(clock=hour_ago(), quotas="100/minute", channels=channels)


def again_at_once(house: House, message: Message) -> None:
    house.change([message], next_attempt_at=message.send_at)
    house.deliver(message)


def test_a_receiver_verifies_each_try_and_knows_it_by_its_id(
    house: House, receiver: Receiver
) -> None:
    receiver.answers(500)
    message = house.submit(channel="fixed", recipient="user 4711", body={"text": "hé"})
    house.deliver(message)
    assert house.again(message).status is Status.SCHEDULED
    receiver.answers(202, {"X-Request-Id": "r-7"})
    again_at_once(house, message)
    assert house.again(message).status is Status.SENT
    first, second = house.dispatcher.attempts(message.id)
    assert (first.outcome, first.error) == (
        Outcome.TEMPORARY,
        "TemporaryFailure: the server answered 500",
    )
    assert (second.outcome, second.receipt) == (Outcome.SENT, "202 x-request-id=r-7")

    got = [Webhook(SECRET).verify(each.content, each.headers) for each in receiver.received]
    assert [each["attempt"] for each in got] == [1, 2]
    assert {each["id"] for each in got} == {str(message.id)}
    assert {each["recipient"] for each in got} == {"user 4711"}
    assert {each.headers["webhook-id"] for each in receiver.received} == {str(message.id)}


def test_a_busy_server_closes_the_channel_that_is_its_own_and_no_other(
    house: House, receiver: Receiver
) -> None:
    receiver.answers(429, {"Retry-After": "300"})
    for channel, recipients in (("fixed", ["a", "b"]), ("open", [receiver.url] * 2)):
        receiver.received.clear()
        messages = [house.submit(channel=channel, recipient=each) for each in recipients]
        house.deliver(*messages)
        tried = [house.again(each).attempt_count for each in messages]
        assert tried == ([1, 0] if channel == "fixed" else [1, 1])
        assert len(receiver.received) == sum(tried)
        waits = [house.again(each).next_attempt_at - each.send_at for each in messages]
        assert min(waits) > timedelta(minutes=4)

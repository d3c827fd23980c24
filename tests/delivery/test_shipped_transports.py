"""Webhooks and e-mails through the whole house: tried again, verified, and refused."""

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
from tests.support.mail import ScriptedServer

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


def test_a_wrong_password_costs_one_message_one_try(build: Build) -> None:
    script = {"EHLO": "250-x\r\n250 AUTH PLAIN", "AUTH": "535 5.7.8 wrong"}
    with ScriptedServer(script) as server:
        url = f"smtp://shop:hunter2@127.0.0.1:{server.port}"
        options = {"url": url, "from": "Shop <mail@shop.example>"}
        channels = {"email": {"transport": "smtp", "options": options}}
        house = build(clock=hour_ago(), channels=channels, quotas="100/minute")
        mail = {"channel": "email", "body": {"subject": "Tomorrow", "text": "See you at nine"}}
        messages = [house.submit("ada@example.org", **mail) for _ in range(5)]
        house.deliver(*messages)
        now = [house.again(each) for each in messages]
        assert {each.status for each in now} == {Status.SCHEDULED}
        assert sorted(each.attempt_count for each in now) == [0, 0, 0, 0, 1]
        assert server.connections == 1
        assert not any("hunter2" in (each.last_error or "") for each in now)

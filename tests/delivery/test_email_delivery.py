"""An e-mail from its submit to a mail server: retried, refused, or held where nobody knows."""

from __future__ import annotations

import email
import email.policy
from datetime import timedelta
from typing import Any

import pytest

from dispatcher import InvalidDraft, Message, Outcome, Status
from tests.support.house import House, hour_ago
from tests.support.house_fixtures import Build
from tests.support.mail import CLOSE, MailServer, ScriptedServer
from tests.support.waiting import wait_until

ADA = "ada@example.org"


def at(build: Build, port: int, log_in: str = "") -> House:
    options = {"url": f"smtp://{log_in}127.0.0.1:{port}", "from": "Shop <mail@shop.example>"}
    channels = {"email": {"transport": "smtp", "options": options}}
    return build(clock=hour_ago(), channels=channels, quotas="100/minute")


def submitted(house: House, **more: Any) -> Message:
    body = {"subject": "Tomorrow", "text": "See you at nine"}
    return house.submit(**{"recipient": ADA, "channel": "email", "body": body} | more)


def make_due(house: House, message: Message) -> None:
    house.change([message], next_attempt_at=house.database_time() - timedelta(milliseconds=1))


def test_an_email_reaches_its_recipient_and_the_answer_is_kept(build: Build) -> None:
    with MailServer() as server:
        house = at(build, server.port)
        messages = [submitted(house) for _ in range(3)]
        assert house.deliver(*messages) == 3
        house.close()
    found = [email.message_from_bytes(each.content)["Message-ID"] for each in server.taken]
    assert found == [f"<{each.id}@shop.example>" for each in messages]
    assert server.connections == 1
    again = at(build, server.port)
    assert {again.again(each).status for each in messages} == {Status.SENT}
    [attempt] = again.dispatcher.attempts(messages[0].id)
    assert attempt.receipt == "250 2.0.0 queued as 1"


def test_a_dispatcher_that_is_closed_says_good_bye_to_its_providers(build: Build) -> None:
    with ScriptedServer() as server:
        house = at(build, server.port)
        assert house.deliver(submitted(house)) == 1
        assert "QUIT" not in [each.upper() for each in server.heard]
        house.close()
        wait_until(lambda: "QUIT" in [each.upper() for each in server.heard])


@pytest.mark.parametrize("recipient", ["ada", "ada@example.org, ben@example.org", "Ada <a@b.c>"])
def test_a_malformed_address_is_refused_at_submit(build: Build, recipient: str) -> None:
    house = at(build, 1)
    with pytest.raises(InvalidDraft) as caught:
        submitted(house, recipient=recipient)
    assert caught.value.field == "recipient"
    assert house.rows() == []


def test_a_greylisted_email_goes_again_under_the_same_message_id(build: Build) -> None:
    with ScriptedServer({"RCPT": ["451 4.7.1 greylisted"]}) as server:
        house = at(build, server.port)
        message = submitted(house)
        assert house.deliver(message) == 0
        waiting = house.again(message)
        assert (waiting.status, waiting.attempt_count) == (Status.SCHEDULED, 1)
        assert "451 4.7.1 greylisted" in (waiting.last_error or "")
        make_due(house, message)
        assert house.deliver(message) == 1
        assert house.again(message).status is Status.SENT
        [content] = server.got
        assert f"<{message.id}@shop.example>".encode() in content


def test_an_email_that_is_refused_for_good_has_failed(build: Build) -> None:
    with ScriptedServer({"RCPT": f"550 5.1.1 <{ADA}> is unknown"}) as server:
        house = at(build, server.port)
        message = submitted(house)
        house.deliver(message)
        now = house.again(message)
        assert now.status is Status.FAILED
        assert "550 5.1.1" in (now.last_error or "")
        assert ADA not in (now.last_error or "")


@pytest.mark.parametrize("on_unknown", ["hold", "retry"])
def test_an_email_without_an_answer_is_held_or_goes_again(build: Build, on_unknown: Any) -> None:
    with ScriptedServer({"message": [CLOSE]}) as server:
        house = at(build, server.port)
        message = submitted(house, on_unknown=on_unknown)
        house.deliver(message)
        now = house.again(message)
        [attempt] = house.dispatcher.attempts(message.id)
        assert attempt.outcome is Outcome.UNKNOWN
        assert len(server.got) == 1
        if on_unknown == "hold":
            assert now.status is Status.HELD
            assert house.deliver(message) == 0
            assert len(server.got) == 1, "sent at most once"
            return
        assert now.status is Status.SCHEDULED
        make_due(house, message)
        assert house.deliver(message) == 1
        first, second = (email.message_from_bytes(each)["Message-ID"] for each in server.got)
        assert first == second == f"<{message.id}@shop.example>"


def test_a_wrong_password_costs_one_message_one_try(build: Build) -> None:
    script = {"EHLO": "250-x\r\n250 AUTH PLAIN", "AUTH": "535 5.7.8 wrong"}
    with ScriptedServer(script) as server:
        house = at(build, server.port, "shop:hunter2@")
        messages = [submitted(house) for _ in range(5)]
        house.deliver(*messages)
        now = [house.again(each) for each in messages]
        assert {each.status for each in now} == {Status.SCHEDULED}
        assert sorted(each.attempt_count for each in now) == [0, 0, 0, 0, 1]
        assert server.connections == 1
        assert not any("hunter2" in (each.last_error or "") for each in now)

"""An e-mail from its submit to a mail server: retried, refused, or held where nobody knows."""

from __future__ import annotations

import email
import email.policy
from typing import Any

from dispatcher import Message, Status
from tests.support.house import House, hour_ago
from tests.support.house_fixtures import Build
from tests.support.mail import MailServer, ScriptedServer

ADA = "ada@example.org"


def at(build: Build, port: int, log_in: str = "") -> House:
    options = {"url": f"smtp://{log_in}127.0.0.1:{port}", "from": "Shop <mail@shop.example>"}
    channels = {"email": {"transport": "smtp", "options": options}}
    return build(clock=hour_ago(), channels=channels, quotas="100/minute")


def submitted(house: House, **more: Any) -> Message:
    body = {"subject": "Tomorrow", "text": "See you at nine"}
    return house.submit(**{"recipient": ADA, "channel": "email", "body": body} | more)


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

"""Who asked is told what became of a message: by messages that the house delivers itself."""

from __future__ import annotations

import base64
import json
from datetime import timedelta
from typing import Any

import pytest
from standardwebhooks import Webhook

from dispatcher import Dispatcher, Draft, InvalidDraft, Message, PermanentFailure, Rejection, Status
from dispatcher.transports.webhook import receiver_secret
from tests.support.crashes import How, die, each_how
from tests.support.house import BODY, House, hour_ago
from tests.support.house_fixtures import Build
from tests.support.http_receiver import Receiver

SECRET = "whsec_" + base64.b64encode(b"a key of some twenty-nine bytes").decode()
HOUR = timedelta(hours=1)
PEOPLE = ("ada", "ben", "cyd")


def channels(receiver: Receiver) -> dict[str, Any]:
    options = {
        "payload": "body", "secrets": [SECRET], "http": True, "allow": ["127.0.0.1"],
        "ports": [receiver.port],
    }  # fmt: skip
    return {
        "memory": {"transport": "memory", "max_attempts": 1},
        "status": {"transport": "webhook", "options": options, "max_attempts": 20},
    }


@pytest.fixture
def house(build: Build, receiver: Receiver) -> House:
    """Give a house with the strictest quota there is: one message a day for each recipient."""
    return build(
        clock=hour_ago(), quotas="1/day", status_channel="status", channels=channels(receiver)
    )


def status_messages(house: House) -> list[Message]:
    return [*house.dispatcher.list(channel="status").messages]


def tell(house: House) -> int:
    """Let the sweep tell, enqueue what is due, and deliver it; return how many were made."""
    made = house.parts.sweep.notify()
    house.parts.sweep.enqueue_due()
    house.deliver(*(message for message in status_messages(house) if not message.status.is_final))
    return made


def told(receiver: Receiver) -> list[tuple[str, str]]:
    """Return what came, each with a right signature: the types and whose they are."""
    bodies = [
        Webhook(receiver_secret(SECRET, f"http://127.0.0.1:{receiver.port}{request.path}")).verify(
            request.content, request.headers
        )
        for request in receiver.received
    ]
    return [(body["type"], body["data"]["id"]) for body in bodies]


def test_a_receiver_is_told_once_that_it_was_sent(house: House, receiver: Receiver) -> None:
    message = house.submit(status_url=f"{receiver.url}?token=hunter2")
    assert tell(house) == 0
    house.deliver(message)
    assert tell(house) == 1
    assert tell(house) == 0
    [request] = receiver.received
    assert told(receiver) == [("message.sent", str(message.id))]
    assert request.path == "/hook?token=hunter2"
    [status_message] = status_messages(house)
    assert request.headers["webhook-id"] == str(status_message.id)
    assert json.loads(request.content) == status_message.body


@pytest.mark.parametrize("is_asked_for", [False, True])
def test_errors_of_providers_are_reported_only_with_status_errors(
    build: Build, receiver: Receiver, is_asked_for: bool
) -> None:
    house = build(
        clock=hour_ago(), quotas="1/day", status_channel="status", channels=channels(receiver),
        **({"status_errors": True} if is_asked_for else {}),
    )  # fmt: skip
    message = house.submit("ada", status_url=receiver.url)
    words = "mail.internal:25: it answered 550 no 'ada' here: 'See you at nine'"
    house.fail_sends(PermanentFailure(words))
    house.deliver(message)
    tell(house)
    [request] = receiver.received
    data = json.loads(request.content)["data"]
    assert (data["status"], data["outcome"], data["reason"]) == ("failed", "permanent", "refused")
    if is_asked_for:
        assert data["last_error"] == f"PermanentFailure: {words}"
    else:
        assert "last_error" not in data
        assert all(word not in request.content for word in (b"mail.internal", b"answered", b"nine"))


@pytest.mark.every_database
def test_a_receiver_that_is_down_is_told_when_it_is_back(house: House, receiver: Receiver) -> None:
    receiver.answers(503)
    message = house.submit(status_url=receiver.url)
    house.deliver(message)
    for tries in (1, 2, 3):
        tell(house)
        [status_message] = status_messages(house)
        assert (status_message.status, status_message.attempt_count) == (Status.SCHEDULED, tries)
        house.change([status_message], next_attempt_at=status_message.created_at)
    receiver.answers(204)
    tell(house)
    assert told(receiver) == [("message.sent", str(message.id))] * 4
    assert len({request.headers["webhook-id"] for request in receiver.received}) == 1
    assert house.again(status_message).status is Status.SENT


def test_no_quota_and_no_limit_of_a_scope_holds_up_what_goes_to_one_url(
    house: House, receiver: Receiver
) -> None:
    messages = [house.submit(person, status_url=receiver.url) for person in PEOPLE]
    house.deliver(*messages)
    assert tell(house) == len(PEOPLE)
    assert sorted(told(receiver)) == sorted(
        ("message.sent", str(message.id)) for message in messages
    )
    assert set(house.all_members()) == set(PEOPLE)
    assert house.dispatcher.verify_windows().equal
    house.dispatcher.rebuild_windows()
    assert set(house.all_members()) == set(PEOPLE)
    assert house.reconciled().dispatcher.verify_windows().equal
    house.redis.flushdb()
    assert house.reconciled().dispatcher.verify_windows().equal
    assert set(house.all_members()) == set(PEOPLE)


def tells(dispatcher: Dispatcher) -> None:
    dispatcher._app.sweep.notify()


@each_how
def test_notifications_of_a_killed_sweep_are_made_by_the_next(
    house: House, receiver: Receiver, how: How
) -> None:
    messages = [house.submit(person, status_url=receiver.url) for person in PEOPLE]
    house.deliver(*messages)
    before = house.rows()
    die("tell.in_transaction", tells, house.settings, how=how)
    assert house.rows() == before
    assert tell(house) == len(PEOPLE)
    assert sorted(told(receiver)) == sorted(
        ("message.sent", str(message.id)) for message in messages
    )


def test_a_status_message_is_an_ordinary_one_without_a_reservation(
    house: House, receiver: Receiver
) -> None:
    house.deliver(house.submit(status_url=receiver.url))
    house.parts.sweep.notify()
    [status_message] = status_messages(house)
    with pytest.raises(InvalidDraft, match="is that of a status message"):
        house.dispatcher.reschedule(status_message.id, send_in=HOUR)
    story = house.dispatcher.story(status_message.id)
    assert (story.reservations, story.status_host) == ((), None)
    assert house.dispatcher.top("scope").tops == ()
    assert [top.name for top in house.dispatcher.top("channel").tops] == ["status"]
    receiver.answers(410)
    house.deliver(status_message)
    assert house.again(status_message).status is Status.FAILED
    assert tell(house) == 0, "nobody is told what became of it"
    receiver.answers(204)
    house.dispatcher.retry(status_message.id)
    house.deliver(status_message)
    assert house.again(status_message).status is Status.SENT


NO_URLS: list[tuple[Any, str]] = [
    ("https://169.254.169.254/latest", "its address may not be reached"),
    ("ftp://shop.example/hunter2", "its scheme is not allowed"),
    ("https://shop.example:8443/hunter2", "its port is not allowed"),
    ("hunter2", "its scheme is not allowed"),
    ("https://shop.example/" + "x" * 2_028, "2049 characters"),
    ("", "0 characters"),
    (4711, "an int"),
]


def test_a_url_that_could_never_be_told_is_refused_and_leaves_no_trace(house: House) -> None:
    before = house.snapshot()
    for url, problem in NO_URLS:
        with pytest.raises(InvalidDraft) as refusal:
            house.submit(status_url=url)
        assert (refusal.value.field, refusal.value.problem) == ("status_url", problem)
        draft = Draft(
            channel="memory", recipient="ada", body=BODY, send_in=timedelta(0), status_url=url
        )
        assert "hunter2" not in repr(draft)
        [rejection] = house.dispatcher.submit_many([draft])
        assert isinstance(rejection, Rejection)
        assert str(rejection.error) == str(refusal.value)
        assert house.snapshot() == before


def test_without_a_channel_for_it_nobody_may_ask_and_nothing_is_told(build: Build) -> None:
    house = build()
    with pytest.raises(InvalidDraft, match="no channel carries status webhooks") as refusal:
        house.submit(status_url="https://shop.example/hook")
    assert refusal.value.field == "status_url"
    assert house.parts.sweep.notify() == 0

"""Webhooks against a real server on loopback: what is posted, and what its answers mean."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from dispatcher import (
    ChannelSettings,
    InvalidSettings,
    PerhapsSent,
    PermanentFailure,
    Settings,
    TemporaryFailure,
)
from dispatcher.errors import DeliveryError
from dispatcher.testing import a_message
from dispatcher.transports import load
from dispatcher.transports.webhook import receiver_secret
from tests.support.clock import NOON, MovableClock
from tests.support.http_receiver import Received, Receiver, receiving
from tests.transports.conftest import open_to, to

SECRET = "whsec_" + base64.b64encode(b"an old key of twenty-nine....").decode()
NEW_SECRET = "whsec_" + base64.b64encode(b"a new key of twenty-nine.....").decode()


def verified(received: Received, secret: str = SECRET) -> Any:
    return Webhook(secret).verify(received.content, received.headers)


def test_a_message_is_posted_as_versioned_json_with_its_recipient_as_data(
    receiver: Receiver,
) -> None:
    message = a_message(body={"text": "hé"}, recipient="user 4711", attempt_count=2)
    assert to(receiver).send(message) == "204"
    [received] = receiver.received
    assert received.path == "/hook"
    assert json.loads(received.content) == {
        "version": 1,
        "id": str(message.id),
        "channel": "test",
        "recipient": "user 4711",
        "body": {"text": "hé"},
        "send_at": "2100-01-01T12:00:00.000Z",
        "attempt": 2,
    }
    assert received.headers["content-type"] == "application/json"
    assert received.headers["idempotency-key"] == str(message.id)
    assert received.headers["webhook-id"] == str(message.id)
    assert "webhook-signature" not in received.headers, "no secret was given"


def test_the_library_of_receivers_verifies_the_signature(receiver: Receiver) -> None:
    message = a_message(body={"text": "hé 💌"})
    headers = {"Authorization": "Bearer x", "User-Agent": "me", "Webhook-Id": "another"}
    clock = MovableClock(datetime.now(UTC))
    transport = to(receiver, secrets=[NEW_SECRET, SECRET], headers=headers, clock=clock)
    for _ in range(2):
        transport.send(message)
        clock.advance(timedelta(seconds=61))
    received, again = receiver.received
    assert again.headers["webhook-id"] == received.headers["webhook-id"] == str(message.id)
    times = [int(each.headers["webhook-timestamp"]) for each in (received, again)]
    assert times[1] == times[0] + 61
    assert again.headers["webhook-signature"] != received.headers["webhook-signature"]
    assert received.headers["webhook-signature"].count("v1,") == 2, "while keys change"
    assert verified(received, SECRET) == verified(received, NEW_SECRET)
    assert verified(received)["id"] == str(message.id)
    assert received.headers["authorization"] == "Bearer x"
    assert received.headers["user-agent"] == "me"


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_a_success_is_sent_and_its_receipt_names_status_and_request(
    receiver: Receiver, status: int
) -> None:
    ids = {"X-Request-Id": "\x1b[2J\x00", "Request-Id": "r-" + "7" * 300}
    receiver.answers(status, ids | {"Content-Length": "0"})
    assert to(receiver).send(a_message()) == f"{status} request-id=r-{'7' * 98}"


FAILURES: dict[int, type[DeliveryError]] = {
    300: PermanentFailure, 301: PermanentFailure, 302: PermanentFailure, 307: PermanentFailure,
    308: PermanentFailure, 400: PermanentFailure, 403: PermanentFailure,
    404: PermanentFailure, 409: PermanentFailure, 410: PermanentFailure, 413: PermanentFailure,
    422: PermanentFailure, 408: TemporaryFailure, 425: TemporaryFailure, 429: TemporaryFailure,
    500: TemporaryFailure, 503: TemporaryFailure, 507: TemporaryFailure, 525: TemporaryFailure,
    599: TemporaryFailure, 600: PerhapsSent, 999: PerhapsSent, 502: PerhapsSent, 504: PerhapsSent,
    520: PerhapsSent, 521: PerhapsSent, 522: PerhapsSent, 523: PerhapsSent, 524: PerhapsSent,
}  # fmt: skip


@pytest.mark.parametrize(("status", "kind"), FAILURES.items())
def test_each_status_is_the_failure_it_means(
    receiver: Receiver, status: int, kind: type[DeliveryError]
) -> None:
    receiver.answers(status, body=b"quotes the secret body")
    with pytest.raises(kind, match=f"answered {status}") as caught:
        to(receiver).send(a_message())
    assert "quotes" not in str(caught.value)
    if isinstance(caught.value, TemporaryFailure):
        assert (caught.value.retry_after, caught.value.closes_channel) == (None, False)


def test_refused_credentials_of_a_channel_wait_until_they_are_mended(receiver: Receiver) -> None:
    receiver.answers(401, body=b"quotes the secret body")
    with pytest.raises(TemporaryFailure, match=r"answered 401: .* credentials") as caught:
        to(receiver).send(a_message())
    assert caught.value.retry_after == timedelta(minutes=1)
    assert caught.value.closes_channel, "all messages have the same"
    with pytest.raises(PermanentFailure, match="answered 401"):
        open_to(receiver.port).send(a_message(recipient=receiver.url))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("7", 7),
        (" 120 ", 120),
        ("0", 0),
        ("Fri, 20 Nov 2026 12:01:30 GMT", 90),
        ("Friday, 20-Nov-26 12:01:30 GMT", 90),
        ("Fri, 20 Nov 2026 11:00:00 GMT", 0),
        ("Fri, 20 Nov 2126 12:00:00 GMT", 86_400),
        ("999999999", 86_400),
        ("99999999999999999999", None),
        ("-5", None),
        ("1.5", None),
        ("soon", None),
        ("Fri, 99 Nov 2026 12:01:30 GMT", None),
        ("", None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("status", [403, 429, 500, 503])
def test_a_server_says_when_to_come_back(
    receiver: Receiver, status: int, text: str, seconds: int | None
) -> None:
    receiver.answers(status, {"Retry-After": text})
    with pytest.raises(DeliveryError) as caught:
        to(receiver, clock=MovableClock(NOON)).send(a_message())
    if status == 403 and seconds is None:
        assert isinstance(caught.value, PermanentFailure)
        return
    assert isinstance(caught.value, TemporaryFailure)
    # A fault of the server's own is no wish.
    asked = None if seconds is None or status == 500 else timedelta(seconds=seconds)
    assert caught.value.retry_after == asked
    assert caught.value.closes_channel is (asked is not None), "all go to this server"
    with pytest.raises(TemporaryFailure) as caught_of_many:
        open_to(receiver.port, clock=MovableClock(NOON)).send(a_message(recipient=receiver.url))
    assert caught_of_many.value.retry_after == asked
    assert not caught_of_many.value.closes_channel


PUBLIC = "https://example.com/"
OPTIONS: list[tuple[str, dict[str, Any]]] = [
    *(("url", {"url": url}) for url in (
        "http://example.com/", "https://10.0.0.1/", "https://ada:hunter2@example.com/", 7,
    )),
    *(("secrets", {"secrets": secrets}) for secrets in (
        SECRET, ["hunter2"], ["whsec_hunter2"], ["whsec_" + "hunter2!" * 8], ["whsec_" + "A" * 100],
        [b"whsec_"],
    )),
    ("payload", {"payload": "xml"}),
    ("headers", {"headers": {"X-Token": "hunter2"}}),
    *(("headers", {"url": PUBLIC, "headers": headers}) for headers in (
        {"X": "hunter2\r\nY: z"}, {"X Y": "hunter2"}, "X",
    )),
    ("headers.X", {"url": PUBLIC, "headers": {"X": 7}}),
    ("allow", {"allow": "10.0.0.0/8"}),
    ("http", {"http": "yes"}),
    ("ports", {"ports": 8080}),
    *(("ports.0", {"ports": [port]}) for port in (0, 65_536, "8080", True)),
    *(("ca_file", {"ca_file": path}) for path in ("/no/such/file", __file__)),
]  # fmt: skip


@pytest.mark.parametrize(("option", "options"), OPTIONS)
def test_an_option_that_cannot_be_used_is_named_and_no_secret_with_it(
    option: str, options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidSettings) as caught:
        load("hooks", ChannelSettings(transport="webhook", options=options), Settings.load())
    assert caught.value.field == f"channels.hooks.options.{option}"
    assert "hunter2" not in str(caught.value)


def test_no_receiver_can_sign_for_another() -> None:
    with receiving() as one, receiving() as two:
        transport = open_to(one.port, two.port, secrets=[NEW_SECRET, SECRET])
        for each in (one, two):
            transport.send(a_message(recipient=each.url))
        [first], [second] = one.received, two.received
    for secret in (SECRET, NEW_SECRET):
        assert verified(first, receiver_secret(secret, one.url))
        assert verified(second, receiver_secret(secret, two.url))
        for other in (secret, receiver_secret(secret, two.url)):
            with pytest.raises(WebhookVerificationError):
                verified(first, other)

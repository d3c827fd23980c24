"""Apprise against a local server, by the plug-in that posts JSON."""

from __future__ import annotations

import json
import logging
import threading
from contextlib import nullcontext
from typing import Any, Literal
from unittest.mock import Mock, patch

import pytest
from apprise import Apprise

from dispatcher import (
    ChannelSettings,
    InvalidDraft,
    InvalidSettings,
    PerhapsSent,
    PermanentFailure,
    Settings,
    TemporaryFailure,
)
from dispatcher.testing import a_message
from dispatcher.transports import Checks, load
from dispatcher.transports.apprise import AppriseTransport, quiet
from tests.support.http_receiver import Handler, Receiver, pause, receiving
from tests.support.nodes import free_port

SECRET = "hunter2-ada"  # noqa: S105 - looked for where it must not be


def url_of(receiver: Receiver, rest: str = "/hook") -> str:
    return f"json://127.0.0.1:{receiver.port}{rest}"


def to(receiver: Receiver, rest: str = "/hook", **options: Any) -> AppriseTransport:
    return AppriseTransport(urls=[url_of(receiver, rest)], **options)


def test_a_message_goes_to_the_services_of_the_settings(receiver: Receiver) -> None:
    with receiving() as other:
        transport = AppriseTransport(urls=[url_of(receiver), url_of(other)])
        text = "5 < 7 & :smile: \\n file:///etc/passwd ${HOME} {recipient} {{ app_id }}"
        body = {"title": "Reminder", "text": text}
        message = a_message(body=body, recipient="without a placeholder any, text/../x")
        assert transport.send(message) == "JSON, JSON"
        for service in (receiver, other):
            [received] = service.received
            assert received.path == "/hook"
            content = json.loads(received.content)
            assert (content["title"], content["message"]) == (body["title"], body["text"])
            assert content["attachments"] == []


def test_the_recipient_is_written_where_the_settings_say(receiver: Receiver) -> None:
    transport = to(receiver, "/to/{recipient}/?+X-To={recipient}")
    transport.send(a_message(recipient="+49#ops@x.org"))
    [received] = receiver.received
    assert received.path == "/to/+49%23ops@x.org/", "as requests writes it"
    assert received.headers["x-to"] == "+49#ops@x.org"


SEPARATORS = ["a,b", "a b", "a;b", "a/b", "../b", "..", ".", "a..b", "a?b", "a&b", "a%2fb", "a\\b",
              "a\nb", "a{b}", "{recipient}", "a'b", 'a"b', "a|b", "<a>", "ä", "@", "#"]  # fmt: skip


@pytest.mark.parametrize("recipient", SEPARATORS)
def test_a_recipient_that_could_be_two_or_another_path_is_refused(
    receiver: Receiver, recipient: str
) -> None:
    options = {"urls": [url_of(receiver, "/{recipient}")]}
    checks = Checks({"chat": ChannelSettings(transport="apprise", options=options)})
    with pytest.raises(InvalidDraft) as caught:
        checks("chat", recipient, {"text": "x"})
    assert caught.value.field == "recipient"
    with pytest.raises(PermanentFailure, match="recipient"):
        AppriseTransport(**options).send(a_message(recipient=recipient))  # type: ignore[arg-type] # as settings are read
    assert receiver.received == []


LONG = "Dear Ada, " * 20
BODIES: list[tuple[Literal["text", "html"], str, list[dict[str, Any]]]] = [
    ("text", "text", [{}, {"text": ""}, {"text": " "}, {"text": 7}]),
    ("text", "title", [{"text": "x", "title": title} for title in (
        7, "a\r\nBcc: eve@x.org", "x" * 256,
    )]),
    ("text", "attach", [{"text": "x", "attach": to} for to in ("/etc/passwd", "http://169.254/")]),
    ("text", "urls", [{"text": "x", "urls": ["json://evil"]}]),
    ("text", LONG[:40], [{"text": "x", LONG: 1}]),
    ("html", "text", [{"text": "5 < 7"}]),
    ("html", "title", [{"html": "5", "title": title} for title in ("<b>", "a & b")]),
    ("html", "html", [{"html": " "}]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("format", "body", "field"),
    [(written, body, f"body.{key}") for written, key, bodies in BODIES for body in bodies],
)
def test_a_body_holds_a_text_and_a_title_and_nothing_to_fetch(
    receiver: Receiver,
    format: Literal["text", "html"],  # noqa: A002 - a user's word
    body: dict[str, Any],
    field: str,
) -> None:
    checks = Checks({"chat": ChannelSettings(transport="apprise", options={"format": format})})
    with pytest.raises(InvalidDraft) as caught:
        checks("chat", "ada", body)
    assert caught.value.field == field
    with pytest.raises(PermanentFailure, match=field):
        to(receiver, format=format).send(a_message(body=body))
    checks("chat", "ada", {"html" if format == "html" else "text": "<b>5</b>", "title": "five"})
    assert receiver.received == []


def test_a_recipient_that_a_service_does_not_take_has_failed(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = AppriseTransport(urls=[url_of(receiver), url_of(receiver, "/{recipient}")])
    real = Apprise.instantiate

    def only_without(url: str, **more: Any) -> Any:
        return None if url.endswith("/ada") else real(url, **more)

    monkeypatch.setattr(Apprise, "instantiate", only_without)
    with pytest.raises(PermanentFailure, match="does not take this recipient"):
        transport.send(a_message())
    assert receiver.received == [], "no service got it"


def test_a_partial_success_of_services_is_an_unknown_outcome(receiver: Receiver) -> None:
    closed = f"json://127.0.0.1:{free_port()}/"
    with pytest.raises(PerhapsSent, match="1 of 2 services took it"):
        AppriseTransport(urls=[closed, url_of(receiver)]).send(a_message())
    assert len(receiver.received) == 1


def test_what_apprise_raises_is_an_unknown_outcome_and_quoted_by_nothing(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Apprise, "notify", Mock(side_effect=ValueError(SECRET)))
    with pytest.raises(PerhapsSent, match="Apprise raised ValueError") as caught:
        to(receiver).send(a_message())
    assert SECRET not in str(caught.value)


def test_a_redirect_is_not_followed(receiver: Receiver) -> None:
    with receiving() as canary:
        receiver.answers(307, {"Location": canary.url})
        with pytest.raises(PerhapsSent):
            to(receiver).send(a_message())
        assert canary.received == []


def drip(handler: Handler) -> None:
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(b"x")
        pause(0.02)


def test_hand_overs_that_never_end_do_not_pile_up(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dispatcher.transports.apprise._MOST_LEFT", 1)
    receiver.answer = drip
    transport = to(receiver, timeout=0.1)
    with pytest.raises(PerhapsSent, match="in time"):
        transport.send(a_message())
    with pytest.raises(TemporaryFailure, match="1 earlier"):
        transport.send(a_message())


def test_where_the_system_gives_no_thread_nothing_was_sent_and_nothing_is_lost(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dispatcher.transports.apprise._MOST_LEFT", 1)
    transport, refused = to(receiver), RuntimeError("can't start new thread")
    with (
        patch.object(threading.Thread, "start", side_effect=refused),
        pytest.raises(TemporaryFailure, match="no further thread"),
    ):
        transport.send(a_message())
    assert [transport.send(a_message()) for _ in range(2)] == ["JSON", "JSON"]


OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("urls", {"urls": []}),
    ("urls", {"urls": "json://127.0.0.1/"}),
    ("urls.1", {"urls": ["json://127.0.0.1/", f"nosuch://{SECRET}/"]}),
    *(("urls.0", {"urls": [url]}) for url in (
        7, f"tgram://{SECRET}", "{recipient}", "{recipient}://host/", "json://{recipient}/",
        f"json://{SECRET}:{{recipient}}@host/", "json://host:{recipient}/", f"file:///etc/{SECRET}",
    )),
    ("format", {"urls": ["json://127.0.0.1/"], "format": "pdf"}),
]  # fmt: skip


@pytest.mark.parametrize(("option", "options"), OPTIONS)
def test_an_option_that_cannot_be_used_is_named_and_no_secret_with_it(
    option: str, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(InvalidSettings) as caught:
        load("chat", ChannelSettings(transport="apprise", options=options), Settings.load())
    assert caught.value.field == f"channels.chat.options.{option}"
    assert SECRET not in str(caught.value)
    assert SECRET not in caplog.text


@pytest.mark.parametrize("status", [200, 500])
def test_no_log_tells_a_url_a_recipient_or_a_text(
    receiver: Receiver, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    caplog.set_level(1)
    receiver.answers(status, body=SECRET.encode())
    transport = to(receiver, f"/{SECRET}/{{recipient}}")
    message = a_message(recipient=f"to-{SECRET}", body={"text": SECRET, "title": SECRET})
    with nullcontext() if status == 200 else pytest.raises(PerhapsSent) as caught:
        transport.send(message)
    assert SECRET not in str(caught)
    assert SECRET not in caplog.text
    assert str(receiver.port) not in caplog.text
    assert SECRET not in repr(transport)
    logging.getLogger("apprise").warning("of others is written as ever")
    assert "as ever" in caplog.text


def test_only_the_thread_that_is_quiet_writes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    logger = logging.getLogger("quiet_for_tests.inner")
    for _ in range(2):
        with quiet(["quiet_for_tests"]):
            logger.error("one")
            thread = threading.Thread(target=logger.error, args=("of another thread",))
            thread.start()
            thread.join()
            logging.getLogger("loud_for_tests").error("of another library")
    logger.error("afterwards")
    assert len(logger.filters) == 1
    said = [record.getMessage() for record in caplog.records]
    assert said == ["of another thread", "of another library"] * 2 + ["afterwards"]

"""The outcome of a send when the mail server refuses, cuts the line, or falls silent."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest

from dispatcher import DeliveryError, PerhapsSent, PermanentFailure, TemporaryFailure
from tests.support.mail import CLOSE, DRIP, HANG, LATE, ScriptedServer, an_email, smtp
from tests.support.nodes import free_port

ROOMY = 10.0
TIMEOUT = 0.8
GRACE = 10.0
SECRET = "hunter2-ada"  # noqa: S105 - looked for where it must not be


def failed(server: ScriptedServer, timeout: float = ROOMY, **more: Any) -> DeliveryError:
    with pytest.raises(DeliveryError) as caught:
        server.transport(timeout=timeout).send(an_email(**more))
    return caught.value


WORDS = ["MAIL", "RCPT", "DATA", "message"]
UNREADABLE = [CLOSE, "hello there", "99 bottles", "\r\n\r\n", "1" * 200_000]
REPLIES = {
    "421 4.3.2 shutting down": TemporaryFailure,
    "450 4.2.1 mailbox busy": TemporaryFailure,
    "450 4.7.1 <bob@shop.example>: Recipient address rejected: policy": TemporaryFailure,
    "451 4.7.1 greylisted, try again": TemporaryFailure,
    "452 4.2.2 full, its quota exceeded": TemporaryFailure,
    "452 4.5.3 Too many recipients": TemporaryFailure,
    "454 4.7.0 not now": TemporaryFailure,
    "471 strange but temporary": TemporaryFailure,
    "500 what?": PermanentFailure,
    "550 5.1.1 no such user": PermanentFailure,
    "551 not local": PermanentFailure,
    "552 5.3.4 too big": PermanentFailure,
    "553 5.1.3 bad address": PermanentFailure,
    "554-5.7.1 two lines of\r\n554 5.7.1 spam": PermanentFailure,
    "599 strange but permanent": PermanentFailure,
}
FAILURES = [
    *((word, reply, kind) for word in ("RCPT", "message") for reply, kind in REPLIES.items()),
    *(("message", way, PerhapsSent) for way in (*UNREADABLE, "25 short", "354 more, please")),
    *((word, way, TemporaryFailure) for word in ("connection", "EHLO", "MAIL", "RCPT", "DATA")
      for way in UNREADABLE),
    *((word, way, TemporaryFailure) for word in ("connection", "EHLO")
      for way in ("421 busy", "450 not now", "554 no service")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("word", "way", "kind"), FAILURES, ids=lambda each: each[:20] if isinstance(each, str) else ""
)
def test_a_failure_says_whether_the_server_has_it_and_whether_to_try_again(
    word: str, way: str, kind: type[DeliveryError]
) -> None:
    with ScriptedServer({word: way}) as server:
        error = failed(server)
        assert type(error) is kind
        assert len(server.got) == (word == "message")
        assert not getattr(error, "closes_channel", False), "it concerns one message"
    if kind is not PerhapsSent and way in REPLIES:
        assert way[:3] in str(error)


@pytest.mark.parametrize("word", ["EHLO", "RCPT", "message"])
@pytest.mark.parametrize(
    "reply",
    [
        "454 Throttling failure: Daily message quota exceeded",
        "421 4.7.0 Temporary System Problem. Try again later",
        "421 Too many concurrent connections",
        "450 4.7.1 Error: too much mail from 192.0.2.1",
        "451 4.7.500 Server busy",
        "452 4.5.3 Too many messages in this connection",
        "451 The sending rate of your account is above its limit",
    ],
)
def test_a_throttle_closes_the_channel(word: str, reply: str) -> None:
    with ScriptedServer({word: reply}) as server:
        error = failed(server)
    assert isinstance(error, TemporaryFailure)
    assert (error.closes_channel, error.retry_after) == (True, timedelta(minutes=1))


@pytest.mark.parametrize(
    ("word", "way"),
    [("connection", DRIP), ("EHLO", HANG), ("RCPT", DRIP), ("DATA", HANG), ("message", HANG),
     ("message", DRIP)],
)  # fmt: skip
def test_a_server_that_falls_silent_is_left_in_time(word: str, way: str) -> None:
    with ScriptedServer({word: way}) as server:
        began = time.monotonic()
        error = failed(server, TIMEOUT)
        took = time.monotonic() - began
        assert type(error) is (PerhapsSent if word == "message" else TemporaryFailure)
        assert "it did not answer within 0.8 s" in str(error)
        assert len(server.got) == (word == "message"), "the server has it"
        assert took < TIMEOUT + GRACE


def test_a_message_that_the_server_does_not_read_was_not_sent() -> None:
    with ScriptedServer({"DATA": f"{HANG} 354 go ahead"}) as server:
        transport = server.transport(timeout=TIMEOUT)
        with pytest.raises(TemporaryFailure, match="did not answer within"):
            transport.send(an_email(body={"text": f"{'x' * 900}\n" * 5_500}))
        assert server.got == []


def test_a_message_whose_answer_could_not_be_waited_for_is_not_ended() -> None:
    with ScriptedServer({"DATA": f"{LATE} 354 go ahead"}) as server:
        error = failed(server, 0.9)
        assert type(error) is TemporaryFailure
        assert "no time is left for its answer" in str(error)
        assert server.got == []


def test_a_server_that_is_not_there_is_a_temporary_failure() -> None:
    port = free_port()
    transport = smtp(f"smtp://127.0.0.1:{port}")
    with pytest.raises(TemporaryFailure, match="Connection refused") as caught:
        transport.send(an_email())
    assert str(port) in str(caught.value)
    with pytest.raises(TemporaryFailure):
        smtp("smtp://nowhere.invalid", plaintext=True).send(an_email())


@pytest.mark.parametrize("word", ["MAIL", "RCPT", "DATA"])
@pytest.mark.parametrize("way", [CLOSE, "421 4.4.2 idle for too long"])
def test_a_line_that_was_closed_while_idle_costs_no_try(word: str, way: str) -> None:
    polite = {"MAIL": "250 ok", "RCPT": "250 ok", "DATA": "354 go"}[word]
    with ScriptedServer({word: [polite, way]}) as server:
        transport = server.transport()
        transport.send(an_email())
        assert transport.send(an_email()) == "250 queued"
        assert server.connections == 2
        assert len(server.got) == 2


@pytest.mark.parametrize("way", [CLOSE, HANG])
def test_a_message_that_was_written_is_never_written_again(way: str) -> None:
    with ScriptedServer({"message": ["250 queued", way]}) as server:
        transport = server.transport(timeout=TIMEOUT)
        transport.send(an_email())
        with pytest.raises(PerhapsSent):
            transport.send(an_email())
        assert len(server.got) == 2
        assert server.connections == 1
        transport.send(an_email())
        assert server.connections == 2, "a line that broke is not used again"


@pytest.mark.parametrize("word", WORDS)
def test_after_a_refusal_the_line_carries_the_next_message(word: str) -> None:
    with ScriptedServer({word: ["550 no"]}) as server:
        transport = server.transport()
        with pytest.raises(PermanentFailure):
            transport.send(an_email())
        assert transport.send(an_email()) == "250 queued"
        assert server.connections == 1
        assert ("rset" in [each.lower() for each in server.heard]) is (word != "message")


def test_an_error_shows_neither_recipient_nor_password() -> None:
    said = f"550 5.1.1 <ada@example.org> ADA@EXAMPLE.ORG {'y' * 5_000}"
    with ScriptedServer({"RCPT": said}) as server:
        text = str(failed(server))
    assert "ada@example.org" not in text.lower()
    assert "550 5.1.1" in text
    assert len(text) < 400

    ehlo = "250-scripted\r\n250 AUTH PLAIN"
    with ScriptedServer({"EHLO": ehlo, "AUTH": f"535 {SECRET} is wrong for shop"}) as server:
        transport = server.transport(log_in=f"shop:{SECRET}@")
        with pytest.raises(TemporaryFailure) as caught:
            transport.send(an_email())
    assert SECRET not in str(caught.value)
    assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    ("script", "closes"),
    [
        ({"AUTH": "454 4.7.0 not now"}, False),
        ({"AUTH": "535 wrong"}, True),
        ({"AUTH": CLOSE}, False),
        ({"AUTH": "334 abc"}, False),  # no base64
        ({"EHLO": "250 scripted"}, True),
        ({"EHLO": "250-scripted\r\n250 AUTH GSSAPI"}, True),
    ],
    ids=str,
)  # fmt: skip
def test_only_what_the_settings_can_mend_closes_the_channel(
    script: dict[str, str], closes: bool
) -> None:
    with ScriptedServer({"EHLO": "250-scripted\r\n250 AUTH PLAIN", **script}) as server:
        transport = server.transport(log_in="shop:secret@")
        with pytest.raises(TemporaryFailure) as caught:
            transport.send(an_email())
    assert caught.value.closes_channel is closes

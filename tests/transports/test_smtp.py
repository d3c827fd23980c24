"""E-mail over a real mail server, and over one that refuses, cuts the line or falls silent."""

from __future__ import annotations

import email
import email.policy
import ssl
import time
from datetime import timedelta
from email.headerregistry import Address
from typing import Any
from urllib.parse import quote

import pytest

from dispatcher import (
    ChannelSettings,
    DeliveryError,
    InvalidDraft,
    InvalidSettings,
    PerhapsSent,
    PermanentFailure,
    Settings,
    TemporaryFailure,
)
from dispatcher.transports import load
from dispatcher.transports.mail import compose
from dispatcher.transports.smtp import SmtpTransport
from tests.support.clock import MovableClock
from tests.support.doubles import at_once
from tests.support.mail import (
    CLOSE,
    DRIP,
    HANG,
    LATE,
    PASSWORD,
    USER,
    MailServer,
    ScriptedServer,
    an_email,
    certified,
    smtp,
)
from tests.support.nodes import free_port

SCHEMES = {"tls": "smtps", "starttls": "smtp+starttls", "none": "smtp"}
LOG_IN = f"{USER}:{quote(PASSWORD, safe='')}@"


pytestmark = pytest.mark.filterwarnings("ignore:Requiring AUTH:UserWarning")  # of aiosmtpd


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, str]:
    return certified(tmp_path_factory.mktemp("tls"))


@pytest.mark.parametrize("security", SCHEMES)
def test_a_mail_arrives_as_it_was_meant(security: str, tls: tuple[ssl.SSLContext, str]) -> None:
    context, authority = tls
    with MailServer(security=security, context=context, auth=True) as server:
        transport = server.transport(SCHEMES[security], LOG_IN, ca_file=authority)
        sent = an_email(body={"subject": "Größe", "text": "hé\n.\n..\nx", "html": "<p>hé"})
        assert transport.send(sent) == "250 2.0.0 queued as 1"
        [taken] = server.taken
    assert (taken.sender, taken.recipients) == ("mail@shop.example", ["ada@example.org"])
    parsed = email.message_from_bytes(taken.content, policy=email.policy.default)
    assert parsed["Message-ID"] == f"<{sent.id}@shop.example>"
    assert parsed["Subject"] == "Größe"
    assert isinstance(parsed, email.message.EmailMessage)
    plain = parsed.get_body(("plain",))
    assert plain is not None
    assert plain.get_content().split() == ["hé", ".", "..", "x"]


@pytest.mark.parametrize(
    "text",
    [
        "\r\n.\r\nMAIL FROM:<v@e.org>\r\n",
        "\n.\nRCPT TO:<v@e.org>\n.\r.\n..",
        ".",
        "..\r.\n" * 20_000,
    ],
    ids=["another mail", "another recipient", "a dot", "many chunks"],
)
def test_no_content_makes_a_second_mail_or_recipient(text: str) -> None:
    clock, message = MovableClock(), an_email("a@b.c", {"subject": "s", "text": text})
    with MailServer() as sink:
        transport = sink.transport(clock=clock)
        transport.send(message)
    [taken] = sink.taken
    assert taken.recipients == ["a@b.c"]
    sender = Address("Shop", addr_spec="mail@shop.example")
    assert taken.content == compose(message, sender=sender, now=clock.now()).content


def test_addresses_beyond_ascii_go_where_they_are_understood() -> None:
    with MailServer() as server:
        transport = server.transport()
        assert transport.send(an_email("jörg@müller.example"))
        assert transport.send(an_email("ada@example.org"))
    assert [mail.recipients for mail in server.taken] == [
        ["jörg@müller.example"], ["ada@example.org"],
    ]  # fmt: skip
    assert "SMTPUTF8" in server.taken[0].options
    assert "SMTPUTF8" not in server.taken[1].options
    with MailServer(enable_SMTPUTF8=False) as server:
        transport = server.transport(**{"from": "Bücher <post@bücher.example>"})
        body = {"text": "x", "reply_to": "ada@bücher.example", "cc": ["Ö <o@bücher.example>"]}
        assert transport.send(an_email("ada@Bücher.example", body))
        [taken] = server.taken
        assert taken.recipients == ["ada@xn--bcher-kva.example"]
        count = taken.content.count(b"@xn--bcher-kva.example")
        assert count == 5, "From, To, Cc, Reply-To and Message-ID"
        for recipient in ("jörg@müller.example", "ada@straße.example"):
            with pytest.raises(PermanentFailure, match="no SMTPUTF8"):
                transport.send(an_email(recipient))
        lacks = {"smtputf8": False}
        with pytest.raises(InvalidDraft, match="before the @"):
            SmtpTransport.check("jörg@müller.example", {"text": "x"}, lacks)
        SmtpTransport.check("ada@müller.example", {"text": "x"}, lacks)
        assert transport.send(an_email("ada@example.org"))
    assert server.connections == 1, "a refusal of ours costs no line"


@pytest.mark.parametrize(
    ("spoken", "host", "is_trusted", "says"),
    [
        ("tls", "localhost", False, "TLS with it failed: "),
        ("starttls", "localhost", False, "TLS with it failed: "),
        ("tls", "127.0.0.1", True, "IP address mismatch"),
        ("none", "localhost", True, "TLS with it failed"),
    ],
)
def test_a_server_that_nobody_vouches_for_is_told_nothing(
    tls: tuple[ssl.SSLContext, str], spoken: str, host: str, is_trusted: bool, says: str
) -> None:
    context, authority = tls
    options = {"ca_file": authority} if is_trusted else {}
    with MailServer(security=spoken, context=context, auth=spoken != "none") as server:
        scheme = "smtp+starttls" if spoken == "starttls" else "smtps"
        transport = server.transport(scheme, LOG_IN, host=host, **options)
        with pytest.raises(TemporaryFailure, match=says) as caught:
            transport.send(an_email())
    assert caught.value.closes_channel
    assert server.taken == []


def test_without_starttls_nothing_is_said_in_the_clear() -> None:
    with ScriptedServer() as server:
        transport = server.transport("smtp+starttls", LOG_IN)
        with pytest.raises(TemporaryFailure, match="offers no STARTTLS") as caught:
            transport.send(an_email())
    assert caught.value.closes_channel
    assert [line.split()[0] for line in server.heard] == ["ehlo"]


def test_replies_injected_before_starttls_end_the_connection() -> None:
    ehlo = "250-scripted\r\n250 STARTTLS"
    script = {"EHLO": ehlo, "STARTTLS": "220 go\r\n250-evil\r\n250 AUTH PLAIN"}
    with ScriptedServer(script) as server:
        transport = server.transport("smtp+starttls", LOG_IN)
        with pytest.raises(TemporaryFailure, match="between STARTTLS and the encryption"):
            transport.send(an_email())


@pytest.mark.parametrize(
    ("log_in", "says"),
    [(f"{USER}:hunter3@", r"535.* to the credentials"), ("", "it answered 530 ")],
)
def test_wrong_credentials_blame_the_settings_and_close_the_channel(
    tls: tuple[ssl.SSLContext, str], log_in: str, says: str
) -> None:
    context, authority = tls
    with MailServer(security="tls", context=context, auth=True) as server:
        transport = server.transport("smtps", log_in, ca_file=authority)
        with pytest.raises(TemporaryFailure, match=says) as caught:
            transport.send(an_email())
    assert caught.value.closes_channel
    assert caught.value.retry_after is not None
    assert "hunter3" not in str(caught.value)
    assert server.taken == []


def test_a_line_is_used_again_and_each_thread_has_one() -> None:
    clock = MovableClock()
    with MailServer() as server:
        transport = server.transport(idle_seconds=60, clock=clock)
        for seconds in (0, 59, 59, 61, 59):
            clock.sleep(seconds)
            transport.send(an_email())
        assert server.connections == 2, "one that was idle for long is not used"
        receipts = at_once([lambda: transport.send(an_email()) for _ in range(8)])
        assert all(isinstance(receipt, str) for receipt in receipts)
        assert 2 <= server.connections <= 9
        before = server.connections
        at_once([lambda: transport.send(an_email()) for _ in range(before - 1)])
        assert server.connections == before
        assert len({tuple(mail.recipients) for mail in server.taken}) == 1
    assert len(server.taken) == 5 + 8 + before - 1


def test_a_line_carries_a_hundred_messages_and_no_more() -> None:
    with ScriptedServer() as server:
        transport = server.transport()
        for _ in range(101):
            transport.send(an_email())
        assert server.connections == 2
        assert len(server.got) == 101


REFUSED_URLS: dict[str, list[Any]] = {
    "is no text": [7],
    "no known scheme": ["mail.example.org", "imap://mail.example.org"],
    "no host": [
        "smtps://", "smtps://a..b", "smtps://.a", "smtps://müller.example", "smtps://a b",
        "smtps://a%20b", f"smtps://{'a' * 64}.b",
    ],
    "more than a host": ["smtps://mail.example.org/inbox", "smtps://mail.example.org?tls=no"],
    "cannot be read": ["smtps://mail.example.org:port", "smtps://mail.example.org:99999"],
    "a user or a password": [
        "smtps://ada@mail.example.org", "smtps://ada:h%C3%BCnter2@mail.example.org",
    ],
    "in the clear": [
        "smtp://mail.example.org", "smtp://127.0.0.1.example.org", "smtp://10.0.0.1",
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("options", "field", "says"),
    [
        *(({"url": url}, "url", says) for says, urls in REFUSED_URLS.items() for url in urls),
        ({"plaintext": "no"}, "plaintext", "neither true nor false"),
        *(({"from": text}, "from", "not one address") for text in ("shop", "a@b.c, d@e.f")),
        ({"ca_file": "/nowhere.pem", "url": "smtps://h"}, "ca_file", "No such file"),
        ({"ca_file": "/dev/null", "url": "smtps://h"}, "ca_file", "no certificate"),
        *(({"name": name}, "name", "no host name") for name in ("two words", "a\r\nMAIL")),
        ({"idle_seconds": 0}, "idle_seconds", "is out of range"),
        ({"idle_seconds": "60"}, "idle_seconds", "is no number"),
    ],
    ids=str,
)
def test_an_option_that_cannot_be_used_is_named_and_not_quoted(
    options: dict[str, Any], field: str, says: str
) -> None:
    options = {"url": "smtp://localhost", "from": "mail@shop.example"} | options
    with pytest.raises(InvalidSettings) as caught:
        load("mail", ChannelSettings(transport="smtp", options=options), Settings.load())
    assert caught.value.field == f"channels.mail.options.{field}"
    assert says in caught.value.problem
    assert caught.value.accepted
    assert "nter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("scheme", "host"),
    [
        *(("smtps", host) for host in ("mail", "mail_server", "mail.example.org.", "10.0.0.1")),
        ("smtps", "[fe80::1]"),
        *(("smtp", host) for host in ("localhost", "127.0.0.1", "127.8.8.8", "mail.localhost")),
        ("smtp", "[::1]"),
    ],
)
def test_a_server_has_any_name_and_this_machine_is_spoken_to_in_the_clear(
    scheme: str, host: str
) -> None:
    assert host.strip("[]") in repr(smtp(f"{scheme}://{host}"))
    assert "mail.example.org:25" in repr(smtp("smtp://mail.example.org", plaintext=True))


ROOMY = 10.0
TIMEOUT = 0.8
GRACE = 10.0
SECRET = "hunter2-ada"  # noqa: S105 - looked for where it must not be


def failed(server: ScriptedServer, timeout: float = ROOMY, **more: Any) -> DeliveryError:
    with pytest.raises(DeliveryError) as caught:
        server.transport(timeout=timeout).send(an_email(**more))
    return caught.value


WORDS = ["MAIL", "RCPT", "DATA", "message"]
UNREADABLE = [
    CLOSE, "hello there", "99 bottles", "\r\n\r\n", "1" * 200_000,
    "\r\n".join(["250-more"] * 20_000),
]  # fmt: skip
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
      for way in ("421 busy", "450 not now", "530 log in", "554 no service")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("word", "way", "kind"), FAILURES, ids=lambda word: word[:20] if isinstance(word, str) else ""
)
def test_a_failure_says_whether_the_server_has_it_and_whether_to_try_again(
    word: str, way: str, kind: type[DeliveryError]
) -> None:
    with ScriptedServer({word: way}) as server:
        error = failed(server)
        assert type(error) is kind
        assert len(server.got) == (word == "message")
        assert not getattr(error, "closes_channel", False), "it concerns one message"
        assert "did not answer" not in str(error), "it is not waited for"
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
        assert ("rset" in [line.lower() for line in server.heard]) is (word != "message")


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

"""E-mail over a real mail server: security, log-in, and lines that are used again."""

from __future__ import annotations

import email
import email.policy
import ssl
from email.headerregistry import Address
from typing import Any
from urllib.parse import quote

import pytest

from dispatcher import (
    ChannelSettings,
    InvalidDraft,
    InvalidSettings,
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
    PASSWORD,
    USER,
    MailServer,
    ScriptedServer,
    an_email,
    certified,
    smtp,
)

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
    assert [each.recipients for each in server.taken] == [
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
        found = taken.content.count(b"@xn--bcher-kva.example")
        assert found == 5, "From, To, Cc, Reply-To and Message-ID"
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
    assert [each.split()[0] for each in server.heard] == ["ehlo"]


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
        assert all(isinstance(each, str) for each in receipts)
        assert 2 <= server.connections <= 9
        before = server.connections
        at_once([lambda: transport.send(an_email()) for _ in range(before - 1)])
        assert server.connections == before
        assert len({tuple(each.recipients) for each in server.taken}) == 1
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

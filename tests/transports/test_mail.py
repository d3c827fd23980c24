"""What may be in an e-mail, and that nothing else gets into one."""

from __future__ import annotations

import base64
import email
import email.policy
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.header import decode_header, make_header
from email.headerregistry import Address
from email.utils import unquote
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dispatcher import InvalidDraft
from dispatcher.transports.mail import Mail, check_mail, compose, read_sender
from dispatcher.transports.smtp import SmtpTransport
from tests.support.examples import examples
from tests.support.mail import an_email

SENDER = Address("Shop", "mail", "shop.example")
NOW = datetime(2026, 11, 21, 9, 30, tzinfo=UTC)
TEXT: dict[str, Any] = {"text": "See you at nine"}
BASE64 = base64.b64encode(b"%PDF").decode()

# What the standard library lets through, or cuts to the address of somebody else without a word.
INJECTIONS = [
    "a@b.c\r\nRCPT TO:<v@e.org>", "a@b.c>\r\nRCPT TO:<v@e.org", "a@b.c\nBcc: v@e.org",
    "a@b.c\r", "a@b.c\x00", "a@b\x00.c", "a@b.c\u2028x", "a@b.c\u2029x", "a@b.c\x85x",
    "a@b.c\x0bx", "a@b.c\x0cx", "a@b.c, v@e.org", "a@b.c,v@e.org", "a@b.c; v@e.org",
    "team: a@b.c, v@e.org;", "team:a@b.c;", "Ada <a@b.c>", "<a@b.c>", "a@b.c (v@e.org)",
    "(v@e.org) a@b.c", '"a b"@b.c', '"v@e.org"@b.c', "a@b.c>", "a@b.c> SIZE=1",
    "a@b.c SMTPUTF8", "a@[127.0.0.1]", "@v.org:a@b.c", "a@@b.c", "a@b@c.d", "a..b@c.d",
    ".a@b.c", "a.@b.c", "a@b..c", "a@.b", "a@b.", "a@-b.c", "a@b-.c", "a@b_c.d", "a b@c.d", "a",
    "@b.c", "a@", "", " a@b.c", "a@b.c ", "a\u202e@b.c", "a\u200b@b.c", "a\uff20e.org@b.c",
    "a@b\uff0ec", "a@e\uff0f.org", "\ufb01@b.c", "a@b.c\ud800", "a%0d%0aBcc:v@e.org",
    "a\tb@c.d", "=?utf-8?q?v=40e.org=2C?=@b.c",
    "a@b\u3002example", "a@b\uff61example", "a@b\u2024example", "a@b\u2044c.d", "a@b\u00b7c.d",
    "x" * 65 + "@b.c", "a@" + "b" * 64 + ".c", "a@" + "b." * 126 + "c", "ö" * 33 + "@b.c",
]  # fmt: skip
ADDRESSES = [
    "ada@example.org", "a@b", "root@localhost", "a+tag@b.example", "o'neil@b.example",
    "first.last@sub.domain.example", "!#$%&'*+/?=^_`{|}~-@b.c", "1@2.3", "jörg@müller.example",
    "用户@例子.测试", "a@xn--mller-kva.example", "x" * 64 + "@b.c",
]  # fmt: skip


STEERING = [
    "X-SMTPAPI", "x-smtpapi", "X-MC-Template", "X-MC-BccAddress", "X-Mailgun-Variables",
    "X-MSYS-API", "X-PM-Message-Stream", "X-SES-CONFIGURATION-SET", "X-MJ-TemplateID",
    "X-Mailin-custom", "X-MS-Exchange-Organization-SCL", "X-Virtual-MTA-Pool", "X-Spam-Status",
]  # fmt: skip


def test_headers_that_steer_a_provider_are_for_channels_that_name_them() -> None:
    body = TEXT | {"headers": {"X-Mailgun-Tag": "nine", "X-Campaign": "ten"}}
    options: dict[str, Any] = {"allow_headers": ["x-mailgun-tag"]}
    SmtpTransport.check("a@b.c", body, options)
    transport = SmtpTransport(url="smtp://localhost", **(options | {"from": "mail@shop.example"}))
    mail = compose(an_email("a@b.c", body), sender=SENDER, now=NOW, allowed=transport._allowed)
    assert b"X-Mailgun-Tag: nine\r\n" in mail.content
    with pytest.raises(InvalidDraft, match="allow_headers"):
        SmtpTransport.check("a@b.c", body, {"allow_headers": ["X-Mailgun-Variables"]})
    for wrong in (["Bcc"], "X-MC-Tags", [7]):
        options = {"from": "a@b.c", "allow_headers": wrong}
        with pytest.raises(ValueError, match="allow_headers"):
            SmtpTransport(url="smtp://localhost", **options)


@pytest.mark.parametrize("text", INJECTIONS, ids=ascii)
def test_anything_but_one_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidDraft) as caught:
        check_mail(text, TEXT)
    assert caught.value.field == "recipient"
    with pytest.raises(InvalidDraft) as caught:
        check_mail("a@b.c", TEXT | {"reply_to": text})
    assert caught.value.field == "body.reply_to"
    with pytest.raises(InvalidDraft):
        compose(an_email(text, TEXT), sender=SENDER, now=NOW)


@pytest.mark.parametrize("text", ADDRESSES, ids=ascii)
def test_an_address_is_taken_as_it_is(text: str) -> None:
    mail = compose(an_email(text, TEXT | {"reply_to": text}), sender=SENDER, now=NOW)
    assert mail.recipient == text
    assert mail.is_international is not text.isascii()
    parsed = email.message_from_string(mail.content.decode(), policy=email.policy.default)
    for name in ("To", "Reply-To"):
        [address] = parsed[name].addresses
        assert f"{address.username}@{address.domain}" == text


def attached(**changes: Any) -> dict[str, Any]:
    one = {"filename": "a.pdf", "content": BASE64, "type": "application/pdf"} | changes
    return {**TEXT, "attachments": [{name: part for name, part in one.items() if part is not None}]}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        *((body, "body") for body in ({}, {"subject": "hello"})),
        *(({"text": value}, "body.text") for value in (7, None, "a\0b", "a\ud800b")),
        ({"html": ["<p>"]}, "body.html"),
        (TEXT | {"subjet": "typo"}, "body.subjet"),
        (TEXT | {"bcc": "v@e.org"}, "body.bcc"),
        *((TEXT | {"subject": value}, "body.subject") for value in (
            "", 7, " x", "x ", "x" * 501, "a\r\nBcc: v@e.org", "a\nb", "a\rb", "a\0b", "a\x85b",
            "a\u2028b", "a\u2029b", "a\x0bb", "a\x0cb", "a\x1cb", "a\u202eb", "a\u2066b",
            "a\u200fb", "a\ud800b", "a\tb", "a\x7fb",
        )),
        *((TEXT | {"headers": value}, "body.headers") for value in (
            7, ["X-A"], {"Bcc": "v@e.org"}, {"To": "v@e.org"}, {"From": "v@e.org"}, {"Sender": "x"},
            {"Content-Type": "text/html"}, {"MIME-Version": "2"}, {"Message-ID": "<x@y>"},
            {"DKIM-Signature": "x"}, {"Received": "x"}, {"Resent-To": "x"}, {"X-A\r\nBcc": "x"},
            {"X-A: b\nBcc": "x"}, {"X-A ": "x"}, {"X-": "x"}, {"": "x"}, {"X-Ä": "x"},
            {"X-A:": "x"},
        )),
        *((TEXT | {"headers": {"X-A": value}}, "body.headers.X-A") for value in (
            "a\r\nBcc: v@e.org", "a\0", 7,
        )),
        (TEXT | {"headers": {"X-\u212a": "1"}}, "body.headers"),
        *((TEXT | {"headers": {name: "1"}}, f"body.headers.{name}") for name in STEERING),
        (TEXT | {"headers": {"X-A": "1", "x-a": "2"}}, "body.headers.x-a"),
        (TEXT | {"attachments": {"filename": "a"}}, "body.attachments"),
        (TEXT | {"attachments": ["/etc/passwd"]}, "body.attachments[0]"),
        *((attached(filename=value), "body.attachments[0].filename") for value in (
            None, "../../etc/passwd", "ö" * 128, "..\\x", 'a"\r\nBcc: v@e.org',
        )),
        *((attached(content=value), "body.attachments[0].content") for value in (
            None, "not base64!", "aGVsbG8", "aGVs\nbG8=", "ä",
        )),
        *((attached(type=value), "body.attachments[0].type") for value in (
            "pdf", "multipart/mixed", "message/rfc822", "text/plain\r\nBcc: v@e.org",
            "text/plain; charset=x",
        )),
        *((attached(**{name: "x"}), f"body.attachments[0].{name}") for name in ("path", "url")),
        *((TEXT | {"reply_to": text}, "body.reply_to") for text in (None, 7, ["a@b.c"], {"a": 1})),
        *((TEXT | {"to": value}, "body.to") for value in ("a@b.c", ["a@b.c\r\nBcc: v@e.org"])),
        *((TEXT | {"cc": cc}, "body.cc") for cc in (["Ada <a@b.c>, v@e.org"], ["a@b.c"] * 101)),
        *((TEXT | {"from": value}, "body.from") for value in (
            "v@e.org", "Shop <mail@shop.example>, v@e.org",
        )),
    ],
    ids=ascii,
)  # fmt: skip
def test_a_body_that_could_never_be_sent_names_its_field(
    body: Mapping[str, Any], field: str
) -> None:
    with pytest.raises(InvalidDraft) as caught:
        check_mail("ada@example.org", body)
    assert caught.value.field == field
    assert "v@e.org" not in str(caught.value)
    with pytest.raises(InvalidDraft):
        compose(an_email(body=body), sender=SENDER, now=NOW)


def read(mail: Mail) -> email.message.EmailMessage:
    parsed = email.message_from_bytes(mail.content, policy=email.policy.default)
    assert isinstance(parsed, email.message.EmailMessage)
    return parsed


def test_a_mail_has_all_that_its_body_says() -> None:
    body = {
        "subject": "Grüße 👨‍👩‍👧", "text": "hé\n.\n..x\r\n.", "html": "<p>hé</p>",
        "reply_to": "help@shop.example", "headers": {"X-Campaign": "nine"},
        "attachments": [
            {"filename": "Größe 1.pdf", "content": BASE64, "type": "application/pdf"},
            {"filename": "a.csv", "content": "YSxiCg==", "type": "text/csv"},
            {"filename": "raw", "content": ""},
        ],
    }  # fmt: skip
    sent = an_email("ada@example.org", body)
    parsed = read(compose(sent, sender=SENDER, now=NOW))
    assert {name: parsed[name] for name in parsed if not name.startswith(("Content", "MIME"))} == {
        "From": "Shop <mail@shop.example>", "To": "ada@example.org",
        "Reply-To": "help@shop.example", "Date": "Sat, 21 Nov 2026 09:30:00 +0000",
        "Message-ID": f"<{sent.id}@shop.example>", "Subject": "Grüße 👨‍👩‍👧", "X-Campaign": "nine",
    }  # fmt: skip
    plain, rich = parsed.get_body(("plain",)), parsed.get_body(("html",))
    assert plain is not None
    assert rich is not None
    assert plain.get_content() == "hé\r\n.\r\n..x\r\n.\r\n"
    assert rich.get_content() == "<p>hé</p>\r\n"
    parts = [
        (part.get_filename(), part.get_content_type(), part.get_payload(decode=True))
        for part in parsed.iter_attachments()
    ]
    assert parts == [
        ("Größe 1.pdf", "application/pdf", b"%PDF"),
        ("a.csv", "text/csv", b"a,b\n"),
        ("raw", "application/octet-stream", b""),
    ]
    link = f"<https://shop.example/unsubscribe/{'x' * 400}>, <mailto:off@shop.example>"
    mail = compose(
        an_email(body={"html": "<p>x", "headers": {"List-Unsubscribe": link}}),
        sender=SENDER, now=NOW,
    )  # fmt: skip
    parsed = read(mail)
    assert (parsed.get_content_type(), parsed["Subject"]) == ("text/html", None)
    assert f"List-Unsubscribe: {link}\r\n".encode() in mail.content, "it is not taken apart"


@pytest.mark.parametrize(
    ("text", "name", "address"),
    [
        ("mail@shop.example", "", "mail@shop.example"),
        ("Shop <mail@shop.example>", "Shop", "mail@shop.example"),
        ('"Shöp, Inc." <mail@shop.example>', "Shöp, Inc.", "mail@shop.example"),
    ],
)
def test_a_sender_is_read(text: str, name: str, address: str) -> None:
    sender = read_sender(text)
    assert (sender.display_name, sender.addr_spec) == (name, address)
    parsed = read(compose(an_email(), sender=sender, now=NOW))
    assert parsed["From"].addresses[0].display_name == name


def headers_of(content: bytes) -> list[tuple[str, str]]:
    """Read headers without the standard library's parser: unfold, split at the colon."""
    head = content.split(b"\r\n\r\n", 1)[0]
    lines = re.sub(rb"\r\n(?=[ \t])", b"", head).split(b"\r\n")
    pairs = [line.split(b": ", 1) for line in lines]
    return [(name.decode("ascii"), value.decode()) for name, value in pairs]


_MARKS = st.sampled_from("\r\n\0\t ,;:<>@\"'()[]\\.=?\u2028\u2029\x85\u202e")
_HIDDEN = "=?utf-8?q?a=0D=0ABcc:_v=40e.org?="
_PIECES = st.sampled_from(["=?utf-8?q?", "?=", "=0D=0A", "=?utf-8?b?DQpCY2M6?=", "Bcc:", _HIDDEN])
nasty = st.one_of(
    st.text(st.one_of(st.characters(), _MARKS), max_size=60),
    st.lists(st.one_of(_PIECES, _MARKS, st.text(max_size=3)), max_size=8).map("".join),
)
GOOD = {"recipient": "a@b.c", "subject": "s", "text": "t", "more": "m", "filename": "f"}
OURS = {"From", "To", "Date", "Message-ID", "Subject", "MIME-Version", "Content-Type", "X-A"}
PART = {"Content-Type", "Content-Transfer-Encoding", "Content-Disposition", "MIME-Version"}


@settings(max_examples=examples(100), deadline=None)
@given(
    recipient=nasty | nasty.map(lambda text: f"{text}@b.c"),
    subject=nasty,
    text=nasty,
    more=nasty,
    filename=nasty,
)
@example(recipient="a@b.c", subject=_HIDDEN, text=".", more=_HIDDEN, filename=_HIDDEN)
@example(recipient=f"{_HIDDEN}@b.c", subject="=?=", text="", more="?=", filename="=?x?b?=?=")
@example(recipient="a@b.c", subject="a" * 60, text="..", more="x " * 29 + "x", filename="a" * 200)
@example(recipient="ö@b.c", subject="ö" * 99, text="ö", more="ö" * 99, filename="ö" * 99)
def test_nothing_that_anybody_writes_makes_another_header_or_recipient(**asked: str) -> None:
    for name, value in asked.copy().items():
        try:
            check_mail(*_parts(**GOOD | {name: value}))
        except InvalidDraft:
            with pytest.raises(InvalidDraft):
                compose(an_email(*_parts(**asked)), sender=SENDER, now=NOW)
            asked[name] = GOOD[name]
    mail = compose(an_email(*_parts(**asked)), sender=SENDER, now=NOW)
    headers = headers_of(mail.content)
    assert {name for name, _ in headers} == OURS
    assert len(headers) == len(OURS)
    given_back = dict(headers)
    assert given_back["To"] == mail.recipient == asked["recipient"]
    assert str(make_header(decode_header(given_back["Subject"]))) == asked["subject"]
    assert str(make_header(decode_header(given_back["X-A"]))) == asked["more"]
    assert max(map(len, mail.content.split(b"\r\n"))) <= 998
    assert not re.search(rb"(?<!\r)\n|\r(?!\n)|\0", mail.content)
    text, attachment = read(mail).iter_parts()
    assert _lines(text.get_content()) == _lines(asked["text"])
    assert set(attachment.keys()) == PART
    # The standard library's reader takes quotes off, also where they are part of the name.
    assert attachment.get_filename() == unquote(asked["filename"])


def _parts(
    recipient: str, subject: str, text: str, more: str, filename: str
) -> tuple[str, dict[str, Any]]:
    body: dict[str, Any] = {"subject": subject, "text": text, "headers": {"X-A": more}}
    return recipient, body | {"attachments": [{"filename": filename, "content": BASE64}]}


def _lines(text: str) -> list[str]:
    return re.split("\r\n|\r|\n", text.rstrip("\r\n"))

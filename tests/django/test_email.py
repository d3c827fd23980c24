"""The e-mail backend books what Django would send, and refuses what would get lost."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from email import message_from_bytes
from email.header import decode_header, make_header
from email.mime.image import MIMEImage
from email.policy import default
from typing import Any

import pytest
from django.conf import settings
from django.core import mail
from django.core.mail import EmailMessage, EmailMultiAlternatives
from django.db import transaction
from django.test import override_settings

from dispatcher import DispatcherError, InvalidDraft, QuotaExceeded
from dispatcher.django import EmailBackend
from dispatcher.transports import load
from dispatcher.transports.mail import check_mail, compose, read_sender
from dispatcher.transports.smtp import SmtpTransport
from tests.django.conftest import Project

BACKEND = "dispatcher.django.EmailBackend"
pytestmark = [
    pytest.mark.usefixtures("backend"),
    pytest.mark.parametrize("django_url", ["sqlite"], indirect=True),
]


@pytest.fixture
def backend(project: Project) -> Any:
    with override_settings(EMAIL_BACKEND=BACKEND):
        yield


def bodies(project: Project) -> list[Any]:
    return [message.body for message in project.dispatcher.select(oldest_first=True)]


def test_send_mail_books_one_message(project: Project) -> None:
    sent = mail.send_mail("Hi", "Text", None, ["ada@example.org"], html_message="<p>Text</p>")
    assert sent == 1
    [message] = [*project.dispatcher.select()]
    assert message.body == {"subject": "Hi", "text": "Text", "html": "<p>Text</p>"}
    assert (message.channel, message.recipient) == ("email", "ada@example.org")
    check_mail(message.recipient, message.body)
    email = EmailMessage("Hi", "<p>Hi</p>", to=["ada@example.org"])
    email.content_subtype = "html"
    email.send()
    assert bodies(project)[1:] == [{"subject": "Hi", "html": "<p>Hi</p>"}]
    assert mail.get_connection().send_messages([EmailMessage("No recipient", "Text")]) == 0
    assert len(bodies(project)) == 2


@pytest.mark.parametrize(
    ("channel", "options", "minutes"),
    [
        ({}, {}, 0),
        ({"recipient_quotas": ["1/2 minute"]}, {}, 2),
        ({"quotas": ["1/3 minute"]}, {}, 3),
        ({}, {"quotas": None}, 1),
    ],
)
def test_quotas_count_it_where_the_project_sets_some_for_its_channel(
    project: Project, channel: dict[str, Any], options: dict[str, Any], minutes: int
) -> None:
    channels = {"email": {"transport": "memory"} | channel}
    with override_settings(DISPATCHER=settings.DISPATCHER | {"channels": channels}):
        project.dispatcher._app.reconciler.reconcile(settle=timedelta(0))
        for subject in ("newsletter", "reset"):
            connection = mail.get_connection(**options)
            mail.send_mail(subject, "Text", None, ["ada@example.org"], connection=connection)
        first, second = project.dispatcher.select(oldest_first=True)
    waited = second.send_at - first.send_at
    assert timedelta(minutes=minutes) <= waited < timedelta(minutes=minutes, seconds=30)


@pytest.mark.parametrize("inside", [True, False])
def test_all_recipients_are_accepted_or_none(project: Project, inside: bool) -> None:
    project.dispatcher.suppress("grace@example.org")
    to = ["ada@example.org", "grace@example.org"]
    block = transaction.atomic() if inside else nullcontext()
    with block, pytest.raises(InvalidDraft):
        mail.send_mail("Hi", "Text", None, to)
    assert bodies(project) == []
    assert not project.house.all_members()


def test_an_email_with_attachments_and_headers_is_booked(project: Project) -> None:
    email = plain(
        bcc=["grace@example.org"],
        reply_to=["help@shop.example"],
        headers={"List-Unsubscribe": "<https://shop.example/u>"},
    )
    email.attach("bill.txt", "é", "text/plain")
    email.attach("bill.pdf", b"%PDF\xff", "application/pdf")
    assert email.send() == 1
    booked = bodies(project)
    assert len(booked) == 2
    assert booked[0] == {
        "subject": "Hi",
        "text": "Text",
        "to": ["ada@example.org"],
        "reply_to": "help@shop.example",
        "headers": {"List-Unsubscribe": "<https://shop.example/u>"},
        "attachments": [
            {"filename": "bill.txt", "content": "w6k=", "type": "text/plain"},
            {"filename": "bill.pdf", "content": "JVBERv8=", "type": "application/pdf"},
        ],
    }
    check_mail("ada@example.org", booked[0])


SMTP = {"transport": "smtp", "options": {"url": "smtp://127.0.0.1", "from": "news@shop.example"}}


class Signed(EmailMessage):
    def message(self, *, policy: Any = None) -> Any:
        raise NotImplementedError


def inline() -> EmailMessage:
    email = EmailMessage("Hi", "Text", to=["ada@example.org"])
    email.attach(MIMEImage(b"GIF89a", "gif"))
    return email


def related() -> EmailMessage:
    email = EmailMessage("Hi", "Text", to=["ada@example.org"], attachments=[("a.gif", b"", None)])
    vars(email)["mixed_subtype"] = "related"
    return email


def calendar() -> EmailMessage:
    email = EmailMultiAlternatives("Hi", "Text", to=["ada@example.org"])
    email.attach_alternative("BEGIN:VCALENDAR", "text/calendar")
    return email


def plain(**fields: Any) -> EmailMessage:
    return EmailMessage("Hi", "Text", **({"to": ["ada@example.org"]} | fields))


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: plain(to=["Ada <ada@example.org>, grace@example.org"]), "recipient"),
        (lambda: plain(cc=["team: grace@example.org;"]), "recipient"),
        (lambda: plain(bcc=["Ada"]), "recipient"),
        (lambda: plain(from_email="other@shop.example"), "from_email"),
        (lambda: plain(headers={"from": "other@shop.example"}), "from_email"),
        (lambda: plain(headers={"To": "list@shop.example"}), "headers.To"),
        (lambda: plain(reply_to=["a@shop.example", "b@shop.example"]), "reply_to"),
        (lambda: Signed("Hi", "Text", to=["ada@example.org"]), "email"),
        (inline, "attachments"),
        (related, "attachments"),
        (calendar, "alternatives"),
        (lambda: plain(headers={"X-SMTPAPI": "{}"}), "body.headers.X-SMTPAPI"),  # its transport's
    ],
)
def test_an_email_that_a_body_cannot_hold_is_refused_by_field(
    project: Project, make: Callable[[], EmailMessage], field: str
) -> None:
    with override_settings(DISPATCHER=settings.DISPATCHER | {"channels": {"email": SMTP}}):
        with pytest.raises(InvalidDraft) as refused:
            make().send()
        assert refused.value.field == field
        assert bodies(project) == []


def test_each_recipient_gets_what_django_would_send(project: Project) -> None:
    """The headers To and Cc are those that Django writes; quotas count the bare addresses."""
    email = EmailMessage(
        "Hi",
        "Text",
        to=["Ada Lovelace <ada@example.org>", "alan@example.org"],
        cc=['"Hopper, Grace" <grace@example.org>'],
        bcc=["Jürgen <juergen@example.org>"],
    )
    with override_settings(DISPATCHER=settings.DISPATCHER | {"channels": {"email": SMTP}}):
        email.send()
        messages = [*project.dispatcher.select(oldest_first=True)]
    assert {(message.recipient, message.scope) for message in messages} == {
        (f"{name}@example.org",) * 2 for name in ("ada", "alan", "grace", "juergen")
    }
    written = email.message()
    for message in messages:
        shop = read_sender("shop@shop.example")
        senders = frozenset({shop.addr_spec})
        mail_of = compose(message, sender=shop, now=message.send_at, senders=senders)
        assert mail_of.recipient == message.recipient
        parsed = message_from_bytes(mail_of.content, policy=default)
        for name in ("To", "Cc"):
            assert str(parsed[name]) == str(make_header(decode_header(str(written[name]))))
        assert "juergen" not in mail_of.content.decode()


@pytest.mark.parametrize(
    ("sender", "sent_from"),
    [
        (None, None),
        ("news@shop.example", None),
        ("shop@shop.example", "shop@shop.example"),
        ("The shop <SHOP@shop.example>", "The shop <SHOP@shop.example>"),
        ("admin@shop.example", "admin@shop.example"),
        ("webmaster@localhost", None),
    ],
)
def test_the_senders_of_a_project_may_send(
    project: Project, sender: str | None, sent_from: str | None
) -> None:
    """Django's defaults stand for the channel's sender; another address is refused (above)."""
    channels = {"channels": {"email": SMTP}}
    with override_settings(
        DISPATCHER=settings.DISPATCHER | channels,
        DEFAULT_FROM_EMAIL="shop@shop.example" if sender else "webmaster@localhost",
        SERVER_EMAIL="admin@shop.example",
    ):
        plain(from_email=sender).send()
        [message] = project.dispatcher.select()
        assert message.body.get("from") == sent_from
        defaults = project.dispatcher.settings
        smtp = load("email", defaults.channels["email"], defaults)
        assert isinstance(smtp, SmtpTransport)
        own = read_sender("news@shop.example")
        mail_of = compose(message, sender=own, now=message.send_at, senders=smtp._senders)
        assert mail_of.sender == read_sender(sent_from or "news@shop.example").addr_spec


def test_a_silent_failure_is_counted_and_logged(
    project: Project, caplog: pytest.LogCaptureFixture
) -> None:
    project.dispatcher.suppress("grace@example.org")
    with caplog.at_level(logging.WARNING, "dispatcher.django.email"):
        sent = mail.send_mail("Hi", "Text", None, ["grace@example.org"], fail_silently=True)
    assert sent == 0
    assert "Suppressed" in caplog.text
    assert "grace" not in caplog.text


def test_a_connection_has_a_channel_and_the_words_of_a_submit(project: Project) -> None:
    connection = mail.get_connection(
        channel="memory", on_conflict="reject", scope="grace", priority=9
    )
    mail.send_mail("Hi", "Text", None, ["ada@example.org"], connection=connection)
    with pytest.raises(QuotaExceeded):
        mail.send_mail("Hi", "Text", None, ["ada@example.org"], connection=connection)
    [message] = [*project.dispatcher.select()]
    assert (message.channel, message.scope, message.priority) == ("memory", "grace", 9)
    with pytest.raises(TypeError, match="recipient"):
        mail.get_connection(recipient="ada@example.org")
    with pytest.raises(DispatcherError):
        mail.get_connection(username="ada", password="secret")  # noqa: S106 - none


def test_the_backend_takes_what_django_gives_it() -> None:
    """Also the name of a mailer, which Django has since 6.1, and no argument it warns about."""
    mailer: dict[str, Any] = {"alias": "default"} if hasattr(mail, "mailers") else {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        backend = EmailBackend(fail_silently=True, **mailer)
    assert backend.fail_silently
    assert getattr(backend, "alias", None) == mailer.get("alias")

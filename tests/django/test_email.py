"""The e-mail backend books what Django would send, and refuses what would get lost."""

from __future__ import annotations

import base64
import logging
import warnings
from collections.abc import Callable
from contextlib import nullcontext, suppress
from datetime import timedelta
from email.mime.image import MIMEImage
from typing import Any

import pytest
from django.conf import settings
from django.core import mail
from django.core.mail import EmailMessage, EmailMultiAlternatives
from django.db import transaction
from django.test import override_settings

from dispatcher import DispatcherError, InvalidDraft, QuotaExceeded
from dispatcher.django import EmailBackend
from dispatcher.transports.mail import check_mail
from tests.django.conftest import Project

BACKEND = "dispatcher.django.EmailBackend"
pytestmark = pytest.mark.usefixtures("backend")
ON_ONE = pytest.mark.parametrize("django_url", ["sqlite"], indirect=True)


@pytest.fixture
def backend(project: Project) -> Any:
    with override_settings(EMAIL_BACKEND=BACKEND):
        yield


def bodies(project: Project) -> list[Any]:
    return [message.body for message in project.dispatcher.select(oldest_first=True)]


@ON_ONE
def test_send_mail_books_one_message(project: Project) -> None:
    sent = mail.send_mail("Hi", "Text", None, ["ada@example.org"], html_message="<p>Text</p>")
    assert sent == 1
    [message] = [*project.dispatcher.select()]
    assert message.body == {"subject": "Hi", "text": "Text", "html": "<p>Text</p>"}
    assert (message.channel, message.recipient) == ("email", "ada@example.org")
    check_mail(message.recipient, message.body)


@ON_ONE
def test_the_second_waits_for_the_quota(project: Project) -> None:
    for subject in ("first", "second"):
        mail.send_mail(subject, "Text", None, ["ada@example.org"])
    first, second = project.dispatcher.select(oldest_first=True)
    assert second.send_at - first.send_at >= timedelta(minutes=1)


def test_it_is_booked_if_the_transaction_commits(project: Project) -> None:
    with suppress(ZeroDivisionError), transaction.atomic():
        mail.send_mail("Hi", "Text", None, ["ada@example.org"])
        raise ZeroDivisionError
    assert not project.house.all_members()
    with transaction.atomic():
        mail.send_mail("Hi", "Text", None, ["ada@example.org", "grace@example.org"])
        assert bodies(project) == []
    assert len(bodies(project)) == 2


@ON_ONE
@pytest.mark.parametrize("inside", [True, False])
def test_all_recipients_are_accepted_or_none(project: Project, inside: bool) -> None:
    project.dispatcher.suppress("grace@example.org")
    to = ["ada@example.org", "grace@example.org"]
    block = transaction.atomic() if inside else nullcontext()
    with block, pytest.raises(InvalidDraft):
        mail.send_mail("Hi", "Text", None, to)
    assert bodies(project) == []
    assert not project.house.all_members()


@ON_ONE
def test_an_email_with_attachments_and_headers_is_booked(project: Project) -> None:
    email = EmailMultiAlternatives(
        "Hi",
        "Text",
        to=["ada@example.org"],
        bcc=["grace@example.org"],
        reply_to=["help@shop.example"],
        headers={"List-Unsubscribe": "<https://shop.example/u>"},
    )
    email.attach("bill.txt", "é", "text/plain")
    email.attach("bill.pdf", b"%PDF\xff", "application/pdf")
    assert email.send() == 1
    found = bodies(project)
    assert len(found) == 2
    assert found[0] == {
        "subject": "Hi",
        "text": "Text",
        "reply_to": "help@shop.example",
        "headers": {"List-Unsubscribe": "<https://shop.example/u>"},
        "attachments": [
            {
                "filename": "bill.txt",
                "content": base64.b64encode("é".encode()).decode(),
                "type": "text/plain",
            },
            {
                "filename": "bill.pdf",
                "content": base64.b64encode(b"%PDF\xff").decode(),
                "type": "application/pdf",
            },
        ],
    }
    check_mail("ada@example.org", found[0])


@ON_ONE
def test_html_alone_is_html(project: Project) -> None:
    email = EmailMessage("Hi", "<p>Hi</p>", to=["ada@example.org"])
    email.content_subtype = "html"
    email.send()
    assert bodies(project) == [{"subject": "Hi", "html": "<p>Hi</p>"}]


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


def plain(**given: Any) -> EmailMessage:
    return EmailMessage("Hi", "Text", **({"to": ["ada@example.org"]} | given))


@ON_ONE
@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: plain(to=["Ada <ada@example.org>"]), "recipient"),
        (lambda: plain(bcc=["Ada <ada@example.org>"]), "recipient"),
        (lambda: plain(cc=["grace@example.org"]), "cc"),
        (lambda: plain(from_email="other@shop.example"), "from_email"),
        (lambda: plain(headers={"from": "other@shop.example"}), "from_email"),
        (lambda: plain(headers={"To": "list@shop.example"}), "headers.To"),
        (lambda: plain(reply_to=["a@shop.example", "b@shop.example"]), "reply_to"),
        (lambda: Signed("Hi", "Text", to=["ada@example.org"]), "email"),
        (inline, "attachments"),
        (related, "attachments"),
        (calendar, "alternatives"),
    ],
)
def test_an_email_that_a_body_cannot_hold_is_refused_by_field(
    project: Project, make: Callable[[], EmailMessage], field: str
) -> None:
    with pytest.raises(InvalidDraft) as refused:
        make().send()
    assert refused.value.field == field
    assert bodies(project) == []


@ON_ONE
def test_an_email_that_its_transport_refuses_is_not_booked(
    project: Project,
) -> None:
    smtp = {"transport": "smtp", "options": {"host": "127.0.0.1", "from": "shop@shop.example"}}
    given = {"channels": {"email": smtp}}
    with override_settings(DISPATCHER=settings.DISPATCHER | given):
        mail.send_mail("Hi", "Text", None, ["ada@example.org"])
        with pytest.raises(InvalidDraft):
            mail.send_mail("Hi", "Text", None, ["Ada <ada@example.org>"])
        with pytest.raises(InvalidDraft):
            mail.send_mail("Hi", "Text", "Shop <shop@shop.example>", ["ada@example.org"])


@ON_ONE
def test_a_silent_failure_is_counted_and_logged(
    project: Project, caplog: pytest.LogCaptureFixture
) -> None:
    project.dispatcher.suppress("grace@example.org")
    with caplog.at_level(logging.WARNING, "dispatcher.django.email"):
        sent = mail.send_mail("Hi", "Text", None, ["grace@example.org"], fail_silently=True)
    assert sent == 0
    assert "Suppressed" in caplog.text
    assert "grace" not in caplog.text


@ON_ONE
def test_a_connection_has_a_channel_and_the_words_of_a_submit(project: Project) -> None:
    connection = mail.get_connection(channel="memory", on_conflict="reject", scope="grace")
    mail.send_mail("Hi", "Text", None, ["ada@example.org"], connection=connection)
    with pytest.raises(QuotaExceeded):
        mail.send_mail("Hi", "Text", None, ["ada@example.org"], connection=connection)
    [message] = [*project.dispatcher.select()]
    assert (message.channel, message.scope) == ("memory", "grace")
    with pytest.raises(TypeError, match="recipient"):
        mail.get_connection(recipient="ada@example.org")
    with pytest.raises(DispatcherError):
        mail.get_connection(username="ada", password="secret")  # noqa: S106 - none


@ON_ONE
def test_no_recipient_no_message(project: Project) -> None:
    assert mail.get_connection().send_messages([EmailMessage("Hi", "Text")]) == 0
    assert bodies(project) == []


def test_the_backend_takes_what_django_gives_it() -> None:
    """Also the name of a mailer, which Django has since 6.1, and no argument it warns about."""
    given: dict[str, Any] = {"alias": "default"} if hasattr(mail, "mailers") else {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        backend = EmailBackend(fail_silently=True, **given)
    assert backend.fail_silently
    assert getattr(backend, "alias", None) == given.get("alias")

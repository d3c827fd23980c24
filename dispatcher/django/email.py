"""An e-mail backend that books instead of sending: ``dispatcher.django.EmailBackend``.

What the body of an e-mail cannot hold is refused, so that nothing gets lost on the way
(``transports/mail.py`` checks the rest).
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import fields
from datetime import timedelta
from typing import Any

from django.conf import global_settings
from django.conf import settings as django_settings
from django.core.mail import EmailMessage
from django.core.mail.backends.base import BaseEmailBackend
from django.db import transaction

from dispatcher.django.project import database_alias, dispatcher, email_channel, senders
from dispatcher.errors import BatchRefused, DispatcherError, InvalidDraft, kind_of, quoted
from dispatcher.message import Draft, Rejection
from dispatcher.transports.mail import read_mailbox, read_sender, read_senders

log = logging.getLogger(__name__)

_OURS = frozenset({"channel", "recipient", "body", "template", "data"})
_OPTIONS = frozenset(field.name for field in fields(Draft)) - _OURS
_KINDS = {"plain": "text", "html": "html"}


class EmailBackend(BaseEmailBackend):
    """Books each e-mail as messages of a channel, one for each recipient, due now.

    It goes out at once, outside quiet hours. No quota counts it, unless its channel has ``quotas``
    or ``recipient_quotas``: then all do, and it goes out at the first slot. Inside
    ``transaction.atomic()`` it is booked if and when that commits. All recipients of an e-mail are
    accepted, or none. ``channel`` is by default ``email_channel`` in ``DISPATCHER``; further
    keywords are those of :meth:`Dispatcher.submit`, as in ``get_connection(quotas=None,
    expire_after=HOUR)``, whose e-mails the quotas of the settings count.
    """

    def __init__(
        self,
        fail_silently: bool = False,
        *,
        username: str | None = None,
        password: str | None = None,
        channel: str | None = None,
        alias: str | None = None,
        **options: Any,
    ) -> None:
        named: dict[str, Any] = {} if alias is None else {"alias": alias}  # from Django 6.1 on
        super().__init__(**named)
        self.fail_silently = fail_silently
        if username or password:
            accepted = "none"
            raise InvalidDraft("username", "given, and the channel's transport logs in", accepted)
        for name in options.keys() - _OPTIONS:
            raise TypeError(f"there is no {name!r}; the keywords are {', '.join(sorted(_OPTIONS))}")
        self._channel = channel
        self._options = {"on_conflict": "shift"} | options

    def send_messages(self, email_messages: Sequence[EmailMessage]) -> int:
        """Book these e-mails; return how many.

        Raises InvalidDraft for what cannot be booked as it is, and as :meth:`Dispatcher.submit`
        does; with ``fail_silently`` such an e-mail is left out, and the log names the error.
        """
        booked = 0
        for email in email_messages:
            try:
                booked += self._book(email)
            except DispatcherError as error:
                if not self.fail_silently:
                    raise
                log.warning("an e-mail was not accepted: %s", type(error).__name__)
        return booked

    def _book(self, email: EmailMessage) -> bool:
        texts = (str(text) for text in (*email.to, *email.cc, *email.bcc) if text)
        # Without display names: quotas count the address.
        recipients = dict.fromkeys(read_mailbox("recipient", text).addr_spec for text in texts)
        channel = self._channel or email_channel()
        options: dict[str, Any] = {
            "channel": channel,
            "body": body_of(email, channel=channel),
        } | self._options
        if "send_at" not in options:
            options.setdefault("send_in", timedelta(0))
        known = dispatcher.settings.channels.get(channel)
        if known is not None and known.without_quotas != "never":
            options.setdefault("quotas", "none")
        has_many = len(recipients) > 1
        if has_many and not dispatcher.joins:
            drafts = [Draft(recipient=recipient, **options) for recipient in recipients]
            results = dispatcher.submit_many(drafts, atomic=True)
            errors = [result.error for result in results if isinstance(result, Rejection)]
            if errors:
                raise next((e for e in errors if not isinstance(e, BatchRefused)), errors[0])
            return True
        alias = database_alias()
        with transaction.atomic(using=alias) if has_many else nullcontext():
            for recipient in recipients:
                dispatcher.submit(recipient=recipient, **options)
        return bool(recipients)


def body_of(email: EmailMessage, *, channel: str) -> dict[str, Any]:
    """Return the body that holds an e-mail of Django's. Raises InvalidDraft where none can."""
    if type(email).message is not EmailMessage.message:
        raise InvalidDraft("email", f"{kind_of(email)} makes its own MIME", "an EmailMessage")
    headers = {str(name): str(value) for name, value in email.extra_headers.items()}
    sender = _sender(_taken(headers, "From") or email.from_email, channel)
    if _taken(headers, "To") is not None:
        raise InvalidDraft("headers.To", "it would name other recipients", "no header To")
    named = _taken(headers, "Reply-To")
    reply_to = [*map(str, email.reply_to)] if named is None else [named]
    if len(reply_to) > 1:
        raise InvalidDraft("reply_to", f"{len(reply_to)} addresses", "one address")
    body: dict[str, Any] = _contents(email) | _named(email)
    if sender is not None:
        body["from"] = sender
    if email.subject:
        body["subject"] = str(email.subject)
    if reply_to:
        body["reply_to"] = reply_to[0]
    if headers:
        body["headers"] = headers
    if email.attachments:
        if getattr(email, "mixed_subtype", "mixed") != "mixed":  # of Django 5
            raise InvalidDraft("attachments", "mixed_subtype is not mixed", "plain attachments")
        body["attachments"] = [_attached(attachment) for attachment in email.attachments]
    return body


def _named(email: EmailMessage) -> dict[str, list[str]]:
    """Return whom the headers To and Cc name, where that is more than the recipient's address."""
    to, cc = ([str(text) for text in texts if text] for texts in (email.to, email.cc))
    alone = not cc and not email.bcc and len(to) == 1
    if alone and not read_mailbox("to", to[0]).display_name:
        return {}
    return {name: texts for name, texts in (("to", to), ("cc", cc)) if texts}


def _contents(email: EmailMessage) -> dict[str, str]:
    key = _KINDS.get(email.content_subtype)
    if key is None:
        raise InvalidDraft("content_subtype", quoted(email.content_subtype), "plain or html")
    contents = {key: str(email.body)}
    for content, kind in getattr(email, "alternatives", None) or ():
        if kind != "text/html" or "html" in contents:
            raise InvalidDraft("alternatives", f"one of {quoted(kind)}", "one of text/html")
        contents["html"] = str(content)
    return contents


def _attached(attachment: Any) -> dict[str, str]:
    if not isinstance(attachment, tuple):
        accepted = "a filename, a content and a media type"
        raise InvalidDraft("attachments", f"{kind_of(attachment)} of its own making", accepted)
    filename, content, kind = attachment
    if isinstance(content, str):
        content = content.encode()
    if not isinstance(content, bytes):
        raise InvalidDraft("attachments", kind_of(content), "bytes or text")
    if not filename:
        raise InvalidDraft("attachments", "one without a filename", "a filename for each")
    part = {"filename": str(filename), "content": base64.b64encode(content).decode()}
    return part | ({"type": str(kind)} if kind else {})


def _taken(headers: dict[str, str], name: str) -> str | None:
    """Take a header out, however its name is written."""
    return next((headers.pop(key) for key in [*headers] if key.lower() == name.lower()), None)


def _sender(text: object, channel: str) -> str | None:
    """Return the ``from`` of the body; None for the channel's own sender. Raises InvalidDraft.

    That is its option ``from``, else ``DEFAULT_FROM_EMAIL``; senders that a project has not set,
    such as webmaster@localhost, stand for it.
    """
    known = dispatcher.settings.channels.get(channel)
    options = {} if known is None else known.options
    own = str(options.get("from", django_settings.DEFAULT_FROM_EMAIL))
    if str(text) in (own, global_settings.DEFAULT_FROM_EMAIL, global_settings.SERVER_EMAIL):
        return None
    allowed = read_senders([own, *options.get("senders", senders())])
    if read_sender(str(text), "from_email").addr_spec.lower() not in allowed:
        others = (
            "its options.senders" if "senders" in options else "DEFAULT_FROM_EMAIL, SERVER_EMAIL"
        )
        accepted = f"the channel's options.from, or one of {others}"
        raise InvalidDraft("from_email", "is no sender of the channel", accepted)
    return str(text)

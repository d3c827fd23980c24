"""Hands messages to the services that Apprise knows: Slack, Telegram, Twilio, SES and others."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Annotated, Any, Final, Literal
from urllib.parse import quote

from apprise import Apprise, AppriseAsset, NotifyBase
from apprise.result import AppriseResult, AppriseResultStatus
from pydantic import Field

from dispatcher.errors import (
    InvalidDraft,
    InvalidSettings,
    PerhapsSent,
    PermanentFailure,
    TemporaryFailure,
)
from dispatcher.message import Body, Message, check_text
from dispatcher.transports.base import Texts, checked

PLACEHOLDER: Final = "{recipient}"
_AUTHORITY = re.compile(r"[a-zA-Z0-9]+://[^/?#]*")
_RECIPIENT = re.compile(r"(?=.*[A-Za-z0-9])(?!.*\.\.)[A-Za-z0-9@._+#:!=-]+")
_RECIPIENT_ACCEPTED = "letters, digits and @ . _ + # : ! = -, without two dots in a row"
_NEUTRAL = "4915112345678"
_MARKUP = frozenset("<>&")
_MOST_LEFT = 64
"""How many sends that hang may be left running before no other is begun."""
_SHARE_OF_TIMEOUT = 0.95
_LIBRARIES = (
    "apprise", "gntp", "oauthlib", "paho", "pika", "requests", "requests_oauthlib", "slixmpp",
    "smpplib", "urllib3",
)  # fmt: skip

Format = Literal["text", "markdown", "html"]


class AppriseTransport:
    """Gives each message to the services that the settings name by their Apprise URLs.

    The URLs hold secrets, so no error and no log shows them. docs/transports.md says what each
    option means. Raises ValueError.
    """

    @checked
    def __init__(
        self,
        *,
        urls: Annotated[Texts, Field(min_length=1)],
        format: Format = "text",  # noqa: A002 - a user's word
        timeout: float = 10.0,
    ) -> None:
        self._format = format
        self._seconds = timeout * _SHARE_OF_TIMEOUT
        self._left = threading.BoundedSemaphore(_MOST_LEFT)
        self._asset = AppriseAsset(
            allow_templates=False,
            async_mode=False,
            http_redirects=False,
            pem_autogen=False,
            pgp_autogen=False,
            secure_logging=True,
            service_timeout=0,  # ours bounds the whole send
            storage_mode="memory",
        )
        self._urls = [self._checked(number, url) for number, url in enumerate(urls)]

    @classmethod
    def check(cls, recipient: str, body: Body, options: Mapping[str, Any] | None = None) -> None:
        """Refuse a body with other keys or no text, a recipient that fits no URL: InvalidDraft."""
        _title_and_text(body, (options or {}).get("format"))
        urls = (options or {}).get("urls")
        if isinstance(urls, list | tuple) and any(PLACEHOLDER in str(url) for url in urls):
            _check_recipient(recipient)

    def send(self, message: Message) -> str | None:
        """Give ``message`` to every service; return which they are.

        Raises PerhapsSent when one of them did not take it, or they did not end in time: Apprise
        does not tell a refusal from a line that broke.
        """
        try:
            title, text = _title_and_text(message.body, self._format)
            if any(PLACEHOLDER in url for url in self._urls):
                _check_recipient(message.recipient)
        except InvalidDraft as refused:
            raise PermanentFailure(str(refused)) from None
        result = self._in_time(lambda: self._notify(message.recipient, title, text))
        if result.status is AppriseResultStatus.SUCCESS:
            return ", ".join(service.name for service in result)
        raise PerhapsSent(f"{result.success_count} of {len(self._urls)} services took it")

    def _notify(self, recipient: str, title: str, text: str) -> AppriseResult:
        """Notify with services of its own: Apprise's keep threads from using one together."""
        services = Apprise(asset=self._asset)
        for url in self._urls:
            service = self._service(url, recipient)
            if service is None:
                raise PermanentFailure("a service does not take this recipient")
            services.add(service)
        return services.notify(body=text, title=title, body_format=self._format)

    def _service(self, url: str, recipient: str) -> NotifyBase | None:
        filled = url.replace(PLACEHOLDER, quote(recipient, safe=""))
        service = Apprise.instantiate(filled, asset=self._asset)
        if service is not None:
            for name in ("socket_connect_timeout", "socket_read_timeout"):
                setattr(service, name, min(getattr(service, name), self._seconds))
        return service

    def _checked(self, number: int, url: str) -> str:
        """Return a URL that Apprise can read. No error quotes it: it holds a secret."""
        field = f"urls.{number}"
        authority = _AUTHORITY.match(url)
        if authority is None or PLACEHOLDER in authority[0]:
            accepted = f"schema://host/…, with {PLACEHOLDER} behind the host only"
            raise InvalidSettings(field, "no scheme and host before the placeholder", accepted)
        with quiet():
            service = self._service(url, _NEUTRAL)
        if service is None:
            raise InvalidSettings(field, "Apprise cannot use it", "a URL of one of its services")
        return url

    def _in_time(self, notify: Callable[[], AppriseResult]) -> AppriseResult:
        """Call ``notify`` in a thread, which is left to itself: a service that drips never ends."""
        if not self._left.acquire(blocking=False):
            raise TemporaryFailure(f"{_MOST_LEFT} earlier sends have not ended")
        result: Future[AppriseResult] = Future()

        def work() -> None:
            try:
                with quiet():
                    result.set_result(notify())
            except Exception as error:  # noqa: BLE001 - a plug-in may raise anything
                result.set_exception(error)
            finally:
                self._left.release()

        thread = threading.Thread(target=work, name="dispatcher-apprise", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            self._left.release()
            raise TemporaryFailure("the system gave no further thread") from None
        try:
            return result.result(self._seconds)
        except PermanentFailure:
            raise
        except TimeoutError:
            raise PerhapsSent("the services did not end in time") from None
        except Exception as error:  # noqa: BLE001 - its text may quote anything
            raise PerhapsSent(f"Apprise raised {type(error).__name__}") from None


def _title_and_text(body: Body, written_in: object) -> tuple[str, str]:
    """Return both. HTML stands under ``html``, so that templates escape it. Raises InvalidDraft."""
    is_html = isinstance(written_in, str) and written_in == "html"
    key = "html" if is_html else "text"
    accepted = f'an object with "{key}" and, if need be, "title"'
    others = sorted(body.keys() - {key, "title"})
    if others:
        raise InvalidDraft(f"body.{others[0][:40]}", "unknown", accepted)
    title, text = body.get("title", ""), body.get(key)
    if not isinstance(text, str) or not text.strip():
        raise InvalidDraft(f"body.{key}", "no text", accepted)
    if title != "":
        check_text("body.title", title)
        if is_html and not _MARKUP.isdisjoint(title):  # some services put it into the page
            raise InvalidDraft("body.title", "it has <, > or &", "a title without them")
    return title, text


def _check_recipient(recipient: str) -> None:
    """Refuse what could become several recipients, or another path of the service's."""
    if not _RECIPIENT.fullmatch(recipient):
        raise InvalidDraft("recipient", "has a character not allowed here", _RECIPIENT_ACCEPTED)


_quiet = threading.local()


def _may_write(_: logging.LogRecord) -> bool:
    return not getattr(_quiet, "is_on", False)


@contextmanager
def quiet(libraries: Collection[str] = _LIBRARIES) -> Iterator[None]:
    """Let this thread write nothing to the loggers of these libraries. Other threads do.

    At DEBUG they write headers and URLs, some of them the message. Some are imported at need.
    """
    for name in [*libraries, *logging.root.manager.loggerDict]:
        if name.split(".")[0] in libraries:
            logging.getLogger(name).addFilter(_may_write)  # once, however often
    _quiet.is_on = True
    try:
        yield
    finally:
        _quiet.is_on = False

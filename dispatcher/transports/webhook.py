"""Posts messages to URLs, signed after the Standard Webhooks specification, with its library."""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Literal
from urllib.parse import urlsplit

from standardwebhooks import Webhook

from dispatcher.errors import (
    InvalidDraft,
    InvalidSettings,
    InvalidValue,
    PerhapsSent,
    PermanentFailure,
    TemporaryFailure,
    kind_of,
    quoted,
)
from dispatcher.message import Body, Message, dump_json
from dispatcher.times.clock import Clock, SystemClock
from dispatcher.times.send_time import as_text
from dispatcher.transports.connections import Deadline, IdleConnections, resolve, silence
from dispatcher.transports.webhook_connection import (
    HttpAnswer,
    Resolve,
    WebhookConnection,
    tls_context,
)
from dispatcher.transports.webhook_urls import Addresses, LoopbackAddresses, Reader, Target

PAYLOAD_VERSION = 1
_SHARE_OF_TIMEOUT = 0.95
"""What a request may take of the timeout; the rest is for what lies around it."""
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE = re.compile(r"[!-~]([ -~]*[!-~])?")
_OURS = {
    "accept-encoding", "connection", "content-length", "content-type", "expect", "host",
    "idempotency-key", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding",
    "upgrade", "webhook-id", "webhook-signature", "webhook-timestamp",
}  # fmt: skip
_KEEP_SECONDS = 4.0
"""How long an idle connection is kept: less than the 5 s after which many servers end theirs."""
_KEEP = 64
_TALKATIVE = "httpcore"
"""A library that writes hosts, paths and headers at DEBUG."""
LONGEST_WAIT = timedelta(days=1)
"""Longest wait that a server may ask for: a date in the wrong year stops nothing for a year."""
_ASKS_TO_WAIT = (403, 429, 503)
_TEMPORARY = (408, 425, 429)
_UNAUTHORIZED = 401
_REFUSED = "it does not know the channel's credentials"
_UNTIL_MENDED = timedelta(minutes=1)
"""How long a channel rests after its credentials were refused."""
_OF_GATEWAYS = {502, 504, *range(520, 525)}
"""A proxy had no answer, or none that it understands, from the server behind it; those from 520 on
are Cloudflare's. That server may have the message."""
_REQUEST_IDS = ("x-request-id", "request-id", "x-correlation-id", "x-amzn-requestid", "cf-ray")
_LONGEST_ID = 100
_SECONDS = re.compile(r"[0-9]{1,9}")
_PREFIX = "whsec_"
_SHORTEST_KEY, _LONGEST_KEY = 24, 64
_ACCEPTED = (
    f"{_PREFIX} and {_SHORTEST_KEY} to {_LONGEST_KEY} random bytes in base64, "
    "one for each key that receivers may hold"
)


class WebhookTransport:
    """Posts each message to the URL that is its recipient, or all to the ``url`` of the channel.

    ``url``: where all go; the recipient is data of the payload then. It may name this machine, as
    ``localhost`` or by a loopback address, also with ``http://``: a caller cannot set it.
    ``secrets``: signs after Standard Webhooks, once with each (``whsec_…``). ``payload``:
    ``message``, an object with version, id, channel, recipient, body, send_at and attempt, or
    ``body``, the body alone. ``headers``: sent along, only with ``url``.

    ``allow``: networks, addresses and names that may be reached although they are not public.
    ``http``: whether URLs without TLS are taken. ``ports``: those taken beside the scheme's own.
    ``ca_file``: authorities to trust instead of the known ones. ``timeout``: seconds for all of a
    send. Raises InvalidSettings.
    """

    def __init__(
        self,
        *,
        url: str | None = None,
        secrets: Sequence[str] = (),
        payload: Literal["message", "body"] = "message",
        headers: Mapping[str, str] | None = None,
        allow: Collection[str] = (),
        http: bool = False,
        ports: Collection[int] = (),
        ca_file: str | None = None,
        timeout: float = 10.0,
        clock: Clock | None = None,
        resolver: Resolve = resolve,
    ) -> None:
        if not isinstance(payload, str) or payload not in ("message", "body"):
            raise InvalidSettings("payload", quoted(payload), "message or body")
        self._clock = clock or SystemClock()
        self._seconds = timeout * _SHARE_OF_TIMEOUT
        self._payload = payload
        if not isinstance(secrets, list | tuple):
            raise InvalidSettings("secrets", kind_of(secrets), "a list")
        self._keys = [_key(secret) for secret in secrets]
        own = {} if headers is None else headers
        self._headers = {"user-agent": "dispatcher"} | _checked(own, url is not None)
        self._addresses = Addresses(allow)
        self._reader = Reader(self._addresses, http=http, ports=ports)
        self._target = None if url is None else self._fixed(url, http)
        self._tls = tls_context(ca_file)
        self._resolver = resolver
        self._idle: IdleConnections[WebhookConnection] = IdleConnections(
            self._clock, WebhookConnection.end, seconds=_KEEP_SECONDS, most=_KEEP
        )
        silence(_TALKATIVE)

    @classmethod
    def check(cls, recipient: str, body: Body, options: Mapping[str, Any] | None = None) -> None:
        """Refuse a recipient that is no URL this channel could post to. Nothing is resolved.

        ``options`` are those of the channel; with a ``url`` any recipient will do. Raises
        InvalidDraft.
        """
        del body
        given = options or {}
        if given.get("url") is not None:
            return
        try:
            addresses = Addresses(given.get("allow", ()))
            reader = Reader(addresses, http=given.get("http", False), ports=given.get("ports", ()))
        except InvalidSettings:
            return  # the worker says so when it starts
        try:
            reader.read(recipient)
        except InvalidValue as refused:
            raise InvalidDraft("recipient", refused.problem, refused.accepted) from None

    def destination(self, message: Message) -> str | None:
        """Name the host that ``message`` is posted to; None where all go to one URL."""
        if self._target is not None:
            return None
        try:
            return self._reader.read(message.recipient).host
        except InvalidValue:
            return None

    def send(self, message: Message) -> str | None:
        """Post ``message``; return the status, and the request's id where the server names one."""
        receiver = None if self._target else message.recipient
        try:
            target = self._target or self._reader.read(message.recipient)
        except InvalidValue as refused:
            raise PermanentFailure(f"the URL is refused: {refused.problem}") from None
        content = self._content(message)
        now = self._clock.now()
        message_id = str(message.id)
        headers = {
            "Content-Type": "application/json",
            "Content-Length": str(len(content)),
            "Accept-Encoding": "identity",
            **self._headers,
            "Idempotency-Key": message_id,
            "webhook-id": message_id,
            "webhook-timestamp": str(int(now.timestamp())),
        }
        if self._keys:
            # Signed with each key, so that receivers can change from one to the next.
            text = content.decode()
            keys = [key if receiver is None else _derived(key, receiver) for key in self._keys]
            signatures = [Webhook(key).sign(message_id, now, text) for key in keys]
            headers["webhook-signature"] = " ".join(signatures)
        answer = self._post(target, headers, content)
        return receipt_of(answer, now=self._clock.now(), closes_channel=receiver is None)

    def close(self) -> None:
        """End the connections that are kept."""
        self._idle.close()

    def _fixed(self, url: object, http: bool) -> Target:
        """Return the target of the channel's URL, by the addresses that it may have."""
        if not isinstance(url, str):
            raise InvalidSettings("url", kind_of(url), "a URL")
        with suppress(ValueError):  # it is read, and refused, below
            if LoopbackAddresses().names(urlsplit(url).hostname or ""):
                self._addresses, http = LoopbackAddresses(), True
        try:
            return Reader(self._addresses, http=http, any_port=True).read(url)
        except InvalidValue as refused:
            raise InvalidSettings("url", refused.problem, refused.accepted) from None

    def _content(self, message: Message) -> bytes:
        if self._payload == "body":
            return dump_json(message.body).encode()
        return dump_json(
            {
                "version": PAYLOAD_VERSION,
                "id": str(message.id),
                "channel": message.channel,
                "recipient": message.recipient,
                "body": message.body,
                "send_at": as_text(message.send_at),
                "attempt": message.attempt_count,
            }
        ).encode()

    def _post(self, target: Target, headers: Mapping[str, str], content: bytes) -> HttpAnswer:
        deadline = Deadline(self._clock, self._seconds)
        key = (target.scheme, target.host, target.port)
        connection = self._idle.take(key)
        while connection is not None and not connection.can_follow():
            connection.end()
            connection = self._idle.take(key)
        if connection is None:
            connection = WebhookConnection(target, self._addresses, self._tls, self._resolver)
        try:
            return connection.post(target, headers, content, deadline)
        finally:
            if connection.can_follow():
                self._idle.give(connection, key)
            else:
                connection.end()


def _checked(headers: object, has_url: bool) -> dict[str, str]:
    if not isinstance(headers, Mapping):
        raise InvalidSettings("headers", kind_of(headers), "names with their values")
    if headers and not has_url:
        problem = "given without url, so any recipient would see them"
        raise InvalidSettings("headers", problem, "no headers, or the option url")
    for name, value in headers.items():
        if not isinstance(name, str) or not _HEADER.fullmatch(name):
            problem = f"{quoted(name)} is no name of a header"
            raise InvalidSettings("headers", problem, "letters and -")
        if name.lower() in _OURS:
            raise InvalidSettings("headers", f"{name} is set for each request", "others")
        if not isinstance(value, str) or not _HEADER_VALUE.fullmatch(value):
            raise InvalidSettings("headers", f"{name} is no printable text", "ASCII on one line")
    return {name.lower(): value for name, value in headers.items()}


def receipt_of(answer: HttpAnswer, *, now: datetime, closes_channel: bool) -> str:
    """Return the receipt of a message that was taken: the status, and an id of the request.

    Raises PermanentFailure, TemporaryFailure or PerhapsSent. ``closes_channel``: whether there is
    one server for the whole channel, so that a wait it asks for, or credentials it refuses, are
    those of all messages. No text quotes the answer, which may quote the message.
    """
    status = answer.status
    unread = "" if answer.is_whole else ", with headers that cannot be read"
    if 200 <= status < 300:  # noqa: PLR2004 - RFC 9110: successful
        named = (
            f" {name}={answer.headers[name][:_LONGEST_ID]}"
            for name in _REQUEST_IDS
            if answer.headers.get(name)
        )
        return f"{status}{next(named, unread)}"
    said = f"the server answered {status}{unread}"
    if 300 <= status < 400:  # noqa: PLR2004 - redirection
        raise PermanentFailure(f"{said}, a redirect; none is followed: give the final URL")
    if status in _OF_GATEWAYS:
        raise PerhapsSent(f"{said}: a gateway, whose server may have the message")
    wait = _wait(answer.headers.get("retry-after"), now) if status in _ASKS_TO_WAIT else None
    if wait is not None or status in _TEMPORARY or 500 <= status < 600:  # noqa: PLR2004 - server error
        closes = closes_channel and wait is not None
        raise TemporaryFailure(said, wait, closes_channel=closes)
    if status == _UNAUTHORIZED and closes_channel:
        raise TemporaryFailure(f"{said}: {_REFUSED}", _UNTIL_MENDED, closes_channel=True)
    if 400 <= status < 500:  # noqa: PLR2004 - client error
        raise PermanentFailure(said)
    raise PerhapsSent(f"{said}, which is no answer to a request")


def _wait(text: str | None, now: datetime) -> timedelta | None:
    """Return the wait that Retry-After asks for: seconds, or the date of its end."""
    if text is None:
        return None
    if _SECONDS.fullmatch(text.strip()):
        wait = timedelta(seconds=int(text))
    else:
        try:
            until = parsedate_to_datetime(text)
        except (ValueError, OverflowError):
            return None
        wait = (until if until.tzinfo else until.replace(tzinfo=UTC)) - now
    return min(max(wait, timedelta(0)), LONGEST_WAIT)


def receiver_secret(secret: str, url: str) -> str:
    """Return what the receiver at ``url`` verifies with, where a channel has many receivers.

    ``secret`` is one of the channel's. None of them can sign for another. Raises InvalidSettings.
    """
    return _PREFIX + base64.b64encode(_derived(_key(secret), url)).decode()


def _derived(key: bytes, url: str) -> bytes:
    return hmac.digest(key, url.encode(), "sha256")


def _key(secret: object) -> bytes:
    if not isinstance(secret, str) or not secret.startswith(_PREFIX):
        raise InvalidSettings("secrets", f"one does not begin with {_PREFIX}", _ACCEPTED)
    text = secret.removeprefix(_PREFIX)
    try:
        key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidSettings("secrets", "one is not in base64", _ACCEPTED) from None
    if not _SHORTEST_KEY <= len(key) <= _LONGEST_KEY:
        raise InvalidSettings("secrets", f"one holds {len(key)} bytes", _ACCEPTED)
    return key

"""Posts messages to URLs, signed after the Standard Webhooks specification, with its library.

A connection goes to judged addresses only, and no request lasts past its deadline.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import io
import re
import select
import socket
import ssl
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from http.client import HTTPResponse
from typing import Annotated, Any, Literal, cast
from urllib.parse import urlsplit

import certifi
from pydantic import Field, GetPydanticSchema, StrictBool
from standardwebhooks import Webhook

from dispatcher.errors import (
    InvalidDraft,
    InvalidSettings,
    InvalidValue,
    PerhapsSent,
    PermanentFailure,
    TemporaryFailure,
    quoted,
)
from dispatcher.message import Body, Message, dump_json
from dispatcher.times.clock import Clock, SystemClock
from dispatcher.times.send_time import as_text
from dispatcher.transports.base import Texts, checked
from dispatcher.transports.connections import Deadline, IdleConnections, connect, resolve
from dispatcher.transports.webhook_urls import (
    LAST_PORT,
    Addresses,
    LoopbackAddresses,
    Origin,
    Reader,
    Target,
)

PAYLOAD_VERSION = 1
_SHARE_OF_TIMEOUT = 0.95
"""The part of the timeout that a request may take; the rest is for the work around it."""
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+: [!-~]([ -~]*[!-~])?")
_KEEP_SECONDS = 4.0
"""How long an idle connection is kept: less than the 5 s after which many servers end theirs."""
_KEEP = 64
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
_LOWEST_FINAL = 200
"""An answer with a lower status only informs, and another one follows."""
_VERSIONS = (10, 11)
"""Versions of HTTP that an answer may have, as ``http.client`` numbers them."""
_MOST_BYTES = 64 * 1024
"""How much of an answer is read."""
_REST_BYTES, _REST_SECONDS = 16 * 1024, 0.5
"""How much of its body is read, and for how long, so that its connection can be used again."""
_FOR_ANOTHER = (62, 64)  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
Resolve = Callable[[str, int], list[str]]
_Port = Annotated[int, Field(strict=True, ge=1, le=LAST_PORT)]
_Ports = Annotated[Collection[int], GetPydanticSchema(lambda _, read: read(list[_Port]))]


class WebhookTransport:
    """Posts each message to the URL that is its recipient, or all to the ``url`` of the channel.

    docs/transports.md says what each option means. Raises ValueError.
    """

    @checked
    def __init__(
        self,
        *,
        url: str | None = None,
        secrets: Texts = (),
        payload: Literal["message", "body"] = "message",
        headers: Mapping[str, str] | None = None,
        allow: Texts = (),
        http: StrictBool = False,
        ports: _Ports = (),
        ca_file: str | None = None,
        timeout: float = 10.0,
        clock: Clock | None = None,
        resolver: Resolve = resolve,
    ) -> None:
        self._clock = clock or SystemClock()
        self._seconds = timeout * _SHARE_OF_TIMEOUT
        self._payload = payload
        self._keys = [_key(secret) for secret in secrets]
        own = _read_headers(headers or {}, has_url=url is not None)
        self._headers = {"user-agent": "dispatcher"} | own
        self._addresses = Addresses(allow)
        self._reader = Reader(self._addresses, http=http, ports=ports)
        self._target = None if url is None else self._fixed(url, http)
        self._tls = tls_context(ca_file)
        self._resolve = resolver
        self._idle: IdleConnections[_Connection] = IdleConnections(
            self._clock, _Connection.close, _KEEP_SECONDS, _KEEP
        )
        self.close = self._idle.close

    @classmethod
    def check(cls, recipient: str, body: Body, options: Mapping[str, Any] | None = None) -> None:
        """Refuse a recipient that is no URL this channel could post to. Nothing is resolved.

        With a ``url`` any recipient will do. Raises InvalidDraft.
        """
        del body
        options = options or {}
        if options.get("url") is not None:
            return
        try:
            addresses = Addresses(options.get("allow", ()))
            http, ports = options.get("http", False), options.get("ports", ())
            Reader(addresses, http=http, ports=ports).read(recipient)
        except (InvalidSettings, TypeError, AttributeError):
            return  # the worker says so when it starts
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
        headers = self._headers | {
            "host": target.authority,
            "content-type": "application/json",
            "content-length": str(len(content)),
            "accept-encoding": "identity",
            "idempotency-key": message_id,
            "webhook-id": message_id,
            "webhook-timestamp": str(int(now.timestamp())),
        }
        if self._keys:
            # Signed with each key, so that receivers can change from one to the next.
            text = content.decode()
            keys = [key if receiver is None else _derived(key, receiver) for key in self._keys]
            signatures = [Webhook(key).sign(message_id, now, text) for key in keys]
            headers["webhook-signature"] = " ".join(signatures)
        status, answered = self._post(target, headers, content)
        return receipt_of(status, answered, now=self._clock.now(), closes_channel=receiver is None)

    def _fixed(self, url: str, http: bool) -> Target:
        """Return the target of the channel's URL, by the addresses that it may have."""
        with suppress(ValueError):  # it is read, and refused, below
            if LoopbackAddresses().names(urlsplit(url).hostname or ""):
                self._addresses, http = LoopbackAddresses(), True
        return Reader(self._addresses, http=http, any_port=True).read(url)

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

    def _post(
        self, target: Target, headers: Mapping[str, str], content: bytes
    ) -> tuple[int, Mapping[str, str]]:
        """Return the status and the headers of the answer. No error names the URL or is chained."""
        head = [f"POST {target.path} HTTP/1.1", *(f"{name}: {headers[name]}" for name in headers)]
        deadline = Deadline(self._clock, self._seconds)
        connection = self._connection_to(target, deadline)
        try:
            return connection.post("\r\n".join([*head, "", ""]).encode() + content, deadline)
        finally:
            (self._idle.give if connection.is_reusable else _Connection.close)(connection)

    def _connection_to(self, target: Target, deadline: Deadline) -> _Connection:
        while connection := self._idle.take(lambda idle: idle.origin == target.origin):
            if not connection.has_unasked:
                return connection
            connection.close()
        return _Connection(target.origin, self._connect(target, deadline))

    def _connect(self, target: Target, deadline: Deadline) -> socket.socket:
        """Connect to judged addresses only.

        The name is resolved once, every address it has is judged, and the connection goes to one of
        those: there is no second look that could find something else.
        """
        host, addresses = target.host, self._resolved(target, deadline)
        if not self._addresses.allow_name(host) and not all(map(self._addresses.allow, addresses)):
            raise PermanentFailure("the host has an address that may not be reached")
        try:
            connected = connect(addresses, target.port, deadline)
            if target.scheme == "http":
                return connected
            with connected:  # it closes what did not become an encrypted one
                connected.settimeout(deadline.left())
                return self._tls.wrap_socket(connected, server_hostname=host)
        except (OSError, ValueError) as error:  # a ValueError for a name that it cannot check
            raise TemporaryFailure(_why(error)) from None

    def _resolved(self, target: Target, deadline: Deadline) -> list[str]:
        """Resolve in a thread of its own: the system's resolver has no deadline."""
        answers: list[list[str]] = []

        def ask() -> None:
            with suppress(OSError, UnicodeError):  # the latter for a label that no name can have
                answers.append(self._resolve(target.host, target.port))

        thread = threading.Thread(target=ask, name="dispatcher-resolver", daemon=True)
        thread.start()
        with suppress(TimeoutError):
            thread.join(deadline.left())
        if not answers or not answers[0]:
            raise TemporaryFailure("the host cannot be resolved")
        return answers[0]


def _read_headers(headers: Mapping[str, str], *, has_url: bool) -> dict[str, str]:
    if headers and not has_url:
        problem = "given without url, so any recipient would see them"
        raise InvalidSettings("headers", problem, "no headers, or the option url")
    for name, value in headers.items():
        if not _HEADER.fullmatch(f"{name}: {value}"):
            raise InvalidSettings("headers", f"{quoted(name)} is no header", "one line of ASCII")
    return {name.lower(): value for name, value in headers.items()}


def receipt_of(
    status: int, headers: Mapping[str, str], *, now: datetime, closes_channel: bool
) -> str:
    """Return the receipt of a message that was taken: the status, and an id of the request.

    Raises PermanentFailure, TemporaryFailure or PerhapsSent. ``closes_channel``: whether there is
    one server for the whole channel, so that a wait it asks for, or credentials it refuses, are
    those of all messages. No text quotes the answer, which may quote the message.
    """
    if 200 <= status < 300:  # noqa: PLR2004 - RFC 9110: successful
        ids = ((name, headers.get(name, "")) for name in _REQUEST_IDS)
        named = (f" {name}={id_[:_LONGEST_ID]}" for name, id_ in ids if id_ and id_.isprintable())
        return f"{status}{next(named, '')}"
    said = f"the server answered {status}"
    if 300 <= status < 400:  # noqa: PLR2004 - redirection
        raise PermanentFailure(f"{said}, a redirect; none is followed: give the final URL")
    if status in _OF_GATEWAYS:
        raise PerhapsSent(f"{said}: a gateway, whose server may have the message")
    wait = _wait(headers.get("retry-after"), now) if status in _ASKS_TO_WAIT else None
    if wait is not None or status in _TEMPORARY or 500 <= status < 600:  # noqa: PLR2004 - server error
        closes = closes_channel and wait is not None
        raise TemporaryFailure(said, wait, closes_channel=closes)
    if status == _UNAUTHORIZED and closes_channel:
        raise TemporaryFailure(f"{said}: {_REFUSED}", _UNTIL_MENDED, closes_channel=True)
    if 400 <= status < 500:  # noqa: PLR2004 - client error
        raise PermanentFailure(said)
    raise PerhapsSent(f"{said}, which is no answer to a request")


def _wait(text: str | None, now: datetime) -> timedelta | None:
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


class _Connection(io.RawIOBase):
    """A connection to one origin, whose every operation ends at the deadline of its request.

    It carries one request at a time. Requests that share a connection would share its end, and
    leave as many messages with an unknown outcome as were under way.
    """

    def __init__(self, origin: Origin, sock: socket.socket) -> None:
        self.origin = origin
        self.is_reusable = False
        self._socket = sock
        self._deadline: Deadline
        self._answers: _Answers
        self._most = 0
        """How many bytes of the answer may still be read."""

    @property
    def has_unasked(self) -> bool:
        """Whether an idle server has sent something unasked, or closed the connection."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def post(self, request: bytes, deadline: Deadline) -> tuple[int, Mapping[str, str]]:
        """Send a request; return its answer's status and headers, both until the deadline.

        Once the line with its status has come, that status is the answer, whatever is wrong with
        the rest. Raises TemporaryFailure where nothing was written, else PerhapsSent.
        """
        self._deadline, self._most, self.is_reusable = deadline, _MOST_BYTES, False
        self._answers = _Answers(self)
        self._send(request)
        try:
            while True:
                response = HTTPResponse(cast(Any, self))
                response.begin()
                if response.status >= _LOWEST_FINAL:
                    break
        except Exception as error:  # noqa: BLE001 - a server may answer anything
            status: object = response.status
            is_http = response.version in _VERSIONS
            if is_http and isinstance(status, int) and status >= _LOWEST_FINAL:
                return status, {}
            if isinstance(error, TimeoutError):
                raise PerhapsSent("no answer came in time") from None
            raise PerhapsSent("the connection broke before an answer") from None
        self._read_rest_of(response)
        return response.status, {name.lower(): text for name, text in response.headers.items()}

    def _send(self, request: bytes) -> None:
        rest, is_begun = memoryview(request), False
        try:
            while rest:
                self._socket.settimeout(self._deadline.left())
                is_begun = True
                rest = rest[self._socket.send(rest) :]
        except TimeoutError:
            if is_begun:
                raise PerhapsSent("no answer came in time") from None
            raise TemporaryFailure("the request was not sent: no time was left") from None
        except OSError:
            pass  # a server may answer before it has read everything

    def _read_rest_of(self, response: HTTPResponse) -> None:
        """Read a short answer's rest for the next request's sake: the status has decided by now."""
        self._deadline.shorten(_REST_SECONDS)
        with suppress(Exception):
            response.read(_REST_BYTES)
            is_read = response.isclosed() and not response.will_close
            self.is_reusable = is_read and not self._has_more()

    def _has_more(self) -> bool:
        """Whether more than the answer has come: the next message would take it for its own."""
        self._most = 0
        with suppress(OSError):  # nothing is left, and no more may be read
            return bool(self._answers.peek(1))
        return isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0

    def makefile(self, _: str) -> _Answers:
        return self._answers

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._most <= 0:
            raise OSError("the answer is too long")
        self._socket.settimeout(self._deadline.left())
        read = self._socket.recv_into(memoryview(buffer)[: self._most])
        self._most -= read
        return read

    def close(self) -> None:
        with suppress(OSError):
            self._socket.close()


class _Answers(io.BufferedReader):
    def close(self) -> None:
        """Leave the connection open: an answer that only informs ends before the other."""


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no connection in time"
    if isinstance(error, ssl.SSLCertVerificationError):
        for_another = error.verify_code in _FOR_ANOTHER  # OpenSSL's text names the host
        what = "it is for another name" if for_another else error.verify_message
        return f"the certificate cannot be verified: {what}"
    if isinstance(error, ssl.SSLError):
        return f"no TLS with the server: {error.reason}"
    if isinstance(error, ConnectionRefusedError):
        return "the connection is refused"
    return "the host cannot be reached"


def tls_context(ca_file: str | None) -> ssl.SSLContext:
    """Return what verifies by ``ca_file``, else as the system and certifi do: InvalidSettings."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        if ca_file is None:
            context.load_default_certs()
            context.load_verify_locations(certifi.where())
        else:
            context.load_verify_locations(ca_file)
    except OSError as error:  # ssl.SSLError is one
        raise InvalidSettings("ca_file", str(error), "a readable PEM file") from None
    context.set_alpn_protocols(["http/1.1"])
    return context

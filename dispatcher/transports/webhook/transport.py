"""Posts messages to URLs."""

from __future__ import annotations

import re
import ssl
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import httpcore

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
from dispatcher.transports.webhook.addresses import Addresses
from dispatcher.transports.webhook.answers import receipt_of
from dispatcher.transports.webhook.connections import Answer, Broken, Connections, tls_context
from dispatcher.transports.webhook.signatures import Signer
from dispatcher.transports.webhook.target import LAST_PORT, Reader, Target
from dispatcher.transports.webhook.wire import Forbidden, Resolve, Unresolved, resolve

PAYLOAD_VERSION = 1
_SHARE_OF_TIMEOUT = 0.95
"""What a request may take of the timeout; the rest is for what lies around it."""
_FOR_ANOTHER = (62, 64)  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE = re.compile(r"[!-~]([ -~]*[!-~])?")
_OURS = {
    "accept-encoding", "connection", "content-length", "content-type", "expect", "host",
    "idempotency-key", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding",
    "upgrade", "webhook-id", "webhook-signature", "webhook-timestamp",
}  # fmt: skip


class WebhookTransport:
    """Posts each message to the URL that is its recipient, or all to the ``url`` of the channel.

    ``url``: where all go; the recipient is data of the payload then. ``secrets``: signs after
    Standard Webhooks, once with each (``whsec_…``). ``payload``: ``message``, an object with
    version, id, channel, recipient, body, send_at and attempt, or ``body``, the body alone.
    ``headers``: sent along, only with ``url``.

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
        self._signer = Signer(secrets)
        own = {} if headers is None else _checked(headers, url is not None)
        self._headers = {"user-agent": "dispatcher"} | own
        addresses = Addresses(allow)
        self._reader = _reader(addresses, http, ports)
        self._target = None if url is None else _fixed(url, addresses, http)
        self._connections = Connections(
            addresses, self._clock, tls=_tls(ca_file), resolver=resolver
        )

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
            reader = _reader(addresses, given.get("http", False), given.get("ports", ()))
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
        target = self._target or self._read(message.recipient)
        content = self._content(message)
        now = self._clock.now()
        message_id = str(message.id)
        headers = {
            "Content-Type": "application/json",
            "Content-Length": str(len(content)),
            "Accept-Encoding": "identity",
            **self._headers,
            "Idempotency-Key": message_id,
            **self._signer.headers(message_id, now, content, receiver=receiver),
        }
        answer = self._post(target, headers, content)
        has_url = self._target is not None
        return receipt_of(answer, now=self._clock.now(), closes_channel=has_url)

    def close(self) -> None:
        """End the connections that are kept."""
        self._connections.close()

    def _read(self, url: str) -> Target:
        try:
            return self._reader.read(url)
        except InvalidValue as refused:
            raise PermanentFailure(f"the URL is refused: {refused.problem}") from None

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

    def _post(self, target: Target, headers: Mapping[str, str], content: bytes) -> Answer:
        """Post, and say in our words what went wrong. No error names the URL or is chained."""
        try:
            return self._connections.post(target, headers, content, seconds=self._seconds)
        except Forbidden:
            problem = "the host has an address that may not be reached"
            raise PermanentFailure(problem) from None
        except Unresolved:
            raise TemporaryFailure("the host cannot be resolved") from None
        except Broken as broken:
            timed_out = isinstance(broken.__cause__, httpcore.TimeoutException)
            how = "no answer came in time" if timed_out else "the connection broke before an answer"
            raise PerhapsSent(how) from None
        except httpcore.ConnectTimeout:
            raise TemporaryFailure("no connection in time") from None
        except httpcore.ConnectError as error:
            raise TemporaryFailure(_why(error)) from None
        except Exception as error:  # noqa: BLE001 - nothing was written, whatever it is
            kind = type(error).__name__
            raise TemporaryFailure(f"the request was not sent: {kind}") from None


def _why(error: httpcore.ConnectError) -> str:
    cause = error.__cause__
    if isinstance(cause, ssl.SSLCertVerificationError):
        for_another = cause.verify_code in _FOR_ANOTHER  # OpenSSL's text names the host
        what = "it is for another name" if for_another else cause.verify_message
        return f"the certificate cannot be verified: {what}"
    if isinstance(cause, ssl.SSLError):
        return f"no TLS with the server: {cause.reason}"
    if isinstance(cause, ConnectionRefusedError):
        return "the connection is refused"
    return "the host cannot be reached"


def _reader(addresses: Addresses, http: object, ports: object) -> Reader:
    if not isinstance(http, bool):
        raise InvalidSettings("http", kind_of(http), "true or false")
    accepted = f"a list of whole numbers from 1 to {LAST_PORT}"
    if not isinstance(ports, list | tuple | set | frozenset):
        raise InvalidSettings("ports", kind_of(ports), accepted)
    for each in ports:
        if type(each) is not int or not 1 <= each <= LAST_PORT:
            raise InvalidSettings("ports", f"{quoted(each)} is no port", accepted)
    return Reader(addresses, http=http, ports=ports)


def _fixed(url: object, addresses: Addresses, http: bool) -> Target:
    if not isinstance(url, str):
        raise InvalidSettings("url", kind_of(url), "a URL")
    try:
        return Reader(addresses, http=http, ports=None).read(url)
    except InvalidValue as refused:
        raise InvalidSettings("url", refused.problem, refused.accepted) from None


def _tls(ca_file: object) -> ssl.SSLContext:
    if ca_file is not None and not isinstance(ca_file, str):
        raise InvalidSettings("ca_file", kind_of(ca_file), "the path of a PEM file")
    try:
        return tls_context(ca_file)
    except OSError as error:  # ssl.SSLError is one
        raise InvalidSettings("ca_file", str(error), "a readable PEM file") from None


def _checked(headers: object, has_url: bool) -> dict[str, str]:
    if not isinstance(headers, Mapping):
        raise InvalidSettings("headers", kind_of(headers), "names with their values")
    if headers and not has_url:
        problem = "given without url, so any recipient would see them"
        raise InvalidSettings("headers", problem, "none, or a url")
    for name, value in headers.items():
        if not isinstance(name, str) or not _HEADER.fullmatch(name):
            raise InvalidSettings(
                "headers", f"{quoted(name)} is no name of a header", "letters and -"
            )
        if name.lower() in _OURS:
            raise InvalidSettings("headers", f"{name} is set for each request", "others")
        if not isinstance(value, str) or not _HEADER_VALUE.fullmatch(value):
            raise InvalidSettings("headers", f"{name} is no printable text", "ASCII on one line")
    return {name.lower(): value for name, value in headers.items()}

"""Sends each message as an e-mail to a mail server."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from dispatcher.errors import (
    DeliveryError,
    InvalidDraft,
    InvalidSettings,
    PermanentFailure,
    TemporaryFailure,
    kind_of,
)
from dispatcher.message import Message
from dispatcher.times.clock import Clock, SystemClock
from dispatcher.transports.connections import Deadline, IdleConnections, address_of
from dispatcher.transports.mail import (
    Mail,
    check_mail,
    compose,
    read_allowed,
    read_sender,
    read_senders,
)
from dispatcher.transports.smtp_connection import (
    ConnectionBroken,
    MailServer,
    Security,
    SmtpConnection,
)

_OPTIONS = "url, from, senders, smtputf8, ca_file, plaintext, name, idle_seconds, allow_headers"
_LONGEST_SECONDS = 86_400.0
_PROBE_SECONDS = 5.0
_MOST_CARRIED = 100
"""Messages after which a connection is closed: many servers end one that carries more."""
_SCHEMES: dict[str, tuple[Security, int]] = {
    "smtps": ("tls", 465),
    "smtp+starttls": ("starttls", 587),
    "smtp": ("none", 25),
}
_URLS = "smtps://user:password@host, smtp+starttls://user:password@host, or smtp://localhost"
_HOST = re.compile(r"(?!.{254})[a-z0-9_][a-z0-9_-]{0,62}(?:\.[a-z0-9_][a-z0-9_-]{0,62})*\.?")
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,253}[A-Za-z0-9])?|\[[0-9A-Za-z.:]+\]")


class SmtpTransport:
    """Sends messages to the mail server ``url``; see docs/transports.md.

    The scheme says what is on the wire: ``smtps`` (TLS from the first byte), ``smtp+starttls`` (TLS
    or nothing), ``smtp`` (no TLS: to this machine only, or with ``plaintext=True``). Options are
    ``url`` and ``from``; ``senders`` (further addresses that a body may name as ``from``);
    ``smtputf8=False`` (the server lacks it: addresses that need it are refused at submit);
    ``ca_file`` (PEM, instead of the system's authorities); ``name`` (how we call ourselves);
    ``idle_seconds`` (how long a connection is kept for the next message); ``allow_headers`` (names
    that bodies may set though they steer a provider). ``timeout`` bounds a send, in seconds, from
    the first look for a connection to the answer; looking the server's name up is bounded by the
    resolver alone.

    Nothing connects before the first message. Raises InvalidSettings.
    """

    def __init__(
        self,
        *,
        url: str,
        timeout: float = 10.0,
        ca_file: str | Path | None = None,
        plaintext: bool = False,
        name: str | None = None,
        idle_seconds: float = 60.0,
        allow_headers: Collection[str] = (),
        senders: Collection[str] = (),
        smtputf8: bool = True,
        clock: Clock | None = None,
        **options: Any,
    ) -> None:
        if "from" not in options:
            raise InvalidSettings("from", "not given", "the address that mail comes from")
        try:
            self._sender = read_sender(options.pop("from"))
        except InvalidDraft as refused:
            raise InvalidSettings("from", refused.problem, refused.accepted) from None
        if options:
            raise InvalidSettings(min(options), "unknown", _OPTIONS)
        if not isinstance(smtputf8, bool):
            raise InvalidSettings("smtputf8", kind_of(smtputf8), "true or false")
        self._allowed = read_allowed(allow_headers)
        self._senders = read_senders(senders) | {self._sender.addr_spec.lower()}
        self._clock = clock or SystemClock()
        self._timeout = _seconds("timeout", timeout)
        self._server = _read_server(url, name=name, ca_file=ca_file, plaintext=plaintext)
        self._idle: IdleConnections[SmtpConnection] = IdleConnections(
            self._clock, SmtpConnection.close, seconds=_seconds("idle_seconds", idle_seconds)
        )

    def __repr__(self) -> str:
        """Show no credentials."""
        return f"SmtpTransport({self._server})"

    @staticmethod
    def check(
        recipient: str, body: Mapping[str, Any], options: Mapping[str, Any] | None = None
    ) -> None:
        """Raise InvalidDraft for what could never be sent as an e-mail."""
        options = options or {}
        allowed = senders = frozenset[str]()
        with suppress(InvalidSettings):  # the worker says so when it starts
            allowed = read_allowed(options.get("allow_headers", ()))
            senders = read_senders(options.get("senders", ()))
            senders |= read_senders([options.get("from")])
        check_mail(recipient, body, allowed, senders)
        local = recipient.rpartition("@")[0]
        if options.get("smtputf8") is False and not local.isascii():
            accepted = "an address in ASCII before the @, or a server with SMTPUTF8"
            raise InvalidDraft("recipient", "beyond ASCII before the @", accepted)

    @staticmethod
    def destination(message: Message) -> str | None:
        """Name the domain that ``message`` goes to."""
        return message.recipient.rpartition("@")[2].lower() or None

    def send(self, message: Message) -> str | None:
        """Send ``message``; return the server's answer.

        Raises TemporaryFailure and PermanentFailure where the server does not have it, PerhapsSent
        where its answer to the whole message was lost.
        """
        try:
            mail = compose(
                message,
                sender=self._sender,
                now=self._clock.now(),
                allowed=self._allowed,
                senders=self._senders,
            )
        except InvalidDraft as refused:
            raise PermanentFailure(str(refused)) from None
        deadline = Deadline(self._clock, self._timeout)
        connection = self._idle.take()
        if connection is not None:
            # A connection that was closed while it was idle has seen nothing of the message.
            with suppress(ConnectionBroken):
                return self._deliver(connection, mail, deadline)
        connection = SmtpConnection.open(self._server, deadline)
        try:
            return self._deliver(connection, mail, deadline)
        except ConnectionBroken as broke:
            raise TemporaryFailure(str(broke)) from None

    def probe(self) -> None:
        """Connect, log in, and ask whether all is well; nothing is sent.

        Within five seconds, beside looking the server's name up. Raises TemporaryFailure, which
        says why no message would get through.
        """
        connection = SmtpConnection.open(
            self._server, Deadline(self._clock, min(self._timeout, _PROBE_SECONDS))
        )
        try:
            connection.ask()
        finally:
            if connection.is_open:
                connection.close()

    def _deliver(self, connection: SmtpConnection, mail: Mail, deadline: Deadline) -> str:
        try:
            return str(connection.deliver(mail, deadline))
        except (ConnectionBroken, DeliveryError):
            raise
        except BaseException:
            connection.break_off()  # its state is unknown
            raise
        finally:
            if connection.is_open and connection.carried < _MOST_CARRIED:
                self._idle.give(connection)
            elif connection.is_open:
                connection.close()

    def close(self) -> None:
        """Close the connections that are idle; those in use are closed after their message."""
        self._idle.close()


def _seconds(name: str, value: object) -> float:
    if isinstance(value, int | float) and value is not True and 0 < value <= _LONGEST_SECONDS:
        return float(value)
    raise InvalidSettings(name, "no such length", "seconds, above 0 and at most a day")


def _read_server(
    url: object, *, name: object, ca_file: str | Path | None, plaintext: object
) -> MailServer:
    """Return what these options say. Raises InvalidSettings, which never quotes the address."""
    if not isinstance(url, str):
        raise InvalidSettings("url", kind_of(url), _URLS)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise InvalidSettings("url", "cannot be read", _URLS) from None
    if parts.scheme not in _SCHEMES:
        raise InvalidSettings("url", "none of the known schemes", _URLS)
    host = parts.hostname or ""
    address = address_of(host)
    is_host = address is not None if ":" in host else _HOST.fullmatch(host)
    if not is_host or parts.path not in ("", "/"):
        raise InvalidSettings("url", "no host, or more than a host", _URLS)
    if parts.query or parts.fragment:
        raise InvalidSettings("url", "more than a host", _URLS)
    security, usual_port = _SCHEMES[parts.scheme]
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    if bool(user) != bool(password) or not f"{user}{password}".isascii():
        problem = "a user or a password that cannot be used"
        raise InvalidSettings("url", problem, "both in ASCII and percent-encoded, or none")
    if not isinstance(plaintext, bool):
        raise InvalidSettings("plaintext", kind_of(plaintext), "true or false")
    is_named_here = host == "localhost" or host.endswith(".localhost")
    is_here = is_named_here if address is None else address.is_loopback
    if security == "none" and not plaintext and not is_here:
        problem = "smtp:// sends everything in the clear, and this is another machine"
        raise InvalidSettings("url", problem, "smtps://, smtp+starttls://, or plaintext = true")
    if name is not None and not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise InvalidSettings("name", "no host name", "a name such as mail.shop.example")
    return MailServer(
        host=host,
        port=port or usual_port,
        security=security,
        name=name or _own_name(),
        context=None if security == "none" else _context(ca_file),
        user=user,
        password=password,
    )


def _context(ca_file: str | Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, TypeError) as error:
        why = getattr(error, "strerror", None) or "it holds no certificate"
        raise InvalidSettings("ca_file", why, "the path of a PEM file") from None


def _own_name() -> str:
    """Return the name of this machine if it is a full one; ask no name server."""
    name = socket.gethostname()
    return name if "." in name and _NAME.fullmatch(name) else "[127.0.0.1]"

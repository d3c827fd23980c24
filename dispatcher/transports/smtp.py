"""Sends each message as an e-mail to a mail server, by smtplib's protocol within a deadline.

Up to the final dot the server cannot have the message; after the dot only its answer tells.
"""

from __future__ import annotations

import re
import smtplib
import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, cast
from urllib.parse import unquote, urlsplit

from pydantic import Field, SkipValidation, StrictBool

from dispatcher.errors import (
    DeliveryError,
    InvalidDraft,
    InvalidSettings,
    InvalidValue,
    PerhapsSent,
    PermanentFailure,
    TemporaryFailure,
)
from dispatcher.message import Message
from dispatcher.times.clock import Clock, SystemClock
from dispatcher.transports.base import Texts, checked
from dispatcher.transports.connections import (
    Deadline,
    IdleConnections,
    address_of,
    connect,
    is_name,
    resolve,
)
from dispatcher.transports.mail import (
    Mail,
    check_mail,
    compose,
    read_allowed,
    read_sender,
    read_senders,
)

Security = Literal["tls", "starttls", "none"]
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
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,253}[A-Za-z0-9])?|\[[0-9A-Za-z.:]+\]")
_LONGEST_REPLY = 64 * 1024
_CHUNK = 64 * 1024
_LONGEST_QUOTE = 200
_SPARE = 0.25
"""Part of the time that must be left for the answer to the final dot, or it is not written."""
_PAUSE = timedelta(seconds=60)
"""How long a channel is closed for a throttle or for settings that do not fit."""
_GOOD_BYE_SECONDS = 1.0
_READY, _OK, _GO_AHEAD, _CLOSING = 220, 250, 354, 421
_GOOD, _MORE, _PERMANENT = 2, 3, 5
"""First digits of answers."""
_THROTTLED = re.compile(r"throttl|\brate\b|too many|quota exceeded", re.IGNORECASE)
_OF_POLICY = re.compile(r"4\.7\.\d")
"""What a server says whose account may send no more for now: by its words, or by an enhanced status
(RFC 3463: security or policy) behind one of the codes below."""
_OF_ONE_RECIPIENT = re.compile(r"4\.[12]\.\d|gr[ea]y|recipient|mailbox|<…>", re.IGNORECASE)
"""A recipient or its quota is meant, or one that is new to the server (greylisting)."""
_ASK_LATER = frozenset({421, 450, 451, 452})
_CREDENTIALS = frozenset({530, 534, 535, 538})
"""They are missing or wrong (RFC 4954)."""


class SmtpTransport:
    """Sends messages to the mail server ``url``; docs/transports.md says what each option means.

    Raises ValueError.
    """

    @checked
    def __init__(
        self,
        *,
        url: str,
        from_: Annotated[str, Field(alias="from")],
        senders: Texts = (),
        smtputf8: StrictBool = True,  # noqa: ARG002 - for check
        ca_file: SkipValidation[str | Path | None] = None,
        plaintext: StrictBool = False,
        name: str | None = None,
        idle_seconds: Annotated[float, Field(strict=True, gt=0, le=_LONGEST_SECONDS)] = 60.0,
        allow_headers: Texts = (),
        timeout: float = 10.0,
        clock: Clock | None = None,
    ) -> None:
        self._sender = read_sender(from_)
        self._allowed = read_allowed(allow_headers)
        self._senders = read_senders([*senders, from_])
        self._clock = clock or SystemClock()
        self._timeout = timeout
        self._server = _read_server(url, name=name, ca_file=ca_file, plaintext=plaintext)
        self._idle: IdleConnections[SmtpConnection] = IdleConnections(
            self._clock, SmtpConnection.end, idle_seconds
        )
        self.close = self._idle.close

    def __repr__(self) -> str:
        return f"SmtpTransport({self._server})"

    @staticmethod
    def check(
        recipient: str, body: Mapping[str, Any], options: Mapping[str, Any] | None = None
    ) -> None:
        options = options or {}
        allowed = senders = frozenset[str]()
        with suppress(InvalidValue, TypeError):  # the worker says so when it starts
            allowed = read_allowed(options.get("allow_headers", ()))
            senders = read_senders(options.get("senders", ()))
            senders |= read_senders([options.get("from")])
        check_mail(recipient, body, allowed, senders)
        local = recipient.rpartition("@")[0]
        if options.get("smtputf8") is False and not local.isascii():
            accepted = "an address in ASCII before the @, or a server with SMTPUTF8"
            raise InvalidDraft("recipient", "not ASCII before the @", accepted)

    @staticmethod
    def destination(message: Message) -> str | None:
        return message.recipient.rpartition("@")[2].lower() or None

    def send(self, message: Message) -> str | None:
        """Send ``message``; return the server's answer.

        Raises TemporaryFailure and PermanentFailure where the server does not have it, PerhapsSent
        where its answer to the whole message was lost.
        """
        rules = self._allowed, self._senders
        try:
            mail = compose(message, self._sender, self._clock.now(), *rules)
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
        deadline = Deadline(self._clock, min(self._timeout, _PROBE_SECONDS))
        connection = SmtpConnection.open(self._server, deadline)
        try:
            connection.ask()
        finally:
            connection.end()

    def _deliver(self, connection: SmtpConnection, mail: Mail, deadline: Deadline) -> str:
        try:
            return str(connection.deliver(mail, deadline))
        except (ConnectionBroken, DeliveryError):
            raise
        except BaseException:
            connection.close()  # its state is unknown
            raise
        finally:
            if connection.is_open and connection.carried < _MOST_CARRIED:
                self._idle.give(connection)
            else:
                connection.end()


def _read_server(
    url: str, *, name: str | None, ca_file: str | Path | None, plaintext: bool
) -> MailServer:
    """Return what these options say. Raises InvalidSettings, which never quotes the address."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise InvalidSettings("url", "cannot be read", _URLS) from None
    host = parts.hostname or ""
    address = address_of(host)
    is_host = address is not None or is_name(host.removesuffix("."))
    is_more = parts.path not in ("", "/") or parts.query or parts.fragment
    if parts.scheme not in _SCHEMES or not is_host or is_more:
        raise InvalidSettings("url", "no known scheme, no host, or more than a host", _URLS)
    security, usual_port = _SCHEMES[parts.scheme]
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    if bool(user) != bool(password) or not f"{user}{password}".isascii():
        problem = "a user or a password that cannot be used"
        raise InvalidSettings("url", problem, "both in ASCII and percent-encoded, or none")
    is_named_here = host == "localhost" or host.endswith(".localhost")
    is_here = is_named_here if address is None else address.is_loopback
    if security == "none" and not plaintext and not is_here:
        problem = "smtp:// sends everything in the clear, and this is another machine"
        raise InvalidSettings("url", problem, "smtps://, smtp+starttls://, or plaintext = true")
    if name is not None and not _NAME.fullmatch(name):
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
    """Return the name of this machine if it is a full one; no name server is asked."""
    name = socket.gethostname()
    return name if "." in name and _NAME.fullmatch(name) else "[127.0.0.1]"


@dataclass(frozen=True, slots=True)
class MailServer:
    """Where mail goes. ``name`` is how we call ourselves there."""

    host: str
    port: int
    security: Security
    name: str
    context: ssl.SSLContext | None = field(repr=False)
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class ConnectionBroken(OSError):
    """The connection broke, fell silent or made no sense. smtplib's errors are OSErrors as well."""


def _why(error: BaseException, deadline: Deadline) -> str:
    if isinstance(error, TimeoutError) and error.errno is None:
        return f"it did not answer within {deadline.seconds:g} s"
    if isinstance(error, ssl.SSLEOFError):
        return "it closed the connection"
    if isinstance(error, ssl.SSLError):
        return f"TLS broke ({getattr(error, 'reason', None) or type(error).__name__})"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) if isinstance(error, ConnectionBroken) else type(error).__name__


class SmtpReply(NamedTuple):
    """What the server said, on one line."""

    code: int
    text: str

    def __str__(self) -> str:
        return f"{self.code} {self.text}".rstrip()

    @property
    def kind(self) -> int:
        """The first digit: done, half done, temporary or permanent."""
        return self.code // 100

    @property
    def is_throttle(self) -> bool:
        """Whether the server takes no more messages of this account for now, whoever gets them."""
        if self.kind == _PERMANENT or _OF_ONE_RECIPIENT.search(self.text):
            return False
        is_policy = self.code in _ASK_LATER and _OF_POLICY.match(self.text)
        return bool(is_policy or _THROTTLED.search(self.text))


class SmtpConnection(smtplib.SMTP):
    """Carries one message after the other, while it ``is_open``. For one thread at a time.

    Every byte is read and written by ``deadline``, however slowly they come: smtplib's own timeout
    is one for each read, and a server that says one byte a second never meets it.
    """

    def __init__(self, server: MailServer, sock: socket.socket, deadline: Deadline) -> None:
        super().__init__(local_hostname=server.name)
        self.sock = sock
        self.deadline = deadline
        self.carried = 0
        self._server = server
        self._unread = bytearray()
        self._is_begun = False

    @property
    def is_open(self) -> bool:
        return self.sock is not None

    @classmethod
    def open(cls, server: MailServer, deadline: Deadline) -> SmtpConnection:
        """Connect, greet, secure and log in. Raises TemporaryFailure: no message is to blame."""
        try:
            sock = connect(resolve(server.host, server.port), server.port, deadline)
        except OSError as error:
            raise TemporaryFailure(f"{server}: {_why(error, deadline)}") from None
        connection = cls(server, sock, deadline)
        try:
            connection._greet()
        except OSError as error:
            broken = connection._broken(error)
            if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
                why = getattr(error, "verify_message", None) or getattr(error, "reason", None)
                problem = f"TLS with it failed: {why or 'no reason given'}"
                raise connection._misconfigured(problem) from None
            raise TemporaryFailure(broken) from None
        except BaseException:
            connection.close()
            raise
        return connection

    def ask(self) -> None:
        try:
            self._expect(self.noop(), "NOOP", _OK)
        except OSError as error:
            raise TemporaryFailure(self._broken(error)) from None

    def deliver(self, mail: Mail, deadline: Deadline) -> SmtpReply:
        """Send the mail; return the server's reply to it.

        Raises ConnectionBroken where the connection failed before a byte of the mail was written,
        so that another one may be tried; TemporaryFailure and PermanentFailure where the server
        does not have it; PerhapsSent where that is unknown.
        """
        self.deadline = deadline
        try:
            self._announce(mail)
        except OSError as error:
            raise ConnectionBroken(self._broken(error)) from None
        try:
            self.send(re.sub(rb"(?m)^\.", b"..", mail.content))
            if deadline.left() < deadline.seconds * _SPARE:
                slow = "it took the message so slowly that no time is left for its answer"
                raise ConnectionBroken(slow)
        except OSError as error:
            raise TemporaryFailure(self._broken(error)) from None
        try:
            self.send(b".\r\n")
            reply = self._reply(self.getreply(), mail.recipient)
        except OSError as error:
            unanswered = "no answer to the whole message: "
            raise PerhapsSent(self._broken(error, unanswered)) from None
        self._is_begun = False
        self.carried += 1
        if reply.kind == _MORE:
            self.close()
            raise PerhapsSent(f"{self._server}: it answered {reply} to the whole message")
        if reply.kind != _GOOD:
            raise self._refusal(reply, "the message")
        return reply

    def end(self) -> None:
        """Say good-bye where the connection is open, and wait for no answer."""
        self.deadline = Deadline(self.deadline.clock, _GOOD_BYE_SECONDS)
        with suppress(OSError):
            self.putcmd("QUIT")
        self.close()

    def send(self, s: Any) -> None:
        left = memoryview(s.encode(self.command_encoding) if isinstance(s, str) else s)
        while left:
            left = left[self._socket.send(left[:_CHUNK]) :]

    def getreply(self) -> tuple[int, bytes]:
        lines: list[bytes] = []
        room = _LONGEST_REPLY
        while True:
            line = self._line(room)
            if not re.match(rb"[2-5]\d\d(?:[ -]|$)", line):
                raise ConnectionBroken("it answered something that is not SMTP")
            lines.append(line[4:].strip())
            room -= len(line)
            if line[3:4] != b"-":
                return int(line[:3]), b"\n".join(lines)

    def _secure(self) -> None:
        if self._unread:  # sent before the encryption began, perhaps by an attacker
            raise ConnectionBroken("it sent something between STARTTLS and the encryption")
        context, host = cast(ssl.SSLContext, self._server.context), self._server.host
        self.sock = context.wrap_socket(self._socket, server_hostname=host)
        self.ehlo_resp = None
        self.esmtp_features = {}
        self.does_esmtp = False

    def _line(self, longest: int) -> bytes:
        while b"\n" not in self._unread:
            if len(self._unread) > longest:
                raise ConnectionBroken("it answered something that is not SMTP")
            read = self._socket.recv(4096)
            if not read:
                raise ConnectionBroken("it closed the connection")
            self._unread += read
        line, _, rest = bytes(self._unread).partition(b"\n")
        self._unread = bytearray(rest)
        return line.rstrip(b"\r")

    @property
    def _socket(self) -> socket.socket:
        if self.sock is None:
            raise ConnectionBroken("it closed the connection")
        self.sock.settimeout(self.deadline.left())
        return self.sock

    def _greet(self) -> None:
        server = self._server
        if server.security == "tls":
            self._secure()
        self._expect(self.getreply(), "the connection", _READY)
        self._expect(self.ehlo(), "EHLO", _OK)
        if server.security == "starttls":
            if not self.has_extn("starttls"):
                raise self._misconfigured("it offers no STARTTLS")
            self._expect(self.docmd("STARTTLS"), "STARTTLS", _READY)
            self._secure()
            self._expect(self.ehlo(), "EHLO", _OK)
        if server.user:
            self._log_in()

    def _log_in(self) -> None:
        try:
            self.login(self._server.user, self._server.password)
        except smtplib.SMTPAuthenticationError as error:
            reply = self._reply((error.smtp_code, error.smtp_error))
            why = f"it answered {reply} to the credentials"
            if reply.kind == _PERMANENT:
                raise self._misconfigured(why) from None
            raise TemporaryFailure(f"{self._server}: {why}") from None
        except smtplib.SMTPException:
            raise self._misconfigured("it offers no known way to log in") from None
        except ValueError:  # smtplib lets errors of base64 through
            why = "its answer to AUTH is no base64"
            raise TemporaryFailure(f"{self._server}: {why}") from None

    def _announce(self, mail: Mail) -> None:
        if self._is_begun:
            self._say("RSET", mail)
        words = f"MAIL FROM:<{mail.sender}>"
        if self.has_extn("size"):
            words += f" SIZE={len(mail.content)}"
        self.command_encoding = "ascii"
        if mail.is_international:
            if not (self.has_extn("smtputf8") and self.has_extn("8bitmime")):
                why = "it takes no addresses with characters beyond ASCII (no SMTPUTF8)"
                raise PermanentFailure(f"{self._server}: {why}")
            words += " BODY=8BITMIME SMTPUTF8"
            self.command_encoding = "utf-8"
        self._is_begun = True
        self._say(words, mail)
        self._say(f"RCPT TO:<{mail.recipient}>", mail)
        self._say("DATA", mail)

    def _expect(self, said: tuple[int, bytes | str], to: str, code: int) -> None:
        """Raise TemporaryFailure for another answer: it concerns no message yet."""
        reply = self._reply(said)
        if reply.code != code:
            raise self._refusal(reply, to, of_mail=False)

    def _say(self, words: str, mail: Mail) -> None:
        """Say something that comes before the mail. Raises ConnectionBroken for a good-bye."""
        reply = self._reply(self.docmd(words), mail.recipient)
        if reply.code == _CLOSING and not reply.is_throttle:
            raise ConnectionBroken(f"it answered {reply}")
        is_taken = reply.code == _GO_AHEAD if words == "DATA" else reply.kind == _GOOD
        if not is_taken:
            raise self._refusal(reply, words.split(" ", 1)[0])

    def _reply(self, said: tuple[int, bytes | str], *further: str) -> SmtpReply:
        """Return what smtplib read, without what errors must not show."""
        code, raw = said
        text = " ".join((raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw).split())
        for secret in (self._server.password, self._server.user, *further):
            if secret:
                text = re.sub(re.escape(secret), "…", text, flags=re.IGNORECASE)
        return SmtpReply(code, text[:_LONGEST_QUOTE])

    def _refusal(self, reply: SmtpReply, to: str, *, of_mail: bool = True) -> DeliveryError:
        why = f"it answered {reply} to {to}"
        if of_mail and reply.code in _CREDENTIALS:
            return self._misconfigured(why)
        if reply.is_throttle:
            return TemporaryFailure(f"{self._server}: {why}", _PAUSE, closes_channel=True)
        is_final = of_mail and reply.kind == _PERMANENT
        return (PermanentFailure if is_final else TemporaryFailure)(f"{self._server}: {why}")

    def _broken(self, error: BaseException, stage: str = "") -> str:
        self.close()
        return f"{self._server}: {stage}{_why(error, self.deadline)}"

    def _misconfigured(self, why: str) -> TemporaryFailure:
        """Return the failure that lasts until the settings change, for all messages alike."""
        why = f"{self._server}: {why}; see the settings of its channel"
        return TemporaryFailure(why, _PAUSE, closes_channel=True)

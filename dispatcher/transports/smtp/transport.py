"""Sends each message as an e-mail."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from dispatcher.errors import (
    DeliveryError,
    InvalidDraft,
    InvalidSettings,
    PermanentFailure,
    TemporaryFailure,
)
from dispatcher.message import Message
from dispatcher.times.clock import Clock, SystemClock
from dispatcher.transports.smtp.connection import Connection
from dispatcher.transports.smtp.mail import Mail, check_mail, compose, read_allowed, read_sender
from dispatcher.transports.smtp.pool import Pool
from dispatcher.transports.smtp.server import read_server
from dispatcher.transports.smtp.wire import Broke, Deadline

_OPTIONS = "url, from, ca_file, plaintext, name, idle_seconds, allow_headers"
_LONGEST_SECONDS = 86_400.0
_PROBE_SECONDS = 5.0


class SmtpTransport:
    """Sends messages to the mail server ``url``; see docs/transports.md.

    The scheme says what is on the wire: ``smtps`` (TLS from the first byte), ``smtp+starttls`` (TLS
    or nothing), ``smtp`` (no TLS: to this machine only, or with ``plaintext=True``). Options are
    ``url`` and ``from``; ``ca_file`` (PEM, instead of the system's authorities); ``name`` (how we
    call ourselves); ``idle_seconds`` (how long a connection is kept for the next message);
    ``allow_headers`` (names that bodies may set though they steer a provider). ``timeout`` bounds a
    send, in seconds, from the first look for a connection to the answer; looking the server's name
    up is bounded by the resolver alone.

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
        self._allowed = read_allowed(allow_headers)
        self._clock = clock or SystemClock()
        self._timeout = _seconds("timeout", timeout)
        self._server = read_server(url, name=name, ca_file=ca_file, plaintext=plaintext)
        self._pool = Pool(self._clock, idle_seconds=_seconds("idle_seconds", idle_seconds))

    def __repr__(self) -> str:
        """Show no credentials."""
        return f"SmtpTransport({self._server})"

    @staticmethod
    def check(
        recipient: str, body: Mapping[str, Any], options: Mapping[str, Any] | None = None
    ) -> None:
        """Raise InvalidDraft for what could never be sent as an e-mail."""
        try:
            allowed = read_allowed((options or {}).get("allow_headers", ()))
        except InvalidSettings:  # the worker says so when it starts
            allowed = frozenset()
        check_mail(recipient, body, allowed)

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
                message, sender=self._sender, now=self._clock.now(), allowed=self._allowed
            )
        except InvalidDraft as refused:
            raise PermanentFailure(str(refused)) from None
        deadline = Deadline(self._clock, self._timeout)
        connection = self._pool.take()
        if connection is not None:
            try:
                return self._deliver(connection, mail, deadline)
            except Broke:
                pass  # it was closed while nobody used it, and has seen nothing of the message
        connection = Connection.open(self._server, deadline)
        try:
            return self._deliver(connection, mail, deadline)
        except Broke as broke:
            raise TemporaryFailure(f"{self._server}: {broke}") from None

    def probe(self) -> None:
        """Connect, log in, and ask whether all is well; nothing is sent.

        Within five seconds, beside looking the server's name up. Raises TemporaryFailure, which
        says why no message would get through.
        """
        connection = Connection.open(
            self._server, Deadline(self._clock, min(self._timeout, _PROBE_SECONDS))
        )
        try:
            connection.ask()
        finally:
            if connection.is_open:
                connection.close(self._clock)

    def _deliver(self, connection: Connection, mail: Mail, deadline: Deadline) -> str:
        try:
            return str(connection.deliver(mail, deadline))
        except (Broke, DeliveryError):
            raise
        except BaseException:
            connection.break_off()  # nobody knows where it stands
            raise
        finally:
            self._pool.give(connection)

    def close(self) -> None:
        """Close the connections that are idle; those in use are closed after their message."""
        self._pool.close()


def _seconds(name: str, value: object) -> float:
    if isinstance(value, int | float) and value is not True and 0 < value <= _LONGEST_SECONDS:
        return float(value)
    raise InvalidSettings(name, "no such length", "seconds, above 0 and at most a day")

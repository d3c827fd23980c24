"""A connection to a mail server, and what its answers mean at each stage.

Up to the final dot the server cannot have the message; after the dot only its answer tells.
"""

from __future__ import annotations

import re
import smtplib
import ssl
from contextlib import suppress
from datetime import timedelta

from dispatcher.errors import DeliveryError, PerhapsSent, PermanentFailure, TemporaryFailure
from dispatcher.times.clock import Clock
from dispatcher.transports.smtp.mail import Mail
from dispatcher.transports.smtp.server import Server
from dispatcher.transports.smtp.wire import LINE_ERRORS, Broke, Deadline, Reply, Wire, connected

_LONGEST_QUOTE = 200
_SPARE = 0.25
"""Part of the time that must be left for the answer to the final dot, or it is not written."""
_SETTINGS_PAUSE = timedelta(seconds=60)
_GOOD_BYE_SECONDS = 1.0
_READY, _OK, _GO_AHEAD, _CLOSING = 220, 250, 354, 421
_CREDENTIALS = frozenset({530, 534, 535, 538})
"""They are missing or wrong (RFC 4954)."""


class Connection:
    """Carries one message after the other. For one thread at a time.

    ``is_open``: whether it can carry another one. ``carried``: how many it has. ``idle_since`` is
    set by the pool.
    """

    def __init__(self, server: Server, wire: Wire) -> None:
        self.is_open = True
        self.carried = 0
        self.idle_since = 0.0
        self._server = server
        self._wire = wire
        self._is_begun = False

    @classmethod
    def open(cls, server: Server, deadline: Deadline) -> Connection:
        """Connect, greet, secure and log in. Raises TemporaryFailure: no message is to blame."""
        try:
            wire = Wire(connected(server.host, server.port, deadline), server.name, deadline)
        except OSError as error:
            raise TemporaryFailure(f"{server}: {deadline.why(error)}") from None
        connection = cls(server, wire)
        try:
            connection._greet()
        except ssl.SSLEOFError:
            connection.break_off()
            raise TemporaryFailure(f"{server}: it closed the connection") from None
        except ssl.SSLError as error:
            connection.break_off()
            why = getattr(error, "verify_message", None) or getattr(error, "reason", None)
            raise connection._misconfigured(
                f"TLS with it failed: {why or 'no reason given'}"
            ) from None
        except LINE_ERRORS as error:
            connection.break_off()
            raise TemporaryFailure(f"{server}: {deadline.why(error)}") from None
        except BaseException:
            connection.break_off()
            raise
        return connection

    def ask(self) -> None:
        """Ask whether all is well (NOOP). Raises TemporaryFailure."""
        try:
            self._expect(self._wire.noop(), "NOOP", _OK)
        except LINE_ERRORS as error:
            self.break_off()
            raise TemporaryFailure(f"{self._server}: {self._wire.deadline.why(error)}") from None

    def deliver(self, mail: Mail, deadline: Deadline) -> Reply:
        """Send the mail; return the server's reply to it.

        Raises Broke where the connection failed before a byte of the mail was written, so that
        another one may be tried; TemporaryFailure and PermanentFailure where the server does not
        have it; PerhapsSent where that is unknown.
        """
        self._wire.deadline = deadline
        try:
            self._announce(mail)
        except LINE_ERRORS as error:
            self.break_off()
            raise Broke(deadline.why(error)) from None
        try:
            self._write(mail, deadline)
        except LINE_ERRORS as error:
            self.break_off()
            raise TemporaryFailure(f"{self._server}: {deadline.why(error)}") from None
        try:
            self._wire.send(b".\r\n")
            reply = self._heard(mail)
        except LINE_ERRORS as error:
            self.break_off()
            why = f"no answer to the whole message: {deadline.why(error)}"
            raise PerhapsSent(f"{self._server}: {why}") from None
        self._is_begun = False
        self.carried += 1
        if reply.code == _CLOSING:
            self.break_off()
        if reply.asks_for_more:
            self.break_off()
            raise PerhapsSent(f"{self._server}: it answered {reply} to the whole message")
        if not reply.is_good:
            raise self._refusal(reply, "the message")
        return reply

    def break_off(self) -> None:
        """Close at once."""
        self.is_open = False
        self._wire.close()

    def close(self, clock: Clock) -> None:
        """Say good-bye, and wait for no answer."""
        self._wire.deadline = Deadline(clock, _GOOD_BYE_SECONDS)
        with suppress(*LINE_ERRORS):
            self._wire.putcmd("QUIT")
        self.break_off()

    def _greet(self) -> None:
        """Take the greeting, secure the connection where it is to be, and say who we are."""
        server, wire = self._server, self._wire
        if server.security == "tls" and server.context is not None:
            wire.secure(server.context, server.host)
        self._expect(wire.getreply(), "the connection", _READY)
        self._expect(wire.ehlo(), "EHLO", _OK)
        if server.security == "starttls" and server.context is not None:
            if not wire.has_extn("starttls"):
                raise self._misconfigured("it offers no STARTTLS")
            self._expect(wire.docmd("STARTTLS"), "STARTTLS", _READY)
            wire.secure(server.context, server.host)
            self._expect(wire.ehlo(), "EHLO", _OK)
        if server.user:
            self._log_in()

    def _log_in(self) -> None:
        try:
            self._wire.login(self._server.user, self._server.password)
        except smtplib.SMTPAuthenticationError as error:
            reply = self._masked(Reply.of((error.smtp_code, error.smtp_error)))
            why = f"it answered {reply} to the credentials"
            if reply.is_permanent:
                raise self._misconfigured(why) from None
            raise TemporaryFailure(f"{self._server}: {why}") from None
        except smtplib.SMTPException:
            raise self._misconfigured("it offers no way to log in that is known") from None
        except ValueError:  # smtplib lets errors of base64 through
            why = "its answer to AUTH is no base64"
            raise TemporaryFailure(f"{self._server}: {why}") from None

    def _announce(self, mail: Mail) -> None:
        """Say from whom to whom, and be told to go ahead."""
        wire = self._wire
        if self._is_begun:
            self._say("RSET", mail)
        words = f"MAIL FROM:<{mail.sender}>"
        if wire.has_extn("size"):
            words += f" SIZE={len(mail.content)}"
        wire.command_encoding = "ascii"
        if mail.is_international:
            if not (wire.has_extn("smtputf8") and wire.has_extn("8bitmime")):
                why = "it takes no addresses with characters beyond ASCII (no SMTPUTF8)"
                raise PermanentFailure(f"{self._server}: {why}")
            words += " BODY=8BITMIME SMTPUTF8"
            wire.command_encoding = "utf-8"
        self._is_begun = True
        self._say(words, mail)
        self._say(f"RCPT TO:<{mail.recipient}>", mail)
        reply = self._said("DATA", mail)
        if reply.code != _GO_AHEAD:
            raise self._refusal(reply, "DATA")

    def _write(self, mail: Mail, deadline: Deadline) -> None:
        """Write all but the final dot, and see that its answer could be waited for."""
        self._wire.send(re.sub(rb"(?m)^\.", b"..", mail.content))
        if deadline.left() < deadline.seconds * _SPARE:
            raise Broke("it took the message so slowly that no time is left for its answer")

    def _expect(self, said: tuple[int, bytes | str], to: str, code: int) -> None:
        """Raise TemporaryFailure for another answer: it concerns no message yet."""
        reply = self._masked(Reply.of(said))
        if reply.code != code:
            raise TemporaryFailure(f"{self._server}: it answered {reply} to {to}")

    def _say(self, words: str, mail: Mail) -> None:
        reply = self._said(words, mail)
        if not reply.is_good:
            raise self._refusal(reply, words.split(" ", 1)[0])

    def _said(self, words: str, mail: Mail) -> Reply:
        """Say something that comes before the mail. Raises Broke where the server says good-bye."""
        self._wire.putcmd(words)
        reply = self._heard(mail)
        if reply.code == _CLOSING:
            raise Broke(f"it answered {reply}")
        return reply

    def _heard(self, mail: Mail) -> Reply:
        return self._masked(Reply.of(self._wire.getreply()), mail.recipient)

    def _masked(self, reply: Reply, *further: str) -> Reply:
        """Take out of a reply what errors must not show."""
        text = reply.text
        for secret in (self._server.password, self._server.user, *further):
            if secret:
                text = re.sub(re.escape(secret), "…", text, flags=re.IGNORECASE)
        return Reply(reply.code, text[:_LONGEST_QUOTE])

    def _refusal(self, reply: Reply, to: str) -> DeliveryError:
        why = f"it answered {reply} to {to}"
        if reply.code in _CREDENTIALS:
            return self._misconfigured(why)
        kind = PermanentFailure if reply.is_permanent else TemporaryFailure
        return kind(f"{self._server}: {why}")

    def _misconfigured(self, why: str) -> TemporaryFailure:
        """Return the failure that lasts until somebody changes the settings.

        It closes the channel for a while, so that messages do not use up their tries on it.
        """
        return TemporaryFailure(
            f"{self._server}: {why}; see the settings of its channel",
            _SETTINGS_PAUSE,
            closes_channel=True,
        )

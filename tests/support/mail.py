"""Mail servers on loopback: a real one, and one that fails at a chosen word."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import trustme
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from dispatcher import Message
from dispatcher.testing import a_message
from dispatcher.transports.smtp import SmtpTransport
from tests.support import canaries

USER, PASSWORD = "shop", "p@ss/word: hunter2"  # needs to be percent-encoded


def an_email(
    recipient: str = "ada@example.org", body: Mapping[str, Any] | None = None, **more: Any
) -> Message:
    body = {"text": canaries.BODY} if body is None else body
    return a_message(recipient=recipient, body=body, **more)


def smtp(url: str, **options: Any) -> SmtpTransport:
    return SmtpTransport(**{"url": url, "from": "Shop <mail@shop.example>"} | options)


def certified(folder: Path) -> tuple[ssl.SSLContext, str]:
    """Return what a server on localhost needs for TLS, and the file of those who trust it."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    path = folder / "authority.pem"
    authority.cert_pem.write_to_path(str(path))
    return context, str(path)


@dataclass
class Taken:
    sender: str
    recipients: list[str]
    content: bytes
    options: list[str]


class _Served(ExitStack):
    """A server on loopback, which closes the transports that were made for it."""

    port = 0

    def transport(
        self, scheme: str = "smtp", log_in: str = "", *, host: str = "localhost", **options: Any
    ) -> SmtpTransport:
        url = f"{scheme}://{log_in}{host}:{self.port}"
        transport = smtp(url, **{"timeout": 10.0} | options)
        self.callback(transport.close)
        return transport


class MailServer(_Served):
    """aiosmtpd on an ephemeral port, in a thread of its own.

    ``security`` is that of the scheme: ``tls``, ``starttls`` or ``none``. ``more`` goes to
    aiosmtpd.
    """

    def __init__(
        self,
        *,
        security: str = "none",
        context: ssl.SSLContext | None = None,
        auth: bool = False,
        **more: Any,
    ) -> None:
        super().__init__()
        self.taken: list[Taken] = []
        self._tls = context if security == "tls" else None
        options: dict[str, Any] = {"enable_SMTPUTF8": True, "hostname": "mail.test", **more}
        if security == "starttls":
            options |= {"tls_context": context, "require_starttls": True}
        if auth:
            options |= {"authenticator": self._log_in, "auth_required": True}
            options["auth_require_tls"] = security == "starttls"
        self._options = options
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.connections = 0

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(60)
        self.port = self._server.sockets[0].getsockname()[1]
        self.callback(self._end)
        return self

    def _end(self) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()

    async def _start(self) -> asyncio.Server:
        def protocol() -> SMTP:
            self.connections += 1
            return SMTP(self, loop=self._loop, **self._options)

        return await self._loop.create_server(protocol, "127.0.0.1", 0, ssl=self._tls)

    async def _stop(self) -> None:
        self._server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def handle_DATA(  # noqa: N802 - aiosmtpd's name
        self, server: SMTP, session: Session, envelope: Envelope
    ) -> str:
        del server, session
        content, sender = envelope.original_content, envelope.mail_from
        assert isinstance(content, bytes)
        assert sender is not None
        recipients = [str(recipient) for recipient in envelope.rcpt_tos]
        self.taken.append(Taken(sender, recipients, content, [*envelope.mail_options]))
        return f"250 2.0.0 queued as {len(self.taken)}"

    def _log_in(
        self, server: SMTP, session: Session, envelope: Envelope, mechanism: str, data: Any
    ) -> AuthResult:
        del server, session, envelope, mechanism
        assert isinstance(data, LoginPassword)
        right = (data.login, data.password) == (USER.encode(), PASSWORD.encode())
        return AuthResult(success=right, handled=False)


CLOSE, HANG, DRIP, LATE = "close", "hang", "drip", "late"
LATE_SECONDS = 0.7
EHLO = "250-scripted\r\n250-SIZE 1000000\r\n250 8BITMIME"
_POLITE = {
    "connection": "220 scripted", "EHLO": EHLO, "MAIL": "250 ok", "RCPT": "250 ok",
    "DATA": "354 go ahead", "message": "250 queued", "RSET": "250 ok", "NOOP": "250 ok",
    "QUIT": "221 bye",
}  # fmt: skip


class ScriptedServer(_Served):
    """Speaks SMTP by a script: what it answers to each word, which is a reply or a way to fail.

    A list is used up, one answer a time, and then the polite answer is given. ``CLOSE`` cuts the
    line, ``HANG`` says nothing more, ``DRIP`` answers a byte at a time and never ends. A reply
    after ``HANG`` is given before it, one after ``LATE`` comes ``LATE_SECONDS`` late. ``got`` is
    its ledger: the whole messages that it has read, whatever it answered.
    """

    def __init__(
        self, script: Mapping[str, str] | Mapping[str, str | list[str]] | None = None
    ) -> None:
        super().__init__()
        self.script: dict[str, str | list[str]] = {**_POLITE, **(script or {})}
        self.got: list[bytes] = []
        self.heard: list[str] = []
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self.callback(self._end)
        return self

    def _end(self) -> None:
        self._over.set()
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        for line in self._open:
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def _accept(self) -> None:
        while True:
            try:
                line, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(line)
            threading.Thread(target=self._serve, args=(line,), daemon=True).start()

    def _serve(self, line: socket.socket) -> None:
        with line, suppress(OSError, ConnectionError, StopIteration):
            self._answer(line, "connection")
            reader = line.makefile("rb")
            while words := reader.readline():
                self.heard.append(words.decode("utf-8", "replace").strip())
                word = words.split()[0].decode("latin-1").upper() if words.strip() else ""
                if self._answer(line, word).startswith("354"):
                    content = bytearray()
                    while (part := reader.readline()) != b".\r\n":
                        if not part:
                            return
                        content += part[1:] if part.startswith(b".") else part
                    self.got.append(bytes(content))
                    self._answer(line, "message", bytes(content))
                if word == "QUIT":
                    return

    def plan(self, word: str, content: bytes) -> str:
        """Return a reply or a way to fail; ``content`` is that of a message, once it is whole."""
        del content
        planned = self.script.get(word, "500 5.5.1 what?")
        if isinstance(planned, list):
            return planned.pop(0) if planned else _POLITE[word]
        return planned

    def _answer(self, line: socket.socket, word: str, content: bytes = b"") -> str:
        planned = self.plan(word, content)
        if planned == CLOSE:
            raise ConnectionError
        if planned.startswith(HANG):
            if reply := planned.removeprefix(HANG).strip():
                line.sendall(reply.encode() + b"\r\n")
            self._over.wait(60)
            raise ConnectionError
        if planned.startswith(LATE):
            self._over.wait(LATE_SECONDS)
            planned = planned.removeprefix(LATE).strip()
        while planned == DRIP and not self._over.wait(0.05):
            line.sendall(b"2")
        line.sendall(planned.encode() + b"\r\n")
        return planned

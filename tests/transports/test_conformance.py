"""E-mail, webhooks and Apprise keep what every transport must."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from dispatcher.testing import TransportSuite
from dispatcher.transports import Transport
from dispatcher.transports.apprise import AppriseTransport
from dispatcher.transports.webhook import WebhookTransport
from tests.support.http_receiver import Handler, Receiver, receiving
from tests.support.mail import CLOSE, HANG, MailServer, ScriptedServer
from tests.support.nodes import free_port
from tests.transports.conftest import LOOPBACK

KEY = base64.b64encode(b"a key of some twenty-nine bytes").decode()
PASSWORD = "hunter2"  # noqa: S105 - looked for where it must not be
REFUSALS = [
    {"connection": "554 not you"},
    {"MAIL": "550 no"},
    {"RCPT": "451 later"},
    {"DATA": CLOSE},
    {"message": CLOSE},
    {"message": "550 spam"},
]


class Served(TransportSuite):
    """Has a receiver that takes everything, and others that do not."""

    receiver: Receiver
    stack: ExitStack

    @pytest.fixture(autouse=True)
    def serve(self) -> Iterator[None]:
        with ExitStack() as self.stack:
            self.receiver = self.another(lambda handler: handler.reply(200))
            yield

    def another(self, answer: Callable[[Handler], None]) -> Receiver:
        receiver = self.stack.enter_context(receiving())
        receiver.answer = answer
        return receiver

    def on_port(self, port: int, **more: Any) -> Transport:
        raise NotImplementedError

    def make_transport(self) -> Transport:
        return self.on_port(self.receiver.port)

    def make_failing(self) -> Iterable[Transport]:
        for status in (302, 404, 429, 500, 504):
            receiver = self.another(Handler.hang_up)
            receiver.answers(status, body=b'{"text":"hello"} is refused')
            yield self.on_port(receiver.port)
        yield self.on_port(self.another(Handler.hang_up).port)
        yield self.on_port(free_port())

    def make_silent(self) -> tuple[Transport, float] | None:
        return self.on_port(self.another(Handler.wait_for_its_end).port, timeout=0.3), 0.3


class TestWebhook(Served):
    secrets = (KEY, "a-token")

    def on_port(self, port: int, **more: Any) -> Transport:
        return WebhookTransport(
            url=f"http://127.0.0.1:{port}/a-token", http=True, allow=LOOPBACK,
            secrets=[f"whsec_{KEY}"], headers={"Authorization": "Bearer a-token"}, **more,
        )  # fmt: skip

    options: Mapping[str, Any] = {"url": "https://hooks.example/"}

    def keys_seen(self, transport: Transport) -> Sequence[str] | None:
        del transport
        return [each.headers["idempotency-key"] for each in self.receiver.received]


class TestWebhookOfRecipients(Served):
    options: Mapping[str, Any] = {"http": True, "allow": LOOPBACK}

    @pytest.fixture(autouse=True)
    def name_the_receiver(self, serve: None) -> None:
        del serve  # before this
        self.recipient = self.receiver.url
        self.options = {**self.options, "ports": [self.receiver.port]}

    def on_port(self, port: int, **more: Any) -> Transport:
        self.recipient = f"http://127.0.0.1:{port}/"
        return WebhookTransport(http=True, allow=LOOPBACK, ports=[port], **more)

    def unsendable(self) -> Iterable[tuple[str, Mapping[str, Any]]]:
        for each in ("ada", "ftp://127.0.0.1/", "http://10.0.0.1/", "http://a:b@127.0.0.1/"):
            yield each, self.body

    def keys_seen(self, transport: Transport) -> Sequence[str] | None:
        del transport
        return [each.headers["webhook-id"] for each in self.receiver.received]


class TestApprise(Served):
    secrets = ("a-token",)
    options: Mapping[str, Any] = {"urls": ["json://127.0.0.1/a-token/{recipient}"]}

    def on_port(self, port: int, **more: Any) -> Transport:
        return AppriseTransport(urls=[f"json://127.0.0.1:{port}/a-token/{{recipient}}"], **more)

    def unsendable(self) -> Iterable[tuple[str, Mapping[str, Any]]]:
        yield "ada,ben", self.body
        yield "ada/../ben", self.body
        yield "ada", {"text": "x", "attach": "/etc/passwd"}
        yield "ada", {"text": ""}


class TestSmtp(TransportSuite):
    recipient = "ada@example.org"
    body: Mapping[str, Any] = {"subject": "Tomorrow", "text": "See you at nine"}
    secrets = (PASSWORD,)

    @pytest.fixture(autouse=True)
    def server(self) -> Iterator[None]:
        with MailServer() as self.mail, ExitStack() as self.scripted:
            yield

    def make_transport(self) -> Transport:
        return self.mail.transport()

    def make_failing(self) -> Iterable[Transport]:
        for script in REFUSALS:
            server = self.scripted.enter_context(ScriptedServer(script))
            yield server.transport()
        script = {"EHLO": "250-x\r\n250 AUTH PLAIN", "AUTH": f"535 {PASSWORD}"}
        server = self.scripted.enter_context(ScriptedServer(script))
        yield server.transport(log_in=f"shop:{PASSWORD}@")

    def make_silent(self) -> tuple[Transport, float]:
        server = self.scripted.enter_context(ScriptedServer({"RCPT": HANG}))
        return server.transport(timeout=0.5), 0.5

    def unsendable(self) -> Iterable[tuple[str, Mapping[str, Any]]]:
        return [
            ("ada", self.body),
            ("ada@example.org, ben@example.org", self.body),
            (self.recipient, {}),
            (self.recipient, {"text": "x", "subject": "a\r\nBcc: ben@example.org"}),
        ]

    def keys_seen(self, transport: Transport) -> Sequence[str]:
        del transport
        found = [re.search(rb"Message-ID: (\S+)", each.content) for each in self.mail.taken]
        return [each[1].decode() for each in found if each]

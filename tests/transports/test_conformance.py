"""Webhooks and Apprise keep what every transport must."""

from __future__ import annotations

import base64
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from dispatcher.testing import TransportSuite
from dispatcher.transports import Transport
from dispatcher.transports.apprise import AppriseTransport
from dispatcher.transports.webhook import WebhookTransport
from tests.support.http_receiver import Handler, Receiver, receiving
from tests.transports.webhooks import LOOPBACK

KEY = base64.b64encode(b"a key of some twenty-nine bytes").decode()


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
        with socket.create_server(("127.0.0.1", 0)) as listener:
            closed = int(listener.getsockname()[1])
        yield self.on_port(closed)

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
    def serve(self) -> Iterator[None]:
        with ExitStack() as self.stack:
            self.receiver = self.another(lambda handler: handler.reply(200))
            self.recipient = self.receiver.url
            self.options = {**self.options, "ports": [self.receiver.port]}
            yield

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

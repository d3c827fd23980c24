"""Every transport of ours keeps what the suite asks; one that breaks a rule does not pass it."""

from __future__ import annotations

import base64
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from dispatcher import InvalidDraft, Message, PermanentFailure, TemporaryFailure
from dispatcher.testing import MemoryTransport, TransportSuite
from dispatcher.transports import ConsoleTransport, FileTransport, Transport
from dispatcher.transports.apprise import AppriseTransport
from dispatcher.transports.base import SHIPPED
from dispatcher.transports.webhook import WebhookTransport
from tests.support.http_receiver import Handler, Receiver, receiving
from tests.support.mail import CLOSE, HANG, MailServer, ScriptedServer
from tests.support.nodes import free_port
from tests.support.processes import ran
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
        return [request.headers["idempotency-key"] for request in self.receiver.received]


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
        for address in ("ada", "ftp://127.0.0.1/", "http://10.0.0.1/", "http://a:b@127.0.0.1/"):
            yield address, self.body

    def keys_seen(self, transport: Transport) -> Sequence[str] | None:
        del transport
        return [request.headers["webhook-id"] for request in self.receiver.received]


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
        matches = [re.search(rb"Message-ID: (\S+)", taken.content) for taken in self.mail.taken]
        return [match[1].decode() for match in matches if match]


SECRET = "hunter2-ada"  # noqa: S105 - looked for where it must not be


class TestMemory(TransportSuite):
    def make_transport(self) -> Transport:
        return MemoryTransport()

    def make_failing(self) -> Iterable[Transport]:
        broken = MemoryTransport()
        broken.before = Mock(side_effect=PermanentFailure("no such number"))
        return [broken]

    def keys_seen(self, transport: Transport) -> Sequence[str]:
        assert isinstance(transport, MemoryTransport)
        return [str(message.id) for message in transport.sent]


class TestConsole(TransportSuite):
    def make_transport(self) -> Transport:
        return ConsoleTransport()


class TestFile(TransportSuite):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self.path = tmp_path / "sent.jsonl"

    def make_transport(self) -> Transport:
        return FileTransport(self.path)

    def make_failing(self) -> Iterable[Transport]:
        return [FileTransport(Path("/dev/full"))] if Path("/dev/full").exists() else []


def test_each_transport_that_ships_has_a_suite() -> None:
    assert {f"Test{name.capitalize()}" for name in SHIPPED} - globals().keys() == set()


class Good(MemoryTransport):
    """Keeps every rule; the others each break one."""

    def __init__(self) -> None:
        super().__init__()
        self.keys: list[str] = []
        self.closed = 0

    @staticmethod
    def check(recipient: str, body: Mapping[str, Any]) -> None:
        if not recipient.isalpha():
            raise InvalidDraft("recipient", "digits", f"letters, for {len(body)} texts")

    def send(self, message: Message) -> str | None:
        self.keys.append(str(message.id))
        return super().send(message)

    def close(self) -> None:
        self.closed += 1


def other(**methods: Any) -> type[Good]:
    """Return a transport that differs from the good one in these methods."""
    return type("Other", (Good,), methods)


def answers(receipt: Any) -> type[Good]:
    def send(self: Good, message: Message) -> Any:
        Good.send(self, message)
        return receipt

    return other(send=send)


def keyed(key: Callable[[Message], str]) -> type[Good]:
    return other(send=lambda self, message: self.keys.append(key(message)))


def raises(error: Callable[[Message], Exception]) -> type[Good]:
    def send(_: Good, message: Message) -> None:
        raise error(message)

    return other(send=send)


def checks(check: Callable[[str, Mapping[str, Any]], object]) -> type[Good]:
    return other(check=staticmethod(check))


def refuses(field: str, problem: str = "digits") -> type[Good]:
    """Return a transport whose check refuses whatever is no word, or everything for a reason."""

    def check(recipient: str, body: Mapping[str, Any]) -> None:
        if not recipient.isalpha() or problem != "digits":
            raise InvalidDraft(field, problem, f"{len(body)} letters")

    return checks(check)


def oddly(recipient: str, body: Mapping[str, Any]) -> None:
    if not recipient.isalpha():
        raise KeyError(len(body))


BUSY = threading.Lock()


def send_alone(self: Good, message: Message) -> str | None:
    if not BUSY.acquire(blocking=False):
        raise RuntimeError("used by two threads")
    time.sleep(0.005)
    BUSY.release()
    return Good.send(self, message)


def close_once(self: Good) -> None:
    self.closed += 1
    if self.closed > 1:
        raise RuntimeError("closed already")


def late(message: Message) -> Exception:
    time.sleep(1.3)
    return TemporaryFailure(message.channel)


SWALLOWS = other(send=lambda _, message: f"failed: {message.id}")


class Suite(TransportSuite):
    """The suite of whatever ``make`` makes."""

    make: Callable[[], Good] = Good
    fails: Callable[[], Good] | None = None
    hangs: Callable[[], Good] | None = None
    secrets = (SECRET,)

    def make_transport(self) -> Transport:
        return type(self).make()

    def make_failing(self) -> Iterable[Transport]:
        make = type(self).fails
        return [make()] if make else []

    def make_silent(self) -> tuple[Transport, float] | None:
        make = type(self).hangs
        return (make(), 0.1) if make else None

    def unsendable(self) -> Iterable[tuple[str, Mapping[str, Any]]]:
        return [("4711", {"text": "hello"})]

    def keys_seen(self, transport: Transport) -> Sequence[str]:
        assert isinstance(transport, Good)
        return transport.keys


def suite_of(**made: Callable[[], Good]) -> type[TransportSuite]:
    return type("Made", (Suite,), {name: staticmethod(method) for name, method in made.items()})


def test_a_transport_that_keeps_every_rule_passes() -> None:
    suite_of().run()


@pytest.mark.parametrize(
    ("made", "says"),
    [
        ({"make": answers(7)}, "an int as receipt"),
        ({"make": answers("x" * 501)}, "a receipt of more than 500 characters"),
        ({"make": other(send=send_alone)}, "used by two threads"),
        ({"make": keyed(lambda message: f"{message.id}-{message.attempt_count}")},
         "another key at the second attempt"),
        ({"make": keyed(lambda message: message.channel)}, "the same key for another message"),
        ({"fails": raises(lambda message: ConnectionError(message.channel))},
         "ConnectionError was raised, which is no DeliveryError"),
        ({"fails": raises(lambda message: TemporaryFailure(f"cannot send {message.body}"))},
         "TemporaryFailure shows ['hello']"),
        ({"fails": raises(lambda _: TemporaryFailure(f"{SECRET} was refused"))},
         "TemporaryFailure shows"),
        ({"fails": SWALLOWS}, "nothing was raised"),
        ({"make": checks(lambda *_: None)}, "accepted: '4711'"),
        ({"make": refuses("recipient", "all")}, "recipient: all; accepted: 1 letters"),
        ({"make": checks(oddly)}, "KeyError instead of an InvalidDraft"),
        ({"make": refuses("phone")}, "the field 'phone'"),
        ({"make": other(check=lambda *_: None)}, "check() of Other needs an instance"),
        ({"make": other(destination=lambda *_: "")}, "as destination"),
        ({"make": other(destination=lambda _, message: str(message.id))},
         "another destination for the same recipient"),
        ({"make": other(close=close_once)}, "closed already"),
        ({"make": other(__repr__=lambda _: f"ShowsSecret({SECRET})")}, "its repr shows"),
        ({"hangs": raises(late)}, "with a timeout of 0.1 s"),
        ({"hangs": SWALLOWS}, "from a provider that never answers"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_a_broken_rule_is_named(made: dict[str, Callable[[], Good]], says: str) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - AssertionErrors, and what is raised
        suite_of(**made).run()
    assert says in str(caught.value)


def test_it_needs_no_test_framework() -> None:
    code = "import sys, dispatcher.testing; print({'pytest', 'hypothesis'} & sys.modules.keys())"
    assert ran(sys.executable, "-c", code, check=True, timeout=60).stdout == "set()\n"

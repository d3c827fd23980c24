"""Webhooks to a real server on loopback: what is posted, what its answers mean, and silence."""

from __future__ import annotations

import base64
import json
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from dispatcher import (
    ChannelSettings,
    InvalidSettings,
    PerhapsSent,
    PermanentFailure,
    Settings,
    TemporaryFailure,
)
from dispatcher.errors import DeliveryError
from dispatcher.testing import a_message
from dispatcher.times.clock import SystemClock
from dispatcher.transports import load, webhook
from dispatcher.transports.connections import Deadline
from dispatcher.transports.webhook import receiver_secret
from tests.support.clock import NOON, MovableClock
from tests.support.http_receiver import Handler, Received, Receiver, pause, receiving
from tests.support.waiting import wait_until
from tests.transports.conftest import in_time, open_to, to

SECRET = "whsec_" + base64.b64encode(b"an old key of twenty-nine....").decode()
NEW_SECRET = "whsec_" + base64.b64encode(b"a new key of twenty-nine.....").decode()


def verified(received: Received, secret: str = SECRET) -> Any:
    return Webhook(secret).verify(received.content, received.headers)


def test_a_message_is_posted_as_versioned_json_with_its_recipient_as_data(
    receiver: Receiver,
) -> None:
    message = a_message(body={"text": "hé"}, recipient="user 4711", attempt_count=2)
    assert to(receiver).send(message) == "204"
    [received] = receiver.received
    assert received.path == "/hook"
    assert json.loads(received.content) == {
        "version": 1,
        "id": str(message.id),
        "channel": "test",
        "recipient": "user 4711",
        "body": {"text": "hé"},
        "send_at": "2100-01-01T12:00:00.000Z",
        "attempt": 2,
    }
    assert received.headers["content-type"] == "application/json"
    assert received.headers["idempotency-key"] == str(message.id)
    assert received.headers["webhook-id"] == str(message.id)
    assert "webhook-signature" not in received.headers, "no secret was given"


def test_the_library_of_receivers_verifies_the_signature(receiver: Receiver) -> None:
    message = a_message(body={"text": "hé 💌"})
    headers = {"Authorization": "Bearer x", "User-Agent": "me", "Webhook-Id": "another"}
    clock = MovableClock(datetime.now(UTC))
    transport = to(receiver, secrets=[NEW_SECRET, SECRET], headers=headers, clock=clock)
    for _ in range(2):
        transport.send(message)
        clock.advance(timedelta(seconds=61))
    received, again = receiver.received
    assert again.headers["webhook-id"] == received.headers["webhook-id"] == str(message.id)
    times = [int(request.headers["webhook-timestamp"]) for request in (received, again)]
    assert times[1] == times[0] + 61
    assert again.headers["webhook-signature"] != received.headers["webhook-signature"]
    assert received.headers["webhook-signature"].count("v1,") == 2, "while keys change"
    assert verified(received, SECRET) == verified(received, NEW_SECRET)
    assert verified(received)["id"] == str(message.id)
    assert received.headers["authorization"] == "Bearer x"
    assert received.headers["user-agent"] == "me"


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_a_success_is_sent_and_its_receipt_names_status_and_request(
    receiver: Receiver, status: int
) -> None:
    ids = {"X-Request-Id": "\x1b[2J\x00", "Request-Id": "r-" + "7" * 300}
    receiver.answers(status, ids | {"Content-Length": "0"})
    assert to(receiver).send(a_message()) == f"{status} request-id=r-{'7' * 98}"


FAILURES: dict[int, type[DeliveryError]] = {
    300: PermanentFailure, 301: PermanentFailure, 302: PermanentFailure, 307: PermanentFailure,
    308: PermanentFailure, 400: PermanentFailure, 403: PermanentFailure,
    404: PermanentFailure, 409: PermanentFailure, 410: PermanentFailure, 413: PermanentFailure,
    422: PermanentFailure, 408: TemporaryFailure, 425: TemporaryFailure, 429: TemporaryFailure,
    500: TemporaryFailure, 503: TemporaryFailure, 507: TemporaryFailure, 525: TemporaryFailure,
    599: TemporaryFailure, 600: PerhapsSent, 999: PerhapsSent, 502: PerhapsSent, 504: PerhapsSent,
    520: PerhapsSent, 521: PerhapsSent, 522: PerhapsSent, 523: PerhapsSent, 524: PerhapsSent,
}  # fmt: skip


@pytest.mark.parametrize(("status", "kind"), FAILURES.items())
def test_each_status_is_the_failure_it_means(
    receiver: Receiver, status: int, kind: type[DeliveryError]
) -> None:
    receiver.answers(status, body=b"quotes the secret body")
    with pytest.raises(kind, match=f"answered {status}") as caught:
        to(receiver).send(a_message())
    assert "quotes" not in str(caught.value)
    if isinstance(caught.value, TemporaryFailure):
        assert (caught.value.retry_after, caught.value.closes_channel) == (None, False)


def test_refused_credentials_of_a_channel_wait_until_they_are_mended(receiver: Receiver) -> None:
    receiver.answers(401, body=b"quotes the secret body")
    with pytest.raises(TemporaryFailure, match=r"answered 401: .* credentials") as caught:
        to(receiver).send(a_message())
    assert caught.value.retry_after == timedelta(minutes=1)
    assert caught.value.closes_channel, "all messages have the same"
    with pytest.raises(PermanentFailure, match="answered 401"):
        open_to(receiver.port).send(a_message(recipient=receiver.url))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("7", 7),
        (" 120 ", 120),
        ("0", 0),
        ("Fri, 20 Nov 2026 12:01:30 GMT", 90),
        ("Friday, 20-Nov-26 12:01:30 GMT", 90),
        ("Fri, 20 Nov 2026 11:00:00 GMT", 0),
        ("Fri, 20 Nov 2126 12:00:00 GMT", 86_400),
        ("999999999", 86_400),
        ("99999999999999999999", None),
        ("-5", None),
        ("1.5", None),
        ("soon", None),
        ("Fri, 99 Nov 2026 12:01:30 GMT", None),
        ("", None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("status", [403, 429, 500, 503])
def test_a_server_says_when_to_come_back(
    receiver: Receiver, status: int, text: str, seconds: int | None
) -> None:
    receiver.answers(status, {"Retry-After": text})
    with pytest.raises(DeliveryError) as caught:
        to(receiver, clock=MovableClock(NOON)).send(a_message())
    if status == 403 and seconds is None:
        assert isinstance(caught.value, PermanentFailure)
        return
    assert isinstance(caught.value, TemporaryFailure)
    # A fault of the server's own is no wish.
    asked = None if seconds is None or status == 500 else timedelta(seconds=seconds)
    assert caught.value.retry_after == asked
    assert caught.value.closes_channel is (asked is not None), "all go to this server"
    with pytest.raises(TemporaryFailure) as caught_of_many:
        open_to(receiver.port, clock=MovableClock(NOON)).send(a_message(recipient=receiver.url))
    assert caught_of_many.value.retry_after == asked
    assert not caught_of_many.value.closes_channel


PUBLIC = "https://example.com/"
OPTIONS: list[tuple[str, dict[str, Any]]] = [
    *(("url", {"url": url}) for url in (
        "http://example.com/", "https://10.0.0.1/", "https://ada:hunter2@example.com/", 7,
    )),
    *(("secrets", {"secrets": secrets}) for secrets in (
        SECRET, ["hunter2"], ["whsec_hunter2"], ["whsec_" + "hunter2!" * 8], ["whsec_" + "A" * 100],
        [b"whsec_"],
    )),
    ("payload", {"payload": "xml"}),
    ("headers", {"headers": {"X-Token": "hunter2"}}),
    *(("headers", {"url": PUBLIC, "headers": headers}) for headers in (
        {"X": "hunter2\r\nY: z"}, {"X Y": "hunter2"}, "X",
    )),
    ("headers.X", {"url": PUBLIC, "headers": {"X": 7}}),
    ("allow", {"allow": "10.0.0.0/8"}),
    ("http", {"http": "yes"}),
    ("ports", {"ports": 8080}),
    *(("ports.0", {"ports": [port]}) for port in (0, 65_536, "8080", True)),
    *(("ca_file", {"ca_file": path}) for path in ("/no/such/file", __file__)),
]  # fmt: skip


@pytest.mark.parametrize(("option", "options"), OPTIONS)
def test_an_option_that_cannot_be_used_is_named_and_no_secret_with_it(
    option: str, options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidSettings) as caught:
        load("hooks", ChannelSettings(transport="webhook", options=options), Settings.load())
    assert caught.value.field == f"channels.hooks.options.{option}"
    assert "hunter2" not in str(caught.value)


def test_no_receiver_can_sign_for_another() -> None:
    with receiving() as one, receiving() as two:
        transport = open_to(one.port, two.port, secrets=[NEW_SECRET, SECRET])
        for hook in (one, two):
            transport.send(a_message(recipient=hook.url))
        [first], [second] = one.received, two.received
    for secret in (SECRET, NEW_SECRET):
        assert verified(first, receiver_secret(secret, one.url))
        assert verified(second, receiver_secret(secret, two.url))
        for other in (secret, receiver_secret(secret, two.url)):
            with pytest.raises(WebhookVerificationError):
                verified(first, other)


TIMEOUT = 0.4


class JumpingClock(SystemClock):
    """A clock that goes on, and can be moved."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead


def drip_header(handler: Handler, status: bytes = b"200 OK") -> None:
    handler.wfile.write(b"HTTP/1.1 %b\r\nX-Slow: " % status)
    while True:
        handler.wfile.write(b"x")
        pause(0.02)


def endless_header(handler: Handler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
    while True:
        handler.wfile.write(b"x" * 65_536)


def inform(handler: Handler) -> None:
    while True:
        handler.wfile.write(b"HTTP/1.1 103 Early Hints\r\n\r\n")


def inform_slowly(handler: Handler) -> None:
    while True:
        handler.wfile.write(b"HTTP/1.1 103 Early Hints\r\n\r\n")
        pause(0.001)


@pytest.mark.parametrize(
    ("answer", "timeout", "says"),
    [
        (Handler.wait_for_its_end, TIMEOUT, "no answer came in time"),
        (inform_slowly, TIMEOUT, "no answer came in time"),
        (inform, 60, "the connection broke before an answer"),  # that is too long
        (drip_header, TIMEOUT, None),
        (partial(drip_header, status=b"103 Early Hints"), TIMEOUT, "no answer came in time"),
        (endless_header, TIMEOUT, None),
    ],
)
def test_an_answer_that_does_not_end_is_not_waited_for(
    receiver: Receiver, answer: Callable[[Handler], None], timeout: float, says: str | None
) -> None:
    """Headers that never end change no status."""
    receiver.answer = answer
    transport = to(receiver, timeout=timeout)
    with in_time():
        if says is None:
            assert transport.send(a_message()) == "200"
        else:
            with pytest.raises(PerhapsSent, match=says):
                transport.send(a_message())


@pytest.mark.parametrize(
    "rest",
    [
        b"Bad Name: x\r\nContent-Length: 0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: identity\r\n\r\n",
        b"Content-Length: -1\r\n\r\n",
        b"X-Cut",
        b"",
    ],
)
@pytest.mark.parametrize("before", [b"", b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n"])
def test_once_a_status_has_come_it_decides(receiver: Receiver, before: bytes, rest: bytes) -> None:
    def answer(handler: Handler) -> None:
        handler.wfile.write(b"%bHTTP/1.1 %b\r\n%b" % (before, status, rest))
        handler.close_connection = True

    receiver.answer = answer
    status = b"200 OK"
    assert to(receiver).send(a_message()) == "200"
    status = b"410 Gone"
    with pytest.raises(PermanentFailure, match="410"):
        to(receiver).send(a_message())


@pytest.mark.parametrize(
    "junk",
    [b"", b"SSH-2.0-OpenSSH_9.6\r\n", b"\x00" * 64, b"HTTP/1.1 abc\r\n\r\n", b"HTTP/2 200\r\n\r\n"],
)
def test_a_line_that_ends_without_an_answer_leaves_the_outcome_unknown(
    receiver: Receiver, junk: bytes
) -> None:
    def answer(handler: Handler) -> None:
        handler.wfile.write(junk)
        handler.hang_up()

    receiver.answer = answer
    with pytest.raises(PerhapsSent, match="the connection broke before an answer") as caught:
        to(receiver).send(a_message(body={"text": "hunter2"}))
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


def stream(handler: Handler, size: int, seconds: float) -> None:
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    while True:
        handler.wfile.write(b"1;%b\r\nx\r\n" % (b"y" * size))
        pause(seconds)


@pytest.mark.parametrize(
    "answer",
    [
        partial(stream, size=1_000, seconds=0),
        partial(stream, size=1, seconds=0.02),
        partial(Handler.reply, status=200, body=b"x" * 20_000),
        partial(Handler.reply, status=200, headers={"Connection": "close"}),
    ],
)
def test_a_connection_whose_answer_does_not_end_soon_is_not_used_again(
    receiver: Receiver, answer: Callable[[Handler], None]
) -> None:
    receiver.answer = answer
    transport = to(receiver, timeout=60)
    with in_time():
        assert transport.send(a_message()) == "200"
    assert transport._idle._kept == []


@pytest.mark.parametrize("too_much", [b"HTTP/1.1 500 No\r\n\r\n", b"odd"])
def test_what_a_server_sends_unasked_is_the_answer_of_no_other_message(
    receiver: Receiver, too_much: bytes
) -> None:
    def answer(handler: Handler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok" + too_much)

    receiver.answer = answer
    transport = to(receiver)
    assert {transport.send(a_message()) for _ in range(5)} == {"200"}
    assert len({request.connection for request in receiver.received}) == 5


def test_a_server_that_reads_slowly_is_cut_at_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        port = listener.getsockname()[1]

        def read_slowly() -> None:
            accepted, _ = listener.accept()
            with accepted:
                while accepted.recv(100):
                    pause(0.01)

        threading.Thread(target=read_slowly, daemon=True).start()
        url = f"http://127.0.0.1:{port}/"
        message = a_message(recipient=url, body={"text": "x" * 8_000_000})
        with in_time(), pytest.raises(PerhapsSent, match="in time"):
            open_to(port, timeout=TIMEOUT).send(message)


def test_an_answer_decides_that_comes_before_the_request_was_read() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        theirs.shutdown(socket.SHUT_RD)
        connection = webhook._Connection(("http", "hooks.example", 80), ours)
        assert connection.post(b"POST /", Deadline(SystemClock(), 10))[0] == 413


@contextmanager
def full(address: str, port: int = 0) -> Iterator[int]:
    """Let a port accept nobody; yield it."""
    with socket.socket() as listener, socket.socket() as waiting:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(0)
        waiting.connect(listener.getsockname())
        yield listener.getsockname()[1]


def test_a_server_that_accepts_nobody_certainly_did_not_get_it() -> None:
    with (
        full("127.0.0.1") as port,
        in_time(),
        pytest.raises(TemporaryFailure, match="no connection in time"),
    ):
        open_to(port, timeout=TIMEOUT).send(a_message(recipient=f"http://127.0.0.1:{port}/"))


def test_an_idle_connection_that_the_server_has_ended_is_not_used_again(receiver: Receiver) -> None:
    def answer_and_end(handler: Handler) -> None:
        handler.reply(204)
        handler.hang_up()

    receiver.answer = answer_and_end
    transport = to(receiver)
    for _ in range(20):
        transport.send(a_message())
        wait_until(lambda: all(kept.has_unasked for _, kept in transport._idle._kept))
    assert len({request.connection for request in receiver.received}) == 20


def test_no_thread_ends_the_connection_of_another(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step takes a while, so that one thread finds too many while another takes one."""
    monkeypatch.setattr("dispatcher.transports.webhook._KEEP", 6)
    for name in ("post", "close"):
        real = getattr(webhook._Connection, name)

        def slow(*words: Any, real: Callable[..., Any] = real) -> Any:
            pause(0.002)
            return real(*words)

        monkeypatch.setattr(webhook._Connection, name, slow)

    def answer(handler: Handler) -> None:
        pause(0.005)
        handler.reply(204)

    receiver.answer = answer
    transport = open_to(receiver.port, resolver=lambda *_: ["127.0.0.1"])

    def send_to(number: int) -> str | None:
        url = f"http://h{number % 3}.example:{receiver.port}/"
        return transport.send(a_message(recipient=url))

    with ThreadPoolExecutor(8) as threads:
        assert {*threads.map(send_to, range(160))} == {"204"}
    assert len(transport._idle._kept) <= 6


def test_an_idle_connection_is_kept_for_a_moment_only(receiver: Receiver) -> None:
    clock = JumpingClock()
    transport = to(receiver, clock=clock)
    for _ in range(2):
        transport.send(a_message())
    transport._seconds = 0.0
    with pytest.raises(TemporaryFailure, match="not sent"):  # one that is kept was not written to
        transport.send(a_message())
    first, second = (request.connection for request in receiver.received)
    assert first == second
    transport._seconds = 5.0
    transport.send(a_message())
    clock.ahead += 4.1
    transport.send(a_message())
    assert receiver.received[-1].connection != receiver.received[-2].connection


def test_a_name_that_cannot_be_resolved_certainly_did_not_get_it() -> None:
    none = Mock(side_effect=socket.gaierror(socket.EAI_NONAME, "hooks.example"))

    def hang(host: str, port: int) -> list[str]:
        release.wait(60)
        return []

    release = threading.Event()
    message = a_message(recipient="https://hooks.example/token")
    for resolver in (none, hang):
        transport = open_to(timeout=TIMEOUT, resolver=resolver)
        with in_time(), pytest.raises(TemporaryFailure, match="cannot be resolved") as caught:
            transport.send(message)
        assert "hooks" not in str(caught.value)
    release.set()


def test_of_several_addresses_the_first_that_answers_is_taken_and_no_proxy(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    with receiving() as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        addresses = ["127.0.0.9", "127.0.0.1"]
        transport = open_to(receiver.port, timeout=2.0, resolver=lambda *_: addresses)
        url = f"http://two.example:{receiver.port}/"
        assert transport.send(a_message(recipient=url)) == "204"
        transport.close()
        with full("127.0.0.9", receiver.port):
            assert transport.send(a_message(recipient=url)) == "204"
        assert proxy.received == []
    assert receiver.received[0].headers["host"] == f"two.example:{receiver.port}"

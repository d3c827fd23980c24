"""Measure what a submit costs by HTTP, against the same one in Python; and batches.

`dispatcher serve` runs in a process of its own, on PostgreSQL; one client with one open connection.
The Python submits are made by this process, so that each has a core where there are two. A call
that is refused without a key does nothing: it costs what HTTP costs alone.
"""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from delivery import BODY, channelled, dispatcher_command, prepare, running
from rounds import folder, measure, report
from submit import postgres

from dispatcher import Dispatcher, Draft
from dispatcher.app import App
from dispatcher.embedded import embedded
from dispatcher.web.access import add_key

CALLS, LINES = 200, 2_000
RATE = "1000000/second"


def main() -> None:
    with folder() as path, embedded(path / "redis") as servers, postgres() as url:
        settings = channelled(servers, url, path / "ledger")
        prepare(settings)
        parts = App(settings)
        _, token = add_key(parts.api_keys, "bench", rate=RATE)
        parts.close()
        port = free_port()
        serve = dispatcher_command("serve", "--port", str(port), "--rate", RATE)
        with running(settings, path, serve), Dispatcher(settings) as dispatcher:
            wait_for(port)
            compare(dispatcher, port, token)


def compare(dispatcher: Dispatcher, port: int, token: str) -> None:
    line, stranger = Line(port, token), Line(port, "none", answer=401)
    numbers = count()
    at = datetime.now(UTC) + timedelta(days=2)

    def new() -> dict[str, Any]:
        return {"channel": "sms", "recipient": f"{next(numbers)}", "body": BODY}

    def ours() -> None:
        dispatcher.submit(**new(), send_at=at)

    def keyed() -> None:
        number = next(numbers)
        dispatcher.submit(**new(), send_at=at, idempotency_key=f"python {number}")

    def by_http() -> None:
        line.post(json.dumps(new() | {"send_at": at.isoformat()}))

    def nothing() -> None:
        stranger.post(json.dumps(new() | {"send_at": at.isoformat()}))

    def keyed_by_http() -> None:
        text = json.dumps(new() | {"send_at": at.isoformat()})
        line.post(text, key=f"http {next(numbers)}")

    single = {
        "submit": ours, "submit with a key": keyed, "by HTTP": by_http,
        "by HTTP with an Idempotency-Key": keyed_by_http, "by HTTP, refused without a key": nothing,
    }  # fmt: skip
    figures = measure(single, calls=CALLS)
    report("One submit by HTTP, PostgreSQL (fsync on)", figures, floor="submit")

    def many() -> None:
        drafts = [Draft(**new(), send_at=at) for _ in range(LINES)]
        dispatcher.submit_many(drafts)

    def batch() -> None:
        lines = (json.dumps(new() | {"send_at": at.isoformat()}) for _ in range(LINES))
        answer = post_batch(port, token, lines)
        if answer.count(b"\n") != LINES or answer.count(b'"status":201') != LINES:
            raise SystemExit(f"not all lines were accepted: {answer[:300]!r}")

    figures = measure({"submit_many": many, "batch": batch}, calls=1, warm_up=1)
    report(f"A batch of {LINES:,} lines", figures, floor="submit_many")
    rates = sorted(LINES / value * 1e6 for value in figures["batch"])
    print(f"\nlines/s: {rates[len(rates) // 2]:,.0f} ({rates[0]:,.0f}–{rates[-1]:,.0f})")


class Line:
    """One open connection to the server, whose client does next to nothing.

    ``http.client`` takes 0.1 to 0.2 ms for a call, much of it for the headers of the answer.
    """

    def __init__(self, port: int, token: str, *, answer: int = 201) -> None:
        self._port = port
        self._token = token
        self._answer = b" %d " % answer
        self._connect()

    def post(self, text: str, *, key: str | None = None) -> None:
        """Submit a message."""
        body = text.encode()
        more = "" if key is None else f"Idempotency-Key: {key}\r\n"
        head = (
            f"POST /v1/messages HTTP/1.1\r\nHost: 127.0.0.1\r\n{more}"
            f"Authorization: Bearer {self._token}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        call = head.encode() + body
        try:
            answer = self._ask(call)
        except ConnectionError:  # it was idle, while the others had their turns
            self._connect()
            answer = self._ask(call)
        if self._answer not in answer.partition(b"\r\n")[0]:
            raise SystemExit(repr(answer))

    def _ask(self, call: bytes) -> bytes:
        self._socket.sendall(call)
        answer, length = b"", -1
        while length < 0 or len(answer) < length:
            some = self._socket.recv(65_536)
            if not some:
                raise ConnectionError
            answer += some
            head, end, _ = answer.partition(b"\r\n\r\n")
            if end:
                of_body = head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]
                length = len(head) + len(end) + int(of_body)
        return answer

    def _connect(self) -> None:
        self._socket = socket.create_connection(("127.0.0.1", self._port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def post_batch(port: int, token: str, lines: Iterable[str]) -> bytes:
    """Send a batch, and return its verdicts."""
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/x-ndjson"}
    with closing(http.client.HTTPConnection("127.0.0.1", port)) as line:
        line.request("POST", "/v1/messages/batch", "\n".join(lines).encode(), headers)
        return line.getresponse().read()


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port: int = server.getsockname()[1]
        return port


def wait_for(port: int) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise SystemExit("the server did not start")


if __name__ == "__main__":
    main()

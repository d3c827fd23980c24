"""Measure what a submit costs by HTTP, against the same one in Python; and batches.

`dispatcher serve` runs in a process of its own, on PostgreSQL; one client with one open connection.
The Python submits are made by this process, so that each has a core where there are two. A call
that is refused without a key does nothing: it costs what HTTP costs alone. The server writes its
log to a file; so does this process, like a service, in the second comparison of single calls.
"""

from __future__ import annotations

import gc
import http.client
import json
import logging
import socket
import statistics
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

from delivery import BODY, channelled, cpu_seconds, dispatcher_command, prepare, running
from rounds import ROUNDS, folder, measure, report
from submit import postgres

from dispatcher import Dispatcher, Draft
from dispatcher.app import App
from dispatcher.cli.services import log_formatter
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
        with running(settings, path, serve) as (pid,), Dispatcher(settings) as dispatcher:
            wait_for(port)
            compare(Calls(dispatcher, port, token), server=pid, log=path / "log")


def compare(calls: Calls, *, server: int, log: Path) -> None:
    single = {
        "submit": calls.submit, "submit with a key": calls.keyed, "by HTTP": calls.by_http,
        "by HTTP with an Idempotency-Key": calls.keyed_by_http,
        "by HTTP, refused without a key": calls.refused,
    }  # fmt: skip
    figures = measure(single, calls=CALLS)
    report("One submit by HTTP, PostgreSQL (fsync on)", figures, floor="submit")
    tell_difference(calls, server, "a program without a log")
    write_log(log)
    tell_difference(calls, server, "a program that writes its log, as the server does")

    figures = measure({"submit_many": calls.many, "batch": calls.batch}, calls=1, warm_up=1)
    report(f"A batch of {LINES:,} lines", figures, floor="submit_many")
    rates = sorted(LINES / value * 1e6 for value in figures["batch"])
    print(f"\nlines/s: {rates[len(rates) // 2]:,.0f} ({rates[0]:,.0f}–{rates[-1]:,.0f})")


def tell_difference(calls: Calls, server: int, what: str) -> None:
    """Print the median of single calls, in rounds of both, and the CPU time of the server.

    The median of calls is less moved by others on the machine than the mean of a round.
    """
    plain, by_http, differences, cpu = list[float](), list[float](), list[float](), 0.0
    for _ in range(ROUNDS):
        some = timed(calls.submit)
        before = cpu_seconds(server)
        others = timed(calls.by_http)
        cpu += cpu_seconds(server) - before
        differences.append(statistics.median(others) - statistics.median(some))
        plain += some
        by_http += others
    medians = statistics.median(plain), statistics.median(by_http)
    print(
        f"\n{what}: median of {len(plain):,} calls each {medians[0]:.0f} and {medians[1]:.0f} µs, "
        f"by HTTP {medians[1] - medians[0]:.0f} µs more "
        f"(round by round {min(differences):.0f}–{max(differences):.0f}); "
        f"CPU seconds of the server for 1,000 submits: {cpu / len(by_http) * 1_000:.2f}"
    )


def timed(call: Callable[[], None]) -> list[float]:
    """Return the microseconds of each of some calls."""
    gc.collect()
    found = []
    for _ in range(CALLS):
        began = time.perf_counter()
        call()
        found.append((time.perf_counter() - began) * 1e6)
    return found


def write_log(path: Path) -> None:
    """Let this process write its log as the server does."""
    handler = logging.FileHandler(path)
    handler.setFormatter(log_formatter("console"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


class Calls:
    """The same submits in Python and by HTTP, each of a new recipient."""

    def __init__(self, dispatcher: Dispatcher, port: int, token: str) -> None:
        self._dispatcher = dispatcher
        self._port, self._token = port, token
        self._line, self._stranger = Line(port, token), Line(port, "none", answer=401)
        self._numbers = count()
        self._at = datetime.now(UTC) + timedelta(days=2)

    def submit(self) -> None:
        """Submit a message in Python."""
        self._dispatcher.submit(**self._new(), send_at=self._at)

    def keyed(self) -> None:
        """Submit one with an idempotency key in Python."""
        key = f"python {next(self._numbers)}"
        self._dispatcher.submit(**self._new(), send_at=self._at, idempotency_key=key)

    def by_http(self) -> None:
        """Submit a message by HTTP."""
        self._line.post(self._text())

    def keyed_by_http(self) -> None:
        """Submit one with an idempotency key by HTTP."""
        self._line.post(self._text(), key=f"http {next(self._numbers)}")

    def refused(self) -> None:
        """Make a call that is refused for its key."""
        self._stranger.post(self._text())

    def many(self) -> None:
        """Submit many in Python."""
        self._dispatcher.submit_many([Draft(**self._new(), send_at=self._at) for _ in range(LINES)])

    def batch(self) -> None:
        """Submit as many by HTTP."""
        answer = post_batch(self._port, self._token, (self._text() for _ in range(LINES)))
        if answer.count(b"\n") != LINES or answer.count(b'"status":201') != LINES:
            raise SystemExit(f"not all lines were accepted: {answer[:300]!r}")

    def _new(self) -> dict[str, Any]:
        return {"channel": "sms", "recipient": f"{next(self._numbers)}", "body": BODY}

    def _text(self) -> str:
        return json.dumps(self._new() | {"send_at": self._at.isoformat()})


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

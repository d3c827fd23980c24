"""Measure what a submit costs by HTTP, against the same one in Python; and batches.

`dispatcher serve` runs in a process of its own, on PostgreSQL; one client with one open connection.
The Python submits are made by this process, so that each has a core where there are two. A call
that is refused without a key does nothing: it costs what HTTP costs alone. The server writes its
log to a file; so does this process, like a service, in the second comparison.
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
from itertools import chain, count
from pathlib import Path
from typing import Any

from delivery import BODY, channelled, cpu_seconds, dispatcher_command, prepare, running
from rounds import ROUNDS, facts, folder, measure, report
from submit import postgres

from dispatcher import Dispatcher, Draft
from dispatcher.app import App
from dispatcher.cli.services import log_formatter
from dispatcher.embedded import embedded
from dispatcher.web.keys import ApiKeys

CALLS, LINES = 200, 2_000
RATE = "1000000/second"


def main() -> None:
    with folder() as path, embedded(path / "redis") as servers, postgres() as url:
        settings = channelled(servers, url, path / "ledger")
        prepare(settings)
        parts = App(settings)
        _, token = ApiKeys(parts.database).add("bench", rate=RATE)
        parts.close()
        port = free_port()
        serve = dispatcher_command("serve", "--port", str(port), "--rate", RATE)
        with running(settings, path, serve) as (pid,), Dispatcher(settings) as dispatcher:
            wait_for(port)
            compare(Calls(dispatcher, port, token), server=pid, log=path / "log")


def compare(calls: Calls, *, server: int, log: Path) -> None:
    compare_single_calls(calls, server, "the program writes no log")
    start_logging(log)
    compare_single_calls(calls, server, "the program writes its log, as the server does")
    figures = measure({"submit_many": calls.many, "batch": calls.batch}, calls=1, warm_up=1)
    report(f"A batch of {LINES:,} lines", figures, floor="submit_many")
    rates = sorted(LINES / value * 1e6 for value in figures["batch"])
    print(f"\nlines/s: {rates[len(rates) // 2]:,.0f} ({rates[0]:,.0f}–{rates[-1]:,.0f})")


def compare_single_calls(calls: Calls, server: int, what: str) -> None:
    """Print the median of single calls, in turns of all, and the CPU time of the server.

    Other load on the machine moves it less than it moves the mean.
    """
    alternatives = {
        "submit": calls.submit, "by HTTP": calls.by_http,
        "submit with a key": calls.keyed, "by HTTP with an Idempotency-Key": calls.keyed_by_http,
        "by HTTP, refused without a key": calls.refused,
    }  # fmt: skip
    rounds: dict[str, list[list[float]]] = {name: [] for name in alternatives}
    cpu = dict.fromkeys(alternatives, 0.0)
    for each in alternatives.values():
        timed(each)
    for _ in range(ROUNDS):
        for name, each in alternatives.items():
            before = cpu_seconds(server)
            rounds[name].append(timed(each))
            cpu[name] += cpu_seconds(server) - before
    print(f"\n### One submit by HTTP, PostgreSQL (fsync on), {what}\n")
    print(f"{datetime.now(UTC):%Y-%m-%d}, {facts()}\n")
    print("| | median µs | above Python | round by round | CPU s of the server for 1,000 |")
    print("|---|---|---|---|---|")
    floors = {"by HTTP": "submit", "by HTTP with an Idempotency-Key": "submit with a key"}
    for name, times in rounds.items():
        median = statistics.median(chain(*times))
        line = [name, f"{median:.0f}", "", "", ""]
        if (floor := rounds.get(floors.get(name, ""))) is not None:
            more = [
                statistics.median(some) - statistics.median(plain)
                for some, plain in zip(times, floor, strict=True)
            ]
            line[2] = f"{median - statistics.median(chain(*floor)):.0f}"
            line[3] = f"{min(more):.0f}–{max(more):.0f}"
        if name.startswith("by HTTP"):
            line[4] = f"{cpu[name] / ROUNDS / CALLS * 1_000:.2f}"
        print(f"| {' | '.join(line)} |")


def timed(call: Callable[[], None]) -> list[float]:
    """Return the microseconds of each of some calls."""
    gc.collect()
    found = []
    for _ in range(CALLS):
        began = time.perf_counter()
        call()
        found.append((time.perf_counter() - began) * 1e6)
    return found


def start_logging(path: Path) -> None:
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

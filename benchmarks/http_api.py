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
from collections.abc import Callable, Collection
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
            lines = [http.client.HTTPConnection("127.0.0.1", port) for _ in range(2)]
            with closing(lines[0]), closing(lines[1]):
                strangers = poster(lines[1], "none", answers=(401,))
                compare(dispatcher, poster(lines[0], token), strangers)


def compare(
    dispatcher: Dispatcher, post: Callable[..., bytes], refused: Callable[..., bytes]
) -> None:
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
        post("/v1/messages", json.dumps(new() | {"send_at": at.isoformat()}))

    def nothing() -> None:
        refused("/v1/messages", json.dumps(new() | {"send_at": at.isoformat()}))

    def keyed_by_http() -> None:
        text = json.dumps(new() | {"send_at": at.isoformat()})
        post("/v1/messages", text, **{"Idempotency-Key": f"http {next(numbers)}"})

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
        answer = post("/v1/messages/batch", "\n".join(lines), type="application/x-ndjson")
        if answer.count(b"\n") != LINES or answer.count(b'"status":201') != LINES:
            raise SystemExit(f"not all lines were accepted: {answer[:300]!r}")

    figures = measure({"submit_many": many, "batch": batch}, calls=1, warm_up=1)
    report(f"A batch of {LINES:,} lines", figures, floor="submit_many")
    rates = sorted(LINES / value * 1e6 for value in figures["batch"])
    print(f"\nlines/s: {rates[len(rates) // 2]:,.0f} ({rates[0]:,.0f}–{rates[-1]:,.0f})")


def poster(
    line: http.client.HTTPConnection, token: str, *, answers: Collection[int] = (200, 201)
) -> Callable[..., bytes]:
    """Return what makes a call on one connection, which is answered so."""

    def connect() -> None:
        line.connect()
        line.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def post(path: str, text: str, type: str = "application/json", **more: str) -> bytes:  # noqa: A002 - of the call
        headers = {"Authorization": f"Bearer {token}", "Content-Type": type, **more}
        try:
            line.request("POST", path, text.encode(), headers)
            answer = line.getresponse()
        except ConnectionError:
            line.close()  # it was idle, while the others had their turns
            connect()
            line.request("POST", path, text.encode(), headers)
            answer = line.getresponse()
        body = answer.read()
        if answer.status not in answers:
            raise SystemExit(f"{answer.status}: {body!r}")
        return body

    connect()
    return post


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

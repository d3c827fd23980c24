"""Measure what one caller of the HTTP API waits for beside others that take all they can get.

`dispatcher serve` runs in a process of its own, on PostgreSQL. One key makes a call for a message
every 25 ms; the attackers have four other keys, and threads of another process. Files are dropped
on the page; the last column is what the server keeps of them.
"""

from __future__ import annotations

import http.client
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from itertools import count
from multiprocessing.synchronize import Event
from pathlib import Path
from threading import Thread
from urllib.parse import urlencode

from delivery import channelled, dispatcher_command, prepare, running
from http_api import RATE, free_port, wait_for
from rounds import facts, folder
from submit import postgres

from dispatcher import Dispatcher, Draft
from dispatcher.app import App
from dispatcher.embedded import embedded
from dispatcher.web import Right
from dispatcher.web.keys import ApiKeys

SECONDS, EVERY = 5.0, 0.025
STORED, LONG_BODIES = 20_000, 1_000
KEYS = 4
JSON, LINES = "application/json", "application/x-ndjson"
BOUNDARY = "5d4c3b2a"
DROPPED = count()

Attack = Callable[[int, str], None]
"""One call to that port, with that key."""


def main() -> None:
    with folder() as path, embedded(path / "redis") as servers, postgres() as url:
        settings = channelled(servers, url, path / "ledger")
        prepare(settings)
        parts = App(settings)
        keys = [ApiKeys(parts.database).add(f"greedy {n}", rate=RATE)[1] for n in range(KEYS)]
        _, reads = ApiKeys(parts.database).add("reader", rights=[Right.MESSAGES_READ], rate=RATE)
        _, other = ApiKeys(parts.database).add("other", rate=RATE)
        parts.close()
        at = datetime.now(UTC) + timedelta(days=2)
        with Dispatcher(settings) as dispatcher:
            message = dispatcher.submit(channel="sms", recipient="o", body={}, send_at=at)
            for stored, text in ((STORED, "x"), (LONG_BODIES, "x" * 64_000)):
                body = {"t": text}
                dispatcher.submit_many(
                    [
                        Draft(channel="sms", recipient=f"{n} {len(text)}", body=body, send_at=at)
                        for n in range(stored)
                    ]
                )
        port = free_port()
        serve = dispatcher_command("serve", "--port", str(port), "--rate", RATE)
        attacks: dict[str, tuple[list[str], int, Attack]] = {
            "nothing": (keys, 0, counts),
            "unknown names, a key that may only read": ([reads], 2, unknown_names),
            "2 MB of unknown names in a plan": (keys[:1], 4, unknown_names),
            "2 MB of empty lists in a plan": (keys[:1], 4, empty_lists),
            "a plan of 1,000 messages": (keys[:1], 8, plan),
            "8 batches of 2,000 lines": (keys[:1], 8, batch),
            "32 batches of 2,000 lines": (keys, 32, batch),
            "16 counts": (keys, 16, counts),
            "16 lists of 1,000 messages of 64 KB": (keys, 16, long_list),
            "6 hostile files at once": (keys, 6, drop),
        }  # fmt: skip
        print(f"{datetime.now(UTC):%Y-%m-%d}, {facts()}\n")
        print("| beside | calls | median ms | p99 ms | most ms | MB at most | MB after |")
        print("|---|---|---|---|---|---|---|")
        with running(settings, path, serve) as (pid,):
            wait_for(port)
            for name, (tokens, threads, attack) in attacks.items():
                line = beside(tokens, threads, attack, port, pid, partial(look, other, message.id))
                print(f"| {name} | {' | '.join(line)} |", flush=True)


def beside(  # noqa: PLR0917 - what is measured, and where
    tokens: list[str], threads: int, attack: Attack, port: int, pid: int,
    call: Callable[[http.client.HTTPConnection], None],
) -> Iterator[str]:  # fmt: skip
    """Return the figures of calls beside an attack."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    end = multiprocessing.Event()
    attacker = multiprocessing.Process(target=attacked, args=(tokens, threads, attack, port, end))
    attacker.start()
    time.sleep(1)
    times = list[float]()
    begin = time.perf_counter()
    with closing(http.client.HTTPConnection("127.0.0.1", port)) as line:
        call(line)
        due = time.perf_counter()
        while due < begin + SECONDS:
            time.sleep(max(0.0, due - time.perf_counter()))
            began = time.perf_counter()
            call(line)
            now = time.perf_counter()
            times.append((now - began) * 1e3)
            due = max(due + EVERY, now)
    end.set()
    attacker.join()
    p99 = statistics.quantiles(times, n=100)[-1]
    figures = (statistics.median(times), p99, max(times), *memory(pid))
    return iter((str(len(times)), *(f"{each:.0f}" for each in figures)))


def memory(pid: int) -> tuple[float, float]:
    """Return the most MB that a process has had, and those that it has."""
    text = Path(f"/proc/{pid}/status").read_text()
    lines = dict(each.split(":", 1) for each in text.splitlines())
    return int(lines["VmHWM"].split()[0]) / 1e3, int(lines["VmRSS"].split()[0]) / 1e3


def attacked(tokens: list[str], threads: int, attack: Attack, port: int, end: Event) -> None:
    def repeat(token: str) -> None:
        while not end.is_set():
            try:
                attack(port, token)
            except OSError:
                continue  # the server refused the call before it was sent

    some = [Thread(target=repeat, args=(tokens[n % len(tokens)],)) for n in range(threads)]
    for each in some:
        each.start()
    for each in some:
        each.join()


def look(token: str, message_id: object, line: http.client.HTTPConnection) -> None:
    line.request("GET", f"/v1/messages/{message_id}", headers={"Authorization": f"Bearer {token}"})
    answer = line.getresponse()
    answer.read()
    if answer.status != 200:
        raise SystemExit(f"the other caller got {answer.status}")


def asked(port: int, token: str, path: str, body: bytes | None = None, media: str = JSON) -> None:
    headers = {"Authorization": f"Bearer {token}", "Content-Type": media}
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=120)) as line:
        line.request("GET" if body is None else "POST", path, body, headers)
        answer = line.getresponse()
        while answer.read(1_000_000):
            pass
        if answer.status in (429, 503):
            time.sleep(0.2)


def unknown_names(port: int, token: str) -> None:
    names = ",".join(f'"{number:x}":0' for number in range(190_000))
    body = f'{{"messages":[{{{names}}}]}}'.encode()
    asked(port, token, "/v1/plans", body)


def empty_lists(port: int, token: str) -> None:
    lists = ",".join("[]" for _ in range(43_000))
    draft = f'{{"channel":"sms","recipient":"a","send_in_seconds":9,"body":{{"a":[{lists}]}}}}'
    body = f'{{"messages":[{",".join([draft] * 15)}]}}'.encode()
    asked(port, token, "/v1/plans", body)


def plan(port: int, token: str) -> None:
    drafts = [line(f"plan {number}") for number in range(1_000)]
    asked(port, token, "/v1/plans", f'{{"messages":[{",".join(drafts)}]}}'.encode())


def batch(port: int, token: str) -> None:
    body = "\n".join(line(f"{time.time_ns()} {number}") for number in range(2_000)).encode()
    asked(port, token, "/v1/messages/batch", body, LINES)


def line(recipient: str) -> str:
    draft = {"channel": "sms", "recipient": recipient, "body": {"t": "x"}, "send_in_seconds": 9e4}
    return json.dumps(draft)


def counts(port: int, token: str) -> None:
    asked(port, token, "/v1/counts")


def long_list(port: int, token: str) -> None:
    asked(port, token, "/v1/messages?limit=1000")


def drop(port: int, token: str) -> None:
    """Drop the next of the hostile files on the page, and wait until it is planned."""
    name, content = hostile_files()[next(DROPPED) % len(hostile_files())]
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=120)) as line:
        parts = [
            f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{field}"{more}\r\n\r\n'.encode()
            + value
            for field, more, value in (
                ("campaign", "", b"greedy"), ("channel", "", b"sms"),
                ("file", f'; filename="{name}"', content),
            )
        ]  # fmt: skip
        form = b"\r\n".join([*parts, f"--{BOUNDARY}--\r\n".encode()])
        media = f"multipart/form-data; boundary={BOUNDARY}"
        headers = {"Cookie": signed_in(port, token), "Sec-Fetch-Site": "same-origin"}
        line.request("POST", "/campaigns", form, headers | {"Content-Type": media})
        answer = line.getresponse()
        answer.read()
        if answer.status != 303:
            time.sleep(0.2)
            return
        path, end = answer.headers["Location"], time.monotonic() + 2 * SECONDS
        while time.monotonic() < end:
            line.request("GET", path, headers=headers)
            if b"data-live" not in line.getresponse().read():
                return
            time.sleep(0.2)


@cache
def signed_in(port: int, token: str) -> str:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=120)) as line:
        form = {"Content-Type": "application/x-www-form-urlencoded", "Sec-Fetch-Site": "none"}
        line.request("POST", "/sign-in", urlencode({"key": token}), form)
        answer = line.getresponse()
        answer.read()
        return answer.headers["Set-Cookie"].partition(";")[0]


@cache
def hostile_files() -> list[tuple[str, bytes]]:
    """Return files that take much memory if they are read whole, or if all of them is kept."""
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(days=3)
    lists = ",".join("[]" for _ in range(21_000))
    body = f'{{"recipient":"a","send_at":"{at.isoformat()}","body":{{"a":[{lists}]}}}}\n'
    columns = b"recipient,text,send_at\n"
    rows = "".join(
        f"r{n},x,{(at + n * timedelta(minutes=1)).isoformat()}\n" for n in range(190_000)
    )
    return [
        ("a-long-line.jsonl", b'{"body":{"a":[' + b"[]," * 15_000_000 + b"[]]}}\n"),
        ("long-bodies.jsonl", body.encode() * 900),
        ("columns.csv", columns + b"," * 60_000_000 + b"\n"),
        ("an-endless-row.csv", columns + b'"a\n",' * 190_000 + b"\n"),
        ("refused.csv", columns + f"r,{'x' * 250},yesterday\n".encode() * 190_000),
        ("minutes.csv", columns + rows.encode()),
    ]


if __name__ == "__main__":
    main()

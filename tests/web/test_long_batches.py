"""Batches and files of any length: verdicts come while lines are sent, the server keeps neither."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Thread

import httpx2
import pytest

from dispatcher.times.clock import SystemClock
from dispatcher.web.access import add_key
from tests.support.environment import child_environment
from tests.support.house import House
from tests.support.house_fixtures import Build
from tests.support.nodes import free_port
from tests.support.processes import command_line
from tests.support.waiting import DEADLINE, wait_until

WARM_UP = 1_000
TEXT = "x" * 4_000


@pytest.fixture
def server(build: Build, tmp_path: Path) -> Iterator[tuple[House, int, int]]:
    """Give a house, and the port and the process id of `dispatcher serve` on it."""
    house = build(clock=SystemClock())
    port, log = free_port(), tmp_path / "serve.log"
    log.touch()
    arguments = ["serve", "--port", str(port)]
    process = command_line(arguments, log, tmp_path, child_environment(house.settings))
    try:
        wait_until(lambda: "running on" in log.read_text())
        assert process.pid is not None
        yield house, port, process.pid
    finally:
        process.terminate()
        process.join()


def memory(pid: int, name: str) -> int:
    """Return a figure of a process's memory in bytes: VmRSS now, VmHWM the highest so far."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    [kilobytes] = [line.split()[1] for line in lines if line.startswith(f"{name}:")]
    return int(kilobytes) * 1_024


def forget_peak(pid: int) -> None:
    """Let VmHWM begin again at what the process has now."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux tells peaks alone")
@pytest.mark.parametrize("many", [4_000, pytest.param(20_000, marks=pytest.mark.long)])
def test_verdicts_come_while_lines_are_sent_and_memory_does_not_grow(
    server: tuple[House, int, int], many: int
) -> None:
    house, port, pid = server
    _, token = add_key(house.parts.api_keys, "shop")
    headers = {
        "Authorization": f"Bearer {token}",
        "Content-Type": "application/x-ndjson",
        "Transfer-Encoding": "chunked",
    }

    def chunk(first: int, count: int) -> bytes:
        asked = {"channel": "memory", "body": {"text": TEXT}, "send_in_seconds": 86_400}
        numbers = range(first, first + count)
        lines = [json.dumps(asked | {"recipient": f"r{number}"}) for number in numbers]
        text = "\n".join(lines).encode() + b"\n"
        return b"%x\r\n%s\r\n" % (len(text), text)

    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=3 * DEADLINE)) as caller:
        caller.putrequest("POST", "/v1/messages/batch")
        for name, value in headers.items():
            caller.putheader(name, value)
        caller.endheaders(chunk(0, WARM_UP))
        answer = caller.getresponse()
        read = [json.loads(answer.readline())["status"]]
        # The rest of the call is not sent yet.
        assert read == [201]
        forget_peak(pid)
        before = memory(pid, "VmRSS")

        def send() -> None:
            for first in range(WARM_UP, many, 100):
                caller.send(chunk(first, 100))
            caller.send(b"0\r\n\r\n")

        sender = Thread(target=send)
        sender.start()
        read += [json.loads(line)["status"] for line in answer]
        sender.join()
    assert read == [201] * many
    assert memory(pid, "VmHWM") - before < 6_000_000


def hostile_files() -> dict[str, bytes]:
    """Return files of 4 to 15 MB. Read whole, the first one takes more than a gigabyte."""
    columns = b"recipient,text,send_at\n"
    lists = b'{"recipient":"a","send_in":"1 day","body":{"a":[' + b"[]," * 20_000 + b"[]]}}\n"
    text = b'{"recipient":"a","send_at":"soon","text":"%b"}\n' % (b"x" * 60_000)
    return {
        "a-long-line.jsonl": b'{"body":{"a":[' + b"[]," * 5_000_000 + b"[]]}}\n",
        "long-bodies.jsonl": lists * 60,
        "long-texts.jsonl": text * 250,
        "columns.csv": columns + b"," * 15_000_000 + b"\n",
        "an-endless-row.csv": columns + b'"a\n",' * 60_000 + b"\n",
        "refused.csv": columns + b"r,%b,yesterday\n" % (b"x" * 250) * 20_000,
    }


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux tells peaks alone")
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_hostile_files_at_once_take_little_memory(server: tuple[House, int, int]) -> None:
    house, port, pid = server
    files = hostile_files()

    def planned(name: str) -> str:
        _, key = add_key(house.parts.api_keys, name)
        form = {"campaign": "hostile", "channel": "memory"}
        with httpx2.Client(
            base_url=f"http://127.0.0.1:{port}",
            headers={"Sec-Fetch-Site": "same-origin"},
            timeout=3 * DEADLINE,
        ) as visitor:
            visitor.post("/sign-in", data={"key": key})
            dropped = visitor.post("/campaigns", data=form, files={"file": (name, files[name])})
            assert dropped.status_code == 303, dropped.text
            path = dropped.headers["location"]
            wait_until(lambda: "data-live" not in visitor.get(path).text, every=0.2)
            return str(visitor.get(path).text)

    forget_peak(pid)
    before = memory(pid, "VmRSS")
    with ThreadPoolExecutor(len(files)) as visitors:
        pages = dict(zip(files, visitors.map(planned, files), strict=True))
    grown = memory(pid, "VmHWM") - before
    assert "is too long" in pages["a-long-line.jsonl"]
    assert "and 249 more" not in pages["refused.csv"]
    assert "and 19,980 more" in pages["refused.csv"]
    assert grown < 200_000_000

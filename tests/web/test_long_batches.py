"""A batch of any length: verdicts come while lines are sent, and the server keeps neither."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from threading import Thread

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
    server: tuple[House, int, int], report: Callable[[str], None], many: int
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
    grown, sent = memory(pid, "VmHWM") - before, (many - WARM_UP) * len(TEXT)
    report(f"{sent / 1e6:.0f} MB of lines, {grown / 1e6:.1f} MB more memory")
    assert grown < 6_000_000

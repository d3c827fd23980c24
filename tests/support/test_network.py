"""Hosts of a test's own: a slow line delays packets and loses some."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.network import Host, network
from tests.support.waiting import DEADLINE, wait_until

pytestmark = pytest.mark.long

DELAY_MS, LOSS = 50, 0.3
PACKETS = 200
LARGE = 3_000_000
PORT = 7_000
_ECHO = f"""
import socket
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.bind(("", {PORT}))
listener = socket.create_server(("", {PORT}))
print("ready", flush=True)
line, _ = listener.accept()
line.sendall(bytes({LARGE}))
line.close()
while True:
    datagrams.sendto(*datagrams.recvfrom(100))
"""


@contextmanager
def echo(host: Host) -> Iterator[None]:
    """Run a server that sends a large answer to the first caller, then each datagram back."""
    command = host.command(sys.executable, "-c", _ECHO)
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        yield
        server.kill()


def test_a_slow_line_delays_and_loses_packets() -> None:
    with network() as net:
        host = net.host("far")
        with echo(host), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as caller:
            caller.connect((host.address, PORT))
            with host.slowed(delay_ms=5, loss=0.01):
                # Segments larger than a packet of the line must pass, too.
                assert size_of_answer(host) == LARGE
            caller.settimeout(DEADLINE)
            with host.slowed(DELAY_MS, LOSS):
                begun = time.monotonic()
                for _ in range(PACKETS):
                    caller.send(b"slow")
                assert caller.recv(100) == b"slow"
                assert time.monotonic() - begun >= 2 * DELAY_MS / 1_000
                answered = 1 + answers_before_the_end(caller)
            assert PACKETS / 10 < answered < PACKETS


def size_of_answer(host: Host) -> int:
    with socket.create_connection((host.address, PORT), DEADLINE) as line:
        return sum(map(len, iter(lambda: line.recv(65_536), b"")))


def answers_before_the_end(caller: socket.socket) -> int:
    """Send an end until it comes back; packets keep their order, so all others are in by then."""
    answered = 0
    caller.settimeout(0.2)

    def ended() -> bool:
        nonlocal answered
        caller.send(b"end")
        try:
            while (answer := caller.recv(100)) == b"slow":
                answered += 1
        except TimeoutError:
            return False
        return answer == b"end"

    wait_until(ended)
    return answered

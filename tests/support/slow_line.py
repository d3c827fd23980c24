"""A line that delays and loses frames: ``python -m tests.support.slow_line A B DELAY_MS LOSS``.

It carries frames between two interfaces of its network namespace until it is ended. The kernel's
own means, netem, is not in every kernel; packet sockets are.
"""

from __future__ import annotations

import random
import select
import socket
import sys
import time
from collections import deque

_ALL_FRAMES = 0x0003
_SOL_PACKET, _VNET_HEADER, _IGNORE_OUTGOING = 263, 15, 23
_LARGEST = 70_000
"""Bytes. The kernel cuts large segments at the end of the line, not here."""
READY = "ready"


class _End:
    def __init__(self, interface: str) -> None:
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        # With its header a frame keeps what is still to be done: checksums, segments.
        self.socket.setsockopt(_SOL_PACKET, _VNET_HEADER, 1)
        self.socket.setsockopt(_SOL_PACKET, _IGNORE_OUTGOING, 1)
        self.socket.bind((interface, _ALL_FRAMES))
        self.socket.setblocking(False)
        self.waiting: deque[tuple[float, bytes]] = deque()

    def take(self, delay: float, loss: float, choose: random.Random) -> None:
        while True:
            try:
                frame = self.socket.recv(_LARGEST)
            except BlockingIOError:
                return
            if choose.random() >= loss:
                self.waiting.append((time.monotonic() + delay, frame))

    def give(self, other: _End) -> None:
        """Send to the other end what has waited long enough; one that finds no room is lost."""
        while self.waiting and self.waiting[0][0] <= time.monotonic():
            _, frame = self.waiting.popleft()
            try:
                other.socket.send(frame)
            except OSError:
                continue

    def left(self) -> float:
        return max(0.0, self.waiting[0][0] - time.monotonic()) if self.waiting else 60.0


def _run(first: _End, second: _End, delay: float, loss: float) -> None:
    choose = random.Random(1)  # noqa: S311 - a repeatable choice, no secret
    ends = {first.socket: first, second.socket: second}
    while True:
        readable, _, _ = select.select(list(ends), [], [], min(first.left(), second.left()))
        for each in readable:
            ends[each].take(delay, loss, choose)
        first.give(second)
        second.give(first)


if __name__ == "__main__":
    _made = _End(sys.argv[1]), _End(sys.argv[2])
    sys.stdout.write(f"{READY}\n")
    sys.stdout.flush()
    _run(*_made, float(sys.argv[3]) / 1_000, float(sys.argv[4]))

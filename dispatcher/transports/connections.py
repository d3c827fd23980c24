"""What transports need of connections: a deadline, an address that answers, idle ones kept."""

from __future__ import annotations

import re
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from math import inf
from typing import Generic, TypeVar

from dispatcher.times.clock import Clock

C = TypeVar("C")
_NAME = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(\.(?!-)[a-z0-9_-]{1,63}(?<!-))*")
_LONGEST_NAME = 253
_IN_A_NUMBER = re.compile(r"(.*\.)?([0-9]+|0x[0-9a-f]*)")


class Deadline:
    """The end of one send, by a monotonic clock."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self.clock = clock
        self.seconds = seconds
        self._ends_at = clock.monotonic() + seconds

    def left(self) -> float:
        """Return the seconds that are left. Raises TimeoutError when none are."""
        left = self._ends_at - self.clock.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def shorten(self, seconds: float) -> None:
        """End in that time, if not before."""
        self._ends_at = min(self._ends_at, self.clock.monotonic() + seconds)


def address_of(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(text)
    except ValueError:
        return None


def is_name(text: str) -> bool:
    """Whether ``text``, in lower case, is the name of a host and no way to write an address.

    ``127.1``, ``2130706433`` and ``0x7f.1`` are addresses to a resolver: what ends in a number is.
    """
    short = len(text) <= _LONGEST_NAME
    return short and bool(_NAME.fullmatch(text)) and not _IN_A_NUMBER.fullmatch(text)


def resolve(host: str, port: int) -> list[str]:
    """Return the addresses of ``host``, best first. No deadline bounds this. Raises OSError."""
    answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    as_number = socket.NI_NUMERICHOST | socket.NI_NUMERICSERV
    names = (socket.getnameinfo(answer[4], as_number)[0] for answer in answers)
    return list(dict.fromkeys(names))


def connect(addresses: Sequence[str], port: int, deadline: Deadline) -> socket.socket:
    """Connect to the first address that answers, each in its share of the time. Raises OSError."""
    for number, address in enumerate(addresses, 1):
        try:
            share = deadline.left() / (len(addresses) - number + 1)
            connected = socket.create_connection((address, port), timeout=share)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:
            if number == len(addresses):
                raise
        else:
            return connected
    raise OSError("no address")


class IdleConnections(Generic[C]):
    """Connections that wait for the next message, for ``seconds`` at most. For many threads.

    From when it is taken until it is given a connection is of one thread, and no other one ends it.
    ``end`` ends those that have waited for longer, and the oldest of more than ``most``.
    """

    def __init__(
        self, clock: Clock, end: Callable[[C], object], seconds: float, most: int = sys.maxsize
    ) -> None:
        self._clock = clock
        self._end = end
        self._seconds = seconds
        self._most = most
        self._lock = threading.Lock()
        self._kept: list[tuple[float, C]] = []  # since when, the longest first

    def take(self, fits: Callable[[C], bool] = bool) -> C | None:
        """Return the one that was given last, of those that fit; None without a fresh one."""
        self._end_older(self._clock.monotonic() - self._seconds)
        with self._lock:
            for number in reversed(range(len(self._kept))):
                if fits(self._kept[number][1]):
                    return self._kept.pop(number)[1]
        return None

    def give(self, connection: C) -> None:
        with self._lock:
            self._kept.append((self._clock.monotonic(), connection))
        self._end_older(self._clock.monotonic() - self._seconds)

    def close(self) -> None:
        self._end_older(inf)

    def _end_older(self, latest: float) -> None:
        with self._lock:
            number = max(0, len(self._kept) - self._most)
            while number < len(self._kept) and self._kept[number][0] < latest:
                number += 1
            old, self._kept = self._kept[:number], self._kept[number:]
        for _, connection in old:
            self._end(connection)

"""Connections that wait for the next message: one for each sender."""

from __future__ import annotations

from collections import deque
from threading import Lock

from dispatcher.times.clock import Clock
from dispatcher.transports.smtp.connection import Connection

_MOST_CARRIED = 100
"""Messages after which a connection is closed: many servers end one that carries more."""


class Pool:
    """Keeps connections that are open and idle, for ``idle_seconds`` at most. For many threads."""

    def __init__(self, clock: Clock, *, idle_seconds: float) -> None:
        self._clock = clock
        self._idle_seconds = idle_seconds
        self._lock = Lock()
        self._idle: deque[Connection] = deque()
        self._is_open = True

    def take(self) -> Connection | None:
        """Return the connection that was used last, None where none is fresh enough."""
        oldest = self._clock.monotonic() - self._idle_seconds
        with self._lock:
            connection = self._idle.pop() if self._idle else None
            too_old = (
                [*self._idle] if connection is not None and connection.idle_since < oldest else []
            )
            for _ in too_old:
                self._idle.popleft()
        if connection is None or connection.idle_since >= oldest:
            return connection
        self._close(connection, *too_old)
        return None

    def give(self, connection: Connection) -> None:
        """Keep a connection for the next message, if it can carry one."""
        if not connection.is_open:
            return
        now = self._clock.monotonic()
        connection.idle_since = now
        with self._lock:
            is_kept = self._is_open and connection.carried < _MOST_CARRIED
            if is_kept:
                self._idle.append(connection)
            too_old = []
            while self._idle and self._idle[0].idle_since < now - self._idle_seconds:
                too_old.append(self._idle.popleft())
        self._close(*too_old)
        if not is_kept:
            self._close(connection)

    def close(self) -> None:
        """Close what is idle, and from now on whatever is given back."""
        with self._lock:
            self._is_open = False
            idle = [*self._idle]
            self._idle.clear()
        self._close(*idle)

    def _close(self, *connections: Connection) -> None:
        for each in connections:
            each.close(self._clock)

"""Lines that wait for the next message: one for each sender that had one to carry."""

from __future__ import annotations

from collections import deque
from threading import Lock

from dispatcher.times.clock import Clock
from dispatcher.transports.smtp.line import Line

_MOST_CARRIED = 100
"""Messages after which a line is closed: many servers end one that carries more."""


class Pool:
    """Keeps lines that are open and idle, for ``idle_seconds`` at most. For many threads."""

    def __init__(self, clock: Clock, *, idle_seconds: float) -> None:
        self._clock = clock
        self._idle_seconds = idle_seconds
        self._lock = Lock()
        self._idle: deque[Line] = deque()
        self._is_open = True

    def take(self) -> Line | None:
        """Return the line that was used last, None where there is none that is fresh enough."""
        oldest = self._clock.monotonic() - self._idle_seconds
        with self._lock:
            line = self._idle.pop() if self._idle else None
            too_old = [*self._idle] if line is not None and line.idle_since < oldest else []
            for _ in too_old:
                self._idle.popleft()
        if line is None or line.idle_since >= oldest:
            return line
        self._close(line, *too_old)
        return None

    def give(self, line: Line) -> None:
        """Keep a line for the next message, if it can carry one."""
        if not line.is_open:
            return
        now = self._clock.monotonic()
        line.idle_since = now
        with self._lock:
            is_kept = self._is_open and line.carried < _MOST_CARRIED
            if is_kept:
                self._idle.append(line)
            too_old = []
            while self._idle and self._idle[0].idle_since < now - self._idle_seconds:
                too_old.append(self._idle.popleft())
        self._close(*too_old)
        if not is_kept:
            self._close(line)

    def close(self) -> None:
        """Close what is idle, and from now on whatever is given back."""
        with self._lock:
            self._is_open = False
            idle = [*self._idle]
            self._idle.clear()
        self._close(*idle)

    def _close(self, *lines: Line) -> None:
        for each in lines:
            each.close(self._clock)

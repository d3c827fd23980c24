"""A clock that stands still until a test moves it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

NOON = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)


class MovableClock:
    """Implements ``dispatcher.times.clock.Clock``. Sleeping moves it and is written down.

    ``meanwhile``, if a test sets it, is called in each sleep.
    """

    meanwhile: Callable[[], object] | None = None

    def __init__(self, now: datetime = NOON) -> None:
        self._lock = threading.Lock()
        self._start = now
        self._passed = timedelta(0)
        self._wall_shift = timedelta(0)
        self.sleeps: list[float] = []

    def now(self) -> datetime:
        with self._lock:
            return self._start + self._passed + self._wall_shift

    def monotonic(self) -> float:
        with self._lock:
            return self._passed.total_seconds()

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.advance(timedelta(seconds=max(0.0, seconds)))
        if self.meanwhile is not None:
            self.meanwhile()

    def advance(self, length: timedelta) -> None:
        if length < timedelta(0):
            raise ValueError("time does not pass backwards; use set_wall for a wrong clock")
        with self._lock:
            self._passed += length

    def set_wall(self, now: datetime) -> None:
        """Set the wall clock, as an operator or NTP would; monotonic time stays."""
        with self._lock:
            self._wall_shift = now - self._start - self._passed

"""The clock of this process; no other module reads the time.

It checks the times that callers ask for and measures lengths. Redis ``TIME`` decides for limiters,
and the database's clock decides whether a message is due.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol

# Linux stops CLOCK_MONOTONIC during a suspend; other systems have no other clock.
_RUNNING = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """A clock. Tests pass one that they can move."""

    def now(self) -> datetime:
        """Return the present instant, aware UTC."""

    def monotonic(self) -> float:
        """Return seconds that never go back, for measuring lengths."""

    def sleep(self, seconds: float) -> None:
        """Return after ``seconds``."""


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return seconds that never go back and go on while the machine is suspended."""
        return time.clock_gettime(_RUNNING)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

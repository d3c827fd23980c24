"""The only place that asks what time it is.

Two clocks decide more than this one: Redis ``TIME`` decides for limiters, and the database's
clock decides whether a message is due. This one judges what callers ask for and measures how
long things take.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol

# Linux stops CLOCK_MONOTONIC during a suspend; other systems have no other clock.
_RUNNING = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """What the dispatcher needs of time. Tests pass one they can move."""

    def now(self) -> datetime:
        """Return the present instant, aware UTC."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never go back, for measuring lengths."""
        ...

    def sleep(self, seconds: float) -> None:
        """Return after ``seconds``."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        """Return the present instant, aware UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return seconds that never go back and go on while the machine is suspended."""
        return time.clock_gettime(_RUNNING)

    def sleep(self, seconds: float) -> None:
        """Return after ``seconds``."""
        time.sleep(seconds)

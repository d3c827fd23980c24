"""The clock of this process, the only module that reads the time, and lengths of time.

The clock checks the times that callers ask for. Redis ``TIME`` decides for limiters, and the
database's clock decides whether a message is due.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Protocol, runtime_checkable

MILLISECOND = timedelta(milliseconds=1)

# Linux stops CLOCK_MONOTONIC during a suspend; other systems have no other clock.
_RUNNING = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


@runtime_checkable
class Clock(Protocol):
    """A clock. Tests pass one that they can move."""

    def now(self) -> datetime:
        """Return the present instant, aware UTC."""

    def monotonic(self) -> float:
        """Return seconds that never go back, for measuring lengths."""

    def sleep(self, seconds: float) -> None:
        """Return after ``seconds``."""


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    monotonic = staticmethod(partial(time.clock_gettime, _RUNNING))
    """Returns seconds that never go back and go on while the machine is suspended."""

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def to_length_ms(length: timedelta) -> int:
    return length // MILLISECOND


def length_text(length: timedelta) -> str:
    """Return a length for people: 2 hours, 95 s, 300 ms."""
    seconds = round(length.total_seconds())
    for unit, size in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= 2 * size or seconds == size:
            many = seconds // size
            return f"{many} {unit}{'' if many == 1 else 's'}"
    return f"{seconds} s" if seconds else f"{length // MILLISECOND} ms"

"""The only place in the tests that sleeps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(condition: Callable[[], T], deadline: float = 10.0, *, every: float = 0.01) -> T:
    """Return the first true answer of ``condition``; fail after ``deadline`` seconds."""
    end = time.monotonic() + deadline
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > end:
            name = getattr(condition, "__qualname__", repr(condition))
            raise AssertionError(f"{name} did not become true within {deadline} s")
        time.sleep(every)

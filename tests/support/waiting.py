"""The only place in the tests that sleeps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

DEADLINE = 60.0
"""Seconds. Far more than anything takes on a slow machine: only what hangs reaches it."""


def wait_until(condition: Callable[[], T], deadline: float = DEADLINE, *, every: float = 0.01) -> T:
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

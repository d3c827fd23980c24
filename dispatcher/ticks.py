"""Keeps ticks of the sweep that come late, and all at once, from doing the same over and over."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from datetime import timedelta

from dispatcher.clock import Clock


class Ticks:
    """Begins each duty at most twice in its interval, in one process.

    A tick waits for a free thread; where none was free for a while, many come together. Those that
    come after the first find nothing new. ``every`` names the intervals by duty.
    """

    def __init__(self, clock: Clock, every: Mapping[str, timedelta]) -> None:
        self._clock = clock
        self._every = every
        self._lock = threading.Lock()
        self._begun_at: dict[str, float] = {}

    def run(self, duty: str, work: Callable[[], object]) -> None:
        """Do a duty, unless it was begun less than half of its interval ago."""
        with self._lock:
            now = self._clock.monotonic()
            apart = self._every[duty].total_seconds() / 2
            if now - self._begun_at.get(duty, -math.inf) < apart:
                return
            self._begun_at[duty] = now
        work()

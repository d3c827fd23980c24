"""How the duties of the sweep run: begun at most twice in an interval, and in bounded batches."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import timedelta

from dispatcher.times.clock import Clock

BATCH = 1_000
_MOST_BATCHES = 20
_AT_ONCE = 2
"""How often one duty may be under way at a time in a process: one may hang, none may pile up."""


class Ticks:
    """Begins each duty at most twice in its interval, in one process.

    A tick waits for a free thread; where none was free for a while, many come together. Those that
    come after the first find nothing new. A duty that takes longer than its interval is under way
    twice at most. ``every`` names the intervals by duty.
    """

    def __init__(self, clock: Clock, every: Mapping[str, timedelta]) -> None:
        self._clock = clock
        self._every = every
        self._lock = threading.Lock()
        self._begun_at: dict[str, float] = {}
        self._under_way: Counter[str] = Counter()

    def run(self, duty: str, work: Callable[[], object]) -> bool:
        """Do a duty and return True; False where it was begun just before, or is under way."""
        with self._lock:
            now = self._clock.monotonic()
            apart = self._every[duty].total_seconds() / 2
            if now - self._begun_at.get(duty, -math.inf) < apart:
                return False
            if self._under_way[duty] >= _AT_ONCE:
                return False
            self._begun_at[duty] = now
            self._under_way[duty] += 1
        try:
            work()
        finally:
            with self._lock:
                self._under_way[duty] -= 1
        return True


def in_batches(work: Callable[[int], int]) -> int:
    """Call ``work`` while it does as much as it may, at most 20 times; return how much it did.

    It is given how much it may do at a time, and returns how much it did.
    """
    total = 0
    for _ in range(_MOST_BATCHES):
        done = work(BATCH)
        total += done
        if done < BATCH:
            break
    return total

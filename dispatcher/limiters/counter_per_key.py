"""The plain counter: ``INCR``, with the period as expiry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dispatcher.limiters.counted import CountPerLength


@dataclass(frozen=True)
class CounterPerKey(CountPerLength):
    """At most ``count`` permits per window; the key's expiry is the window.

    Opens with the first permit, as :class:`FixedWindow` does, and like it lets up to twice
    ``count`` through around the end of a window. What it keeps is a number that ``GET`` shows, in
    one key and as little memory as Redis can use. Its time is that of Redis's expiry.
    """

    kind: ClassVar[str] = "counter_per_key"

"""Spacing with a burst: the generic cell rate algorithm."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import ClassVar, Self

from dispatcher.errors import InvalidValue, quoted
from dispatcher.limiters.algorithm import CountPerLength
from dispatcher.quota import LONGEST_TEXT, Limit

_WHOLE = 1 << 53
_BURST = re.compile(r"(.*?)\s+burst\s+([0-9]{1,9})\s*", re.ASCII)


@dataclass(frozen=True)
class GCRA(CountPerLength):
    """``count`` permits per ``period``, evenly spaced, with ``max_burst`` more at once.

    As redis-cell counts: an idle caller may take ``max_burst`` + 1 at once, and then one
    every period / count. Without a burst every permit lies period / count after the one before. Two
    numbers a key, whatever ``count`` is. Raises InvalidValue for a burst so large that the
    arithmetic would not be exact.
    """

    max_burst: int = 0

    kind: ClassVar[str] = "gcra"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``"50/second"`` or ``"50/second burst 200"``. Raises InvalidValue."""
        is_short = isinstance(text, str) and len(text) <= LONGEST_TEXT
        match = _BURST.fullmatch(text) if is_short else None
        if match is None:
            return super().parse(text)
        plain = super().parse(match[1])
        return cls(plain.count, plain.period, max_burst=int(match[2]))

    @property
    def most(self) -> int:
        """How many permits it can ever give in one call."""
        return self.max_burst + 1

    def __post_init__(self) -> None:
        super().__post_init__()
        burst, (rise, _) = self.max_burst, self._rise_and_fall()
        most = min(Limit.MOST, (_WHOLE - 1) // rise - 1)
        if isinstance(burst, bool) or not isinstance(burst, int) or not 0 <= burst <= most:
            raise InvalidValue("max_burst", quoted(burst), f"a whole number from 0 to {most}")

    @property
    def words(self) -> Sequence[int]:
        """How many it gives at once, and by how much its level rises and falls."""
        return (self.max_burst + 1, *self._rise_and_fall())

    @property
    def scale(self) -> Sequence[int]:
        """Its count and its period in ms: both make the unit of its level."""
        return (self.count, self.length_ms)

    @property
    def numbers(self) -> Sequence[int]:
        """Its scale and its burst."""
        return (*self.scale, self.max_burst)

    def _rise_and_fall(self) -> tuple[int, int]:
        length_us = self.length_ms * 1_000
        common = gcd(length_us, self.count)
        return length_us // common, self.count // common

    def __str__(self) -> str:
        return f"{Limit(self.count, self.length_ms)} burst {self.max_burst}"

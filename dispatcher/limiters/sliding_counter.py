"""An approximation of the sliding log in three numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dispatcher.errors import InvalidValue
from dispatcher.limiters.algorithm import CountPerLength

_WHOLE = 1 << 53


@dataclass(frozen=True)
class SlidingCounter(CountPerLength):
    """At most about ``count`` permits within any span of ``period``.

    Time is cut into stretches of one period. Permits of the present stretch count whole, those of
    the previous one by the part of it that the last period still covers, as if they had been
    spread evenly. Never more than ``count`` in one stretch, and never more than twice ``count``
    less one within any period; it comes near that only when the permits of one stretch came at its
    end and those of the next at its end too. When they came at its beginning, it refuses what would
    fit. Raises InvalidValue where count times period in ms is 2^53 or more.
    """

    kind: ClassVar[str] = "sliding_counter"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.count * self.length_ms >= _WHOLE:
            most = (_WHOLE - 1) // self.length_ms
            raise InvalidValue("count", f"{self.count}", f"at most {most} for this period")

"""The classic counter: a window that opens with the first permit, or with the calendar."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from struct import Struct
from typing import ClassVar, Self, cast

from dispatcher import zones
from dispatcher.errors import InvalidValue
from dispatcher.limiters.counted import CountPerLength
from dispatcher.periods import CALENDAR_UNITS, LONGEST_MS, CalendarUnit, bounds
from dispatcher.quota import Limit, read_count, split_zone

_UNITS = ", ".join(CALENDAR_UNITS)
_BOUNDS = Struct("<5d")


@dataclass(frozen=True)
class FixedWindow(CountPerLength):
    """At most ``count`` permits per window.

    A window opens with the first permit and ends one ``period`` later. With ``align``, the name of
    a zone, windows are the minutes, hours, days, weeks (from Monday) or months of its calendar,
    and ``period`` is that unit: ``FixedWindow(5, "day", align="Asia/Shanghai")``. Days have 23 or
    25 hours where clocks change. The cheapest algorithm, and a blunt one: up to twice ``count``
    permits may lie close together around the end of a window. Raises InvalidValue.
    """

    align: str | None = None

    kind: ClassVar[str] = "fixed_window"

    @property
    def aligned(self) -> bool:
        """Whether windows follow a calendar."""
        return self.align is not None

    @property
    def spacing_ms(self) -> float:
        """How far apart its permits are on average, in ms."""
        if self.align is None:
            return self.length_ms / self.count
        return LONGEST_MS[cast(CalendarUnit, self.period)] / self.count

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``"5/minute"`` or ``"5/day in Asia/Shanghai"``. Raises InvalidValue."""
        zoned = split_zone(text) if isinstance(text, str) else None
        if zoned is None:
            return super().parse(text)
        read, zone = read_count(zoned[0]), zoned[1]
        if read is None or read[1] != 1 or read[2] not in CALENDAR_UNITS:
            accepted = f"N/unit in ZONE with a unit of {_UNITS}, N from 1 to {Limit.MOST}"
            raise InvalidValue("limit", f"cannot read {text!r}", accepted)
        return cls(read[0], read[2], align=zone)

    def words(self, now_ms: int) -> Sequence[int | bytes]:
        """Return what its part of the scripts is told: with a zone, the windows around then."""
        if self.align is None:
            return CountPerLength.words(self, now_ms)
        unit = cast(CalendarUnit, self.period)
        [begins, _] = bounds(unit, self.align, now_ms, 1)
        return (self.count, _around(unit, self.align, begins))

    def _check(self) -> None:
        CountPerLength._check(self)
        if self.align is None:
            return
        zones.rules(self.align, field="align")
        if self.period not in CALENDAR_UNITS:
            raise InvalidValue("period", f"{self.period!r} with align", f"one of {_UNITS}")

    def _own_words(self) -> Sequence[int]:
        return () if self.align else (self.count, self.length_ms)

    def _own_label(self) -> str:
        if self.align is None:
            return CountPerLength._own_label(self)
        return f"{self.kind}-{self.count}-{self.period}-{self.align}"

    def __str__(self) -> str:
        if self.align is None:
            return CountPerLength.__str__(self)
        return f"{self.count}/{self.period} in {self.align}"


@lru_cache(maxsize=1 << 10)
def _around(unit: CalendarUnit, zone: str, begins_ms: int) -> bytes:
    """Return the bounds of the window that begins there, of the one before, and of two after.

    Packed: the script takes less time for one word than for five.
    """
    [before, _] = bounds(unit, zone, begins_ms - 1, 1)
    return _BOUNDS.pack(*bounds(unit, zone, before, 4))

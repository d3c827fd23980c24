"""The classic counter: a window that opens with the first permit, or with the calendar."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import ClassVar, Self, cast

from dispatcher.errors import InvalidValue, plain, quoted
from dispatcher.limiters.algorithm import CountPerLength
from dispatcher.quota import Limit, read_count, split_zone
from dispatcher.times import zones
from dispatcher.times.lengths import MILLISECOND
from dispatcher.times.periods import LONGEST_MS, UNIT_MS, Period, bounds, longest_ms

_CALENDAR = ("month", "year")
_SECOND_MS = 1_000
_PERIODS = 4
_ALIGNED = "a unit such as 'day' or 'month', or a timedelta of whole seconds up to 366 days"
_ACCEPTED = (
    f"N/unit in ZONE with a unit of {', '.join(LONGEST_MS)}, or N/M unit in ZONE with one of up "
    f"to a week, N from 1 to {Limit.MOST}, at most 366 days"
)


@dataclass(frozen=True)
class FixedWindow(CountPerLength):
    """At most ``count`` permits per window.

    A window opens with the first permit and ends one ``period`` later. With ``align``, the name of
    a zone, windows follow its clocks: ``FixedWindow(5, "day", align="Asia/Shanghai")``. ``period``
    is then a unit, also ``"month"`` or ``"year"`` of the calendar, or a timedelta of whole seconds:
    windows of 15 minutes begin on the quarters of an hour, and all that fill no day evenly are
    counted from a Monday at midnight. Days have 23 or 25 hours where clocks change. The cheapest
    algorithm, and a coarse one: up to twice ``count`` permits may lie close together around the end
    of a window. Raises InvalidValue.
    """

    align: str | None = None

    kind: ClassVar[str] = "fixed_window"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.align is None:
            return
        zones.rules(self.align, field="align")
        object.__setattr__(self, "align", plain(self.align))
        if self.length_ms % _SECOND_MS:
            raise InvalidValue("period", f"{quoted(self.period)} with align", _ALIGNED)

    @property
    def aligned(self) -> bool:
        """Whether windows follow the clocks of a zone."""
        return self.align is not None

    @property
    def length_ms(self) -> int:
        """The period in ms; of a month or a year how long it is at most."""
        return longest_ms(self._period)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``"5/minute"`` or ``"5/day in Asia/Shanghai"``. Raises InvalidValue."""
        zoned = split_zone(text) if isinstance(text, str) else None
        if zoned is None:
            return super().parse(text)
        read, zone = read_count(zoned[0]), zoned[1]
        if read is None or read[2] not in LONGEST_MS or (read[2] in _CALENDAR and read[1] != 1):
            raise InvalidValue("limit", f"cannot read {quoted(text)}", _ACCEPTED)
        count, multiple, unit = read
        if unit in _CALENDAR:
            return cls(count, unit, align=zone)
        return cls(count, multiple * UNIT_MS[unit] * MILLISECOND, align=zone)

    def words_at(self, now_ms: int, further: int = 0) -> Sequence[int | bytes]:
        """Return its count, and its period or, with a zone, the bounds of the windows around then.

        Those are the present one, the one before and two after, and as many more as turns need.
        """
        if self.align is None:
            return self.words
        [begins, _] = bounds(self._period, self.align, now_ms, 1)
        return (self.count, _around(self._period, self.align, begins, _PERIODS + further))

    @property
    def scale(self) -> Sequence[object]:
        """Its period, and its zone."""
        return super().scale if self.align is None else (self._period, self.align)

    @property
    def _period(self) -> Period:
        if isinstance(self.period, str):
            return cast(Period, self.period)
        return self.period // MILLISECOND

    def _normal_period(self) -> timedelta | str:
        if self.align is not None and self.period in _CALENDAR:
            return self.period
        return super()._normal_period()

    def __str__(self) -> str:
        if self.align is None:
            return super().__str__()
        if isinstance(self.period, str):
            return f"{self.count}/{self.period} in {self.align}"
        if self.length_ms == UNIT_MS["year"]:
            return f"{self.count}/365 day in {self.align}"
        return f"{Limit(self.count, self.length_ms)} in {self.align}"


@dataclass(frozen=True)
class CounterPerKey(CountPerLength):
    """At most ``count`` permits per window; the key's expiry is the window.

    Opens with the first permit, as :class:`FixedWindow` does, and like it lets up to twice
    ``count`` through around the end of a window. Its state is a number that ``GET`` shows, in
    one key and as little memory as Redis can use. Its time is that of Redis's expiry.
    """

    kind: ClassVar[str] = "counter_per_key"


@lru_cache(maxsize=1 << 10)
def _around(period: Period, zone: str, begins_ms: int, windows: int) -> bytes:
    """Return the bounds of consecutive windows; the second one begins at ``begins_ms``.

    Packed: the script takes less time for one word than for five.
    """
    [before, _] = bounds(period, zone, begins_ms - 1, 1)
    return struct.pack(f"<{windows + 1}d", *bounds(period, zone, before, windows))

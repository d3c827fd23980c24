"""The algorithms of limiters. Which to use when says ``docs/limiters.md``."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from math import gcd
from typing import ClassVar, Self, cast

from dispatcher.errors import InvalidValue, plain, quoted
from dispatcher.limiters.algorithm import Algorithm, CountPerLength, check_count
from dispatcher.limiters.limit_set import length_ms
from dispatcher.quota import LONGEST_TEXT, Limit, read_count, split_zone
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
_WHOLE = 1 << 53
_BURST = re.compile(r"(.*?)\s+burst\s+([0-9]{1,9})\s*", re.ASCII)
_LONGEST_HOLD_MS = 86_400_000


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

    @property
    def aligned(self) -> bool:
        """Whether windows follow the clocks of a zone."""
        return self.align is not None

    @property
    def length_ms(self) -> int:
        """The period in ms; of a month or a year how long it is at most."""
        return longest_ms(self._period)

    @property
    def numbers(self) -> Sequence[int | str]:
        """Its count, its period, and its zone."""
        zone = () if self.align is None else (self.align,)
        return (self.count, self._period, *zone)

    def words(self, now_ms: int, further: int = 0) -> Sequence[str | int | bytes]:
        """Return its count, and its period or, with a zone, the bounds of the windows around then.

        Those are the present one, the one before and two after, and as many more as turns need.
        """
        if self.align is None:
            return super().words(now_ms)
        [begins, _] = bounds(self._period, self.align, now_ms, 1)
        return (self.count, _around(self._period, self.align, begins, _PERIODS + further))

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


@lru_cache(maxsize=1 << 10)
def _around(period: Period, zone: str, begins_ms: int, windows: int) -> bytes:
    """Return the bounds of consecutive windows; the second one begins at ``begins_ms``.

    Packed: the script takes less time for one word than for five.
    """
    [before, _] = bounds(period, zone, begins_ms - 1, 1)
    return struct.pack(f"<{windows + 1}d", *bounds(period, zone, before, windows))


@dataclass(frozen=True)
class CounterPerKey(CountPerLength):
    """At most ``count`` permits per window; the key's expiry is the window.

    Opens with the first permit, as :class:`FixedWindow` does, and like it lets up to twice
    ``count`` through around the end of a window. Its state is a number that ``GET`` shows, in
    one key and as little memory as Redis can use. Its time is that of Redis's expiry.
    """

    kind: ClassVar[str] = "counter_per_key"


@dataclass(frozen=True)
class SlidingLog(CountPerLength):
    """At most ``count`` permits within any span shorter than ``period``.

    The time of every permit is a member of a ZSET, under its id. So an id is known, and can be
    returned, for a whole period. The price is memory: 25 bytes a permit while there are
    at most 128, 110 beyond. :class:`SlidingList` decides the same in a fraction of it.
    """

    kind: ClassVar[str] = "sliding_log"
    keeps_each: ClassVar[bool] = True
    knows_permits: ClassVar[bool] = True


@dataclass(frozen=True)
class SlidingList(CountPerLength):
    """At most ``count`` permits within any span shorter than ``period``.

    Decides as :class:`SlidingLog` does, call for call. Only times are stored, about 10 bytes a
    permit, and the N-th oldest is compared: the same work for any ``count``. Ids are remembered
    for as long as ``remember`` says, and for so long they can be returned.
    """

    kind: ClassVar[str] = "sliding_list"
    keeps_each: ClassVar[bool] = True


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


@dataclass(frozen=True)
class GCRA(CountPerLength):
    """``count`` permits per ``period``, evenly spaced, with ``max_burst`` more at once.

    The generic cell rate algorithm, as redis-cell counts: an idle caller may take ``max_burst`` + 1
    at once, and then one every period / count. Without a burst every permit lies period / count
    after the one before. Two numbers a key, whatever ``count`` is. Raises InvalidValue for a burst
    so large that the arithmetic would not be exact.
    """

    max_burst: int = 0

    kind: ClassVar[str] = "gcra"

    def __post_init__(self) -> None:
        super().__post_init__()
        burst, (rise, _) = self.max_burst, self._rise_and_fall()
        most = min(Limit.MOST, (_WHOLE - 1) // rise - 1)
        if isinstance(burst, bool) or not isinstance(burst, int) or not 0 <= burst <= most:
            raise InvalidValue("max_burst", quoted(burst), f"a whole number from 0 to {most}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``"50/second"`` or ``"50/second burst 200"``. Raises InvalidValue."""
        is_short = isinstance(text, str) and len(text) <= LONGEST_TEXT
        match = _BURST.fullmatch(text) if is_short else None
        if match is None:
            return super().parse(text)
        steady = super().parse(match[1])
        return cls(steady.count, steady.period, max_burst=int(match[2]))

    @property
    def most(self) -> int:
        """How many permits it can ever give in one call."""
        return self.max_burst + 1

    @property
    def numbers(self) -> Sequence[int]:
        """Its count, its period in ms, and its burst."""
        return (self.count, self.length_ms, self.max_burst)

    @property
    def scale(self) -> Sequence[int]:
        """Its count and its period in ms: both make the unit of its level."""
        return (self.count, self.length_ms)

    def words(self, now_ms: int, further: int = 0) -> Sequence[int]:  # noqa: ARG002 - for aligned windows
        """Return how many it gives at once, and by how much its level rises and falls."""
        return (self.max_burst + 1, *self._rise_and_fall())

    def _rise_and_fall(self) -> tuple[int, int]:
        length_us = self.length_ms * 1_000
        common = gcd(length_us, self.count)
        return length_us // common, self.count // common

    def __str__(self) -> str:
        return f"{Limit(self.count, self.length_ms)} burst {self.max_burst}"


@dataclass(frozen=True)
class Concurrency(Algorithm):
    """At most ``count`` permits in use at the same time.

    Each is a hold. It ends when it is returned, or by itself after ``hold`` (10 ms to one day)
    unless it is renewed: so the hold of a process that crashed ends too. ``Limiter.permit`` renews
    and ends holds by itself. ``retry_after`` is an upper bound: when the next hold ends unless it
    is returned before. Raises InvalidValue.
    """

    count: int
    hold: timedelta = timedelta(seconds=30)
    name: str | None = None

    kind: ClassVar[str] = "concurrency"
    keeps_each: ClassVar[bool] = True
    knows_permits: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_count(self.count)
        length_ms(self.hold, "hold", least=10, most=_LONGEST_HOLD_MS)
        super().__post_init__()

    @property
    def most(self) -> int:
        """How many permits it can ever give in one call."""
        return self.count

    @property
    def numbers(self) -> Sequence[int]:
        """Its count."""
        return (self.count,)

    @property
    def hold_ms(self) -> int:
        """How long a hold lasts, in ms."""
        return self.hold // MILLISECOND

    def words(self, now_ms: int, further: int = 0) -> Sequence[int]:  # noqa: ARG002 - for aligned windows
        """Return its count and the length of a hold in ms."""
        return (self.count, self.hold_ms)

    def __str__(self) -> str:
        return f"{self.count} at once"


@dataclass(frozen=True)
class CoolDown(Algorithm):
    """Gives every permit unless it is closed, and then none until that time is over.

    ``close`` closes a key for all processes at once, for instance when a provider answers
    ``Retry-After``. Closed twice, the later time holds; ``reset`` opens it. It counts nothing:
    ``limit`` and ``remaining`` are 0. Raises InvalidValue.
    """

    name: str | None = None

    kind: ClassVar[str] = "cool_down"
    knows_permits: ClassVar[bool] = True

    @property
    def most(self) -> int:
        """Nothing is counted."""
        return 0

    @property
    def numbers(self) -> Sequence[int]:
        """None."""
        return ()

    def __str__(self) -> str:
        return "cool-down"

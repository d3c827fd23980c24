"""The periods of a zone's calendar: where minutes, hours, days, weeks, months and years begin.

A period begins at the first instant at which the clocks show its beginning or later, and is not
begun again when they go back. So each instant lies in one period: the latest that has begun.
Weeks begin on Monday. Instants are whole milliseconds since 1970.

Periods of a length, in ms, are counted from a Monday at midnight by the clocks of the zone: those
of 15 minutes begin on the quarters of an hour, those of a week on Monday. They keep the rule above,
but where the clocks change by two or more times the length, they go on as they were.
"""

from __future__ import annotations

from bisect import bisect_right
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from typing import Literal, TypeAlias, get_args
from zoneinfo import ZoneInfo

from dispatcher.times import zones

UNIT_MS = {
    "second": 1_000,
    "minute": 60_000,
    "hour": 3_600_000,
    "day": 86_400_000,
    "week": 604_800_000,
    "year": 31_536_000_000,
}
"""A year without a calendar has 365 days."""

UNIT_NAMES = {
    **{unit: unit for unit in (*UNIT_MS, "month")},
    **{f"{unit}s": unit for unit in (*UNIT_MS, "month")},
    "s": "second",
    "sec": "second",
    "min": "minute",
    "h": "hour",
    "d": "day",
}
"""How units are written, in lower case."""

CalendarUnit = Literal["minute", "hour", "day", "week", "month"]
Period: TypeAlias = CalendarUnit | Literal["year"] | int
"""A unit of the calendar, or a length in ms of whole seconds."""

CALENDAR_UNITS = get_args(CalendarUnit)
LONGEST_MS = {**UNIT_MS, "month": 31 * UNIT_MS["day"], "year": 366 * UNIT_MS["day"]}
"""How long a period of each unit usually is at most."""

_A_MONDAY = datetime(1970, 1, 5)  # noqa: DTZ001 - what the clocks of any zone show
_A_MONDAY_MS = 4 * UNIT_MS["day"]
FARTHEST_BACK_MS = 26 * UNIT_MS["hour"]
"""The farthest that clocks go back: from UTC+14 to UTC-12."""


def longest_ms(period: Period) -> int:
    return period if isinstance(period, int) else LONGEST_MS[period]


def bounds(unit: Period, zone: str, instant_ms: int, periods: int) -> tuple[int, ...]:
    """Return where ``periods`` consecutive periods begin, and where the last of them ends.

    In ms since 1970, strictly increasing; the first period is that of ``instant_ms``. Raises
    InvalidValue for an unknown zone.
    """
    if isinstance(unit, int):
        even = _even_bounds(unit, zone, instant_ms, periods)
        if even is not None:
            return even
    stretch_ms = longest_ms(unit)
    near = _bounds_along(unit, zone, instant_ms // stretch_ms)
    first = bisect_right(near, instant_ms) - 1
    edges = near[first : first + periods + 1]
    while len(edges) <= periods:
        near = _bounds_along(unit, zone, edges[-1] // stretch_ms)
        edges += near[bisect_right(near, edges[-1]) :]
    return edges[: periods + 1]


def _even_bounds(
    length_ms: int, zone: str, instant_ms: int, periods: int
) -> tuple[int, ...] | None:
    """Return bounds one length apart; None where a clock change near them prevents it."""
    if (periods + 2) * length_ms > UNIT_MS["year"]:
        return None  # few zones have a year without a clock change
    near = zones.pieces(
        zones.rules(zone),
        instant_ms - length_ms - FARTHEST_BACK_MS,
        instant_ms + (periods + 1) * length_ms,
    )
    offsets = [offset_ms for _, _, offset_ms in near]
    for before, after in pairwise(offsets):
        change = abs(after - before)
        if change % length_ms or change == length_ms:
            return None
    first = (instant_ms + offsets[0] - _A_MONDAY_MS) // length_ms * length_ms
    first += _A_MONDAY_MS - offsets[0]
    return tuple(range(first, first + (periods + 1) * length_ms, length_ms))


@lru_cache(maxsize=1 << 14)
def _bounds_along(unit: Period, zone: str, stretch: int) -> tuple[int, ...]:
    """Return the consecutive bounds from at or before a stretch of UTC to at or after its end.

    Stretches of the length of the longest period are numbered from 1970 on.
    """
    rules = zones.rules(zone)
    start_ms, end_ms = (number * longest_ms(unit) for number in (stretch, stretch + 1))
    edges: tuple[int, ...] = _period_shown(unit, rules, start_ms)
    while edges[-1] < end_ms:
        edges += _period_shown(unit, rules, edges[-1])[1:]
    return edges


def _period_shown(unit: Period, rules: ZoneInfo, instant_ms: int) -> tuple[int, int]:
    # After the clocks went back it may be one before that of the instant; at a bound it never is.
    begins = _beginning(unit, zones.wall_at(instant_ms, rules))
    if unit == "month":
        ends = (begins + timedelta(days=31)).replace(day=1)
    elif unit == "year":
        ends = begins.replace(year=begins.year + 1)
    else:
        ends = begins + timedelta(milliseconds=longest_ms(unit))
    return _begun_ms(begins, rules), _begun_ms(ends, rules)


def _beginning(unit: Period, wall: datetime) -> datetime:
    if isinstance(unit, int):
        return wall - (wall - _A_MONDAY) % timedelta(milliseconds=unit)
    if unit == "minute":
        return wall.replace(second=0, microsecond=0)
    if unit == "hour":
        return wall.replace(minute=0, second=0, microsecond=0)
    midnight = wall.replace(hour=0, minute=0, second=0, microsecond=0)
    if unit == "week":
        return midnight - timedelta(days=midnight.weekday())
    if unit == "year":
        return midnight.replace(month=1, day=1)
    return midnight.replace(day=1) if unit == "month" else midnight


def _begun_ms(wall: datetime, rules: ZoneInfo) -> int:
    # Offsets are whole seconds, and so are these instants.
    return int(zones.first_instant(wall, rules).timestamp()) * 1_000

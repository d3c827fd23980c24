"""The periods of a zone's calendar: where minutes, hours, days, weeks and months begin.

A period begins at the first instant at which the clocks show its beginning or later, and is not
begun again when they go back. So each instant lies in one period: the latest that has begun.
Weeks begin on Monday. Instants are whole milliseconds since 1970.
"""

from __future__ import annotations

from bisect import bisect_right
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Literal, get_args
from zoneinfo import ZoneInfo

from dispatcher import zones

UNIT_MS = {
    "second": 1_000,
    "minute": 60_000,
    "hour": 3_600_000,
    "day": 86_400_000,
    "week": 604_800_000,
}

CalendarUnit = Literal["minute", "hour", "day", "week", "month"]

CALENDAR_UNITS = get_args(CalendarUnit)
LONGEST_MS = {**UNIT_MS, "month": 31 * UNIT_MS["day"]}
"""How long a period of each unit usually is at most."""


def bounds(unit: CalendarUnit, zone: str, instant_ms: int, periods: int) -> tuple[int, ...]:
    """Return where ``periods`` consecutive periods begin, and where the last of them ends.

    In ms since 1970, strictly increasing; the first period is that of ``instant_ms``. Raises
    InvalidValue for an unknown zone.
    """
    stretch_ms = LONGEST_MS[unit]
    near = _bounds_along(unit, zone, instant_ms // stretch_ms)
    first = bisect_right(near, instant_ms) - 1
    found = near[first : first + periods + 1]
    while len(found) <= periods:
        near = _bounds_along(unit, zone, found[-1] // stretch_ms)
        found += near[bisect_right(near, found[-1]) :]
    return found[: periods + 1]


@lru_cache(maxsize=1 << 14)
def _bounds_along(unit: CalendarUnit, zone: str, stretch: int) -> tuple[int, ...]:
    """Return the consecutive bounds from at or before a stretch of UTC to at or after its end.

    Stretches are as long as a period usually is at most, and numbered from 1970 on.
    """
    rules = zones.rules(zone)
    start_ms, end_ms = (number * LONGEST_MS[unit] for number in (stretch, stretch + 1))
    found: tuple[int, ...] = _period_shown(unit, rules, start_ms)
    while found[-1] < end_ms:
        found += _period_shown(unit, rules, found[-1])[1:]
    return found


def _period_shown(unit: CalendarUnit, rules: ZoneInfo, instant_ms: int) -> tuple[int, int]:
    """Return the bounds of the period that the clocks show at an instant.

    After they went back it may be one before that of the instant; at a bound it never is.
    """
    begins = _beginning(unit, zones.wall_at(instant_ms, rules))
    if unit == "month":
        ends = (begins + timedelta(days=31)).replace(day=1)
    else:
        ends = begins + timedelta(milliseconds=UNIT_MS[unit])
    return _begun_ms(begins, rules), _begun_ms(ends, rules)


def _beginning(unit: CalendarUnit, wall: datetime) -> datetime:
    if unit == "minute":
        return wall.replace(second=0, microsecond=0)
    if unit == "hour":
        return wall.replace(minute=0, second=0, microsecond=0)
    midnight = wall.replace(hour=0, minute=0, second=0, microsecond=0)
    if unit == "week":
        return midnight - timedelta(days=midnight.weekday())
    return midnight.replace(day=1) if unit == "month" else midnight


def _begun_ms(wall: datetime, rules: ZoneInfo) -> int:
    # Offsets are whole seconds, and so are these instants.
    return int(zones.first_instant(wall, rules).timestamp()) * 1_000

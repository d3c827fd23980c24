"""How many per how long: quotas judged at submission, limits guarded at delivery.

Both are written the same way, ``N/unit`` or ``N/M unit``: ``"1/minute"``, ``"5/hour"``,
``"2/30 second"``. They are two types because they are never interchangeable: a quota counts
promised times, a limit counts hand-overs. A quota that names a zone, ``"10/day in
Europe/Berlin"``, counts within calendar periods instead of within any span of that length.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import ClassVar, Literal, Self, cast, get_args
from zoneinfo import ZoneInfo

from dispatcher import zones
from dispatcher.errors import InvalidValue

UNIT_MS = {
    "second": 1_000,
    "minute": 60_000,
    "hour": 3_600_000,
    "day": 86_400_000,
    "week": 604_800_000,
}
MAX_LENGTH_MS = 366 * UNIT_MS["day"]

CalendarUnit = Literal["minute", "hour", "day", "week", "month"]

_MOST = 10_000_000
_CALENDAR_UNITS = get_args(CalendarUnit)
_LOCAL = "local"
_CALENDAR_ACCEPTED = (
    f"N/unit in ZONE with a unit of {', '.join(_CALENDAR_UNITS)}, N from 1 to {_MOST}, "
    f"ZONE a name of the tz database or {_LOCAL!r}"
)
_LONGEST_MS = {**UNIT_MS, "month": 31 * UNIT_MS["day"]}
_FARTHEST_BACK_MS = 26 * UNIT_MS["hour"]  # from UTC+14 to UTC-12
_GRAMMAR = re.compile(r"\s*([0-9]{1,9})\s*/\s*(?:([0-9]{1,9})\s+)?([a-z]+?)s?\s*", re.ASCII)
_IN_ZONE = re.compile(r"(.*?)\s+in(?:\s+(.*?))?\s*", re.ASCII)
_LENGTH = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]*?)s?\s*", re.ASCII)


def parse_length(text: str) -> timedelta:
    """Read ``"90"`` (seconds), ``"30 days"`` or ``"1.5 hours"``. Raises InvalidValue."""
    match = _LENGTH.fullmatch(text)
    unit_ms = UNIT_MS.get(match[2] or "second") if match else None
    if match is None or unit_ms is None:
        accepted = f"seconds, or a number and one of {', '.join(UNIT_MS)}"
        raise InvalidValue("length", f"cannot read {text!r}", accepted)
    try:
        return timedelta(milliseconds=float(match[1]) * unit_ms)
    except OverflowError:
        raise InvalidValue("length", f"{text!r} is too long", "less than 2 million years") from None


@dataclass(frozen=True, slots=True)
class _CountPerLength:
    MOST: ClassVar[int]
    count: int
    length_ms: int

    def __post_init__(self) -> None:
        if not 1 <= self.count <= self.MOST:
            raise self._refusal(f"a count of {self.count}")
        if not 1 <= self.length_ms <= MAX_LENGTH_MS:
            raise self._refusal(f"a length of {self.length_ms} ms")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``"5/hour"``. Raises InvalidValue for anything else."""
        match = _GRAMMAR.fullmatch(text) if isinstance(text, str) else None
        if match is None or match[3] not in UNIT_MS:
            raise cls._refusal(f"cannot read {text!r}")
        return cls(int(match[1]), int(match[2] or 1) * UNIT_MS[match[3]])

    @classmethod
    def _refusal(cls, problem: str) -> InvalidValue:
        accepted = (
            f"N/unit or N/M unit with a unit of {', '.join(UNIT_MS)}, N from 1 to {cls.MOST}, "
            "at most 366 days"
        )
        return InvalidValue(cls.__name__.lower(), problem, accepted)

    def __str__(self) -> str:
        unit = max(
            (unit for unit in UNIT_MS if self.length_ms % UNIT_MS[unit] == 0),
            key=UNIT_MS.__getitem__,
            default=None,
        )
        if unit is None:
            return f"{self.count}/{self.length_ms} ms"
        multiple = self.length_ms // UNIT_MS[unit]
        return f"{self.count}/{unit}" if multiple == 1 else f"{self.count}/{multiple} {unit}"


@dataclass(frozen=True, slots=True)
class Quota(_CountPerLength):
    """At most ``count`` promised times of one scope within any span shorter than ``length_ms``.

    Times exactly ``length_ms`` apart are fine: under 1 per minute, 11:11:11 and 11:12:11 fit.
    """

    MOST = _MOST
    __str__ = _CountPerLength.__str__


@dataclass(frozen=True, slots=True)
class Limit(_CountPerLength):
    """At most ``count`` hand-overs within any span shorter than ``length_ms`` (its period)."""

    MOST = _MOST
    __str__ = _CountPerLength.__str__


@dataclass(frozen=True, slots=True)
class CalendarQuota:
    """At most ``count`` promised times of one scope within one calendar period of a zone.

    ``zone`` is a name of the tz database; None, written ``local``, means the zone that a message
    names. A period begins at the first instant at which the clocks show its beginning or later,
    and is not begun again when they go back. So each instant lies in one period: the latest that
    has begun. An hour that is repeated is one period of two hours, a day that is skipped is none.
    Weeks begin on Monday. Raises InvalidValue.
    """

    MOST: ClassVar[int] = _MOST
    count: int
    unit: CalendarUnit
    zone: str | None

    def __post_init__(self) -> None:
        if not 1 <= self.count <= self.MOST:
            raise _calendar_refusal(f"a count of {self.count}")
        if self.unit not in _CALENDAR_UNITS:
            raise _calendar_refusal(f"{self.unit!r} is no calendar unit")
        if self.zone is not None:
            try:
                zones.rules(self.zone)
            except InvalidValue as refused:
                raise _calendar_refusal(refused.problem) from None

    @property
    def longest_ms(self) -> int:
        """No period is longer: its usual length, for a month 31 days, and 26 hours.

        A period grows by as much as the clocks go back within it, and since 1970 the offsets of
        all zones have lain between 12 hours behind and 14 hours ahead of UTC.
        """
        return _LONGEST_MS[self.unit] + _FARTHEST_BACK_MS

    def bounds(self, instant_ms: int, zone: str, periods: int) -> tuple[int, ...]:
        """Return where ``periods`` consecutive periods begin, and where the last of them ends.

        In ms since 1970, strictly increasing; the first period is that of ``instant_ms``. The
        caller says which zone: that of the quota or that of the message. Raises InvalidValue for
        an unknown zone.
        """
        stretch_ms = _LONGEST_MS[self.unit]
        near = _bounds_along(self.unit, zone, instant_ms // stretch_ms)
        first = bisect_right(near, instant_ms) - 1
        found = near[first : first + periods + 1]
        while len(found) <= periods:
            near = _bounds_along(self.unit, zone, found[-1] // stretch_ms)
            found += near[bisect_right(near, found[-1]) :]
        return found[: periods + 1]

    def __str__(self) -> str:
        return f"{self.count}/{self.unit} in {self.zone or _LOCAL}"


def parse_quota(text: str) -> Quota | CalendarQuota:
    """Read ``"5/hour"``, ``"10/day in Europe/Berlin"`` or ``"3000/month in local"``.

    Without ``in ZONE`` the quota counts within any span of that length. Raises InvalidValue.
    """
    zoned = _IN_ZONE.fullmatch(text) if isinstance(text, str) else None
    if zoned is not None:
        return _parse_calendar(text, zoned[1], zoned[2] or "")
    try:
        return Quota.parse(text)
    except InvalidValue as refused:
        match = _GRAMMAR.fullmatch(text) if isinstance(text, str) else None
        if match is not None and match[3] == "month":
            raise _calendar_refusal(
                f"{text!r} names no zone, and months have no length but in a calendar"
            ) from None
        accepted = f"{refused.accepted}; or {_CALENDAR_ACCEPTED}"
        raise InvalidValue("quota", refused.problem, accepted) from None


def _calendar_refusal(problem: str) -> InvalidValue:
    return InvalidValue("quota", problem, _CALENDAR_ACCEPTED)


def _parse_calendar(text: str, counted: str, zone: str) -> CalendarQuota:
    match = _GRAMMAR.fullmatch(counted)
    if match is None:
        raise _calendar_refusal(f"cannot read {text!r}")
    if int(match[2] or 1) != 1:
        raise _calendar_refusal(
            f"{text!r} asks for periods of {match[2]} {match[3]}s, and a calendar does not say "
            "where such a period begins"
        )
    # An unknown unit is refused by the class.
    unit = cast(CalendarUnit, match[3])
    return CalendarQuota(int(match[1]), unit, None if zone == _LOCAL else zone)


@lru_cache(maxsize=1 << 14)
def _bounds_along(unit: CalendarUnit, zone: str, stretch: int) -> tuple[int, ...]:
    """Return the consecutive bounds from at or before a stretch of UTC to at or after its end.

    Stretches are as long as a period usually is at most, and numbered from 1970 on.
    """
    rules = zones.rules(zone)
    start_ms, end_ms = (number * _LONGEST_MS[unit] for number in (stretch, stretch + 1))
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

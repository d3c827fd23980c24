"""Quotas, checked at submission, and limits, enforced at delivery.

Both are written the same way, ``N/unit`` or ``N/M unit``: ``"1/minute"``, ``"2/30 second"``,
``"10 per second"``, ``"5/s"``. They are two types because they are never interchangeable: a quota
counts promised times, a limit counts sends. A quota that names a zone, ``"10/day in
Europe/Berlin"``, counts within calendar periods instead of within any span of that length. A quota
alone can keep places, ``"5/hour, 1 kept for priority >= 50"``, and can grow by the day,
``"100/day growing 1.5 daily to 50000/day from 2027-01-01"``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import date, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import ClassVar, Self, TypeVar, cast

from dispatcher.errors import InvalidValue, cut, quoted
from dispatcher.times import zones
from dispatcher.times.periods import (
    CALENDAR_UNITS,
    FARTHEST_BACK_MS,
    LONGEST_MS,
    UNIT_MS,
    UNIT_NAMES,
    CalendarUnit,
    bounds,
)

MAX_LENGTH_MS = 366 * UNIT_MS["day"]

_MOST = 10_000_000
_LOCAL = "local"
_CALENDAR_ACCEPTED = (
    f"N/unit in ZONE with a unit of {', '.join(CALENDAR_UNITS)}, N from 1 to {_MOST}, "
    f"ZONE a name of the tz database or {_LOCAL!r}"
)
_LEAST_FACTOR, _MOST_FACTOR = Decimal("1.01"), Decimal(10)
_QUOTA = re.compile(
    r"(.*?)(?:\s+growing\s+([0-9]{1,3}(?:\.[0-9]{1,9})?)\s+daily\s+to\s+([0-9]{1,9})\s*/\s*day"
    r"\s+from\s+([0-9]{4}-[0-9]{2}-[0-9]{2})(?:\s+in\s+(.*?))?)?"
    r"(?:\s*,\s*([0-9]{1,9})\s+kept\s+for\s+priority\s*>=\s*(-?[0-9]{1,9}))?\s*",
    re.ASCII | re.DOTALL,
)
_FURTHER_ACCEPTED = (
    "any with K kept for priority >= P after a comma, K from 1 to N-1, P from -99 to 100; "
    f"N/day growing F daily to M/day from YYYY-MM-DD, F from {_LEAST_FACTOR} to {_MOST_FACTOR} "
    f"with at most 3 decimals, M from N+1 to {_MOST}, perhaps in ZONE, else in UTC"
)
LONGEST_TEXT = 200
"""Longest text of a quota, limit or length: reading white space takes quadratic time."""
_GRAMMAR = re.compile(
    r"\s*([0-9]{1,9})(?:\s*/\s*|\s+per\s+)(?:([0-9]{1,9})\s*)?([a-z]+)\s*",
    re.ASCII | re.IGNORECASE,
)
_IN_ZONE = re.compile(r"(.*?)\s+in(?:\s+(.*?))?\s*", re.ASCII)
_LENGTH = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)\s*", re.ASCII)
_UNITS_OF_LENGTH = {"ms": 1, "": 1_000, "m": UNIT_MS["minute"], "w": UNIT_MS["week"]}
_UNITS_OF_LENGTH |= {name: UNIT_MS[unit] for name, unit in UNIT_NAMES.items() if unit in UNIT_MS}
_LENGTHS_ACCEPTED = f"seconds, or a number and one of {', '.join(UNIT_MS)}, s, m, min, h, d, w"


def parse_length(text: str, field: str = "length") -> timedelta:
    """Read ``"90"`` (seconds), ``"90s"``, ``"10min"``, ``"1.5 hours"``. Raises InvalidValue.

    ``m`` is a minute: months have no length.
    """
    match = _LENGTH.fullmatch(text) if len(text) <= LONGEST_TEXT else None
    unit_ms = _UNITS_OF_LENGTH.get(match[2]) if match else None
    if match is None or unit_ms is None:
        raise InvalidValue(field, f"cannot read {quoted(text)}", _LENGTHS_ACCEPTED)
    try:
        return timedelta(milliseconds=float(match[1]) * unit_ms)
    except OverflowError:
        accepted = "less than 2 million years"
        raise InvalidValue(field, f"{quoted(text)} is too long", accepted) from None


def read_count(text: str) -> tuple[int, int, str] | None:
    """Read ``"2/30 second"`` as count, multiple and unit, whatever the unit; None if it is not."""
    match = _GRAMMAR.fullmatch(text) if len(text) <= LONGEST_TEXT else None
    if match is None:
        return None
    unit = match[3].lower()
    return int(match[1]), int(match[2] or 1), UNIT_NAMES.get(unit, unit)


def _is_within(number: object, most: int, least: int = 1) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and least <= number <= most


def split_zone(text: str) -> tuple[str, str] | None:
    """Split ``"10/day in Europe/Berlin"`` at its ``in``; None without one."""
    match = _IN_ZONE.fullmatch(text) if len(text) <= LONGEST_TEXT else None
    return (match[1], match[2] or "") if match else None


@dataclass(frozen=True, slots=True)
class _CountPerLength:
    MOST: ClassVar[int] = _MOST
    count: int
    length_ms: int

    def __post_init__(self) -> None:
        if not _is_within(self.count, self.MOST):
            raise self._refusal(f"a count of {quoted(self.count)}")
        if not _is_within(self.length_ms, MAX_LENGTH_MS):
            raise self._refusal(f"a length of {quoted(self.length_ms)} ms")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``"5/hour"``. Raises InvalidValue for anything else."""
        read = read_count(text) if isinstance(text, str) else None
        if read is None or read[2] not in UNIT_MS:
            raise cls._refusal(f"cannot read {quoted(text)}")
        count, multiple, unit = read
        return cls(count, multiple * UNIT_MS[unit])

    @classmethod
    def _refusal(cls, problem: str) -> InvalidValue:
        accepted = (
            f"N/unit or N/M unit with a unit of {', '.join(UNIT_MS)}, N from 1 to {cls.MOST}, "
            "at most 366 days; several in one text are separated by commas"
        )
        return InvalidValue(cls.__name__.lower(), problem, accepted)

    @property
    def longest_ms(self) -> int:
        return self.length_ms

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
class Kept:
    """How many places of a quota are for messages of at least this ``priority`` alone."""

    count: int
    priority: int

    def __str__(self) -> str:
        return f"{self.count} kept for priority >= {self.priority}"


@dataclass(frozen=True, slots=True)
class Ramp:
    """How the count of a calendar quota of days grows: ``factor`` times each day, up to ``most``.

    ``since`` is the last day that has the quota's own count.
    """

    factor: Decimal
    most: int
    since: date

    def __str__(self) -> str:
        factor = f"{self.factor.normalize():f}"
        return f"growing {factor} daily to {self.most}/day from {self.since.isoformat()}"


def _check(count: int, kept: Kept | None, ramp: Ramp | None = None, unit: str = "day") -> None:
    problem = ""
    if kept and not (_is_within(kept.count, count - 1) and _is_within(kept.priority, 100, -99)):
        problem = f"{kept} of {count}"
    elif ramp and not (
        unit == "day"
        and _LEAST_FACTOR <= ramp.factor <= _MOST_FACTOR
        and ramp.factor * 1_000 % 1 == 0
        and _is_within(ramp.most, _MOST, count + 1)
    ):
        problem = f"{count}/{unit} {ramp}"
    if problem:
        raise InvalidValue("quota", problem, _FURTHER_ACCEPTED)


@dataclass(frozen=True, slots=True)
class Quota(_CountPerLength):
    """At most ``count`` promised times of one scope within any span shorter than ``length_ms``.

    Times exactly ``length_ms`` apart are fine: under 1 per minute, 11:11:11 and 11:12:11 fit.
    A message of a lower priority than ``kept`` names is refused where it would take what is kept.
    """

    kept: Kept | None = None

    def __post_init__(self) -> None:
        _CountPerLength.__post_init__(self)
        _check(self.count, self.kept)

    def __str__(self) -> str:
        text = _CountPerLength.__str__(self)
        return text if self.kept is None else f"{text}, {self.kept}"


@dataclass(frozen=True, slots=True)
class Limit(_CountPerLength):
    """At most ``count`` sends within any span shorter than ``length_ms`` (its period)."""


@dataclass(frozen=True, slots=True)
class _CountPerPeriod:
    MOST: ClassVar[int] = _MOST
    ACCEPTED: ClassVar[str] = _CALENDAR_ACCEPTED
    FIELD: ClassVar[str]
    count: int
    unit: CalendarUnit
    zone: str | None

    def __post_init__(self) -> None:
        if not _is_within(self.count, self.MOST):
            raise self.refusal(f"a count of {quoted(self.count)}")
        if not isinstance(self.unit, str) or self.unit not in CALENDAR_UNITS:
            raise self.refusal(f"{quoted(self.unit)} is no calendar unit")
        if self.zone is not None:
            try:
                zones.rules(self.zone)
            except InvalidValue as refused:
                raise self.refusal(refused.problem) from None

    @classmethod
    def read(cls, text: str, counted: str, zone: str) -> Self:
        """Read the text before and after ``in``. Raises InvalidValue."""
        read = read_count(counted)
        if read is None:
            raise cls.refusal(f"cannot read {quoted(text)}")
        count, multiple, unit = read
        if multiple != 1:
            raise cls.refusal(
                f"{quoted(text)} asks for periods of {multiple} {cut(unit, 40)}s, and a calendar "
                "does not say where such a period begins"
            )
        # The class refuses an unknown unit.
        return cls(count, cast(CalendarUnit, unit), None if zone == _LOCAL else zone)

    @classmethod
    def refusal(cls, problem: str) -> InvalidValue:
        return InvalidValue(cls.FIELD, problem, cls.ACCEPTED)

    @property
    def longest_ms(self) -> int:
        """Upper bound of a period: its usual length, for a month 31 days, plus 26 hours.

        It grows by as much as clocks go back within it: offsets lie between -12 and +14 hours.
        """
        return LONGEST_MS[self.unit] + FARTHEST_BACK_MS

    def bounds(self, instant_ms: int, periods: int, zone: str = "UTC") -> tuple[int, ...]:
        return bounds(self.unit, self.zone or zone, instant_ms, periods)

    def __str__(self) -> str:
        return f"{self.count}/{self.unit} in {self.zone or _LOCAL}"


@dataclass(frozen=True, slots=True)
class CalendarQuota(_CountPerPeriod):
    """At most ``count`` promised times of one scope within one calendar period of a zone.

    ``zone`` is a name of the tz database; None, written ``local``, means the zone that a message
    names. A period begins at the first instant at which the clocks show its beginning or later,
    and is not begun again when they go back. So each instant lies in one period: the latest that
    has begun. An hour that is repeated is one period of two hours, a day that is skipped is none.
    Weeks begin on Monday. With a ``ramp`` each day has a count of its own; ``kept`` is as for
    :class:`Quota`. Raises InvalidValue.
    """

    FIELD = "quota"
    ACCEPTED = f"{_CALENDAR_ACCEPTED}; or {_FURTHER_ACCEPTED}"
    ramp: Ramp | None = None
    kept: Kept | None = None

    def __post_init__(self) -> None:
        _CountPerPeriod.__post_init__(self)
        _check(self.count, self.kept, self.ramp, self.unit)

    def __str__(self) -> str:
        grows = "" if self.ramp is None else f" {self.ramp}"
        text = f"{self.count}/{self.unit}{grows} in {self.zone or _LOCAL}"
        return text if self.kept is None else f"{text}, {self.kept}"


@dataclass(frozen=True, slots=True)
class CalendarLimit(_CountPerPeriod):
    """At most ``count`` sends within one calendar period of ``zone``. Raises InvalidValue.

    Periods are those of :class:`CalendarQuota`.
    """

    FIELD = "limit"
    ACCEPTED = _CALENDAR_ACCEPTED.removesuffix(f" or {_LOCAL!r}")

    def __post_init__(self) -> None:
        if self.zone is None:
            raise self.refusal(f"a zone of {_LOCAL!r}, and a channel has no zone of its own")
        _CountPerPeriod.__post_init__(self)


AnyQuota = Quota | CalendarQuota
SendLimit = Limit | CalendarLimit


def places(quota: AnyQuota, priority: int, instant_ms: int | None = None, zone: str = "UTC") -> int:
    """Return its N for messages of a priority: at an instant, or the least that it ever is."""
    count, kept = quota.count, quota.kept
    if instant_ms is not None and isinstance(quota, CalendarQuota) and quota.ramp is not None:
        [begins_ms, _] = quota.bounds(instant_ms, 1, zone)
        day = zones.wall_at(begins_ms, zones.rules(quota.zone or zone)).date()
        count = _grown(count, quota.ramp, max(0, (day - quota.ramp.since).days))
    return count if kept is None or priority >= kept.priority else count - kept.count


@lru_cache(maxsize=1 << 12)
def _grown(count: int, ramp: Ramp, days: int) -> int:
    # Long after it is reached, powers are too large to work with.
    if days > math.log(ramp.most / count) / math.log(ramp.factor) + 1:
        return ramp.most
    times, parts = ramp.factor.as_integer_ratio()
    return min(ramp.most, int(count * times**days // parts**days))


def send_limits(quotas: Iterable[AnyQuota]) -> list[Limit]:
    """Return what quotas of the own scope mean for its sends: calendar quotas mean nothing."""
    return [Limit(quota.count, quota.length_ms) for quota in quotas if isinstance(quota, Quota)]


def parse_quota(text: str) -> AnyQuota:
    """Read ``"5/hour"``, ``"10/day in Europe/Berlin"`` or ``"3000/month in local"``.

    Without ``in ZONE`` the quota counts within any span of that length, unless it grows. Raises
    InvalidValue.
    """
    match = _QUOTA.fullmatch(text) if isinstance(text, str) and len(text) <= LONGEST_TEXT else None
    if match is None:
        return _parsed(text, Quota, CalendarQuota)
    counted, factor, most, day, zone, places_kept, least = match.groups()
    quota: AnyQuota
    if day is None:
        quota = _parsed(counted, Quota, CalendarQuota)
    else:
        try:
            ramp = Ramp(Decimal(factor), int(most), date.fromisoformat(day))
        except ValueError:
            raise CalendarQuota.refusal(f"{quoted(day)} is no day") from None
        quota = replace(CalendarQuota.read(text, counted, zone or "UTC"), ramp=ramp)
    return quota if least is None else replace(quota, kept=Kept(int(places_kept), int(least)))


def parse_limit(text: str) -> Limit | CalendarLimit:
    """Read ``"100/second"`` or ``"50000/day in Europe/Berlin"``. Raises InvalidValue."""
    return _parsed(text, Limit, CalendarLimit)


L = TypeVar("L", bound=_CountPerLength)
C = TypeVar("C", bound=_CountPerPeriod)


def _parsed(text: str, by_length: type[L], by_period: type[C]) -> L | C:
    zoned = split_zone(text) if isinstance(text, str) else None
    if zoned is not None:
        return by_period.read(text, *zoned)
    try:
        return by_length.parse(text)
    except InvalidValue as refused:
        accepted = f"{refused.accepted}; or {by_period.ACCEPTED}"
        raise InvalidValue(refused.field, refused.problem, accepted) from None

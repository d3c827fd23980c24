"""How many per how long: quotas judged at submission, limits guarded at delivery.

Both are written the same way, ``N/unit`` or ``N/M unit``: ``"1/minute"``, ``"5/hour"``,
``"2/30 second"``. They are two types because they are never interchangeable: a quota counts
promised times, a limit counts hand-overs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar, Self

from dispatcher.errors import InvalidValue

UNIT_MS = {
    "second": 1_000,
    "minute": 60_000,
    "hour": 3_600_000,
    "day": 86_400_000,
    "week": 604_800_000,
}
MAX_LENGTH_MS = 366 * UNIT_MS["day"]

_GRAMMAR = re.compile(r"\s*([0-9]{1,9})\s*/\s*(?:([0-9]{1,9})\s+)?([a-z]+?)s?\s*", re.ASCII)
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

    MOST = 1_000
    __str__ = _CountPerLength.__str__


@dataclass(frozen=True, slots=True)
class Limit(_CountPerLength):
    """At most ``count`` hand-overs within any span shorter than ``length_ms`` (its period)."""

    MOST = 1_000_000
    __str__ = _CountPerLength.__str__

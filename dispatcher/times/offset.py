"""How far from its event a reminder stands: elapsed time, or by the calendar."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, Self
from zoneinfo import ZoneInfo

from dateutil.relativedelta import relativedelta

from dispatcher.errors import InvalidDraft, kind_of, plain, quoted
from dispatcher.times.clock import MILLISECOND

_TEXT = re.compile(r"([+-]?\d{1,9}) ?([a-z]+?)s?", re.ASCII)
_ELAPSED = {"hour": 3_600_000, "minute": 60_000, "second": 1_000, "millisecond": 1}
_UNITS = {
    "year": ("months", 12), "month": ("months", 1), "week": ("days", 7), "day": ("days", 1),
    **{unit: ("ms", ms) for unit, ms in _ELAPSED.items()},
}  # fmt: skip
_ACCEPTED = "a timedelta, or a text such as '-24 hours', '-1 day' or '-1 month'"


class Offset(NamedTuple):
    """Days and months keep the wall time of the event; ``ms`` are elapsed time.

    Its text is its only form: two offsets that are equal have the same.
    """

    ms: int = 0
    days: int = 0
    months: int = 0

    @classmethod
    def parse(cls, value: timedelta | str | None) -> Self:
        """Read an offset; a timedelta is elapsed time, None is 0. Raises InvalidDraft."""
        if value is None:
            return cls()
        if isinstance(value, timedelta):
            try:
                return cls(-(-value // MILLISECOND))
            except Exception:  # noqa: BLE001 - the code of a caller's class may raise anything
                problem = f"{kind_of(value)} that cannot be read"
                raise InvalidDraft("offset", problem, _ACCEPTED) from None
        if not isinstance(value, str):
            raise InvalidDraft("offset", kind_of(value), _ACCEPTED)
        match = _TEXT.fullmatch(plain(value).strip())
        if match is None or match[2] not in _UNITS:
            raise InvalidDraft("offset", f"cannot read {quoted(value)}", _ACCEPTED)
        field, size = _UNITS[match[2]]
        return cls(**{field: int(match[1]) * size})

    def __str__(self) -> str:
        number, unit = self.months or self.days, "month" if self.months else "day"
        if not number:
            unit = next(unit for unit, ms in _ELAPSED.items() if self.ms % ms == 0)
            number = self.ms // _ELAPSED[unit]
        return f"{number} {unit}{'s' * (abs(number) != 1)}"

    def from_event(self, at: datetime, zone: ZoneInfo) -> datetime:
        """Return the instant. Raises InvalidDraft outside of the years 1 to 9999.

        A wall time that clocks skip is reckoned by their offset before, so that it comes after the
        gap, and one that they repeat is the first, as RFC 5545 says.
        """
        try:
            if not (self.days or self.months):
                return at + self.ms * MILLISECOND
            wall = at.astimezone(zone).replace(tzinfo=None, fold=0)
            moved = wall + relativedelta(months=self.months, days=self.days)
            return moved.replace(tzinfo=zone).astimezone(UTC)
        except (OverflowError, ValueError):
            accepted = "a time of the years 1 to 9999"
            raise InvalidDraft("offset", f"{self} is out of range", accepted) from None

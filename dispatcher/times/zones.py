"""The rules of a zone: its offsets from UTC and their changes.

Rules come from the tz database through ``zoneinfo`` (docs/decisions/0004-zone-rules.md). It gives
the offset from UTC at an instant but not the instants at which the offset changes, so this module
searches for them: it compares the offset at the beginning of a UTC day with that at its end. No
zone of the tz database changes its offset twice within a day.

A *wall time* is what the clocks show, a naive datetime. Instants are aware UTC, or whole
milliseconds since 1970. Near and beyond the ends of the years 1 to 9999 these functions raise
OverflowError.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from dispatcher.errors import InvalidValue, plain, quoted
from dispatcher.times.lengths import MILLISECOND

DAY_MS = 86_400_000
MAX_ZONE = 63
"""The most characters of a name of a zone; the longest of the tz database has 32."""

_DAY_SECONDS = 86_400
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_+\-]*(/[A-Za-z0-9_+\-]+)*", re.ASCII)
_NO_ZONES = re.compile(r"(localtime|posixrules|Factory)|(posix|right)/.*")
"""Files of the tz database that are no zones, or zones of another time scale."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC).replace(tzinfo=None)


def rules(name: str, *, field: str = "zone") -> ZoneInfo:
    """Return the rules of the zone of that name. Raises InvalidValue, naming ``field``."""
    accepted = "a name of the tz database, such as Europe/Berlin"
    if not isinstance(name, str) or len(name) > MAX_ZONE or not _NAME.fullmatch(name):
        raise InvalidValue(field, f"{quoted(name)} is no name of a zone", accepted)
    if _NO_ZONES.fullmatch(name):
        raise InvalidValue(field, f"{quoted(name)} is no zone", accepted)
    try:
        return ZoneInfo(plain(name))
    except (LookupError, ValueError, OSError):
        raise InvalidValue(field, f"there is no zone {quoted(name)}", accepted) from None


def wall_at(instant_ms: int, zone: ZoneInfo) -> datetime:
    """Return the wall time at an instant."""
    [(_, _, offset_ms)] = pieces(zone, instant_ms, instant_ms + 1)
    return _EPOCH + (instant_ms + offset_ms) * MILLISECOND


def first_instant(wall: datetime, zone: ZoneInfo) -> datetime:
    """Return the first instant, aware UTC, at which the clocks show ``wall`` or later.

    Where a clock change skips ``wall`` it is the instant of the change; where one repeats it, the
    first time.
    """
    near_ms = (wall - _EPOCH) // MILLISECOND
    # An offset is shorter than a day, so the instant lies less than a day from its wall time.
    near = pieces(zone, near_ms - DAY_MS, near_ms + DAY_MS + 1)
    return next(
        instant
        for from_ms, until_ms, offset_ms in near
        if (instant := max(_utc(from_ms), (wall - offset_ms * MILLISECOND).replace(tzinfo=UTC)))
        < _utc(until_ms)
    )


def pieces(zone: ZoneInfo, start_ms: int, end_ms: int) -> Sequence[tuple[int, int, int]]:
    """Cut the span from ``start_ms`` until before ``end_ms`` where the offset from UTC changes.

    Each piece is ``(from_ms, until_ms, offset_ms)``: the clocks show UTC plus the offset. The
    pieces follow each other without gaps, and neighbours differ in their offset. An empty span
    has none.
    """
    cut: list[tuple[int, int, int]] = []
    for day in range(start_ms // DAY_MS, -(-end_ms // DAY_MS)):
        for from_ms, until_ms, offset_ms in _pieces_of_day(zone, day):
            begins_ms, ends_ms = max(from_ms, start_ms), min(until_ms, end_ms)
            if begins_ms >= ends_ms:
                continue
            if cut and cut[-1][2] == offset_ms:
                begins_ms = cut.pop()[0]
            cut.append((begins_ms, ends_ms, offset_ms))
    return cut


@lru_cache(maxsize=1 << 14)
def _pieces_of_day(zone: ZoneInfo, day: int) -> tuple[tuple[int, int, int], ...]:
    start, end = day * _DAY_SECONDS, (day + 1) * _DAY_SECONDS
    before, after = _offset_ms(zone, start), _offset_ms(zone, end)
    if before == after:
        return ((start * 1_000, end * 1_000, before),)
    unchanged, change = start, end
    while change - unchanged > 1:
        middle = (unchanged + change) // 2
        if _offset_ms(zone, middle) == before:
            unchanged = middle
        else:
            change = middle
    first = (start * 1_000, change * 1_000, before)
    return (first, (change * 1_000, end * 1_000, after)) if change < end else (first,)


def _utc(ms: int) -> datetime:
    return (_EPOCH + ms * MILLISECOND).replace(tzinfo=UTC)


def _offset_ms(zone: ZoneInfo, second: int) -> int:
    utc = _EPOCH + timedelta(seconds=second)
    shown = zone.fromutc(utc.replace(tzinfo=zone))
    return (shown.replace(tzinfo=None) - utc) // MILLISECOND

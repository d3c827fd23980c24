"""The rules of a zone: its offsets from UTC and their changes.

Rules come from the newer tz database of the system and the package ``tzdata``, through
``zoneinfo``, whose search path stays the program's (docs/decisions/0004-zone-rules.md). It gives
the offset from UTC at an instant but not the instants at which the offset changes, so this module
searches for them: it compares the offset at the beginning of a UTC day with that at its end. No
zone of the tz database changes its offset twice within a day.

A *wall time* is what the clocks show, a naive datetime. Instants are aware UTC, or whole
milliseconds since 1970. Near and beyond the ends of the years 1 to 9999 these functions raise
OverflowError.
"""

from __future__ import annotations

import logging
import re
import zoneinfo
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from importlib import import_module, resources
from pathlib import Path
from typing import NamedTuple
from zoneinfo import ZoneInfo

from dispatcher.errors import InvalidValue, plain, quoted
from dispatcher.times.clock import MILLISECOND

log = logging.getLogger(__name__)

DAY_MS = 86_400_000
MAX_ZONE = 63
"""The most characters of a name of a zone; the longest of the tz database has 32."""

_DAY_SECONDS = 86_400
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_+\-]*(/[A-Za-z0-9_+\-]+)*", re.ASCII)
_NO_ZONES = re.compile(r"(localtime|posixrules|Factory)|(posix|right)/.*")
"""Files of the tz database that are no zones, or zones of another time scale."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC).replace(tzinfo=None)
_VERSION = re.compile(r"(?:# version )?(\d{4}[a-z]+)")


class Database(NamedTuple):
    """A version, such as ``2026b``, and ``tzdata`` or the folder of the system."""

    version: str
    source: str


PACKAGE = "tzdata"


@cache
def database() -> Database:
    """Return the newer tz database of the system and the package; a system's may be unknown."""
    system = next(filter(None, map(_of_folder, zoneinfo.TZPATH)), Database("", ""))
    try:
        package = Database(import_module(PACKAGE).IANA_VERSION, PACKAGE)
    except ImportError:
        return system
    return max(package, system)


def _of_folder(folder: str) -> Database | None:
    for name in ("tzdata.zi", "+VERSION"):
        try:
            with (Path(folder) / name).open(encoding="ascii", errors="replace") as file:
                version = _VERSION.match(file.readline(80))
        except OSError:
            continue
        if version:
            return Database(version[1], folder)
    return None


@lru_cache(maxsize=1 << 10)
def _read(name: str) -> ZoneInfo:
    if database().source == PACKAGE:
        try:
            with resources.files(PACKAGE).joinpath("zoneinfo", *name.split("/")).open("rb") as file:
                return ZoneInfo.from_file(file, key=name)
        except (LookupError, ValueError, OSError):
            pass  # the system's may have a zone that the package lacks
    return ZoneInfo(name)


def rules(name: str, *, field: str = "zone") -> ZoneInfo:
    """Return the rules of the zone of that name. Raises InvalidValue, naming ``field``."""
    accepted = "a name of the tz database, such as Europe/Berlin"
    if not isinstance(name, str) or len(name) > MAX_ZONE or not _NAME.fullmatch(name):
        raise InvalidValue(field, f"{quoted(name)} is no name of a zone", accepted)
    if _NO_ZONES.fullmatch(name):
        raise InvalidValue(field, f"{quoted(name)} is no zone", accepted)
    try:
        return _read(plain(name))
    except (LookupError, ValueError, OSError):
        raise InvalidValue(field, f"there is no zone {quoted(name)}", accepted) from None


@lru_cache(maxsize=1 << 10)
def known_zone(zone: str | None) -> str | None:
    """Return the zone of a stored message, None where this host has no rules for it.

    Another host, whose tz database is newer or ignores case, has validated it.
    """
    if zone is None:
        return None
    try:
        rules(zone)
    except InvalidValue:
        log.warning(
            "this host has no zone %s: messages in it are judged by the zone of the settings; "
            "install a newer tzdata, or run `dispatcher reschedule --set-zone`", zone,
        )  # fmt: skip
        return None
    return zone


def wall_at(instant_ms: int, zone: ZoneInfo) -> datetime:
    [(_, _, offset_ms)] = pieces(zone, instant_ms, instant_ms + 1)
    return _EPOCH + (instant_ms + offset_ms) * MILLISECOND


def first_instant(wall: datetime, zone: ZoneInfo) -> datetime:
    """Return the first instant, aware UTC, at which the clocks show ``wall`` or later."""
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

    Each piece is ``(from_ms, until_ms, offset_ms)``: the clocks show UTC plus the offset.
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

"""A rule of repetition, and the instants that it means in a zone.

YEARLY to DAILY go by the clocks on the wall. HOURLY, MINUTELY and SECONDLY go by elapsed time from
the start's instant, and their BY parts judge what the clocks show at an instant; the hours of an
HOURLY that names minutes begin with the hour of its start. ``dateutil`` finds the days. It is asked
from the last period before the wanted time, so that a rule costs the same far from its start, and
near the end of its calendar, so that a search ends: days repeat themselves every 400 years. A rule
that is silent for a century has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from functools import lru_cache
from itertools import groupby, islice, pairwise
from typing import Any, Literal, NamedTuple, Self, get_args
from zoneinfo import ZoneInfo

from dateutil import rrule

from dispatcher.errors import InvalidValue, plain, quoted
from dispatcher.times import zones
from dispatcher.times.clock import MILLISECOND
from dispatcher.times.rules import (
    BY_ELAPSED_TIME,
    MAX_COUNT,
    MAX_TEXT,
    Lines,
    Rule,
    basic,
    read,
    refusal,
)
from dispatcher.times.zones import DAY_MS

Gap = Literal["after", "before", "skip"]
"""What becomes of a wall time that a clock change skips.

``after`` counts it with the offset before the change, as RFC 5545 does: 02:30 becomes 03:30.
``before`` counts it with the offset after the change: 01:30. ``skip`` drops it.
"""
Repeat = Literal["first", "second", "both"]
"""At which of its two instants a wall time counts that a clock change repeats."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC).replace(tzinfo=None)
_DAY, _NOTHING = timedelta(days=1), timedelta()
_LEAST_YEAR, _MOST_YEAR = 1970, 9_000
_CENTURY_MS = 36_525 * DAY_MS
_LAST_MS = 7_700 * 365 * DAY_MS
_SEARCHED_YEAR = 9_799
"""The last in which dateutil begins: an interval and a search take a century each."""
_PATIENCE = 300_000
"""So many steps in a row without an instant end the search of a rule by elapsed time."""


class Occurrence(NamedTuple):
    """An instant, in milliseconds since 1970, and the name that it has in its recurrence.

    The name is the wall time of the rule, with its offset where both instants of a repeated one
    count; of a rule by elapsed time, and of a date in UTC, it is the instant with ``Z``.
    """

    at_ms: int
    nominal: str


@dataclass(frozen=True, slots=True)
class Recurrence:
    """A rule of repetition from the wall time ``start`` on, as :meth:`parse` returns it.

    ``rule`` is its text in RFC 5545, in which all is written out that an RRULE takes from its
    start. The start itself counts only where the rule names it.
    """

    rule: str
    start: datetime
    gap: Gap = "after"
    repeat: Repeat = "first"

    def __post_init__(self) -> None:
        for field, known in (("gap", get_args(Gap)), ("repeat", get_args(Repeat))):
            if (value := getattr(self, field)) not in known:
                raise InvalidValue(field, quoted(value), f"one of {', '.join(known)}")
        start = self.start
        is_whole = isinstance(start, datetime) and not (start.tzinfo or start.microsecond)
        if not is_whole or not _LEAST_YEAR <= start.year <= _MOST_YEAR:
            years = f"{_LEAST_YEAR} to {_MOST_YEAR}"
            accepted = f"a wall time without a zone, in whole seconds, of the years {years}"
            raise InvalidValue("start", quoted(start), accepted)

    @classmethod
    def parse(
        cls,
        text: str,
        *,
        start: datetime,
        until: datetime | None = None,
        count: int | None = None,
        gap: Gap = "after",
        repeat: Repeat = "first",
    ) -> Self:
        """Read an RRULE, lines of RRULE, RDATE and EXDATE, or cron. Raises InvalidValue.

        ``until`` (naive: a wall time) and ``count`` are for a rule that has neither UNTIL nor
        COUNT. Where a rule goes by wall times, COUNT becomes the UNTIL of its last one; skipped and
        excluded ones count. A rule that never fires is refused.
        """
        cls("", start, gap, repeat)
        if not isinstance(text, str) or len(text) > MAX_TEXT:
            raise refusal(f"is no text of at most {MAX_TEXT:,} characters")
        if count is not None and not (isinstance(count, int) and count <= MAX_COUNT):
            raise refusal(f"has {quoted(count)} as COUNT, not a number up to {MAX_COUNT:,}")
        ends = "" if count is None else f";COUNT={count}"
        if until is not None:
            if not isinstance(until, datetime):
                raise refusal(f"has {quoted(until)} as UNTIL, which is no datetime")
            until = until.astimezone(UTC) if until.tzinfo else until
            ends += f";UNTIL={basic(until.replace(microsecond=0))}"
        lines = read(plain(text), start, ends)
        lines = lines._replace(rules=tuple(_ended(rule, start) for rule in lines.rules))
        for rule in lines.rules:
            alone = cls(str(lines._replace(rules=(rule,), dates=())), start, gap, repeat)
            # Where clocks are furthest ahead, an UNTIL in UTC comes last.
            if alone._first(zones.rules("Etc/GMT-14"), _ms(start) - DAY_MS) is None:
                raise refusal(f"never fires: {quoted(str(rule))} from {start.isoformat()} on")
        return cls(str(lines), start, gap, repeat)

    def between(self, zone: str, start_ms: int, end_ms: int) -> list[Occurrence]:
        """Return what lies from ``start_ms`` until before ``end_ms``, in strictly growing instants.

        Of several occurrences at an instant the least name counts. The span is at most a century;
        SECONDLY gives 86,400 a day. Raises InvalidValue for the zone.
        """
        return self._between(zones.rules(zone), start_ms, end_ms)

    def first_from(self, zone: str, at_ms: int) -> int | None:
        """Return the first instant at ``at_ms`` or later, None where there is none any more."""
        first = self._first(zones.rules(zone), at_ms)
        return first and first.at_ms

    def following(self, zone: str, at_ms: int, most: int) -> list[Occurrence]:
        """Return the first occurrences at ``at_ms`` or later, ``most`` of them or fewer."""
        found = list[Occurrence]()
        while len(found) < most and (first := self._first(zones.rules(zone), at_ms)):
            found.append(first)
            at_ms = first.at_ms + 1
        return found

    def _between(self, zone: ZoneInfo, start_ms: int, end_ms: int) -> list[Occurrence]:
        names = dict[int, str]()
        for stream in self._streams(zone, start_ms, end_ms):
            for at_ms, name in stream:
                if start_ms <= at_ms < end_ms:
                    names[at_ms] = min(name, names.get(at_ms, name))
        return [Occurrence(at_ms, names[at_ms]) for at_ms in sorted(names)]

    def _first(self, zone: ZoneInfo, at_ms: int) -> Occurrence | None:
        streams = self._streams(zone, at_ms, at_ms + _CENTURY_MS)
        firsts = (
            islice((one.at_ms for one in stream if one.at_ms >= at_ms), 1) for stream in streams
        )
        near_ms = min((instant for first in firsts for instant in first), default=None)
        # Where clocks change, a later wall time may be an earlier instant.
        return None if near_ms is None else self._between(zone, at_ms, near_ms + 1)[0]

    def _streams(
        self, zone: ZoneInfo, start_ms: int, end_ms: int
    ) -> Iterator[Iterator[Occurrence]]:
        """Yield what each line has in the span and near it, in order but where clocks change."""
        lines = _lines(self.rule, self.start)
        start_ms, end_ms = max(start_ms, -DAY_MS), min(end_ms, start_ms + _CENTURY_MS, _LAST_MS)
        if start_ms >= end_ms:
            return
        begin, end = _wall(start_ms - DAY_MS), _wall(end_ms + DAY_MS)
        start = self._instants(self.start, zone)[0] // 1_000
        dates = (one for one in lines.dates if not one.tzinfo and self.start <= one)
        yield self._at_walls((one for one in dates if begin <= one <= end), zone, lines, _LAST_MS)
        seconds = (_ms(one) // 1_000 for one in lines.dates if one.tzinfo)
        yield self._at_ticks((second for second in seconds if second >= start), zone, lines, end_ms)
        for rule in lines.rules:
            until_ms = self._until_ms(rule, zone)
            if rule.freq not in BY_ELAPSED_TIME:
                walls = _walls(rule, self.start, begin, end)
                yield self._at_walls(walls, zone, lines, until_ms)
            else:
                last = min(end_ms, until_ms + 1)
                span = (start_ms // 1_000, -(-last // 1_000))
                ticks = _ticks(rule, zone, start, *span, excluded=lines.excluded)
                yield self._at_ticks(ticks, zone, lines, until_ms)

    def _at_walls(
        self, walls: Iterable[datetime], zone: ZoneInfo, lines: Lines, until_ms: int
    ) -> Iterator[Occurrence]:
        for wall in walls:
            if lines.excluded and lines.excluded & {wall, wall.date()}:
                continue
            instants = _instants(wall, zone, self.gap, self.repeat)
            for at_ms in instants:
                named = wall
                if len(instants) > 1:
                    named = wall.replace(tzinfo=timezone((_ms(wall) - at_ms) * MILLISECOND))
                if at_ms <= until_ms and not (lines.excluded and _utc(at_ms) in lines.excluded):
                    yield Occurrence(at_ms, _name(named))

    @staticmethod
    def _at_ticks(
        ticks: Iterable[int], zone: ZoneInfo, lines: Lines, until_ms: int
    ) -> Iterator[Occurrence]:
        for at_ms in (second * 1_000 for second in ticks):
            if lines.excluded:
                wall = zones.wall_at(at_ms, zone)
                if lines.excluded & {wall, wall.date(), _utc(at_ms)}:
                    continue
            if at_ms <= until_ms:
                yield Occurrence(at_ms, _name(_utc(at_ms)))

    def _instants(self, wall: datetime, zone: ZoneInfo) -> list[int]:
        """Return the instants of the start or the end, which clock changes never drop."""
        return _instants(wall, zone, "after" if self.gap == "skip" else self.gap, self.repeat)

    def _until_ms(self, rule: Rule, zone: ZoneInfo) -> int:
        """Return the last instant that COUNT and UNTIL leave, but for the walls of ``_walls``."""
        if rule.most:
            return _last_tick(rule, zone, self._instants(self.start, zone)[0] // 1_000) * 1_000
        if rule.until is None or (not rule.until.tzinfo and rule.freq not in BY_ELAPSED_TIME):
            return _LAST_MS
        if rule.until.tzinfo or _ms(rule.until) >= _LAST_MS:
            return min(_ms(rule.until), _LAST_MS)
        return self._instants(rule.until, zone)[-1]


@lru_cache(maxsize=1 << 10)
def _lines(text: str, start: datetime) -> Lines:
    return read(text, start)


def _ended(rule: Rule, start: datetime) -> Rule:
    """Return a rule whose COUNT, where it counts wall times, is the UNTIL of the last one."""
    if not rule.most or rule.freq in BY_ELAPSED_TIME:
        return rule
    walls = _walls(rule, start, start, start + _CENTURY_MS * MILLISECOND)
    return rule._replace(most=None, until=max(islice(walls, rule.most), default=start))


def _instants(wall: datetime, zone: ZoneInfo, gap: Gap, repeat: Repeat) -> list[int]:
    """Return the instants at which a wall time counts, in order."""
    wall_ms = _ms(wall)
    near = _near(zone, wall_ms // DAY_MS)
    found = [wall_ms - offset for begin, end, offset in near if begin <= wall_ms - offset < end]
    if not found and gap != "skip":
        found = [
            wall_ms - (before if gap == "after" else after)
            for (_, change, before), (_, _, after) in pairwise(near)
            if wall_ms - before >= change > wall_ms - after
        ]
    return found if repeat == "both" else found[:1] if repeat == "first" else found[-1:]


@lru_cache(maxsize=1 << 12)
def _near(zone: ZoneInfo, day: int) -> Sequence[tuple[int, int, int]]:
    """Return the pieces from a day before to a day after: an offset is shorter than a day."""
    return zones.pieces(zone, (day - 1) * DAY_MS, (day + 2) * DAY_MS)


def _walls(rule: Rule, start: datetime, begin: datetime, end: datetime) -> Iterator[datetime]:
    """Yield the wall times of a rule from ``begin``, or the start, to ``end``, or its UNTIL."""
    begin = max(begin, start)
    if rule.until:  # of one in UTC the caller judges the last day
        end = min(end, rule.until.replace(tzinfo=None) + (_DAY if rule.until.tzinfo else _NOTHING))
    if begin > end:
        return
    day, every = datetime.combine(start, time.min), rule.interval
    if rule.freq == "YEARLY":
        years = (begin.year - start.year) // every * every
        day = day.replace(year=start.year + years, month=1, day=1)
    elif rule.freq == "MONTHLY":
        months = (begin.year - start.year) * 12 + begin.month - start.month
        months = start.month - 1 + months // every * every
        day = day.replace(year=start.year + months // 12, month=months % 12 + 1, day=1)
    else:
        if rule.freq == "WEEKLY":
            day -= timedelta(days=(day.weekday() - rule.week_begins) % 7)
            every *= 7
        day += (begin - day) // timedelta(days=every) * timedelta(days=every)
    later = (_SEARCHED_YEAR - day.year) // 400 * 400
    by: dict[str, Any] = {name.lower(): values for name, values in rule.by}
    found = rrule.rrule(
        getattr(rrule, rule.freq),
        day.replace(year=day.year + later),
        rule.interval,
        wkst=rule.week_begins,
        until=end.replace(year=end.year + later),
        byweekday=[rrule.weekday(one, number or None) for one, number in rule.days] or None,
        **by,
    )
    walls = (wall.replace(year=wall.year - later) for wall in found)
    yield from (wall for wall in walls if wall >= begin)


def _ticks(
    rule: Rule,
    zone: ZoneInfo,
    start: int,
    begin: int,
    end: int,
    *,
    excluded: Set[date] = frozenset(),
) -> Iterator[int]:
    """Yield the instants of a rule by elapsed time, in seconds since 1970, from the start on.

    Whole days that are excluded are left out, where that spares a look at each of their seconds.
    """
    unit, origin = BY_ELAPSED_TIME[rule.freq], _origin(rule, zone, start)
    begin = origin + (max(begin, start) - origin) // unit * unit
    positions = dict(rule.by).get("BYSETPOS")
    skipped = excluded if positions is None else frozenset()
    ticks = _grid(rule, zone, origin, begin, end + unit, skipped=skipped)
    if positions:
        periods = (list(period) for _, period in groupby(ticks, lambda at: (at - origin) // unit))
        ticks = (
            period[index]
            for period in periods
            for index in sorted({n - 1 if n > 0 else len(period) + n for n in positions})
            if 0 <= index < len(period)
        )
    yield from (at for at in ticks if at >= start)


def _origin(rule: Rule, zone: ZoneInfo, start: int) -> int:
    """Return where the first period of a rule by elapsed time begins."""
    wall = zones.wall_at(start * 1_000, zone)
    if rule.freq == "SECONDLY":
        return start
    has_minutes = rule.freq == "HOURLY" and "BYMINUTE" in dict(rule.by)
    return start - wall.second - (wall.minute * 60 if has_minutes else 0)


def _grid(
    rule: Rule, zone: ZoneInfo, origin: int, begin: int, end: int, *, skipped: Set[date]
) -> Iterator[int]:
    by, every, idle = dict(rule.by), rule.interval * BY_ELAPSED_TIME[rule.freq], 0
    is_second, has_minutes = rule.freq == "SECONDLY", rule.freq == "HOURLY" and "BYMINUTE" in by
    tick = 60 if has_minutes else every
    to_hour, to_minute = _waits(by.get("BYHOUR"), 24), _waits(by.get("BYMINUTE"), 60)
    to_second = _waits(by.get("BYSECOND") if is_second else None, 60)
    day_parts = tuple(part for part in rule.by if part[0] in {"BYMONTH", "BYYEARDAY", "BYMONTHDAY"})
    days = rule._replace(freq="DAILY", interval=1, until=None, by=day_parts)
    first = datetime.combine(_wall(begin * 1_000 - DAY_MS), time.min)
    for midnight in _walls(days, first, first, _wall(end * 1_000 + DAY_MS)):
        if midnight.date() in skipped:
            continue
        day_ms = _ms(midnight)
        for from_ms, until_ms, offset_ms in _near(zone, day_ms // DAY_MS):
            dawn, offset = (day_ms - offset_ms) // 1_000, offset_ms // 1_000
            at, last = (
                max(from_ms // 1_000, dawn, begin),
                min(until_ms // 1_000, dawn + 86_400, end),
            )
            while (at := at + (origin - at) % tick) < last:
                if (idle := idle + 1) > _PATIENCE:
                    return
                shown = (at + offset) % 86_400
                if wait := to_hour[shown // 3_600]:
                    at += wait * 3_600 - shown % 3_600
                elif wait := to_minute[shown // 60 % 60]:
                    at += wait * 60 - shown % 60
                elif has_minutes and (at - origin) // 3_600 % rule.interval:
                    at = origin + ((at - origin) // every + 1) * every
                elif wait := to_second[shown % 60]:
                    at += wait
                else:
                    idle = 0
                    yield from (at,) if is_second else (at + after for after in by["BYSECOND"])
                    at += 1


@lru_cache
def _waits(values: tuple[int, ...] | None, size: int) -> tuple[int, ...]:
    """Return how far it is from each number below ``size``, a ring, to the next of the values."""
    return tuple(min(((v - n) % size for v in values or ()), default=0) for n in range(size))


@lru_cache
def _last_tick(rule: Rule, zone: ZoneInfo, start: int) -> int:
    ticks = _ticks(rule, zone, start, start, start + _CENTURY_MS // 1_000)
    return max(islice(ticks, rule.most), default=start)


def _name(moment: datetime) -> str:
    text = moment.isoformat(timespec="seconds" if moment.second else "minutes")
    return text.replace("+00:00", "Z")


def _wall(ms: int) -> datetime:
    return _EPOCH + ms * MILLISECOND


def _utc(ms: int) -> datetime:
    return _wall(ms).replace(tzinfo=UTC)


def _ms(moment: datetime) -> int:
    """Return what a wall time would be, were it one of UTC."""
    return (moment.replace(tzinfo=None) - _EPOCH) // MILLISECOND

"""Spans of the local week, such as quiet hours: ``"mon-fri 21:00-08:00; sat,sun 00:00-24:00"``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Self, TypeVar

from dispatcher.errors import InvalidValue, kind_of, quoted
from dispatcher.times import zones

_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_HOUR, _DAY = 60, 24 * 60
_MOST_ITEMS = 32  # bounds what a script must search
_WEEK = 7 * _DAY
_MINUTE_MS = 60_000
_WEEK_MS = _WEEK * _MINUTE_MS
_LONGEST_MS = 8 * zones.DAY_MS
_FIRST_MONDAY_MS = 4 * zones.DAY_MS  # 1970-01-05, UTC
_ITEM = re.compile(
    r"(?:([a-z]+(?:\s*[,-]\s*[a-z]+)*)\s+)?(\d\d):(\d\d)\s*-\s*(\d\d):(\d\d)",
    re.ASCII | re.IGNORECASE,
)
_ACCEPTED = (
    "HH:MM-HH:MM, with the days before it if not all (mon-fri 21:00-08:00), "
    "several separated by semicolons"
)

NO_HOURS = "none"
"""What a message stores as its quiet hours where it has none, whatever its channel has."""

Interval = tuple[int, int]
Instant = TypeVar("Instant", int, datetime)


@dataclass(frozen=True, slots=True)
class Hours:
    """Spans of the local week, in its minutes from Monday 00:00 on.

    ``spans`` are sorted pairs (first minute, minute after the last), each within the week and
    neither overlapping nor touching; :meth:`parse` makes them. Raises InvalidValue.
    """

    spans: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        edges = [edge for span in self.spans for edge in span]
        if not edges or edges != sorted({edge for edge in edges if 0 <= edge <= _WEEK}):
            raise InvalidValue("spans", quoted(self.spans), f"sorted minutes from 0 to {_WEEK}")

    @classmethod
    def parse(cls, text: str, *, field: str = "quiet_hours") -> Self:
        """Read ``"mon-fri 21:00-08:00; sat,sun 00:00-24:00"``.

        Days are those on which a span begins, all seven if none are named. A span whose end is
        not after its start goes on over midnight. Raises InvalidValue, naming ``field``.
        """
        if not isinstance(text, str):
            raise InvalidValue(field, kind_of(text), _ACCEPTED)
        items = text.split(";")
        if len(items) > _MOST_ITEMS:
            raise InvalidValue(field, f"{len(items)} items", f"at most {_MOST_ITEMS}")
        read = [span for item in items for span in _read_item(item.strip(), field)]
        within = [(start, min(end, _WEEK)) for start, end in read]
        wrapped = [(0, end - _WEEK) for _, end in read if end > _WEEK]
        return cls(tuple(united(within + wrapped)))

    @property
    def covers_week(self) -> bool:
        return self.spans == ((0, _WEEK),)

    @property
    def complement(self) -> Hours | None:
        """The rest of the week; None when there is none."""
        edges = [0, *(edge for span in self.spans for edge in span), _WEEK]
        pairs = zip(edges[::2], edges[1::2], strict=True)
        rest = tuple(pair for pair in pairs if pair[0] < pair[1])
        return Hours(rest) if rest else None

    def inside(self, zone: str, start_ms: int, end_ms: int) -> list[Interval]:
        """Return the intervals in which the clocks of a zone show a time inside the spans.

        They are pairs (from, until) in ms since 1970, ``until`` not belonging to them, sorted, not
        touching, and cut to the stretch. Where the clocks repeat an hour, both times count. Raises
        InvalidValue for an unknown zone.
        """
        first, last = start_ms // zones.DAY_MS, -(-end_ms // zones.DAY_MS)
        return united(
            (max(from_ms, start_ms), min(until_ms, end_ms))
            for day in range(first, last)
            for from_ms, until_ms in _inside_day(self, zone, day)
            if max(from_ms, start_ms) < min(until_ms, end_ms)
        )

    def end(self, zone: str, at_ms: int) -> int | None:
        """Return when the span that holds an instant ends, eight days later at the latest."""
        spans = self.inside(zone, at_ms, at_ms + _LONGEST_MS)
        return spans[0][1] if spans and spans[0][0] == at_ms else None

    def __str__(self) -> str:
        days_of: dict[Interval, list[int]] = {}
        for start, end in sorted(_items(self.spans)):
            day, begins = divmod(start, _DAY)
            days_of.setdefault((begins, end - start), []).append(day)
        return "; ".join(_item_text(days, *times) for times, days in days_of.items())


@lru_cache(maxsize=1 << 10)
def read_hours(text: str) -> Hours | None:
    return None if text == NO_HOURS else Hours.parse(text)


def _read_item(item: str, field: str) -> Iterator[Interval]:
    match = _ITEM.fullmatch(item)
    if match is None:
        raise InvalidValue(field, f"cannot read {quoted(item)}", _ACCEPTED)
    start, end = _minute(match[2], match[3]), _minute(match[4], match[5])
    if start is None or end is None or start == _DAY:
        accepted = "times from 00:00 to 23:59, or 24:00 as an end"
        raise InvalidValue(field, f"there is no such time in {quoted(item)}", accepted)
    if start == end:
        accepted = "an end that differs from the start; a whole day is 00:00-24:00"
        raise InvalidValue(field, f"{quoted(item)} ends where it starts", accepted)
    length = (end - start) % _DAY or _DAY
    for day in _read_days(match[1], field):
        yield day * _DAY + start, day * _DAY + start + length


def _minute(hours: str, minutes: str) -> int | None:
    minute = int(hours) * _HOUR + int(minutes)
    return minute if int(minutes) < _HOUR and minute <= _DAY else None


def _read_days(text: str | None, field: str) -> set[int]:
    if text is None:
        return set(range(7))
    days: set[int] = set()
    for part in text.lower().split(","):
        names = [name.strip() for name in part.split("-")]
        if not set(names) <= set(_DAYS) or part.count("-") > 1 or len(set(names)) < len(names):
            accepted = f"{', '.join(_DAYS)}, or two different ones as in mon-fri"
            raise InvalidValue(field, f"{quoted(part.strip())} names no days", accepted)
        first, last = _DAYS.index(names[0]), _DAYS.index(names[-1])
        days.update((first + n) % 7 for n in range((last - first) % 7 + 1))
    return days


def _items(spans: tuple[Interval, ...]) -> Iterator[Interval]:
    """Cut spans at midnight, but not those over one midnight that are shorter than a day."""
    joined = list(spans)
    if len(spans) > 1 and spans[0][0] == 0 and spans[-1][1] == _WEEK:
        joined = [*spans[1:-1], (spans[-1][0], _WEEK + spans[0][1])]
    for start, end in joined:
        midnight = start - start % _DAY + _DAY
        if end - start < _DAY:
            yield start, end
            continue
        begun = start
        while begun < end:
            yield begun % _WEEK, begun % _WEEK + min(midnight, end) - begun
            begun, midnight = midnight, midnight + _DAY


def _item_text(days: list[int], begins: int, length: int) -> str:
    ends = begins + length
    ends = ends if ends <= _DAY else ends - _DAY
    times = "-".join(f"{at // _HOUR:02}:{at % _HOUR:02}" for at in (begins, ends))
    return times if len(days) == len(_DAYS) else f"{_days_text(days)} {times}"


def _days_text(days: list[int]) -> str:
    runs: list[list[int]] = []
    for day in days:
        if runs and runs[-1][-1] == day - 1:
            runs[-1].append(day)
        else:
            runs.append([day])
    ends = [(_DAYS[run[0]], "," if run[-1] - run[0] == 1 else "-", _DAYS[run[-1]]) for run in runs]
    return ",".join(first if first == last else first + sep + last for first, sep, last in ends)


@lru_cache(maxsize=1 << 14)
def _inside_day(hours: Hours, zone: str, day: int) -> tuple[Interval, ...]:
    start_ms, end_ms = day * zones.DAY_MS, (day + 1) * zones.DAY_MS
    intervals = []
    for from_ms, until_ms, offset_ms in zones.pieces(zones.rules(zone), start_ms, end_ms):
        # Where the week that the clocks show at its beginning began by this offset; the piece
        # may reach into the next.
        week_ms = from_ms - (from_ms + offset_ms - _FIRST_MONDAY_MS) % _WEEK_MS
        for monday_ms in (week_ms, week_ms + _WEEK_MS):
            for start, end in hours.spans:
                begins_ms = max(from_ms, monday_ms + start * _MINUTE_MS)
                ends_ms = min(until_ms, monday_ms + end * _MINUTE_MS)
                if begins_ms < ends_ms:
                    intervals.append((begins_ms, ends_ms))
    return tuple(intervals)


def united(intervals: Iterable[tuple[Instant, Instant]]) -> list[tuple[Instant, Instant]]:
    """Return intervals that cover the same instants, sorted, neither overlapping nor touching."""
    joined: list[tuple[Instant, Instant]] = []
    for start, end in sorted(intervals):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined

"""Where the parts of a scope's calendar lie in its picture.

A picture has rows of equal length in time, one below the other. In each row a lane of bookings lies
above a lane for each quota and one for quiet hours; so reading down from a time tells what refuses
it. Lengths are units of the picture, which the template draws as SVG.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from itertools import count, pairwise, zip_longest
from typing import NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

from dispatcher.reservation import QuotaTimeline, Span, Timeline
from dispatcher.times import zones
from dispatcher.times.send_time import from_ms, to_ms

WIDTH, LEFT, RIGHT = 1_000, 92, 12
TOP, BOOKED, LANE, GAP = 18, 20, 9, 28
PATTERNS = 6
"""How many colours and patterns there are; further quotas repeat them."""
_LETTER, BESIDE = 6.6, 4
"""The most that a letter of a line's text is wide as a rule, and how far off its line a text is."""
LINE = 14
"""The height of a line of text."""
_DOT = 14
"""Bookings that lie nearer to each other are drawn as one mark."""
_HOUR, _DAY = timedelta(hours=1), timedelta(days=1)


@dataclass(frozen=True, slots=True)
class View:
    """How much time a picture shows: rows of this length, with a line at every step."""

    name: str
    title: str
    whole: timedelta
    row: timedelta
    step: timedelta


VIEWS = {
    each.name: each
    for each in (
        View("hours", "6 hours", timedelta(hours=6), timedelta(hours=1), timedelta(minutes=10)),
        View("day", "Day", timedelta(days=1), timedelta(hours=3), timedelta(minutes=30)),
        View("week", "Week", timedelta(days=7), timedelta(days=1), timedelta(hours=3)),
        View("weeks", "4 weeks", timedelta(days=28), timedelta(days=7), timedelta(days=1)),
    )
}


class Lane(NamedTuple):
    quota: str
    scope: str
    pattern: int
    timeline: QuotaTimeline


class Block(NamedTuple):
    x: float
    width: float
    y: float
    css: str


class Mark(NamedTuple):
    x: float
    many: int
    at: datetime
    until: datetime
    message_id: UUID


class Line(NamedTuple):
    """An upright line with a text behind or ``before`` it, ``level`` lines of text below."""

    x: float
    text: str
    css: str
    before: bool = False
    level: int = 0

    @property
    def stretch(self) -> tuple[float, float]:
        length = _LETTER * len(self.text)
        first = self.x - BESIDE - length if self.before else self.x + BESIDE
        return first, first + length


class PictureRow(NamedTuple):
    begins_at: datetime
    ends_at: datetime
    y: float
    width: float
    past: float
    blocks: Sequence[Block]
    marks: Sequence[Mark]
    lines: Sequence[Line]
    ticks: Sequence[Line]


def stretch_of(view: View, around: datetime, zone: str) -> tuple[datetime, datetime]:
    rules = zones.rules(zone)
    local = zones.wall_at(to_ms(around), rules)
    if view.whole < _DAY:
        start = around - timedelta(minutes=local.minute, seconds=local.second,
                                   microseconds=local.microsecond)  # fmt: skip
    else:
        start = zones.first_instant(datetime.combine(local, time.min), rules)
    return start, moved(start, view.whole, rules)


def lanes_of(timeline: Timeline) -> list[Lane]:
    quotas = [(window.scope, each) for window in timeline.windows for each in window.quotas]
    return [
        Lane(str(each.quota), scope, number % PATTERNS + 1, each)
        for number, (scope, each) in enumerate(quotas)
    ]


def changes_of(timeline: Timeline) -> Iterator[Span]:
    """Yield the changes of the clocks, each until the instant plus the change as a length."""
    pieces = zones.pieces(zones.rules(timeline.zone), to_ms(timeline.start), to_ms(timeline.end))
    for (_, until_ms, before_ms), (_, _, after_ms) in pairwise(pieces):
        yield Span(from_ms(until_ms), from_ms(until_ms + after_ms - before_ms))


def moved(start: datetime, length: timedelta, rules: ZoneInfo) -> datetime:
    """Return the instant so much later; with a length of days the midnight of that day."""
    if abs(length) < _DAY:
        return start + length
    wall = zones.wall_at(to_ms(start), rules)
    return zones.first_instant(datetime.combine(wall, time.min) + length, rules)


class Picture:
    """The timeline of a view, with ``lines``: instants with their texts and classes.

    ``changes`` are the instants at which the clocks change.
    """

    def __init__(
        self,
        timeline: Timeline,
        view: View,
        now: datetime,
        lines: Sequence[tuple[datetime, str, str]],
    ) -> None:
        self._timeline = timeline
        self._view = view
        self._now = now
        self._rules = zones.rules(timeline.zone)
        self.lanes = lanes_of(timeline)
        self.changes = [*changes_of(timeline)]
        spans = list[Span]()
        start = timeline.start
        while start < timeline.end:
            end = moved(start, view.row, self._rules)
            spans.append(Span(start, min(end, timeline.end)))
            start = end
        self._longest = max(span.ends_at - span.begins_at for span in spans)
        marks = [(change.begins_at, change_text(change), "change") for change in self.changes]
        labelled = [self._labelled(span, [*marks, *lines]) for span in spans]
        deepest = max((line.level for row in labelled for line in row), default=0)
        self.lanes_height = BOOKED + LANE * (len(self.lanes) + bool(timeline.quiet))
        row_height = self.lanes_height + GAP + deepest * LINE
        self.height = TOP + len(spans) * row_height
        self.rows = [
            self._row(span, TOP + number * row_height, row_lines)
            for number, (span, row_lines) in enumerate(zip(spans, labelled, strict=True))
        ]

    def _labelled(self, row: Span, lines: Iterable[tuple[datetime, str, str]]) -> list[Line]:
        """Return the lines of a row. No text covers another one or leaves the picture."""
        found = [
            Line(self._x(row, instant), text, css)
            for instant, text, css in sorted(lines)
            if row.begins_at <= instant < row.ends_at
        ]
        placed: list[Line] = []
        for line, following in zip_longest(found, found[1:]):
            # Before its line a text is off the next one's.
            is_near = following is not None and following.x < line.stretch[1]
            sides = (is_near, not is_near)
            places = ((level, before) for level in count() for before in sides)
            choices = (line._replace(level=level, before=before) for level, before in places)
            placed.append(next(each for each in choices if _has_room(each, placed)))
        return placed

    def _row(self, span: Span, y: float, lines: Sequence[Line]) -> PictureRow:
        blocks = list[Block]()
        lanes = [(lane.timeline.blocked, f"q{lane.pattern}") for lane in self.lanes]
        for number, (spans, css) in enumerate([*lanes, (self._timeline.quiet, "quiet")]):
            blocks += self._blocks(span, spans, y + BOOKED + number * LANE, css)
        width, past = self._x(span, span.ends_at) - LEFT, self._x(span, self._now) - LEFT
        return PictureRow(*span, y, width, min(max(past, 0), width), blocks, self._marks(span),
                          lines, list(self._ticks(span, is_first=y == TOP)))  # fmt: skip

    def _ticks(self, row: Span, *, is_first: bool) -> Iterator[Line]:
        view, tick = self._view, row.begins_at
        while (tick := moved(tick, view.step, self._rules)) < row.ends_at:
            shown = tick.astimezone(self._rules)
            if view.step >= _DAY:
                text = f"{shown:%a %d}"
            elif (view.row == _DAY and not is_first) or (shown.minute and view.row > _HOUR):
                text = ""
            else:
                text = f"{shown:%H:%M}"
            yield Line(self._x(row, tick), text, "tick")

    def _blocks(self, row: Span, spans: Iterable[Span], y: float, css: str) -> list[Block]:
        """Return what is seen of spans in a row; those that touch in the picture are one."""
        joined: list[tuple[float, float]] = []
        for span in spans:
            if span.ends_at <= row.begins_at or span.begins_at >= row.ends_at:
                continue
            first = self._x(row, max(span.begins_at, row.begins_at))
            last = max(self._x(row, min(span.ends_at, row.ends_at)), first + 1)
            if joined and first <= joined[-1][1] + 1:
                first, end = joined.pop()
                last = max(end, last)
            joined.append((first, last))
        return [Block(first, round(last - first, 1), y, css) for first, last in joined]

    def _marks(self, row: Span) -> list[Mark]:
        marks: list[Mark] = []
        for each in self._timeline.windows[0].booked:
            if not row.begins_at <= each.at < row.ends_at:
                continue
            x = self._x(row, each.at)
            if marks and x - marks[-1].x < _DOT:
                marks[-1] = marks[-1]._replace(many=marks[-1].many + 1, until=each.at)
            else:
                marks.append(Mark(x, 1, each.at, each.at, each.message_id))
        return marks

    def _x(self, row: Span, instant: datetime) -> float:
        part = (instant - row.begins_at) / self._longest
        return round(LEFT + (WIDTH - LEFT - RIGHT) * part, 1)


def _has_room(line: Line, others: Iterable[Line]) -> bool:
    first, last = line.stretch
    is_within = first >= 0 and last <= WIDTH
    return is_within and not any(
        each.level == line.level and first < each.stretch[1] and each.stretch[0] < last
        for each in others
    )


def change_text(change: Span) -> str:
    seconds = (change.ends_at - change.begins_at).total_seconds()
    minutes = abs(seconds) / 60
    length = f"{minutes / 60:g} h" if minutes % 60 == 0 else f"{minutes:g} min"
    return f"clocks {'go forward' if seconds > 0 else 'go back'} {length}"

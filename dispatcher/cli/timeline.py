"""``dispatcher timeline``: why times of a scope are free or not, as a picture."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Annotated, Any, NamedTuple

import typer
from rich.text import Text

from dispatcher import zones
from dispatcher.cli import show
from dispatcher.cli.filters import examples
from dispatcher.client import Dispatcher
from dispatcher.errors import InvalidDraft
from dispatcher.reservation import QuotaTimeline, Span, Timeline

_CELLS = 12
_BARS = (8, 6, 4, 3, 0)
_LABEL = len("Fri 20 14:00")
_LEAST_WIDTH = 80
_SEVERAL = 2
_MOST_COUNTED = 9
_LEGENDS = (
    "● booked (2-9, + several)  x blocked  - partly blocked  z quiet hours  . free",
    "behind a count, x and -: this quota blocks all, or a part, of that row",
)


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    lines = ("dispatcher timeline ada", "dispatcher timeline ada --channel sms --days 7")
    app.command("timeline", epilog=examples(*lines))(timeline)


def timeline(
    scope: Annotated[str, typer.Argument(help="Whose capacity; by default the recipient.")],
    channel: Annotated[
        str | None, typer.Option(help="Also count its quotas and quiet hours.")
    ] = None,
    kind: Annotated[
        str | None, typer.Option(help="The scope is one of this kind, such as tenant.")
    ] = None,
    zone: Annotated[str | None, typer.Option(help="Zone of the recipient's clocks.")] = None,
    start: Annotated[
        str | None, typer.Option(help="ISO 8601 with offset, or local with --zone; default: now.")
    ] = None,
    hours: Annotated[int | None, typer.Option(min=1, help="How many hours to show.")] = None,
    days: Annotated[int | None, typer.Option(min=1, help="How many days; default: 2.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what is booked, how full each quota is, what is blocked, and the next free slots."""
    if hours is not None and days is not None:
        raise InvalidDraft("hours", "given together with days", "one of them")
    length = timedelta(hours=hours) if hours is not None else timedelta(days=days or 2)
    with Dispatcher() as dispatcher:
        found = dispatcher.timeline(
            scope, channel=channel, kind=kind, zone=zone, start=start, length=length
        )
    if as_json:
        show.as_json(timeline_data(found))
        return
    for line in picture(found, width=max(_LEAST_WIDTH, show.out.width)):
        show.out.print(line, no_wrap=True, overflow="ignore", crop=False)


def timeline_data(timeline: Timeline) -> dict[str, Any]:
    """Return a timeline as plain JSON values."""
    return {
        "start": timeline.start.isoformat(),
        "end": timeline.end.isoformat(),
        "zone": timeline.zone,
        "complete": timeline.complete,
        "windows": [
            {
                "scope": each.scope,
                "complete": each.complete,
                "read": _span_data(each.read),
                "booked": [
                    {"id": str(place.message_id), "at": place.at.isoformat(), "held": place.held}
                    for place in each.booked
                ],
                "quotas": [
                    {
                        "quota": str(quota.quota),
                        "fills": [
                            _span_data(Span(*fill[:2])) | {"booked": fill.booked}
                            for fill in quota.fills
                        ],
                        "blocked": [_span_data(span) for span in quota.blocked],
                    }
                    for quota in each.quotas
                ],
            }
            for each in timeline.windows
        ],
        "quiet": [_span_data(span) for span in timeline.quiet],
        "blocked": [_span_data(span) for span in timeline.blocked],
        "next_slots": [slot.isoformat() for slot in timeline.slots],
    }


def picture(timeline: Timeline, *, width: int) -> list[Text]:
    """Return a timeline line by line, for a terminal that many columns wide."""
    columns, bar, hidden = _columns(timeline, width - _LABEL - _CELLS - 2)
    headings = "".join(each.heading(bar) for each in columns)
    lines = [
        Text.assemble(
            (timeline.windows[0].scope, "bold"),
            f"  {_local(timeline.start, timeline):%a %d %b %Y %H:%M}",
            f" to {_local(timeline.end, timeline):%a %d %b %Y %H:%M}",
            f"  {timeline.zone}",
        ),
        *(Text(each, style="dim") for each in _LEGENDS),
        *(Text(each.legend, style="dim") for each in columns if each.legend),
        *(Text(f"{each} is not shown: too narrow", style="dim") for each in hidden),
        Text((" " * (_LABEL + _CELLS + 1) + headings).rstrip()),
    ]
    before: datetime | None = None
    for row in timeline.steps:
        lines.append(_row(timeline, row, columns, bar, before))
        before = row.begins_at
    incomplete = [
        f"{each.scope}: more than 10,000 booked times; only those from "
        f"{_second(each.read.begins_at, timeline)} until "
        f"{_second(each.read.ends_at, timeline)} are counted"
        for each in timeline.windows
        if not each.complete
    ]
    lines += [Text(text, style="yellow") for text in incomplete]
    return [*lines, *_slots(timeline)]


class _Column(NamedTuple):
    """One quota of one scope."""

    name: str
    legend: str
    quota: QuotaTimeline

    @property
    def _count_width(self) -> int:
        return max(len(_count(most, self.quota)) for most in (self._most, self.quota.quota.count))

    @property
    def _most(self) -> int:
        return max((fill.booked for fill in self.quota.fills), default=0)

    @property
    def fullness(self) -> float:
        return self._most / self.quota.quota.count

    def width(self, bar: int) -> int:
        return 2 + max(len(self.name), bar + bool(bar) + self._count_width + 1)

    def heading(self, bar: int) -> str:
        return f"  {self.name}".ljust(self.width(bar))

    def cell(self, row: Span, bar: int) -> Text:
        booked = _most_in(self.quota, row)
        most = self.quota.quota.count
        full = min(bar, max(bar * booked // most, min(booked, 1)))
        mark = "-" if _within(self.quota.blocked, row) else ""
        if _covers(self.quota.blocked, row):
            mark = "x"
        style = "red" if mark else "yellow" if booked else "dim"
        text = Text("  ")
        if bar:
            text.append("█" * full, style=style).append("░" * (bar - full) + " ", style="dim")
        text.append(_count(booked, self.quota).rjust(self._count_width) + mark, style=style)
        text.pad_right(self.width(bar) - len(text.plain))
        return text


def _columns(timeline: Timeline, width: int) -> tuple[list[_Column], int, list[str]]:
    """Return the quotas that fit, the fullest ones if not all do, and how long their bars are."""
    every = [(each.scope, quota) for each in timeline.windows for quota in each.quotas]
    named = len(timeline.windows) > 1 or any(len(str(q.quota)) > 2 * _BARS[0] for _, q in every)
    columns = [
        _Column(chr(ord("a") + n % 26), f"{chr(ord('a') + n % 26)}  {q.quota} of {scope}", q)
        if named
        else _Column(str(q.quota), "", q)
        for n, (scope, q) in enumerate(every)
    ]
    for bar in _BARS:
        if sum(each.width(bar) for each in columns) <= width:
            return columns, bar, []
    kept = list(columns)
    while len(kept) > 1 and sum(each.width(0) for each in kept) > width:
        kept.remove(min(kept, key=lambda each: each.fullness))
    hidden = [each.legend or each.name for each in columns if each not in kept]
    return kept, 0, hidden


def _row(
    timeline: Timeline, row: Span, columns: Sequence[_Column], bar: int, before: datetime | None
) -> Text:
    begins = _local(row.begins_at, timeline)
    new_day = before is None or _local(before, timeline).date() != begins.date()
    long = row.ends_at - row.begins_at >= timedelta(days=1)
    day = "" if not new_day else f"{begins:%d %b}" if long else f"{begins:%a %d}"
    refused, quiet = _covers(timeline.blocked, row), _covers(timeline.quiet, row)
    style = "red" if refused else "dim" if quiet else ""
    text = Text(f"{day:6} {begins:%H:%M} ", style=style)
    length = (row.ends_at - row.begins_at) / _CELLS
    edges = [row.begins_at + n * length for n in range(_CELLS)] + [row.ends_at]
    strip = Text()
    for cell in pairwise(edges):
        strip.append(*_cell(timeline, Span(*cell)))
    line = Text.assemble(text, strip)
    for column in columns:
        line.append_text(column.cell(row, bar))
    line.rstrip()
    return line


def _cell(timeline: Timeline, cell: Span) -> tuple[str, str]:
    """Return the mark for a small stretch, and its style."""
    booked = timeline.windows[0].booked
    first = bisect_left(booked, cell.begins_at, key=lambda each: each.at)
    many = bisect_left(booked, cell.ends_at, key=lambda each: each.at) - first
    whole, partly = _covers(timeline.blocked, cell), bool(_within(timeline.blocked, cell))
    if many:
        mark = "●" if many < _SEVERAL else str(many) if many <= _MOST_COUNTED else "+"
        return mark, "bold red" if partly else "bold"
    if whole:
        return "x", "red"
    if _covers(timeline.quiet, cell):
        return "z", "dim"
    if partly or _within(timeline.quiet, cell):
        return "-", "red" if partly else "dim"
    return ".", "dim"


def _slots(timeline: Timeline) -> list[Text]:
    lines = [Text("next free slots" if timeline.slots else "no free slot found", style="bold")]
    for slot in timeline.slots:
        ends = next((span.begins_at for span in timeline.refused if span.begins_at > slot), None)
        text = f"  {_second(slot, timeline)}"
        if ends is not None and slot < timeline.end:
            text += f"  free until {_second(ends, timeline)}"
        lines.append(Text(text, style="green"))
    return lines


def _most_in(quota: QuotaTimeline, row: Span) -> int:
    return max((fill.booked for fill in _within(quota.fills, row)), default=0)


def _covers(spans: Sequence[Span], stretch: Span) -> bool:
    return any(
        each.begins_at <= stretch.begins_at and stretch.ends_at <= each.ends_at
        for each in _within(spans, stretch)
    )


def _within(spans: Sequence[Any], stretch: Span) -> Sequence[Any]:
    """Return those of some sorted, disjoint stretches that share an instant with this one."""
    first = bisect_right(spans, stretch.begins_at, key=lambda each: each.ends_at)
    return spans[first : bisect_left(spans, stretch.ends_at, key=lambda each: each.begins_at)]


def _count(booked: int, quota: QuotaTimeline) -> str:
    return f"{booked}/{quota.quota.count}"


def _local(instant: datetime, timeline: Timeline) -> datetime:
    return instant.astimezone(zones.rules(timeline.zone))


def _second(instant: datetime, timeline: Timeline) -> str:
    local = _local(instant, timeline)
    thousandths = f".{local.microsecond // 1_000:03}" if local.microsecond else ""
    return f"{local:%a %d %b %H:%M:%S}{thousandths}"


def _span_data(span: Span) -> dict[str, Any]:
    return {"from": span.begins_at.isoformat(), "until": span.ends_at.isoformat()}

"""``dispatcher timeline``: the booked, blocked and free times of a scope, as a picture."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable, Sequence
from datetime import datetime, timedelta
from itertools import groupby, pairwise
from typing import Annotated, Any, NamedTuple

import typer
from rich.text import Text

from dispatcher.cli import output
from dispatcher.cli.app import AsJson, examples
from dispatcher.cli.filters import scopes_of
from dispatcher.cli.messages import Scopes, left_out_without_channel
from dispatcher.client import Dispatcher
from dispatcher.errors import InvalidDraft, quoted
from dispatcher.reservation import CELLS, Fill, QuotaTimeline, Span, Timeline
from dispatcher.times import zones

_BARS = (8, 6, 4, 3, 0)
_MOST_EMPTY = 3
_LABEL = len("Fri 20 14:00")
_LEAST_WIDTH = 80
_SEVERAL = 2
_MOST_COUNTED = 9
_LEGENDS = (
    "● booked (2-9, + several)  x blocked  - partly blocked  z quiet hours  . free",
    "behind a count, x and -: this quota blocks all, or a part, of that row",
)


group = typer.Typer(rich_markup_mode="rich")


@group.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    epilog=examples(
        "dispatcher timeline ada",
        "dispatcher timeline ada --channel sms --days 7",
        "dispatcher timeline --channel sms",
        "dispatcher timeline --count tenant=acme",
    ),
)
def timeline(
    context: typer.Context,
    scope: Annotated[
        str | None, typer.Argument(help="Whose capacity; by default the recipient.")
    ] = None,
    channel: Annotated[
        str | None,
        typer.Option(help="With its quotas and quiet hours; without it, those of no channel."),
    ] = None,
    counts: Scopes = None,
    zone: Annotated[str | None, typer.Option(help="Zone of the recipient's clocks.")] = None,
    start: Annotated[
        str | None, typer.Option(help="ISO 8601 with offset, or local with --zone; default: now.")
    ] = None,
    hours: Annotated[int | None, typer.Option(min=1, help="How many hours to show.")] = None,
    days: Annotated[int | None, typer.Option(min=1, help="How many days; default: 2.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show what is booked, how full each quota is, what is blocked, and the next free slots.

    Without SCOPE, --channel shows a whole channel, and --count tenant=acme a scope of another kind.
    """
    if hours is not None and days is not None:
        raise InvalidDraft("hours", "given together with days", "one of them")
    length = timedelta(hours=hours) if hours is not None else timedelta(days=days or 2)
    with Dispatcher() as dispatcher:
        words = [*([] if scope is None else [scope]), *context.args]
        scope, named = _scopes(words, dispatcher.settings.scopes)
        scopes = (scopes_of(counts) or {}) | named
        is_channel = scope in dispatcher.settings.channels
        of_channel = f"{scope} is a channel: dispatcher timeline --channel {scope}"
        try:
            found = dispatcher.timeline(
                scope, channel=channel, scopes=scopes or None, zone=zone, start=start, length=length
            )
        except InvalidDraft as error:
            if is_channel and error.field == "recipient":
                error.add_note(of_channel)
            raise
        hints = []
        if is_channel and not any(e.exists for e in found.windows):
            hints.append(of_channel)
        left_out = None if channel else left_out_without_channel(dispatcher.settings)
        if left_out is not None:
            hints.append(left_out)
    if as_json:
        output.as_json(timeline_data(found))
        return
    for line in picture(found, width=max(_LEAST_WIDTH, output.out.width)):
        output.out.print(line, no_wrap=True, overflow="ignore", crop=False)
    for each in hints:
        output.out.print(Text(each, style="yellow"))


def _scopes(words: Sequence[str], kinds: Container[str]) -> tuple[str | None, dict[str, str]]:
    """Read ``ada --tenant acme``: a scope, and ``--count tenant=acme`` in its earlier spelling."""
    scope, found, rest = None, {}, list(words)
    while rest:
        option, equals, name = rest.pop(0).partition("=")
        if not option.startswith("--"):
            if scope is not None:
                raise InvalidDraft("SCOPE", f"a second one, {quoted(option)}", "one scope")
            scope = option + equals + name
            continue
        kind = option.removeprefix("--").replace("-", "_")
        if kind not in kinds:
            raise InvalidDraft("timeline", f"there is no option {option[:80]!r}", "see --help")
        if not equals and not rest:
            raise InvalidDraft(kind, "given without a name", f"{option} NAME")
        found[kind] = name if equals else rest.pop(0)
    return scope, found


def timeline_data(timeline: Timeline) -> dict[str, Any]:
    """Return a timeline for JSON."""
    return {
        "start": timeline.start,
        "end": timeline.end,
        "zone": timeline.zone,
        "complete": timeline.complete,
        "windows": [
            {
                "scope": each.scope,
                "complete": each.complete,
                "exists": each.exists,
                "counts": _spans(count for count in each.counts if count.booked),
                "booked": [
                    {"id": one.message_id, "at": one.at, "held": one.held} for one in each.booked
                ],
                "quotas": [
                    {
                        "quota": str(quota.quota),
                        "fills": _spans(quota.fills),
                        "blocked": _spans(quota.blocked),
                        "unknown": _spans(quota.unknown),
                    }
                    for quota in each.quotas
                ],
            }
            for each in timeline.windows
        ],
        "quiet": _spans(timeline.quiet),
        "blocked": _spans(timeline.blocked),
        "next_slots": timeline.slots,
    }


def _spans(spans: Iterable[Span | Fill]) -> list[dict[str, Any]]:
    return [
        {"from": each.begins_at, "until": each.ends_at}
        | ({"booked": each.booked} if isinstance(each, Fill) else {})
        for each in spans
    ]


def picture(timeline: Timeline, *, width: int) -> list[Text]:
    """Return the lines of a timeline, for a terminal with ``width`` columns."""
    columns, bar, hidden = _columns(timeline, width - _LABEL - CELLS - 2)
    headings = "".join(each.heading(bar) for each in columns)
    lines = [
        *_about(
            Text(timeline.windows[0].scope, style="bold"),
            f" {_local(timeline.start, timeline):%a %d %b %Y %H:%M}"
            f" to {_local(timeline.end, timeline):%a %d %b %Y %H:%M}"
            f"  {timeline.zone}",
            width,
        ),
        *(Text(each, style="dim") for each in _LEGENDS),
        *(Text(each.legend, style="dim") for each in columns if each.legend),
        *(
            line
            for each in hidden
            for line in _about(Text(each, style="dim"), "is not shown: too narrow", width)
        ),
        Text((" " * (_LABEL + CELLS + 1) + headings).rstrip()),
    ]
    before: datetime | None = None
    for is_empty, rows in groupby(timeline.steps, key=lambda row: _is_empty(timeline, row)):
        many = list(rows)
        shown = many[:1] if is_empty and len(many) > _MOST_EMPTY else many
        for row in shown:
            lines.append(_row(timeline, row, columns, bar, before))
            before = row.begins_at
        if len(shown) < len(many):
            until = f"{_local(many[-1].ends_at, timeline):%a %d %H:%M}"
            lines.append(Text(f"{'':{_LABEL + 1}}nothing booked until {until}", style="dim"))
    for each in timeline.windows:
        notes = [
            "too many to read, so they are counted; ? may be blocked or free" * (not each.complete),
            "nothing is booked, at any time" * (not each.exists),
        ]
        for text in filter(None, notes):
            lines += _about(Text(f"{each.scope}:", style="yellow"), text, width)
    return [*lines, *_slots(timeline)]


def _about(name: Text, about: str, width: int) -> list[Text]:
    """Return a name and a text about it: on one line, or below each other."""
    line = Text.assemble(name, " ", about)
    return [line] if line.cell_len <= width else [name, Text(f"  {about}")]


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
    """Return the fullest quotas that fit, the length of their bars, and the quotas left out."""
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
    length = (row.ends_at - row.begins_at) / CELLS
    edges = [row.begins_at + n * length for n in range(CELLS)] + [row.ends_at]
    strip = Text()
    for cell in pairwise(edges):
        strip.append(*_cell(timeline, Span(*cell)))
    line = Text.assemble(text, strip)
    for column in columns:
        line.append_text(column.cell(row, bar))
    line.rstrip()
    return line


def _is_empty(timeline: Timeline, row: Span) -> bool:
    """Whether a row has no booking, no count and no blocked time."""
    spans = (timeline.refused, timeline.unknown)
    return not any(_within(each, row) for each in spans) and not any(
        _most_in(quota, row) for window in timeline.windows for quota in window.quotas
    )


def _cell(timeline: Timeline, cell: Span) -> tuple[str, str]:
    """Return the mark for a cell, and its style."""
    booked, counts = timeline.windows[0].booked, timeline.windows[0].counts
    first = bisect_left(booked, cell.begins_at, key=lambda each: each.at)
    many = bisect_left(booked, cell.ends_at, key=lambda each: each.at) - first
    middle = cell.begins_at + (cell.ends_at - cell.begins_at) / 2
    many += sum(each.booked for each in _within(counts, Span(middle, middle)))
    whole, partly = _covers(timeline.blocked, cell), bool(_within(timeline.blocked, cell))
    if many:
        mark = "●" if many < _SEVERAL else str(many) if many <= _MOST_COUNTED else "+"
        return mark, "bold red" if partly else "bold"
    if whole:
        return "x", "red"
    if _covers(timeline.quiet, cell):
        return "z", "dim"
    if _within(timeline.unknown, cell):
        return "?", "yellow"
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
    """Return those of some sorted, disjoint spans that overlap ``stretch``."""
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

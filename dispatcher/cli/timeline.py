"""``dispatcher timeline``: the booked, blocked and free times of a scope, as a table."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from dispatcher.cli import output
from dispatcher.cli.app import command
from dispatcher.cli.filters import scopes_of
from dispatcher.cli.messages import Scopes, left_out_without_channel
from dispatcher.client import Dispatcher
from dispatcher.errors import InvalidDraft
from dispatcher.reservation.timeline import Fill, QuotaTimeline, Span, Timeline, WindowTimeline
from dispatcher.times import zones

_MARKS = "x: refuses all of that row, -: a part of it"


@command(
    "dispatcher timeline ada",
    "dispatcher timeline ada --channel sms --days 7",
    "dispatcher timeline --channel sms",
    "dispatcher timeline --count tenant=acme",
)
def timeline(
    scope: Annotated[
        str | None, typer.Argument(help="Whose capacity; by default the recipient.")
    ] = None,
    channel: Annotated[
        str | None,
        typer.Option(help="With its quotas and quiet hours; without it, those of no channel."),
    ] = None,
    scopes: Scopes = None,
    zone: Annotated[str | None, typer.Option(help="Zone of the recipient's clocks.")] = None,
    start: Annotated[
        str | None, typer.Option(help="ISO 8601 with offset, or local with --zone; default: now.")
    ] = None,
    hours: Annotated[int | None, typer.Option(min=1, help="How many hours to show.")] = None,
    days: Annotated[int | None, typer.Option(min=1, help="How many days; default: 2.")] = None,
) -> None:
    """Show what is booked, how full each quota is, what is blocked, and the next free slots.

    Without SCOPE, --channel shows a whole channel, and --count tenant=acme a scope of another kind.
    """
    if hours is not None and days is not None:
        raise InvalidDraft("hours", "given together with days", "one of them")
    length = timedelta(hours=hours) if hours is not None else timedelta(days=days or 2)
    with Dispatcher() as dispatcher:
        booked = dispatcher.timeline(
            scope,
            channel=channel,
            scopes=scopes_of(scopes),
            zone=zone,
            start=start,
            length=length,
        )
        left_out = None if channel else left_out_without_channel(dispatcher.settings)
    output.tell(timeline_data(booked), shown(booked))
    if left_out is not None and not output.as_json:
        output.out.print(left_out, style="yellow")


def timeline_data(timeline: Timeline) -> dict[str, Any]:
    return {
        "start": timeline.start,
        "end": timeline.end,
        "zone": timeline.zone,
        "complete": timeline.complete,
        "windows": [
            {
                "scope": window.scope,
                "complete": window.complete,
                "exists": window.exists,
                "booked": [
                    {"id": booking.message_id, "at": booking.at, "held": booking.held}
                    for booking in window.booked
                ],
                "quotas": [
                    {
                        "quota": str(quota.quota),
                        "fills": _spans(quota.fills),
                        "blocked": _spans(quota.blocked),
                    }
                    for quota in window.quotas
                ],
            }
            for window in timeline.windows
        ],
        "quiet": _spans(timeline.quiet),
        "blocked": _spans(timeline.blocked),
        "next_slots": timeline.slots,
    }


def _spans(spans: Iterable[Span | Fill]) -> list[dict[str, Any]]:
    return [
        {"from": span.begins_at, "until": span.ends_at}
        | ({"booked": span.booked} if isinstance(span, Fill) else {})
        for span in spans
    ]


def shown(timeline: Timeline) -> RenderableType:
    windows = timeline.windows
    quotas = [(window.scope, quota) for window in windows for quota in window.quotas]
    several = len(windows) > 1
    names = [
        f"{quota.quota} of {scope}" if several else str(quota.quota) for scope, quota in quotas
    ]
    rows = [
        (
            f"{_local(step.begins_at, timeline):%a %d %b %H:%M}",
            _booked(windows[0], step) or "",
            *(_cell(quota, step) for _, quota in quotas),
            "quiet hours" if _overlapping(timeline.quiet, step) else "",
        )
        for step in timeline.steps
        if not _is_empty(timeline, step)
    ]
    start, end = (_local(at, timeline) for at in (timeline.start, timeline.end))
    parts: list[RenderableType] = [
        Text.assemble(
            (windows[0].scope, "bold"),
            f"  {start:%a %d %b %Y %H:%M} to {end:%a %d %b %Y %H:%M}  {timeline.zone}",
        ),
        output.listed(("from", "booked", *names, ""), rows, right=("booked", *names)),
        Text(_MARKS, style="dim"),
    ]
    for window in windows:
        if not window.exists:
            parts.append(Text(f"{window.scope}: nothing is booked, at any time", style="yellow"))
        if not window.complete:
            parts.append(Text(f"{window.scope}: too much is booked to be listed", style="yellow"))
    parts.append(Text("next free slots" if timeline.slots else "no free slot found", style="bold"))
    for slot in timeline.slots:
        ends = next((span.begins_at for span in timeline.refused if span.begins_at > slot), None)
        text = f"  {_second(slot, timeline)}"
        if ends is not None and slot < timeline.end:
            text += f"  free until {_second(ends, timeline)}"
        parts.append(Text(text, style="green"))
    return Group(*parts)


def _cell(quota: QuotaTimeline, step: Span) -> Text:
    booked = max((fill.booked for fill in _overlapping(quota.fills, step)), default=0)
    blocked = _overlapping(quota.blocked, step)
    covers = any(
        span.begins_at <= step.begins_at and step.ends_at <= span.ends_at for span in blocked
    )
    mark = "x" if covers else "-" if blocked else ""
    return Text(f"{booked}/{quota.quota.count}{mark}", style="red" if mark else "")


def _booked(window: WindowTimeline, step: Span) -> int:
    return sum(step.begins_at <= booking.at < step.ends_at for booking in window.booked)


def _is_empty(timeline: Timeline, step: Span) -> bool:
    return not _overlapping(timeline.refused, step) and not any(
        fill.booked
        for window in timeline.windows
        for quota in window.quotas
        for fill in _overlapping(quota.fills, step)
    )


def _overlapping(spans: Sequence[Any], step: Span) -> Sequence[Any]:
    first = bisect_right(spans, step.begins_at, key=attrgetter("ends_at"))
    return spans[first : bisect_left(spans, step.ends_at, key=attrgetter("begins_at"))]


def _local(instant: datetime, timeline: Timeline) -> datetime:
    return instant.astimezone(zones.rules(timeline.zone))


def _second(instant: datetime, timeline: Timeline) -> str:
    local = _local(instant, timeline)
    thousandths = f".{local.microsecond // 1_000:03}" if local.microsecond else ""
    return f"{local:%a %d %b %H:%M:%S}{thousandths}"

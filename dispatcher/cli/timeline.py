"""``dispatcher timeline``: the booked, blocked and free times of a scope, as a table."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from dispatcher.cli import output
from dispatcher.cli.app import AsJson, command
from dispatcher.cli.filters import scopes_of
from dispatcher.cli.messages import Scopes, left_out_without_channel
from dispatcher.client import Dispatcher
from dispatcher.errors import InvalidDraft, quoted
from dispatcher.reservation import Fill, QuotaTimeline, Span, Timeline, WindowTimeline
from dispatcher.times import zones

_MARKS = "x: refuses all of that row, -: a part of it"


@command(
    "dispatcher timeline ada",
    "dispatcher timeline ada --channel sms --days 7",
    "dispatcher timeline --channel sms",
    "dispatcher timeline --count tenant=acme",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
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
    scopes: Scopes = None,
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
        names = (scopes_of(scopes) or {}) | named
        is_channel = scope in dispatcher.settings.channels
        of_channel = f"{scope} is a channel: dispatcher timeline --channel {scope}"
        try:
            found = dispatcher.timeline(
                scope, channel=channel, scopes=names or None, zone=zone, start=start, length=length
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
        output.as_object(timeline_data(found))
        return
    output.out.print(shown(found), *(Text(each, style="yellow") for each in hints), sep="\n")


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
                "booked": [
                    {"id": one.message_id, "at": one.at, "held": one.held} for one in each.booked
                ],
                "quotas": [
                    {
                        "quota": str(quota.quota),
                        "fills": _spans(quota.fills),
                        "blocked": _spans(quota.blocked),
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


def shown(timeline: Timeline) -> RenderableType:
    several = len(timeline.windows) > 1
    quotas = [(window.scope, quota) for window in timeline.windows for quota in window.quotas]
    names = [
        f"{quota.quota} of {scope}" if several else str(quota.quota) for scope, quota in quotas
    ]
    head = Text.assemble(
        (timeline.windows[0].scope, "bold"),
        f"  {_local(timeline.start, timeline):%a %d %b %Y %H:%M}"
        f" to {_local(timeline.end, timeline):%a %d %b %Y %H:%M}  {timeline.zone}",
    )
    rows = [
        (
            f"{_local(step.begins_at, timeline):%a %d %b %H:%M}",
            _booked(timeline.windows[0], step) or "",
            *(_cell(quota, step) for _, quota in quotas),
            "quiet hours" if _within(timeline.quiet, step) else "",
        )
        for step in timeline.steps
        if not _is_empty(timeline, step)
    ]
    columns = ("from", "booked", *map(output.as_it_is, names), "")
    notes = [
        Text(f"{window.scope}: {text}", style="yellow")
        for window in timeline.windows
        for text in (
            "nothing is booked, at any time" * (not window.exists),
            "too much is booked to be listed" * (not window.complete),
        )
        if text
    ]
    table = output.listed(columns, rows, right=columns[1:-1]) if rows else Text("nothing booked")
    return Group(head, table, Text(_MARKS, style="dim"), *notes, *_slots(timeline))


def _cell(quota: QuotaTimeline, step: Span) -> Text:
    booked = max((fill.booked for fill in _within(quota.fills, step)), default=0)
    blocked = _within(quota.blocked, step)
    covers = any(
        span.begins_at <= step.begins_at and step.ends_at <= span.ends_at for span in blocked
    )
    mark = "x" if covers else "-" if blocked else ""
    count = f"{booked}/{quota.quota.count}{mark}"
    return Text.assemble((count, "red" if mark else ""))


def _booked(window: WindowTimeline, step: Span) -> int:
    first = bisect_left(window.booked, step.begins_at, key=lambda booking: booking.at)
    return bisect_left(window.booked, step.ends_at, key=lambda booking: booking.at) - first


def _is_empty(timeline: Timeline, step: Span) -> bool:
    return not _within(timeline.refused, step) and not any(
        fill.booked
        for window in timeline.windows
        for quota in window.quotas
        for fill in _within(quota.fills, step)
    )


def _slots(timeline: Timeline) -> list[Text]:
    lines = [Text("next free slots" if timeline.slots else "no free slot found", style="bold")]
    for slot in timeline.slots:
        ends = next((span.begins_at for span in timeline.refused if span.begins_at > slot), None)
        text = f"  {_second(slot, timeline)}"
        if ends is not None and slot < timeline.end:
            text += f"  free until {_second(ends, timeline)}"
        lines.append(Text(text, style="green"))
    return lines


def _within(spans: Sequence[Any], stretch: Span) -> Sequence[Any]:
    first = bisect_right(spans, stretch.begins_at, key=lambda each: each.ends_at)
    return spans[first : bisect_left(spans, stretch.ends_at, key=lambda each: each.begins_at)]


def _local(instant: datetime, timeline: Timeline) -> datetime:
    return instant.astimezone(zones.rules(timeline.zone))


def _second(instant: datetime, timeline: Timeline) -> str:
    local = _local(instant, timeline)
    thousandths = f".{local.microsecond // 1_000:03}" if local.microsecond else ""
    return f"{local:%a %d %b %H:%M:%S}{thousandths}"

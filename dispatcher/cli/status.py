"""How a deployment and its windows stand: status, top, load, refusals, timeline."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from dispatcher.celery.configuration import DUTIES
from dispatcher.cli import output
from dispatcher.cli.app import command, until_stopped
from dispatcher.cli.messages import Priority, Scopes, left_out_without_channel
from dispatcher.client import Dispatcher
from dispatcher.errors import InvalidDraft, InvalidValue, Unavailable
from dispatcher.limiters.permits import ChannelFill
from dispatcher.message import STATUSES, Status
from dispatcher.operations.overview import By, LoadToCome, Overview, Tops
from dispatcher.quota import CalendarQuota, Quota, parse_length, places
from dispatcher.reservation.refusals import LastRefusal, Refusals, RuleRefusals
from dispatcher.reservation.timeline import (
    Booked,
    Fill,
    QuotaTimeline,
    Span,
    Timeline,
    WindowTimeline,
)
from dispatcher.selection import read_scopes
from dispatcher.store.listing import Of, OverdueFigure
from dispatcher.telemetry.liveness import Sign
from dispatcher.times import zones
from dispatcher.times.clock import length_text
from dispatcher.times.send_time import to_ms

_NEARLY = 0.8
_MARKS = "x: refuses all of that row, -: a part of it"
_LEAST = timedelta(milliseconds=100)


@command(
    "dispatcher status",
    'dispatcher status --watch --every "5 seconds"',
    "dispatcher status --json | jq .overdue",
    "dispatcher status --campaign summer",
)
def status(
    watch: Annotated[bool, typer.Option("--watch", help="Look again and again until Ctrl-C.")] = (
        False
    ),
    every: Annotated[str, typer.Option(help="With --watch: how often.")] = "2 seconds",
    since: Annotated[str, typer.Option(help="Count what has ended since so long ago.")] = "1 day",
    campaign: Annotated[
        str | None, typer.Option(help="Only what has come of the messages of this campaign.")
    ] = None,
) -> None:
    """Show counts, overdue messages, the load of the next hour, limits, workers and beats.

    Changes nothing. With --watch and --json, it prints a line of JSON each time. With --campaign it
    counts all messages of that campaign that are stored, and shows nothing else.
    """
    length = parse_length(since, "since")
    interval = parse_length(every, "every")
    if interval < _LEAST:
        raise InvalidValue("--every", f"{interval}", f"at least {_LEAST.total_seconds()} seconds")
    with Dispatcher() as dispatcher:

        def read() -> tuple[object, RenderableType]:
            if campaign is None:
                overview = dispatcher.status(since=length)
                return overview, overview_picture(overview)
            counts = dispatcher.counts(campaign=campaign)
            data = {"campaign": campaign, "counts": _every_status(counts)}
            return data, counts_picture(counts)

        if watch:
            _watch(read, interval)
        else:
            output.tell(*read())


@command(
    "dispatcher top", 'dispatcher top --of channel --within "1 hour"', "dispatcher top --by fill"
)
def top(
    of: Annotated[Of, typer.Option(help="What to rank.")] = "scope",
    by: Annotated[By, typer.Option(help="By messages, or by how full a quota is.")] = "messages",
    within: Annotated[str, typer.Option(help="Count what is due within that time.")] = "1 day",
    limit: Annotated[int, typer.Option("--limit", "-n", help="How many.")] = 10,
) -> None:
    """Rank the scopes, recipients or channels with most due messages, and their fullest quota."""
    with Dispatcher() as dispatcher:
        tops = dispatcher.top(of, by=by, within=parse_length(within, "within"), limit=limit)
    output.tell(tops, tops_picture(tops))


@command(
    "dispatcher load",
    'dispatcher load --within "7 days" --limit 50',
    "dispatcher load --json | jq .channels",
)
def load(
    within: Annotated[str, typer.Option(help="How far ahead, at most 7 days.")] = "1 day",
    limit: Annotated[
        int, typer.Option("--limit", "-n", help="How many minutes of each channel.")
    ] = 10,
) -> None:
    """Show what is due in the coming minutes of each channel, and when the last of it leaves.

    Minutes are overbooked when the channel's limits let some of their messages leave only after
    them. They are shown first, then the busiest ones.
    """
    with Dispatcher() as dispatcher:
        to_come = dispatcher.load(within=parse_length(within, "within"))
    output.tell(to_come, load_picture(to_come, limit=limit))


@command(
    "dispatcher refusals",
    "dispatcher refusals --quota 5/hour",
    'dispatcher refusals --since "7 days" --last 100 --json',
)
def refusals(
    since: Annotated[str, typer.Option(help="How far back, at most 7 days.")] = "1 day",
    quota: Annotated[str | None, typer.Option(help="Only refusals by this quota.")] = None,
    last: Annotated[int, typer.Option(help="How many of the last ones to list.")] = 10,
) -> None:
    """Show which rules refused how many submits, and how far away the next slots were."""
    length = parse_length(since, "since")
    with Dispatcher() as dispatcher:
        refused = dispatcher.refusals(since=length, quota=quota, last=last)
    output.tell(refused, refusals_picture(refused))


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
        typer.Option(help="Apply this channel's quotas and quiet hours; default: no channel's."),
    ] = None,
    scopes: Scopes = None,
    zone: Annotated[str | None, typer.Option(help="Zone of the recipient's clocks.")] = None,
    start: Annotated[
        str | None, typer.Option(help="ISO 8601 with offset, or local with --zone; default: now.")
    ] = None,
    hours: Annotated[int | None, typer.Option(min=1, help="How many hours to show.")] = None,
    days: Annotated[int | None, typer.Option(min=1, help="How many days; default: 2.")] = None,
    priority: Priority = None,
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
            scopes=read_scopes(scopes or (), field="scopes"),
            zone=zone,
            start=start,
            length=length,
            priority=priority,
        )
        left_out = None if channel else left_out_without_channel(dispatcher.settings)
    output.tell(booked, timeline_picture(booked))
    if left_out is not None and not output.as_json:
        output.out.print(left_out, style="yellow")


def _watch(read: Callable[[], tuple[object, RenderableType]], every: timedelta) -> None:
    with until_stopped() as stopped:
        while not stopped.is_set():
            try:
                data, shown = read()
            except Unavailable as error:
                data = {"error": str(error)}
                shown = Text(f"{error}; looking again", style="red")
            if output.as_json:
                output.write_json(data, indent=None)
            else:
                output.out.clear()  # of a terminal
                output.out.print(shown)
            stopped.wait(every.total_seconds())


def overview_picture(overview: Overview) -> RenderableType:
    counts = overview.counts
    more = "" if counts.complete else "; more than 1,000,000, so not all are counted"
    parts: list[RenderableType] = [
        Text.assemble(("dispatcher status", "bold"), f"  {output.second_text(overview.now)} UTC\n"),
        counts_picture(counts.by_channel),
        Text(f"what has ended: within {length_text(counts.since)}{more}\n", style="dim italic"),
        _work(overview),
        "",
    ]
    if overview.limits:
        parts += [_limits(overview.limits), ""]
    if overview.silence is None:
        parts.append(_signs(overview))
    else:
        text = f"not known, because Redis does not answer: {overview.silence}"
        parts.append(Text(text, style="red"))
    return Group(*parts)


def _work(overview: Overview) -> RenderableType:
    load, overdue, rejected = overview.load, overview.overdue, overview.items_rejected
    due = f"{sum(load.minutes):,} due, at most {max(load.minutes, default=0):,} a minute"
    if not load.complete:
        due += ", and more"
    late = f"{overdue.many:,}, the oldest for {length_text(overdue.longest)}"
    pauses = ", ".join(f"{pause.kind} {pause.name}" for pause in overview.pauses)
    wrong = (
        ("overdue", overdue.many, f"{late}: dispatcher show {overdue.oldest}", "red"),
        ("held", overview.held, f"{overview.held:,} wait for a person: dispatcher held", "magenta"),
        ("paused", pauses, f"{pauses}: dispatcher resume", "yellow"),
        ("rejected", rejected, f"{rejected} broker items were no tasks: see workers' logs", "red"),
    )
    rows = [("next hour", Text(due))]
    for name, count, text, style in wrong:
        rows.append((name, Text(text, style=style) if count else Text("none", style="green")))
    return output.listed(("", ""), rows, wraps=True)


def _signs(overview: Overview) -> RenderableType:
    rows: list[tuple[output.Cell, ...]] = []
    for kind, signs in (("worker", overview.workers or ()), ("beat", overview.beats or ())):
        rows += [(kind, sign.name, _seen(sign)) for sign in signs]
        if not any(sign.is_alive for sign in signs):
            rows.append((kind, Text(f"no {kind} is alive", style="red"), None))
    done = {sign.name: sign for sign in overview.duties or ()}
    names = [name for name, duty in DUTIES.items() if name in done or not duty.is_needed]
    rows += [("sweep", name, _seen(done.get(name))) for name in names]
    return output.listed(("", "", "last seen"), rows)


def _seen(sign: Sign | None) -> Text:
    if sign is None:
        return Text("never", style="red")
    return Text(f"{length_text(sign.age)} ago", style="green" if sign.is_alive else "red")


def counts_picture(counts: Mapping[str, Mapping[Status, int]]) -> RenderableType:
    if not counts:
        return Text("no messages", style="dim")
    rows = list(counts.items())
    if len(rows) > 1:
        rows.append(("all", sum(map(Counter, counts.values()), Counter[Status]())))
    zero = output.number_text("0", "dim")
    cells = [
        (channel, *(by_status.get(status) or zero for status in STATUSES))
        for channel, by_status in rows
    ]
    return output.listed(("channel", *(status.value for status in STATUSES)), cells)


def _every_status(counts: Mapping[str, Mapping[Status, int]]) -> dict[str, dict[Status, int]]:
    return {
        channel: {status: by_status.get(status, 0) for status in STATUSES}
        for channel, by_status in counts.items()
    }


def _limits(channels: Iterable[ChannelFill]) -> RenderableType:
    rows = [
        (
            channel.channel,
            fill.limit,
            _fill(fill.used, fill.most),
            channel.waiting or "",
            channel.closed_until,
        )
        for channel in channels
        for fill in channel.limits
    ]
    return output.listed(("channel", "limit", "used", "waiting", "closed until (UTC)"), rows)


def tops_picture(ranking: Tops) -> RenderableType:
    rows: list[tuple[output.Cell, ...]] = []
    for top in ranking.tops:
        fullest: tuple[output.Cell, ...] = (Text("–", style="dim"), None, None)
        if (full := top.fullest) is not None:
            fullest = (_fill(full.booked, full.most), full.quota, full.at)
        rows.append((top.name, top.messages, top.next_at, *fullest))
    headings = (ranking.of, "messages", "next (UTC)", "fullest", "quota", "from (UTC)")
    parts = [output.listed(headings, rows)]
    if not rows:
        parts = [Text(f"nothing is due within {length_text(ranking.within)}")]
    if not ranking.complete:
        parts.append(Text("more than 1,000,000 are due: only the soonest are counted", style="red"))
    if ranking.silence is not None:
        parts.append(Text(f"quotas are not known: {ranking.silence}", style="red"))
    return Group(*parts)


def load_picture(load: LoadToCome, *, limit: int) -> RenderableType:
    names = ("minute (UTC)", "due", "waiting", "the last leaves (UTC)", "")
    parts: list[RenderableType] = []
    for channel in load.channels:
        due = sum(minute.due for minute in channel.minutes)
        overbooked = sum(minute.overbooked for minute in channel.minutes)
        late = f", {channel.late:,} late" if channel.late else ""
        counted = f"{due:,} due{late}; {', '.join(channel.limits) or 'no limits'}"
        most = f"; {overbooked:,} minutes are overbooked" if overbooked else ""
        parts.append(Text.assemble((channel.channel, "bold"), f"  {counted}", (most, "red")))
        ranked = sorted(channel.minutes, key=lambda minute: (not minute.overbooked, -minute.due))
        rows = [
            (
                minute.at,
                minute.due,
                minute.waiting or "",
                minute.last_at or "later",
                Text("overbooked" if minute.overbooked else "", style="red"),
            )
            for minute in sorted(ranked[:limit], key=lambda minute: minute.at)
        ]
        parts += [output.listed(names, rows), ""]
    if not load.channels:
        parts.append(Text(f"nothing is due within {length_text(load.end - load.start)}"))
    if not load.complete:
        until = output.second_text(load.counted_until)
        text = f"more than 1,000,000 are due: all are counted only until {until} UTC"
        parts.append(Text(text, style="red"))
    return Group(*parts)


def refusals_picture(refusals: Refusals) -> RenderableType:
    if not refusals.rules:
        return Text(f"no submit was refused since {output.second_text(refusals.since)} UTC")
    headings = ("rule", "refused", "next slot within, p50", "p95")
    rules = [(_rule(rule), rule.refused, rule.wait_p50, rule.wait_p95) for rule in refusals.rules]
    parts = [output.listed(headings, rules)]
    if refusals.last:
        last = [
            (refusal.at, _rule(refusal), refusal.send_at, refusal.next_slot, refusal.scope)
            for refusal in refusals.last
        ]
        instants = ("for (UTC)", "next slot (UTC)")
        parts += ["", output.listed(("refused (UTC)", "rule", *instants, "scope"), last)]
    return Group(*parts)


def _rule(refused: RuleRefusals | LastRefusal) -> str:
    if refused.quota is None:
        return "quiet hours"
    return f"{refused.quota} of each {refused.kind}" if refused.kind else refused.quota


_attributes_of = output.attributes(
    "now", "since=counts.since", "counts=counts.by_channel", "counts_complete=counts.complete",
    "overdue", "held", "pauses", "load", "limits", "workers", "beats", "duties", "items_rejected",
    "silence",
)  # fmt: skip


def _overview_data(overview: Overview) -> dict[str, Any]:
    data = _attributes_of(overview)
    duties = None if data["duties"] is None else {duty.name: duty.age for duty in data["duties"]}
    return data | {"counts": _every_status(data["counts"]), "duties": duties}


output.shapes |= {
    Quota: str,
    CalendarQuota: str,
    Overview: _overview_data,
    OverdueFigure: output.attributes("messages=many", "oldest", "longest"),
    Sign: output.attributes("name", "alive=is_alive", "age"),
    Timeline: output.attributes(
        "start", "end", "zone", "priority", "complete", "windows", "quiet", "blocked",
        "next_slots=slots",
    ),
    WindowTimeline: output.attributes("scope", "complete", "exists", "booked", "quotas"),
    Booked: output.attributes("id=message_id", "at", "held"),
    Span: output.attributes("from=begins_at", "until=ends_at"),
    Fill: output.attributes("from=begins_at", "until=ends_at", "booked", "most"),
}  # fmt: skip


def _fill(used: int, most: int) -> Text:
    style = "red" if used >= most else "yellow" if used >= _NEARLY * most else "green"
    return output.number_text(f"{used:,}/{most:,}", style)


def timeline_picture(timeline: Timeline) -> RenderableType:
    windows = timeline.windows
    quotas = [(window.scope, quota) for window in windows for quota in window.quotas]
    several = len(windows) > 1
    names = [
        f"{quota.quota} of {scope}" if several else str(quota.quota) for scope, quota in quotas
    ]
    rows = [
        (
            f"{_local(step.begins_at, timeline):%a %d %b %H:%M}",
            sum(step.begins_at <= booking.at < step.ends_at for booking in windows[0].booked) or "",
            *(_cell(quota, step, timeline) for _, quota in quotas),
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
        output.listed(("from", "booked", *names, ""), rows),
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


def _cell(quota: QuotaTimeline, step: Span, timeline: Timeline) -> Text:
    booked = max((fill.booked for fill in _overlapping(quota.fills, step)), default=0)
    most = places(quota.quota, timeline.priority, to_ms(step.begins_at), timeline.zone)
    blocked = _overlapping(quota.blocked, step)
    covers = any(
        span.begins_at <= step.begins_at and step.ends_at <= span.ends_at for span in blocked
    )
    mark = "x" if covers else "-" if blocked else ""
    return output.number_text(f"{booked}/{most}{mark}", "red" if mark else "")


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

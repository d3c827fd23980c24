"""How a deployment stands, once or live, and figures: status, top, load, refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime, timedelta
from threading import Event
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from dispatcher.celery.configuration import DUTIES
from dispatcher.cli import output
from dispatcher.cli.app import AsJson, command
from dispatcher.cli.progress import until_stopped
from dispatcher.client import Dispatcher
from dispatcher.errors import InvalidValue, Unavailable
from dispatcher.limiters.permits import ChannelFill
from dispatcher.message import Status, visible_text
from dispatcher.operations.overview import By, FullestQuota, LoadToCome, Overview, Tops
from dispatcher.quota import parse_length
from dispatcher.reservation import Refusals
from dispatcher.store.listing import Counts, Load, Of
from dispatcher.telemetry.liveness import Sign
from dispatcher.times.clock import SystemClock
from dispatcher.times.lengths import length_text

_LIVE = (Status.SCHEDULED, Status.SENDING, Status.HELD)
_ENDED = (Status.SENT, Status.FAILED, Status.EXPIRED, Status.CANCELLED)
_BAR = 16
_LATE_DUTY = timedelta(seconds=30)
_NEARLY = 0.8
_PAUSE = 9
"""Ratio of the pause after a read to its length: reading takes at most a tenth of the time."""
_LEAST = timedelta(milliseconds=100)
_MINUTE = timedelta(minutes=1)


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
    as_json: AsJson = False,
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

        def read() -> tuple[dict[str, Any], RenderableType]:
            if campaign is None:
                overview = dispatcher.status(since=length)
                return overview_data(overview), overview_picture(overview)
            counts = dispatcher.counts(campaign=campaign)
            data = {"campaign": campaign, "counts": _every_status(counts)}
            return data, counts_picture(counts)

        if watch:
            with until_stopped() as stopped:
                _watch(read, interval, stopped, as_json=as_json)
            return
        output.tell(*read(), as_json=as_json)


@command(
    "dispatcher top", 'dispatcher top --of channel --within "1 hour"', "dispatcher top --by fill"
)
def top(
    of: Annotated[Of, typer.Option(help="What to rank.")] = "scope",
    by: Annotated[By, typer.Option(help="By messages, or by how full a quota is.")] = "messages",
    within: Annotated[str, typer.Option(help="Count what is due within that time.")] = "1 day",
    limit: Annotated[int, typer.Option("--limit", "-n", help="How many.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Rank the scopes, recipients or channels with most due messages, and their fullest quota."""
    with Dispatcher() as dispatcher:
        found = dispatcher.top(of, by=by, within=parse_length(within, "within"), limit=limit)
    output.tell(found, tops_picture(found), as_json=as_json)


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
    as_json: AsJson = False,
) -> None:
    """Show what is due in the coming minutes of each channel, and when the last of it leaves.

    Minutes are overbooked when the channel's limits let some of their messages leave only after
    them. They are shown first, then the busiest ones.
    """
    with Dispatcher() as dispatcher:
        found = dispatcher.load(within=parse_length(within, "within"))
    output.tell(found, load_picture(found, limit=limit), as_json=as_json)


@command(
    "dispatcher refusals",
    "dispatcher refusals --quota 5/hour",
    'dispatcher refusals --since "7 days" --last 100 --json',
)
def refusals(
    since: Annotated[str, typer.Option(help="How far back, at most 7 days.")] = "1 day",
    quota: Annotated[str | None, typer.Option(help="Only refusals by this quota.")] = None,
    last: Annotated[int, typer.Option(help="How many of the last ones to list.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Show which rules refused how many submits, and how far away the next slots were."""
    length = parse_length(since, "since")
    with Dispatcher() as dispatcher:
        found = dispatcher.refusals(since=length, quota=quota, last=last)
    output.tell(found, refusals_picture(found), as_json=as_json)


def _watch(
    read: Callable[[], tuple[dict[str, Any], RenderableType]],
    every: timedelta,
    stopped: Event,
    *,
    as_json: bool,
) -> None:
    clock = SystemClock()
    screen = Live(console=output.out, auto_refresh=False, screen=True)
    is_live = output.out.is_terminal and not as_json
    with screen if is_live else nullcontext():
        while not stopped.is_set():
            began = clock.monotonic()
            try:
                data, shown = read()
            except Unavailable as error:
                data = {"error": str(error)}
                shown = Text(f"{error}; looking again", style="red")
            if is_live:
                screen.update(shown, refresh=True)
            elif as_json:
                output.as_line(data)
            else:
                output.out.print(shown)
            took = clock.monotonic() - began
            stopped.wait(max(every.total_seconds() - took, _PAUSE * took))


def overview_picture(found: Overview) -> RenderableType:
    lines: list[RenderableType] = [
        Text.assemble(("dispatcher status", "bold"), f"  {output.second_text(found.now)} UTC"),
        "",
        *_counts(found.counts),
        "",
        _load(found.load),
        "",
        *_troubles(found),
        "",
    ]
    if found.limits:
        lines += [_limits(found.limits), ""]
    if found.silence is None:
        lines += [*_signs("worker", found.workers), *_signs("beat", found.beats), _duties(found)]
    else:
        text = f"not known, because Redis does not answer: {found.silence}"
        lines.append(Text(text, style="red"))
    return Group(*lines)


def counts_picture(counts: Mapping[str, Mapping[Status, int]]) -> RenderableType:
    statuses = (*_LIVE, *_ENDED)
    names = [each.value for each in statuses]
    rows: list[tuple[output.Cell, ...]] = [
        (channel, *(_number(each, some.get(each, 0)) for each in statuses))
        for channel, some in counts.items()
    ]
    if not rows:
        return Text("no messages", style="dim")
    if len(rows) > 1:
        totals = (sum(some.get(each, 0) for some in counts.values()) for each in statuses)
        rows.append(("all", *map(_number, statuses, totals)))
    return output.listed(("channel", *names), rows, right=names)


def _every_status(counts: Mapping[str, Mapping[Status, int]]) -> dict[str, dict[Status, int]]:
    return {
        channel: {status: some.get(status, 0) for status in (*_LIVE, *_ENDED)}
        for channel, some in counts.items()
    }


def _counts(counts: Counts) -> tuple[RenderableType, Text]:
    more = "" if counts.complete else "; more than 1,000,000, so not all are counted"
    ended = f"what has ended: within {length_text(counts.since)}{more}"
    return counts_picture(counts.by_channel), Text(ended, style="dim italic")


def _load(load: Load) -> Text:
    total = sum(load.minutes)
    due = f"  {total:,} due"
    if total:
        due += f", at most {max(load.minutes):,} a minute"
    if not load.complete:
        due += ", and more"
    return Text.assemble((f"next {len(load.minutes)} minutes", "bold"), due)


def _troubles(found: Overview) -> list[Text]:
    late = found.overdue
    lines = [_line("overdue", "none", "green"), _line("held", "none", "green")]
    if late.many:
        oldest = f"the oldest for {length_text(late.longest)}: dispatcher show {late.oldest}"
        lines[0] = _line("overdue", f"{late.many:,}, {oldest}", "red")
    if found.held:
        text = f"{found.held:,} wait for a person: dispatcher held"
        lines[1] = _line("held", text, "magenta")
    if found.pauses:
        names = ", ".join(f"{pause.kind} {pause.name}" for pause in found.pauses)
        lines.append(_line("paused", f"{names}: dispatcher resume", "yellow"))
    if found.items_rejected:
        text = f"{found.items_rejected:,} items of the broker were no tasks: see the workers' logs"
        lines.append(_line("rejected", text, "red"))
    return lines


def _line(name: str, text: str, style: str) -> Text:
    return Text(f"{name:9}", style="bold").append(text, style=style)


def _limits(channels: Iterable[ChannelFill]) -> RenderableType:
    rows: list[tuple[output.Cell, ...]] = []
    for channel in channels:
        notes = [f"{channel.waiting:,} wait"] if channel.waiting else []
        if channel.closed_until is not None:
            notes.append(f"[red]closed until {channel.closed_until:%H:%M:%S}[/]")
        head = (channel.channel, Text.from_markup(", ".join(notes)))
        for fill in channel.limits:
            rows.append((head[0], fill.limit, _bar(fill.used, fill.most), head[1]))
            head = ("", Text())
    return output.listed(("limits", "", "", ""), rows)


def _signs(what: str, signs: Sequence[Sign] | None) -> list[Text]:
    signs = signs or ()
    line = _line(f"{what}s", f"no {what} is alive", "red")
    if alive := [sign.name for sign in signs if sign.is_alive]:
        line = _line(f"{what}s", f"{len(alive)} alive  ", "green")
        line.append(", ".join(alive), style="dim")
    lost = (
        f"{'':9}{sign.name} was last seen {length_text(sign.age)} ago"
        for sign in signs
        if not sign.is_alive
    )
    return [line, *(Text(text, style="yellow") for text in lost)]


def _duties(found: Overview) -> Text:
    line = _line("sweep", "", "dim")
    ages = {each.name: each.age for each in found.duties or ()}
    shown = [name for name, each in DUTIES.items() if name in ages or not each.is_needed]
    for number, name in enumerate(shown):
        age = ages.get(name)
        slow = DUTIES[name].interval == "sweep_interval" and (age is None or age > _LATE_DUTY)
        text = "never" if age is None else f"{length_text(age)} ago"
        line.append(f"{', ' if number else ''}{name} ").append(text, style="red" if slow else "dim")
    return line


def tops_picture(found: Tops) -> RenderableType:
    table = output.listed(
        (found.of, "messages", "next (UTC)", "fullest quota", "from (UTC)"),
        [(each.name, each.messages, each.next_at, *_fullest(each.fullest)) for each in found.tops],
        right=("messages",),
    )
    parts: list[RenderableType] = [table] if found.tops else []
    if not found.tops:
        parts.append(Text(f"nothing is due within {length_text(found.within)}"))
    if not found.complete:
        parts.append(Text("more than 1,000,000 are due: only the soonest are counted", style="red"))
    if found.silence is not None:
        parts.append(Text(f"quotas are not known: {found.silence}", style="red"))
    return Group(*parts)


def load_picture(found: LoadToCome, *, limit: int) -> RenderableType:
    names = ("minute (UTC)", "due", "waiting", "the last leaves (UTC)", "")
    lines: list[RenderableType] = []
    for channel in found.channels:
        due = sum(minute.due for minute in channel.minutes)
        overbooked = sum(minute.overbooked for minute in channel.minutes)
        late = f", {channel.late:,} late" if channel.late else ""
        most = f"; {overbooked:,} minutes are overbooked" if overbooked else ""
        counted = f"  {due:,} due{late}; {', '.join(channel.limits) or 'no limits'}"
        name = visible_text(channel.channel)
        lines.append(Text.assemble((name, "bold"), counted, (most, "red")))
        fullest = sorted(channel.minutes, key=lambda each: (not each.overbooked, -each.due))[:limit]
        rows = [
            (
                minute.at,
                minute.due,
                minute.waiting or "",
                minute.last_at or "later",
                Text("overbooked" if minute.overbooked else "", style="red"),
            )
            for minute in sorted(fullest, key=lambda minute: minute.at)
        ]
        lines += [output.listed(names, rows, right=("due", "waiting")), ""]
    if not found.channels:
        lines.append(Text(f"nothing is due within {length_text(found.end - found.start)}"))
    if not found.complete:
        until = output.second_text(found.counted_until)
        text = f"more than 1,000,000 are due: all are counted only until {until} UTC"
        lines.append(Text(text, style="red"))
    return Group(*lines)


def refusals_picture(found: Refusals) -> RenderableType:
    if not found.rules:
        return Text(f"no submit was refused since {output.second_text(found.since)} UTC")
    names = ("rule", "refused", "next slot within, p50", "p95")
    rules = [
        (rule_text(rule.kind, rule.quota), rule.refused, rule.wait_p50, rule.wait_p95)
        for rule in found.rules
    ]
    tables = [output.listed(names, rules, right=names[1:]), ""]
    if found.last:
        heads = ("refused (UTC)", "rule", "for (UTC)", "next slot (UTC)", "scope")
        last = [
            (each.at, rule_text(each.kind, each.quota), each.send_at, each.next_slot, each.scope)
            for each in found.last
        ]
        tables.append(output.listed(heads, last))
    return Group(*tables)


def rule_text(kind: str, quota: str | None) -> str:
    if quota is None:
        return "quiet hours"
    return f"{quota} of each {kind}" if kind else quota


def overview_data(found: Overview) -> dict[str, Any]:
    counts, overdue = found.counts, found.overdue
    return {
        "now": found.now,
        "since": counts.since,
        "counts": _every_status(counts.by_channel),
        "counts_complete": counts.complete,
        "overdue": {
            "messages": overdue.many,
            "oldest": overdue.oldest,
            "longest": overdue.longest,
        },
        "held": found.held,
        "pauses": found.pauses,
        "load": found.load,
        "limits": found.limits,
        "workers": _signs_data(found.workers),
        "beats": _signs_data(found.beats),
        "duties": None if found.duties is None else {each.name: each.age for each in found.duties},
        "items_rejected": found.items_rejected,
        "silence": found.silence,
    }


def _signs_data(signs: Iterable[Sign] | None) -> list[dict[str, Any]] | None:
    if signs is None:
        return None
    return [{"name": each.name, "alive": each.is_alive, "age": each.age} for each in signs]


def _fullest(fullest: FullestQuota | None) -> tuple[Text, datetime | None]:
    if fullest is None:
        return Text("–", style="dim"), None
    text = _bar(fullest.booked, fullest.most, cells=_BAR // 2)
    length = fullest.quota.partition("/")[2]
    return text.append(f" per {length}"), fullest.at


def _bar(used: int, most: int, *, cells: int = _BAR) -> Text:
    fill = used / most
    style = "red" if fill >= 1 else "yellow" if fill >= _NEARLY else "green"
    full = min(cells, max(int(cells * fill), min(used, 1)))
    text = Text("█" * full, style=style).append("░" * (cells - full), style="dim")
    return text.append(f" {used:,}/{most:,}", style=style)


def _number(status: Status, many: int) -> Text:
    return Text.assemble((f"{many:,}", output.STYLES[status] if many else "dim"))

"""``dispatcher load`` and ``dispatcher refusals``: what is to come, and what was refused."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from dispatcher.cli import output
from dispatcher.cli.app import AsJson, examples
from dispatcher.cli.status import length_text
from dispatcher.client import Dispatcher
from dispatcher.message import visible_text
from dispatcher.operations.overview import LoadToCome
from dispatcher.quota import parse_length
from dispatcher.reservation import Refusals

group = typer.Typer(rich_markup_mode="rich")


@group.command(
    epilog=examples(
        "dispatcher load",
        'dispatcher load --within "7 days" --limit 50',
        "dispatcher load --json | jq .channels",
    )
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
    output.tell(load_data(found), load_picture(found, limit=limit), as_json=as_json)


@group.command(
    epilog=examples(
        "dispatcher refusals",
        "dispatcher refusals --quota 5/hour",
        'dispatcher refusals --since "7 days" --last 100 --json',
    )
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


def load_picture(found: LoadToCome, *, limit: int) -> RenderableType:
    lines: list[RenderableType] = []
    for channel in found.channels:
        overbooked = [each for each in channel.minutes if each.overbooked]
        due = sum(minute.due for minute in channel.minutes)
        late = f", {channel.late:,} late" if channel.late else ""
        most = f"; {len(overbooked):,} minutes are overbooked" if overbooked else ""
        lines += [
            Text.assemble(
                (visible_text(channel.channel), "bold"),
                f"  {due:,} due{late}; {', '.join(channel.limits) or 'no limits'}",
                (most, "red"),
            ),
        ]
        fullest = sorted(channel.minutes, key=lambda each: (not each.overbooked, -each.due))[:limit]
        rows = [
            (
                output.second_text(each.at),
                f"{each.due:,}",
                f"{each.waiting:,}" if each.waiting else "",
                "later" if each.last_at is None else output.second_text(each.last_at),
                "[red]overbooked[/]" if each.overbooked else "",
            )
            for each in sorted(fullest, key=lambda each: each.at)
        ]
        names = ("minute (UTC)", "due", "waiting", "the last leaves (UTC)", "")
        lines += [output.listed(names, rows, right=("due", "waiting")), ""]
    if not found.channels:
        lines.append(Text(f"nothing is due within {length_text(found.end - found.start)}"))
    if not found.complete:
        until = output.second_text(found.counted_until)
        text = f"more than 1,000,000 are due: all are counted only until {until} UTC"
        lines.append(Text(text, style="red"))
    return Group(*lines)


def load_data(found: LoadToCome) -> dict[str, Any]:
    data: dict[str, Any] = output.plain(found)
    for channel, shown in zip(found.channels, data["channels"], strict=True):
        for minute, each in zip(channel.minutes, shown["minutes"], strict=True):
            each["overbooked"] = minute.overbooked
    return data


def refusals_picture(found: Refusals) -> RenderableType:
    lines: list[RenderableType] = []
    if not found.rules:
        return Text(f"no submit was refused since {output.second_text(found.since)} UTC")
    rules = [
        (
            output.as_it_is(rule_text(each.kind, each.quota)),
            f"{each.refused:,}",
            length_text(each.wait_p50),
            length_text(each.wait_p95),
        )
        for each in found.rules
    ]
    names = ("rule", "refused", "next slot within, p50", "p95")
    lines += [output.listed(names, rules, right=names[1:]), ""]
    last = [
        (
            output.second_text(each.at),
            output.as_it_is(rule_text(each.kind, each.quota)),
            output.second_text(each.send_at),
            output.second_text(each.next_slot),
            each.scope or "",
        )
        for each in found.last
    ]
    if last:
        heads = ("refused (UTC)", "rule", "for (UTC)", "next slot (UTC)", "scope")
        lines.append(output.listed(heads, last))
    return Group(*lines)


def rule_text(kind: str, quota: str | None) -> str:
    if quota is None:
        return "quiet hours"
    return f"{quota} of each {kind}" if kind else quota

"""What would go out at a wrong time since the rules of its zone have changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import typer
from rich.console import Group, RenderableType

from dispatcher.cli import output
from dispatcher.cli.app import JSON_LINES, command, command_group
from dispatcher.cli.messages import Shift
from dispatcher.client import Dispatcher, app_of
from dispatcher.store.wishes import WrongTime
from dispatcher.times.send_time import as_text

_MOST_SHOWN = 100
_NOTHING = "every local time that was asked for is met"


@command_group
def zones() -> None:
    """Find and move what stands at a wrong time since the rules of its zone have changed."""


@command("dispatcher zones check", of=zones, json=JSON_LINES)
def check() -> None:
    """List messages and events that were asked for by local time, and would miss it.

    Changes nothing. Exit code 1 if there is one.
    """
    with Dispatcher() as dispatcher:
        _tell(app_of(dispatcher).zone_repair.check(), "would miss their local time", lambda _: True)


@command("dispatcher zones repair --on-conflict shift", of=zones, json=JSON_LINES)
def repair(on_conflict: Shift = "reject") -> None:
    """Move what `zones check` lists to its local time, as far as quotas let it.

    May be repeated. Exit code 1 if something was refused.
    """
    with Dispatcher() as dispatcher:
        rows = app_of(dispatcher).zone_repair.repair(on_conflict)
        _tell(rows, "were refused, and stay", lambda row: row.refused is not None)


def _tell(rows: Iterator[WrongTime], what: str, is_wrong: Callable[[WrongTime], bool]) -> None:
    """Print each row as JSON, or numbers and a table of those that are wrong."""
    moved, wrong, shown = [0, 0], [0, 0], list[WrongTime]()
    for row in rows:
        counts = wrong if is_wrong(row) else moved
        counts[row.id is None] += 1
        if output.as_json:
            output.write_json(row, indent=None)
        elif counts is wrong and len(shown) < _MOST_SHOWN:
            shown.append(row)
    if not output.as_json:
        texts = [f"{messages:,} messages and {events:,} events {does}"
                 for (messages, events), does in ((moved, "were moved"), (wrong, what))
                 if messages or events]  # fmt: skip
        output.out.print(Group(*([_table(shown)] if shown else []), *texts or [_NOTHING]))
    if any(wrong):
        raise typer.Exit(1)


def _table(rows: list[WrongTime]) -> RenderableType:
    headings = ("id", "event", "asked for", "stands at", "should be at", "why not")
    return output.listed(headings, [
        (row.id, row.event, f"{row.wish} {row.zone or ''}", as_text(row.at),
         "no such zone here" if row.means is None else as_text(row.means), row.refused)
        for row in rows
    ], wraps=True)  # fmt: skip

"""``dispatcher windows``: compare Redis with the store, and rebuild it."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType

from dispatcher.cli import output
from dispatcher.cli.app import AsJson, command, command_group, confirm
from dispatcher.cli.progress import bar
from dispatcher.client import Dispatcher
from dispatcher.operations.verification import Fault, Verified
from dispatcher.times.send_time import as_text

_MOST_SHOWN = 100

windows = command_group("windows", help="Compare the windows in Redis with SQL, or rebuild them.")


@command("dispatcher windows verify", of=windows)
def verify(as_json: AsJson = False) -> None:
    """Report every difference between SQL and Redis. Exit code 1 if there is one."""
    shown = nullcontext() if as_json else output.out.status("comparing …")
    with Dispatcher() as dispatcher, shown:
        verified = dispatcher.verify_windows()
    output.tell(_data(verified), _shown(verified), as_json=as_json)
    if not verified.equal:
        raise typer.Exit(1)


@command("dispatcher windows rebuild", "dispatcher windows rebuild --shard 3 --yes", of=windows)
def rebuild(
    shard: Annotated[
        list[int] | None, typer.Option(help="Only this shard; may be repeated. Default: all.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Fill shards again from SQL, a few at a time; submits to those are refused meanwhile.

    Exit code 1 when another process is rebuilding some of them.
    """
    with Dispatcher() as dispatcher:
        shards = dispatcher.settings.shards
        wanted = len(set(shard)) if shard else shards
        if not yes:
            confirm(f"Rebuild {wanted} of {shards} shards? Their submits are refused meanwhile.")
        with bar() as progress:
            task = progress.add_task("rows read")
            done = dispatcher.rebuild_windows(
                shard or None,
                progress=lambda read, total: progress.update(task, completed=read, total=total),
            )
    text = f"{len(done)} of {wanted} shards rebuilt"
    if len(done) < wanted:
        text += "\n[yellow]the others are being rebuilt by another process[/]"
    output.tell({"wanted": wanted, "rebuilt": done}, text, as_json=as_json)
    if len(done) < wanted:
        raise typer.Exit(1)


def _data(verified: Verified) -> dict[str, Any]:
    return {
        "equal": verified.equal,
        "messages": verified.messages,
        "reservations": verified.reservations,
        "counts": verified.counts,
        "closed_shards": verified.closed,
        "differences": [
            {
                "fault": each.fault,
                "scope": each.scope,
                "id": each.message_id,
                "send_at": each.send_at,
                "booked_at": each.booked_at,
            }
            for each in verified.differences
        ],
    }


def _shown(verified: Verified) -> RenderableType:
    result = "[green]equal[/]" if verified.equal else "[red]not equal[/]"
    lines: list[RenderableType] = [
        f"{verified.messages} messages and {verified.reservations} reservations compared: {result}"
    ]
    if verified.closed:
        numbers = ", ".join(map(str, verified.closed))
        lines.append(f"[yellow]not complete, so not judged:[/] shards {numbers}")
    lines += [f"{many} {fault.value}" for fault, many in verified.counts.items() if many]
    if verified.counts[Fault.FOREIGN]:
        lines.append("what is foreign was not written by the dispatcher; a rebuild deletes it")
    rows = [
        (each.scope, each.message_id, each.fault.value, *map(_time, (each.send_at, each.booked_at)))
        for each in verified.differences[:_MOST_SHOWN]
    ]
    if rows:
        names = ("scope", "id", "difference", "in SQL", "in Redis")
        lines.append(output.listed(names, rows))
    unsaid = sum(verified.counts.values()) - len(rows)
    if unsaid > 0:
        lines.append(f"and {unsaid} more; --json names up to 10,000")
    return Group(*lines)


def _time(instant: datetime | None) -> str | None:
    return None if instant is None else as_text(instant)

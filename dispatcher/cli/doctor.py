"""``dispatcher doctor`` and ``windows``: examine a deployment; compare and rebuild its windows."""

from __future__ import annotations

from collections import defaultdict
from contextlib import closing, nullcontext
from datetime import datetime
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from dispatcher.app import App
from dispatcher.celery.configuration import settings_of
from dispatcher.celery.queue import load_app
from dispatcher.cli import output
from dispatcher.cli.app import bar, command, command_group, confirm, say_error
from dispatcher.client import Dispatcher
from dispatcher.message import visible_text
from dispatcher.operations.checks import Examination, Level
from dispatcher.operations.verification import Difference, Fault, Verified
from dispatcher.settings import Settings
from dispatcher.times.send_time import as_text

_MOST_SHOWN = 100
_STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.ERROR: "red"}

output.shapes |= {
    Examination: output.attributes("level", "counts", "findings"),
    Verified: output.attributes(
        "equal", "messages", "reservations", "counts", "closed_shards=closed", "differences"
    ),
    Difference: output.attributes("fault", "scope", "id=message_id", "send_at", "booked_at"),
}


@command("dispatcher doctor --strict", "dispatcher doctor --app shop.celery:app --json")
def doctor(
    strict: Annotated[bool, typer.Option("--strict", help="Exit code 1 for warnings too.")] = False,
    app: Annotated[
        str | None,
        typer.Option("--app", "-A", help="A Celery app of yours, as celery -A names it."),
    ] = None,
) -> None:
    """Examine the servers, the clocks, overdue work, and what the settings name.

    Changes nothing and sends nothing; it logs in to mail servers.
    Exit code 1 if something is wrong, with a remedy for each finding.
    """
    theirs = load_app(app) if app else None
    settings = settings_of(theirs) if theirs else Settings.load()
    with closing(App(settings)) as ours:
        examination = ours.doctor(theirs).examine()
    output.tell(examination, _findings(examination))
    if examination.level is Level.ERROR or (strict and examination.level is Level.WARNING):
        raise typer.Exit(1)


def check_before_start(settings: Settings) -> None:
    """End the command if the doctor finds an error with which a worker must not start."""
    with closing(App(settings)) as app:
        reasons = app.doctor().before_start()
    for finding in reasons:
        say_error(f"{finding.check}: {finding.found}. Remedy: {finding.remedy}")
    if reasons:
        say_error("the worker was not started; with --no-doctor it starts nevertheless")
        raise typer.Exit(1)


def _findings(examination: Examination) -> RenderableType:
    """Return a row for each finding; checks that are skipped for one reason share a row."""
    rows: list[tuple[Text, str, Text]] = []
    skipped: dict[str, list[str]] = defaultdict(list)
    for finding in examination.findings:
        if finding.level is Level.SKIPPED:
            skipped[finding.found].append(finding.check)
            continue
        text = Text(visible_text(finding.found))
        if finding.remedy:
            text.append("\nremedy: ", style="bold").append(visible_text(finding.remedy))
        rows.append((Text(finding.level, style=_STYLES[finding.level]), finding.check, text))
    for reason, checks in skipped.items():
        text = Text(f"{visible_text(reason)}\n{', '.join(checks)}")
        rows.append((Text(Level.SKIPPED, style="dim"), f"{len(checks)} checks", text))
    counts = (f"{count} {level.value}" for level, count in examination.counts.items() if count)
    return Group(output.listed(("", "", ""), rows, wraps=True), ", ".join(counts))


@command_group
def windows() -> None:
    """Compare the windows in Redis with SQL, or rebuild them."""


@command("dispatcher windows verify", of=windows)
def verify() -> None:
    """Report every difference between SQL and Redis. Exit code 1 if there is one."""
    shown = nullcontext() if output.as_json else output.out.status("comparing …")
    with Dispatcher() as dispatcher, shown:
        verified = dispatcher.verify_windows()
    output.tell(verified, _differences(verified))
    if not verified.equal:
        raise typer.Exit(1)


@command("dispatcher windows rebuild", "dispatcher windows rebuild --shard 3 --yes", of=windows)
def rebuild(
    shard: Annotated[
        list[int] | None, typer.Option(help="Only this shard; may be repeated. Default: all.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Rebuild shards from SQL, a few at a time; each refuses submits meanwhile.

    Exit code 1 when another process is rebuilding some of them.
    """
    with Dispatcher() as dispatcher:
        shards = dispatcher.settings.shards
        asked = len(set(shard)) if shard else shards
        if not yes:
            confirm(f"Rebuild {asked} of {shards} shards? They refuse submits meanwhile.")
        with bar() as progress:
            task = progress.add_task("rows read")
            done = dispatcher.rebuild_windows(
                shard or None,
                progress=lambda read, total: progress.update(task, completed=read, total=total),
            )
    text = f"{len(done)} of {asked} shards rebuilt"
    if len(done) < asked:
        text += "\nthe others are being rebuilt by another process"
    output.tell({"wanted": asked, "rebuilt": done}, text)
    if len(done) < asked:
        raise typer.Exit(1)


def _differences(verified: Verified) -> RenderableType:
    result = Text("equal", "green") if verified.equal else Text("not equal", "red")
    compared = f"{verified.messages} messages and {verified.reservations} reservations compared: "
    parts: list[RenderableType] = [Text.assemble(compared, result)]
    if verified.closed:
        numbers = ", ".join(map(str, verified.closed))
        parts.append(f"not compared, because incomplete: shards {numbers}")
    parts += [f"{count} {fault.value}" for fault, count in verified.counts.items() if count]
    if verified.counts[Fault.FOREIGN]:
        parts.append("what is foreign was not written by the dispatcher; a rebuild deletes it")
    rows = [
        (
            difference.scope,
            difference.message_id,
            difference.fault.value,
            *map(_time, (difference.send_at, difference.booked_at)),
        )
        for difference in verified.differences[:_MOST_SHOWN]
    ]
    if rows:
        parts.append(output.listed(("scope", "id", "difference", "in SQL", "in Redis"), rows))
    unsaid = sum(verified.counts.values()) - len(rows)
    if unsaid > 0:
        parts.append(f"and {unsaid} more; --json names up to 10,000")
    return Group(*parts)


def _time(instant: datetime | None) -> str | None:
    return None if instant is None else as_text(instant)

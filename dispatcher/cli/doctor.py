"""``dispatcher doctor``: find the errors of a deployment, and their remedies."""

from __future__ import annotations

from collections import defaultdict
from contextlib import closing
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.markup import escape

from dispatcher.app import App
from dispatcher.celery.configuration import settings_of
from dispatcher.celery.survey import load_app
from dispatcher.cli import output
from dispatcher.cli.app import AsJson, command, say_error
from dispatcher.operations.findings import Examination, Level
from dispatcher.settings import Settings

_STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.ERROR: "red", Level.SKIPPED: "dim"}


@command("dispatcher doctor --strict", "dispatcher doctor --app shop.celery:app --json")
def doctor(
    as_json: AsJson = False,
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
    data = {
        "level": examination.level,
        "counts": examination.counts,
        "findings": examination.findings,
    }
    output.tell(data, _shown(examination), as_json=as_json)
    if examination.level is Level.ERROR or (strict and examination.level is Level.WARNING):
        raise typer.Exit(1)


def check_before_start(settings: Settings) -> None:
    """End the command if the doctor finds an error with which a worker must not start."""
    with closing(App(settings)) as app:
        reasons = app.doctor().before_start()
    for each in reasons:
        say_error(f"{each.check}: {each.found}. Remedy: {each.remedy}")
    if reasons:
        say_error("the worker was not started; with --no-doctor it starts nevertheless")
        raise typer.Exit(1)


def _shown(examination: Examination) -> RenderableType:
    """Return a row for each finding; checks that are skipped for one reason share a row."""
    rows: list[tuple[str, str, str]] = []
    skipped: dict[str, list[str]] = defaultdict(list)
    for each in examination.findings:
        if each.level is Level.SKIPPED:
            skipped[each.found].append(each.check)
            continue
        text = escape(each.found)
        if each.remedy:
            text += f"\n[bold]remedy:[/] {escape(each.remedy)}"
        rows.append((_styled(each.level), each.check, text))
    for reason, checks in skipped.items():
        many = checks[0] if len(checks) == 1 else f"{len(checks)} checks"
        names = "" if len(checks) == 1 else f"\n{', '.join(checks)}"
        rows.append((_styled(Level.SKIPPED), many, escape(reason + names)))
    counts = (f"{many} {level.value}" for level, many in examination.counts.items() if many)
    return Group(output.described(rows), ", ".join(counts))


def _styled(level: Level) -> str:
    return f"[{_STYLES[level]}]{level.value}[/]"

"""``dispatcher import``: messages from a CSV or JSONL file."""

from __future__ import annotations

import csv
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from dispatcher.cli import show
from dispatcher.cli.app import AsJson, examples, exit_code, say_error
from dispatcher.cli.bars import INTERRUPTED, terminated_like_interrupted
from dispatcher.cli.files import STANDARD_INPUT, RefusedRows, Source
from dispatcher.cli.intake import Intake
from dispatcher.cli.rows import Format, read
from dispatcher.client import Dispatcher
from dispatcher.errors import InvalidValue, Unavailable
from dispatcher.message import OnConflict

_SUFFIXES = {f".{form}": form for form in Format}
_SHOWN = 10
_QUOTED = 4
"""A body may take so many times its size in a CSV field, where quotes are doubled."""


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    lines = (
        "dispatcher import reminders.csv --plan",
        "dispatcher import - --format jsonl < x.jsonl",
    )
    app.command("import", epilog=examples(*lines))(import_file)


def import_file(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="FILE.csv or FILE.jsonl; - is standard input.")
    ],
    plan: Annotated[
        bool, typer.Option("--plan", help="Book nothing, tell what would come of it.")
    ] = False,
    on_conflict: Annotated[
        OnConflict | None, typer.Option(help="For all rows, instead of their own.")
    ] = None,
    rejected: Annotated[
        Path | None,
        typer.Option(help="Takes the refused rows; of in.csv by default: in.rejected.jsonl."),
    ] = None,
    atomic: Annotated[bool, typer.Option("--atomic", help="Accept all rows or none.")] = False,
    channel: Annotated[str | None, typer.Option(help="For rows that name none.")] = None,
    form: Annotated[
        Format | None, typer.Option("--format", help="Where the name of FILE does not tell.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Accept the messages of a file; say which rows were refused and why.

    The columns are channel, recipient, text or body, send_at or send_in, and whatever else a
    submit takes. Refused rows do not stop the rest; those of in.csv are written to
    in.rejected.jsonl, to be mended and imported again. After an interruption run it again: rows
    with an idempotency_key are accepted once.

    Exit codes: 0 all accepted, 2 bad rows, 3 rows refused by quotas or quiet hours, 6 something
    outside is unavailable, 130 interrupted.
    """
    if plan and atomic:
        raise InvalidValue("--atomic", "given with --plan", "one of them")
    with ExitStack() as opened:
        source = opened.enter_context(Source(file))
        written = _form(file, form)
        dispatcher = opened.enter_context(Dispatcher())
        to = rejected if rejected is not None or plan else _beside(file)
        refused = opened.enter_context(RefusedRows(to)) if to is not None else None
        limit = _QUOTED * dispatcher.settings.body_max_bytes
        csv.field_size_limit(max(limit, csv.field_size_limit()))
        rows = read(source.lines(), written, channel=channel)
        intake = Intake(dispatcher, rows, refused, on_conflict=on_conflict, lines=source.total)
        work = intake.plan if plan else intake.submit_all if atomic else intake.submit_each
        failed = _run(intake, work)
        if refused is not None and not failed:
            refused.finish()
    if as_json:
        show.as_json(intake.data() | {"complete": failed == 0})
    else:
        _report(intake)
    raise typer.Exit(failed or intake.exit_code)


def _run(intake: Intake, work: Callable[[], None]) -> int:
    """Do the work; return the exit code where it could not be finished, else 0."""
    try:
        with terminated_like_interrupted(), intake.bar:
            work()
    except Unavailable as error:
        say_error(f"{error}. {intake.how_to_go_on}")
        return exit_code(error)
    except InvalidValue as error:
        if not intake.answered:
            raise
        say_error(f"{error}. {intake.how_to_go_on}")
        return exit_code(error)
    except KeyboardInterrupt:
        say_error(f"interrupted. {intake.how_to_go_on}")
        return INTERRUPTED
    except OSError as error:
        say_error(f"a file failed: {error.strerror}. {intake.how_to_go_on}")
        return 1
    return 0


def _report(intake: Intake) -> None:
    data = intake.data()
    would = "would be " if intake.planned else ""
    show.out.print(
        f"{data['accepted']:,} {would}accepted ({data['known']:,} known before, "
        f"{data['shifted']:,} shifted), {data['refused']:,} {would}refused"
    )
    if intake.planned:
        show.out.print("nothing was booked")
    if intake.planned and intake.planned.first_send_at:
        show.out.print(f"the first goes at {data['first_send_at']}, the last at "
                       f"{data['last_send_at']}")  # fmt: skip
    if intake.reasons:
        show.out.print(_table(data["reasons"]))
    for each in data.get("rejections", [])[:_SHOWN]:
        show.out.print(f"line {each['line']}: {escape(each['error'])}", soft_wrap=True)
    if intake.refused is not None and intake.refused.count:
        path = escape(str(intake.refused.path))
        show.out.print(f"the refused rows are in {path}", soft_wrap=True)


def _table(reasons: dict[str, int]) -> Table:
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("reason")
    table.add_column("rows", justify="right")
    for reason, count in reasons.items():
        table.add_row(escape(reason), f"{count:,}")
    return table


def _form(file: str, given: Format | None) -> Format:
    found = given or _SUFFIXES.get(Path(file).suffix.lower())
    if found is None:
        label = "standard input" if file == STANDARD_INPUT else file
        raise InvalidValue(label, "may be CSV or JSONL", "--format csv or --format jsonl")
    return found


def _beside(file: str) -> Path:
    return Path("stdin" if file == STANDARD_INPUT else file).with_suffix(".rejected.jsonl")

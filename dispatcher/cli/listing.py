"""Commands that list messages: list, held, export."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from dispatcher.cli import output
from dispatcher.cli.app import JSON_LINES, command
from dispatcher.cli.filters import FilterOptions
from dispatcher.cli.progress import bar, say_stopped, terminated_like_interrupted
from dispatcher.client import Dispatcher
from dispatcher.errors import InvalidValue, Unavailable
from dispatcher.message import Message, visible_text
from dispatcher.submission.rows import Format

_SHOW_EVERY = 500
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""First characters of a formula in a spreadsheet, and those that it skips before one."""


@command(
    "dispatcher list --status failed --channel email",
    "dispatcher list --overdue",
    "dispatcher list --from 2026-12-24T00:00 --to 2026-12-25T00:00 --zone Europe/Berlin",
    "dispatcher list --recipient ada --json | jq -r .id",
    json=JSON_LINES,
)
def list_(
    *,
    filters: FilterOptions,
    limit: Annotated[int, typer.Option("--limit", "-n", help="How many, newest first.")] = 50,
    after: Annotated[str | None, typer.Option(metavar="ID", help="Begin after this one.")] = None,
) -> None:
    """List messages, newest first.

    Times are in --zone; without it, in the zone of the settings.
    """
    with Dispatcher() as dispatcher:
        page = dispatcher.list(limit=limit, after=after, **filters.wanted)
        zone = filters.zone or dispatcher.settings.zone
    headings = ("id", "status", "channel", "recipient", f"send at ({zone})")
    rows = (
        (
            message.id,
            message.status,
            message.channel,
            message.recipient,
            output.second_text(message.send_at, zone),
        )
        for message in page.messages
    )
    data = map(output.message_data, page.messages)
    output.tell_rows(data, headings, rows, otherwise="no messages")
    if page.after is not None and not output.as_json:
        output.out.print(f"there are more: --after {page.after}")


@command("dispatcher held", "dispatcher held --json", json=JSON_LINES)
def held(
    limit: Annotated[int, typer.Option("--limit", "-n", help="How many, oldest first.")] = 50,
) -> None:
    """List held messages, oldest first: the outcome of their last attempt is unknown."""
    with Dispatcher() as dispatcher:
        found = dispatcher.held(limit=limit)
        zone = dispatcher.settings.zone
    headings = ("id", "channel", "recipient", "tries", f"held since ({zone})")
    rows = (
        (
            message.id,
            message.channel,
            message.recipient,
            f"{message.attempt_count} of {message.max_attempts}",
            output.second_text(message.next_attempt_at, zone),
        )
        for message in found
    )
    data = map(output.message_data, found)
    output.tell_rows(data, headings, rows, otherwise="no messages are held")


@command(
    "dispatcher export > messages.jsonl",
    "dispatcher export --status failed --to-file failed.csv",
    "dispatcher export --recipient ada --bodies | jq .body",
    json="",
)
def export(
    *,
    filters: FilterOptions,
    form: Annotated[
        Format | None,
        typer.Option("--format", help="Default: csv if --to-file ends in .csv, else jsonl."),
    ] = None,
    to_file: Annotated[
        Path | None, typer.Option(help="A new file; default: standard output.")
    ] = None,
    bodies: Annotated[bool, typer.Option("--bodies", help="With their bodies.")] = False,
    formulas: Annotated[
        bool, typer.Option("--formulas", help="In CSV, leave what a spreadsheet would compute.")
    ] = False,
) -> None:
    """Write messages, oldest first, one row each; with --bodies also their bodies.

    In CSV, a text that begins like a formula (=, +, -, @) gets a leading ', so that no spreadsheet
    computes it. Phone numbers with + get one, too. With --formulas every text is unchanged.

    Messages are read some hundreds at a time, each with its state at that moment.

    Exit codes: 0 all were written, 6 the database did not answer, 130 interrupted.
    """
    if form is None:
        is_table = to_file is not None and to_file.suffix.lower() == ".csv"
        form = Format.CSV if is_table else Format.JSONL
    with Dispatcher() as dispatcher:
        total = dispatcher.count(**filters.wanted) if to_file is not None else None
        every = dispatcher.select(oldest_first=True, **filters.wanted)
        try:
            with _opened(to_file) as stream, terminated_like_interrupted(), bar() as shown:
                task = shown.add_task("export", total=total, visible=to_file is not None)
                write = _writer(stream, form, bodies=bodies, formulas=formulas)
                number = 0
                for number, message in enumerate(every, start=1):
                    write(message)
                    if number % _SHOW_EVERY == 0:
                        shown.update(task, completed=number)
                shown.update(task, completed=number, total=number)
        except (Unavailable, KeyboardInterrupt) as error:
            raise typer.Exit(say_stopped(error, "What was written is not all")) from None


def _writer(
    stream: TextIO, form: Format, *, bodies: bool, formulas: bool
) -> Callable[[Message], None]:
    names = [name for name in Message.__dataclass_fields__ if bodies or name != "body"]
    # Python before 3.13 quotes a line break only if it is one of the terminator.
    table = csv.DictWriter(stream, names, lineterminator="\r\n")
    is_shown = stream.isatty()
    if form is Format.CSV:
        table.writeheader()

    def cell(value: Any) -> Any:
        if isinstance(value, dict):
            value = json.dumps(value, ensure_ascii=False)
        if not isinstance(value, str):
            return value
        if not formulas and value.startswith(_FORMULA):
            value = f"'{value}"
        return visible_text(value) if is_shown else value

    def write(message: Message) -> None:
        data = {
            name: value for name, value in output.message_data(message).items() if name in names
        }
        if form is Format.CSV:
            table.writerow({name: cell(value) for name, value in data.items()})
        else:
            stream.write(f"{output.visible_lines(json.dumps(data, ensure_ascii=False))}\n")

    return write


@contextmanager
def _opened(path: Path | None) -> Iterator[TextIO]:
    if path is None:
        yield sys.stdout
        sys.stdout.flush()
        return
    try:
        stream = path.open("x", encoding="utf-8", newline="")
    except OSError as error:
        problem = f"cannot be made: {error.strerror}"
        raise InvalidValue(str(path), problem, "the name of a new file") from None
    with stream:
        yield stream

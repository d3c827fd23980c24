"""``dispatcher export``: messages as JSON Lines or CSV, however many there are."""

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
from dispatcher.cli.app import examples, exit_code, say_error
from dispatcher.cli.filters import NOTHING, filtered
from dispatcher.cli.progress import INTERRUPTED, bar, terminated_like_interrupted
from dispatcher.cli.rows import Format
from dispatcher.client import Dispatcher
from dispatcher.errors import InvalidValue, Unavailable
from dispatcher.message import Message, visible_text
from dispatcher.selection import Wanted

_SHOW_EVERY = 500
_BODY = "body"
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""First characters of a formula in a spreadsheet, and those that it skips before one."""


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    lines = (
        "dispatcher export > messages.jsonl",
        "dispatcher export --status failed --to-file failed.csv",
        "dispatcher export --recipient ada --bodies | jq .body",
    )
    app.command(epilog=examples(*lines))(filtered(export))


def export(
    wanted: Wanted = NOTHING,
    form: Annotated[
        Format | None,
        typer.Option("--format", help="Default: by the name of --to-file, .csv or not; jsonl."),
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

    In CSV a text that begins as a formula does (=, +, -, @) gets a ' in front, phone numbers too:
    spreadsheets compute nothing then. With --formulas all is written as it is.

    They are read and written some hundreds at a time. A message that changes meanwhile is written
    as it is when it is read.

    Exit codes: 0 all were written, 6 the database did not answer, 130 interrupted.
    """
    if form is None:
        is_table = to_file is not None and to_file.suffix.lower() == ".csv"
        form = Format.CSV if is_table else Format.JSONL
    with Dispatcher() as dispatcher:
        total = dispatcher.count(**wanted) if to_file is not None else None
        every = dispatcher.select(oldest_first=True, **wanted)
        try:
            with _opened(to_file) as stream, terminated_like_interrupted(), bar() as shown:
                task = shown.add_task("export", total=total, visible=to_file is not None)
                write = _writer(stream, form, bodies, formulas)
                for number, message in enumerate(every, start=1):
                    write(message)
                    if number % _SHOW_EVERY == 0:
                        shown.update(task, completed=number)
        except Unavailable as error:
            say_error(f"{error}. What was written is not all")
            raise typer.Exit(exit_code(error)) from None
        except KeyboardInterrupt:
            say_error("interrupted. What was written is not all")
            raise typer.Exit(INTERRUPTED) from None


def _writer(
    stream: TextIO, form: Format, bodies: bool, formulas: bool
) -> Callable[[Message], object]:
    if form is Format.JSONL:
        return lambda message: stream.write(output.plain_json(_line(_data(message, bodies))) + "\n")
    names = [name for name in Message.__dataclass_fields__ if bodies or name != _BODY]
    table = csv.DictWriter(stream, names, lineterminator="\n")
    table.writeheader()
    is_shown = stream.isatty()

    def cell(value: Any) -> Any:
        if isinstance(value, dict):
            value = _line(value)
        if not isinstance(value, str):
            return value
        if not formulas and value.startswith(_FORMULA):
            value = f"'{value}"
        return visible_text(value) if is_shown else value

    return lambda message: table.writerow(
        {name: cell(value) for name, value in _data(message, bodies).items()}
    )


def _data(message: Message, bodies: bool) -> dict[str, Any]:
    data = output.message_data(message)
    if not bodies:
        del data[_BODY]
    return data


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


@contextmanager
def _opened(path: Path | None) -> Iterator[TextIO]:
    """Yield the stream to write to. Raises InvalidValue if the file exists or cannot be created."""
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

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

from dispatcher.cli import show
from dispatcher.cli.app import exit_code, say_error
from dispatcher.cli.bars import INTERRUPTED, bar, terminated_like_interrupted
from dispatcher.cli.filters import NOTHING, examples, filtered
from dispatcher.cli.rows import Format
from dispatcher.client import Dispatcher
from dispatcher.errors import InvalidValue, Unavailable
from dispatcher.message import Message
from dispatcher.selection import Wanted

_SHOW_EVERY = 500
_BODY = "body"


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    lines = (
        "dispatcher export > messages.jsonl",
        "dispatcher export --status failed --format csv --to-file failed.csv",
        "dispatcher export --recipient ada --bodies | jq .body",
    )
    app.command(epilog=examples(*lines))(filtered(export))


def export(
    wanted: Wanted = NOTHING,
    form: Annotated[Format, typer.Option("--format", help="How rows are written.")] = Format.JSONL,
    to_file: Annotated[
        Path | None, typer.Option(help="A new file; default: standard output.")
    ] = None,
    bodies: Annotated[bool, typer.Option("--bodies", help="With their bodies.")] = False,
) -> None:
    """Write messages, oldest first, a row each; with bodies only where that is asked for.

    They are read and written some hundreds at a time. What changes meanwhile is written as it is
    when its turn comes.

    Exit codes: 0 all were written, 6 the database did not answer on the way, 130 interrupted.
    """
    with Dispatcher() as dispatcher:
        total = dispatcher.count(**wanted) if to_file is not None else None
        every = dispatcher.select(oldest_first=True, **wanted)
        try:
            with _opened(to_file) as stream, terminated_like_interrupted(), bar() as shown:
                task = shown.add_task("export", total=total, visible=to_file is not None)
                write = _writer(stream, form, bodies)
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


def _writer(stream: TextIO, form: Format, bodies: bool) -> Callable[[Message], object]:
    if form is Format.JSONL:
        return lambda message: stream.write(show.plain_json(_line(_data(message, bodies))) + "\n")
    names = [name for name in Message.__dataclass_fields__ if bodies or name != _BODY]
    table = csv.DictWriter(stream, names, lineterminator="\n")
    table.writeheader()
    return lambda message: table.writerow(
        {name: _line(value) if isinstance(value, dict) else value
         for name, value in _data(message, bodies).items()}
    )  # fmt: skip


def _data(message: Message, bodies: bool) -> dict[str, Any]:
    data = show.message_data(message)
    if not bodies:
        del data[_BODY]
    return data


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


@contextmanager
def _opened(path: Path | None) -> Iterator[TextIO]:
    """Yield the stream to write to. Raises InvalidValue where the file is there, or cannot be."""
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

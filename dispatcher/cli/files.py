"""Commands for CSV and JSONL files of messages: import, export."""

from __future__ import annotations

import csv
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import tee
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from dispatcher.cli import output
from dispatcher.cli.app import bar, command, say_error, say_stopped, terminated_like_interrupted
from dispatcher.cli.lists import FilterOptions
from dispatcher.client import Dispatcher
from dispatcher.errors import BatchRefused, DispatcherError, InvalidValue, SlotRefused, Unavailable
from dispatcher.message import (
    Message,
    OnConflict,
    Plan,
    Progress,
    Rejection,
    reason_of,
    visible_text,
)
from dispatcher.submission.rows import (
    STANDARD_INPUT,
    BadRow,
    DraftRow,
    Format,
    RefusedRows,
    Source,
    read,
)

_BAD, _SLOT_REFUSED = 2, 3
_SHOWN = 10
_SHOW_EVERY = 500
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""First characters of a formula in a spreadsheet, and those that it skips before one."""


@command(
    "dispatcher import reminders.csv --plan",
    "dispatcher import - --format jsonl < x.jsonl",
)
def import_(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="FILE.csv or FILE.jsonl; - is standard input.")
    ],
    plan: Annotated[
        bool, typer.Option("--plan", help="Book nothing; show the result an import would have.")
    ] = False,
    on_conflict: Annotated[
        OnConflict | None, typer.Option(help="Replaces the on_conflict of every row.")
    ] = None,
    rejected: Annotated[
        Path | None,
        typer.Option(help="File of the refused rows; for in.csv by default in.rejected.jsonl."),
    ] = None,
    atomic: Annotated[bool, typer.Option("--atomic", help="Accept all rows or none.")] = False,
    channel: Annotated[str | None, typer.Option(help="Of rows that name no channel.")] = None,
    campaign: Annotated[str | None, typer.Option(help="Of rows that name no campaign.")] = None,
    priority: Annotated[int | None, typer.Option(help="Of rows that name no priority.")] = None,
    form: Annotated[
        Format | None,
        typer.Option("--format", help="Needed where the name of FILE shows no format."),
    ] = None,
) -> None:
    """Submit the messages of a file; report the refused rows and the reasons.

    The columns are channel, recipient, text or body, send_at or send_in, and any other
    parameter of a submit; body, data and scopes are JSON: {"tenant": "acme"}. Refused rows do
    not stop the others; those of in.csv are written to in.rejected.jsonl, to be corrected and
    imported again. After an interruption run it again: rows with an idempotency_key are
    accepted once.

    Exit codes: 0 all accepted, 2 bad rows, 3 rows refused by quotas or quiet hours, 6 a server
    is unavailable, 130 interrupted.
    """
    if plan and atomic:
        raise InvalidValue("--atomic", "given with --plan", "one of them")
    with ExitStack() as opened:
        source = opened.enter_context(Source(file))
        name = "standard input" if file == STANDARD_INPUT else file
        written = form or Format.of(file)
        if written is None:
            raise InvalidValue(name, "may be CSV or JSONL", "--format csv or --format jsonl")
        dispatcher = opened.enter_context(Dispatcher())
        beside = Path("stdin" if file == STANDARD_INPUT else file).with_suffix(".rejected.jsonl")
        to = rejected if rejected is not None or plan else beside
        refused = opened.enter_context(RefusedRows(to)) if to is not None else None
        longest = dispatcher.settings.body_max_bytes
        rows = read(
            source, written, channel=channel, campaign=campaign, priority=priority, longest=longest
        )
        job = ImportJob(dispatcher, rows, refused, on_conflict, source.total, plan, atomic)
        failed = job.run()
        if refused is not None and not failed:
            refused.finish()
    data = job.data()
    output.tell(data | {"complete": failed == 0}, _report(job, data))
    raise typer.Exit(failed or job.exit_code)


def _report(job: ImportJob, data: Mapping[str, Any]) -> RenderableType:
    would = "would be " if job.planned else ""
    known = f"{data['known']:,} known before, {data['shifted']:,} shifted"
    refused = f"{data['refused']:,} {would}refused"
    lines = [f"{data['accepted']:,} {would}accepted ({known}), {refused}"]
    if job.planned:
        lines.append("nothing was booked")
        if data["first_send_at"]:
            span = f"the first goes at {data['first_send_at']}, the last at {data['last_send_at']}"
            lines.append(span)
    rejections = data.get("rejections", [])
    after = [f"line {rejection['line']}: {rejection['error']}" for rejection in rejections[:_SHOWN]]
    if len(rejections) > _SHOWN:
        after.append(f"and {len(rejections) - _SHOWN:,} more")
    if data["rejected_file"]:
        after.append(f"the refused rows are in {data['rejected_file']}")
    reasons = list(job.reasons.most_common())
    table = [output.listed(("reason", "rows"), reasons)] if reasons else []
    return Group(*lines, *table, *(Text(line, overflow="fold") for line in after))


@dataclass
class ImportJob:
    """Submits or plans the rows of a file.

    One batch of rows is in memory, or all that are accepted as a whole. ``exit_code`` is that of
    the refused rows, 0 without any.
    """

    dispatcher: Dispatcher
    rows: Iterator[DraftRow | BadRow]
    refused: RefusedRows | None
    on_conflict: OnConflict | None
    lines: int | None
    is_plan: bool
    atomic: bool
    planned: Plan | None = field(default=None, init=False)
    reasons: Counter[str] = field(default_factory=Counter, init=False)
    exit_code: int = field(default=0, init=False)
    _counted: Progress = field(default=Progress(0, 0, None), init=False)
    _rejections: list[dict[str, Any]] = field(default_factory=list, init=False)
    _read: int = field(default=0, init=False)
    _answered: int = field(default=0, init=False)
    _bad: int = field(default=0, init=False)
    _keyless: int = field(default=0, init=False)

    def run(self) -> int:
        try:
            with terminated_like_interrupted(), bar() as self._bar:
                self._task = self._bar.add_task("", total=self.lines)
                if self.is_plan:
                    self._plan()
                else:
                    self._submit()
        except (Unavailable, InvalidValue, KeyboardInterrupt) as error:
            if isinstance(error, InvalidValue) and not self._answered:
                raise
            return say_stopped(error, self._how_to_go_on())
        except OSError as error:
            say_error(f"a file failed: {error.strerror}. {self._how_to_go_on()}")
            return 1
        return 0

    def _submit(self) -> None:
        drafts: Iterable[DraftRow] = self._drafts()
        whole: list[DraftRow] = []
        if self.atomic:
            drafts = whole = list(drafts)
            if self._bad:
                text = "nothing was accepted, because there are bad rows"
                for row in whole:
                    self._refuse(row, BatchRefused(0), text)
                self._counted = Progress(0, len(whole), None)
                return
        asked, answered = tee(drafts)
        results = self.dispatcher.submit_many(
            asked, on_conflict=self.on_conflict, atomic=self.atomic, progress=self._show
        )
        for result, row in zip(results, answered, strict=False):
            self._answered = row.line
            if isinstance(result, Rejection):
                error, text = result.error, ""
                if isinstance(error, BatchRefused):
                    line = whole[error.number].line
                    text = f"nothing was accepted, because line {line} was refused"
                self._refuse(row, error, text)
            elif row.idempotency_key is None:
                self._keyless += 1

    def _plan(self) -> None:
        self.planned = self.dispatcher.plan(
            self._drafts(), on_conflict=self.on_conflict, progress=self._show
        )
        for rejection in self.planned.rejections:
            if isinstance(rejection.draft, DraftRow):
                self._refuse(rejection.draft, rejection.error)

    def _how_to_go_on(self) -> str:
        if self.atomic:
            return "All rows were accepted, or none: check `dispatcher list` before a second run."
        text = (
            f"The rows up to line {self._answered} were answered, of the rows up to line "
            f"{self._read} some may be accepted. Run it again: rows with an idempotency_key are "
            "accepted once"
        )
        if self._keyless:
            text += f"; {self._keyless} accepted rows have none, so take them out first"
        return f"{text}."

    def data(self) -> dict[str, Any]:
        counted, refused = self._counted, self.refused
        data: dict[str, Any] = {
            "accepted": counted.accepted,
            "known": counted.known,
            "shifted": counted.shifted,
            "refused": counted.refused + self._bad,
            "reasons": dict(self.reasons.most_common()),
            "rejected_file": str(refused.path) if refused and refused.count else None,
        }
        if self.planned is not None:
            data["first_send_at"] = output.plain(self.planned.first_send_at)
            data["last_send_at"] = output.plain(self.planned.last_send_at)
            data["rejections"] = sorted(self._rejections, key=itemgetter("line"))
        return data

    def _drafts(self) -> Iterator[DraftRow]:
        for row in self.rows:
            self._read = row.line
            if isinstance(row, BadRow):
                self._bad += 1
                self._refuse(row, row.error)
            else:
                yield row

    def _refuse(self, row: DraftRow | BadRow, error: DispatcherError, text: str = "") -> None:
        if self.exit_code != _BAD:
            of_slot = isinstance(error, SlotRefused | BatchRefused)
            self.exit_code = _SLOT_REFUSED if of_slot else _BAD
        reason = reason_of(error)
        self.reasons[reason] += 1
        refused = {"line": row.line, "error": text or str(error), "reason": reason}
        if isinstance(error, SlotRefused):
            refused["next_slot"] = output.plain(error.next_slot)
        if self.refused is not None:
            self.refused.write(refused | {"row": row.row})
        if self.is_plan:
            self._rejections.append(refused)

    def _show(self, counted: Progress) -> None:
        self._counted = counted
        refused = counted.refused + self._bad
        text = f"{counted.accepted:,} accepted, {refused:,} refused"
        self._bar.update(self._task, completed=self._read, description=text)


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

"""``dispatcher import``: messages from a CSV or JSONL file."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.progress import BarColumn, ProgressColumn, Task, TextColumn
from rich.text import Text

from dispatcher.cli import output
from dispatcher.cli.app import AsJson, command, say_error
from dispatcher.cli.progress import bar, say_stopped, terminated_like_interrupted
from dispatcher.client import Dispatcher
from dispatcher.errors import BatchRefused, DispatcherError, InvalidValue, SlotRefused, Unavailable
from dispatcher.message import Message, OnConflict, Plan, Progress, Rejection, reason_of
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
        OnConflict | None, typer.Option(help="Replaces that of every row.")
    ] = None,
    rejected: Annotated[
        Path | None,
        typer.Option(help="File of the refused rows; for in.csv by default in.rejected.jsonl."),
    ] = None,
    atomic: Annotated[bool, typer.Option("--atomic", help="Accept all rows or none.")] = False,
    channel: Annotated[str | None, typer.Option(help="For rows that name none.")] = None,
    campaign: Annotated[str | None, typer.Option(help="For rows that name none.")] = None,
    form: Annotated[
        Format | None,
        typer.Option("--format", help="Needed where the name of FILE does not show it."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Submit the messages of a file; report the refused rows and the reasons.

    The columns are channel, recipient, text or body, send_at or send_in, and any other
    parameter of a submit. Refused rows do not stop the others; those of in.csv are written to
    in.rejected.jsonl, to be corrected and imported again. After an interruption run it again:
    rows with an idempotency_key are accepted once.

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
        rows = read(source, written, channel=channel, campaign=campaign, longest=longest)
        job = ImportJob(dispatcher, rows, refused, on_conflict=on_conflict, lines=source.total)
        work = job.plan if plan else job.submit_all if atomic else job.submit_each
        failed = _run(job, work)
        if refused is not None and not failed:
            refused.finish()
    if as_json:
        output.as_object(job.data() | {"complete": failed == 0})
    else:
        _report(job)
    raise typer.Exit(failed or job.exit_code)


def _run(job: ImportJob, work: Callable[[], None]) -> int:
    try:
        with terminated_like_interrupted(), job.bar:
            work()
    except (Unavailable, InvalidValue, KeyboardInterrupt) as error:
        if isinstance(error, InvalidValue) and not job.answered:
            raise
        return say_stopped(error, job.how_to_go_on)
    except OSError as error:
        say_error(f"a file failed: {error.strerror}. {job.how_to_go_on}")
        return 1
    return 0


def _report(job: ImportJob) -> None:
    data = job.data()
    would = "would be " if job.planned else ""
    output.out.print(
        f"{data['accepted']:,} {would}accepted ({data['known']:,} known before, "
        f"{data['shifted']:,} shifted), {data['refused']:,} {would}refused"
    )
    if job.planned:
        output.out.print("nothing was booked")
        if job.planned.first_send_at:
            first, last = data["first_send_at"], data["last_send_at"]
            output.out.print(f"the first goes at {first}, the last at {last}")
    if job.reasons:
        rows = list(job.reasons.most_common())
        output.out.print(output.listed(("reason", "rows"), rows, right=("rows",)))
    rejections = data.get("rejections", [])
    for each in rejections[:_SHOWN]:
        output.out.print(f"line {each['line']}: {each['error']}", soft_wrap=True)
    if len(rejections) > _SHOWN:
        output.out.print(f"and {len(rejections) - _SHOWN:,} more")
    if job.refused is not None and job.refused.count:
        output.out.print(f"the refused rows are in {job.refused.path}", soft_wrap=True)


class ImportJob:
    """Submits or plans the rows of a file.

    One batch of rows is in memory, with ``submit_all`` all rows. ``exit_code`` is that of the
    refused rows, 0 without any; up to the line ``answered`` every row was answered.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        rows: Iterator[DraftRow | BadRow],
        refused: RefusedRows | None,
        *,
        on_conflict: OnConflict | None,
        lines: int | None,
    ) -> None:
        self.refused = refused
        self.planned: Plan | None = None
        self.reasons: Counter[str] = Counter()
        self.exit_code = 0
        self.answered = 0
        self.bar = bar(
            BarColumn(),
            TextColumn("{task.fields[accepted]:,} accepted, {task.fields[refused]:,} refused"),
            _Rate(),
        )
        self._dispatcher = dispatcher
        self._rows = rows
        self._on_conflict = on_conflict
        self._task = self.bar.add_task("", total=lines, accepted=0, refused=0)
        self._counted = Progress(0, 0, None)
        self._rejections: list[dict[str, Any]] = []
        self._way: Literal["each", "whole", "plan"] = "each"
        self._read = 0
        self._bad = 0
        self._keyless = 0

    def submit_each(self) -> None:
        waiting: deque[DraftRow] = deque()

        def drafts() -> Iterator[DraftRow]:
            for row in self._drafts():
                waiting.append(row)
                yield row

        results = self._dispatcher.submit_many(
            drafts(), on_conflict=self._on_conflict, progress=self._show
        )
        for result in results:
            row = waiting.popleft()
            self.answered = row.line
            if isinstance(result, Rejection):
                self._refuse(row.line, row.row, result.error)
            elif row.idempotency_key is None:
                self._keyless += 1

    def submit_all(self) -> None:
        self._way = "whole"
        rows = list(self._drafts())
        if self._bad:
            text = "nothing was accepted, because there are bad rows"
            for row in rows:
                self._refuse(row.line, row.row, BatchRefused(0), text)
            self._counted = Progress(0, len(rows), None)
            return
        results: list[Message | Rejection] = self._dispatcher.submit_many(
            rows, on_conflict=self._on_conflict, atomic=True, progress=self._show
        )
        for row, result in zip(rows, results, strict=True):
            if isinstance(result, Rejection):
                text = str(result.error)
                if isinstance(result.error, BatchRefused):
                    line = rows[result.error.number].line
                    text = f"nothing was accepted, because line {line} was refused"
                self._refuse(row.line, row.row, result.error, text)

    def plan(self) -> None:
        self._way = "plan"
        self.planned = self._dispatcher.plan(
            self._drafts(), on_conflict=self._on_conflict, progress=self._show
        )
        for each in self.planned.rejections:
            if isinstance(each.draft, DraftRow):
                self._refuse(each.draft.line, each.draft.row, each.error)

    @property
    def how_to_go_on(self) -> str:
        if self._way == "plan":
            return "Nothing was accepted; run it again."
        if self._way == "whole":
            return "All rows were accepted, or none: check `dispatcher list` before a second run."
        text = f"Of the rows up to line {self._read} some may be accepted. "
        if self.answered:
            text = f"The rows up to line {self.answered} were answered, o{text[1:]}"
        text += "Run it again: rows with an idempotency_key are accepted once"
        if self._keyless:
            text += f"; {self._keyless} accepted rows have none, so take them out first"
        return f"{text}."

    def data(self) -> dict[str, Any]:
        counted = self._counted
        found: dict[str, Any] = {
            "accepted": counted.accepted,
            "known": counted.known,
            "shifted": counted.shifted,
            "refused": counted.refused + self._bad,
            "reasons": dict(self.reasons.most_common()),
            "rejected_file": None,
        }
        if self.refused and self.refused.count:
            found["rejected_file"] = str(self.refused.path)
        if self.planned is not None:
            found["first_send_at"] = output.plain(self.planned.first_send_at)
            found["last_send_at"] = output.plain(self.planned.last_send_at)
            found["rejections"] = sorted(self._rejections, key=lambda each: int(each["line"]))
        return found

    def _drafts(self) -> Iterator[DraftRow]:
        for row in self._rows:
            self._read = row.line
            if isinstance(row, BadRow):
                self._bad += 1
                self._refuse(row.line, row.row, row.error)
            else:
                yield row

    def _refuse(self, line: int, row: Any, error: DispatcherError, text: str = "") -> None:
        if self.exit_code != _BAD:
            self.exit_code = (
                _SLOT_REFUSED if isinstance(error, SlotRefused | BatchRefused) else _BAD
            )
        reason = reason_of(error)
        self.reasons[reason] += 1
        refused = {"line": line, "error": text or str(error), "reason": reason}
        if isinstance(error, SlotRefused):
            refused["next_slot"] = output.plain(error.next_slot)
        if self.refused is not None:
            self.refused.write(refused | {"row": row})
        if self._way == "plan":
            self._rejections.append(refused)

    def _show(self, counted: Progress) -> None:
        self._counted = counted
        self.bar.update(
            self._task,
            completed=self._read,
            accepted=counted.accepted,
            refused=counted.refused + self._bad,
        )


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:,.0f}/s" if task.speed else "")

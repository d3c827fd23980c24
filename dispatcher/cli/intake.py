"""One import under way: what was read, what came of it, and how far it is."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from typing import Any

from rich.progress import BarColumn, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.text import Text

from dispatcher.cli import show
from dispatcher.cli.files import RefusedRows
from dispatcher.cli.rows import BadRow, Row
from dispatcher.cli.show import Terminal
from dispatcher.client import Dispatcher
from dispatcher.errors import BatchRefused, DispatcherError, NoPlace
from dispatcher.message import Message, OnConflict, Plan, Progress, Rejection, reason_of

_BAD, _NO_PLACE = 2, 3


class Intake:
    """Submits or plans the rows of a file. Holds one batch of rows, all of them for ``submit_all``.

    ``exit_code`` says what came of the rows, ``answered`` up to which line they were answered.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        rows: Iterator[Row | BadRow],
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
        self.bar = _bar()
        self._dispatcher = dispatcher
        self._rows = rows
        self._on_conflict = on_conflict
        self._task = self.bar.add_task("", total=lines, accepted=0, refused=0)
        self._waiting: deque[Row] = deque()
        self._counted = Progress(0, 0, None)
        self._kept: list[dict[str, Any]] = []
        self._keeps = False
        self._read = 0
        self._bad = 0
        self._keyless = 0
        self._is_whole = False

    def submit_each(self) -> None:
        """Submit the rows; refused ones do not stop the others."""

        def drafts() -> Iterator[Row]:
            for row in self._drafts():
                self._waiting.append(row)
                yield row

        results = self._dispatcher.submit_many(
            drafts(), on_conflict=self._on_conflict, progress=self._show
        )
        for result in results:
            row = self._waiting.popleft()
            self.answered = row.line
            if isinstance(result, Rejection):
                self._refuse(row.line, row.row, result.error)
            elif row.idempotency_key is None:
                self._keyless += 1

    def submit_all(self) -> None:
        """Submit all rows or none."""
        self._is_whole = True
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
        """Learn what would come of the rows."""
        self._keeps = True
        self.planned = self._dispatcher.plan(
            self._drafts(), on_conflict=self._on_conflict, progress=self._show
        )
        for each in self.planned.rejections:
            if isinstance(each.draft, Row):
                self._refuse(each.draft.line, each.draft.row, each.error)

    @property
    def how_to_go_on(self) -> str:
        """What to do when it could not be finished."""
        if self._keeps:
            return "Nothing was accepted; run it again."
        if self._is_whole:
            return "All rows were accepted or none: look before you run it again."
        text = f"Of the rows up to line {self._read} some may be accepted. "
        if self.answered:
            text = f"The rows up to line {self.answered} were answered, o{text[1:]}"
        text += "Run it again: rows with an idempotency_key are accepted once"
        if self._keyless:
            text += f"; {self._keyless} accepted rows have none, so take them out first"
        return f"{text}."

    def data(self) -> dict[str, Any]:
        """Return what came of it as plain JSON values."""
        counted = self._counted
        found: dict[str, Any] = {
            "accepted": counted.accepted,
            "known": counted.known,
            "shifted": counted.shifted,
            "refused": counted.refused + self._bad,
            "reasons": dict(self.reasons.most_common()),
            "rejected_file": str(self.refused.path)
            if self.refused and self.refused.count
            else None,
        }
        if self.planned is not None:
            for name in ("first_send_at", "last_send_at"):
                instant = getattr(self.planned, name)
                found[name] = show.iso(instant)
            found["rejections"] = sorted(self._kept, key=lambda each: int(each["line"]))
        return found

    def _drafts(self) -> Iterator[Row]:
        """Yield the rows that are drafts; refuse the others."""
        for row in self._rows:
            self._read = row.line
            if isinstance(row, BadRow):
                self._bad += 1
                self._refuse(row.line, row.row, row.error)
            else:
                yield row

    def _refuse(self, line: int, row: Any, error: DispatcherError, text: str = "") -> None:
        if self.exit_code != _BAD:
            self.exit_code = _NO_PLACE if isinstance(error, NoPlace | BatchRefused) else _BAD
        reason = reason_of(error)
        self.reasons[reason] += 1
        refused = {"line": line, "error": text or str(error), "reason": reason}
        if isinstance(error, NoPlace):
            refused["next_slot"] = show.iso(error.next_slot)
        if self.refused is not None:
            self.refused.write(refused | {"row": row})
        if self._keeps:
            self._kept.append(refused)

    def _show(self, counted: Progress) -> None:
        self._counted = counted
        self.bar.update(
            self._task,
            completed=self._read,
            accepted=counted.accepted,
            refused=counted.refused + self._bad,
        )


class _Rate(ProgressColumn):
    """How many lines a second."""

    def render(self, task: Task) -> Text:
        """Return it as text."""
        return Text(f"{task.speed:,.0f}/s" if task.speed else "")


def _bar() -> Bar:
    console = Terminal(stderr=True)
    return Bar(
        BarColumn(),
        TextColumn("{task.fields[accepted]:,} accepted, {task.fields[refused]:,} refused"),
        _Rate(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )

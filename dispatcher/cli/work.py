"""One change to many messages: to those with some ids, or to all that match, batch by batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any
from uuid import UUID

import typer
from rich.markup import escape

from dispatcher.cli import show
from dispatcher.cli.app import confirm, exit_code, say_error
from dispatcher.cli.bars import INTERRUPTED, bar, terminated_like_interrupted
from dispatcher.cli.filters import narrowed
from dispatcher.client import Dispatcher
from dispatcher.errors import (
    DispatcherError,
    InvalidValue,
    ReservationsUnavailable,
    TooLate,
    Unavailable,
)
from dispatcher.message import Message, Status, reason_of
from dispatcher.selection import Selection, Wanted

_AT_ONCE = 500
_MOST_TOLD = 100
"""Most refused messages that the summary of a change by filter names."""

Change = Callable[[UUID | str], Message]
ChangeMany = Callable[[Sequence[Message]], Sequence[Message | DispatcherError]]


class Work:
    """A change that a command makes. ``status`` is what a message must be in for it.

    ``many`` changes a batch where there is a quicker way than ``one`` by one. ``still_matches``
    tells that what was changed is in that status again, so that the same filters mean it again.
    ``also`` is what else the change does, named before it is confirmed.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        verb: str,
        status: Status,
        one: Change,
        *,
        many: ChangeMany | None = None,
        still_matches: bool = False,
        also: str | None = None,
    ) -> None:
        self._dispatcher = dispatcher
        self._verb = verb
        self._status = status
        self._one = one
        self._many = many or self._each
        self._still_matches = still_matches
        self._also = f" and {also}" if also else ""
        self._answered: UUID | None = None
        self._doubtful: Sequence[UUID] = ()
        self._done = 0
        self._refused: Counter[str] = Counter()
        self._told: list[tuple[UUID, DispatcherError]] = []

    def do(
        self,
        message_ids: Sequence[str] | None,
        wanted: Wanted,
        *,
        yes: bool,
        every: bool,
        as_json: bool,
    ) -> None:
        """Change what is meant, and tell what came of it.

        Raises InvalidValue where nothing is meant, or ids and filters are given together.
        """
        if not message_ids:
            self._by_filter(narrowed(wanted, self._status, every=every), yes, as_json)
        elif Selection.of(wanted).is_everything and not every:
            self._by_ids(message_ids, as_json)
        else:
            raise InvalidValue("ID", "given together with a filter", "one of them")

    def _by_ids(self, message_ids: Sequence[str], as_json: bool) -> None:
        """Change each message; one that is refused does not stop the others.

        The exit code is that of the first refusal.
        """
        done: list[Message] = []
        refusals: list[DispatcherError] = []
        try:
            for message_id in message_ids:
                try:
                    done.append(self._one(message_id))
                except Unavailable:
                    raise
                except DispatcherError as error:
                    say_error(error)
                    refusals.append(error)
        finally:
            self._tell(done, as_object=len(message_ids) == 1, as_json=as_json)
        if refusals:
            raise typer.Exit(exit_code(refusals[0]))

    def _by_filter(self, wanted: Wanted, yes: bool, as_json: bool) -> None:
        matched = self._dispatcher.count(**wanted)
        what = f"{matched:,} message{'' if matched == 1 else 's'}"
        if matched and not yes:
            confirm(f"{self._verb} {what}{self._also}?")
        code = self._run(wanted, matched) if matched else 0
        first = next((exit_code(error) for _, error in self._told), 0)
        if as_json:
            show.as_json(self._data(matched) | {"complete": code == 0})
        else:
            self._say(what)
        raise typer.Exit(code or first)

    def _run(self, wanted: Wanted, matched: int) -> int:
        """Do the work; return the exit code where it could not be finished, else 0."""
        # Those that match by and by are left for another time: no more than were counted.
        meant = islice(self._dispatcher.select(oldest_first=True, **wanted), matched)
        try:
            with terminated_like_interrupted(), bar() as shown:
                task = shown.add_task(self._verb, total=matched)
                while some := list(islice(meant, _AT_ONCE)):
                    self._doubtful = [each.id for each in some]
                    answers = self._many(some)
                    self._note(some, answers)
                    shown.update(task, completed=self._done + self._refused.total())
                    for answer in answers:
                        if isinstance(answer, Unavailable):
                            raise answer
        except Unavailable as error:
            if isinstance(error, ReservationsUnavailable):  # nothing of it was changed
                self._doubtful = ()
            say_error(f"{error}. {self._how_to_go_on}")
            return exit_code(error)
        except KeyboardInterrupt:
            say_error(f"interrupted. {self._how_to_go_on}")
            return INTERRUPTED
        return 0

    def _each(self, some: Sequence[Message]) -> list[Message | DispatcherError]:
        answers: list[Message | DispatcherError] = []
        try:
            for message in some:
                try:
                    answers.append(self._one(message.id))
                except Unavailable:
                    raise
                except DispatcherError as error:
                    answers.append(error)
        except (Unavailable, KeyboardInterrupt):
            self._note(some, answers)
            raise
        return answers

    def _note(self, some: Sequence[Message], answers: Sequence[Message | DispatcherError]) -> None:
        for message, answer in zip(some, answers, strict=False):
            if isinstance(answer, Unavailable):
                continue
            if isinstance(answer, Message):
                self._done += 1
            else:
                self._refused[_reason(answer)] += 1
                if len(self._told) < _MOST_TOLD:
                    self._told.append((message.id, answer))
        if len(answers) == len(some) and not any(isinstance(each, Unavailable) for each in answers):
            self._answered, self._doubtful = some[-1].id, ()

    @property
    def _how_to_go_on(self) -> str:
        if not self._still_matches:
            return f"Run it again: what was changed does not match {self._status} any more."
        rest = f"go on with --made-after {self._answered}" if self._answered else "run it again"
        if not self._doubtful:
            return f"What was changed matches still, so do not change it twice: {rest}."
        first, last = self._doubtful[0], self._doubtful[-1]
        these = "it was" if first == last else f"they, up to {last}, were"
        behind = f"go on with --made-after {last}"
        return f"Look at {first}: if {these} changed, {behind}, else {rest}."

    def _tell(self, done: Sequence[Message], *, as_object: bool, as_json: bool) -> None:
        if as_json:
            data = [show.message_data(message) for message in done]
            if data or not as_object:
                show.as_json(data[0] if as_object else data)
            return
        for message in done:
            text = show.outcome_text(message, with_time=self._verb == "reschedule")
            show.out.print(text, soft_wrap=True)

    def _data(self, matched: int) -> dict[str, Any]:
        return {
            "matched": matched,
            "done": self._done,
            "refused": dict(self._refused.most_common()),
            "refusals": [{"id": str(each), "error": str(error)} for each, error in self._told],
        }

    def _say(self, what: str) -> None:
        show.out.print(f"{self._verb}: {self._done:,} of {what} done")
        for reason, many in self._refused.most_common():
            show.out.print(f"  [yellow]not done[/] {many:,}: {escape(reason)}")


def _reason(error: DispatcherError) -> str:
    return f"already {error.status}" if isinstance(error, TooLate) else reason_of(error)

"""Commands that change accepted messages: cancel, reschedule, retry, release, drop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Annotated, Any
from uuid import UUID

import typer
from rich.text import Text

from dispatcher.cli import output
from dispatcher.cli.app import (
    bar,
    command,
    confirm,
    exit_code,
    say_error,
    say_stopped,
    terminated_like_interrupted,
)
from dispatcher.cli.lists import FilterOptions, option, parameters_of
from dispatcher.cli.messages import ExpireAfter, Fold, Latest, SendAt, SendIn, Shift
from dispatcher.client import Dispatcher
from dispatcher.errors import (
    DispatcherError,
    InvalidDraft,
    InvalidValue,
    Unavailable,
)
from dispatcher.message import Message, Status, reason_of
from dispatcher.selection import Selection, Wanted

_BATCH = 500
_MOST_NAMED = 100
"""How many refused messages the summary of a change by filter names at most."""

_Answer = Message | DispatcherError


@dataclass(frozen=True, kw_only=True)
class _ChangeFilters(FilterOptions):
    message_ids: Annotated[list[str] | None, typer.Argument(metavar="ID")] = None
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False
    every: Annotated[bool, typer.Option("--all", help="Without a filter: every message.")] = False


@dataclass(frozen=True, kw_only=True)
class _ZonedChangeFilters(_ChangeFilters):
    """The same where ``--zone`` has another meaning; it is the default of the filters' zone."""

    filter_zone: Annotated[
        str | None, option(help="Zone of --from and --to, where it is not that of --zone.")
    ] = None

    @property
    def wanted(self) -> Wanted:
        zone = self.zone if self.filter_zone is None else self.filter_zone
        return {**super().wanted, "zone": zone}


@dataclass(frozen=True, kw_only=True)
class _NewTime:
    send_at: SendAt = None
    send_in: SendIn = None
    later: Annotated[
        str | None, typer.Option(help='A length to add to the promised time: "2 hours".')
    ] = None
    zone: Annotated[
        str | None, typer.Option(help="Zone of local times given here; default: each message's.")
    ] = None
    set_zone: Annotated[
        str | None, typer.Option(help="Another zone for the messages, also for quiet hours.")
    ] = None
    fold: Fold = None
    on_conflict: Shift = "reject"
    latest: Latest = None
    expires_at: Annotated[str | None, typer.Option(help="Another expiry.")] = None
    expire_after: ExpireAfter = None


@command(
    "dispatcher cancel 0199…",
    "dispatcher cancel --channel sms --from 2026-12-24T08:00Z --to 2026-12-24T09:00Z",
)
def cancel(meant: _ChangeFilters) -> None:
    """Cancel scheduled messages, by id or by filter; their quotas are free again at once."""
    _Change("cancel", Status.SCHEDULED).do(meant)


@command(
    'dispatcher reschedule 0199… --send-in "2 hours" --on-conflict shift',
    'dispatcher reschedule --channel sms --overdue --later "1 hour" --on-conflict shift',
)
def reschedule(*, new_time: _NewTime, meant: _ZonedChangeFilters) -> None:
    """Move scheduled messages to another time, by id or by filter; frees the old times at once.

    The new time must fit every quota without the message's old reservation. A message keeps its
    zone unless --set-zone gives it another.
    """
    if [new_time.send_at, new_time.send_in, new_time.later].count(None) != 2:  # noqa: PLR2004 - one of three
        accepted = "one of --send-at, --send-in and --later"
        raise InvalidDraft("send_at", "not exactly one time was given", accepted)
    set_zone = new_time.set_zone
    _Change(
        "reschedule",
        Status.SCHEDULED,
        parameters_of(new_time),
        zone=set_zone if new_time.zone is None else new_time.zone,
        also=f" and set the zone to {set_zone}" if set_zone else "",
    ).do(meant)


@command(
    "dispatcher retry 0199…", "dispatcher retry --channel email --from 2026-12-24T08:00Z --yes"
)
def retry(
    *,
    perhaps_sent: Annotated[
        bool,
        typer.Option(
            "--perhaps-sent", help="Also those with on_unknown=hold that may have been sent."
        ),
    ] = False,
    meant: _ChangeFilters,
) -> None:
    """Give failed messages further attempts, by id or by filter. They are due at once.

    They still have their reservations, so no quota refuses them; the limits apply.
    """
    _Change("retry", Status.FAILED, {"perhaps_sent": perhaps_sent}).do(meant)


@command("dispatcher release 0199…", "dispatcher release --channel sms")
def release(meant: _ChangeFilters) -> None:
    """Release held messages to be sent, perhaps for the second time, by id or by filter.

    They are due at once; a message past its expiry ends as expired.
    """
    _Change("release", Status.HELD).do(meant)


@command("dispatcher drop 0199…", "dispatcher drop --recipient ada")
def drop(
    *,
    reason: Annotated[str | None, typer.Option(help="It becomes part of last_error.")] = None,
    meant: _ChangeFilters,
) -> None:
    """End held messages as failed, by id or by filter. They keep their reservations.

    Use it where the provider has them, or they are of no use any more.
    """
    _Change("drop", Status.HELD, {"reason": reason}).do(meant)


@dataclass(frozen=True)
class _Change:
    """One change to the messages with some ids, or to all that match, in batches.

    A message must have ``status``. ``wish`` is what the calls of the dispatcher get besides ids.
    Refused slots are also written by the clocks of ``zone``. ``also`` is a further effect, shown in
    the question that confirms the change.
    """

    verb: str
    status: Status
    wish: dict[str, Any] = field(default_factory=dict)
    zone: str | None = None
    also: str = ""

    @property
    def moves(self) -> bool:
        """Whether the filters may match a changed message again."""
        return self.verb == "reschedule"

    def do(self, meant: _ChangeFilters) -> None:
        filters = meant.wanted
        selection = Selection.of(filters)
        is_filtered = meant.every or selection != Selection()
        if meant.message_ids and is_filtered:
            raise InvalidValue("ID", "given together with a filter", "one of them")
        if selection.status not in (None, self.status):
            problem = f"this command does not apply to {selection.status} messages"
            raise InvalidValue("--status", problem, f"{self.status}, or no --status")
        if not meant.message_ids and not is_filtered:
            accepted = "ids, a filter such as --channel, or --all"
            raise InvalidValue("ID", "no message is named", accepted)
        filters["status"] = self.status
        with Dispatcher() as dispatcher:
            if meant.message_ids:
                code = self._by_ids(dispatcher, meant.message_ids)
            else:
                code = self._by_filter(dispatcher, filters, asks=not meant.yes)
        raise typer.Exit(code)

    def _by_ids(self, dispatcher: Dispatcher, message_ids: Sequence[str]) -> int:
        """Change each message, though others are refused; return the first refusal's code."""
        if len(message_ids) == 1:
            message = self._one(dispatcher, message_ids[0])
            output.tell(message, output.outcome_text(message, with_time=self.moves))
            return 0
        done: list[Message] = []
        codes: list[int] = []
        try:
            for message_id in message_ids:
                answer = self._answer(dispatcher, message_id)
                if isinstance(answer, Message):
                    done.append(answer)
                else:
                    say_error(answer)
                    codes.append(exit_code(answer))
        finally:
            lines = [output.outcome_text(message, with_time=self.moves) for message in done]
            output.tell(done, Text("\n").join(lines))
        return codes[0] if codes else 0

    def _by_filter(self, dispatcher: Dispatcher, filters: Wanted, *, asks: bool) -> int:
        """Change what matches, no more than was confirmed; return the first refusal's code."""
        matched = dispatcher.count(**filters)
        what = f"{matched:,} message{'' if matched == 1 else 's'}"
        if matched and asks:
            confirm(f"{self.verb} {what}{self.also}?")
        matching = dispatcher.select(oldest_first=True, **filters)
        ids = (message.id for message in islice(matching, matched))
        batch: list[UUID] = []
        answered, done, code = None, 0, 0
        reasons: Counter[str] = Counter()
        refusals: list[tuple[UUID, DispatcherError]] = []
        try:
            with terminated_like_interrupted(), bar() as shown:
                task = shown.add_task(self.verb, total=matched)
                while batch := list(islice(ids, _BATCH)):
                    for message_id, answer in zip(
                        batch, self._answers(dispatcher, batch), strict=True
                    ):
                        if isinstance(answer, Unavailable):
                            raise answer
                        if isinstance(answer, Message):
                            done += 1
                        else:
                            reasons[reason_of(answer)] += 1
                            if len(refusals) < _MOST_NAMED:
                                refusals.append((message_id, answer))
                        shown.update(task, completed=done + reasons.total())
                    answered, batch = batch[-1], []
        except (Unavailable, KeyboardInterrupt) as error:
            code = say_stopped(error, self._how_to_go_on(answered, batch))
        data = {
            "matched": matched,
            "done": done,
            "refused": dict(reasons.most_common()),
            "refusals": [{"id": refused_id, "error": str(error)} for refused_id, error in refusals],
            "complete": code == 0,
        }
        lines = [f"{self.verb}: {done:,} of {what} done"]
        lines += [f"  not done {count:,}: {reason}" for reason, count in reasons.most_common()]
        output.tell(data, "\n".join(lines))
        return code or next((exit_code(error) for _, error in refusals), 0)

    def _answers(self, dispatcher: Dispatcher, batch: Sequence[UUID]) -> Iterable[_Answer]:
        if change_many := getattr(dispatcher, f"{self.verb}_many", None):
            answers: list[_Answer] = change_many(batch, **self.wish)
            return answers
        return (self._answer(dispatcher, message_id) for message_id in batch)

    def _answer(self, dispatcher: Dispatcher, message_id: UUID | str) -> _Answer:
        try:
            return self._one(dispatcher, message_id)
        except Unavailable:
            raise
        except DispatcherError as error:
            return error

    def _one(self, dispatcher: Dispatcher, message_id: UUID | str) -> Message:
        with output.refused_in(self.zone):
            message: Message = getattr(dispatcher, self.verb)(message_id, **self.wish)
            return message

    def _how_to_go_on(self, answered: UUID | None, doubtful: Sequence[UUID]) -> str:
        if not self.moves:
            return f"Run it again: what was changed does not match {self.status} any more."
        rest = f"go on with --made-after {answered}" if answered else "run it again"
        if not doubtful:
            return f"Changed messages still match, so do not change them twice: {rest}."
        first, last = doubtful[0], doubtful[-1]
        behind = f"go on with --made-after {last}"
        return f"Look at {first}: if all up to {last} were changed, {behind}, else {rest}."

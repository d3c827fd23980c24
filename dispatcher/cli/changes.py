"""Commands that change accepted messages: cancel, reschedule, retry, release, drop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Annotated, Any
from uuid import UUID

import typer
from rich.markup import escape

from dispatcher.cli import output
from dispatcher.cli.app import AsJson, confirm, examples, exit_code, say_error
from dispatcher.cli.filters import FilterOptions, option, with_options
from dispatcher.cli.messages import ExpireAfter, Fold, Latest, SendAt, SendIn, Shift, length_of
from dispatcher.cli.progress import bar, say_stopped, terminated_like_interrupted
from dispatcher.client import Dispatcher
from dispatcher.errors import (
    DispatcherError,
    InvalidDraft,
    InvalidValue,
    ReservationsUnavailable,
    TooLate,
    Unavailable,
)
from dispatcher.message import Message, Status, reason_of
from dispatcher.selection import Selection, Wanted
from dispatcher.times import send_time

_BATCH = 500
_MOST_NAMED = 100
"""How many refused messages the summary of a change by filter names at most."""

_ChangeOne = Callable[[UUID | str], Message]
_ChangeMany = Callable[[Sequence[UUID]], Sequence[Message | DispatcherError]]

_ONE_TIME = "one of --send-at, --send-in and --later"
group = typer.Typer(rich_markup_mode="rich")


@dataclass(frozen=True, kw_only=True)
class _ChangeFilters(FilterOptions):
    """Options of every change: the messages that are meant, by id or by filter."""

    message_ids: Annotated[list[str] | None, typer.Argument(metavar="ID")] = None
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False
    every: Annotated[bool, typer.Option("--all", help="Without a filter: every message.")] = False
    as_json: AsJson = False


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


@group.command(
    epilog=examples(
        "dispatcher cancel 0199…",
        "dispatcher cancel --channel sms --from 2026-12-24T08:00Z --to 2026-12-24T09:00Z",
    )
)
@with_options
def cancel(meant: _ChangeFilters) -> None:
    """Cancel scheduled messages, by id or by filter; their quotas are free again at once."""
    with Dispatcher() as dispatcher:
        _Change(
            dispatcher,
            "cancel",
            Status.SCHEDULED,
            dispatcher.cancel,
            many=dispatcher.cancel_many,
        ).do(meant)


@group.command(
    epilog=examples(
        'dispatcher reschedule 0199… --send-in "2 hours" --on-conflict shift',
        'dispatcher reschedule --channel sms --overdue --later "1 hour" --on-conflict shift',
    )
)
@with_options
def reschedule(
    meant: _ZonedChangeFilters,
    send_at: SendAt = None,
    send_in: SendIn = None,
    later: Annotated[
        str | None, typer.Option(help='A length to add to the promised time: "2 hours".')
    ] = None,
    zone: Annotated[
        str | None, typer.Option(help="Zone of local times given here; default: each message's.")
    ] = None,
    set_zone: Annotated[
        str | None, typer.Option(help="Another zone for the messages, also for quiet hours.")
    ] = None,
    fold: Fold = None,
    on_conflict: Shift = "reject",
    latest: Latest = None,
    expires_at: Annotated[str | None, typer.Option(help="Another expiry.")] = None,
    expire_after: ExpireAfter = None,
) -> None:
    """Move scheduled messages to another time, by id or by filter; frees the old times at once.

    The new time must fit every quota without the message's old reservation. A message keeps its
    zone unless --set-zone gives it another.
    """
    if set_zone is not None:
        send_time.check_zone(set_zone)
    read_by = set_zone if zone is None else zone
    for field, given in (("send_at", send_at), ("latest", latest), ("expires_at", expires_at)):
        if given is not None and read_by is not None:
            send_time.parse(given, zone=read_by, fold=fold, field=field)
    if [send_at, send_in, later].count(None) != 2:  # noqa: PLR2004 - one of three
        raise InvalidDraft("send_at", "not exactly one time was given", _ONE_TIME)
    wish: dict[str, Any] = {
        "send_at": send_at,
        "send_in": length_of(send_in, "send_in"),
        "later": length_of(later, "later"),
        "zone": zone,
        "set_zone": set_zone,
        "fold": fold,
        "on_conflict": on_conflict,
        "latest": latest,
        "expires_at": expires_at,
        "expire_after": length_of(expire_after, "expire_after"),
    }
    with Dispatcher() as dispatcher:

        def move(message_id: UUID | str) -> Message:
            with output.refused_in(read_by):
                return dispatcher.reschedule(message_id, **wish)

        _Change(
            dispatcher,
            "reschedule",
            Status.SCHEDULED,
            move,
            many=lambda ids: dispatcher.reschedule_many(ids, **wish),
            still_matches=True,
            also=None if set_zone is None else f"set the zone to {set_zone}",
        ).do(meant)


@group.command(
    epilog=examples(
        "dispatcher retry 0199…", "dispatcher retry --channel email --from 2026-12-24T08:00Z --yes"
    )
)
@with_options
def retry(
    meant: _ChangeFilters,
    perhaps_sent: Annotated[
        bool,
        typer.Option(
            "--perhaps-sent", help="Also those with on_unknown=hold that may have been sent."
        ),
    ] = False,
) -> None:
    """Give failed messages further attempts, by id or by filter. They are due at once.

    They still have their reservations, so no quota refuses them; the limits apply.
    """
    with Dispatcher() as dispatcher:
        _Change(
            dispatcher,
            "retry",
            Status.FAILED,
            partial(dispatcher.retry, perhaps_sent=perhaps_sent),
            many=partial(dispatcher.retry_many, perhaps_sent=perhaps_sent),
        ).do(meant)


@group.command(epilog=examples("dispatcher release 0199…", "dispatcher release --channel sms"))
@with_options
def release(meant: _ChangeFilters) -> None:
    """Release held messages to be sent, perhaps for the second time, by id or by filter.

    They are due at once; a message past its expiry ends as expired.
    """
    with Dispatcher() as dispatcher:
        _Change(dispatcher, "release", Status.HELD, dispatcher.release).do(meant)


@group.command(epilog=examples("dispatcher drop 0199…", "dispatcher drop --recipient ada"))
@with_options
def drop(
    meant: _ChangeFilters,
    reason: Annotated[str | None, typer.Option(help="It becomes part of last_error.")] = None,
) -> None:
    """End held messages as failed, by id or by filter. They keep their reservations.

    Use it where the provider has them, or they are of no use any more.
    """
    with Dispatcher() as dispatcher:
        drop_one = partial(dispatcher.drop, reason=reason)
        _Change(dispatcher, "drop", Status.HELD, drop_one).do(meant)


class _Change:
    """One change to many messages: to those with some ids, or to all that match, in batches.

    ``verb`` names the change, ``status`` is the one that a message must have for it. ``one``
    changes one message; ``many`` changes a batch, where that is faster. With ``still_matches`` a
    changed message has that status again, so the same filters match it again. ``also`` is a
    further effect of the change, shown in the question that confirms it.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        verb: str,
        status: Status,
        one: _ChangeOne,
        *,
        many: _ChangeMany | None = None,
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
        self._refusals: list[tuple[UUID, DispatcherError]] = []

    def do(self, meant: _ChangeFilters) -> None:
        """Change the messages with these ids, or those that match, and print the result.

        Raises InvalidDraft, and InvalidValue for neither ids nor filters, for both together, and
        for another status.
        """
        wanted = meant.wanted
        said = Selection.of(wanted)
        if not meant.message_ids:
            if said.status not in (None, self._status):
                problem = f"this command does not apply to {said.status} messages"
                raise InvalidValue("--status", problem, f"{self._status}, or no --status")
            if said.is_everything and not meant.every:
                accepted = "ids, a filter such as --channel, or --all"
                raise InvalidValue("ID", "no message is named", accepted)
            wanted["status"] = self._status
            self._by_filter(wanted, meant)
        elif said.is_everything and not meant.every:
            self._by_ids(meant.message_ids, meant.as_json)
        else:
            raise InvalidValue("ID", "given together with a filter", "one of them")

    def _by_ids(self, message_ids: Sequence[str], as_json: bool) -> None:
        """Change each message; a refused one does not stop the others.

        Raises typer.Exit with the code of the first refusal.
        """
        done: list[Message] = []
        refusals: list[DispatcherError] = []
        try:
            for answer in self._answers(message_ids):
                if isinstance(answer, Message):
                    done.append(answer)
                else:
                    say_error(answer)
                    refusals.append(answer)
        finally:
            self._tell(done, refusals, as_object=len(message_ids) == 1, as_json=as_json)
        if refusals:
            raise typer.Exit(exit_code(refusals[0]))

    def _by_filter(self, wanted: Wanted, meant: _ChangeFilters) -> None:
        matched = self._dispatcher.count(**wanted)
        what = f"{matched:,} message{'' if matched == 1 else 's'}"
        if matched and not meant.yes:
            confirm(f"{self._verb} {what}{self._also}?")
        code = self._run(wanted, matched) if matched else 0
        first = next((exit_code(error) for _, error in self._refusals), 0)
        if meant.as_json:
            output.as_json(self._data(matched) | {"complete": code == 0})
        else:
            self._say(what)
        raise typer.Exit(code or first)

    def _run(self, wanted: Wanted, matched: int) -> int:
        """Change the messages in batches; return 0, or the exit code of what stopped it."""
        # No more than were confirmed: messages that begin to match meanwhile stay unchanged.
        matching = self._dispatcher.select(oldest_first=True, **wanted)
        ids = (each.id for each in islice(matching, matched))
        try:
            with terminated_like_interrupted(), bar() as shown:
                task = shown.add_task(self._verb, total=matched)
                while some := list(islice(ids, _BATCH)):
                    self._doubtful = some
                    answers = self._many(some)
                    self._note(some, answers)
                    shown.update(task, completed=self._done + self._refused.total())
                    for answer in answers:
                        if isinstance(answer, Unavailable):
                            raise answer
        except (Unavailable, KeyboardInterrupt) as error:
            if isinstance(error, ReservationsUnavailable):  # the batch was not changed
                self._doubtful = ()
            return say_stopped(error, self._how_to_go_on)
        return 0

    def _each(self, ids: Sequence[UUID]) -> list[Message | DispatcherError]:
        answers: list[Message | DispatcherError] = []
        try:
            for message_id in ids:
                answers.extend(self._answers([message_id]))
        except (Unavailable, KeyboardInterrupt):
            self._note(ids, answers)
            raise
        return answers

    def _answers(self, ids: Iterable[UUID | str]) -> Iterator[Message | DispatcherError]:
        """Change each message. Raises Unavailable."""
        for message_id in ids:
            try:
                yield self._one(message_id)
            except Unavailable:
                raise
            except DispatcherError as error:
                yield error

    def _note(self, ids: Sequence[UUID], answers: Sequence[Message | DispatcherError]) -> None:
        for message_id, answer in zip(ids, answers, strict=False):
            if isinstance(answer, Unavailable):
                continue
            if isinstance(answer, Message):
                self._done += 1
            else:
                self._refused[_reason(answer)] += 1
                if len(self._refusals) < _MOST_NAMED:
                    self._refusals.append((message_id, answer))
        if len(answers) == len(ids) and not any(isinstance(each, Unavailable) for each in answers):
            self._answered, self._doubtful = ids[-1], ()

    @property
    def _how_to_go_on(self) -> str:
        if not self._still_matches:
            return f"Run it again: what was changed does not match {self._status} any more."
        rest = f"go on with --made-after {self._answered}" if self._answered else "run it again"
        if not self._doubtful:
            return f"Changed messages still match, so do not change them twice: {rest}."
        first, last = self._doubtful[0], self._doubtful[-1]
        these = "it was" if first == last else f"they, up to {last}, were"
        behind = f"go on with --made-after {last}"
        return f"Look at {first}: if {these} changed, {behind}, else {rest}."

    def _tell(
        self,
        done: Sequence[Message],
        refusals: Sequence[DispatcherError],
        *,
        as_object: bool,
        as_json: bool,
    ) -> None:
        if as_json:
            data = [output.message_data(message) for message in done]
            if data or not as_object:
                output.as_json(data[0] if as_object else data)
            elif refusals:
                output.as_line(output.error_data(refusals[0]))
            return
        for message in done:
            text = output.outcome_text(message, with_time=self._verb == "reschedule")
            output.out.print(text, soft_wrap=True)

    def _data(self, matched: int) -> dict[str, Any]:
        return {
            "matched": matched,
            "done": self._done,
            "refused": dict(self._refused.most_common()),
            "refusals": [{"id": str(each), "error": str(error)} for each, error in self._refusals],
        }

    def _say(self, what: str) -> None:
        output.out.print(f"{self._verb}: {self._done:,} of {what} done")
        for reason, many in self._refused.most_common():
            output.out.print(f"  [yellow]not done[/] {many:,}: {escape(reason)}")


def _reason(error: DispatcherError) -> str:
    return f"already {error.status}" if isinstance(error, TooLate) else reason_of(error)

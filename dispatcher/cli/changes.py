"""Commands that change accepted messages: cancel, reschedule, retry, release, drop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Annotated, Any
from uuid import UUID

import typer
from rich.markup import escape

from dispatcher.cli import output
from dispatcher.cli.app import AsJson, confirm, examples, exit_code, say_error
from dispatcher.cli.filters import NOTHING, filtered, narrowed
from dispatcher.cli.messages import ExpireAfter, Fold, Latest, SendAt, SendIn, Shift
from dispatcher.cli.progress import INTERRUPTED, bar, terminated_like_interrupted
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
from dispatcher.quota import parse_length
from dispatcher.selection import Selection, Wanted
from dispatcher.times import send_time

_BATCH = 500
_MOST_NAMED = 100
"""How many refused messages the summary of a change by filter names at most."""

_ChangeOne = Callable[[UUID | str], Message]
_ChangeMany = Callable[[Sequence[Message]], Sequence[Message | DispatcherError]]

MessageIds = Annotated[list[str] | None, typer.Argument(metavar="ID")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Every = Annotated[bool, typer.Option("--all", help="Without a filter: every message.")]

_ONE_TIME = "one of --send-at, --send-in and --later"
_EXAMPLES = {
    "cancel": (
        "dispatcher cancel 0199…",
        "dispatcher cancel --channel sms --from 2026-12-24T08:00Z --to 2026-12-24T09:00Z",
    ),
    "reschedule": (
        'dispatcher reschedule 0199… --send-in "2 hours" --on-conflict shift',
        'dispatcher reschedule --channel sms --overdue --later "1 hour" --on-conflict shift',
    ),
    "retry": (
        "dispatcher retry 0199…",
        "dispatcher retry --channel email --from 2026-12-24T08:00Z --yes",
    ),
    "release": ("dispatcher release 0199…", "dispatcher release --channel sms"),
    "drop": ("dispatcher drop 0199…", "dispatcher drop --recipient ada"),
}


def register(app: typer.Typer) -> None:
    """Add these commands to ``app``."""
    for command in (cancel, reschedule, retry, release, drop):
        app.command(epilog=examples(*_EXAMPLES[command.__name__]))(filtered(command))


def cancel(
    message_ids: MessageIds = None,
    wanted: Wanted = NOTHING,
    yes: Yes = False,
    every: Every = False,
    as_json: AsJson = False,
) -> None:
    """Cancel scheduled messages, by id or by filter; their quotas are free again at once."""
    with Dispatcher() as dispatcher:
        _Change(
            dispatcher,
            "cancel",
            Status.SCHEDULED,
            dispatcher.cancel,
            many=lambda some: dispatcher.cancel_many([each.id for each in some]),
        ).do(message_ids, wanted, yes=yes, every=every, as_json=as_json)


def reschedule(
    message_ids: MessageIds = None,
    wanted: Wanted = NOTHING,
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
    yes: Yes = False,
    every: Every = False,
    as_json: AsJson = False,
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
        raise InvalidDraft("send_at", "none or several of the times given", _ONE_TIME)
    length = None if expire_after is None else parse_length(expire_after, "expire_after")
    wish: dict[str, Any] = {
        "send_at": send_at,
        "send_in": None if send_in is None else parse_length(send_in, "send_in"),
        "later": None if later is None else parse_length(later, "later"),
        "zone": zone,
        "set_zone": set_zone,
        "fold": fold,
        "on_conflict": on_conflict,
        "latest": latest,
        "expires_at": expires_at,
        "expire_after": length,
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
            many=lambda some: dispatcher.reschedule_many([each.id for each in some], **wish),
            still_matches=True,
            also=None if set_zone is None else f"set the zone to {set_zone}",
        ).do(message_ids, wanted, yes=yes, every=every, as_json=as_json)


def retry(
    message_ids: MessageIds = None,
    wanted: Wanted = NOTHING,
    perhaps_sent: Annotated[
        bool,
        typer.Option(
            "--perhaps-sent", help="Also those with on_unknown=hold that may have been sent."
        ),
    ] = False,
    yes: Yes = False,
    every: Every = False,
    as_json: AsJson = False,
) -> None:
    """Give failed messages further attempts, by id or by filter. They are due at once.

    They still have their reservations, so no quota refuses them; the limits apply.
    """
    with Dispatcher() as dispatcher:

        def again(message_id: UUID | str) -> Message:
            return dispatcher.retry(message_id, perhaps_sent=perhaps_sent)

        _Change(
            dispatcher,
            "retry",
            Status.FAILED,
            again,
            many=lambda some: dispatcher.retry_many(
                [each.id for each in some], perhaps_sent=perhaps_sent
            ),
        ).do(message_ids, wanted, yes=yes, every=every, as_json=as_json)


def release(
    message_ids: MessageIds = None,
    wanted: Wanted = NOTHING,
    yes: Yes = False,
    every: Every = False,
    as_json: AsJson = False,
) -> None:
    """Release held messages to be sent, perhaps for the second time, by id or by filter.

    They are due at once; a message past its expiry ends as expired.
    """
    with Dispatcher() as dispatcher:
        _Change(dispatcher, "release", Status.HELD, dispatcher.release).do(
            message_ids, wanted, yes=yes, every=every, as_json=as_json
        )


def drop(
    message_ids: MessageIds = None,
    wanted: Wanted = NOTHING,
    yes: Yes = False,
    every: Every = False,
    as_json: AsJson = False,
) -> None:
    """End held messages as failed, by id or by filter. They keep their reservations.

    Use it where the provider has them, or they are of no use any more.
    """
    with Dispatcher() as dispatcher:
        _Change(dispatcher, "drop", Status.HELD, dispatcher.drop).do(
            message_ids, wanted, yes=yes, every=every, as_json=as_json
        )


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

    def do(
        self,
        message_ids: Sequence[str] | None,
        wanted: Wanted,
        *,
        yes: bool,
        every: bool,
        as_json: bool,
    ) -> None:
        """Change the messages with these ids, or those that match, and print the result.

        Raises InvalidValue for neither ids nor filters, and for both together.
        """
        if not message_ids:
            self._by_filter(narrowed(wanted, self._status, every=every), yes, as_json)
        elif Selection.of(wanted).is_everything and not every:
            self._by_ids(message_ids, as_json)
        else:
            raise InvalidValue("ID", "given together with a filter", "one of them")

    def _by_ids(self, message_ids: Sequence[str], as_json: bool) -> None:
        """Change each message; a refused one does not stop the others.

        Raises typer.Exit with the code of the first refusal.
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
        first = next((exit_code(error) for _, error in self._refusals), 0)
        if as_json:
            output.as_json(self._data(matched) | {"complete": code == 0})
        else:
            self._say(what)
        raise typer.Exit(code or first)

    def _run(self, wanted: Wanted, matched: int) -> int:
        """Change the messages in batches; return 0, or the exit code of what stopped it."""
        # No more than were confirmed: messages that begin to match meanwhile stay unchanged.
        meant = islice(self._dispatcher.select(oldest_first=True, **wanted), matched)
        try:
            with terminated_like_interrupted(), bar() as shown:
                task = shown.add_task(self._verb, total=matched)
                while some := list(islice(meant, _BATCH)):
                    self._doubtful = [each.id for each in some]
                    answers = self._many(some)
                    self._note(some, answers)
                    shown.update(task, completed=self._done + self._refused.total())
                    for answer in answers:
                        if isinstance(answer, Unavailable):
                            raise answer
        except Unavailable as error:
            if isinstance(error, ReservationsUnavailable):  # the batch was not changed
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
                if len(self._refusals) < _MOST_NAMED:
                    self._refusals.append((message.id, answer))
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
            data = [output.message_data(message) for message in done]
            if data or not as_object:
                output.as_json(data[0] if as_object else data)
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

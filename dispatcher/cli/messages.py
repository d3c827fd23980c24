"""Commands for messages: submit, update, show, next-slot; the changes by id or by filter."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from operator import itemgetter
from typing import Annotated, Any, Literal
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
    say_warning,
    terminated_like_interrupted,
)
from dispatcher.cli.lists import FilterOptions, complete_channel, option, parameters_of
from dispatcher.client import Dispatcher, app_of
from dispatcher.errors import DispatcherError, InvalidDraft, InvalidValue, Unavailable
from dispatcher.message import (
    Attempt,
    Message,
    OnConflict,
    OnUnknown,
    Outcome,
    Status,
    read_json,
    reason_of,
    visible_text,
)
from dispatcher.selection import Selection, Wanted
from dispatcher.settings import Settings
from dispatcher.submission.reads import Story, coming

Zone = Annotated[str | None, typer.Option(help="Zone of local times, e.g. Europe/Berlin.")]
SendAt = Annotated[
    str | None, typer.Option(help="ISO 8601 with offset, or local time with --zone.")
]
SendIn = Annotated[str | None, typer.Option(help='From now: seconds, or e.g. "10 minutes".')]
Scopes = Annotated[
    list[str] | None,
    typer.Option("--count", metavar="KIND=NAME", help="A further scope it counts against."),
]
QuietHours = Annotated[
    str | None, typer.Option(help='Instead of the channel\'s: "21:00-08:00", or "none".')
]
SendWindow = Annotated[str | None, typer.Option(help='When it may be sent: "mon-fri 09:00-17:00".')]
Latest = Annotated[str | None, typer.Option(help="Latest slot for --on-conflict shift.")]
Shift = Annotated[
    OnConflict,
    typer.Option(help="When the time does not fit: reject, or shift to the next slot."),
]
ExpireAfter = Annotated[
    str | None, typer.Option(help='Not sent later than this after its time: "2 hours".')
]
Priority = Annotated[
    int | None, typer.Option(help="-100 to 100; larger first where a limit is short.")
]
Fold = Annotated[
    int | None, typer.Option(help="Which of two repeated local times: 0 first, 1 second.")
]

_TO = "dispatcher submit --channel sms --recipient +4915112345678"
_BATCH = 500
_MOST_NAMED = 100
"""How many refused messages the summary of a change by filter names at most."""
_OUTCOMES = {
    Outcome.SENT: "green",
    Outcome.TEMPORARY: "yellow",
    Outcome.PERMANENT: "red",
    Outcome.UNKNOWN: "magenta",
}


@dataclass(frozen=True, kw_only=True)
class Content:
    text: Annotated[str | None, typer.Option(help="Short for --body '{\"text\": …}'.")] = None
    body: Annotated[str | None, typer.Option(help="The content, a JSON object.")] = None
    template: Annotated[
        str | None, typer.Option(help="A template of the channel, instead of a body.")
    ] = None
    data: Annotated[str | None, typer.Option(help="For the template, a JSON object.")] = None

    def read(self) -> dict[str, Any]:
        body = None
        if self.template is None or self.text or self.body:
            if (self.text is None) == (self.body is None):
                problem = "neither or both of --text and --body given"
                raise InvalidDraft("body", problem, "one of them")
            body = {"text": self.text} if self.body is None else read_json("body", self.body)
        data = None if self.data is None else read_json("data", self.data)
        return {"body": body, "template": self.template, "data": data}


@dataclass(frozen=True, kw_only=True)
class DeliveryOptions:
    """What a message and a series have in common."""

    scope: Annotated[
        str | None, typer.Option(help="Whose capacity is counted; default: the recipient.")
    ] = None
    scopes: Scopes = None
    quiet_hours: QuietHours = None
    send_window: SendWindow = None
    on_unknown: Annotated[
        OnUnknown | None,
        typer.Option(help="After an attempt with an unknown outcome; default: the channel's."),
    ] = None
    expire_after: ExpireAfter = None
    status_url: Annotated[
        str | None, typer.Option(help="URL that receives its final status by POST.")
    ] = None
    campaign: Annotated[
        str | None, typer.Option(help="Label by which messages are found together.")
    ] = None
    priority: Priority = None
    quotas: Annotated[
        Literal["none"] | None, typer.Option(help="none: no quota counts or refuses it.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class _DraftOptions(DeliveryOptions):
    send_at: SendAt = None
    send_in: SendIn = None
    zone: Zone = None
    fold: Fold = None
    idempotency_key: Annotated[str | None, typer.Option("--key", help="Idempotency key.")] = None
    expires_at: Annotated[str | None, typer.Option(help="Not sent after this time.")] = None
    on_conflict: Shift = "reject"
    latest: Latest = None
    event: Annotated[
        str | None, typer.Option(help="The event that it reminds of, instead of a time.")
    ] = None
    offset: Annotated[
        str | None, typer.Option(help="From the event: '-24 hours', or '-1 day' by the calendar.")
    ] = None
    event_at: Annotated[
        str | None, typer.Option(help="When the event is, where it may be a new one.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class _SlotOptions:
    recipient: Annotated[str | None, typer.Option(help="For this recipient.")] = None
    scope: Annotated[str | None, typer.Option(help="For this scope.")] = None
    channel: Annotated[
        str | None,
        typer.Option(help="Apply this channel's quotas and quiet hours; default: no channel's."),
    ] = None
    scopes: Scopes = None
    quiet_hours: QuietHours = None
    send_window: SendWindow = None
    priority: Priority = None
    after: Annotated[str | None, typer.Option(help="At or after this time; default: now.")] = None
    zone: Zone = None
    fold: Fold = None


@command(
    f'{_TO} --text "See you at 9" --send-at 2026-12-24T08:30 --zone Europe/Berlin',
    f'{_TO} --text "Your code is 4711" --send-in "10 minutes" --on-conflict shift',
)
def submit(
    *,
    channel: Annotated[
        str, typer.Option(help="Channel of the settings.", autocompletion=complete_channel)
    ],
    recipient: Annotated[str, typer.Option(help="Address on that channel.")],
    content: Content,
    wish: _DraftOptions,
) -> None:
    """Accept a message for a future time."""
    with Dispatcher() as dispatcher, output.refused_in(wish.zone):
        message = dispatcher.submit(
            channel=channel, recipient=recipient, **content.read(), **parameters_of(wish)
        )
    _tell(message)


@command("dispatcher show 0199…", "dispatcher show 0199… --json | jq .attempts")
def show(message_id: Annotated[str, typer.Argument(metavar="ID")]) -> None:
    """Show one message: its fields, its reservations, each attempt, the next step."""
    with Dispatcher() as dispatcher:
        story = dispatcher.story(message_id)
    if output.as_json:
        output.write_json(story)
    else:
        _show(story)


@command(
    "dispatcher next-slot --recipient ada",
    "dispatcher next-slot --recipient ada --channel sms --after 2026-12-24T08:30Z",
)
def next_slot(*, wish: _SlotOptions) -> None:
    """Print the first time that fits every quota. Books nothing."""
    channel = wish.channel
    with Dispatcher() as dispatcher:
        slot = dispatcher.next_slot(**parameters_of(wish))
        left_out = None if channel else left_out_without_channel(dispatcher.settings)
        suppressed = None
        if wish.recipient is not None:
            suppressed = app_of(dispatcher).suppression_list.has(wish.recipient, channel)
    data = {"next_slot": slot} | ({} if suppressed is None else {"suppressed": suppressed})
    output.tell(data, output.local_text(slot, wish.zone))
    if output.as_json:
        return
    if suppressed:
        of = f"of {channel}" if channel else "of every channel"
        say_warning(f"the recipient has opted out {of}: a submit is refused, at any time")
    if left_out is not None:
        say_warning(left_out)


def _tell(message: Message) -> None:
    text = output.outcome_text(message, with_time=True)
    output.tell(message, text)


def left_out_without_channel(settings: Settings) -> str | None:
    channels = settings.channels.values()
    if not any(channel.quiet or channel.quotas or channel.recipient_quotas for channel in channels):
        return None
    return "without --channel the quotas and quiet hours of channels are not considered"


_Event = tuple[datetime | None, str | Text, str]
_Answer = Message | DispatcherError


def _show(story: Story) -> None:
    message, told = story.message, story.notified_status or "nothing yet"
    facts = output.message_data(message) | {
        "status": output.status_text(message.status),
        "body": json.dumps(message.body, ensure_ascii=False),
        "scopes": ", ".join(f"{kind}={name}" for kind, name in message.scopes.items()) or None,
        "notified": f"{told} to {story.status_host}" if story.status_host else None,
    }
    rows = [
        (_bold(name), value if isinstance(value, Text) else str(value))
        for name, value in facts.items()
        if value is not None
    ]
    output.out.print(output.listed(("", ""), rows, wraps=True))
    output.out.print("\nwhat happened", style="italic")
    events = [(Text(_moment(at), style="dim"), what, detail) for at, what, detail in _events(story)]
    output.out.print(output.listed(("", "", ""), events, wraps=True))
    what, at = coming(story)
    text = Text.assemble("\n", _bold("next:"), f" {visible_text(what)} ", (_moment(at), "dim"))
    text.rstrip()
    output.out.print(text, soft_wrap=True)


def _bold(text: str) -> Text:
    return Text(text, style="bold")


def _story_data(story: Story) -> dict[str, Any]:
    what, at = coming(story)
    return output.message_data(story.message) | {
        "attempts": story.attempts,
        "reservations": story.reservations,
        "next": {"what": what, "at": at},
        "pauses": story.pauses,
        "status_host": story.status_host,
        "notified_status": story.notified_status,
    }


output.shapes |= {
    Story: _story_data,
    Attempt: output.attributes("token", "started_at", "finished_at", "outcome", "error", "receipt"),
}


def _events(story: Story) -> Iterator[_Event]:
    message = story.message
    asked_at, enqueued_at = message.asked_at, message.enqueued_at
    yield message.created_at, "submitted", ""
    yield None, "asked for", _moment(asked_at or message.send_at)  # only the last one is stored
    if asked_at is not None:
        yield None, "shifted", f"from {_moment(asked_at)} to {_moment(message.send_at)}"
    if story.reservations is None:
        yield None, Text("reserved", style="yellow"), "Redis does not answer"
    for reservation in story.reservations or ():
        if reservation.at is not None:
            yield None, "reserved", f"{_moment(reservation.at)} of {reservation.scope}"
        elif message.status not in (Status.CANCELLED, Status.EXPIRED):
            yield None, Text("no reservation", style="dim"), f"of {reservation.scope} any more"
    tries: list[tuple[datetime, list[_Event]]] = [
        (attempt.started_at, _of_attempt(number, attempt))
        for number, attempt in enumerate(story.attempts, start=1)
    ]
    if enqueued_at is not None:
        tries.append((enqueued_at, [(enqueued_at, "enqueued", "to Celery")]))
    for _, events in sorted(tries, key=itemgetter(0)):
        yield from events
    last = story.attempts[-1].outcome if story.attempts else None
    if message.finished_at is not None and (message.status, last) != (Status.SENT, Outcome.SENT):
        yield message.finished_at, output.status_text(message.status), ""


def _of_attempt(number: int, attempt: Attempt) -> list[_Event]:
    began = (attempt.started_at, f"attempt {number}", "claimed by a worker")
    if attempt.outcome is None:
        return [began, (None, Text("under way", style="blue"), "")]
    outcome = Text(attempt.outcome.value, style=_OUTCOMES[attempt.outcome])
    return [began, (attempt.finished_at, outcome, attempt.error or attempt.receipt or "")]


def _moment(instant: datetime | None) -> str:
    if instant is None:
        return ""
    return f"{instant:%Y-%m-%d %H:%M:%S}.{instant.microsecond // 1_000:03} UTC"


@dataclass(frozen=True, kw_only=True)
class _ChangeFilters(FilterOptions):
    message_ids: Annotated[list[str] | None, typer.Argument(metavar="ID")] = None
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False
    every: Annotated[bool, typer.Option("--all", help="Without a filter: every message.")] = False


@dataclass(frozen=True, kw_only=True)
class _ZonedChangeFilters(_ChangeFilters):
    """The same where ``--zone`` has another meaning; it is the default of the filters' zone."""

    filter_zone: Annotated[
        str | None, option(help="Zone of --from and --to; default: the one of --zone.")
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
    'dispatcher update 0199… --text "See you at 10"',
    "dispatcher update --campaign summer --priority 50",
)
def update(*, content: Content, priority: Priority = None, meant: _ChangeFilters) -> None:
    """Give a scheduled message another body, or one rendered now from a template.

    Or give scheduled messages another priority, by id or by filter; they keep their reservations.
    """
    wish: dict[str, Any] = {"priority": priority}
    if priority is None or content != Content():
        if len(meant.message_ids or ()) != 1:
            raise InvalidDraft("ID", "not exactly one is given", "the message that gets the body")
        wish |= content.read()
    _Change("update", Status.SCHEDULED, wish, also=f" to priority {priority}").do(meant)


@command(
    "dispatcher retry 0199…", "dispatcher retry --channel email --from 2026-12-24T08:00Z --yes"
)
def retry(
    *,
    perhaps_sent: Annotated[
        bool,
        typer.Option(
            "--perhaps-sent", help="Also messages with on_unknown=hold that may have been sent."
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
        return self.verb in ("reschedule", "update")

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
        lines += [f"  {count:,} not done: {reason}" for reason, count in reasons.most_common()]
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

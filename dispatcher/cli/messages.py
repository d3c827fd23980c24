"""Commands for one message: submit, update, show, next-slot."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter
from typing import Annotated, Any, Literal

import typer
from rich.text import Text

from dispatcher.cli import output
from dispatcher.cli.app import command, say_warning
from dispatcher.cli.lists import complete_channel, parameters_of
from dispatcher.client import Dispatcher, app_of
from dispatcher.errors import InvalidDraft
from dispatcher.message import (
    Attempt,
    Message,
    OnConflict,
    OnUnknown,
    Outcome,
    Status,
    read_json,
    visible_text,
)
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
Fold = Annotated[
    int | None, typer.Option(help="Which of two repeated local times: 0 first, 1 second.")
]

_TO = "dispatcher submit --channel sms --recipient +4915112345678"
_OUTCOMES = {
    Outcome.SENT: "green",
    Outcome.TEMPORARY: "yellow",
    Outcome.PERMANENT: "red",
    Outcome.UNKNOWN: "magenta",
}


@dataclass(frozen=True, kw_only=True)
class _Content:
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
class _DraftOptions:
    send_at: SendAt = None
    send_in: SendIn = None
    zone: Zone = None
    fold: Fold = None
    scope: Annotated[
        str | None, typer.Option(help="Whose capacity is counted; default: the recipient.")
    ] = None
    idempotency_key: Annotated[str | None, typer.Option("--key", help="Idempotency key.")] = None
    expires_at: Annotated[str | None, typer.Option(help="Not sent after this time.")] = None
    on_conflict: Shift = "reject"
    latest: Latest = None
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
    quotas: Annotated[
        Literal["none"] | None, typer.Option(help="none: no quota counts or refuses it.")
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
    content: _Content,
    wish: _DraftOptions,
) -> None:
    """Accept a message for a future time."""
    with Dispatcher() as dispatcher, output.refused_in(wish.zone):
        message = dispatcher.submit(
            channel=channel, recipient=recipient, **content.read(), **parameters_of(wish)
        )
    _tell(message)


@command('dispatcher update 0199… --text "See you at 10"')
def update(
    *,
    message_id: Annotated[str, typer.Argument(metavar="ID")],
    content: _Content,
) -> None:
    """Give a scheduled message another body, or that of a template, rendered now."""
    with Dispatcher() as dispatcher:
        message = dispatcher.update(message_id, **content.read())
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

"""Commands for messages: submit, show, list, held, update, next-slot."""

from __future__ import annotations

import json
from typing import Annotated, Any, cast

import typer
from rich.markup import escape

from dispatcher.cli import output, story
from dispatcher.cli.app import AsJson, examples
from dispatcher.cli.filters import NOTHING, complete_channel, filtered, scopes_of
from dispatcher.client import Dispatcher
from dispatcher.errors import InvalidDraft
from dispatcher.message import Message, OnConflict, OnUnknown
from dispatcher.quota import parse_length
from dispatcher.selection import Wanted

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
Text = Annotated[str | None, typer.Option(help="Short for --body '{\"text\": …}'.")]
BodyText = Annotated[str | None, typer.Option("--body", help="The content, a JSON object.")]
TemplateName = Annotated[
    str | None, typer.Option("--template", help="A template of the channel, instead of a body.")
]
DataText = Annotated[str | None, typer.Option("--data", help="For the template, a JSON object.")]
MessageId = Annotated[str, typer.Argument(metavar="ID")]
Fold = Annotated[
    int | None, typer.Option(help="Which of two repeated local times: 0 first, 1 second.")
]

_TO = "dispatcher submit --channel sms --recipient +4915112345678"
_SUBMIT = examples(
    f'{_TO} --text "See you at 9" --send-at 2026-12-24T08:30 --zone Europe/Berlin',
    f'{_TO} --text "Your code is 4711" --send-in "10 minutes" --on-conflict shift',
)
_SHOW = examples("dispatcher show 0199…", "dispatcher show 0199… --json | jq .attempts")
_LIST = examples(
    "dispatcher list --status failed --channel email",
    "dispatcher list --overdue",
    "dispatcher list --from 2026-12-24T00:00 --to 2026-12-25T00:00 --zone Europe/Berlin",
    "dispatcher list --recipient ada --json | jq -r .id",
)
_NEXT_SLOT = examples(
    "dispatcher next-slot --recipient ada",
    "dispatcher next-slot --recipient ada --channel sms --after 2026-12-24T08:30Z",
)


def register(app: typer.Typer) -> None:
    """Add these commands to ``app``."""
    app.command(epilog=_SUBMIT)(submit)
    app.command("show", epilog=_SHOW)(show_message)
    app.command("list", epilog=_LIST)(filtered(list_messages))
    app.command(epilog=examples("dispatcher held", "dispatcher held --json"))(held)
    app.command(epilog=examples('dispatcher update 0199… --text "See you at 10"'))(update)
    app.command("next-slot", epilog=_NEXT_SLOT)(next_slot)


def submit(
    channel: Annotated[
        str, typer.Option(help="Channel of the settings.", autocompletion=complete_channel)
    ],
    recipient: Annotated[str, typer.Option(help="Address on that channel.")],
    text: Text = None,
    body: BodyText = None,
    template: TemplateName = None,
    data: DataText = None,
    send_at: SendAt = None,
    send_in: SendIn = None,
    zone: Zone = None,
    fold: Fold = None,
    scope: Annotated[
        str | None, typer.Option(help="Whose capacity is counted; default: the recipient.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="Idempotency key.")] = None,
    expires_at: Annotated[str | None, typer.Option(help="Not sent after this time.")] = None,
    on_conflict: Shift = "reject",
    latest: Latest = None,
    counts: Scopes = None,
    quiet_hours: QuietHours = None,
    send_window: SendWindow = None,
    on_unknown: Annotated[
        OnUnknown | None,
        typer.Option(help="After a try with an unknown outcome; default: the channel's."),
    ] = None,
    expire_after: ExpireAfter = None,
    status_url: Annotated[
        str | None, typer.Option(help="URL that receives its final status by POST.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Accept a message for a future time."""
    with Dispatcher() as dispatcher, output.refused_in(zone):
        message = dispatcher.submit(
            channel=channel,
            recipient=recipient,
            body=_body(text, body) if template is None or text or body else None,
            template=template,
            data=None if data is None else _json_object("data", data),
            send_at=send_at,
            send_in=parse_length(send_in, "send_in") if send_in is not None else None,
            zone=zone,
            fold=fold,
            scope=scope,
            idempotency_key=key,
            expires_at=expires_at,
            on_conflict=on_conflict,
            latest=latest,
            scopes=scopes_of(counts),
            quiet_hours=quiet_hours,
            send_window=send_window,
            on_unknown=on_unknown,
            expire_after=parse_length(expire_after, "expire_after")
            if expire_after is not None
            else None,
            status_url=status_url,
        )
    _say(message, as_json=as_json)


def update(
    message_id: MessageId,
    text: Text = None,
    body: BodyText = None,
    template: TemplateName = None,
    data: DataText = None,
    as_json: AsJson = False,
) -> None:
    """Give a scheduled message another body, or that of a template, rendered now."""
    with Dispatcher() as dispatcher:
        message = dispatcher.update(
            message_id,
            body=_body(text, body) if template is None or text or body else None,
            template=template,
            data=None if data is None else _json_object("data", data),
        )
    _say(message, as_json=as_json)


def show_message(message_id: MessageId, as_json: AsJson = False) -> None:
    """Show one message: its fields, its reservations, each attempt, the next step."""
    with Dispatcher() as dispatcher:
        found = dispatcher.story(message_id)
    if as_json:
        output.as_json(story.story_data(found))
    else:
        story.say(found)


def list_messages(
    wanted: Wanted = NOTHING,
    limit: Annotated[int, typer.Option("--limit", "-n", help="How many, newest first.")] = 50,
    after: Annotated[str | None, typer.Option(metavar="ID", help="Begin after this one.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, a line each.")] = False,
) -> None:
    """List messages, newest first."""
    with Dispatcher() as dispatcher:
        page = dispatcher.list(limit=limit, after=after, **wanted)
    if as_json:
        for message in page.messages:
            output.as_line(output.message_data(message))
    elif page.messages:
        output.out.print(output.message_table(page.messages, wanted.get("zone")))
        if page.after is not None:
            output.out.print(f"[dim]there are more: --after {page.after}[/]")
    else:
        output.out.print("no messages")


def held(
    limit: Annotated[int, typer.Option("--limit", "-n", help="How many, oldest first.")] = 50,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, a line each.")] = False,
) -> None:
    """List held messages, oldest first: the outcome of their last attempt is unknown."""
    with Dispatcher() as dispatcher:
        found = dispatcher.held(limit=limit)
    if as_json:
        for message in found:
            output.as_line(output.message_data(message))
    elif found:
        output.out.print(output.held_table(found))
    else:
        output.out.print("no messages are held")


def next_slot(
    recipient: Annotated[str | None, typer.Option(help="For this recipient.")] = None,
    scope: Annotated[str | None, typer.Option(help="For this scope.")] = None,
    channel: Annotated[
        str | None, typer.Option(help="With the quotas and hours of this channel.")
    ] = None,
    counts: Scopes = None,
    quiet_hours: QuietHours = None,
    send_window: SendWindow = None,
    after: Annotated[str | None, typer.Option(help="At or after this time; default: now.")] = None,
    zone: Zone = None,
    fold: Fold = None,
    as_json: AsJson = False,
) -> None:
    """Print the first time that fits every quota. Books nothing."""
    with Dispatcher() as dispatcher:
        slot = dispatcher.next_slot(
            recipient=recipient,
            scope=scope,
            channel=channel,
            scopes=scopes_of(counts),
            quiet_hours=quiet_hours,
            send_window=send_window,
            after=after,
            zone=zone,
            fold=fold,
        )
    if as_json:
        output.as_json({"next_slot": output.iso(slot)})
    else:
        output.out.print(escape(output.local_text(slot, zone)))


def _say(message: Message, *, as_json: bool) -> None:
    if as_json:
        output.as_json(output.message_data(message))
    else:
        output.out.print(output.outcome_text(message, with_time=True), soft_wrap=True)


def _body(text: str | None, body: str | None) -> dict[str, Any]:
    if (text is None) == (body is None):
        raise InvalidDraft("body", "neither or both of --text and --body given", "one of them")
    return {"text": text} if body is None else _json_object("body", body)


def _json_object(name: str, text: str) -> dict[str, Any]:
    try:
        return cast("dict[str, Any]", json.loads(text))
    except (ValueError, RecursionError):
        raise InvalidDraft(name, "is no JSON", "a JSON object") from None

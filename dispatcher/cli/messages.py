"""Commands for those who submit: submit, show, list, cancel, next-slot."""

from __future__ import annotations

import json
from typing import Annotated, Any, cast

import typer
from rich.markup import escape

from dispatcher.cli import show
from dispatcher.client import Dispatcher
from dispatcher.errors import InvalidDraft
from dispatcher.message import OnConflict, Status
from dispatcher.quota import parse_length

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Zone = Annotated[str | None, typer.Option(help="Zone of local times, e.g. Europe/Berlin.")]
Fold = Annotated[
    int | None, typer.Option(help="Which of two repeated local times: 0 first, 1 second.")
]


def register(app: typer.Typer) -> None:
    """Add these commands to ``app``."""
    app.command()(submit)
    app.command("show")(show_message)
    app.command("list")(list_messages)
    app.command()(cancel)
    app.command("next-slot")(next_slot)


def submit(
    channel: Annotated[str, typer.Option(help="Channel of the settings.")],
    recipient: Annotated[str, typer.Option(help="Address on that channel.")],
    text: Annotated[str | None, typer.Option(help="Short for --body '{\"text\": …}'.")] = None,
    body: Annotated[str | None, typer.Option(help="The content, a JSON object.")] = None,
    send_at: Annotated[
        str | None, typer.Option(help="ISO 8601 with offset, or local time with --zone.")
    ] = None,
    send_in: Annotated[
        str | None, typer.Option(help='From now: seconds, or e.g. "10 minutes".')
    ] = None,
    zone: Zone = None,
    fold: Fold = None,
    scope: Annotated[
        str | None, typer.Option(help="Whose capacity is counted; default: the recipient.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="Idempotency key.")] = None,
    expires_at: Annotated[str | None, typer.Option(help="Not sent after this time.")] = None,
    on_conflict: Annotated[
        OnConflict, typer.Option(help="When a quota is full: reject, or shift to the next slot.")
    ] = "reject",
    latest: Annotated[str | None, typer.Option(help="Latest slot for --on-conflict shift.")] = None,
    as_json: AsJson = False,
) -> None:
    """Accept a message for a future time.

    Example: dispatcher submit --channel sms --recipient +4915112345678 --text "See you at 9"
    --send-at 2026-12-24T08:30 --zone Europe/Berlin
    """
    with Dispatcher() as dispatcher:
        message = dispatcher.submit(
            channel=channel,
            recipient=recipient,
            body=_body(text, body),
            send_at=send_at,
            send_in=parse_length(send_in) if send_in is not None else None,
            zone=zone,
            fold=fold,
            scope=scope,
            idempotency_key=key,
            expires_at=expires_at,
            on_conflict=on_conflict,
            latest=latest,
        )
    if as_json:
        show.as_json(show.message_data(message))
    else:
        show.out.print(f"{message.id} is {show.status_text(message.status)}", end=" ")
        show.out.print(f"for {message.send_at.isoformat()}")


def show_message(
    message_id: Annotated[str, typer.Argument(metavar="ID")], as_json: AsJson = False
) -> None:
    """Tell everything about one message, its attempts included."""
    with Dispatcher() as dispatcher:
        message = dispatcher.get(message_id)
        attempts = dispatcher.attempts(message.id)
    if as_json:
        data = show.message_data(message)
        show.as_json(data | {"attempts": [show.attempt_data(each) for each in attempts]})
    else:
        show.out.print(show.story(message, attempts))


def list_messages(
    status: Annotated[Status | None, typer.Option(help="Only of this status.")] = None,
    recipient: Annotated[str | None, typer.Option(help="Only to this recipient.")] = None,
    channel: Annotated[str | None, typer.Option(help="Only on this channel.")] = None,
    at_most: Annotated[int, typer.Option(help="How many, newest first.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List messages, newest first."""
    with Dispatcher() as dispatcher:
        found = dispatcher.find(
            status=status, recipient=recipient, channel=channel, at_most=at_most
        )
    if as_json:
        show.as_json([show.message_data(message) for message in found])
    elif found:
        show.out.print(show.message_table(found))
    else:
        show.out.print("no messages")


def cancel(
    message_id: Annotated[str, typer.Argument(metavar="ID")], as_json: AsJson = False
) -> None:
    """Cancel a scheduled message; its quota is free again at once."""
    with Dispatcher() as dispatcher:
        message = dispatcher.cancel(message_id)
    if as_json:
        show.as_json(show.message_data(message))
    else:
        show.out.print(f"{message.id} is {show.status_text(message.status)}")


def next_slot(
    recipient: Annotated[str | None, typer.Option(help="For this recipient.")] = None,
    scope: Annotated[str | None, typer.Option(help="For this scope.")] = None,
    after: Annotated[str | None, typer.Option(help="At or after this time; default: now.")] = None,
    zone: Zone = None,
    fold: Fold = None,
    as_json: AsJson = False,
) -> None:
    """Tell the first time that fits every quota. Books nothing."""
    with Dispatcher() as dispatcher:
        slot = dispatcher.next_slot(
            recipient=recipient, scope=scope, after=after, zone=zone, fold=fold
        )
    if as_json:
        show.as_json({"next_slot": slot.isoformat()})
    else:
        show.out.print(escape(slot.isoformat()))


def _body(text: str | None, body: str | None) -> dict[str, Any]:
    if (text is None) == (body is None):
        raise InvalidDraft("body", "neither or both of --text and --body given", "one of them")
    if body is None:
        return {"text": text}
    try:
        return cast("dict[str, Any]", json.loads(body))
    except (ValueError, RecursionError):
        raise InvalidDraft("body", "is no JSON", "a JSON object") from None

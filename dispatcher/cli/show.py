"""``dispatcher show``: all about one message."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Annotated, Any, NamedTuple

import typer
from rich.markup import escape

from dispatcher.cli import output
from dispatcher.cli.app import AsJson, command
from dispatcher.client import Dispatcher
from dispatcher.message import Attempt, Outcome, Status
from dispatcher.submission import Story, coming

_OUTCOMES = {
    Outcome.SENT: "green",
    Outcome.TEMPORARY: "yellow",
    Outcome.PERMANENT: "red",
    Outcome.UNKNOWN: "magenta",
}


class _Event(NamedTuple):
    at: datetime | None
    what: str
    detail: str = ""


@command("dispatcher show 0199…", "dispatcher show 0199… --json | jq .attempts", name="show")
def show_message(
    message_id: Annotated[str, typer.Argument(metavar="ID")], as_json: AsJson = False
) -> None:
    """Show one message: its fields, its reservations, each attempt, the next step."""
    with Dispatcher() as dispatcher:
        found = dispatcher.story(message_id)
    if as_json:
        output.as_object(_data(found))
    else:
        _say(found)


def _say(story: Story) -> None:
    facts: list[tuple[str, str]] = []
    for name, value in output.message_data(story.message).items():
        if value is not None:
            text = str(value)
            if name == "body":
                text = json.dumps(value, ensure_ascii=False)
            elif name == "scopes":
                text = ", ".join(f"{kind}={scope}" for kind, scope in value.items())
            style = output.status_text(story.message.status)
            shown = style if name == "status" else output.as_it_is(text)
            facts.append((f"[bold]{name}[/]", shown))
    if story.status_host is not None:
        notified = story.notified_status
        shown = "nothing yet" if notified is None else output.status_text(notified)
        facts.append(("[bold]notified[/]", f"{shown} to {escape(story.status_host)}"))
    output.out.print(output.described(facts))
    output.out.print("\n[italic]what happened[/]")
    events = [
        (f"[dim]{_moment(event.at)}[/]", event.what, output.as_it_is(event.detail))
        for event in _events(story)
    ]
    output.out.print(output.described(events))
    what, at = coming(story)
    output.out.print(f"\n[bold]next:[/] {escape(what)}", soft_wrap=True, end="")
    output.out.print(f" [dim]{_moment(at)}[/]" if at else "")


def _data(story: Story) -> dict[str, Any]:
    what, at = coming(story)
    attempts = [output.plain(each) for each in story.attempts]
    for each in attempts:
        del each["message_id"]
    return output.message_data(story.message) | {
        "attempts": attempts,
        "reservations": story.reservations,
        "next": {"what": what, "at": at},
        "pauses": story.pauses,
        "status_host": story.status_host,
        "notified_status": story.notified_status,
    }


def _events(story: Story) -> list[_Event]:
    message = story.message
    asked_at = message.asked_at
    # Only the last time asked for is stored.
    events = [
        _Event(message.created_at, "submitted"),
        _Event(None, "asked for", _moment(asked_at or message.send_at)),
    ]
    if asked_at is not None:
        events.append(
            _Event(None, "shifted", f"from {_moment(asked_at)} to {_moment(message.send_at)}")
        )
    if story.reservations is None:
        events.append(_Event(None, "[yellow]reserved[/]", "Redis does not answer"))
    for each in story.reservations or ():
        if each.at is not None:
            events.append(_Event(None, "reserved", f"{_moment(each.at)} of {each.scope}"))
        elif message.status not in (Status.CANCELLED, Status.EXPIRED):
            events.append(_Event(None, "[dim]no reservation[/]", f"of {each.scope} any more"))
    enqueued_at = message.enqueued_at
    for number, attempt in enumerate(story.attempts, start=1):
        if enqueued_at is not None and enqueued_at <= attempt.started_at:
            events.append(_enqueued(enqueued_at))
            enqueued_at = None
        events += _of_attempt(number, attempt)
    if enqueued_at is not None:
        events.append(_enqueued(enqueued_at))
    last = story.attempts[-1].outcome if story.attempts else None
    if message.finished_at is not None and (message.status, last) != (Status.SENT, Outcome.SENT):
        events.append(_Event(message.finished_at, output.status_text(message.status)))
    return events


def _enqueued(at: datetime) -> _Event:
    return _Event(at, "enqueued", "to Celery")


def _of_attempt(number: int, attempt: Attempt) -> list[_Event]:
    began = _Event(attempt.started_at, f"attempt {number}", "claimed by a worker")
    if attempt.outcome is None:
        return [began, _Event(None, "[blue]under way[/]")]
    word = f"[{_OUTCOMES[attempt.outcome]}]{attempt.outcome.value}[/]"
    return [began, _Event(attempt.finished_at, word, attempt.error or attempt.receipt or "")]


def _moment(instant: datetime | None) -> str:
    if instant is None:
        return ""
    return f"{instant:%Y-%m-%d %H:%M:%S}.{instant.microsecond // 1_000:03} UTC"

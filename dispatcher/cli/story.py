"""Output of ``dispatcher show``: all about one message, as text and as JSON."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, NamedTuple

from rich.markup import escape
from rich.table import Table

from dispatcher.cli import output
from dispatcher.message import Attempt, Outcome, Status
from dispatcher.submission import Story

_OUTCOMES = {
    Outcome.SENT: "green",
    Outcome.TEMPORARY: "yellow",
    Outcome.PERMANENT: "red",
    Outcome.UNKNOWN: "magenta",
}


class _Entry(NamedTuple):
    at: datetime | None
    what: str
    detail: str = ""


def say(story: Story) -> None:
    """Print the fields of a message, then its past, then its next step."""
    facts = Table(box=None, show_header=False)
    facts.add_column(style="bold")
    facts.add_column(overflow="fold")
    for name, value in output.message_data(story.message).items():
        if value is not None:
            text = json.dumps(value, ensure_ascii=False) if name == "body" else str(value)
            style = output.status_text(story.message.status)
            facts.add_row(name, style if name == "status" else output.as_it_is(text))
    if story.status_host is not None:
        told = "nothing yet" if story.told is None else output.status_text(story.told)
        facts.add_row("told", f"{told} to {escape(story.status_host)}")
    output.out.print(facts)
    events = Table(title="\nwhat happened", title_justify="left", box=None, show_header=False)
    events.add_column(no_wrap=True, style="dim")
    events.add_column(no_wrap=True)
    events.add_column(overflow="fold")
    for event in _events(story):
        events.add_row(_moment(event.at), event.what, output.as_it_is(event.detail))
    output.out.print(events)
    what, at = coming(story)
    output.out.print(f"\n[bold]next:[/] {escape(what)}", soft_wrap=True, end="")
    output.out.print(f" [dim]{_moment(at)}[/]" if at else "")


def story_data(story: Story) -> dict[str, Any]:
    """Return a story as plain JSON values."""
    what, at = coming(story)
    places = story.reservations
    return output.message_data(story.message) | {
        "attempts": [output.attempt_data(each) for each in story.attempts],
        "reservations": None
        if places is None
        else [{"scope": each.scope, "at": output.iso(each.at)} for each in places],
        "next": {"what": what, "at": output.iso(at)},
        "status_host": story.status_host,
        "told": story.told.value if story.told else None,
    }


def coming(story: Story) -> tuple[str, datetime | None]:
    """Return the next step of a message, and its time; None where that is unknown."""
    message = story.message
    match message.status:
        case Status.SCHEDULED if story.is_enqueued:
            return "it is enqueued; it is due at", message.next_attempt_at
        case Status.SCHEDULED:
            return "the sweep enqueues it at", story.enqueue_at
        case Status.SENDING:
            then = "is held" if message.on_unknown == "hold" else "is tried again"
            return (
                f"a worker is sending it; without a recorded outcome it {then} at",
                story.claim_expires_at,
            )
        case Status.HELD:
            return "a person decides: dispatcher release or dispatcher drop", None
        case Status.FAILED:
            return "dispatcher retry gives it further attempts; else it is deleted after", (
                story.deleted_at
            )
        case _:
            return "it is deleted after", story.deleted_at


def _events(story: Story) -> list[_Entry]:
    message = story.message
    asked = message.asked_at
    # Only the last time asked for is stored.
    events = [
        _Entry(message.created_at, "submitted"),
        _Entry(None, "asked for", _moment(asked or message.send_at)),
    ]
    if asked is not None:
        events.append(
            _Entry(None, "shifted", f"from {_moment(asked)} to {_moment(message.send_at)}")
        )
    if story.reservations is None:
        events.append(_Entry(None, "[yellow]reserved[/]", "Redis does not answer"))
    for each in story.reservations or ():
        if each.at is not None:
            events.append(_Entry(None, "reserved", f"{_moment(each.at)} of {each.scope}"))
        elif message.status not in (Status.CANCELLED, Status.EXPIRED):
            events.append(_Entry(None, "[dim]no reservation[/]", f"of {each.scope} any more"))
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
        events.append(_Entry(message.finished_at, output.status_text(message.status)))
    return events


def _enqueued(at: datetime) -> _Entry:
    return _Entry(at, "enqueued", "to Celery")


def _of_attempt(number: int, attempt: Attempt) -> list[_Entry]:
    began = _Entry(attempt.started_at, f"attempt {number}", "claimed by a worker")
    if attempt.outcome is None:
        return [began, _Entry(None, "[blue]under way[/]")]
    word = f"[{_OUTCOMES[attempt.outcome]}]{attempt.outcome.value}[/]"
    return [began, _Entry(attempt.finished_at, word, attempt.error or attempt.receipt or "")]


def _moment(instant: datetime | None) -> str:
    if instant is None:
        return ""
    return f"{instant:%Y-%m-%d %H:%M:%S}.{instant.microsecond // 1_000:03} UTC"

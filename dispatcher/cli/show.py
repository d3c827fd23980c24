"""How messages look: as tables for people, as JSON for programs."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dispatcher.errors import DispatcherError, NoPlace
from dispatcher.message import Attempt, Message, Status
from dispatcher.zones import rules

_STYLES = {
    Status.SCHEDULED: "cyan",
    Status.SENDING: "blue",
    Status.SENT: "green",
    Status.FAILED: "red",
    Status.EXPIRED: "yellow",
    Status.CANCELLED: "dim",
    Status.HELD: "magenta",
}

_PIPED_WIDTH = 160
"""Columns where no terminal says how many there are: enough that no word is cut in two."""


def _width() -> int | None:
    """Return the columns of a table; None where the terminal, or COLUMNS, says it."""
    return None if sys.stdout.isatty() or "COLUMNS" in os.environ else _PIPED_WIDTH


out = Console(highlight=False, width=_width())


_OBEYED = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""What a terminal may obey instead of showing it: control characters, and what turns the text."""


def as_it_is(text: str) -> str:
    """Return text of others for a table: no markup is read in it, and no terminal obeys it."""
    return escape(_OBEYED.sub(_visible, text))


def _visible(found: re.Match[str]) -> str:
    """Write a character as JSON does."""
    return f"\\u{ord(found[0]):04x}"


written: list[str] = []
"""What was written as JSON by this run of a command: nothing, or the beginning of it."""


def as_json(value: Any) -> None:
    """Write one JSON value to standard output."""
    _write(json.dumps(value, ensure_ascii=False, indent=2))


def as_line(value: Any) -> None:
    """Write one JSON value on a line of its own to standard output."""
    _write(json.dumps(value, ensure_ascii=False))


def _write(text: str) -> None:
    if not written:
        written.append(text[:1])
    print(plain_json(text))  # noqa: T201 - it is the output


def plain_json(text: str) -> str:
    """Return JSON that says the same, and in which no terminal finds anything to obey."""
    return "\n".join(_OBEYED.sub(_visible, line) for line in text.split("\n"))


def error_data(error: DispatcherError) -> dict[str, Any]:
    """Return an error as plain JSON values: its kind, its sentence and what it carries."""
    carried = {name: _plain(each) for name, each in vars(error).items() if name[0] != "_"}
    return {"error": type(error).__name__, "text": str(error)} | carried


def _plain(value: object) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value if isinstance(value, str | int | float | None) else str(value)


def outcome_text(message: Message, *, with_time: bool = False) -> str:
    """Return what a message is now, in a line; its time by the clocks of its zone."""
    text = f"{message.id} is {status_text(message.status)}"
    if not with_time:
        return text
    text += f" for {local_text(message.send_at, message.zone)}"
    asked_at = message.asked_at
    return (
        text if asked_at is None else f"{text}; asked for was {local_text(asked_at, message.zone)}"
    )


def local_text(instant: datetime, zone: str | None) -> str:
    """Return an instant by the clocks of a zone, where there is one."""
    return (instant if zone is None else instant.astimezone(rules(zone))).isoformat()


@contextmanager
def refused_in(zone: str | None) -> Iterator[None]:
    """Let a refusal name its slot by the clocks that the time was given by, too."""
    try:
        yield
    except NoPlace as refused:
        if zone is not None:
            local = local_text(refused.next_slot, zone)
            refused.add_note(f"by the clocks of {zone} that is {local}")
        raise


def message_data(message: Message) -> dict[str, Any]:
    """Return a message as plain JSON values, its body included."""
    return {
        "id": str(message.id),
        "status": message.status.value,
        "channel": message.channel,
        "recipient": message.recipient,
        "scope": message.scope,
        "body": dict(message.body),
        "send_at": message.send_at.isoformat(),
        "next_attempt_at": message.next_attempt_at.isoformat(),
        "expires_at": iso(message.expires_at),
        "attempt_count": message.attempt_count,
        "max_attempts": message.max_attempts,
        "idempotency_key": message.idempotency_key,
        "created_at": message.created_at.isoformat(),
        "finished_at": iso(message.finished_at),
        "last_error": message.last_error,
        "scopes": dict(message.scopes) or None,
        "zone": message.zone,
        "quiet_hours": message.quiet_hours,
        "on_unknown": message.on_unknown,
        "expire_after": message.expire_after.total_seconds() if message.expire_after else None,
        "asked_at": iso(message.asked_at),
        "trace": message.trace,
        "enqueued_at": iso(message.enqueued_at),
    }


def attempt_data(attempt: Attempt) -> dict[str, Any]:
    """Return an attempt as plain JSON values."""
    return {
        "token": attempt.token,
        "started_at": attempt.started_at.isoformat(),
        "finished_at": iso(attempt.finished_at),
        "outcome": attempt.outcome.value if attempt.outcome else None,
        "error": attempt.error,
        "receipt": attempt.receipt,
    }


def message_table(messages: Sequence[Message]) -> Table:
    """Return a table of messages, one a row, without their bodies."""
    table = Table(box=None, header_style="bold", padding=(0, 1, 0, 0))
    for heading in ("id", "status", "channel", "recipient", "send at (UTC)"):
        table.add_column(heading, no_wrap=heading != "recipient", overflow="fold")
    for message in messages:
        table.add_row(
            str(message.id),
            status_text(message.status),
            escape(message.channel),
            escape(message.recipient),
            minute_text(message.send_at),
        )
    return table


def held_table(messages: Sequence[Message]) -> Table:
    """Return a table of held messages, one a row, without their bodies."""
    table = Table(box=None, header_style="bold", padding=(0, 1, 0, 0))
    for heading in ("id", "channel", "recipient", "tries", "held since (UTC)"):
        table.add_column(heading, no_wrap=heading != "recipient", overflow="fold")
    for message in messages:
        table.add_row(
            str(message.id),
            escape(message.channel),
            escape(message.recipient),
            f"{message.attempt_count} of {message.max_attempts}",
            minute_text(message.next_attempt_at),
        )
    return table


def status_text(status: Status, text: str | None = None) -> str:
    """Return a status, or a text about it, in its colour."""
    return f"[{_STYLES[status]}]{text or status.value}[/]"


def minute_text(instant: datetime) -> str:
    """Return an instant to the minute: a row must fit a terminal of 80 columns."""
    return instant.strftime("%Y-%m-%d %H:%M")


def iso(instant: datetime | None) -> str | None:
    """Return an instant as ISO 8601."""
    return instant.isoformat() if instant else None

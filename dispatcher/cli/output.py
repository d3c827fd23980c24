"""Output of messages and errors: tables for people, JSON for programs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from dispatcher.errors import DispatcherError, NoPlace
from dispatcher.message import Attempt, Message, Status, visible_text
from dispatcher.times.send_time import as_text
from dispatcher.times.zones import rules

_STYLES = {
    Status.SCHEDULED: "cyan",
    Status.SENDING: "blue",
    Status.SENT: "green",
    Status.FAILED: "red",
    Status.EXPIRED: "yellow",
    Status.CANCELLED: "dim",
    Status.HELD: "magenta",
}

_WIDEST = 10_000
_PIPED_WIDTH = 160
"""Columns without a terminal: enough that no word is broken."""


def _width() -> int | None:
    """Return the columns of a table; None where the terminal or COLUMNS gives them."""
    return None if sys.stdout.isatty() or "COLUMNS" in os.environ else _PIPED_WIDTH


class Terminal(Console):
    """A console that escapes control characters, so that no terminal obeys foreign text."""

    def render(self, *given: Any, **more: Any) -> Iterator[Segment]:
        """Yield the segments, escaped by :func:`visible_text` except for line ends."""
        for text, style, control in super().render(*given, **more):
            shown = text if control else "\n".join(map(visible_text, text.split("\n")))
            yield Segment(shown, style, control)


out = Terminal(highlight=False, width=_width())


def as_it_is(text: str) -> str:
    """Return foreign text for a table, without markup."""
    return escape(visible_text(text))


written: list[str] = []
"""The JSON that this run of a command has written so far."""


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
    """Return equal JSON with escaped control characters."""
    return "\n".join(map(visible_text, text.split("\n")))


def error_data(error: DispatcherError) -> dict[str, Any]:
    """Return an error as plain JSON values: its type, its text and its attributes."""
    carried = {name: _plain(each) for name, each in vars(error).items() if name[0] != "_"}
    return {"error": type(error).__name__, "text": str(error)} | carried


def _plain(value: object) -> Any:
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value if isinstance(value, str | int | float | None) else str(value)


def outcome_text(message: Message, *, with_time: bool = False) -> str:
    """Return the status of a message in one line; with its time in its zone."""
    text = f"{message.id} is {status_text(message.status)}"
    if not with_time:
        return text
    text += f" for {local_text(message.send_at, message.zone)}"
    asked_at = message.asked_at
    return (
        text if asked_at is None else f"{text}; asked for was {local_text(asked_at, message.zone)}"
    )


def local_text(instant: datetime, zone: str | None) -> str:
    """Return an instant to the millisecond, in a zone or in UTC."""
    if zone is None:
        return as_text(instant)
    return instant.astimezone(rules(zone)).isoformat(timespec="milliseconds")


@contextmanager
def refused_in(zone: str | None) -> Iterator[None]:
    """Add the next slot in ``zone`` to a refusal."""
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
        "send_at": iso(message.send_at),
        "next_attempt_at": iso(message.next_attempt_at),
        "expires_at": iso(message.expires_at),
        "attempt_count": message.attempt_count,
        "max_attempts": message.max_attempts,
        "idempotency_key": message.idempotency_key,
        "created_at": iso(message.created_at),
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
        "started_at": iso(attempt.started_at),
        "finished_at": iso(attempt.finished_at),
        "outcome": attempt.outcome.value if attempt.outcome else None,
        "error": attempt.error,
        "receipt": attempt.receipt,
    }


Cell = str | Text
"""A cell of a table: markup, or styled text."""


def listed(
    headings: Sequence[str], rows: Sequence[Sequence[Cell]], *, right: Sequence[str] = ()
) -> RenderableType:
    """Return rows as a table, or their cells below each other where the terminal is too narrow.

    So no id, number or recipient is broken over lines. Columns ``right`` are aligned to the right.
    """
    table = Table(box=None, header_style="bold", padding=(0, 1, 0, 0))
    for heading in headings:
        table.add_column(heading, no_wrap=True, justify="right" if heading in right else "left")
    for row in rows:
        table.add_row(*row)
    if out.measure(table, options=out.options.update(width=_WIDEST)).maximum <= out.width:
        return table
    lines: list[Text] = []
    for row in rows:
        first, *others = (Text.from_markup(each) if isinstance(each, str) else each for each in row)
        lines += [first] if first else []
        lines += [
            Text.assemble("  ", (f"{heading.partition(' (')[0]} ", "dim") if heading else "", cell)
            for heading, cell in zip(headings[1:], others, strict=True)
            if cell
        ]
    zones = dict.fromkeys(each.partition(" (")[2].rstrip(")") for each in headings)
    lines += [Text(f"times: {zone}", style="dim") for zone in zones if zone]
    for line in lines:
        line.overflow = "fold"
    return Group(*lines)


def message_table(messages: Sequence[Message], zone: str | None = None) -> RenderableType:
    """Return messages, one a row, without their bodies; times in ``zone``."""
    headings = ("id", "status", "channel", "recipient", f"send at ({zone or 'UTC'})")
    return listed(
        headings,
        [
            (
                str(message.id),
                status_text(message.status),
                as_it_is(message.channel),
                as_it_is(message.recipient),
                second_text(message.send_at, zone),
            )
            for message in messages
        ],
    )


def held_table(messages: Sequence[Message]) -> RenderableType:
    """Return held messages, one a row, without their bodies."""
    headings = ("id", "channel", "recipient", "tries", "held since (UTC)")
    return listed(
        headings,
        [
            (
                str(message.id),
                as_it_is(message.channel),
                as_it_is(message.recipient),
                f"{message.attempt_count} of {message.max_attempts}",
                second_text(message.next_attempt_at),
            )
            for message in messages
        ],
    )


def status_text(status: Status, text: str | None = None) -> str:
    """Return a status, or a text about it, in its colour."""
    return f"[{_STYLES[status]}]{text or status.value}[/]"


def second_text(instant: datetime, zone: str | None = None) -> str:
    """Return an instant to the second, in a zone or in UTC."""
    local = instant.astimezone(UTC if zone is None else rules(zone))
    return local.strftime("%Y-%m-%d %H:%M:%S")


def iso(instant: datetime | None) -> str | None:
    """Return an instant for programs: in UTC, to the millisecond."""
    return None if instant is None else as_text(instant)

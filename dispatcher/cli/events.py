"""Events, and the messages that remind of them."""

from __future__ import annotations

from typing import Annotated

import typer

from dispatcher import Event
from dispatcher.cli import output
from dispatcher.cli.app import command, command_group
from dispatcher.cli.messages import Shift, Zone
from dispatcher.client import Dispatcher
from dispatcher.submission.events import Past
from dispatcher.times.send_time import as_text

Name = Annotated[str, typer.Argument(metavar="NAME", help="Its name: appointment:17.")]
At = Annotated[
    str, typer.Argument(metavar="TIME", help="With an offset, or a local time with --zone.")
]
_SHOWN = ("name", "at", "zone", "wish", "cancelled_at")


@command_group
def events() -> None:
    """Set, move and cancel what messages remind of, together with these messages."""


@command("dispatcher events set appointment:17 2026-12-24T08:30 --zone Europe/Berlin", of=events)
def set_(name: Name, at: At, zone: Zone = None) -> None:
    """Set a new event. Again with the same time, it changes nothing."""
    with Dispatcher() as dispatcher:
        _tell(dispatcher.events.set(name, at, zone))


@command("dispatcher events move appointment:17 2026-12-29T10:00 --on-conflict shift", of=events)
def move(
    name: Name,
    at: At,
    zone: Zone = None,
    on_conflict: Shift = "reject",
    past: Annotated[
        Past, typer.Option(help="Where the new time of a message is past: what becomes of it.")
    ] = "refuse",
) -> None:
    """Move an event with all its scheduled messages, or change nothing."""
    with Dispatcher() as dispatcher:
        _tell(dispatcher.events.move(name, at, zone, on_conflict=on_conflict, past=past))


@command("dispatcher events cancel appointment:17", of=events)
def cancel(name: Name) -> None:
    """Cancel an event and its scheduled messages; later submits with it are refused."""
    with Dispatcher() as dispatcher:
        _tell(dispatcher.events.cancel(name))


@command("dispatcher events show appointment:17", of=events)
def show(name: Name) -> None:
    """Show an event. `dispatcher list --event NAME` lists its messages."""
    with Dispatcher() as dispatcher:
        _tell(dispatcher.events.get(name))


def _tell(event: Event) -> None:
    state = "was cancelled" if event.cancelled_at else f"is at {as_text(event.at)}"
    local = f" ({event.wish} {event.zone})" if event.wish else ""
    data = {field: getattr(event, field) for field in _SHOWN}
    output.tell(data, f"{event.name} {state}{local}")

"""``dispatcher pause`` and ``dispatcher resume``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from dispatcher.cli import output
from dispatcher.cli.app import AsJson, examples
from dispatcher.client import Dispatcher
from dispatcher.store import Pause

group = typer.Typer(rich_markup_mode="rich")

Kind = Annotated[
    str,
    typer.Argument(metavar="KIND", help="channel, recipient, campaign, or a kind of the settings."),
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Its name: sms, summer, or acme.")]


@group.command(epilog=examples("dispatcher pause channel sms", "dispatcher pause campaign summer"))
def pause(kind: Kind, name: Name, as_json: AsJson = False) -> None:
    """Send nothing of a channel, recipient, campaign or another scope until it is resumed.

    Submits go on. What a worker has claimed is still sent. Prints all pauses.
    """
    with Dispatcher() as dispatcher:
        found = dispatcher.pause(kind, name)
    _print(found, as_json=as_json)


@group.command(epilog=examples("dispatcher resume channel sms"))
def resume(kind: Kind, name: Name, as_json: AsJson = False) -> None:
    """End a pause: messages that are due are sent, or treated as their channel's catch_up says.

    Prints the pauses that remain.
    """
    with Dispatcher() as dispatcher:
        found = dispatcher.resume(kind, name)
    _print(found, as_json=as_json)


def _print(found: Sequence[Pause], *, as_json: bool) -> None:
    titles = ("kind", "name", "paused since (UTC)")
    rows = [
        (output.as_it_is(each.kind), output.as_it_is(each.name), output.second_text(each.paused_at))
        for each in found
    ]
    shown = output.listed(titles, rows) if rows else "nothing is paused"
    output.tell(found, shown, as_json=as_json)

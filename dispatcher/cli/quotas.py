"""Quotas and limits of single scopes."""

from __future__ import annotations

from typing import Annotated

import typer

from dispatcher.cli import output
from dispatcher.cli.app import JSON_LINES, command, command_group
from dispatcher.client import Dispatcher
from dispatcher.submission.quotas import ScopeQuotas

_KINDS = "recipient, recipient.CHANNEL, channel.CHANNEL, or a kind of the settings."
Kind = Annotated[str, typer.Argument(metavar="KIND", help=_KINDS)]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Its name: acme.")]
Limits = Annotated[
    bool, typer.Option("--limits", help="Not its quotas, but the limits of its sends.")
]


@command_group
def quotas() -> None:
    """Give single scopes quotas and limits. Every process knows them within 5 seconds."""


@command(
    "dispatcher quotas set tenant acme 100/hour '5000/month in Europe/Berlin'",
    "dispatcher quotas set tenant acme --limits 10/second",
    of=quotas,
)
def set_(
    kind: Kind,
    name: Name,
    quotas: Annotated[list[str], typer.Argument(metavar="QUOTA...")],
    limits: Limits = False,
) -> None:
    """Set the quotas of a scope, instead of those of its kind. What is booked stays."""
    with Dispatcher() as dispatcher:
        put = dispatcher.set_limits if limits else dispatcher.set_quotas
        _tell(put(kind, name, quotas))


@command("dispatcher quotas unset tenant acme", of=quotas)
def unset(kind: Kind, name: Name, limits: Limits = False) -> None:
    """Give a scope the quotas of its kind again."""
    with Dispatcher() as dispatcher:
        put = dispatcher.unset_limits if limits else dispatcher.unset_quotas
        _tell(put(kind, name))


@command("dispatcher quotas list", "dispatcher quotas list tenant", of=quotas, json=JSON_LINES)
def list_(kind: Annotated[str | None, typer.Argument(metavar="KIND")] = None) -> None:
    """List the scopes that have quotas or limits of their own."""
    with Dispatcher() as dispatcher:
        listed = dispatcher.scope_settings(kind)
    others = {
        "quotas": lambda scope: "; ".join(scope.quotas),
        "limits": lambda scope: "; ".join(scope.limits),
    }
    output.tell_rows(
        listed, ("kind", "name"), others, otherwise="no scope has quotas or limits of its own"
    )


def _tell(scope: ScopeQuotas) -> None:
    text = f"{scope.kind} {scope.name} has {'; '.join(scope.quotas)}"
    if scope.limits:
        text += f", and limits of {'; '.join(scope.limits)}"
    if scope.over:
        text += f"\nbookings to come that are more than that: {scope.over}; they stay"
    output.tell(scope, text)

"""Options that several commands share: the filters, and how options become parameters of a call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, cast

import typer

from dispatcher.errors import InvalidValue
from dispatcher.message import Status
from dispatcher.quota import parse_length
from dispatcher.selection import Wanted, read_scopes
from dispatcher.settings import Settings

_LENGTHS = ("send_in", "later", "expire_after")


def complete_channel(incomplete: str) -> list[str]:
    try:
        return [name for name in Settings.load().channels if name.startswith(incomplete)]
    except InvalidValue:
        return []


def option(*names: str, help: str, **more: Any) -> Any:  # noqa: A002 - typer's word
    return typer.Option(*names, help=help, rich_help_panel="Which messages", **more)


@dataclass(frozen=True, kw_only=True)
class FilterOptions:
    status: Annotated[Status | None, option(help="Of this status.")] = None
    channel: Annotated[
        str | None, option(help="On this channel.", autocompletion=complete_channel)
    ] = None
    recipient: Annotated[str | None, option(help="To this recipient.")] = None
    scope: Annotated[str | None, option(help="Of this scope.")] = None
    scopes: Annotated[
        list[str] | None,
        option(
            "--count",
            metavar="KIND=NAME",
            help="That count against this scope, too: tenant=acme, recipient.sms=ada.",
        ),
    ] = None
    campaign: Annotated[str | None, option(help="Of this campaign.")] = None
    idempotency_key: Annotated[str | None, option("--key", help="With this idempotency key.")] = (
        None
    )
    key_prefix: Annotated[str | None, option(help="With a key that begins so.")] = None
    from_at: Annotated[
        str | None, option("--from", help="Promised for this time, or date, or later.")
    ] = None
    until_at: Annotated[
        str | None, option("--to", help="Promised for before this time, or this date.")
    ] = None
    zone: Annotated[
        str | None,
        option(
            help="Zone of --from and --to (default: UTC) and of times in a list (the setting zone)."
        ),
    ] = None
    made_after: Annotated[str | None, option(metavar="ID", help="Made after this message.")] = None
    overdue: Annotated[bool, option("--overdue", help="Due, and claimed by no worker.")] = False

    @property
    def wanted(self) -> Wanted:
        given = parameters_of(self)
        return cast("Wanted", {name: given[name] for name in Wanted.__annotations__})


def parameters_of(options: object) -> dict[str, Any]:
    given = dict(vars(options))
    if "scopes" in given:
        given["scopes"] = read_scopes(given["scopes"] or (), field="scopes")
    for name in _LENGTHS:
        if given.get(name) is not None:
            given[name] = parse_length(given[name], name)
    return given

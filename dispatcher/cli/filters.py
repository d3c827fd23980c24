"""The filter options, the same for every command that has them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter
from typing import Annotated, Any, get_type_hints

import typer

from dispatcher.errors import InvalidValue
from dispatcher.message import Status
from dispatcher.selection import Wanted, read_scopes
from dispatcher.settings import Settings


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
    counts: Annotated[
        list[str] | None,
        option(
            "--count",
            metavar="KIND=NAME",
            help="That count against this scope, too: tenant=acme, recipient.sms=ada.",
        ),
    ] = None
    campaign: Annotated[str | None, option(help="Of this campaign.")] = None
    key: Annotated[str | None, option(help="With this idempotency key.")] = None
    key_prefix: Annotated[str | None, option(help="With a key that begins so.")] = None
    from_at: Annotated[
        str | None, option("--from", help="Promised for this time, or date, or later.")
    ] = None
    to_at: Annotated[
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
        """The filters as a call takes them. Raises InvalidDraft."""
        return {
            "status": self.status,
            "channel": self.channel,
            "recipient": self.recipient,
            "scope": self.scope,
            "scopes": scopes_of(self.counts),
            "campaign": self.campaign,
            "idempotency_key": self.key,
            "key_prefix": self.key_prefix,
            "from_at": self.from_at,
            "until_at": self.to_at,
            "zone": self.zone,
            "made_after": self.made_after,
            "overdue": self.overdue,
        }


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the parameter whose type is a dataclass by its fields, as options of the command.

    They follow the command's own parameters. A field that is named as one of those has its value.
    """
    own = dict(inspect.signature(command, eval_str=True).parameters)
    [replaced] = [name for name, each in own.items() if is_dataclass(each.annotation)]
    kind: Any = own.pop(replaced).annotation
    hints = get_type_hints(kind, include_extras=True)
    names = [each.name for each in fields(kind)]
    added = {
        each.name: Parameter(
            each.name, Parameter.KEYWORD_ONLY, default=each.default, annotation=hints[each.name]
        )
        for each in fields(kind)
        if each.name not in own
    }

    @wraps(command)
    def call(**given: Any) -> None:
        options = kind(**{name: given[name] for name in names})
        command(**{name: given[name] for name in own}, **{replaced: options})

    typed: Any = call  # typer reads the parameters there
    every = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in (own | added).values()]
    typed.__signature__ = inspect.Signature(every)
    typed.__annotations__ = {each.name: each.annotation for each in every}
    return call


def scopes_of(counts: list[str] | None) -> dict[str, str] | None:
    """Read KIND=NAME; return names by kind. Raises InvalidDraft."""
    return read_scopes(counts, field="scopes") if counts else None

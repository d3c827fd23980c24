"""Options that say which messages are meant, the same for every command that takes them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from inspect import Parameter
from typing import Annotated, Any, cast

import typer

from dispatcher.errors import InvalidValue
from dispatcher.message import Status
from dispatcher.selection import Selection, Wanted
from dispatcher.settings import Settings

_PANEL = "Which messages"
_WANTED = "wanted"
NOTHING = Wanted()
"""The default of ``wanted``; :func:`filtered` puts something else in its place."""


def complete_channel(incomplete: str) -> list[str]:
    """Return the channels of the settings that a shell may go on with."""
    try:
        return [name for name in Settings.load().channels if name.startswith(incomplete)]
    except InvalidValue:
        return []


def _option(*names: str, help: str, **more: Any) -> Any:  # noqa: A002 - typer's word
    return typer.Option(*names, help=help, rich_help_panel=_PANEL, **more)


_OPTIONS: dict[str, tuple[str, Any]] = {
    "status": ("status", Annotated[Status | None, _option(help="Of this status.")]),
    "channel": (
        "channel",
        Annotated[str | None, _option(help="On this channel.", autocompletion=complete_channel)],
    ),
    "recipient": ("recipient", Annotated[str | None, _option(help="To this recipient.")]),
    "scope": ("scope", Annotated[str | None, _option(help="Of this scope.")]),
    "key": (
        "idempotency_key",
        Annotated[str | None, _option("--key", help="With this idempotency key.")],
    ),
    "from_at": (
        "from_at",
        Annotated[str | None, _option("--from", help="Promised for this time or later.")],
    ),
    "to_at": (
        "until_at",
        Annotated[str | None, _option("--to", help="Promised for before this time.")],
    ),
    "zone": ("zone", Annotated[str | None, _option(help="Zone of --from and --to.")]),
    "made_after": (
        "made_after",
        Annotated[str | None, _option(metavar="ID", help="Made after this message.")],
    ),
    "overdue": (
        "overdue",
        Annotated[bool, _option("--overdue", help="Due, and nobody has taken it.")],
    ),
}
"""The parameter of a command: what it is called in :class:`Wanted`, and its type."""


def filtered(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command these options in the place of its parameter ``wanted``.

    One that the command has itself, such as ``zone``, is passed to both.
    """
    signature = inspect.signature(command, eval_str=True)
    own = [each for each in signature.parameters.values() if each.name != _WANTED]
    added = [
        Parameter(
            name,
            Parameter.KEYWORD_ONLY,
            default=False if name == "overdue" else None,
            annotation=annotation,
        )
        for name, (_, annotation) in _OPTIONS.items()
        if name not in signature.parameters
    ]
    every = [*(each.replace(kind=Parameter.KEYWORD_ONLY) for each in own), *added]

    @wraps(command)
    def call(**given: Any) -> None:
        wanted = {field: given[name] for name, (field, _) in _OPTIONS.items()}
        mine = {each.name: given[each.name] for each in own}
        command(wanted=wanted, **mine)

    told: Any = call  # what typer reads
    told.__signature__ = signature.replace(parameters=every)
    told.__annotations__ = {each.name: each.annotation for each in every}
    return call


def narrowed(wanted: Wanted, status: Status, *, every: bool) -> Wanted:
    """Return what is said of messages, for a command that changes those of one status.

    Raises InvalidDraft, and InvalidValue for another status, or where nothing is said and ``every``
    does not mean it.
    """
    said = Selection.of(wanted)
    if said.status not in (None, status):
        problem = f"no message that is {said.status} can be changed so"
        raise InvalidValue("--status", problem, f"{status}, or none")
    if said.is_everything and not every:
        raise InvalidValue("ID", "no message is named", "ids, a filter such as --channel, or --all")
    return cast("Wanted", {**wanted, "status": status})


def examples(*lines: str) -> str:
    """Return the end of a help text: commands to try, one a line."""
    return "\n\n".join(["[bold]Examples[/]", *(f"  $ {line}" for line in lines)])

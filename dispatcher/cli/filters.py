"""The filter options, the same for every command that has them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from inspect import Parameter
from typing import Annotated, Any, cast

import typer

from dispatcher.errors import InvalidDraft, InvalidValue
from dispatcher.message import Status
from dispatcher.selection import Selection, Wanted
from dispatcher.settings import Settings

_PANEL = "Which messages"
_WANTED = "wanted"
NOTHING = Wanted()
"""The default of ``wanted``; :func:`filtered` replaces it."""


def complete_channel(incomplete: str) -> list[str]:
    """Return the channels of the settings with this beginning, for completion in a shell."""
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
    "counts": (
        "scopes",
        Annotated[
            list[str] | None,
            _option(
                "--count",
                metavar="KIND=NAME",
                help="That count against this scope, too: tenant=acme, recipient.sms=ada.",
            ),
        ],
    ),
    "key": (
        "idempotency_key",
        Annotated[str | None, _option("--key", help="With this idempotency key.")],
    ),
    "key_prefix": (
        "key_prefix",
        Annotated[str | None, _option(help="With a key that begins so.")],
    ),
    "from_at": (
        "from_at",
        Annotated[str | None, _option("--from", help="Promised for this time, or date, or later.")],
    ),
    "to_at": (
        "until_at",
        Annotated[str | None, _option("--to", help="Promised for before this time, or this date.")],
    ),
    "zone": ("zone", Annotated[str | None, _option(help="Zone of --from and --to.")]),
    "made_after": (
        "made_after",
        Annotated[str | None, _option(metavar="ID", help="Made after this message.")],
    ),
    "overdue": (
        "overdue",
        Annotated[bool, _option("--overdue", help="Due, and claimed by no worker.")],
    ),
}
"""By parameter of a command: its name in :class:`Wanted`, and its type."""
_FILTER_ZONE = "filter_zone"
_FilterZone = Annotated[
    str | None, _option(help="Zone of --from and --to, where it is not that of --zone.")
]
"""The zone of the filters, for a command with a ``zone`` of its own."""


def filtered(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the parameter ``wanted`` of a command by these options.

    A command with a ``zone`` of its own gets ``--filter-zone``, which defaults to ``--zone``.
    """
    signature = inspect.signature(command, eval_str=True)
    own = [each for each in signature.parameters.values() if each.name != _WANTED]
    options = {name: annotation for name, (_, annotation) in _OPTIONS.items()}
    if "zone" in signature.parameters:
        del options["zone"]
        options[_FILTER_ZONE] = _FilterZone
    added = [
        Parameter(
            name,
            Parameter.KEYWORD_ONLY,
            default=False if name == "overdue" else None,
            annotation=annotation,
        )
        for name, annotation in options.items()
    ]
    every = [*(each.replace(kind=Parameter.KEYWORD_ONLY) for each in own), *added]

    @wraps(command)
    def call(**given: Any) -> None:
        wanted = {field: given.get(name) for name, (field, _) in _OPTIONS.items()}
        wanted["scopes"] = scopes_of(given["counts"])
        if given.get(_FILTER_ZONE) is not None:
            wanted["zone"] = given[_FILTER_ZONE]
        mine = {each.name: given[each.name] for each in own}
        command(wanted=wanted, **mine)

    told: Any = call  # typer reads the parameters there
    told.__signature__ = signature.replace(parameters=every)
    told.__annotations__ = {each.name: each.annotation for each in every}
    return call


def scopes_of(counts: list[str] | None) -> dict[str, str] | None:
    """Read KIND=NAME; return names by kind. Raises InvalidDraft."""
    if not counts:
        return None
    pairs = [each.partition("=") for each in counts]
    for kind, sign, name in pairs:
        if not (kind and sign and name):
            raise InvalidDraft("scopes", f"cannot read {(kind + sign + name)[:80]!r}", "KIND=NAME")
    return {kind: name for kind, _, name in pairs}


def narrowed(wanted: Wanted, status: Status, *, every: bool) -> Wanted:
    """Return filters narrowed to one status, for a command that changes messages of that status.

    Raises InvalidDraft, and InvalidValue for another status, or for no filter without ``every``.
    """
    said = Selection.of(wanted)
    if said.status not in (None, status):
        problem = f"no message that is {said.status} can be changed so"
        raise InvalidValue("--status", problem, f"{status}, or none")
    if said.is_everything and not every:
        raise InvalidValue("ID", "no message is named", "ids, a filter such as --channel, or --all")
    return cast("Wanted", {**wanted, "status": status})

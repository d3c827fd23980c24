"""The filters of commands; commands that list messages; those for suppressions and pauses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any, cast

import typer

from dispatcher.cli import output
from dispatcher.cli.app import JSON_LINES, command, confirm
from dispatcher.client import Dispatcher
from dispatcher.errors import InvalidValue
from dispatcher.message import Status
from dispatcher.quota import parse_length
from dispatcher.selection import Wanted, read_scopes
from dispatcher.settings import Settings
from dispatcher.store.lists import Pause

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
    event: Annotated[str | None, option(help="Of this event.")] = None
    priority_from: Annotated[int | None, option(help="Of this priority or a larger one.")] = None
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
        parameters = parameters_of(self)
        return cast("Wanted", {name: parameters[name] for name in Wanted.__annotations__})


def parameters_of(options: object) -> dict[str, Any]:
    parameters = dict(vars(options))
    if "scopes" in parameters:
        parameters["scopes"] = read_scopes(parameters["scopes"] or (), field="scopes")
    for name in _LENGTHS:
        if parameters.get(name) is not None:
            parameters[name] = parse_length(parameters[name], name)
    return parameters


Kind = Annotated[
    str,
    typer.Argument(
        metavar="KIND", help="channel, recipient, campaign, event, or a kind of the settings."
    ),
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Its name: sms, summer, or acme.")]
Recipient = Annotated[str, typer.Argument(metavar="RECIPIENT")]
OneChannel = Annotated[
    str | None,
    typer.Option("--channel", help="Only on this channel.", autocompletion=complete_channel),
]


@command(
    "dispatcher list --status failed --channel email",
    "dispatcher list --overdue",
    "dispatcher list --from 2026-12-24T00:00 --to 2026-12-25T00:00 --zone Europe/Berlin",
    "dispatcher list --recipient ada --json | jq -r .id",
    json=JSON_LINES,
)
def list_(
    *,
    filters: FilterOptions,
    limit: Annotated[int, typer.Option("--limit", "-n", help="How many, newest first.")] = 50,
    after: Annotated[str | None, typer.Option(metavar="ID", help="Begin after this one.")] = None,
) -> None:
    """List messages, newest first.

    Times are in --zone; without it, in the zone of the settings.
    """
    with Dispatcher() as dispatcher:
        page = dispatcher.list(limit=limit, after=after, **filters.wanted)
        zone = filters.zone or dispatcher.settings.zone
    others = {f"send at ({zone})": lambda message: output.second_text(message.send_at, zone)}
    names = ("id", "status", "channel", "recipient")
    output.tell_rows(page.messages, names, others, otherwise="no messages")
    if page.after is not None and not output.as_json:
        output.out.print(f"there are more: --after {page.after}")


@command("dispatcher held", "dispatcher held --json", json=JSON_LINES)
def held(
    limit: Annotated[int, typer.Option("--limit", "-n", help="How many, oldest first.")] = 50,
) -> None:
    """List held messages, oldest first: the outcome of their last attempt is unknown."""
    with Dispatcher() as dispatcher:
        messages = dispatcher.held(limit=limit)
        zone = dispatcher.settings.zone
    others = {
        "tries": lambda message: f"{message.attempt_count} of {message.max_attempts}",
        f"held since ({zone})": lambda message: output.second_text(message.next_attempt_at, zone),
    }
    names = ("id", "channel", "recipient")
    output.tell_rows(messages, names, others, otherwise="no messages are held")


@command("dispatcher suppress ada@example.org", "dispatcher suppress +4915112345678 --channel sms")
def suppress(recipient: Recipient, channel: OneChannel = None) -> None:
    """Opt a recipient out: refuse new messages and cancel scheduled ones, at once.

    Only a message that is being sent now may still arrive. Every spelling that channels have for
    the recipient opts out.
    """
    with Dispatcher() as dispatcher:
        cancelled = dispatcher.suppress(recipient, channel=channel)
    data = {"recipient": recipient, "channel": channel, "cancelled": cancelled}
    shown = f"gets nothing on {_where(channel)}; scheduled messages cancelled: {cancelled}"
    output.tell(data, f"{recipient} {shown}")


@command("dispatcher unsuppress ada@example.org")
def unsuppress(recipient: Recipient, channel: OneChannel = None) -> None:
    """Revoke a suppression. Give the same --channel as when it was made, or none.

    Messages that it cancelled stay cancelled.
    """
    with Dispatcher() as dispatcher:
        left = dispatcher.unsuppress(recipient, channel=channel)
    shown = [f"still gets nothing on {_where(optout.channel)}" for optout in left]
    text = "\n".join(f"{recipient} {line}" for line in shown or ["is not suppressed"])
    output.tell({"recipient": recipient, "suppressed": left}, text)


@command(
    "dispatcher erase ada@example.org",
    "dispatcher erase ada@example.org --keep-opt-out --yes --json",
)
def erase(
    recipient: Recipient,
    keep_opt_out: Annotated[
        bool, typer.Option("--keep-opt-out", help="Leave its opt-out, and so its address there.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Erase what is stored of a recipient, for good; counts stay.

    Scheduled messages are cancelled, held ones end as failed. Addresses, bodies, errors, receipts
    and keys of its messages are blanked. A message that is being sent is left: erase again then.
    """
    if not yes:
        confirm(f"Erase {recipient} for good?")
    with Dispatcher() as dispatcher:
        done = dispatcher.erase(recipient, keep_opt_out=keep_opt_out)
    shown = f"messages cancelled: {done.cancelled}; blanked: {done.blanked}"
    if done.under_way:
        shown += f"\nnot ended yet: {done.under_way}; erase again once they have"
    output.tell(done, shown)


@command(
    "dispatcher suppressed ada@example.org",
    "dispatcher suppressed --limit 100000 --json | jq -r .recipient",
    json=JSON_LINES,
)
def suppressed(
    recipient: Annotated[str | None, typer.Argument(metavar="RECIPIENT")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many.")] = 100,
) -> None:
    """List all suppressions, or those of one recipient."""
    with Dispatcher() as dispatcher:
        optouts = list(islice(dispatcher.suppressed(recipient), limit))
    others = {
        "channel": lambda optout: optout.channel or "all",
        "since (UTC)": lambda optout: optout.created_at,
    }
    output.tell_rows(optouts, ("recipient",), others, otherwise="nobody has opted out")


@command("dispatcher pause channel sms", "dispatcher pause campaign summer")
def pause(kind: Kind, name: Name) -> None:
    """Send nothing of a channel, recipient, campaign, event or another scope until it is resumed.

    Submits go on. What a worker has claimed is still sent. Prints all pauses.
    """
    with Dispatcher() as dispatcher:
        pauses = dispatcher.pause(kind, name)
    _print_pauses(pauses)


@command("dispatcher resume channel sms")
def resume(kind: Kind, name: Name) -> None:
    """End a pause: messages that are due are sent, or treated as their channel's catch_up says.

    Prints the pauses that remain.
    """
    with Dispatcher() as dispatcher:
        pauses = dispatcher.resume(kind, name)
    _print_pauses(pauses)


def _print_pauses(pauses: Sequence[Pause]) -> None:
    rows = [(pause.kind, pause.name, pause.paused_at) for pause in pauses]
    table = output.listed(("kind", "name", "paused since (UTC)"), rows)
    output.tell(pauses, table if pauses else "nothing is paused")


def _where(channel: str | None) -> str:
    return "every channel" if channel is None else f"channel {channel}"

"""Commands that change what was accepted: cancel, reschedule, retry, release, drop."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

import typer

from dispatcher.cli import show
from dispatcher.cli.app import AsJson, examples
from dispatcher.cli.filters import NOTHING, filtered
from dispatcher.cli.messages import ExpireAfter, Fold, Latest, SendAt, SendIn, Shift
from dispatcher.cli.work import Work
from dispatcher.client import Dispatcher
from dispatcher.errors import InvalidDraft
from dispatcher.message import Message, Status
from dispatcher.quota import parse_length
from dispatcher.selection import Wanted
from dispatcher.times import send_time

MessageIds = Annotated[list[str] | None, typer.Argument(metavar="ID")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Every = Annotated[bool, typer.Option("--all", help="Where no filter is given: every message.")]


_ONE_TIME = "one of --send-at, --send-in and --later"
_EXAMPLES = {
    "cancel": (
        "dispatcher cancel 0199…",
        "dispatcher cancel --channel sms --from 2026-12-24T08:00Z --to 2026-12-24T09:00Z",
    ),
    "reschedule": (
        'dispatcher reschedule 0199… --send-in "2 hours" --on-conflict shift',
        'dispatcher reschedule --channel sms --overdue --later "1 hour" --on-conflict shift',
    ),
    "retry": (
        "dispatcher retry 0199…",
        "dispatcher retry --channel email --from 2026-12-24T08:00Z --yes",
    ),
    "release": ("dispatcher release 0199…", "dispatcher release --channel sms"),
    "drop": ("dispatcher drop 0199…", "dispatcher drop --recipient ada"),
}


def register(app: typer.Typer) -> None:
    """Add these commands to ``app``."""
    for command in (cancel, reschedule, retry, release, drop):
        app.command(epilog=examples(*_EXAMPLES[command.__name__]))(filtered(command))


def cancel(
    message_ids: MessageIds = None,
    wanted: Wanted = NOTHING,
    yes: Yes = False,
    every: Every = False,
    as_json: AsJson = False,
) -> None:
    """Cancel scheduled messages, by id or by filter; their quotas are free again at once."""
    with Dispatcher() as dispatcher:
        Work(
            dispatcher,
            "cancel",
            Status.SCHEDULED,
            dispatcher.cancel,
            many=lambda some: dispatcher.cancel_many([each.id for each in some]),
        ).do(message_ids, wanted, yes=yes, every=every, as_json=as_json)


def reschedule(
    message_ids: MessageIds = None,
    wanted: Wanted = NOTHING,
    send_at: SendAt = None,
    send_in: SendIn = None,
    later: Annotated[
        str | None, typer.Option(help='Later than now promised, by: "2 hours".')
    ] = None,
    zone: Annotated[
        str | None, typer.Option(help="Zone of local times given here; default: each message's.")
    ] = None,
    set_zone: Annotated[
        str | None, typer.Option(help="Another zone for the messages: quiet hours go by it.")
    ] = None,
    fold: Fold = None,
    on_conflict: Shift = "reject",
    latest: Latest = None,
    expires_at: Annotated[str | None, typer.Option(help="Another expiry.")] = None,
    expire_after: ExpireAfter = None,
    yes: Yes = False,
    every: Every = False,
    as_json: AsJson = False,
) -> None:
    """Move scheduled messages to another time, by id or by filter; old places are free at once.

    Each is judged as if it had no place yet. It keeps its zone unless --set-zone gives it another.
    """
    if set_zone is not None:
        send_time.check_zone(set_zone)
    read_by = set_zone if zone is None else zone
    for field, given in (("send_at", send_at), ("latest", latest), ("expires_at", expires_at)):
        if given is not None and read_by is not None:
            send_time.parse(given, zone=read_by, fold=fold, field=field)
    if [send_at, send_in, later].count(None) != 2:  # noqa: PLR2004 - one of three
        raise InvalidDraft("send_at", "none or several of the times given", _ONE_TIME)
    length = None if expire_after is None else parse_length(expire_after, "expire_after")
    wish: dict[str, Any] = {
        "send_at": send_at,
        "send_in": None if send_in is None else parse_length(send_in, "send_in"),
        "later": None if later is None else parse_length(later, "later"),
        "zone": zone,
        "set_zone": set_zone,
        "fold": fold,
        "on_conflict": on_conflict,
        "latest": latest,
        "expires_at": expires_at,
        "expire_after": length,
    }
    with Dispatcher() as dispatcher:

        def move(message_id: UUID | str) -> Message:
            with show.refused_in(read_by):
                return dispatcher.reschedule(message_id, **wish)

        Work(
            dispatcher,
            "reschedule",
            Status.SCHEDULED,
            move,
            many=lambda some: dispatcher.reschedule_many([each.id for each in some], **wish),
            still_matches=True,
            also=None if set_zone is None else f"set the zone to {set_zone}",
        ).do(message_ids, wanted, yes=yes, every=every, as_json=as_json)


def retry(
    message_ids: MessageIds = None,
    wanted: Wanted = NOTHING,
    perhaps_sent: Annotated[
        bool,
        typer.Option("--perhaps-sent", help="Also what may have been sent, and holds for that."),
    ] = False,
    yes: Yes = False,
    every: Every = False,
    as_json: AsJson = False,
) -> None:
    """Give failed messages another round of tries, by id or by filter. They are due at once.

    They have kept their places, so no quota refuses them; the limits guard them as ever.
    """
    with Dispatcher() as dispatcher:

        def again(message_id: UUID | str) -> Message:
            return dispatcher.retry(message_id, perhaps_sent=perhaps_sent)

        Work(
            dispatcher,
            "retry",
            Status.FAILED,
            again,
            many=lambda some: dispatcher.retry_many(
                [each.id for each in some], perhaps_sent=perhaps_sent
            ),
        ).do(message_ids, wanted, yes=yes, every=every, as_json=as_json)


def release(
    message_ids: MessageIds = None,
    wanted: Wanted = NOTHING,
    yes: Yes = False,
    every: Every = False,
    as_json: AsJson = False,
) -> None:
    """Let held messages be sent, perhaps once more, by id or by filter.

    They are due at once; what is past its expiry ends as expired.
    """
    with Dispatcher() as dispatcher:
        Work(dispatcher, "release", Status.HELD, dispatcher.release).do(
            message_ids, wanted, yes=yes, every=every, as_json=as_json
        )


def drop(
    message_ids: MessageIds = None,
    wanted: Wanted = NOTHING,
    yes: Yes = False,
    every: Every = False,
    as_json: AsJson = False,
) -> None:
    """Give held messages up, by id or by filter: they end as failed and keep their places.

    To be used where the provider says that it has them, or nobody is to wait for them.
    """
    with Dispatcher() as dispatcher:
        Work(dispatcher, "drop", Status.HELD, dispatcher.drop).do(
            message_ids, wanted, yes=yes, every=every, as_json=as_json
        )

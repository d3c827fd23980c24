"""Messages: the list with its filters, the story of one, and the actions on one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from starlette.responses import Response

from dispatcher.errors import InvalidDraft, MessageChanged, SlotRefused, StoreUnavailable
from dispatcher.message import Message, Status, check_text
from dispatcher.problems import status_of
from dispatcher.selection import Selection, Wanted
from dispatcher.store import Movable
from dispatcher.submission import coming
from dispatcher.times.send_time import from_ms
from dispatcher.web.access import Right
from dispatcher.web.models import Version
from dispatcher.web.pages.site import SCOPE, Fields, PageRoute, Visit
from dispatcher.web.pages.times import local_text
from dispatcher.web.problems import forbidden

_LISTED = 50
_ORDERS = ("newest", "oldest")
_MOST_HELD = 100
_OF_RECIPIENTS = ("recipient", "scope", "key", "key_prefix")
"""Filters that would tell a recipient by whether there are messages."""
FILTERS = (
    "status", "channel", *_OF_RECIPIENTS, "campaign", "from", "until", "overdue", "made_after",
    "zone",
)  # fmt: skip
"""The filters in an address; further ones are ``count.KIND``."""
_WITHOUT_A_FIELD = ("key", "made_after", "zone")
"""Filters that the form of the list has no field for; see :func:`_kept`."""


def wanted_of(visit: Visit, given: Fields) -> Wanted:
    if any(name in given for name in _OF_RECIPIENTS):
        visit.caller.check(Right.RECIPIENTS_READ)
    if visit.is_bound() and any(name in given for name in ("key", "key_prefix")):
        raise forbidden("the key is bound; messages may have idempotency keys of others")
    channel, scopes = visit.caller.narrowed(given.get("channel"), given.scopes)

    def time_of(name: str) -> datetime | None:
        # That of today: a link to the next page must mean the same.
        return visit.time_of(given[name], name, of_day=True) if given[name] else None

    return {
        "status": given.get("status"),
        "channel": channel,
        "recipient": given.get("recipient"),
        "scope": given.get("scope"),
        "scopes": scopes or None,
        "campaign": given.get("campaign"),
        "idempotency_key": given.get("key"),
        "key_prefix": given.get("key_prefix"),
        "from_at": time_of("from"),
        "until_at": time_of("until"),
        "zone": visit.zone,
        "overdue": given.is_on("overdue"),
        "made_after": given.get("made_after"),
    }


def filters_of(given: Fields) -> dict[str, str]:
    scopes = {f"count.{kind}": name for kind, name in given.scopes.items()}
    return {n: each for n, each in given.items() if n in FILTERS or n in scopes}


def said(visit: Visit, wanted: Selection) -> list[tuple[str, str]]:
    """Return what narrows a selection beside the status: names and values."""

    def at(instant: datetime | None) -> str | None:
        return None if instant is None else f"{local_text(instant, visit.zone)} {visit.zone}"

    every: list[tuple[str, str | None]] = [
        ("channel", " or ".join(wanted.channels) or None),
        ("recipient", wanted.recipient),
        ("scope", wanted.scope),
        *wanted.scopes,
        ("campaign", wanted.campaign),
        ("key", wanted.idempotency_key),
        ("key begins", wanted.key_prefix),
        ("from", at(wanted.from_at)),
        ("until", at(wanted.until_at)),
        ("overdue", "" if wanted.overdue else None),
        ("made after", None if wanted.made_after is None else str(wanted.made_after)),
    ]
    return [(name, value) for name, value in every if value is not None]


def listed(visit: Visit) -> Response:
    status = 200
    oldest_first = visit.query.one_of(_ORDERS, "order", _ORDERS[0]) == _ORDERS[1]
    shown: dict[str, Any] = {"statuses": tuple(Status), "found": None, "error": None,
                             "looked_until": None, "overdue": False,
                             "made_at": _made_at, "oldest_first": oldest_first}  # fmt: skip
    try:
        wanted = visit.selection(wanted_of(visit, visit.query))
        shown["overdue"] = wanted.overdue
        found = visit.parts.listing.page(
            wanted, after=visit.after, limit=_LISTED, oldest_first=oldest_first,
            patience=visit.patience,
        )  # fmt: skip
        ended_early = found.after is not None and len(found) < _LISTED
        shown |= {"found": found, "looked_until": _made_at(found.after) if ended_early else None}
    except (InvalidDraft, StoreUnavailable) as error:
        if isinstance(error, StoreUnavailable) and not error.timed_out:
            raise
        shown["error"], status = visit.error_text(error), status_of(error)
    filters = filters_of(visit.query)
    kept = _kept(filters, visit.site.settings.scopes)
    return visit.show("messages.html", status, **shown, filters=filters, kept=kept)


def _kept(filters: Mapping[str, str], kinds: Collection[str]) -> dict[str, str]:
    """Return the filters that the form has no field for, which *List* keeps."""
    shown = {*FILTERS, *(f"count.{kind}" for kind in kinds)}.difference(_WITHOUT_A_FIELD)
    return {name: value for name, value in filters.items() if name not in shown}


def _made_at(message_id: UUID | None) -> datetime | None:
    """Return when a message was made: its id, a UUID of version 7, begins with it."""
    return None if message_id is None else from_ms(message_id.int >> 80)


def held(visit: Visit) -> Response:
    wanted = wanted_of(visit, visit.query)
    wanted["status"] = Status.HELD
    selection = visit.selection(wanted)
    ids = visit.parts.listing.longest_held(selection, limit=_MOST_HELD)
    seen = visit.parts.messages.movables(ids)
    # What is shown and the version in its form are of one reading.
    now = [seen[each] for each in ids if each in seen]
    shown = [(each.message, Version.of(each)) for each in now if each.message.status is Status.HELD]
    return visit.show("held.html", found=shown, most=_MOST_HELD, is_full=len(ids) == _MOST_HELD)


def story(visit: Visit) -> Response:
    return _story_page(visit, visit.message())


def _story_page(visit: Visit, seen: Movable, refusal: SlotRefused | None = None) -> Response:
    found = visit.dispatcher.story(seen.message.id)
    message, then = found.message, coming(found)
    if not all(visit.caller.sees_pause_name(each.kind) for each in found.pauses):
        then = "it is paused", None
    kinds = visit.site.settings.scopes  # a message of old may name others, which count no more
    counts = {f"count.{kind}": name for kind, name in message.scopes.items() if kind in kinds}
    key = message.idempotency_key  # whole, as the filter of the list finds it
    if visit.is_bound():
        key = visit.caller.shown_key(key)
    calendar = visit.url(
        "/calendar",
        recipient=message.recipient,
        scope=None if message.scope == message.recipient else message.scope,
        channel=message.channel,
        zone=message.zone,
        start=message.send_at.isoformat(),
        **counts,
    )
    return visit.show(
        "story.html", 200 if refusal is None else 409, story=found, next=then, calendar=calendar,
        version=Version.of(seen), key=key,
        refusal=None if refusal is None else visit.error_text(refusal),
        slot=None if refusal is None else refusal.next_slot,
    )  # fmt: skip


def cancel(visit: Visit) -> Response:
    return _acted(visit, "cancel", visit.dispatcher.cancel)


def reschedule(visit: Visit) -> Response:
    def move(message_id: UUID, *, if_unchanged: Message) -> Message:
        return visit.dispatcher.reschedule(
            message_id,
            send_at=visit.time_of(visit.form["send_at"], "send_at"),
            zone=visit.zone,
            on_conflict="shift" if visit.form.is_on("shift") else "reject",
            if_unchanged=if_unchanged,
        )

    try:
        return _acted(visit, "reschedule", move)
    except SlotRefused as refused:
        return _story_page(visit, visit.message(), refused)


def retry(visit: Visit) -> Response:
    perhaps_sent = visit.form.is_on("perhaps_sent")
    return _acted(visit, "retry", partial(visit.dispatcher.retry, perhaps_sent=perhaps_sent))


def release(visit: Visit) -> Response:
    return _acted(visit, "release", visit.dispatcher.release, reason=_reason(visit))


def drop(visit: Visit) -> Response:
    return _acted(visit, "drop", partial(visit.dispatcher.drop, reason=_reason(visit)))


def _reason(visit: Visit) -> str:
    visit.message()
    if "reason" not in visit.form:
        raise InvalidDraft("reason", "not given", "a line of text")
    return check_text("reason", visit.form["reason"])


def _acted(visit: Visit, verb: str, act: Callable[..., Message], *, reason: str = "") -> Response:
    """Do something to the message of the path, if it is as the form showed it."""
    found = visit.message()
    if not _is_as_shown(visit, found):
        raise MessageChanged(found.message.id)
    now = act(found.message.id, if_unchanged=found.message)
    why = f" ({reason})" if reason else ""
    visit.note(f"{verb} of message {now.id}, now {now.status}{why}")
    return visit.go(f"/messages/{now.id}", done=verb)


def _is_as_shown(visit: Visit, found: Movable) -> bool:
    """Tell whether a message is as its form showed it, or was only snoozed since then."""
    try:
        shown = Version.read(visit.form["version"])
    except ValueError:
        return False
    return not Version.of(found).is_edited_since(shown)


ONE = "/messages/{message_id}"
PAGES = (
    PageRoute("/messages", listed, title="Messages", names=(*FILTERS, SCOPE, "after", "order")),
    PageRoute("/held", held, title="Held",
              names=(*(name for name in FILTERS if name != "status"), SCOPE)),
    PageRoute(ONE, story),
    *(
        PageRoute(f"{ONE}/{act.__name__}", act, "POST", names=("version", *names),
                  rights=(Right.MESSAGES_READ, right))
        for act, right, names in (
            (cancel, Right.MESSAGES_CANCEL, ()),
            (reschedule, Right.MESSAGES_WRITE, ("send_at", "shift")),
            (retry, Right.OPERATE, ("perhaps_sent",)),
            (release, Right.OPERATE, ("reason",)),
            (drop, Right.OPERATE, ("reason",)),
        )
    ),
)  # fmt: skip

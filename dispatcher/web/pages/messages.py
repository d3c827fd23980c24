"""Messages: the list with its filters, the story of one, actions on one and on many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple, TypeAlias, cast
from uuid import UUID

from starlette.responses import Response

from dispatcher import Wanted
from dispatcher.errors import (
    DispatcherError,
    InvalidDraft,
    InvalidValue,
    MessageChanged,
    SlotRefused,
    StoreUnavailable,
)
from dispatcher.message import Message, Status, check_text, reason_of
from dispatcher.problems import status_of
from dispatcher.quota import parse_length
from dispatcher.selection import Selection, check_priority, read_number
from dispatcher.store.listing import StoredVersion
from dispatcher.store.schema import Movable
from dispatcher.submission.changes import NewTime
from dispatcher.submission.reads import coming
from dispatcher.times.send_time import from_ms
from dispatcher.web.access import Right
from dispatcher.web.models import Filters
from dispatcher.web.pages.site import PAGE_NAMES, SCOPE, Fields, PageRoute, Visit, local_text
from dispatcher.web.problems import forbidden

_LISTED = 50
_ORDERS = ("newest", "oldest")
_MOST_HELD = 100
FILTERS = tuple(
    field.alias or name for name, field in Filters.model_fields.items() if name != "count"
)
"""The filters in an address; further ones are ``count.KIND``."""
_FIELDS = (
    "status", "channel", "recipient", "scope", "key_prefix", "campaign", "event", "priority_from",
    "from", "until", "overdue",
)  # fmt: skip
"""Filters with a field of the form of the list, as ``count.KIND`` has; *List* keeps the others."""
MOST = 1_000
"""How many messages one confirmation changes at most."""
_SHOWN = 10
_FORM_BYTES = 160_000
_CHANGED = "changed since they were counted"


def read_filters(visit: Visit, fields: Fields) -> Wanted:
    if "key" in fields or "key_prefix" in fields:
        visit.caller.check(Right.RECIPIENTS_READ)
        if visit.caller.is_bound:
            raise forbidden("filters by idempotency key need a key without bound channels or scope")

    def time_of(name: str) -> datetime | None:
        # The time is read as of today: a link to the next page must mean the same.
        return visit.time_of(fields[name], name, of_day=True) if fields[name] else None

    filters = {name: fields.get(PAGE_NAMES.get(name, name)) for name in Wanted.__annotations__} | {
        "scopes": fields.scopes,
        "from_at": time_of("from"),
        "until_at": time_of("until"),
        "zone": visit.zone,
        "priority_from": read_number(fields.get("priority_from")),
        "overdue": fields.is_on("overdue"),
    }
    return visit.caller.narrowed(cast("Wanted", filters))


def filters_of(fields: Fields) -> dict[str, str]:
    scopes = {f"count.{kind}": name for kind, name in fields.scopes.items()}
    return {name: value for name, value in fields.items() if name in FILTERS or name in scopes}


def describe(visit: Visit, selection: Selection) -> list[tuple[str, str]]:
    """Return what narrows a selection beside the status: names and values."""

    def at(instant: datetime | None) -> str | None:
        return None if instant is None else f"{local_text(instant, visit.zone)} {visit.zone}"

    every: list[tuple[str, object]] = [
        ("channel", " or ".join(selection.channels) or None),
        ("recipient", selection.recipient),
        ("scope", selection.scope),
        *selection.scopes,
        ("campaign", selection.campaign),
        ("event", selection.event),
        ("priority from", selection.priority_from),
        ("key", selection.idempotency_key),
        ("key begins", selection.key_prefix),
        ("from", at(selection.from_at)),
        ("until", at(selection.until_at)),
        ("overdue", "" if selection.overdue else None),
        ("made after", selection.made_after),
    ]
    return [(name, str(value)) for name, value in every if value is not None]


def listed(visit: Visit) -> Response:
    status = 200
    oldest_first = visit.query.one_of(_ORDERS, "order", _ORDERS[0]) == _ORDERS[1]
    shown: dict[str, Any] = {"statuses": tuple(Status), "page": None, "error": None,
                             "looked_until": None, "overdue": False,
                             "made_at": _made_at, "oldest_first": oldest_first}  # fmt: skip
    try:
        selection = visit.selection(read_filters(visit, visit.query))
        shown["overdue"] = selection.overdue
        page = visit.parts.listing.page(
            selection, after=visit.after, limit=_LISTED, oldest_first=oldest_first,
            patience=visit.patience,
        )  # fmt: skip
        ended_early = page.after is not None and len(page) < _LISTED
        shown |= {"page": page, "looked_until": _made_at(page.after) if ended_early else None}
    except (InvalidDraft, StoreUnavailable) as error:
        if isinstance(error, StoreUnavailable) and not error.timed_out:
            raise
        shown["error"], status = visit.error_text(error), status_of(error)
    filters = filters_of(visit.query)
    fields = {*_FIELDS, *(f"count.{kind}" for kind in visit.site.settings.scopes)}
    kept = {name: value for name, value in filters.items() if name not in fields}
    return visit.show("messages.html", status, **shown, filters=filters, kept=kept)


def _made_at(message_id: UUID | None) -> datetime | None:
    """Return when a message was made: its id, a UUID of version 7, begins with it."""
    return None if message_id is None else from_ms(message_id.int >> 80)


def held(visit: Visit) -> Response:
    filters = read_filters(visit, visit.query)
    filters["status"] = Status.HELD
    selection = visit.selection(filters)
    ids = visit.parts.listing.longest_held(selection, limit=_MOST_HELD)
    seen = visit.parts.messages.movables(ids)
    # What is shown and the version in its form are of one reading.
    now = [seen[id_] for id_ in ids if id_ in seen]
    shown = [(row.message, version_of(row)) for row in now if row.message.status is Status.HELD]
    return visit.show("held.html", held=shown, most=_MOST_HELD, is_full=len(ids) == _MOST_HELD)


def story(visit: Visit) -> Response:
    return _story_page(visit, visit.message())


def _story_page(visit: Visit, seen: Movable, refusal: SlotRefused | None = None) -> Response:
    story = visit.dispatcher.story(seen.message.id)
    message, then = story.message, coming(story)
    if not all(visit.caller.sees_pause_name(pause.kind) for pause in story.pauses):
        then = "it is paused", None
    kinds = visit.site.settings.scopes  # a message of old may name others, which count no more
    counts = {f"count.{kind}": name for kind, name in message.scopes.items() if kind in kinds}
    key = message.idempotency_key  # whole, as the filter of the list finds it
    if visit.caller.is_bound:
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
        "story.html", 200 if refusal is None else 409, story=story, next=then, calendar=calendar,
        version=version_of(seen), key=key,
        refusal=None if refusal is None else visit.error_text(refusal),
        slot=None if refusal is None else refusal.next_slot,
    )  # fmt: skip


def cancel(visit: Visit) -> Response:
    return _act(visit, "cancel", visit.dispatcher.cancel)


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
        return _act(visit, "reschedule", move)
    except SlotRefused as refused:
        return _story_page(visit, visit.message(), refused)


def prioritize(visit: Visit) -> Response:
    return _act(visit, "prioritize", partial(visit.dispatcher.update, priority=_priority(visit)))


def _priority(visit: Visit) -> int:
    return check_priority(read_number(visit.form.required("priority", "a whole number")))


def retry(visit: Visit) -> Response:
    perhaps_sent = visit.form.is_on("perhaps_sent")
    return _act(visit, "retry", partial(visit.dispatcher.retry, perhaps_sent=perhaps_sent))


def release(visit: Visit) -> Response:
    return _act(visit, "release", visit.dispatcher.release, reason=_reason(visit))


def drop(visit: Visit) -> Response:
    return _act(visit, "drop", partial(visit.dispatcher.drop, reason=_reason(visit)))


def _reason(visit: Visit) -> str:
    visit.message()
    return check_text("reason", visit.form.required("reason", "a line of text"))


def _act(visit: Visit, verb: str, act: Callable[..., Message], *, reason: str = "") -> Response:
    movable = visit.message()
    if visit.form["version"] != version_of(movable):
        raise MessageChanged(movable.message.id)
    now = act(movable.message.id, if_unchanged=movable.message)
    why = f" ({reason})" if reason else ""
    visit.note(f"{verb} of message {now.id}, now {now.status}{why}")
    return visit.go(f"/messages/{now.id}", done=verb)


def version_of(message: Movable | StoredVersion) -> str:
    """Return what a form has of a message that it shows. A snooze changes nothing of it.

    It tells nothing of a recipient or a body to whoever reads the form.
    """
    version = message if isinstance(message, StoredVersion) else StoredVersion.of(message)
    counts = f"{version.move_token}-{version.attempt_count}-{version.max_attempts}"
    return f"{counts}-{version.status}"


Answers: TypeAlias = Sequence[Message | DispatcherError]


class Action(NamedTuple):
    """``change`` changes each message only if it is as it was found; else it is MessageChanged."""

    name: str
    title: str
    status: Status
    right: Right
    change: Callable[[Visit, Mapping[UUID, Message]], Answers]


def _cancel_many(visit: Visit, before: Mapping[UUID, Message]) -> Answers:
    return visit.parts.cancellation.cancel_many(list(before), if_unchanged=before)


def _reschedule_many(visit: Visit, before: Mapping[UUID, Message]) -> Answers:
    later, send_at = visit.form.get("later"), visit.form.get("send_at")
    if (later is None) == (send_at is None):
        raise InvalidDraft("later", "neither or both of the times given", "one of them")
    time: dict[str, Any]
    if later is not None:
        time = {"later": parse_length(later, "later")}
    else:
        time = {"send_at": visit.time_of(visit.form["send_at"], "send_at"), "zone": visit.zone}
    new_time = NewTime(on_conflict="shift" if visit.form.is_on("shift") else "reject", **time)
    return visit.parts.changes.reschedule_many(list(before), new_time, if_unchanged=before)


def _prioritize_many(visit: Visit, before: Mapping[UUID, Message]) -> Answers:
    return visit.parts.changes.update_many(list(before), _priority(visit), if_unchanged=before)


def _retry_many(visit: Visit, before: Mapping[UUID, Message]) -> Answers:
    return visit.parts.decisions.retry_many(
        list(before), perhaps_sent=visit.form.is_on("perhaps_sent"), if_unchanged=before
    )


ACTIONS = {
    action.name: action
    for action in (
        Action("cancel", "Cancel", Status.SCHEDULED, Right.MESSAGES_CANCEL, _cancel_many),
        Action("reschedule", "Move", Status.SCHEDULED, Right.MESSAGES_WRITE, _reschedule_many),
        Action(
            "prioritize", "Prioritize", Status.SCHEDULED, Right.MESSAGES_WRITE, _prioritize_many
        ),
        Action("retry", "Retry", Status.FAILED, Right.OPERATE, _retry_many),
    )
}


def versions_text(versions: Sequence[StoredVersion]) -> str:
    return " ".join(f"{version.id.hex}-{version_of(version)}" for version in versions)


def _read_versions(text: str) -> dict[UUID, str]:
    try:
        pairs = [pair.partition("-") for pair in text.split()]
        versions = {UUID(id_): version for id_, _, version in pairs}
    except ValueError:
        versions = {}
    if not 0 < len(versions) <= MOST:
        raise InvalidValue("messages", "cannot be read", f"ids of the form, at most {MOST:,}")
    return versions


def unchanged(versions: Mapping[UUID, str], now: Mapping[UUID, Movable]) -> list[Movable]:
    return [
        now[id_] for id_, version in versions.items()
        if id_ in now and version_of(now[id_]) == version
    ]  # fmt: skip


def confirm_many(visit: Visit) -> Response:
    action, selection = _read_request(visit, visit.query)
    versions, further = visit.parts.listing.versions(
        selection, after=visit.after, limit=MOST, patience=visit.patience
    )
    first = [version.id for version in versions[:_SHOWN]]
    shown = visit.parts.messages.movables(first)
    return visit.show(
        "bulk.html", action=action, count=len(versions), further=further,
        ended_early=further is not None and len(versions) < MOST,
        messages=versions_text(versions),
        examples=[shown[id_].message for id_ in first if id_ in shown], most=MOST,
        said=describe(visit, selection), filters=filters_of(visit.query),
    )  # fmt: skip


def change_many(visit: Visit) -> Response:
    action, _ = _read_request(visit, visit.form)
    versions = _read_versions(visit.form["messages"])
    now = visit.parts.messages.movables(list(versions))
    before = {
        row.message.id: row.message
        for row in unchanged(versions, now)
        if row.message.status is action.status and visit.caller.sees(row.message)
    }
    answers = action.change(visit, before)
    errors = [
        (message, answer)
        for message, answer in zip(before.values(), answers, strict=True)
        if not isinstance(answer, Message)
    ]
    refused = Counter(_refusal_reason(error) for _, error in errors)
    done, asked = len(answers) - refused.total(), len(versions)
    refused[_CHANGED] += asked - len(before)
    visit.note(f"{action.name} of {done} messages by filter, {refused.total()} refused")
    return visit.show("bulk_done.html", action=action, done=done, asked=asked,
                      refused=[(why, n) for why, n in refused.most_common() if n],
                      examples=errors[:_SHOWN],
                      filters=filters_of(visit.form))  # fmt: skip


def _read_request(visit: Visit, fields: Fields) -> tuple[Action, Selection]:
    action = ACTIONS.get(fields["do"])
    if action is None:
        raise InvalidValue("do", "no such action", ", ".join(ACTIONS))
    visit.caller.check(action.right)
    filters = read_filters(visit, fields)
    status = visit.selection(filters).status
    if status not in (None, action.status):
        problem = f"this action does not apply to {status} messages"
        raise InvalidValue("status", problem, f"{action.status}, or no status")
    filters["status"] = action.status
    return action, visit.selection(filters)


def _refusal_reason(error: DispatcherError) -> str:
    return _CHANGED if isinstance(error, MessageChanged) else reason_of(error)


ONE = "/messages/{message_id}"
PAGES = (
    PageRoute("/messages", listed, title="Messages", names=(*FILTERS, SCOPE, "after", "order")),
    PageRoute("/held", held, title="Held",
              names=(*(name for name in FILTERS if name != "status"), SCOPE)),
    # before those of one message, whose path would match, too
    PageRoute("/messages/bulk", confirm_many, names=("do", *FILTERS, SCOPE, "after")),
    PageRoute("/messages/bulk", change_many, "POST", most_bytes=_FORM_BYTES,
              names=("do", "messages", *FILTERS, SCOPE, "later", "send_at", "shift",
                     "perhaps_sent", "priority")),
    PageRoute(ONE, story),
    *(
        PageRoute(f"{ONE}/{action.__name__}", action, "POST", names=("version", *names),
                  rights=(Right.MESSAGES_READ, right))
        for action, right, names in (
            (cancel, Right.MESSAGES_CANCEL, ()),
            (reschedule, Right.MESSAGES_WRITE, ("send_at", "shift")),
            (prioritize, Right.MESSAGES_WRITE, ("priority",)),
            (retry, Right.OPERATE, ("perhaps_sent",)),
            (release, Right.OPERATE, ("reason",)),
            (drop, Right.OPERATE, ("reason",)),
        )
    ),
)  # fmt: skip

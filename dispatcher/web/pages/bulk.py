"""Changes of all messages that match some filters: first counted, then confirmed."""

from __future__ import annotations

import hashlib
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self
from uuid import UUID

from starlette.responses import Response

from dispatcher.errors import DispatcherError, InvalidDraft, InvalidValue, MessageChanged, TooLate
from dispatcher.message import Message, Status, reason_of
from dispatcher.quota import parse_length
from dispatcher.selection import Selection
from dispatcher.store import Movable, StoredVersion
from dispatcher.submission.changes import NewTime
from dispatcher.web.access import Right
from dispatcher.web.pages.messages import FILTERS, filters_of, said, wanted_of
from dispatcher.web.pages.site import SCOPE, Fields, PageRoute, Visit

MOST = 1_000
"""How many messages one confirmation changes at most."""
_SHOWN = 10
_MARK_BYTES = 8
_FORM_BYTES = 160_000
_CHANGED = "changed since they were counted"


class Action(NamedTuple):
    """``change`` changes each message only if it is as it was found; else it is MessageChanged."""

    name: str
    title: str
    status: Status
    right: Right
    change: Callable[[Visit, Sequence[Movable]], Sequence[Message | DispatcherError]]


def _cancel(visit: Visit, found: Sequence[Movable]) -> Sequence[Message | DispatcherError]:
    tokens = {each.message.id: each.token for each in found}
    return visit.parts.cancellation.cancel_many(list(tokens), tokens=tokens)


def _reschedule(visit: Visit, found: Sequence[Movable]) -> Sequence[Message | DispatcherError]:
    later, send_at = visit.form.get("later"), visit.form.get("send_at")
    if (later is None) == (send_at is None):
        raise InvalidDraft("later", "neither or both of the times given", "one of the two")
    time: dict[str, Any]
    if later is not None:
        time = {"later": parse_length(later, "later")}
    else:
        time = {"send_at": visit.time_of(visit.form["send_at"], "send_at"), "zone": visit.zone}
    tokens = {each.message.id: each.token for each in found}
    new_time = NewTime(on_conflict="shift" if visit.form.is_on("shift") else "reject", **time)
    return visit.parts.changes.reschedule_many(list(tokens), new_time, tokens=tokens)


def _retry(visit: Visit, found: Sequence[Movable]) -> Sequence[Message | DispatcherError]:
    before = {each.message.id: each.message for each in found}
    return visit.parts.decisions.retry_many(
        list(before), perhaps_sent=visit.form.is_on("perhaps_sent"), if_unchanged=before
    )


ACTIONS = {
    action.name: action
    for action in (
        Action("cancel", "Cancel", Status.SCHEDULED, Right.MESSAGES_CANCEL, _cancel),
        Action("reschedule", "Move", Status.SCHEDULED, Right.MESSAGES_WRITE, _reschedule),
        Action("retry", "Retry", Status.FAILED, Right.OPERATE, _retry),
    )
}


@dataclass(frozen=True)
class CountedMessages:
    marks: dict[UUID, bytes]

    @classmethod
    def of(cls, found: Sequence[StoredVersion]) -> Self:
        return cls({each.id: _mark(each) for each in found})

    @classmethod
    def read(cls, text: str) -> Self:
        size = 16 + _MARK_BYTES
        try:
            packed = b64decode(text, validate=True)
        except ValueError:
            packed = b""
        if not packed or len(packed) % size or len(packed) > MOST * size:
            raise InvalidValue("messages", "cannot be read", f"those of the form, at most {MOST:,}")
        parts = (packed[start : start + size] for start in range(0, len(packed), size))
        return cls({UUID(bytes=each[:16]): each[16:] for each in parts})

    def written(self) -> str:
        return b64encode(b"".join(each.bytes + mark for each, mark in self.marks.items())).decode()

    def unchanged(self, now: Mapping[UUID, Movable]) -> list[Movable]:
        both = ((now[each], mark) for each, mark in self.marks.items() if each in now)
        return [each for each, mark in both if _mark(StoredVersion.of(each)) == mark]


def _mark(found: StoredVersion) -> bytes:
    """Return a digest from which nobody who reads the form can guess a recipient or a body."""
    version = f"{found.move_token}-{found.attempt_count}-{found.max_attempts}-{found.status}"
    return hashlib.blake2b(version.encode(), digest_size=_MARK_BYTES).digest()


def confirm(visit: Visit) -> Response:
    action, wanted = _asked(visit, visit.query)
    found, further = visit.parts.listing.versions(
        wanted, after=visit.after, limit=MOST, patience=visit.patience
    )
    first = [each.id for each in found[:_SHOWN]]
    shown = visit.parts.messages.movables(first)
    return visit.show(
        "bulk.html", action=action, many=len(found), further=further,
        ended_early=further is not None and len(found) < MOST,
        messages=CountedMessages.of(found).written(),
        some=[shown[each].message for each in first if each in shown], most=MOST,
        said=said(visit, wanted), filters=filters_of(visit.query),
    )  # fmt: skip


def act(visit: Visit) -> Response:
    """Change the messages that were confirmed, as far as they are what they were then."""
    action, _ = _asked(visit, visit.form)
    confirmed = CountedMessages.read(visit.form["messages"])
    found = visit.parts.messages.movables(list(confirmed.marks))
    own = {
        each: movable for each, movable in found.items()
        if movable.message.status is action.status and visit.caller.sees(movable.message)
    }  # fmt: skip
    same = confirmed.unchanged(own)
    answers = action.change(visit, same)
    errors = [
        (movable.message, each)
        for movable, each in zip(same, answers, strict=True)
        if not isinstance(each, Message)
    ]
    refused = Counter(_reason(each) for _, each in errors)
    done, many = len(answers) - refused.total(), len(confirmed.marks)
    refused[_CHANGED] += many - len(same)
    visit.note(f"{action.name} of {done} messages by filter, {refused.total()} refused")
    return visit.show("bulk_done.html", action=action, done=done, many=many,
                      refused=[(why, n) for why, n in refused.most_common() if n],
                      examples=errors[:_SHOWN],
                      filters=filters_of(visit.form))  # fmt: skip


def _asked(visit: Visit, given: Fields) -> tuple[Action, Selection]:
    action = ACTIONS.get(given["do"])
    if action is None:
        raise InvalidValue("do", "no such action", ", ".join(ACTIONS))
    visit.caller.check(action.right)
    wanted = wanted_of(visit, given)
    status = visit.selection(wanted).status
    if status not in (None, action.status):
        problem = f"this action does not apply to {status} messages"
        raise InvalidValue("status", problem, f"{action.status}, or no status")
    wanted["status"] = action.status
    return action, visit.selection(wanted)


def _reason(error: DispatcherError) -> str:
    if isinstance(error, MessageChanged):
        return _CHANGED
    return f"already {error.status}" if isinstance(error, TooLate) else reason_of(error)


PAGES = (
    PageRoute("/messages/bulk", confirm, names=("do", *FILTERS, SCOPE, "after")),
    PageRoute("/messages/bulk", act, "POST", most_bytes=_FORM_BYTES,
              names=("do", "messages", *FILTERS, SCOPE, "later", "send_at", "shift",
                     "perhaps_sent")),
)  # fmt: skip

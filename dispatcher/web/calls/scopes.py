"""The booked, blocked and free times of scopes."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

from fastapi import Query
from starlette.responses import Response

from dispatcher.errors import InvalidDraft
from dispatcher.reservation import Timeline
from dispatcher.web import models
from dispatcher.web.access import Right
from dispatcher.web.context import CallContext, Context
from dispatcher.web.replies import Answer

_LONGEST_TIMELINE_DAYS = 366
_RECIPIENT, _CHANNEL = "recipient", "channel"


def timeline(
    context: CallContext,
    kind: str,
    scope: str,
    *,
    channel: str | None = None,
    zone: str | None = None,
    start: str | None = None,
    days: Annotated[float, Query(gt=0, le=_LONGEST_TIMELINE_DAYS)] = 2,
) -> Response:
    """Return the booked, blocked and free times of a scope.

    Its kind may be `recipient`, or `channel` for a channel as a whole.
    """
    context.admit(Right.MESSAGES_READ, Right.RECIPIENTS_READ).check_scope(kind, scope)
    length = timedelta(days=days)
    found = _read(context, kind, scope, channel, zone=zone, start=start, length=length)
    return Answer(200, models.TimelineOut.of(found).text()).response()


def next_slot(
    context: CallContext,
    kind: str,
    scope: str,
    *,
    channel: str | None = None,
    after: str | None = None,
    zone: str | None = None,
    quiet_hours: str | None = None,
    send_window: str | None = None,
) -> Response:
    """Return the first time that fits every quota of a scope. Books nothing.

    For a kind other than `recipient`, only the quotas of that scope are judged. A recipient who has
    opted out gets a slot, too: see `suppressed`.
    """
    caller = context.admit(Right.MESSAGES_READ)
    if channel is not None:
        caller.check_channel(channel)
    shown: dict[str, Any] = {}
    if kind == _RECIPIENT:
        shown["next_slot"] = context.dispatcher.next_slot(
            recipient=scope, channel=channel, after=after, zone=zone, quiet_hours=quiet_hours,
            send_window=send_window, scopes=dict([caller.scope]) if caller.scope else None,
        )  # fmt: skip
        if caller.sees_opt_outs:
            shown["suppressed"] = context.service.parts.suppression_list.has(scope, channel)
    else:
        caller.check_scope(kind, scope)
        shown["next_slot"] = _read(context, kind, scope, channel, zone=zone, start=after).slots[0]
    return Answer(200, models.SlotOut(**shown).text()).response()


def _read(context: Context, kind: str, scope: str, channel: str | None, **given: Any) -> Timeline:
    """Read a timeline. Raises InvalidDraft for a second channel."""
    if kind != _CHANNEL:
        of = None if kind == _RECIPIENT else kind
        return context.dispatcher.timeline(scope, kind=of, channel=channel, **given)
    if channel is not None:
        raise InvalidDraft("channel", "given beside that of the path", "none")
    return context.dispatcher.timeline(channel=scope, **given)

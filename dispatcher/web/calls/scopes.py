"""The booked, blocked and free times of scopes."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

from fastapi import Query
from starlette.responses import Response

from dispatcher.errors import InvalidDraft, quoted
from dispatcher.reservation import Timeline
from dispatcher.times import send_time
from dispatcher.web import models
from dispatcher.web.answers import answer
from dispatcher.web.context import CallContext, Context

_LONGEST_TIMELINE_DAYS = 366
_RECIPIENT, _CHANNEL = "recipient", "channel"
_ONLY_RECIPIENTS = f"only with the kind {_RECIPIENT!r}"


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
    context.caller.check_scope(kind, scope)
    length = timedelta(days=days)
    read = _read(context, kind, scope, channel, zone=zone, start=start, length=length)
    return answer(models.TimelineOut.model_validate(read))


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

    For a kind other than `recipient`, only the quotas of that scope are judged: it has no
    `channel`, `quiet_hours` or `send_window`. A recipient who has opted out gets a slot, too: see
    `suppressed`.
    """
    caller = context.caller
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
        for name, hours in (("quiet_hours", quiet_hours), ("send_window", send_window)):
            if hours is not None:
                raise InvalidDraft(
                    name, f"given for a scope of the kind {quoted(kind)}", _ONLY_RECIPIENTS
                )
        start = None
        if after is not None:  # as Dispatcher.next_slot reads it
            start = send_time.parse(after, zone=zone, field="after")
            now, farthest = context.service.parts.clock.now(), context.service.settings.max_horizon
            send_time.check_range(start, now=now, farthest=farthest, field="after")
        shown["next_slot"] = _read(context, kind, scope, channel, zone=zone, start=start).slots[0]
    return answer(models.SlotOut(**shown))


def _read(context: Context, kind: str, scope: str, channel: str | None, **given: Any) -> Timeline:
    """Read a timeline. Raises InvalidDraft for an unknown kind, or a channel where none counts."""
    if kind == _RECIPIENT:
        return context.dispatcher.timeline(scope, channel=channel, **given)
    kinds = (_RECIPIENT, _CHANNEL, *context.service.settings.scopes)
    if kind not in kinds:
        raise InvalidDraft("kind", f"there is no kind {quoted(kind)}", f"one of {', '.join(kinds)}")
    if channel is not None:
        raise InvalidDraft(
            "channel", f"given for a scope of the kind {quoted(kind)}", _ONLY_RECIPIENTS
        )
    if kind == _CHANNEL:
        return context.dispatcher.timeline(channel=scope, **given)
    return context.dispatcher.timeline(scope, kind=kind, **given)

"""The calendar of a scope: what is booked, what blocks, when there is room, and what if."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, NamedTuple
from uuid import UUID

from starlette.responses import Response

from dispatcher.errors import (
    DispatcherError,
    InvalidDraft,
    InvalidSendTime,
    MessageNotFound,
    QuietHours,
    QuotaExceeded,
    Unavailable,
)
from dispatcher.message import Draft, Message
from dispatcher.problems import status_of
from dispatcher.reservation import Span, Timeline
from dispatcher.times import send_time, zones
from dispatcher.times.send_time import from_ms, to_ms
from dispatcher.web.access import Right
from dispatcher.web.pages import picture
from dispatcher.web.pages.site import Given, Page, Visit

_MOST_ROWS = 120
"""Rows of the table."""
_MOST_IN_THE_WAY = 10
_MOST_COPIED = 20_000
"""Most bookings of a window that a question copies: then it takes some tens of ms."""
_BEFORE = timedelta(hours=2)
"""How long before the time of a question the calendar begins, at least."""
_CLOCK = 5
"""The length of ``10:40``."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Whose calendar is wanted: a recipient's, that of one other scope, or a channel's."""

    recipient: str | None
    channel: str | None
    scopes: Mapping[str, str]
    view: picture.View
    start: str | None
    at: str | None

    @classmethod
    def of(cls, visit: Visit) -> Wanted:
        """Read the query."""
        given = visit.query
        return cls(
            recipient=given.get("recipient"),
            channel=given.get("channel"),
            scopes=scopes_of(visit, given),
            view=picture.VIEWS.get(given.get("view", ""), picture.VIEWS["day"]),
            start=given.get("start"),
            at=given.get("at"),
        )

    @property
    def is_asked(self) -> bool:
        """Whether anything is named."""
        return bool(self.recipient or self.channel or self.scopes)

    @property
    def title(self) -> str:
        """Whose calendar it is, in words."""
        named = [f"{kind} {name}" for kind, name in self.scopes.items()]
        if self.recipient is None and not named:
            return f"channel {self.channel}"
        on = f" on {self.channel}" if self.channel else ""
        return ", ".join([f"{self.recipient}{on}" if self.recipient else "", *named]).strip(", ")


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The answer to "what if at this time?".

    ``pattern`` is that of the quota that refuses, ``also`` are lanes of others that do. ``more``
    messages are in the way beside ``in_the_way``. ``next_slot`` is None where no time would do.
    """

    at: datetime
    fits: bool
    text: str
    pattern: int | None = None
    also: Sequence[picture.Lane] = ()
    in_the_way: Sequence[Message] = ()
    more: int = 0
    next_slot: datetime | None = None


class Entry(NamedTuple):
    """A row of the table."""

    begins_at: datetime
    ends_at: datetime | None
    what: str
    detail: str
    css: str = ""
    message_id: object = None


def calendar(visit: Visit) -> Response:
    """Show the calendar of a scope."""
    wanted = Wanted.of(visit)
    shown: dict[str, Any] = {"wanted": wanted, "views": picture.VIEWS, "timeline": None,
                             "verdict": None, "error": None}  # fmt: skip
    if not wanted.is_asked:
        return visit.show("calendar.html", **shown)
    _check(visit, wanted)
    try:
        now = visit.parts.clock.now()
        begin = _begin(visit, wanted, now)
        at = _at(visit, wanted, begin, now) if wanted.at else None
        shown_from = begin if at is None or wanted.start is not None else at - _BEFORE
        start, end = picture.stretch_of(wanted.view, shown_from, visit.zone)
        timeline = _read(visit, wanted, start, end)
        verdict = None if at is None else _verdict(visit, wanted, timeline, at)
    except DispatcherError as error:
        shown["error"] = visit.error_text(error)
        return visit.show("calendar.html", status_of(error), **shown)
    slot = timeline.slots[0] if timeline.slots else None
    lines = [(now, "now", "now")]
    if slot is not None and verdict is None:
        lines.append((slot, "next free slot", "slot"))
    if verdict is not None:
        lines.append((verdict.at, "asked for", "fits" if verdict.fits else "asked"))
        if verdict.next_slot is not None:
            lines.append((verdict.next_slot, "next free slot", "slot"))
    drawn = picture.drawn(timeline, wanted.view, now=now, lines=lines)
    entries = sorted(_entries(timeline, drawn))
    shown |= {
        "timeline": timeline, "verdict": verdict, "slot": slot, "picture": drawn, "now": now,
        "entries": entries[:_MOST_ROWS], "left_out": len(entries) - _MOST_ROWS,
        "before": _moved(visit, wanted, start, -1), "after": _moved(visit, wanted, start, 1),
        "sizes": picture,
    }  # fmt: skip
    return visit.show("calendar.html", **shown)


PAGES = (
    Page(path="/calendar", answer=calendar, rights=(Right.MESSAGES_READ, Right.RECIPIENTS_READ)),
)


def scopes_of(visit: Visit, given: Given) -> dict[str, str]:
    """Return the further scopes of a query or a form, by kind: ``count.tenant=acme``."""
    kinds = visit.site.settings.scopes
    return {kind: name for kind in kinds if (name := given.get(f"count.{kind}"))}


def _check(visit: Visit, wanted: Wanted) -> None:
    """Refuse a calendar of others to a person who is bound. Raises Refused."""
    if visit.is_bound():
        kind, name = next(iter(wanted.scopes.items()), ("recipient", wanted.recipient or ""))
        if wanted.recipient is not None or wanted.channel is not None or len(wanted.scopes) > 1:
            kind, name = "recipient", wanted.recipient or ""
        visit.caller.check_scope(kind, name)


def _read(visit: Visit, wanted: Wanted, start: datetime, end: datetime) -> Timeline:
    given: dict[str, Any] = {"zone": visit.zone, "start": start, "length": end - start}
    ask = visit.dispatcher.timeline
    if wanted.recipient is not None:
        scopes = dict(wanted.scopes) or None
        return ask(wanted.recipient, channel=wanted.channel, scopes=scopes, **given)
    if len(wanted.scopes) == 1 and wanted.channel is None:
        [(kind, name)] = wanted.scopes.items()
        return ask(name, kind=kind, **given)
    if wanted.scopes and wanted.channel is not None:
        raise InvalidDraft("recipient", "not given", "a recipient, or one of channel and scope")
    return ask(channel=wanted.channel, scopes=dict(wanted.scopes) or None, **given)


def _begin(visit: Visit, wanted: Wanted, now: datetime) -> datetime:
    """Return the instant from which on the calendar is asked for, by default now."""
    if wanted.start is None:
        return from_ms(to_ms(now))
    begin = send_time.parse_time_or_date(wanted.start, zone=visit.zone, field="start")
    _check_range(visit, begin, now, "start")
    return begin


def _check_range(visit: Visit, instant: datetime, now: datetime, field: str) -> None:
    """Raise InvalidSendTime for a time for which there is no calendar."""
    farthest = visit.site.settings.max_horizon
    send_time.check_not_too_far(instant, now=now, farthest=farthest, field=field)
    if instant < from_ms(0) + _BEFORE:
        raise InvalidSendTime(field, instant.isoformat(), "a time from 1970 on")


def _moved(visit: Visit, wanted: Wanted, start: datetime, by: int) -> str:
    """Return the address of the calendar before or after this one."""
    # A week before a change of the clocks begins at midnight, too.
    wall = zones.wall_at(to_ms(start), zones.rules(visit.zone)) + by * wanted.view.whole
    return visit.here(start=f"{wall:%Y-%m-%dT%H:%M}", at=None)


def _at(visit: Visit, wanted: Wanted, begin: datetime, now: datetime) -> datetime:
    """Return the time of the question: ``10:40`` is the next such time. Raises InvalidSendTime."""
    text = (wanted.at or "").replace(" ", "T")
    if len(text) != _CLOCK:
        at = send_time.parse(text, zone=visit.zone, field="at")
        _check_range(visit, at, now, "at")
        return at
    wall = zones.wall_at(to_ms(begin), zones.rules(visit.zone))
    if text < f"{wall:%H:%M}":
        wall += timedelta(days=1)
    return send_time.parse(f"{wall:%Y-%m-%d}T{text}", zone=visit.zone, field="at")


def _verdict(visit: Visit, wanted: Wanted, timeline: Timeline, at: datetime) -> Verdict:
    """Judge a time by the rule by which a submit is judged, without booking.

    Without a recipient and a channel there is no message to judge, and a plan copies the windows
    that it needs: then the next slot from that time on tells whether it fits.
    """
    is_large = any(each.many > _MOST_COPIED for each in timeline.windows)
    if wanted.recipient is None or wanted.channel is None or is_large:
        return _by_slot(visit, wanted, timeline, at)
    draft = Draft(
        channel=wanted.channel,
        recipient=wanted.recipient,
        body={"text": "what if"},
        send_at=at,
        zone=visit.zone,
        scopes=dict(wanted.scopes) or None,
    )
    rejections = visit.dispatcher.plan([draft]).rejections
    if not rejections:
        return Verdict(at=at, fits=True, text="It fits every quota.")
    error = rejections[0].error
    if isinstance(error, Unavailable):
        raise error
    if isinstance(error, InvalidDraft) and error.field.startswith("body"):
        return _by_slot(
            visit, wanted, timeline, at
        )  # only the transport of the channel knows what it takes
    if isinstance(error, QuietHours):
        text = f"It lies in quiet hours: {error.quiet_hours} {error.zone}."
        return Verdict(at=at, fits=False, text=text, next_slot=error.next_slot)
    if not isinstance(error, QuotaExceeded):
        return Verdict(at=at, fits=False, text=visit.error_text(error))
    ids = error.conflicting[:_MOST_IN_THE_WAY] if visit.caller.sees_conflicts else ()
    lanes = list(picture.lanes_of(timeline))
    patterns = {(each.quota, each.scope): each.pattern for each in lanes}
    refusing = [each for each in lanes if _is_within(at, each.timeline.blocked)]
    return Verdict(
        at=at,
        fits=False,
        text=f"It would break the quota {error.quota} of {error.scope}.",
        pattern=patterns.get((error.quota, error.scope)),
        also=[e for e in refusing if (e.quota, e.scope) != (error.quota, error.scope)],
        in_the_way=sorted(_found(visit, ids), key=lambda each: each.send_at),
        more=len(error.conflicting) - len(ids),
        next_slot=error.next_slot,
    )


def _found(visit: Visit, ids: Iterable[UUID]) -> Iterator[Message]:
    """Yield messages, without those that are not stored (yet)."""
    for each in ids:
        with suppress(MessageNotFound):
            yield visit.dispatcher.get(each)


def _by_slot(visit: Visit, wanted: Wanted, timeline: Timeline, at: datetime) -> Verdict:
    """Judge a time by whether the next slot is that time; the timeline names what is in the way."""
    if wanted.recipient is not None:
        slot = visit.dispatcher.next_slot(
            recipient=wanted.recipient, channel=wanted.channel, after=at, zone=visit.zone,
            scopes=dict(wanted.scopes) or None,
        )  # fmt: skip
    else:
        slot = _read(visit, wanted, at, at + timedelta(minutes=1)).slots[0]
    if slot == at:
        return Verdict(at=at, fits=True, text="It fits the quotas that are shown.")
    for lane in picture.lanes_of(timeline):
        if _is_within(at, lane.timeline.blocked):
            text = f"It would break the quota {lane.quota} of {lane.scope}."
            return Verdict(at=at, fits=False, text=text, pattern=lane.pattern, next_slot=slot)
    why = "It lies in quiet hours." if _is_within(at, timeline.quiet) else "It does not fit."
    return Verdict(at=at, fits=False, text=why, next_slot=slot)


def _is_within(instant: datetime, spans: Iterable[Span]) -> bool:
    return any(each.begins_at <= instant < each.ends_at for each in spans)


def _entries(timeline: Timeline, drawn: picture.Picture) -> list[Entry]:
    """Return all that the picture shows as rows of a table."""
    booked = timeline.windows[0].booked
    entries = [
        Entry(each.at, None, "booked", "a message", "", each.message_id)
        for each in islice(booked, _MOST_ROWS)
    ]
    for lane in drawn.lanes:
        for spans, what in ((lane.timeline.blocked, "blocked"), (lane.timeline.unknown, "unknown")):
            entries += [
                Entry(*span, what, f"{lane.quota} of {lane.scope}", f"q{lane.pattern}")
                for span in islice(spans, _MOST_ROWS)
            ]
    entries += [Entry(*span, "quiet hours", "", "quiet") for span in timeline.quiet]
    entries += [
        Entry(each.begins_at, None, "clock change",
              length_of(each.ends_at - each.begins_at)) for each in drawn.changes
    ]  # fmt: skip
    entries += [Entry(each, None, "free slot", "", "slot") for each in timeline.slots]
    return entries


def length_of(change: timedelta) -> str:
    """Return a change of the clocks in words."""
    minutes = int(change.total_seconds() // 60)
    return f"the clocks go {'forward' if minutes > 0 else 'back'} by {abs(minutes)} minutes"

"""The calendar of a scope: what is booked, what blocks, when there is room, and what if."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, NamedTuple

from starlette.responses import Response

from dispatcher.errors import (
    DispatcherError,
    InvalidDraft,
    InvalidSendTime,
    QuietHours,
    QuotaExceeded,
    Suppressed,
    Unavailable,
)
from dispatcher.message import Draft, Message
from dispatcher.problems import status_of
from dispatcher.reservation import LastRefusal, Span, Timeline
from dispatcher.store.lists import Pause
from dispatcher.times import send_time, zones
from dispatcher.times.send_time import from_ms, to_ms
from dispatcher.web.access import Right
from dispatcher.web.pages import picture
from dispatcher.web.pages.site import SCOPE, PageRoute, Visit, named_as_here

_MOST_ROWS = 120
"""Rows of the table."""
_MOST_IN_THE_WAY = 10
_MOST_COPIED = 20_000
"""Most bookings of a window that a question copies: then it takes some tens of ms."""
_BEFORE = timedelta(hours=2)
"""How long before the time of a question the calendar begins, at least."""
_MOST_NOTED = 200
"""Noted refusals that are looked through for one of a past time."""
_MOST_REFUSALS = 10
"""Noted refusals that are listed."""
_MOST_OPT_OUTS = 1_000
_MINUTE = timedelta(minutes=1)


@dataclass(frozen=True, kw_only=True)
class CalendarQuery:
    """Whose calendar is wanted: a recipient's, that of one other scope, or a channel's.

    The recipient is spelt as a submit spells it. A message with a ``scope`` of its own counts
    against that in place of its recipient.
    """

    recipient: str | None
    scope: str | None
    channel: str | None
    scopes: Mapping[str, str]
    view: picture.View

    @classmethod
    def of(cls, visit: Visit) -> CalendarQuery:
        """Read the query. Raises InvalidDraft."""
        given = visit.query
        recipient, channel = given.get("recipient"), given.get("channel")
        with suppress(InvalidDraft):  # a scope of another name has no spelling
            if recipient is not None:
                recipient = visit.site.settings.spellings.one(recipient, channel)
        return cls(
            recipient=recipient,
            scope=given.get("scope"),
            channel=channel,
            scopes=given.scopes,
            view=picture.VIEWS[
                given.one_of(picture.VIEWS, "view", "hours" if given["at"] else "day")
            ],
        )

    @property
    def is_asked(self) -> bool:
        return bool(self.counted or self.channel or self.scopes)

    @property
    def counted(self) -> str | None:
        return self.scope or self.recipient

    def has(self, pause: Pause) -> bool:
        own = {"recipient": self.counted, "channel": self.channel, **self.scopes}
        return own.get(pause.kind) == pause.name

    @property
    def title(self) -> str:
        named = [f"{kind} {name}" for kind, name in self.scopes.items()]
        if self.counted is None and not named:
            return f"channel {self.channel}"
        on = f" on {self.channel}" if self.channel else ""
        return ", ".join([f"{self.counted}{on}" if self.counted else "", *named]).strip(", ")


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The answer to "what if at this time?".

    ``pattern`` is that of the quota that refuses, ``also`` are lanes of others that do. ``more``
    messages are in the way beside ``in_the_way``. ``next_slot`` is None where no time would do.
    ``noted`` are the refusals of messages that also count here, noted for that time.
    """

    at: datetime
    fits: bool
    text: str
    pattern: int | None = None
    also: Sequence[picture.Lane] = ()
    in_the_way: Sequence[Message] = ()
    more: int = 0
    next_slot: datetime | None = None
    is_past: bool = False
    noted: Sequence[LastRefusal] = ()


class TableRow(NamedTuple):
    begins_at: datetime
    ends_at: datetime | None
    what: str
    detail: str
    css: str = ""
    message_id: object = None


def calendar(visit: Visit) -> Response:
    wanted = CalendarQuery.of(visit)
    shown: dict[str, Any] = {"wanted": wanted, "views": picture.VIEWS, "timeline": None,
                             "verdict": None, "error": None, "closed": None, "opt_outs": (),
                             "pauses": ()}  # fmt: skip
    if not wanted.is_asked:
        return visit.show("calendar.html", **shown)
    _check(visit, wanted)
    try:
        now = visit.parts.clock.now()
        begin = from_ms(to_ms(now))
        if visit.query["start"]:
            begin = _time(visit, "start", near=now)
        at = _time(visit, "at", near=begin) if visit.query["at"] else None
        is_moved = visit.query["start"] and (at is None or at >= now)
        shown_from = begin if at is None or is_moved else at - _BEFORE
        start, end = picture.stretch_of(wanted.view, shown_from, visit.zone)
        timeline = _read(visit, wanted, start, end)
        scopes = [each.scope for each in timeline.windows]
        refused = visit.parts.refusals.of(scopes, last=_MOST_NOTED)
        verdict = None if at is None else _judge(visit, wanted, timeline, at, refused, now=now)
        opt_outs = _opt_outs(visit, wanted)
    except DispatcherError as error:
        said = named_as_here(error) if isinstance(error, InvalidDraft) else error
        shown["error"] = visit.error_text(said)
        return visit.show("calendar.html", status_of(error), **shown)
    closed = None
    if not {None, wanted.channel}.isdisjoint(opt_outs):
        closed = visit.error_text(Suppressed(wanted.channel or "every channel"))
        timeline = replace(timeline, slots=())
        if verdict is not None:
            noted, is_past = verdict.noted, verdict.is_past
            verdict = Verdict(at=verdict.at, fits=False, text=closed, is_past=is_past, noted=noted)
    slot = next(iter(timeline.slots), None)
    lines = [(now, "now", "now")]
    if verdict is not None:
        lines.append((verdict.at, "asked for", "fits" if verdict.fits else "asked"))
    marked = slot if verdict is None else verdict.next_slot
    if marked is not None:
        lines.append((marked, "next free slot", "slot"))
    drawn = picture.Picture(timeline, wanted.view, now, lines)
    entries, left_out = _table(visit, timeline, drawn)
    rules = zones.rules(visit.zone)
    before, after = (
        visit.here(start=picture.moved(start, length, rules).isoformat(), at=None)
        for length in (-wanted.view.whole, wanted.view.whole)
    )
    shown |= {
        "timeline": timeline, "verdict": verdict, "slot": slot, "picture": drawn, "now": now,
        "refused": refused[:_MOST_REFUSALS], "closed": closed,
        "opt_outs": [each for each in opt_outs if each != wanted.channel] if not closed else (),
        "pauses": [each for each in visit.parts.pause_list.in_force() if wanted.has(each)],
        "entries": entries, "left_out": left_out, "before": before, "after": after,
        "sizes": picture,
    }  # fmt: skip
    return visit.show("calendar.html", **shown)


PAGES = (
    PageRoute("/calendar", calendar, title="Calendar",
              names=("recipient", "scope", "channel", "view", "start", "at", SCOPE),
              rights=(Right.MESSAGES_READ, Right.RECIPIENTS_READ)),
)  # fmt: skip


def _check(visit: Visit, wanted: CalendarQuery) -> None:
    if visit.caller.is_bound:
        is_one = wanted.counted is None and wanted.channel is None and len(wanted.scopes) == 1
        [scope] = wanted.scopes.items() if is_one else [("recipient", wanted.counted or "")]
        visit.caller.check_scope(*scope)


def _read(visit: Visit, wanted: CalendarQuery, start: datetime, end: datetime) -> Timeline:
    kind, name, scopes = None, wanted.counted, dict(wanted.scopes) or None
    if name is None and scopes:
        if wanted.channel is not None:
            raise InvalidDraft("recipient", "not given", "a recipient, or one of channel and scope")
        if len(scopes) == 1:
            [(kind, name)] = scopes.items()
            scopes = None
    return visit.parts.timeline_reader.read(
        name, channel=wanted.channel, scopes=scopes, zone=visit.zone, kind=kind, start=start,
        length=end - start, spell=wanted.scope is None,
    )  # fmt: skip


def _opt_outs(visit: Visit, wanted: CalendarQuery) -> list[str | None]:
    if wanted.recipient is None:
        return []
    try:
        found = visit.dispatcher.suppressed(wanted.recipient)
        return [each.channel for each in islice(found, _MOST_OPT_OUTS)]
    except InvalidDraft:
        return []  # a scope of another name is no recipient


def _time(visit: Visit, field: str, *, near: datetime) -> datetime:
    instant = visit.time_of(visit.query[field], field, near=near)
    now, farthest = visit.parts.clock.now(), visit.site.settings.max_horizon
    send_time.check_not_too_far(instant, now=now, farthest=farthest, field=field)
    if instant < from_ms(0) + _BEFORE:
        raise InvalidSendTime(field, instant.isoformat(), "a time from 1970 on")
    return instant


def _judge(
    visit: Visit,
    wanted: CalendarQuery,
    timeline: Timeline,
    at: datetime,
    refused: Sequence[LastRefusal],
    *,
    now: datetime,
) -> Verdict:
    """Judge by the rule, and by the refusals noted for that time: without seconds, that minute."""
    until = at + (timedelta(seconds=1) if at.second or at.microsecond else _MINUTE)
    noted = [each for each in refused if at <= each.send_at < until][:_MOST_REFUSALS]
    if at >= now:
        return replace(_verdict(visit, wanted, timeline, at), noted=noted)
    text, slot = "Nothing can be booked for it any more.", next(iter(timeline.slots), None)
    return Verdict(at=at, fits=False, is_past=True, text=text, next_slot=slot, noted=noted)


def _verdict(visit: Visit, wanted: CalendarQuery, timeline: Timeline, at: datetime) -> Verdict:
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
        scope=wanted.scope,
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
        # Only the transport of the channel knows what it takes.
        return _by_slot(visit, wanted, timeline, at)
    if isinstance(error, QuietHours):
        text = f"It lies in quiet hours: {error.quiet_hours} {error.zone}."
        return Verdict(at=at, fits=False, text=text, next_slot=error.next_slot)
    if not isinstance(error, QuotaExceeded):
        return Verdict(at=at, fits=False, text=visit.error_text(error))
    ids = error.conflicting[:_MOST_IN_THE_WAY] if visit.caller.sees_conflicts else ()
    lanes = picture.lanes_of(timeline)
    patterns = {(each.quota, each.scope): each.pattern for each in lanes}
    refusing = [each for each in lanes if _is_within(at, each.timeline.blocked)]
    return Verdict(
        at=at,
        fits=False,
        text=f"It would break the quota {error.quota} of {visit.scope_text(error.scope)}.",
        pattern=patterns.get((error.quota, error.scope)),
        also=[e for e in refusing if (e.quota, e.scope) != (error.quota, error.scope)],
        in_the_way=sorted(visit.parts.messages.find_many(ids), key=lambda each: each.send_at),
        more=len(error.conflicting) - len(ids),
        next_slot=error.next_slot,
    )


def _by_slot(visit: Visit, wanted: CalendarQuery, timeline: Timeline, at: datetime) -> Verdict:
    """Judge a time by whether the next slot is that time; the timeline names what is in the way."""
    if wanted.counted is not None:
        slot = visit.dispatcher.next_slot(
            recipient=wanted.recipient, scope=wanted.scope, channel=wanted.channel, after=at,
            zone=visit.zone, scopes=dict(wanted.scopes) or None,
        )  # fmt: skip
    else:
        slot = _read(visit, wanted, at, at + timedelta(minutes=1)).slots[0]
    if slot == at:
        return Verdict(at=at, fits=True, text="It fits the quotas that are shown.")
    for lane in picture.lanes_of(timeline):
        if _is_within(at, lane.timeline.blocked):
            text = f"It would break the quota {lane.quota} of {visit.scope_text(lane.scope)}."
            return Verdict(at=at, fits=False, text=text, pattern=lane.pattern, next_slot=slot)
    why = "It lies in quiet hours." if _is_within(at, timeline.quiet) else "It does not fit."
    return Verdict(at=at, fits=False, text=why, next_slot=slot)


def _is_within(instant: datetime, spans: Iterable[Span]) -> bool:
    return any(each.begins_at <= instant < each.ends_at for each in spans)


def _table(
    visit: Visit, timeline: Timeline, drawn: picture.Picture
) -> tuple[Sequence[TableRow], int]:
    """Return the first rows of all that the picture shows, and how many more there are."""
    rows = [
        TableRow(entry.at, None, "booked", "a message", "", entry.message_id)
        for entry in timeline.windows[0].booked
    ]
    for lane in drawn.lanes:
        by, css = f"{lane.quota} of {visit.scope_text(lane.scope)}", f"q{lane.pattern}"
        rows += [TableRow(*span, "blocked", by, css) for span in lane.timeline.blocked]
    rows += [TableRow(*span, "quiet hours", "", "quiet") for span in timeline.quiet]
    for change in drawn.changes:
        text = picture.change_text(change)
        rows.append(TableRow(change.begins_at, None, "clock change", text))
    rows += [TableRow(slot, None, "free slot", "", "slot") for slot in timeline.slots]
    rows.sort(key=lambda row: row.begins_at)
    return rows[:_MOST_ROWS], len(rows) - _MOST_ROWS

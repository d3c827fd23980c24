"""The calendar of a scope: what is booked, what blocks, when there is room, and what if.

Its picture has rows of equal length in time, one below the other. In each row a lane of bookings
lies above a lane for each quota and one for quiet hours; so reading down from a time tells what
refuses it. Lengths are units of the picture, which the template draws as SVG.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, time, timedelta
from itertools import islice, pairwise
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

from starlette.responses import Response

from dispatcher import LastRefusal, Pause, Timeline
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
from dispatcher.reservation.timeline import QuotaTimeline, Span
from dispatcher.times import send_time, zones
from dispatcher.times.send_time import from_ms, to_ms
from dispatcher.web.access import Right
from dispatcher.web.pages.site import SCOPE, PageRoute, Visit, named_as_here

WIDTH, LEFT, RIGHT = 1_000, 92, 12
TOP, BOOKED, LANE, GAP = 18, 20, 9, 28
PATTERNS = 6
"""How many colours and patterns there are; further quotas repeat them."""
BESIDE, LINE = 4, 14
"""How far a text stands off its line, and how high the text is."""
_DOT = 14
"""Bookings that lie nearer to each other are drawn as one mark."""
_SIZES = {"WIDTH": WIDTH, "LEFT": LEFT, "LANE": LANE, "BESIDE": BESIDE, "LINE": LINE}
_MINUTE, _HOUR, _DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
_MOST_ROWS, _MOST_IN_THE_WAY, _MOST_REFUSALS, _MOST_OPT_OUTS = 120, 10, 10, 1_000
"""Rows of the table, messages, refusals and opt-outs that are shown."""
_MOST_COPIED = 20_000
"""A question copies at most so many bookings of a window, which takes some tens of ms."""
_BEFORE = timedelta(hours=2)
"""The calendar begins at least so long before the time of a question."""
_MOST_NOTED = 200
"""The last refusals in which the one of a past time is looked for."""


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
    view: View

    @classmethod
    def of(cls, visit: Visit) -> CalendarQuery:
        fields = visit.query
        recipient, channel = fields.get("recipient"), fields.get("channel")
        with suppress(InvalidDraft):  # a scope of another name has no spelling
            if recipient is not None:
                recipient = visit.site.settings.spellings.one(recipient, channel)
        return cls(
            recipient=recipient,
            scope=fields.get("scope"),
            channel=channel,
            scopes=fields.scopes,
            view=VIEWS[fields.one_of(VIEWS, "view", "hours" if fields["at"] else "day")],
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
    """

    at: datetime
    fits: bool
    text: str
    pattern: int | None = None
    also: Sequence[Lane] = ()
    in_the_way: Sequence[Message] = ()
    more: int = 0
    next_slot: datetime | None = None
    is_past: bool = False


class TableRow(NamedTuple):
    begins_at: datetime
    ends_at: datetime | None
    what: str
    detail: str
    css: str = ""
    message_id: object = None


def calendar(visit: Visit) -> Response:
    query = CalendarQuery.of(visit)
    shown: dict[str, Any] = {"query": query, "views": VIEWS, "timeline": None,
                             "verdict": None, "error": None, "closed": None, "opt_outs": (),
                             "pauses": ()}  # fmt: skip
    if not query.is_asked:
        return visit.show("calendar.html", **shown)
    _check(visit, query)
    try:
        now = visit.parts.clock.now()
        begin = from_ms(to_ms(now))
        if visit.query["start"]:
            begin = _time(visit, "start", near=now)
        at = _time(visit, "at", near=begin) if visit.query["at"] else None
        is_moved = visit.query["start"] and (at is None or at >= now)
        shown_from = begin if at is None or is_moved else at - _BEFORE
        start, end = stretch_of(query.view, shown_from, visit.zone)
        timeline = _read(visit, query, start, end)
        scopes = [window.scope for window in timeline.windows]
        refused = visit.parts.refusals.of(scopes, last=_MOST_NOTED)
        verdict = None if at is None else _verdict(visit, query, timeline, at, now)
        opt_outs = _opt_outs(visit, query)
    except DispatcherError as error:
        said = named_as_here(error) if isinstance(error, InvalidDraft) else error
        shown["error"] = visit.error_text(said)
        return visit.show("calendar.html", status_of(error), **shown)
    closed = None
    if not {None, query.channel}.isdisjoint(opt_outs):
        closed = visit.error_text(Suppressed(query.channel or "every channel"))
        timeline = replace(timeline, slots=())
        if verdict is not None:
            verdict = Verdict(at=verdict.at, fits=False, text=closed, is_past=verdict.is_past)
    slot = next(iter(timeline.slots), None)
    lines = [(now, "now", "now")]
    if verdict is not None:
        lines.append((verdict.at, "asked for", "fits" if verdict.fits else "asked"))
    marked = slot if verdict is None else verdict.next_slot
    if marked is not None:
        lines.append((marked, "next free slot", "slot"))
    drawn = Picture(timeline, query.view, now, lines)
    entries, left_out = _table(visit, timeline, drawn)
    rules = zones.rules(visit.zone)
    before, after = (
        visit.here(start=moved(start, length, rules).isoformat(), at=None)
        for length in (-query.view.whole, query.view.whole)
    )
    shown |= {
        "timeline": timeline, "verdict": verdict, "slot": slot, "picture": drawn, "now": now,
        "refused": refused[:_MOST_REFUSALS], "closed": closed,
        "noted": () if at is None else _noted(refused, at),
        "opt_outs": () if closed else [name for name in opt_outs if name != query.channel],
        "pauses": [pause for pause in visit.dispatcher.pauses() if query.has(pause)],
        "entries": entries, "left_out": left_out, "before": before, "after": after,
        "sizes": _SIZES,
    }  # fmt: skip
    return visit.show("calendar.html", **shown)


PAGES = (
    PageRoute("/calendar", calendar, title="Calendar",
              names=("recipient", "scope", "channel", "view", "start", "at", SCOPE),
              rights=(Right.MESSAGES_READ, Right.RECIPIENTS_READ)),
)  # fmt: skip


def _check(visit: Visit, query: CalendarQuery) -> None:
    if visit.caller.is_bound:
        is_one = query.counted is None and query.channel is None and len(query.scopes) == 1
        [scope] = query.scopes.items() if is_one else [("recipient", query.counted or "")]
        visit.caller.check_scope(*scope)


def _read(visit: Visit, query: CalendarQuery, start: datetime, end: datetime) -> Timeline:
    kind, name, scopes = None, query.counted, dict(query.scopes) or None
    if name is None and scopes:
        if query.channel is not None:
            raise InvalidDraft("recipient", "not given", "a recipient, or one of channel and scope")
        if len(scopes) == 1:
            [(kind, name)] = scopes.items()
            scopes = None
    return visit.parts.timeline_reader.read(
        name, channel=query.channel, scopes=scopes, zone=visit.zone, kind=kind, start=start,
        length=end - start, spell=query.scope is None,
    )  # fmt: skip


def _opt_outs(visit: Visit, query: CalendarQuery) -> list[str | None]:
    if query.recipient is None:
        return []
    try:
        opt_outs = visit.dispatcher.suppressed(query.recipient)
        return [opt_out.channel for opt_out in islice(opt_outs, _MOST_OPT_OUTS)]
    except InvalidDraft:
        return []  # a scope of another name is no recipient


def _time(visit: Visit, field: str, *, near: datetime) -> datetime:
    instant = visit.time_of(visit.query[field], field, near=near)
    now, farthest = visit.parts.clock.now(), visit.site.settings.max_horizon
    send_time.check_not_too_far(instant, now=now, farthest=farthest, field=field)
    if instant < from_ms(0) + _BEFORE:
        raise InvalidSendTime(field, instant.isoformat(), "a time from 1970 on")
    return instant


def _noted(refused: Sequence[LastRefusal], at: datetime) -> Sequence[LastRefusal]:
    """Return the refusals noted for a time: of one without seconds, for that minute."""
    until = at + (timedelta(seconds=1) if at.second or at.microsecond else _MINUTE)
    return [refusal for refusal in refused if at <= refusal.send_at < until][:_MOST_REFUSALS]


def _verdict(
    visit: Visit, query: CalendarQuery, timeline: Timeline, at: datetime, now: datetime
) -> Verdict:
    """Judge a time by the rule by which a submit is judged, without booking.

    Without a recipient and a channel there is no message to judge, and a plan copies the windows
    that it needs: then the next slot from that time on tells whether it fits.
    """
    if at < now:
        text, slot = "Nothing can be booked for it any more.", next(iter(timeline.slots), None)
        return Verdict(at=at, fits=False, is_past=True, text=text, next_slot=slot)
    is_large = any(window.many > _MOST_COPIED for window in timeline.windows)
    if query.recipient is None or query.channel is None or is_large:
        return _by_slot(visit, query, timeline, at)
    draft = Draft(
        channel=query.channel,
        recipient=query.recipient,
        scope=query.scope,
        body={"text": "what if"},
        send_at=at,
        zone=visit.zone,
        scopes=dict(query.scopes) or None,
    )
    rejections = visit.dispatcher.plan([draft]).rejections
    if not rejections:
        return Verdict(at=at, fits=True, text="It fits every quota.")
    error = rejections[0].error
    if isinstance(error, Unavailable):
        raise error
    if isinstance(error, InvalidDraft) and error.field.startswith("body"):
        # Only the transport of the channel knows what it takes.
        return _by_slot(visit, query, timeline, at)
    if not isinstance(error, QuotaExceeded):
        text, slot = visit.error_text(error), None
        if isinstance(error, QuietHours):
            text = f"It lies in quiet hours: {error.quiet_hours} {error.zone}."
            slot = error.next_slot
        return Verdict(at=at, fits=False, text=text, next_slot=slot)
    ids = error.conflicting[:_MOST_IN_THE_WAY] if visit.caller.sees_conflicts else ()
    lanes, refusing = lanes_of(timeline), (error.quota, error.scope)
    return Verdict(
        at=at,
        fits=False,
        text=f"It would break the quota {error.quota} of {visit.scope_text(error.scope)}.",
        pattern=next((lane.pattern for lane in lanes if lane[:2] == refusing), None),
        also=[lane for lane in lanes if lane[:2] != refusing and lane.blocks(at)],
        in_the_way=sorted(visit.parts.messages.find_many(ids), key=lambda row: row.send_at),
        more=len(error.conflicting) - len(ids),
        next_slot=error.next_slot,
    )


def _by_slot(visit: Visit, query: CalendarQuery, timeline: Timeline, at: datetime) -> Verdict:
    """Judge a time by whether the next slot is that time; the timeline names what is in the way."""
    if query.counted is not None:
        slot = visit.dispatcher.next_slot(
            recipient=query.recipient, scope=query.scope, channel=query.channel, after=at,
            zone=visit.zone, scopes=dict(query.scopes) or None,
        )  # fmt: skip
    else:
        slot = _read(visit, query, at, at + timedelta(minutes=1)).slots[0]
    if slot == at:
        return Verdict(at=at, fits=True, text="It fits the quotas that are shown.")
    for lane in lanes_of(timeline):
        if lane.blocks(at):
            text = f"It would break the quota {lane.quota} of {visit.scope_text(lane.scope)}."
            return Verdict(at=at, fits=False, text=text, pattern=lane.pattern, next_slot=slot)
    why = "It lies in quiet hours." if _is_within(at, timeline.quiet) else "It does not fit."
    return Verdict(at=at, fits=False, text=why, next_slot=slot)


def _is_within(instant: datetime, spans: Iterable[Span]) -> bool:
    return any(span.begins_at <= instant < span.ends_at for span in spans)


def _table(visit: Visit, timeline: Timeline, drawn: Picture) -> tuple[Sequence[TableRow], int]:
    """Return the first rows of all that the picture shows, and how many more there are."""
    rows = [
        TableRow(entry.at, None, "booked", "a message", "", entry.message_id)
        for entry in timeline.windows[0].booked
    ]
    for lane in drawn.lanes:
        by, css = f"{lane.quota} of {visit.scope_text(lane.scope)}", f"q{lane.pattern}"
        rows += [TableRow(*span, "blocked", by, css) for span in lane.timeline.full]
        if kept := lane.timeline.quota.kept:
            what, css = f"blocked below priority {kept.priority}", f"{css} kept"
            rows += [TableRow(*span, what, by, css) for span in lane.timeline.blocked]
    rows += [TableRow(*span, "quiet hours", "", "quiet") for span in timeline.quiet]
    for change in drawn.changes:
        text = change_text(change)
        rows.append(TableRow(change.begins_at, None, "clock change", text))
    rows += [TableRow(slot, None, "free slot", "", "slot") for slot in timeline.slots]
    rows.sort(key=lambda row: row.begins_at)
    return rows[:_MOST_ROWS], len(rows) - _MOST_ROWS


@dataclass(frozen=True, slots=True)
class View:
    """How much time a picture shows: rows of this length, with a line at every step."""

    title: str
    whole: timedelta
    row: timedelta
    step: timedelta


VIEWS = {
    "hours": View("6 hours", timedelta(hours=6), timedelta(hours=1), timedelta(minutes=10)),
    "day": View("Day", timedelta(days=1), timedelta(hours=3), timedelta(minutes=30)),
    "week": View("Week", timedelta(days=7), timedelta(days=1), timedelta(hours=3)),
    "weeks": View("4 weeks", timedelta(days=28), timedelta(days=7), timedelta(days=1)),
}


class Lane(NamedTuple):
    quota: str
    scope: str
    pattern: int
    timeline: QuotaTimeline

    def blocks(self, instant: datetime) -> bool:
        return _is_within(instant, self.timeline.blocked)


class Block(NamedTuple):
    x: float
    width: float
    y: float
    css: str


class Mark(NamedTuple):
    x: float
    bookings: int
    at: datetime
    until: datetime
    message_id: UUID


class Line(NamedTuple):
    x: float
    text: str
    css: str


class PictureRow(NamedTuple):
    begins_at: datetime
    ends_at: datetime
    y: float
    width: float
    past: float
    blocks: Sequence[Block]
    marks: Sequence[Mark]
    lines: Sequence[Line]
    ticks: Sequence[Line]


def stretch_of(view: View, around: datetime, zone: str) -> tuple[datetime, datetime]:
    rules = zones.rules(zone)
    local = zones.wall_at(to_ms(around), rules)
    if view.whole < _DAY:
        start = around - timedelta(minutes=local.minute, seconds=local.second,
                                   microseconds=local.microsecond)  # fmt: skip
    else:
        start = zones.first_instant(datetime.combine(local, time.min), rules)
    return start, moved(start, view.whole, rules)


def lanes_of(timeline: Timeline) -> list[Lane]:
    quotas = [(window.scope, quota) for window in timeline.windows for quota in window.quotas]
    return [
        Lane(str(quota.quota), scope, number % PATTERNS + 1, quota)
        for number, (scope, quota) in enumerate(quotas)
    ]


def changes_of(timeline: Timeline) -> Iterator[Span]:
    """Yield the changes of the clocks, each until the instant plus the change as a length."""
    pieces = zones.pieces(zones.rules(timeline.zone), to_ms(timeline.start), to_ms(timeline.end))
    for (_, until_ms, before_ms), (_, _, after_ms) in pairwise(pieces):
        yield Span(from_ms(until_ms), from_ms(until_ms + after_ms - before_ms))


def moved(start: datetime, length: timedelta, rules: ZoneInfo) -> datetime:
    """Return the instant so much later; with a length of days the midnight of that day."""
    if abs(length) < _DAY:
        return start + length
    wall = zones.wall_at(to_ms(start), rules)
    return zones.first_instant(datetime.combine(wall, time.min) + length, rules)


class Picture:
    """The timeline of a view. ``lines``: instants, texts, classes; ``changes``: those of clocks."""

    def __init__(
        self,
        timeline: Timeline,
        view: View,
        now: datetime,
        lines: Sequence[tuple[datetime, str, str]],
    ) -> None:
        self._timeline = timeline
        self._view = view
        self._now = now
        self._rules = zones.rules(timeline.zone)
        self.lanes = lanes_of(timeline)
        self.changes = [*changes_of(timeline)]
        spans = list[Span]()
        start = timeline.start
        while start < timeline.end:
            end = moved(start, view.row, self._rules)
            spans.append(Span(start, min(end, timeline.end)))
            start = end
        self._longest = max(span.ends_at - span.begins_at for span in spans)
        changes = [(change.begins_at, change_text(change), "change") for change in self.changes]
        self._lines = sorted([*changes, *lines])
        self.lanes_height = BOOKED + LANE * (len(self.lanes) + bool(timeline.quiet))
        self.rows, self.height = list[PictureRow](), TOP
        for span in spans:
            row = self._row(span, self.height)
            self.rows.append(row)
            self.height += self.lanes_height + GAP + max(0, len(row.lines) - 1) * LINE

    def _row(self, span: Span, y: float) -> PictureRow:
        blocks = list[Block]()
        lanes = [(lane.timeline.full, f"q{lane.pattern}") for lane in self.lanes]
        for number, (spans, css) in enumerate([*lanes, (self._timeline.quiet, "quiet")]):
            blocks += self._blocks(span, spans, y + BOOKED + number * LANE, css)
        for number, lane in enumerate(self.lanes):
            if lane.timeline.quota.kept:
                at, css = y + BOOKED + number * LANE, f"q{lane.pattern} kept"
                blocks += self._blocks(span, lane.timeline.blocked, at, css)
        width, past = self._x(span, span.ends_at) - LEFT, self._x(span, self._now) - LEFT
        lines = [
            Line(self._x(span, at), text, css)
            for at, text, css in self._lines
            if span.begins_at <= at < span.ends_at
        ]
        return PictureRow(*span, y, width, min(max(past, 0), width), blocks, self._marks(span),
                          lines, list(self._ticks(span, is_first=y == TOP)))  # fmt: skip

    def _ticks(self, row: Span, *, is_first: bool) -> Iterator[Line]:
        view, tick = self._view, row.begins_at
        while (tick := moved(tick, view.step, self._rules)) < row.ends_at:
            shown = tick.astimezone(self._rules)
            if view.step >= _DAY:
                text = f"{shown:%a %d}"
            elif (view.row == _DAY and not is_first) or (shown.minute and view.row > _HOUR):
                text = ""
            else:
                text = f"{shown:%H:%M}"
            yield Line(self._x(row, tick), text, "tick")

    def _blocks(self, row: Span, spans: Iterable[Span], y: float, css: str) -> list[Block]:
        """Return what is seen of spans in a row; those that touch in the picture are one."""
        joined: list[tuple[float, float]] = []
        for span in spans:
            if span.ends_at <= row.begins_at or span.begins_at >= row.ends_at:
                continue
            first = self._x(row, max(span.begins_at, row.begins_at))
            last = max(self._x(row, min(span.ends_at, row.ends_at)), first + 1)
            if joined and first <= joined[-1][1] + 1:
                first, end = joined.pop()
                last = max(end, last)
            joined.append((first, last))
        return [Block(first, round(last - first, 1), y, css) for first, last in joined]

    def _marks(self, row: Span) -> list[Mark]:
        marks: list[Mark] = []
        for booking in self._timeline.windows[0].booked:
            if not row.begins_at <= booking.at < row.ends_at:
                continue
            x = self._x(row, booking.at)
            if marks and x - marks[-1].x < _DOT:
                marks[-1] = marks[-1]._replace(bookings=marks[-1].bookings + 1, until=booking.at)
            else:
                marks.append(Mark(x, 1, booking.at, booking.at, booking.message_id))
        return marks

    def _x(self, row: Span, instant: datetime) -> float:
        part = (instant - row.begins_at) / self._longest
        return round(LEFT + (WIDTH - LEFT - RIGHT) * part, 1)


def change_text(change: Span) -> str:
    seconds = (change.ends_at - change.begins_at).total_seconds()
    minutes = abs(seconds) / 60
    length = f"{minutes / 60:g} h" if minutes % 60 == 0 else f"{minutes:g} min"
    return f"clocks {'go forward' if seconds > 0 else 'go back'} {length}"

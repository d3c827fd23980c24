"""The timeline of one message's scopes: what is reserved in a stretch of time, and what is free.

It reads the rule of ``lua/rule.lua`` over a whole stretch. The scripts judge single times and tell
when a blocked stretch ends, not when the next one begins or how full a quota is;
``test_timeline.py`` compares both. Here times are sorted whole milliseconds since 1970, and
intervals are pairs (from, until), ``until`` not belonging to them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from itertools import chain, pairwise, starmap
from typing import NamedTuple
from uuid import UUID

from dispatcher.errors import InvalidValue
from dispatcher.quota import AnyQuota, CalendarQuota, Quota, places
from dispatcher.reservation.booking import Terms
from dispatcher.reservation.contents import Contents
from dispatcher.reservation.encoding import ID_BYTES, id_of
from dispatcher.reservation.rulebook import RuleBook
from dispatcher.reservation.windows import Windows
from dispatcher.scope import Scope
from dispatcher.times.periods import UNIT_MS, bounds
from dispatcher.times.quiet_hours import Interval, united
from dispatcher.times.send_time import from_ms, to_ms

MOST_READ = 10_000
"""Most booked times that are read of one window before the start, and from the start on."""
_MOST_STEPS = 54
_MOST_SLOTS = 5
_EVER = (0, 10**15)
_STEPS = (
    *(minutes * UNIT_MS["minute"] for minutes in (1, 2, 5, 10, 15, 30)),
    *(hours * UNIT_MS["hour"] for hours in (1, 2, 3, 4, 6, 12)),
    UNIT_MS["day"],
    UNIT_MS["week"],
)

StretchCount = tuple[int, int, int]
"""The start and the end of a stretch, and how many times are counted together there."""


class Span(NamedTuple):
    """The instants from ``begins_at`` until before ``ends_at``, both aware UTC."""

    begins_at: datetime
    ends_at: datetime


class Booked(NamedTuple):
    """A message's reservation in a window. ``held``: one of the two of a move under way."""

    message_id: UUID
    at: datetime
    held: bool


class Fill(NamedTuple):
    """How many booked times a quota counts together in a stretch, and how many may be booked there.

    For a calendar quota the stretch is one of its periods, with all times in it. Otherwise it is
    a step of the timeline, with the most times of any span of the quota's length that ends in it.
    """

    begins_at: datetime
    ends_at: datetime
    booked: int
    most: int


@dataclass(frozen=True, slots=True)
class QuotaTimeline:
    """How full one quota of one scope is, and where it refuses a new message of the priority.

    Where it is ``full`` it refuses also those that it keeps places for.

    Calendar periods without a booked time are left out of ``fills``. Where the window was not read,
    there is one fill, of the period or the length that begins at the start, and ``blocked`` and
    ``full`` are empty.
    """

    quota: AnyQuota
    fills: tuple[Fill, ...]
    blocked: tuple[Span, ...]
    full: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class WindowTimeline:
    """What is booked of one scope, and what each of its quotas makes of it.

    ``booked`` are the reservations from the start of the timeline to its end. Where there is too
    much to read (more than 10,000 times before the start that still count, or from it on), it is
    not ``complete``: then ``booked`` has none. ``many`` are booked in all, whenever it may be.
    """

    scope: str
    complete: bool
    booked: tuple[Booked, ...]
    quotas: tuple[QuotaTimeline, ...]
    many: int = 0

    @property
    def exists(self) -> bool:
        return self.many > 0


@dataclass(frozen=True)
class Timeline:
    """Why times of one message's scopes are free or not, from ``start`` until before ``end``.

    What is refused and which slots are free is told for a message of ``priority``.

    Instants are aware UTC. ``steps`` cut the stretch into about 48 pieces of the local time of
    ``zone``. ``quiet`` are the quiet hours. ``slots`` are the next times that fit, from the start
    or from now on: the beginnings of the next few free stretches; the last may lie after the end.
    The windows are read one after the other, while bookings go on.
    """

    start: datetime
    end: datetime
    zone: str
    windows: tuple[WindowTimeline, ...]
    quiet: tuple[Span, ...]
    steps: tuple[Span, ...]
    slots: tuple[datetime, ...]
    priority: int = 0

    @cached_property
    def blocked(self) -> tuple[Span, ...]:
        quotas = chain.from_iterable(window.quotas for window in self.windows)
        blocked = chain.from_iterable(quota.blocked for quota in quotas)
        return tuple(starmap(Span, united(blocked)))

    @cached_property
    def refused(self) -> tuple[Span, ...]:
        """Where a new message is refused, by a quota or because of quiet hours."""
        return tuple(starmap(Span, united((*self.blocked, *self.quiet))))

    @property
    def complete(self) -> bool:
        """Whether all booked times that count were read, so that ``blocked`` is all."""
        return all(window.complete for window in self.windows)

    def refuses(self, instant: datetime) -> bool:
        """Tell whether a new message at ``instant`` would be refused. Raises InvalidValue."""
        if not self.start <= instant < self.end:
            accepted = f"from {self.start.isoformat()} until before {self.end.isoformat()}"
            raise InvalidValue("instant", f"{instant.isoformat()} is not covered", accepted)
        if not self.complete:
            problem = "is not known to be free: too much is booked to be read"
            raise InvalidValue("instant", problem, "the times of slots, or next_slot")
        index = bisect_right(self.refused, (instant, self.end)) - 1
        return index >= 0 and instant < self.refused[index].ends_at


class Timelines:
    """Reads timelines. Every call raises ReservationsUnavailable like Windows."""

    def __init__(self, contents: Contents, windows: Windows, rules: RuleBook) -> None:
        self._contents = contents
        self._slot_of = windows.next_slot
        self._rules = rules

    def read(self, terms: Terms, start: datetime, end: datetime, *, now: datetime) -> Timeline:
        stretch = to_ms(start), to_ms(end)
        edges = _edges(*stretch, terms.zone)
        quiet = terms.quiet.inside(terms.zone, *stretch) if terms.quiet else ()
        timeline = Timeline(
            start=start,
            end=end,
            zone=terms.zone,
            priority=terms.priority,
            windows=self.windows(terms, start, end),
            quiet=_spans(quiet),
            steps=_spans(pairwise(edges)),
            slots=(),
        )
        return replace(timeline, slots=self._slots(terms, timeline, now))

    def windows(self, terms: Terms, start: datetime, end: datetime) -> tuple[WindowTimeline, ...]:
        """Return what is booked of each scope in that time, without quiet hours and slots."""
        edges = _edges(to_ms(start), to_ms(end), terms.zone)
        return tuple(self._window(scope, terms, edges) for scope in terms.scopes)

    def _window(self, scope: Scope, terms: Terms, edges: Sequence[int]) -> WindowTimeline:
        start, end, zone = edges[0], edges[-1], terms.zone
        quotas = self._rules.now().quotas(scope.kind, scope.name)
        earliest, latest = _reach(quotas, zone, start, end)
        _, window = self._contents.fence.window_of(scope)

        stretches = [(earliest, start), (start, latest), _EVER]
        *near, many = self._contents.counts(window, stretches)
        if max(near) > MOST_READ:
            spans = [_first_span(quota, zone, start) for quota in quotas]
            counts = self._contents.counts(window, spans)
            timelines = tuple(
                QuotaTimeline(quota, (_fill(quota, terms, begins, ends, count),), (), ())
                for quota, (begins, ends), count in zip(quotas, spans, counts, strict=True)
            )
            return WindowTimeline(str(scope), False, (), timelines, many)
        members = self._contents.members(window, earliest, latest)
        times = [at_ms for _, at_ms in members]
        often = Counter(member[:ID_BYTES] for member, _ in members)
        booked = tuple(
            Booked(id_of(member), from_ms(at_ms), often[member[:ID_BYTES]] > 1)
            for member, at_ms in members
            if start <= at_ms < end and len(member) >= ID_BYTES
        )
        timelines = tuple(_quota(quota, times, terms, edges) for quota in quotas)
        return WindowTimeline(str(scope), True, booked, timelines, many)

    def _slots(self, terms: Terms, timeline: Timeline, now: datetime) -> tuple[datetime, ...]:
        slots: list[datetime] = []
        after = max(timeline.start, now)
        while len(slots) < _MOST_SLOTS:
            slot = self._slot_of(terms, after)
            slots.append(slot)
            following = bisect_left(timeline.refused, (slot, slot))
            if slot >= timeline.end or following == len(timeline.refused):
                break
            after = max(slot, timeline.refused[following].begins_at)
        return tuple(dict.fromkeys(slots))


def _quota(
    quota: AnyQuota, times: Sequence[int], terms: Terms, edges: Sequence[int]
) -> QuotaTimeline:
    start, end = edges[0], edges[-1]
    if isinstance(quota, CalendarQuota):
        counts = [*_period_counts(times, quota, terms.zone)]
    else:
        counts = [*_step_counts(times, quota, edges)]
    fills = [_fill(quota, terms, *count) for count in counts if count[0] < end and count[1] > start]

    def blocked(priority: int) -> tuple[Span, ...]:
        if isinstance(quota, CalendarQuota):
            spans = [(begins, ends) for begins, ends, count in counts
                     if count >= places(quota, priority, begins, terms.zone)]  # fmt: skip
        else:
            length = quota.length_ms
            runs = zip(times, times[places(quota, priority) - 1 :], strict=False)
            spans = [(last - length + 1, first + length)
                     for first, last in runs if last - first < length]  # fmt: skip
        cut = [(max(begins, start), min(ends, end)) for begins, ends in united(spans)]
        return _spans((begins, ends) for begins, ends in cut if begins < ends)

    priority = terms.priority
    full = blocked(quota.kept.priority if quota.kept else priority)
    return QuotaTimeline(quota, tuple(fills), blocked(priority), full)


def _fill(quota: AnyQuota, terms: Terms, begins: int, ends: int, count: int) -> Fill:
    most = places(quota, terms.priority, begins, terms.zone)
    return Fill(from_ms(begins), from_ms(ends), count, most)


def _step_counts(
    times: Sequence[int], quota: Quota, edges: Sequence[int]
) -> Iterator[StretchCount]:
    """Yield for each step the most times within a span of the quota's length that ends in it.

    As with the quota itself, a span holds times that lie less than its length apart.
    """

    def ending_at(instant: int) -> int:
        return bisect_right(times, instant) - bisect_right(times, instant - quota.length_ms)

    for start, end in pairwise(edges):
        inside = times[bisect_left(times, start) : bisect_left(times, end)]
        yield start, end, max(map(ending_at, (start, *inside)))


def _period_counts(times: Sequence[int], quota: CalendarQuota, zone: str) -> Iterator[StretchCount]:
    index = 0
    while index < len(times):
        start, end = quota.bounds(times[index], 1, zone)
        after = bisect_left(times, end)
        yield start, end, after - index
        index = after


def _first_span(quota: AnyQuota, zone: str, start: int) -> Interval:
    """Return the period of a quota in which ``start`` lies, or its length from there on."""
    if isinstance(quota, Quota):
        return start, start + quota.length_ms
    first, last = quota.bounds(start, 1, zone)
    return first, last


def _reach(quotas: Sequence[AnyQuota], zone: str, start: int, end: int) -> Interval:
    """Return from when until when booked times decide about times from start to end, in ms."""
    lengths = [quota.length_ms for quota in quotas if isinstance(quota, Quota)]
    rolling = max(lengths, default=0)
    spans = [_first_span(quota, zone, at) for quota in quotas for at in (start, end - 1)]
    earliest = min(begins for begins, _ in spans)
    return min(start - rolling, earliest), max(end + rolling, *(ends for _, ends in spans))


def _edges(start: int, end: int, zone: str) -> list[int]:
    """Return where the steps begin that local clocks make of a stretch, and where it ends."""
    length = next(length for length in _STEPS if end - start <= _MOST_STEPS * length)
    # One more for the step that has begun at the start, and for the hour that clocks go back.
    begins = bounds(length, zone, start, _MOST_STEPS + 2)
    return [start, *(at for at in begins if start < at < end), end]


def _spans(intervals: Iterable[Interval]) -> tuple[Span, ...]:
    return tuple(Span(from_ms(start), from_ms(end)) for start, end in intervals)

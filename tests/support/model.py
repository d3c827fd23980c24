"""The promise about quotas and quiet hours in plain Python, by its definition.

A time fits a quota of N per W when adding it makes no N+1 members lie within a span shorter than
W. Times are integer milliseconds, a quota is ``(N, W)``. Where zones matter, ``Ledger`` adds
calendar quotas and quiet hours, over several scopes at once; what clocks show comes from
``calendar_model``, which steps through instants.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from fractions import Fraction
from functools import lru_cache
from math import floor
from uuid import UUID
from zoneinfo import ZoneInfo

from dispatcher.errors import QuietHours, QuotaExceeded, SlotRefused
from dispatcher.quota import AnyQuota, CalendarQuota
from dispatcher.quota import Quota as RollingQuota
from dispatcher.reservation.booking import Terms
from dispatcher.scope import Scope
from dispatcher.times.periods import CalendarUnit
from dispatcher.times.quiet_hours import Hours
from dispatcher.times.send_time import to_ms
from tests.support.calendar_model import (
    DAY_MS,
    LONGEST_MS,
    MINUTE_MS,
    STEPS_MS,
    Item,
    begun_periods,
    shows_inside,
    text_of,
)

Quota = tuple[int, int]
Interval = tuple[int, int]

_MOST_NAMED = 100
_STRETCH_MS: dict[CalendarUnit, int] = {
    "minute": DAY_MS,
    "hour": DAY_MS,
    "day": 8 * DAY_MS,
    "week": 16 * DAY_MS,
    "month": 32 * DAY_MS,
}


def is_broken(times: Iterable[int], quota: Quota) -> bool:
    """Whether some N+1 of ``times`` lie within a span shorter than W."""
    count, length = quota
    ordered = sorted(times)
    return any(last - first < length for first, last in zip(ordered, ordered[count:], strict=False))


def fits(members: Sequence[int], time: int, quotas: Sequence[Quota]) -> bool:
    """Whether ``time`` may join ``members``, which are sorted."""
    place = bisect_left(members, time)
    for count, length in quotas:
        # Of N+1 members that include the new one, those next to it lie closest together.
        near = [*members[max(0, place - count) : place], time, *members[place : place + count]]
        if is_broken(near, (count, length)):
            return False
    return True


def excesses(times: Sequence[int], quotas: Iterable[Quota], *, per_ms: int = 1) -> Iterator[str]:
    """Yield of each quota that is broken how many of ``times`` lie how close together.

    ``per_ms`` is how many units of ``times`` a millisecond has.
    """
    ordered = sorted(times)
    for count, length in quotas:
        if is_broken(ordered, (count, length * per_ms)):
            pairs = zip(ordered, ordered[count:], strict=False)
            span = min(last - first for first, last in pairs) / per_ms
            yield f"more than {count} within {length} ms ({span:.3f} ms)"


def blocked(members: Sequence[int], quotas: Iterable[Quota]) -> list[Interval]:
    """Return the blocked open intervals of sorted members: sorted, without common instants.

    Of each run of N members that lie within less than W, (last - W, first + W) is blocked, and
    nothing else is.
    """
    spans = []
    for count, length in quotas:
        lasts = members[count - 1 :]
        spans += [
            (last - length, first + length)
            for first, last in zip(members, lasts, strict=False)
            if last - first < length
        ]
    return merged(spans)


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """Join open intervals that have instants in common."""
    joined: list[Interval] = []
    for start, end in sorted(intervals):
        if joined and start < joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def next_free(intervals: Sequence[Interval], time: int) -> int:
    """Return the first time at or after ``time`` that lies in none of the intervals."""
    place = bisect_right(intervals, (time, time)) - 1
    for start, end in intervals[max(0, place) :]:
        if start >= time:
            break
        time = max(time, end)
    return time


def period(unit: CalendarUnit, zone: str, instant: int) -> tuple[int, int]:
    """Return the bounds of the period of an instant: the latest that has begun."""
    begun = _begun_near(unit, zone, instant // _STRETCH_MS[unit])
    place = bisect_right(begun, instant)
    return begun[place - 1], begun[place]


def most_of(quota: AnyQuota, priority: int, begins: int = 0, zone: str = "UTC") -> int:
    """Return how many places a message of a priority finds in a quota, in the period of a day."""
    count = Fraction(quota.count)
    if isinstance(quota, CalendarQuota) and quota.ramp is not None:
        day = datetime.fromtimestamp(begins / 1_000, ZoneInfo(zone)).date()
        while day > quota.ramp.since and count < quota.ramp.most:
            count *= Fraction(str(quota.ramp.factor))
            day -= timedelta(days=1)
        count = min(count, Fraction(quota.ramp.most))
    if quota.kept is not None and priority < quota.kept.priority:
        return floor(count) - quota.kept.count
    return floor(count)


@lru_cache(maxsize=1_000)
def _begun_near(unit: CalendarUnit, zone: str, stretch: int) -> list[int]:
    # From so early on that what the clocks showed before is overtaken.
    start = stretch * _STRETCH_MS[unit] - 2 * LONGEST_MS[unit] - DAY_MS
    end = (stretch + 1) * _STRETCH_MS[unit] + LONGEST_MS[unit] + STEPS_MS[unit]
    return begun_periods(unit, zone, start, end)


def is_quiet(items: Sequence[Item], zone: str, instant: int) -> bool:
    if not items:
        return False
    shown = _shown_on(zone, instant // DAY_MS)[instant % DAY_MS // MINUTE_MS]
    return _inside(tuple(items))[shown]


@lru_cache(maxsize=2_000)
def _shown_on(zone: str, day: int) -> list[int]:
    """Return the minute of the week that the clocks show in each minute of a UTC day."""
    rules = ZoneInfo(zone)
    seconds = range(day * 86_400, (day + 1) * 86_400, 60)
    walls = (datetime.fromtimestamp(second, rules) for second in seconds)
    return [(wall.weekday() * 24 + wall.hour) * 60 + wall.minute for wall in walls]


@lru_cache(maxsize=500)
def _inside(items: tuple[Item, ...]) -> list[bool]:
    monday = datetime(2001, 1, 1)  # noqa: DTZ001 - what clocks show
    walls = (monday + timedelta(minutes=minute) for minute in range(7 * 24 * 60))
    return [any(shows_inside(wall, item) for item in items) for wall in walls]


@dataclass(frozen=True)
class Wish:
    """What a time is judged by: the scopes it counts in, the zone, the quiet hours in it."""

    scopes: tuple[Scope, ...]
    zone: str = "UTC"
    items: tuple[Item, ...] = ()
    priority: int = 0

    @property
    def text(self) -> str:
        return "; ".join(text_of(item) for item in self.items)

    @property
    def terms(self) -> Terms:
        quiet = Hours.parse(self.text) if self.items else None
        return Terms(self.scopes, self.zone, quiet, self.priority)


@dataclass
class Ledger:
    """Who is booked where, and what the quotas say of it."""

    quotas: Mapping[str, Sequence[AnyQuota]]
    places: dict[Scope, dict[UUID, int]] = field(default_factory=dict)
    holders: dict[UUID, UUID] = field(default_factory=dict)
    """Whose the places are that are booked under another id: the second ones of dead moves."""
    own: dict[Scope, Sequence[AnyQuota]] = field(default_factory=dict)
    """The quotas of single scopes."""

    def of(self, scope: Scope) -> Sequence[AnyQuota]:
        return self.own.get(scope) or self.quotas[scope.kind]

    def book(self, scopes: Sequence[Scope], message_id: UUID, at: int) -> None:
        for scope in scopes:
            self.places.setdefault(scope, {})[message_id] = at

    def swap(self, scopes: Sequence[Scope], message_id: UUID, second: UUID) -> None:
        """Note that the second place of a message is now its own, and the first one left over."""
        for scope in scopes:
            places = self.places[scope]
            places[message_id], places[second] = places[second], places[message_id]

    def free(self, message_id: UUID) -> None:
        for members in self.places.values():
            members.pop(message_id, None)

    def members(self, scope: Scope, without: UUID | None = None) -> list[int]:
        booked = self.places.get(scope, {})
        return sorted(at for id_, at in booked.items() if id_ != without)

    def slot(
        self, wish: Wish, asked: int, *, without: UUID | None = None, most: int = 10**15
    ) -> int:
        """Return the first time from ``asked`` on that fits, or one after ``most``.

        From a blocked time on there is none before the end of one thing that blocks it.
        """
        windows = [self.members(scope, without) for scope in wish.scopes]
        rules = [self._rolling(scope, wish.priority) for scope in wish.scopes]
        pairs = [*zip(windows, rules, strict=True)]
        rolling = merged(span for members, quotas in pairs for span in blocked(members, quotas))
        time = asked
        while time <= most:
            end = next_free(rolling, time)
            if end == time:
                end = next(self._blocks(wish, time, windows), time)
            if end == time:
                assert all(fits(members, time, quotas) for members, quotas in pairs)
                break
            time = end
        return time

    def _rolling(self, scope: Scope, priority: int) -> list[Quota]:
        return [
            (most_of(rule, priority), rule.length_ms)
            for rule in self.of(scope)
            if isinstance(rule, RollingQuota)
        ]

    def broken(self, scope: Scope, times: list[int], priority: int = 100) -> list[str]:
        """Name the quotas of a scope that these times break, but for those in local zones.

        The times are those of messages of at most ``priority``.
        """
        return [
            f"{quota} of {scope}"
            for quota in self.of(scope)
            if self._is_broken(quota, times, priority)
        ]

    def taken(self, scope: Scope, priorities: Mapping[UUID, int]) -> list[str]:
        """Name the quotas of a scope whose kept places are taken by messages of lower classes."""
        members = self.places.get(scope, {})
        floors = {quota.kept.priority for quota in self.of(scope) if quota.kept}
        return [
            broken
            for least in floors
            for broken in self.broken(
                scope,
                sorted(at for id_, at in members.items() if priorities[id_] < least),
                least - 1,
            )
        ]

    def check(
        self, wish: Wish, asked: int, refusal: SlotRefused, *, without: UUID | None = None
    ) -> None:
        """Fail unless a refusal names what really is in the way, and the next slot."""
        assert to_ms(refusal.next_slot) == self.slot(wish, asked, without=without)
        assert to_ms(refusal.send_at) == asked
        if is_quiet(wish.items, wish.zone, asked):
            assert isinstance(refusal, QuietHours)
            assert refusal.zone == wish.zone
            assert Hours.parse(refusal.quiet_hours) == Hours.parse(wish.text)
            return
        assert isinstance(refusal, QuotaExceeded)
        [scope] = [scope for scope in wish.scopes if str(scope) == refusal.scope]
        named = next(quota for quota in self.of(scope) if str(quota) == refusal.quota)
        named_ids = refusal.conflicting
        most = most_of(named, wish.priority)
        if isinstance(named, CalendarQuota):
            zone = named.zone or wish.zone
            most = most_of(named, wish.priority, period(named.unit, zone, asked)[0], zone)
        assert refusal.most == (most if most != named.count else None)
        assert len(named_ids) == min(most, _MOST_NAMED)
        if without not in self.holders.values():
            assert without not in named_ids
        times = self._times(scope, named_ids)
        if isinstance(named, RollingQuota):
            assert is_broken([*times, asked], (len(named_ids), named.length_ms))
            near = self.members(scope, without)
            assert not fits(near, asked, [(most, named.length_ms)])
        else:
            begins, ends = period(named.unit, named.zone or wish.zone, asked)
            assert sum(begins <= time < ends for time in times) >= len(named_ids)
            within = [member for member in self.members(scope, without) if begins <= member < ends]
            assert len(within) >= most

    def _times(self, scope: Scope, message_ids: Sequence[UUID]) -> list[int]:
        booked, named = self.places[scope], set(message_ids)
        assert {self.holders.get(id_, id_) for id_ in booked} >= named
        return [at for id_, at in booked.items() if self.holders.get(id_, id_) in named]

    def _blocks(self, wish: Wish, time: int, windows: Sequence[list[int]]) -> Iterator[int]:
        """Yield the ends of quiet hours and full periods that hold a time."""
        if is_quiet(wish.items, wish.zone, time):
            minute = time // MINUTE_MS * MINUTE_MS
            while is_quiet(wish.items, wish.zone, minute):
                minute += MINUTE_MS
            yield minute
        for scope, members in zip(wish.scopes, windows, strict=True):
            for quota in self.of(scope):
                if isinstance(quota, RollingQuota):
                    continue
                zone = quota.zone or wish.zone
                begins, ends = period(quota.unit, zone, time)
                most = most_of(quota, wish.priority, begins, zone)
                if sum(begins <= member < ends for member in members) >= most:
                    yield ends

    @staticmethod
    def _is_broken(quota: AnyQuota, times: list[int], priority: int) -> bool:
        if isinstance(quota, RollingQuota):
            return is_broken(times, (most_of(quota, priority), quota.length_ms))
        if quota.zone is None:
            return False
        zone = quota.zone
        begun = [period(quota.unit, zone, time)[0] for time in times]
        return any(
            begun.count(start) > most_of(quota, priority, start, zone) for start in set(begun)
        )

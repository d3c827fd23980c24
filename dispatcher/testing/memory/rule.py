"""The rule in Python: which times quotas and quiet hours block, as ``rule.lua`` judges them.

It reads all that is near a time at once, where the script works in bounded steps; the answers are
the same.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import islice
from uuid import UUID

from dispatcher.errors import ReservationsUnavailable
from dispatcher.quota import CalendarQuota, Quota
from dispatcher.reservation import Blocked, Terms
from dispatcher.reservation.shards import ENDLESS
from dispatcher.reservation.terms import AnyQuota
from dispatcher.scope import Scope
from dispatcher.times.quiet_hours import Hours, Interval
from dispatcher.times.zones import DAY_MS

Members = Sequence[tuple[float, bytes]]
"""The times of a window in ms with their members, sorted."""
_MOST_NAMED = 100
_QUIET_DAYS = 8
"""As long as no week is quiet all over, an interval of quiet hours ends within so many days."""


class Rule:
    """The quotas of every kind of scope, in the order in which a refusal names them."""

    def __init__(self, quotas: Mapping[str, Sequence[AnyQuota]]) -> None:
        self.rolling = {
            kind: tuple(each for each in some if isinstance(each, Quota))
            for kind, some in quotas.items()
        }
        self.calendars = {
            kind: tuple(each for each in some if isinstance(each, CalendarQuota))
            for kind, some in quotas.items()
        }


class Judge:
    """Judges times by the windows of some scopes and the terms of a message."""

    def __init__(self, rule: Rule, members: Mapping[Scope, Members], terms: Terms) -> None:
        self._rule = rule
        self._members = members
        self._terms = terms

    def found(self, asked_ms: int, latest_ms: int) -> int | Blocked:
        """Return the time, or the first one up to ``latest_ms``, that fits; or why there is none.

        Raises ReservationsUnavailable for a search beyond the year 9999.
        """
        try:
            until_ms, why = self._judged(asked_ms)
            if why is None:
                return asked_ms
            slot_ms = self.slot(until_ms)
        except OverflowError:
            raise ReservationsUnavailable(ENDLESS) from None
        if slot_ms <= latest_ms:
            return slot_ms
        return why._replace(until_ms=slot_ms, is_slot=True)

    def slot(self, at_ms: int) -> int:
        """Return the first time from this one on that fits."""
        while True:
            until_ms, why = self._judged(at_ms)
            if why is None:
                return at_ms
            at_ms = until_ms

    def _judged(self, at_ms: int) -> tuple[int, Blocked | None]:
        """Return until when a time is blocked, and the first reason."""
        quiet = self._terms.quiet
        if quiet is not None:
            for from_ms, until_ms in _quiet_from(quiet, self._terms.zone, at_ms // DAY_MS):
                if from_ms <= at_ms < until_ms:
                    return until_ms, Blocked(0, None, None, (), is_slot=True)
        furthest_ms, why = at_ms, None
        for scope, members in self._members.items():
            for rolling in self._rule.rolling[scope.kind]:
                run = _tight_run(members, at_ms, rolling)
                if run:
                    furthest_ms = max(furthest_ms, int(run[0][0]) + rolling.length_ms)
                    why = why or _blocked(scope, rolling, run)
            for calendar in self._rule.calendars[scope.kind]:
                begins_ms, ends_ms = calendar.bounds(at_ms, calendar.zone or self._terms.zone, 1)
                first = bisect_left(members, (begins_ms, b""))
                last = bisect_left(members, (ends_ms, b""))
                if last - first >= calendar.count:
                    furthest_ms = max(furthest_ms, ends_ms)
                    why = why or _blocked(scope, calendar, members[first : first + calendar.count])
        return furthest_ms, why


@lru_cache(maxsize=1 << 12)
def _quiet_from(quiet: Hours, zone: str, day: int) -> list[Interval]:
    """Return the quiet intervals from a UTC day on, numbered from 1970 on."""
    return quiet.inside(zone, day * DAY_MS, (day + _QUIET_DAYS) * DAY_MS)


def _blocked(scope: Scope, quota: AnyQuota, run: Members) -> Blocked:
    named = tuple(UUID(bytes=member[:16]) for _, member in islice(run, _MOST_NAMED))
    return Blocked(0, scope, quota, named, is_slot=True)


def _tight_run(members: Members, at_ms: int, quota: Quota) -> Members:
    """Return the last run of N members by which a quota of N per W blocks a time; or nothing."""
    count, length_ms = quota.count, quota.length_ms
    first = bisect_left(members, (at_ms - length_ms + 1, b""))
    last = bisect_left(members, (at_ms + length_ms, b""))
    for begin in range(last - count, first - 1, -1):
        if members[begin + count - 1][0] - members[begin][0] < length_ms:
            return members[begin : begin + count]
    return ()

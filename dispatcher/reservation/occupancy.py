"""The reservation rule over a stretch of time: how full a quota is, and where it blocks.

The same rule as in ``lua/rule.lua``. That judges single times and tells when a blocked stretch
ends, not when the next one begins or how full a quota is, so a timeline cannot be drawn with it;
``test_timeline.py`` compares both. Times are sorted whole milliseconds since 1970; intervals are
pairs (from, until), ``until`` not belonging to them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from dispatcher.quota import CalendarQuota, Quota
from dispatcher.times.quiet_hours import Interval

Filled = tuple[int, int, int]
"""From, until, and how many times are counted together there."""


def blocked_by_runs(times: Sequence[int], quota: Quota) -> list[Interval]:
    """Return where a quota refuses a new time: around each of its tight runs."""
    ends = times[quota.count - 1 :]
    return united(
        (last - quota.length_ms + 1, first + quota.length_ms)
        for first, last in zip(times, ends, strict=False)
        if last - first < quota.length_ms
    )


def blocked_by_periods(periods: Iterable[Filled], quota: CalendarQuota) -> list[Interval]:
    """Return the periods in which a calendar quota refuses a new time."""
    return united((start, end) for start, end, count in periods if count >= quota.count)


def filled_steps(times: Sequence[int], quota: Quota, edges: Sequence[int]) -> list[Filled]:
    """Return for each step the most times within a span of the quota's length that ends in it.

    ``edges`` are where the steps begin, and where the last one ends. As with the quota itself, a
    span holds times that lie less than its length apart.
    """

    def ending_at(instant: int, up_to: int) -> int:
        return up_to - bisect_right(times, instant - quota.length_ms)

    found = []
    for start, end in pairwise(edges):
        first, last = bisect_right(times, start), bisect_left(times, end)
        counts = (ending_at(times[index], index + 1) for index in range(first, last))
        found.append((start, end, max(ending_at(start, first), *counts, 0)))
    return found


def filled_periods(times: Sequence[int], quota: CalendarQuota, zone: str) -> list[Filled]:
    """Return the calendar periods that hold some of the times, and how many each holds."""
    return list(_periods(times, quota, quota.zone or zone))


def _periods(times: Sequence[int], quota: CalendarQuota, zone: str) -> Iterator[Filled]:
    index = 0
    while index < len(times):
        start, end = quota.bounds(times[index], zone, 1)
        after = bisect_left(times, end)
        yield start, end, after - index
        index = after


def united(intervals: Iterable[Interval]) -> list[Interval]:
    """Return intervals that cover the same instants, sorted, neither overlapping nor touching."""
    found: list[Interval] = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def cut(intervals: Iterable[Interval], start: int, end: int) -> list[Interval]:
    """Return what of the intervals lies from ``start`` until before ``end``."""
    return [
        (max(each[0], start), min(each[1], end))
        for each in intervals
        if max(each[0], start) < min(each[1], end)
    ]

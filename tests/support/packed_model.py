"""The promise about rolling quotas for windows of many thousands of members, by blocked intervals.

Faster than ``model`` and as plain: of each run of N members that lie within less than W, the open
interval (last - W, first + W) is blocked, and nothing else is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from tests.support.model import Quota

Interval = tuple[int, int]


def blocked(members: Sequence[int], quotas: Iterable[Quota]) -> list[Interval]:
    """Return the blocked open intervals of sorted members: sorted, without common instants."""
    found = []
    for count, length in quotas:
        lasts = members[count - 1 :]
        found += [
            (last - length, first + length)
            for first, last in zip(members, lasts, strict=False)
            if last - first < length
        ]
    return merged(found)


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

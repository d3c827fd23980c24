"""The promise about quotas in plain Python, by its definition and without any cleverness.

A time fits a quota of N per W when adding it makes no N+1 members lie within a span shorter than
W. Times are integer milliseconds, a quota is ``(N, W)``.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence

Quota = tuple[int, int]
Interval = tuple[int, int]


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


def next_slot(members: Sequence[int], asked: int, quotas: Sequence[Quota]) -> int:
    """Return the first time at or after ``asked`` that may join ``members``, sorted ones."""
    return next_free(blocked(members, quotas), asked)


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

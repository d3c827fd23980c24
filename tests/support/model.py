"""The promise about quotas in plain Python, by its definition and without any cleverness.

A time fits a quota of N per W when adding it makes no N+1 members lie within a span shorter than
W. Times are integer milliseconds, a quota is ``(N, W)``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

Quota = tuple[int, int]


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


def next_slot_by_runs(members: Sequence[int], asked: int, quotas: Sequence[Quota]) -> int:
    """Return the same as ``next_slot``, in one pass for each quota, for very long windows.

    Of a quota of N per W, N members in a row that lie within less than W of each other block the
    times that lie within less than W of all of them.
    """
    before = asked - 1
    while asked != before:
        before = asked
        for count, length in quotas:
            for first, last in zip(members, members[count - 1 :], strict=False):
                if last - first < length and last - length < asked < first + length:
                    asked = first + length
    return asked


def next_slot(members: Sequence[int], asked: int, quotas: Sequence[Quota]) -> int:
    """Return the first time at or after ``asked`` that fits, by trying all that could be it.

    What is blocked ends W after a member, so the first fit is ``asked`` or such an end.
    """
    ends = {member + length for member in members for _, length in quotas}
    candidates = sorted({asked} | {end for end in ends if end > asked})
    return next(time for time in candidates if fits(members, time, quotas))

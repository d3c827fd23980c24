"""Checks of the clocks, by bounds: the clock was read somewhere between question and answer."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import NamedTuple

from dispatcher.operations.doctor.finding import Check, Verdict, error, ok, warning
from dispatcher.times.clock import Clock

_LOOKS = 4
_ROUNDED = timedelta(milliseconds=1)
"""Servers answer in whole milliseconds."""
_MOST_APART = timedelta(seconds=1)
"""Submitters check send times by their clocks; workers expire ticks by theirs."""
_WARNING_APART = _MOST_APART / 2
"""Another machine may be off by as much in the other direction."""


class Offset(NamedTuple):
    """Bounds of how far a clock is ahead of this machine's."""

    least: timedelta
    most: timedelta

    @property
    def at_least(self) -> timedelta:
        """The least difference between the clocks."""
        if self.least <= timedelta(0) <= self.most:
            return timedelta(0)
        return min(abs(self.least), abs(self.most))

    @property
    def at_most(self) -> timedelta:
        """The greatest difference between the clocks."""
        return max(abs(self.least), abs(self.most))


def measure(ask: Callable[[], datetime], clock: Clock) -> Offset:
    """Ask several times, and intersect the bounds of all round trips.

    The other clock was read between the question and the answer.
    """
    looks = []
    for _ in range(_LOOKS):
        before = clock.now()
        told = ask()
        after = clock.now()
        looks.append(Offset(told - after - _ROUNDED, told - before + _ROUNDED))
    best = Offset(max(each.least for each in looks), min(each.most for each in looks))
    if best.least <= best.most:
        return best
    # One of the clocks was set in between.
    return min(looks, key=lambda each: each.most - each.least)


def agreement(name: str, whose: str, *, stops_worker: bool) -> Check[Offset]:
    """Return the check that the clock of ``whose`` agrees with this machine's."""

    def judge(offset: Offset) -> Verdict:
        seconds = offset.at_least.total_seconds()
        way = "behind" if offset.most < timedelta(0) else "ahead of"
        found = f"the clock of {whose} is {seconds:.3f} s or more {way} this machine's"
        remedy = "let NTP set the clocks of all machines"
        if offset.at_least > _MOST_APART:
            return error(
                f"{found}. Send times are judged by a clock that is wrong, and a worker that is "
                "far ahead of beat drops every tick of the sweep",
                remedy,
                stops_worker=stops_worker,
            )
        if offset.at_least > _WARNING_APART:
            return warning(f"{found}; another machine may be as far off the other way", remedy)
        if offset.at_most > _MOST_APART:
            return warning(
                f"answers took too long to tell: the clock of {whose} is at most "
                f"{offset.at_most.total_seconds():.3f} s off",
                f"look again when the connection to {whose} is less busy",
            )
        return ok(f"at most {offset.at_most.total_seconds():.3f} s off")

    return Check(name, judge)


OF_STORE = agreement("clock.store", "the database", stops_worker=True)
OF_REDIS = agreement("clock.redis", "Redis", stops_worker=False)

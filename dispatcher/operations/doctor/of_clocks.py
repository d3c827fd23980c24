"""Checks of the clocks, by bounds: no answer tells when on its way the clock was read."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import NamedTuple

from dispatcher.operations.doctor.finding import Check, Verdict, error, ok, warning
from dispatcher.times.clock import Clock

_LOOKS = 4
_ROUNDED = timedelta(milliseconds=1)
"""Servers tell whole milliseconds."""
_MOST_APART = timedelta(seconds=1)
"""Send times are judged by the clocks of those who submit, expiries of ticks by a worker's."""
_UNEASY = _MOST_APART / 2
"""Another machine may be as far off the other way."""


class Offset(NamedTuple):
    """How far a clock is ahead of this machine's: between these two."""

    least: timedelta
    most: timedelta

    @property
    def at_least(self) -> timedelta:
        """How far apart the clocks are, whichever is ahead, at the least."""
        if self.least <= timedelta(0) <= self.most:
            return timedelta(0)
        return min(abs(self.least), abs(self.most))

    @property
    def at_most(self) -> timedelta:
        """The same at the most."""
        return max(abs(self.least), abs(self.most))


def measure(ask: Callable[[], datetime], clock: Clock) -> Offset:
    """Ask several times; each round trip bounds the offset, all together best.

    What the other clock tells was read between the question and the answer.
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
    # One of the clocks was set meanwhile.
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
        if offset.at_least > _UNEASY:
            return warning(f"{found}; another machine may be as far off the other way", remedy)
        if offset.at_most > _MOST_APART:
            return warning(
                f"answers took too long to tell: the clock of {whose} is at most "
                f"{offset.at_most.total_seconds():.3f} s off",
                f"look again when the line to {whose} is less busy",
            )
        return ok(f"at most {offset.at_most.total_seconds():.3f} s off")

    return Check(name, judge)


OF_STORE = agreement("clock.store", "the database", stops_worker=True)
OF_REDIS = agreement("clock.redis", "Redis", stops_worker=False)

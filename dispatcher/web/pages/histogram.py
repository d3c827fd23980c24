"""Times asked for and promised, in stretches of one length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from dispatcher.message import Plan

WIDTH, HEIGHT = 960, 110
_MOST_STEPS = 40
_MINUTE = timedelta(minutes=1)
_STEPS = tuple(
    timedelta(minutes=each)
    for each in (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1_440, 2_880, 10_080, 40_320)
)


class Stretch(NamedTuple):
    at: datetime
    asked: int
    promised: int
    x: float
    width: float
    asked_height: float
    promised_height: float


class Histogram(NamedTuple):
    step: timedelta
    most: int
    stretches: Sequence[Stretch]


def histogram(plan: Plan) -> Histogram | None:
    times = [*plan.asked, *plan.promised]
    if not times:
        return None
    first, last = min(times), max(times)
    step = next((each for each in _STEPS if (last - first) // each < _MOST_STEPS), None)
    if step is None:
        step = _STEPS[-1] * -(-(last - first + _MINUTE) // (_STEPS[-1] * _MOST_STEPS))
    many = (last - first) // step + 1
    asked, promised = (_summed(each, first, step, many) for each in (plan.asked, plan.promised))
    most, width = max(*asked, *promised), WIDTH / many

    def height(number: int) -> float:
        return max(2.0, round(HEIGHT * number / most, 1)) if number else 0.0

    stretches = [
        Stretch(first + n * step, asked[n], promised[n], round(n * width, 1), round(width / 2, 1),
                height(asked[n]), height(promised[n]))
        for n in range(many)
    ]  # fmt: skip
    return Histogram(step, most, stretches)


def _summed(
    counted: Mapping[datetime, int], first: datetime, step: timedelta, many: int
) -> list[int]:
    found = [0] * many
    for at, number in counted.items():
        found[(at - first) // step] += number
    return found

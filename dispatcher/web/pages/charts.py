"""What the page draws as bars: the load to come, and the times of a plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from heapq import nsmallest
from typing import NamedTuple, Self

from dispatcher.message import Plan
from dispatcher.operations.overview import ChannelLoad, LoadedMinute, LoadToCome

WIDTH = 960
LOAD_HEIGHT, PLAN_HEIGHT = 96, 110
BARS = 96
_MOST_MINUTES = 60
_MOST_STEPS = 40
_MINUTE = timedelta(minutes=1)
_STEPS = tuple(
    timedelta(minutes=each)
    for each in (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1_440, 2_880, 10_080, 40_320)
)


class Bar(NamedTuple):
    x: float
    width: float
    height: float
    at: datetime
    due: int
    overbooked: bool


@dataclass(frozen=True, kw_only=True)
class ChannelChart:
    load: ChannelLoad
    due: int
    overbooked: int
    bars: Sequence[Bar]
    most: int
    minutes: Sequence[LoadedMinute]


@dataclass(frozen=True)
class LoadCharts:
    load: LoadToCome
    channels: Sequence[ChannelChart]

    @classmethod
    def of(cls, load: LoadToCome) -> Self:
        return cls(load, [_chart(channel, load) for channel in load.channels])


def _chart(channel: ChannelLoad, load: LoadToCome) -> ChannelChart:
    bars = list(_bars(channel.minutes, load))
    fullest = nsmallest(
        _MOST_MINUTES, channel.minutes, key=lambda minute: (not minute.overbooked, -minute.due)
    )
    return ChannelChart(
        load=channel,
        due=sum(minute.due for minute in channel.minutes),
        overbooked=sum(minute.overbooked for minute in channel.minutes),
        bars=bars,
        most=max((bar.due for bar in bars), default=0),
        minutes=sorted(fullest, key=lambda minute: minute.at),
    )


def _bars(minutes: Sequence[LoadedMinute], load: LoadToCome) -> Iterator[Bar]:
    step = (load.end - load.start) / BARS
    due = _summed({minute.at: minute.due for minute in minutes}, load.start, step, BARS)
    overbooked = {(minute.at - load.start) // step for minute in minutes if minute.overbooked}
    most, width = max(due), WIDTH / BARS
    for number, many in enumerate(due):
        if many:
            height, at = _height(many, most, LOAD_HEIGHT), load.start + number * step
            yield Bar(number * width, width - 1, height, at, many, number in overbooked)


class Stretch(NamedTuple):
    at: datetime
    asked: int
    promised: int
    x: float
    width: float
    asked_height: float
    promised_height: float


class Histogram(NamedTuple):
    """Times asked for and promised, in stretches of one length."""

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
    stretches = [
        Stretch(first + n * step, asked[n], promised[n], round(n * width, 1), round(width / 2, 1),
                _height(asked[n], most, PLAN_HEIGHT), _height(promised[n], most, PLAN_HEIGHT))
        for n in range(many)
    ]  # fmt: skip
    return Histogram(step, most, stretches)


def _height(number: int, most: int, whole: int) -> float:
    return max(2.0, round(whole * number / most, 1)) if number else 0.0


def _summed(
    counted: Mapping[datetime, int], first: datetime, step: timedelta, many: int
) -> list[int]:
    sums = [0] * many
    for at, number in counted.items():
        sums[(at - first) // step] += number
    return sums

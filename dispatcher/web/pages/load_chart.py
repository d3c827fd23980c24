"""The load to come as it is drawn: bars, and the fullest minutes of each channel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from heapq import nsmallest
from typing import NamedTuple, Self

from dispatcher.operations.overview import ChannelLoad, LoadedMinute, LoadToCome

WIDTH, HEIGHT = 960, 96
BARS = 96
_MOST_MINUTES = 60


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
        return cls(load, [_chart(each, load) for each in load.channels])


def _chart(channel: ChannelLoad, load: LoadToCome) -> ChannelChart:
    bars = list(_bars(channel.minutes, load))
    fullest = nsmallest(
        _MOST_MINUTES, channel.minutes, key=lambda each: (not each.overbooked, -each.due)
    )
    return ChannelChart(
        load=channel,
        due=sum(each.due for each in channel.minutes),
        overbooked=sum(each.overbooked for each in channel.minutes),
        bars=bars,
        most=max((each.due for each in bars), default=0),
        minutes=sorted(fullest, key=lambda each: each.at),
    )


def _bars(minutes: Sequence[LoadedMinute], load: LoadToCome) -> Iterator[Bar]:
    step = (load.end - load.start) / BARS
    due, overbooked = [0] * BARS, [False] * BARS
    for each in minutes:
        number = (each.at - load.start) // step
        due[number] += each.due
        overbooked[number] |= each.overbooked
    most, width = max(due, default=0), WIDTH / BARS
    for number in range(BARS):
        if due[number]:
            height = max(2.0, round(HEIGHT * due[number] / most, 1))
            at = load.start + number * step
            yield Bar(number * width, width - 1, height, at, due[number], overbooked[number])

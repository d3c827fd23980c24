"""Figures that are read once for all visitors, and what is drawn as bars: a load, a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass
from datetime import datetime, timedelta
from heapq import nsmallest
from math import inf
from threading import Lock, Thread
from typing import Generic, NamedTuple, Self, TypeVar

from dispatcher.message import Plan
from dispatcher.operations.overview import ChannelLoad, LoadedMinute, LoadToCome
from dispatcher.times.clock import SystemClock
from dispatcher.web.problems import Refused

T = TypeVar("T")

SECONDS = 2.0
"""How often the numbers of a page change at most."""
_PAUSE = 19
"""Ratio of the pause after a read to its length: each takes at most a twentieth of the time."""
_OLD_SECONDS = 30.0
_WAIT_SECONDS, _OLD_WAIT_SECONDS, _FIRST_WAIT_SECONDS = 0.05, 0.1, 5.0
"""How long a visit waits for a read: beside a figure, beside an old one, and without any."""
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


class CachedRead(Generic[T]):
    """A value that is read once for all visitors, every two seconds at most.

    A visit does not wait for a long read: it is shown what was read before, which says when that
    was. Only the first visits of a process wait, for some seconds at most.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._clock = SystemClock()
        self._seen: T | None = None
        self._seen_at = self._until = -inf
        self._under_way: Future[T] | None = None

    def of(self, read: Callable[[], T]) -> T:
        """Return what was read last. Raises as ``read``, and Refused before the first read ends."""
        with self._lock:
            now, seen, coming = self._clock.monotonic(), self._seen, self._under_way
            if coming is None and now >= self._until:
                coming = Future()
                Thread(target=self._read, args=(read, coming), name="figures", daemon=True).start()
                self._under_way = coming
            patience = _WAIT_SECONDS
            if now >= self._seen_at + _OLD_SECONDS:
                patience = _FIRST_WAIT_SECONDS if seen is None else _OLD_WAIT_SECONDS
        if coming is not None:
            try:
                return coming.result(patience)
            except NotYet:
                pass
        if seen is None:
            detail = "the messages are being counted; look again in some seconds"
            raise Refused(503, "not-yet", detail, headers={"Retry-After": "2"})
        return seen

    def _read(self, read: Callable[[], T], coming: Future[T]) -> None:
        began = self._clock.monotonic()
        try:
            found = read()
        except BaseException as error:  # noqa: BLE001 - the waiting threads raise it
            with self._lock:
                self._under_way = None
                if self._seen is not None:
                    self._pause(began)
            coming.set_exception(error)
            return
        with self._lock:
            self._seen, self._seen_at, self._under_way = found, self._clock.monotonic(), None
            self._pause(began)
        coming.set_result(found)

    def _pause(self, began: float) -> None:
        now = self._clock.monotonic()
        self._until = now + max(SECONDS, _PAUSE * (now - began))


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

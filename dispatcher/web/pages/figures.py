"""Figures that are read once for all visitors, and what is drawn as bars: a load, a plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from contextlib import suppress
from datetime import datetime, timedelta
from heapq import nsmallest
from math import inf
from threading import Lock, Thread
from typing import Generic, NamedTuple, TypeVar

from dispatcher.message import Plan
from dispatcher.operations.overview import ChannelLoad, LoadedMinute, LoadToCome
from dispatcher.times.clock import SystemClock
from dispatcher.web.problems import Refused

T = TypeVar("T")

SECONDS = 2.0
"""How often the numbers of a page change at most."""
_PAUSE = 19
"""Ratio of the pause after a read to its length: each takes at most a twentieth of the time."""
_WAIT_SECONDS, _FIRST_WAIT_SECONDS = 0.1, 5.0
"""How long a visit waits for a read: beside a figure, and without any."""
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
        self._until = -inf
        self._under_way: Future[T] | None = None

    def of(self, read: Callable[[], T]) -> T:
        """Return what was read last. Raises as ``read``, and Refused before the first read ends."""
        with self._lock:
            if self._under_way is None and self._clock.monotonic() >= self._until:
                self._under_way = Future()
                work = (read, self._under_way)
                Thread(target=self._read, args=work, name="figures", daemon=True).start()
            seen, coming = self._seen, self._under_way
        if coming is not None:
            with suppress(NotYet):
                return coming.result(_FIRST_WAIT_SECONDS if seen is None else _WAIT_SECONDS)
        if seen is None:
            detail = "the messages are being counted; look again in some seconds"
            raise Refused(503, "not-yet", detail, headers={"Retry-After": "2"})
        return seen

    def _read(self, read: Callable[[], T], coming: Future[T]) -> None:
        began = self._clock.monotonic()
        try:
            found = read()
        except BaseException as error:  # noqa: BLE001 - the waiting threads raise it
            self._end(began)
            coming.set_exception(error)
            return
        self._seen = found
        self._end(began)
        coming.set_result(found)

    def _end(self, began: float) -> None:
        """End a read; without anything seen the next visit begins another one at once."""
        with self._lock:
            now, self._under_way = self._clock.monotonic(), None
            if self._seen is not None:
                self._until = now + max(SECONDS, _PAUSE * (now - began))


class Bar(NamedTuple):
    at: datetime
    due: int
    overbooked: bool


class ChannelChart(NamedTuple):
    """The load of a channel as bars; ``minutes`` are the fullest ones."""

    load: ChannelLoad
    due: int
    overbooked: int
    bars: Sequence[Bar]
    minutes: Sequence[LoadedMinute]


def chart_of(channel: ChannelLoad, load: LoadToCome) -> ChannelChart:
    step, minutes = (load.end - load.start) / BARS, channel.minutes
    due = _summed({minute.at: minute.due for minute in minutes}, load.start, step, BARS)
    over = [minute.at for minute in minutes if minute.overbooked]
    marked = {(at - load.start) // step for at in over}
    bars = [Bar(load.start + n * step, due[n], n in marked) for n in range(BARS)]
    fullest = nsmallest(_MOST_MINUTES, minutes, key=lambda each: (not each.overbooked, -each.due))
    fullest.sort(key=lambda minute: minute.at)
    return ChannelChart(channel, sum(due), len(over), bars, fullest)


class Stretch(NamedTuple):
    at: datetime
    asked: int
    promised: int


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
    stretches = [Stretch(first + n * step, asked[n], promised[n]) for n in range(many)]
    return Histogram(step, max(*asked, *promised), stretches)


def _summed(
    counted: Mapping[datetime, int], first: datetime, step: timedelta, many: int
) -> list[int]:
    sums = [0] * many
    for at, number in counted.items():
        sums[(at - first) // step] += number
    return sums

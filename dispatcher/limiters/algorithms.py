"""Limits as values without a connection, which are put on a client."""

from __future__ import annotations

import re
import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from math import gcd
from typing import ClassVar, Self, TypedDict, Unpack, cast, overload

import redis
import redis.asyncio

from dispatcher.errors import InvalidValue, kind_of, plain, quoted
from dispatcher.limiters.direct_calls import AsyncClient, Client
from dispatcher.limiters.limit_set import LimitSet, OnError, checked_name, length_ms
from dispatcher.limiters.limiter import AsyncLimiter, Limiter
from dispatcher.quota import LONGEST_TEXT, MAX_LENGTH_MS, Limit, read_count, split_zone
from dispatcher.times import zones
from dispatcher.times.clock import MILLISECOND, Clock, SystemClock
from dispatcher.times.periods import LONGEST_MS, UNIT_MS, Period, bounds, longest_ms

_LEAST_MS = 10
_PERIODS = f"a timedelta of {_LEAST_MS} ms to 366 days in whole ms, or one of {', '.join(UNIT_MS)}"
_CLIENTS = "a client of redis or redis.asyncio, also RedisCluster"
_PIPELINES = (redis.client.Pipeline, redis.cluster.ClusterPipeline, redis.asyncio.client.Pipeline)
_CLUSTERS = (redis.RedisCluster, redis.asyncio.RedisCluster)
_CALENDAR = ("month", "year")
_SECOND_MS = 1_000
_WINDOWS = 4
_ALIGNED = "a unit such as 'day' or 'month', or a timedelta of whole seconds up to 366 days"
_ACCEPTED_IN_ZONE = (
    f"N/unit in ZONE with a unit of {', '.join(LONGEST_MS)}, or N/M unit in ZONE with one of up "
    f"to a week, N from 1 to {Limit.MOST}, at most 366 days"
)
_WHOLE = 1 << 53
_BURST = re.compile(r"(.*?)\s+burst\s+([0-9]{1,9})\s*", re.ASCII)
_LONGEST_HOLD_MS = 86_400_000
_ACCEPTED = (
    "'100/second', '10 per 30 s', '5/day in Asia/Shanghai' or '50/second burst 200', "
    "or several of these with ; between them"
)
_BETWEEN = re.compile(r"[;,|]")


class _Options(TypedDict, total=False):
    prefix: str
    tag: str | None
    on_error: OnError
    remember: timedelta | None
    clock: Clock | None


class Bindable(ABC):
    """One or several limits that can be put on a client."""

    @property
    @abstractmethod
    def parts(self) -> tuple[Algorithm, ...]:
        """The limits that are asked together, in order."""

    @overload
    def on(self, client: Client, **options: Unpack[_Options]) -> Limiter: ...
    @overload
    def on(self, client: AsyncClient, **options: Unpack[_Options]) -> AsyncLimiter: ...
    def on(
        self,
        client: Client | AsyncClient,
        *,
        prefix: str = "limits",
        tag: str | None = None,
        on_error: OnError = "raise",
        remember: timedelta | None = timedelta(minutes=1),
        clock: Clock | None = None,
    ) -> Limiter | AsyncLimiter:
        """Return the limiter of these limits on a Redis; nothing is sent yet.

        ``prefix`` begins every Redis key. The keys of one caller's key share a slot of Redis
        Cluster; with a ``tag`` all keys do, so that one call may name several. Where Redis does not
        answer, ``on_error="raise"`` raises LimitersUnavailable. With ``"unknown"`` and ``"allow"``
        the state of the decision is ``unknown``; only the latter allows, blocks and decorated
        functions too. ``remember`` (1 s to one day) is how long at least a repeated call is
        recognised by its permit id: longer than the client's retries may take. With None a call
        that redis-py repeats takes its permits again. ``clock`` measures waits.
        """
        if not isinstance(client, Client | AsyncClient) or isinstance(client, _PIPELINES):
            raise InvalidValue("client", kind_of(client), _CLIENTS)
        limit_set = LimitSet(
            self.parts,
            prefix=prefix,
            tag=tag,
            on_error=on_error,
            remember=remember,
            clock=clock or SystemClock(),
            cluster=isinstance(client, _CLUSTERS),
        )
        if isinstance(client, AsyncClient):
            return AsyncLimiter(client, limit_set)
        return Limiter(client, limit_set)


class Algorithm(Bindable):
    """A limit by one algorithm. Equal ones with equal prefix, tag and key count together."""

    kind: ClassVar[str]
    """Name of the algorithm's part in ``limiters/lua``."""
    knows_permits: ClassVar[bool] = False
    """Whether its state has the ids of its permits, so that they need not be remembered."""
    keeps_each: ClassVar[bool] = False
    """Whether each permit is an entry of its own, so that the work grows with their number."""

    name: str | None

    def __post_init__(self) -> None:
        if self.name is not None:
            object.__setattr__(self, "name", checked_name(self.name, "name"))

    @property
    def parts(self) -> tuple[Algorithm, ...]:
        return (self,)

    @property
    @abstractmethod
    def numbers(self) -> Sequence[int | str]:
        """What limits without a name must have in common to count together."""

    @property
    def scale(self) -> Sequence[int | str]:
        """What limits of one name must have in common, so that they can share their state."""
        return self.numbers[1:]

    @property
    def label(self) -> str:
        """Its name in Redis keys: its algorithm, and its numbers or its scale and name."""
        parts = self.numbers if self.name is None else self.scale
        label = "-".join(map(str, (self.kind, *parts)))
        return label if self.name is None else f"{label}={self.name}"

    @property
    def most(self) -> int:
        """How many permits it can ever give in one call; 0 where it counts nothing."""
        return 0

    @property
    def aligned(self) -> bool:
        """Whether its words depend on the time."""
        return False

    @property
    def length_ms(self) -> int:
        """The period in ms; 0 where there is none."""
        return 0

    @property
    def hold_ms(self) -> int:
        """How long a permit is held, in ms; 0 where permits do not end when they are returned."""
        return 0

    @property
    def spacing_ms(self) -> float:
        """How far apart its permits are on average, in ms; 0 where it has no period."""
        return 0.0

    def words(self, now_ms: int, further: int = 0) -> Sequence[str | int | bytes]:  # noqa: ARG002 - for aligned windows
        """Return the arguments of its part of the scripts, at about that time (ms since 1970).

        ``further`` is how many windows after the next one the script may give as a turn.
        """
        return self.numbers


def _check_count(count: int) -> None:
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= Limit.MOST:
        raise InvalidValue("count", quoted(count), f"a whole number from 1 to {Limit.MOST}")


@dataclass(frozen=True)
class CountPerLength(Algorithm):
    """At most ``count`` permits, 1 to 10,000,000, per ``period``.

    ``period`` is a timedelta of 10 ms to 366 days or a unit such as ``"minute"``, which is stored
    as its timedelta (a year: 365 days). A ``name`` of 1 to 64 letters, digits and any of ``_.-``
    separates a limit from its equals. Limits of one name, algorithm and period share what they
    count, also when their counts differ. Raises InvalidValue.
    """

    count: int
    period: timedelta | str
    name: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "period", plain(self.period))
        object.__setattr__(self, "period", self._normal_period())
        _check_count(self.count)
        super().__post_init__()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``"5/minute"``, ``"2/30 second"`` or ``"10 per second"``. Raises InvalidValue."""
        limit = Limit.parse(text)
        return cls(limit.count, limit.length_ms * MILLISECOND)

    @property
    def length_ms(self) -> int:
        return cast(timedelta, self.period) // MILLISECOND

    @property
    def most(self) -> int:
        return self.count

    @property
    def spacing_ms(self) -> float:
        return self.length_ms / self.count

    @property
    def numbers(self) -> Sequence[int | str]:
        return (self.count, self.length_ms)

    def _normal_period(self) -> timedelta | str:
        if isinstance(self.period, str):
            if self.period not in UNIT_MS:
                raise InvalidValue("period", quoted(self.period), _PERIODS)
            return UNIT_MS[self.period] * MILLISECOND
        length_ms(self.period, "period", least=_LEAST_MS, most=MAX_LENGTH_MS, accepted=_PERIODS)
        return self.period

    def __str__(self) -> str:
        return str(Limit(self.count, self.length_ms))


@dataclass(frozen=True)
class FixedWindow(CountPerLength):
    """At most ``count`` permits per window. Up to twice as many may lie around the end of a window.

    A window opens with the first permit and ends one ``period`` later. With ``align``, the name of
    a zone, windows follow its clocks: ``FixedWindow(5, "day", align="Asia/Shanghai")``. ``period``
    is then a unit, also ``"month"`` or ``"year"`` of the calendar, or a timedelta of whole seconds:
    windows of 15 minutes begin on the quarters of an hour, and all that fill no day evenly are
    counted from a Monday at midnight. Days have 23 or 25 hours where clocks change. Raises
    InvalidValue.
    """

    align: str | None = None

    kind: ClassVar[str] = "fixed_window"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.align is None:
            return
        zones.rules(self.align, field="align")
        object.__setattr__(self, "align", plain(self.align))
        if self.length_ms % _SECOND_MS:
            raise InvalidValue("period", f"{quoted(self.period)} with align", _ALIGNED)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``"5/minute"`` or ``"5/day in Asia/Shanghai"``. Raises InvalidValue."""
        zoned = split_zone(text) if isinstance(text, str) else None
        if zoned is None:
            return super().parse(text)
        read, zone = read_count(zoned[0]), zoned[1]
        if read is None or read[2] not in LONGEST_MS or (read[2] in _CALENDAR and read[1] != 1):
            raise InvalidValue("limit", f"cannot read {quoted(text)}", _ACCEPTED_IN_ZONE)
        count, multiple, unit = read
        if unit in _CALENDAR:
            return cls(count, unit, align=zone)
        return cls(count, multiple * UNIT_MS[unit] * MILLISECOND, align=zone)

    @property
    def aligned(self) -> bool:
        return self.align is not None

    @property
    def length_ms(self) -> int:
        return longest_ms(self._period)

    @property
    def numbers(self) -> Sequence[int | str]:
        zone = () if self.align is None else (self.align,)
        return (self.count, self._period, *zone)

    def words(self, now_ms: int, further: int = 0) -> Sequence[str | int | bytes]:
        """Return count and period; with a zone, bounds from the window before the present on."""
        if self.align is None:
            return super().words(now_ms)
        [begins, _] = bounds(self._period, self.align, now_ms, 1)
        return (self.count, _around(self._period, self.align, begins, _WINDOWS + further))

    @property
    def _period(self) -> Period:
        if isinstance(self.period, str):
            return cast(Period, self.period)
        return self.period // MILLISECOND

    def _normal_period(self) -> timedelta | str:
        if self.align is not None and self.period in _CALENDAR:
            return self.period
        return super()._normal_period()

    def __str__(self) -> str:
        if self.align is None:
            return super().__str__()
        text = f"{self.count}/{self.period}"
        if isinstance(self.period, timedelta):
            text = str(Limit(self.count, self.length_ms)).replace("/year", "/365 day")
        return f"{text} in {self.align}"


@lru_cache(maxsize=1 << 10)
def _around(period: Period, zone: str, begins_ms: int, windows: int) -> bytes:
    """Return the bounds of consecutive windows; the second one begins at ``begins_ms``.

    Packed: the script takes less time for one word than for five.
    """
    [before, _] = bounds(period, zone, begins_ms - 1, 1)
    return struct.pack(f"<{windows + 1}d", *bounds(period, zone, before, windows))


@dataclass(frozen=True)
class CounterPerKey(CountPerLength):
    """Decides as a :class:`FixedWindow` without ``align``; the key's expiry is the window.

    Its state is a number that ``GET`` shows, in as little memory as Redis can use. Its time is that
    of Redis's expiry.
    """

    kind: ClassVar[str] = "counter_per_key"


@dataclass(frozen=True)
class SlidingLog(CountPerLength):
    """At most ``count`` permits within any span shorter than ``period``.

    The time of every permit is a member of a ZSET, under its id, which is known, and can be
    returned, for a whole period. It takes 25 bytes a permit while there are at most 128, 110
    beyond. :class:`SlidingList` decides the same in a fraction of it.
    """

    kind: ClassVar[str] = "sliding_log"
    keeps_each: ClassVar[bool] = True
    knows_permits: ClassVar[bool] = True


@dataclass(frozen=True)
class SlidingList(CountPerLength):
    """Decides as :class:`SlidingLog` does, call for call, in about 10 bytes a permit.

    Only times are stored, and the N-th oldest is compared: the same work for any ``count``. Permits
    can be returned for as long as ``remember`` says.
    """

    kind: ClassVar[str] = "sliding_list"
    keeps_each: ClassVar[bool] = True


@dataclass(frozen=True)
class SlidingCounter(CountPerLength):
    """At most about ``count`` permits within any span of ``period``.

    Time is cut into stretches of one period. Permits of the present stretch count whole, those of
    the previous one by the part of it that the last period still covers, as if they had been
    spread evenly. Never more than ``count`` in one stretch, and than twice ``count`` less one
    within any period. When permits came at the beginning of a stretch, it refuses what would fit.
    Raises InvalidValue where count times period in ms is 2^53 or more.
    """

    kind: ClassVar[str] = "sliding_counter"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.count * self.length_ms >= _WHOLE:
            most = (_WHOLE - 1) // self.length_ms
            raise InvalidValue("count", f"{self.count}", f"at most {most} for this period")


@dataclass(frozen=True)
class GCRA(CountPerLength):
    """``count`` permits per ``period``, evenly spaced, with ``max_burst`` more at once.

    The generic cell rate algorithm, as redis-cell counts: an idle caller may take ``max_burst`` + 1
    at once, and then one every period / count. Raises InvalidValue for a burst so large that the
    arithmetic would not be exact.
    """

    max_burst: int = 0

    kind: ClassVar[str] = "gcra"

    def __post_init__(self) -> None:
        super().__post_init__()
        burst, (rise, _) = self.max_burst, self._rise_and_fall()
        most = min(Limit.MOST, (_WHOLE - 1) // rise - 1)
        if isinstance(burst, bool) or not isinstance(burst, int) or not 0 <= burst <= most:
            raise InvalidValue("max_burst", quoted(burst), f"a whole number from 0 to {most}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``"50/second"`` or ``"50/second burst 200"``. Raises InvalidValue."""
        is_short = isinstance(text, str) and len(text) <= LONGEST_TEXT
        match = _BURST.fullmatch(text) if is_short else None
        if match is None:
            return super().parse(text)
        steady = super().parse(match[1])
        return cls(steady.count, steady.period, max_burst=int(match[2]))

    @property
    def most(self) -> int:
        return self.max_burst + 1

    @property
    def numbers(self) -> Sequence[int]:
        return (self.count, self.length_ms, self.max_burst)

    @property
    def scale(self) -> Sequence[int]:
        """Its count and its period in ms: both make the unit of its level."""
        return (self.count, self.length_ms)

    def words(self, now_ms: int, further: int = 0) -> Sequence[int]:  # noqa: ARG002 - for aligned windows
        return (self.max_burst + 1, *self._rise_and_fall())

    def _rise_and_fall(self) -> tuple[int, int]:
        length_us = self.length_ms * 1_000
        common = gcd(length_us, self.count)
        return length_us // common, self.count // common

    def __str__(self) -> str:
        return f"{Limit(self.count, self.length_ms)} burst {self.max_burst}"


@dataclass(frozen=True)
class Concurrency(Algorithm):
    """At most ``count`` permits in use at the same time.

    Each is a hold, which ends when it is returned, or after ``hold`` (10 ms to one day) unless it
    is renewed, as ``Limiter.permit`` does. ``retry_after`` is an upper bound: when the next hold
    ends unless it is returned before. Raises InvalidValue.
    """

    count: int
    hold: timedelta = timedelta(seconds=30)
    name: str | None = None

    kind: ClassVar[str] = "concurrency"
    keeps_each: ClassVar[bool] = True
    knows_permits: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_count(self.count)
        length_ms(self.hold, "hold", least=10, most=_LONGEST_HOLD_MS)
        super().__post_init__()

    @property
    def most(self) -> int:
        return self.count

    @property
    def numbers(self) -> Sequence[int]:
        return (self.count,)

    @property
    def hold_ms(self) -> int:
        return self.hold // MILLISECOND

    def words(self, now_ms: int, further: int = 0) -> Sequence[int]:  # noqa: ARG002 - for aligned windows
        return (self.count, self.hold_ms)

    def __str__(self) -> str:
        return f"{self.count} at once"


@dataclass(frozen=True)
class CoolDown(Algorithm):
    """Gives every permit unless it is closed, and then none until that time is over.

    ``close`` closes a key for all processes at once; closed twice, the later time holds. ``reset``
    opens it. It counts nothing: ``limit`` and ``remaining`` are 0. Raises InvalidValue.
    """

    name: str | None = None

    kind: ClassVar[str] = "cool_down"
    knows_permits: ClassVar[bool] = True

    @property
    def numbers(self) -> Sequence[int]:
        return ()

    def __str__(self) -> str:
        return "cool-down"


@dataclass(frozen=True)
class Limits(Bindable):
    """Several limits that are asked in one script, and give a permit together or not at all.

    ``Limits`` among them stand for theirs, in order: ``limits`` has only single ones.
    """

    limits: Sequence[Algorithm | Limits]

    def __post_init__(self) -> None:
        accepted = "limits such as FixedWindow(5, 'minute'), at least one"
        if not isinstance(self.limits, Sequence) or not self.limits:
            raise InvalidValue("limits", quoted(self.limits), accepted)
        for limit in self.limits:
            if not isinstance(limit, Bindable):
                raise InvalidValue("limits", quoted(limit), accepted)
        object.__setattr__(self, "limits", self.parts)

    @property
    def parts(self) -> tuple[Algorithm, ...]:
        return tuple(part for limit in self.limits for part in limit.parts)

    def __str__(self) -> str:
        return "; ".join(map(str, self.limits))


def parse(text: str) -> CountPerLength | Limits:
    """Read a limit, and choose its algorithm; or several, as ``Limits``. Raises InvalidValue.

    ``"100/second"``, also written ``"100 per second"`` or ``"100/s"``, is exact wherever the period
    begins: a :class:`SlidingList`. ``"5/day in Asia/Shanghai"`` goes by the calendar: a
    :class:`FixedWindow`. ``"50/second burst 200"`` spaces: a :class:`GCRA`. Several are
    separated by ``;`` (or ``,`` or ``|``): ``"10/s; 100000/day"``.
    """
    if not isinstance(text, str):
        raise InvalidValue("limit", quoted(text), _ACCEPTED)
    limits = [_parsed(part) for part in _BETWEEN.split(text)]
    return limits[0] if len(limits) == 1 else Limits(limits)


def _parsed(text: str) -> CountPerLength:
    words = text.split()
    if "burst" in words:
        return GCRA.parse(text)
    if "in" in words:
        return FixedWindow.parse(text)
    return SlidingList.parse(text)

"""Limits as values without a connection, which are put on a client."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar, Self, cast, overload

import redis
import redis.asyncio

from dispatcher.errors import InvalidValue, kind_of, plain, quoted
from dispatcher.limiters.direct_calls import AsyncClient, Client
from dispatcher.limiters.limit_set import LimitSet, OnError, checked_name, length_ms
from dispatcher.limiters.limiter import AsyncLimiter, Limiter
from dispatcher.quota import MAX_LENGTH_MS, Limit
from dispatcher.times.clock import Clock, SystemClock
from dispatcher.times.lengths import MILLISECOND
from dispatcher.times.periods import UNIT_MS

_LEAST_MS = 10
_PERIODS = f"a timedelta of {_LEAST_MS} ms to 366 days in whole ms, or one of {', '.join(UNIT_MS)}"
_CLIENTS = "a client of redis or redis.asyncio, also RedisCluster"
_PIPELINES = (redis.client.Pipeline, redis.cluster.ClusterPipeline, redis.asyncio.client.Pipeline)
_CLUSTERS = (redis.RedisCluster, redis.asyncio.RedisCluster)


class Bindable(ABC):
    """One or several limits that can be put on a client."""

    @property
    @abstractmethod
    def parts(self) -> tuple[Algorithm, ...]:
        """The limits that are asked together, in order."""

    @overload
    def on(
        self,
        client: Client,
        *,
        prefix: str = ...,
        tag: str | None = ...,
        on_error: OnError = ...,
        remember: timedelta | None = ...,
        clock: Clock | None = ...,
    ) -> Limiter: ...

    @overload
    def on(
        self,
        client: AsyncClient,
        *,
        prefix: str = ...,
        tag: str | None = ...,
        on_error: OnError = ...,
        remember: timedelta | None = ...,
        clock: Clock | None = ...,
    ) -> AsyncLimiter: ...

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
        Cluster; with a ``tag`` all keys do, so that one call may name several. ``on_error`` says
        what happens where Redis does not answer: with ``"raise"`` LimitersUnavailable is raised;
        with ``"unknown"`` the state of the decision is ``unknown``, and blocks and decorated
        functions raise; with ``"allow"`` the state is ``unknown``, too, and all is allowed.
        ``remember`` (1 s to one day) is how long at least a repeated call is recognised by its
        permit id: longer than the client's retries may take. None remembers nothing: no second
        key, but a call that redis-py repeats takes its permits again. ``clock`` measures waits and
        waits; by default it is the machine's.
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
    """A limit, by one algorithm: a plain value without a connection.

    Equal ones count together where prefix, tag and key are the same.
    """

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
        """The limit itself."""
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
    @abstractmethod
    def most(self) -> int:
        """How many permits it can ever give in one call; 0 where it counts nothing."""

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


def check_count(count: int) -> None:
    """Raise InvalidValue unless a limit can have that count."""
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= Limit.MOST:
        raise InvalidValue("count", quoted(count), f"a whole number from 1 to {Limit.MOST}")


@dataclass(frozen=True)
class CountPerLength(Algorithm):
    """At most ``count`` permits per ``period``.

    ``period`` is a timedelta of 10 ms to 366 days or a unit such as ``"minute"``, which is stored
    as its timedelta (a year: 365 days). ``count`` is a whole number from 1 to
    10,000,000. Limits that shall not count together though they are equal have different names, of
    1 to 64 letters, digits and any of ``_.-``. A name belongs to one algorithm and one period:
    limits share what they count where these are the same, also when their counts differ. Raises
    InvalidValue.
    """

    count: int
    period: timedelta | str
    name: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "period", plain(self.period))
        object.__setattr__(self, "period", self._normal_period())
        check_count(self.count)
        super().__post_init__()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``"5/minute"``, ``"2/30 second"`` or ``"10 per second"``. Raises InvalidValue."""
        limit = Limit.parse(text)
        return cls(limit.count, limit.length_ms * MILLISECOND)

    @property
    def length_ms(self) -> int:
        """The period in ms."""
        return cast(timedelta, self.period) // MILLISECOND

    @property
    def spacing_ms(self) -> float:
        """How far apart its permits are on average, in ms."""
        return self.length_ms / self.count

    @property
    def most(self) -> int:
        """How many permits it can ever give in one call."""
        return self.count

    @property
    def numbers(self) -> Sequence[int | str]:
        """Its count and its period in ms."""
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

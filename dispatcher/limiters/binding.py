"""How limits are put on a client."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import overload

import redis
import redis.asyncio

from dispatcher.errors import InvalidValue, kind_of, quoted
from dispatcher.limiters.asking import Asking, OnFault
from dispatcher.limiters.async_limiter import AsyncLimiter
from dispatcher.limiters.base import Part
from dispatcher.limiters.limiter import Limiter
from dispatcher.redis.direct import AsyncClient, Client
from dispatcher.times.clock import Clock, SystemClock

_ACCEPTED = "a client of redis or redis.asyncio, also RedisCluster"
_PIPELINES = (redis.client.Pipeline, redis.cluster.ClusterPipeline, redis.asyncio.client.Pipeline)
_CLUSTERS = (redis.RedisCluster, redis.asyncio.RedisCluster)


class Bindable(ABC):
    """One or several limits that can be put on a client."""

    @property
    @abstractmethod
    def parts(self) -> tuple[Part, ...]:
        """The limits that are asked together, in order."""

    @overload
    def on(
        self,
        client: Client,
        *,
        prefix: str = ...,
        tag: str | None = ...,
        on_fault: OnFault = ...,
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
        on_fault: OnFault = ...,
        remember: timedelta | None = ...,
        clock: Clock | None = ...,
    ) -> AsyncLimiter: ...

    def on(
        self,
        client: Client | AsyncClient,
        *,
        prefix: str = "limits",
        tag: str | None = None,
        on_fault: OnFault = "raise",
        remember: timedelta | None = timedelta(minutes=1),
        clock: Clock | None = None,
    ) -> Limiter | AsyncLimiter:
        """Return what answers for these limits on a Redis; nothing is sent yet.

        ``prefix`` begins every Redis key. The keys of one caller's key share a slot of Redis
        Cluster; with a ``tag`` all keys do, so that one call may name several. ``on_fault`` says
        what an unanswering Redis means: LimitersUnavailable is raised, or the decision's state
        is ``unknown``; blocks and decorated functions raise either way, and do not run.
        ``remember`` (1 s to one day) is how long at least a repeated call is recognised by its
        permit id: longer than the client's retries may take. None remembers nothing: no second
        key, but a call that redis-py repeats takes its permits again.
        """
        if not isinstance(client, Client | AsyncClient) or isinstance(client, _PIPELINES):
            raise InvalidValue("client", kind_of(client), _ACCEPTED)
        asking = Asking(
            self.parts,
            prefix=prefix,
            tag=tag,
            on_fault=on_fault,
            remember=remember,
            clock=clock or SystemClock(),
            cluster=isinstance(client, _CLUSTERS),
        )
        if isinstance(client, AsyncClient):
            return AsyncLimiter(client, asking)
        return Limiter(client, asking, clock or SystemClock())


class Algorithm(Bindable, Part):
    """A limit, by one algorithm: a plain value without a connection.

    Equal ones count together where prefix, tag and key are the same.
    """

    @property
    def parts(self) -> tuple[Part, ...]:
        """The limit itself."""
        return (self,)


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
        single: list[Algorithm | Limits] = []
        for each in self.limits:
            if not isinstance(each, Algorithm | Limits):
                raise InvalidValue("limits", quoted(each), accepted)
            single += each.limits if isinstance(each, Limits) else [each]
        object.__setattr__(self, "limits", tuple(single))

    @property
    def parts(self) -> tuple[Part, ...]:
        """The limits that are asked together, in order."""
        return tuple(part for each in self.limits for part in each.parts)

    def __str__(self) -> str:
        return "; ".join(str(each) for each in self.limits)

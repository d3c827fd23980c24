"""What talks to Redis, SQL and Celery, and what tells of all that happens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import redis
from redis.backoff import ExponentialWithJitterBackoff
from redis.retry import Retry

from dispatcher.bootstrap.built import Built, built_once
from dispatcher.broker.queue import Queue
from dispatcher.broker.survey import check_url
from dispatcher.celery_app import create_app
from dispatcher.delivery.sweep import MARKER_SPARE
from dispatcher.errors import InvalidSettings
from dispatcher.faults import arm_by_environment
from dispatcher.limiters import InHand, LogLimit, Permits, reaches_ms
from dispatcher.quota import Limit, Quota
from dispatcher.reservation import Contents, Fence, Rules, Upkeep, Windows, longest_ms
from dispatcher.settings import Settings
from dispatcher.store import BulkMessages, Database, Messages, Suppressions
from dispatcher.telemetry.hooks import Hooks
from dispatcher.telemetry.hooks import find as find_hooks
from dispatcher.telemetry.journal import Journal
from dispatcher.telemetry.liveness import Signs
from dispatcher.telemetry.metrics import prometheus_meter
from dispatcher.telemetry.tracing import Tracing, opentelemetry_tracing
from dispatcher.times.clock import Clock, SystemClock

_REDIS_SECONDS = 1.0
_REDIS_RETRIES = 1


class Servers(Built):
    """Settings, clock, and the parts that every use case stands on."""

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        super().__init__()
        arm_by_environment()
        self.settings = settings
        self.clock = clock or SystemClock()

    @built_once
    def fence(self) -> Fence:
        """What every connection to Redis passes."""
        return Fence(
            namespace=self.settings.namespace,
            shards=self.settings.shards,
            reaches_ms={
                kind: longest_ms(quotas) for kind, quotas in self.settings.quotas_of.items()
            },
            permits_ms=reaches_ms(self._scope_limits, self._channel_limits),
        )

    @built_once
    def _plain_redis(self) -> redis.Redis:
        """A client for those who look: without the fence, which takes back epochs."""
        return connect_redis(self.settings.redis_url)

    @built_once
    def redis(self) -> redis.Redis:
        """The client for windows and permits.

        A call whose reply is lost is repeated once: every script is idempotent.
        """
        return connect_redis(self.settings.redis_url, greet=self.fence)

    @built_once
    def database(self) -> Database:
        """The store's engine."""
        return Database.of(self.settings)

    @built_once
    def queue(self) -> Queue:
        """What hands ids to Celery. Raises InvalidSettings for a broker that kombu cannot use."""
        check_url(self.settings.broker_url)
        return Queue(
            create_app(self.settings, submitting=True),
            queue_of=self.settings.queue_of,
            clock=self.clock,
            coalesce=self.settings.coalesce,
            group_size=self.settings.group_size,
            journal=self.journal,
        )

    @built_once
    def messages(self) -> Messages:
        """Messages in the store."""
        return Messages(self.database)

    @built_once
    def suppressions(self) -> Suppressions:
        """Who has opted out, in the store."""
        return Suppressions(self.database)

    @built_once
    def rules(self) -> Rules:
        """The quotas of every kind of scope."""
        return Rules(self.settings.quotas_of)

    @built_once
    def windows(self) -> Windows:
        """The windows of reservations."""
        return Windows(
            self.redis,
            self.rules,
            keys=self.fence.keys,
            under_way=self.settings.reconcile_grace * 2,
        )

    @built_once
    def upkeep(self) -> Upkeep:
        """What rebuilds and settles the windows."""
        return Upkeep(
            self.redis,
            self.fence,
            marker_life=self.settings.settle + MARKER_SPARE,
            under_way=self.settings.reconcile_grace * 2,
        )

    @built_once
    def contents(self) -> Contents:
        """What reads the windows."""
        return Contents(self.redis, self.fence)

    @built_once
    def permits(self) -> Permits:
        """What guards the hand-overs."""
        return Permits(
            self.redis,
            namespace=self.settings.namespace,
            scope_limits=self._scope_limits,
            channel_limits=self._channel_limits,
            clock=self.clock,
        )

    @built_once
    def signs(self) -> Signs:
        """Signs of life, on a connection of their own."""
        return Signs(self._plain_redis, namespace=self.settings.namespace)

    @built_once
    def hooks(self) -> Hooks | None:
        """What tells the administrator's code what became of messages, if there is any."""
        if not self.settings.hooks:
            return None
        return Hooks(find_hooks(self.settings.hooks), read=BulkMessages(self.database).these)

    @built_once
    def journal(self) -> Journal:
        """What tells of each transition."""
        meter = None if self.settings.metrics_port is None else prometheus_meter()
        listen = None if self.hooks is None else self.hooks.told
        return Journal(log_key=self.settings.log_key, meter=meter, listen=listen)

    @built_once
    def tracing(self) -> Tracing | None:
        """What opens spans, if there are to be any."""
        return opentelemetry_tracing() if self.settings.traces else None

    @property
    def _scope_limits(self) -> list[Limit]:
        """The hand-overs of a scope are limited by the numbers of its rolling quotas."""
        rolling = (each for each in self.settings.quotas if isinstance(each, Quota))
        return [Limit(each.count, each.length_ms) for each in rolling]

    @property
    def _channel_limits(self) -> dict[str, tuple[LogLimit, ...]]:
        return {
            name: (*each.limits, InHand(each.concurrency)) if each.concurrency else each.limits
            for name, each in self.settings.channels.items()
        }


def connect_redis(url: str, *, greet: Callable[[Any], None] | None = None) -> redis.Redis:
    """Return a client that waits a second and repeats a call once. Raises InvalidSettings.

    ``greet`` is called with each new connection before it carries anything.
    """
    over_network: dict[str, Any] = {
        "socket_connect_timeout": _REDIS_SECONDS,
        "socket_keepalive": True,
    }
    if url.startswith("unix:"):
        over_network = {}
    try:
        return redis.Redis.from_url(
            url,
            protocol=2,
            redis_connect_func=greet,
            socket_timeout=_REDIS_SECONDS,
            **over_network,
            retry=Retry(ExponentialWithJitterBackoff(base=0.01, cap=0.1), _REDIS_RETRIES),
        )
    except ValueError:
        raise InvalidSettings(
            "redis_url", "cannot be read", "redis://…, rediss://… or unix://…"
        ) from None

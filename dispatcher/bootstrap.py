"""Where the parts meet: settings in, wired use cases out.

Nothing connects before it is used, and in a worker nothing is built before the fork.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from threading import RLock
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast, overload

import redis
from celery.app import app_or_default
from redis.backoff import ExponentialWithJitterBackoff
from redis.retry import Retry
from sqlalchemy import ColumnElement

from dispatcher.celery_app import create_app, settings_of, sweeps_every
from dispatcher.clock import Clock, SystemClock
from dispatcher.delivery import Delivery, Lanes
from dispatcher.errors import InvalidSettings
from dispatcher.faults import arm_by_environment
from dispatcher.hooks import Hooks
from dispatcher.hooks import find as find_hooks
from dispatcher.journal import Journal
from dispatcher.limiters import Fills, InHand, LogLimit, Permits, reaches_ms
from dispatcher.liveness import Pulse, Signs
from dispatcher.metrics import exposition, prometheus_meter
from dispatcher.overview import Overviews
from dispatcher.queue import Queue
from dispatcher.quota import Limit, Quota
from dispatcher.reservation import (
    Bulk,
    Contents,
    Copies,
    Fence,
    Rules,
    Timelines,
    Upkeep,
    Windows,
    longest_ms,
)
from dispatcher.settings import Settings
from dispatcher.status_messages import StatusMessages
from dispatcher.store import (
    BulkMessages,
    Claims,
    Database,
    FailedMessages,
    Figures,
    HeldMessages,
    JoinedMessages,
    Listing,
    Messages,
    Overdue,
    Standings,
    StoreUpkeep,
    Suppressions,
    Untold,
    overdue,
)
from dispatcher.submission import (
    BulkSubmission,
    Cancelling,
    CatchUp,
    Changes,
    Failed,
    Handover,
    Held,
    JoinedSubmission,
    Outlook,
    Planning,
    Submission,
    Suppressing,
    Telling,
)
from dispatcher.sweep import MARKER_SPARE, Sweep
from dispatcher.templating import Templates
from dispatcher.ticks import Ticks
from dispatcher.tracing import Tracing, opentelemetry_tracing
from dispatcher.transports import Checks, Transport, close_all, load
from dispatcher.verification import Verification

if TYPE_CHECKING:
    from dispatcher.metrics.exposition import Exposition

T = TypeVar("T")
log = logging.getLogger(__name__)

_building = RLock()
_REDIS_SECONDS = 1.0
_REDIS_RETRIES = 1


class _built_once(cached_property[T]):  # noqa: N801 - used as a decorator
    """A cached property that two threads do not build twice."""

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> T: ...
    def __get__(self, instance: object | None, owner: type | None = None) -> Self | T:
        if instance is None:
            return self
        with _building:
            # Who waited finds what was built meanwhile: cached_property of Python 3.12 and later
            # does not look again.
            built = vars(instance).get(self.func.__name__)
            return super().__get__(instance, owner) if built is None else cast("T", built)


class Parts:
    """The wired house for one configuration, each part built when first asked for."""

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        arm_by_environment()
        self.settings = settings
        self.clock = clock or SystemClock()

    @_built_once
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

    @_built_once
    def journal(self) -> Journal:
        """What tells of each transition."""
        meter = None if self.settings.metrics_port is None else prometheus_meter()
        listen = None if self.hooks is None else self.hooks.told
        return Journal(log_key=self.settings.log_key, meter=meter, listen=listen)

    @_built_once
    def tracing(self) -> Tracing | None:
        """What opens spans, if there are to be any."""
        return opentelemetry_tracing() if self.settings.traces else None

    @_built_once
    def exposition(self) -> Exposition:
        """What answers Prometheus."""
        return exposition(self.overviews.vitals, clock=self.clock)

    @_built_once
    def _plain_redis(self) -> redis.Redis:
        """A client for those who look: without the fence, which takes back epochs."""
        return connect_redis(self.settings.redis_url)

    @_built_once
    def redis(self) -> redis.Redis:
        """The client for windows and permits.

        A call whose reply is lost is repeated once: every script is idempotent.
        """
        return connect_redis(self.settings.redis_url, greet=self.fence)

    @_built_once
    def database(self) -> Database:
        """The store's engine."""
        return Database(self.settings.database_url)

    @_built_once
    def messages(self) -> Messages:
        """Messages in the store."""
        return Messages(self.database)

    @_built_once
    def suppressions(self) -> Suppressions:
        """Who has opted out, in the store."""
        return Suppressions(self.database)

    @_built_once
    def rules(self) -> Rules:
        """The quotas of every kind of scope."""
        return Rules(self.settings.quotas_of)

    @_built_once
    def windows(self) -> Windows:
        """The windows of reservations."""
        return Windows(
            self.redis,
            self.rules,
            keys=self.fence.keys,
            under_way=self.settings.reconcile_grace * 2,
        )

    @_built_once
    def upkeep(self) -> Upkeep:
        """What rebuilds and settles the windows."""
        return Upkeep(
            self.redis,
            self.fence,
            marker_life=self.settings.settle + MARKER_SPARE,
            under_way=self.settings.reconcile_grace * 2,
        )

    @_built_once
    def permits(self) -> Permits:
        """What guards the hand-overs."""
        return Permits(
            self.redis,
            namespace=self.settings.namespace,
            scope_limits=self._scope_limits,
            channel_limits=self._channel_limits,
            clock=self.clock,
        )

    @_built_once
    def queue(self) -> Queue:
        """What hands ids to Celery."""
        return Queue(
            create_app(self.settings, submitting=True),
            queue_of=self.settings.queue_of,
            clock=self.clock,
            coalesce=self.settings.coalesce,
            group_size=self.settings.group_size,
            journal=self.journal,
        )

    @_built_once
    def transports(self) -> Mapping[str, Transport]:
        """The transport of each channel."""
        return {
            name: load(name, channel, self.settings)
            for name, channel in self.settings.channels.items()
        }

    @_built_once
    def checks(self) -> Checks:
        """What asks the transports about drafts."""
        return Checks(self.settings.channels)

    @_built_once
    def hooks(self) -> Hooks | None:
        """What tells the administrator's code what became of messages, if there is any."""
        if not self.settings.hooks:
            return None
        return Hooks(find_hooks(self.settings.hooks), read=BulkMessages(self.database).these)

    @_built_once
    def templates(self) -> Templates:
        """What makes bodies of the channels' templates."""
        return Templates(
            self.settings.channels,
            max_bytes=self.settings.body_max_bytes,
            max_depth=self.settings.body_max_depth,
        )

    @_built_once
    def submission(self) -> Submission:
        """The use cases of those who submit."""
        return Submission(
            settings=self.settings,
            clock=self.clock,
            windows=self.windows,
            messages=self.messages,
            handover=self.handover,
            check=self.checks,
            fill=self.templates.fill,
            journal=self.journal,
            tracing=self.tracing,
        )

    @_built_once
    def joined(self) -> JoinedSubmission:
        """The use case of those who submit in a transaction of their own."""
        return JoinedSubmission(
            settings=self.settings,
            clock=self.clock,
            windows=self.windows,
            upkeep=self.upkeep,
            store=JoinedMessages(self.database),
            handover=self.handover,
            submission=self.submission,
            journal=self.journal,
            tracing=self.tracing,
        )

    @_built_once
    def bulk(self) -> BulkSubmission:
        """The use case of those who submit by the thousand."""
        return BulkSubmission(
            settings=self.settings,
            clock=self.clock,
            bulk=Bulk(self.windows),
            store=BulkMessages(self.database),
            suppressions=self.suppressions,
            handover=self.handover,
            submission=self.submission,
            journal=self.journal,
            tracing=self.tracing,
        )

    @_built_once
    def planning(self) -> Planning:
        """The use case of those who want to know before they submit."""

        def copies() -> Copies:
            return Copies(
                self.redis,
                self.rules,
                keys=self.fence.keys,
                under_way=self.settings.reconcile_grace * 2,
                clock=self.clock,
            )

        return Planning(
            settings=self.settings,
            clock=self.clock,
            copies=copies,
            store=BulkMessages(self.database),
            suppressions=self.suppressions,
            submission=self.submission,
        )

    @_built_once
    def handover(self) -> Handover:
        """What hands a stored message to Celery at once."""
        return Handover(
            settings=self.settings, clock=self.clock, messages=self.messages, queue=self.queue
        )

    @_built_once
    def changes(self) -> Changes:
        """The use cases of those who change what was accepted."""
        return Changes(
            settings=self.settings,
            clock=self.clock,
            windows=self.windows,
            messages=self.messages,
            handover=self.handover,
            check=self.checks,
            journal=self.journal,
        )

    @_built_once
    def held(self) -> Held:
        """The use cases of those who decide about unknown outcomes."""
        return Held(
            messages=self.messages,
            held=HeldMessages(self.database),
            suppressions=self.suppressions,
            journal=self.journal,
        )

    @_built_once
    def failed(self) -> Failed:
        """The use case of those who try again what had failed."""
        return Failed(
            settings=self.settings,
            failed=FailedMessages(self.database),
            suppressions=self.suppressions,
            journal=self.journal,
        )

    @_built_once
    def cancelling(self) -> Cancelling:
        """The use case of those who cancel by the thousand."""
        return Cancelling(
            settings=self.settings,
            bulk=Bulk(self.windows),
            store=BulkMessages(self.database),
            journal=self.journal,
        )

    @_built_once
    def suppressing(self) -> Suppressing:
        """The use cases of those who opt out."""
        return Suppressing(
            settings=self.settings, suppressions=self.suppressions, cancelling=self.cancelling
        )

    @_built_once
    def listing(self) -> Listing:
        """Messages by what operators say of them."""
        late, put_off = self._patience
        return Listing(self.database, late=late, put_off=put_off)

    @_built_once
    def telling(self) -> Telling:
        """The use case of those who want to know what became of a message."""
        contents = Contents(self._plain_redis, self.fence)
        return Telling(settings=self.settings, listing=self.listing, contents=contents)

    @_built_once
    def delivery(self) -> Delivery:
        """The use case of the worker."""
        return Delivery(
            settings=self.settings,
            clock=self.clock,
            claims=Claims(self.database, ttl=self.settings.claim_ttl, leaves=self._left),
            permits=self.permits,
            transports=self.transports,
            queue=self.queue,
            journal=self.journal,
            tracing=self.tracing,
        )

    @_built_once
    def lanes(self) -> Lanes:
        """What keeps the channels apart in a worker."""
        return Lanes(self.delivery, at_once=self.settings.groups_at_once)

    @_built_once
    def sweep(self) -> Sweep:
        """The duties of the beat job."""
        return Sweep(
            settings=self.settings,
            clock=self.clock,
            store=StoreUpkeep(self.database, leaves=self._left),
            messages=self.messages,
            windows=self.upkeep,
            permits=self.permits,
            queue=self.queue,
            journal=self.journal,
        )

    @_built_once
    def ticks(self) -> Ticks:
        """What begins the duties of the beat job in a worker."""
        return Ticks(self.clock, sweeps_every(self.settings))

    @_built_once
    def catch_up(self) -> CatchUp:
        """The duty of the beat job that ends or moves what is overdue."""
        store = Overdue(
            self.database,
            after=self.settings.overdue_after,
            expire=self.settings.caught_up_by("expire"),
            reslot=self.settings.caught_up_by("reslot"),
        )
        return CatchUp(
            settings=self.settings,
            store=store,
            changes=self.changes,
            handover=self.handover,
            journal=self.journal,
        )

    @_built_once
    def status_messages(self) -> StatusMessages:
        """The duty of the beat job that tells those who asked what became of their messages."""
        name = self.settings.status_channel
        untold = None
        if name:
            tries = self.settings.channels[name].max_attempts
            untold = Untold(self.database, channel=name, max_attempts=tries)
        return StatusMessages(untold=untold, channel=name, journal=self.journal)

    @_built_once
    def contents(self) -> Contents:
        """What reads the windows."""
        return Contents(self.redis, self.fence)

    @_built_once
    def outlook(self) -> Outlook:
        """The use case of those who look before they submit."""
        timelines = Timelines(self.contents, self.windows, self.settings.quotas_of)
        return Outlook(settings=self.settings, clock=self.clock, timelines=timelines)

    @_built_once
    def signs(self) -> Signs:
        """Signs of life, on a connection of their own."""
        return Signs(self._plain_redis, namespace=self.settings.namespace)

    @_built_once
    def pulse(self) -> Pulse:
        """What gives signs of life of this process."""
        return Pulse(lambda: self.signs, clock=self.clock)

    @_built_once
    def overviews(self) -> Overviews:
        """The use case of those who operate."""
        late, put_off = self._patience
        return Overviews(
            settings=self.settings,
            figures=Figures(self.database, late=late, put_off=put_off),
            fills=Fills(
                self._plain_redis,
                namespace=self.settings.namespace,
                channel_limits={name: some for name, some in self._channel_limits.items() if some},
            ),
            signs=self.signs,
            timelines=Timelines(
                Contents(self._plain_redis, self.fence), self.windows, self.settings.quotas_of
            ),
        )

    @_built_once
    def verification(self) -> Verification:
        """The use case of those who doubt Redis."""
        return Verification(
            settings=self.settings,
            clock=self.clock,
            store=StoreUpkeep(self.database),
            standings=Standings(self.database),
            contents=self.contents,
        )

    @property
    def _patience(self) -> tuple[timedelta, timedelta]:
        """When a message is overdue, and how long at most the sweep puts one off that is due."""
        late = self.settings.enqueue_grace
        return late, max(late, self.settings.claim_ttl)

    @property
    def _left(self) -> ColumnElement[bool] | None:
        """What is overdue and not to be sent late is left to the one who catches up."""
        ways = self.settings.caught_up_by("expire") + self.settings.caught_up_by("reslot")
        return overdue(ways, self.settings.overdue_after) if ways else None

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

    def close_transports(self) -> None:
        """Close the lines to the providers."""
        if "transports" in vars(self):
            close_all(self.transports.values())

    def close_hooks(self) -> None:
        """Tell what waits to be told."""
        if "hooks" in vars(self) and self.hooks is not None:
            self.hooks.close()

    def serve_metrics(self) -> None:
        """Answer Prometheus, where the settings say so. Without a port all else goes on."""
        port = self.settings.metrics_port
        if port is None:
            return
        try:
            port = self.exposition.serve(self.settings.metrics_host, port)
        except InvalidSettings as error:
            log.error("metrics are not served: %s", error)  # noqa: TRY400 - it says all there is
        else:
            log.info("metrics at http://%s:%d/metrics", self.settings.metrics_host, port)

    def close(self) -> None:
        """Close what was opened."""
        built = vars(self)
        if "pulse" in built:
            self.pulse.stop()
        if "exposition" in built:
            self.exposition.close()
        if "delivery" in built:
            self.delivery.close()
        self.close_transports()
        self.close_hooks()
        if "redis" in built:
            self.redis.close()
        if "_plain_redis" in built:
            self._plain_redis.close()
        if "database" in built:
            self.database.close()
        if "queue" in built:
            self.queue.close()


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


@dataclass(slots=True)
class _Here:
    pid: int = 0
    parts: Parts | None = None


_here = _Here()
_lock = RLock()


def here() -> Parts:
    """Return the parts of this process, built when first asked for, by its Celery app's settings.

    Those are the environment's, unless the app was installed with others. A forked child builds
    its own. Raises InvalidSettings.
    """
    with _lock:
        if _here.parts is None or _here.pid != os.getpid():
            _here.parts = Parts(settings_of(app_or_default()))
            _here.pid = os.getpid()
        return _here.parts


def stop_here() -> None:
    """Begin no further hand-over in this process. May be called in the handler of a signal."""
    parts = _here.parts
    if parts is not None and _here.pid == os.getpid() and "lanes" in vars(parts):
        parts.lanes.stop()


def finish_here() -> bool:
    """Wait for the hand-overs of this process that no task waits for; tell whether all ended."""
    parts = _here.parts
    if parts is not None and _here.pid == os.getpid() and "lanes" in vars(parts):
        return parts.lanes.finish()
    return True


def close_here() -> None:
    """Close the lines of this process to the providers, once it hands nothing over any more.

    The hooks are told what waits for them.
    """
    parts = _here.parts
    if parts is not None and _here.pid == os.getpid():
        parts.close_transports()
        parts.close_hooks()

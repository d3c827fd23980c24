"""Composition: the parts of the dispatcher for one configuration.

No part connects before its first use, and a worker builds none before the fork.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from inspect import signature
from threading import RLock
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload

from sqlalchemy import false, or_

from dispatcher.celery.configuration import create_app
from dispatcher.celery.queue import BrokerProbe, Queue, check_url
from dispatcher.delivery import Delivery, GroupQueue, StopFlag
from dispatcher.delivery.reconciler import MARKER_SPARE, Reconciler
from dispatcher.delivery.send_log import SendLogs
from dispatcher.delivery.sweep import Sweep, Ticks
from dispatcher.errors import InvalidSettings, LimitersUnavailable, StoreUnavailable, needs
from dispatcher.faults import arm_by_environment
from dispatcher.forks import never_finalise, renew_after_fork
from dispatcher.limiters.permits import Fills, InHand, LogLimit, Permits, reaches_ms
from dispatcher.operations.doctor import Doctor
from dispatcher.operations.overview import Overviews
from dispatcher.operations.verification import Verification
from dispatcher.quota import Limit, SendLimit, send_limits
from dispatcher.redis.client import connect_redis, ping
from dispatcher.reservation.contents import Contents, RedisSurvey
from dispatcher.reservation.encoding import Named, longest_ms
from dispatcher.reservation.fence import Fence
from dispatcher.reservation.plan import Copies
from dispatcher.reservation.refusals import RefusalLog
from dispatcher.reservation.rulebook import RuleBook
from dispatcher.reservation.timeline import Timelines
from dispatcher.reservation.upkeep import Upkeep
from dispatcher.reservation.windows import Windows
from dispatcher.settings import Settings
from dispatcher.store.claims import Claims
from dispatcher.store.database import Database
from dispatcher.store.events import EventRows
from dispatcher.store.listing import Figures, Listing
from dispatcher.store.lists import Pauses, PersonalData, ScopeSettings, Suppressions
from dispatcher.store.maintenance import MOST_GRACES, StoreMaintenance, overdue
from dispatcher.store.messages import Messages, StoppedMessages
from dispatcher.store.notifications import Notifications
from dispatcher.store.outbox import JoinedMessages
from dispatcher.store.series import SeriesRows
from dispatcher.store.survey import StoreSurvey
from dispatcher.store.void_ids import VoidIds
from dispatcher.store.wishes import Wishes
from dispatcher.submission.changes import Cancellation, Changes
from dispatcher.submission.decisions import Decisions
from dispatcher.submission.enqueuer import Enqueuer
from dispatcher.submission.events import EventList
from dispatcher.submission.lists import Erasure, PauseList, SuppressionList
from dispatcher.submission.moves import Moves
from dispatcher.submission.pipeline import Submitter
from dispatcher.submission.quotas import QuotaList
from dispatcher.submission.reads import StoryReader, TimelineReader
from dispatcher.submission.reserver import Reserver
from dispatcher.submission.series import SeriesList
from dispatcher.submission.sinks import CallersTransactions, DryRun, OwnTransaction
from dispatcher.submission.validation import DraftValidator
from dispatcher.submission.zones import ZoneRepair
from dispatcher.telemetry.journal import EventStream, Hooks, Journal, digest_with, find_hooks
from dispatcher.telemetry.liveness import BROKER, HANGS_AFTER, Health, Kind, Pulse, Signs
from dispatcher.templating import Templates
from dispatcher.times.clock import Clock, SystemClock
from dispatcher.transports import Checks, Transport, close_all, load

if TYPE_CHECKING:
    from types import ModuleType

    from celery import Celery
    from redis import Redis
    from sqlalchemy import ColumnElement

    from dispatcher.telemetry.prometheus import Exposition
    from dispatcher.telemetry.spans import Spans

log = logging.getLogger(__name__)

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
AppT = TypeVar("AppT", bound="App")

_PAGE_CONNECTIONS = 12
_PAGE_SECONDS = 1


class built_once(Generic[T_co]):  # noqa: N801 - used as a decorator
    """A cached property that threads build only once.

    Its lock belongs to the object: in a child forked while a thread of the parent builds, a
    module's lock would stay locked for ever. The child makes an object of its own.
    """

    def __init__(self, build: Callable[[AppT], T_co]) -> None:
        self._build: Callable[[Any], T_co] = build
        self.__doc__ = build.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> T_co: ...
    def __get__(self, instance: object, owner: type | None = None) -> Self | T_co:
        if instance is None:
            return self
        name, built = self._name, vars(instance)
        with built.setdefault("_building", RLock()):
            if name not in built:  # else another thread has built it
                built[name] = self._build(instance)
            part: T_co = built[name]
            return part


def wired(kind: Callable[..., T], **others: Callable[[App], object]) -> built_once[T]:
    """Return a part that ``kind`` makes of its parameters: see :meth:`App.make`."""
    return built_once(lambda app: app.make(kind, **others))


def prometheus() -> ModuleType:
    """Return the module of metrics. Raises MissingExtra."""
    with needs("metrics", "metrics_port", instead="no metrics_port"):
        from dispatcher.telemetry import prometheus  # noqa: PLC0415 - an extra
    return prometheus


class App:
    """The dispatcher for one configuration: the first use of a part builds it.

    One object may be shared by threads. A forked child builds parts of its own. No send begins once
    the byte of ``stop_flag`` is set.
    """

    _exposition: Exposition | None = None

    def __init__(
        self, settings: Settings, clock: Clock | None = None, *, stop_flag: StopFlag | None = None
    ) -> None:
        arm_by_environment()
        self.settings = settings
        self.clock = clock or SystemClock()
        self.stop_flag = stop_flag or bytearray(1)
        renew_after_fork(self, App._renew)

    def _renew(self) -> None:
        parts = vars(self).copy()
        never_finalise(parts)
        vars(self).clear()
        vars(self).update({name: parts[name] for name in ("settings", "clock", "stop_flag")})

    def make(self, kind: Callable[..., T], **others: Callable[[App], object]) -> T:
        """Return what ``kind`` makes of the parts and settings that are named as its parameters.

        ``others`` give its parameters of other names. Any that is left keeps its default.
        """
        arguments: dict[str, object] = {}
        for name in signature(kind).parameters:
            if name in others:
                arguments[name] = others[name](self)
            elif name in vars(self) or hasattr(App, name):
                arguments[name] = getattr(self, name)
            elif name in Settings.model_fields:
                arguments[name] = getattr(self.settings, name)
        return kind(**arguments)

    # The servers.

    fence = wired(
        Fence,
        reaches_ms=lambda app: {
            kind: longest_ms(quotas) for kind, quotas in app.settings.quotas_of.items()
        },
        permits_ms=lambda app: reaches_ms(app.scope_limits, app.channel_limits),
    )

    @built_once
    def redis(self) -> Redis:
        """For windows and permits. One repeat follows a lost reply: every script is idempotent."""
        return connect_redis(self.settings.redis_url, on_connect=self.fence)

    @built_once
    def plain_redis(self) -> Redis:
        """The client for reading: without the fence, which revokes epochs."""
        return connect_redis(self.settings.redis_url)

    database = built_once(lambda app: Database.of(app.settings))

    @built_once
    def publisher(self) -> Celery:
        """The Celery app that publishes tasks. Raises InvalidSettings for a wrong broker."""
        check_url(self.settings)
        return create_app(self.settings, submitting=True)

    queue = wired(Queue, app=lambda app: app.publisher)

    # Events of transitions, and signs of life.

    @built_once
    def hooks(self) -> Hooks | None:
        if not self.settings.hooks:
            return None
        return Hooks(find_hooks(self.settings.hooks), read=self.messages.find_many)

    events = wired(
        EventStream,
        connect=lambda app: lambda: app.plain_redis,
        keep=lambda app: app.settings.events_kept,
    )

    @built_once
    def journal(self) -> Journal:
        meter = None if self.settings.metrics_port is None else prometheus().Meter()
        listeners = [] if self.hooks is None else [self.hooks.on_event]
        if self.settings.events_kept:
            listeners.append(self.events.on_event)
        return Journal(log_key=self.settings.log_key, meter=meter, listeners=listeners)

    @built_once
    def spans(self) -> Spans | None:
        """The spans of submits and sends; None without the setting. Raises InvalidSettings."""
        if not self.settings.traces:
            return None
        with needs("traces", "traces", instead="traces = false"):
            from dispatcher.telemetry.spans import Spans  # noqa: PLC0415 - an extra
        return Spans()

    signs = wired(Signs, client=lambda app: app.plain_redis)
    pulse = wired(Pulse)

    # Windows and permits.

    scope_settings = wired(ScopeSettings)
    rules = wired(
        RuleBook,
        quotas=lambda app: app.settings.quotas_of,
        changed=lambda app: app.scope_settings.changed,
    )
    windows = wired(
        Windows,
        client=lambda app: app.redis,
        keys=lambda app: app.fence.keys,
        under_way=lambda app: app.settings.reconcile_grace * 2,
    )
    upkeep = wired(
        Upkeep,
        client=lambda app: app.redis,
        marker_life=lambda app: app.settings.settle + MARKER_SPARE,
    )
    contents = wired(Contents, client=lambda app: app.redis)
    plain_contents = wired(Contents, client=lambda app: app.plain_redis)
    permits = wired(
        Permits,
        client=lambda app: app.redis,
        own_limits=lambda app: app.own_limits,
        weights=lambda app: {
            name: {channel.share(value): weight for value, weight in channel.weights.items()}
            for name, channel in app.settings.channels.items()
        },
    )

    @property
    def scope_limits(self) -> list[Limit]:
        return send_limits(self.settings.quotas)

    def own_limits(self) -> Mapping[Named, Sequence[SendLimit]]:
        """Return those of single scopes. Raises LimitersUnavailable if they were never read."""
        try:
            return self.rules.now().own_limits
        except StoreUnavailable as error:
            raise LimitersUnavailable(f"limits of single scopes are not known: {error}") from error

    @property
    def channel_limits(self) -> dict[str, tuple[LogLimit, ...]]:
        return {
            name: (*channel.limits, InHand(channel.concurrency))
            if channel.concurrency
            else channel.limits
            for name, channel in self.settings.channels.items()
        }

    # Submit, and changes of accepted messages.

    messages = wired(Messages)
    event_rows = wired(EventRows)
    suppressions = wired(Suppressions)
    checks = wired(Checks)
    templates = wired(
        Templates,
        max_bytes=lambda app: app.settings.body_max_bytes,
        max_depth=lambda app: app.settings.body_max_depth,
    )
    validator = wired(DraftValidator, check=lambda app: app.checks)
    enqueuer = wired(Enqueuer)
    refusals = wired(
        RefusalLog,
        client=lambda app: app.plain_redis,
        digest=lambda app: digest_with(app.settings.log_key),
    )
    void_ids = wired(VoidIds)
    reserver = wired(Reserver)
    own_transaction = wired(OwnTransaction, reservations=lambda app: app.reserver)
    joined_messages = wired(JoinedMessages)
    callers_transactions = wired(CallersTransactions, store=lambda app: app.joined_messages)

    @contextmanager
    def _dry_run(self) -> Iterator[DryRun]:
        with self.make(
            Copies,
            client=lambda app: app.redis,
            keys=lambda app: app.fence.keys,
            under_way=lambda app: app.settings.reconcile_grace * 2,
        ) as copies:
            yield self.make(DryRun, reservations=lambda _: copies)

    submitter = wired(
        Submitter, own=lambda app: app.own_transaction, dry_run=lambda app: app._dry_run
    )

    timeline_reader = wired(
        TimelineReader,
        timelines=lambda app: Timelines(app.contents, app.windows, app.rules),
    )
    moves = wired(Moves)
    changes = wired(Changes)
    cancellation = wired(Cancellation)
    event_list = wired(EventList)
    wishes = wired(Wishes)
    zone_repair = wired(ZoneRepair)
    suppression_list = wired(SuppressionList)
    stopped_messages = wired(StoppedMessages)
    decisions = wired(Decisions)
    erasure = wired(Erasure, personal_data=lambda app: PersonalData(app.database))

    # The HTTP API and the page.

    @built_once
    def pages(self) -> App:
        """These parts, but those that read the store have a database of few connections of its own.

        So the page never waits for the connections of the program, nor the program for the page's.
        """
        made = App(self.settings, self.clock)
        # These parts have no connections to the store, and a process has one journal.
        shared = ("fence", "redis", "plain_redis", "journal", "spans", "checks", "templates")
        vars(made).update({name: getattr(self, name) for name in shared})
        vars(made)["database"] = Database.of(
            self.settings, connections=_PAGE_CONNECTIONS, statement_seconds=_PAGE_SECONDS
        )
        return made

    # Delivery, and the duties of the sweep.

    @built_once
    def transports(self) -> Mapping[str, Transport]:
        return {
            name: load(name, channel, self.settings)
            for name, channel in self.settings.channels.items()
        }

    @built_once
    def notifications(self) -> Notifications | None:
        name = self.settings.status_channel
        if not name:
            return None
        channel = self.settings.channels[name]
        return Notifications(
            self.database,
            channel=name,
            max_attempts=channel.max_attempts,
            priority=channel.priority,
            tells_errors=self.settings.status_errors,
        )

    send_logs = wired(
        SendLogs,
        folder=lambda app: app.settings.data_dir.resolve() / f"sends.{app.settings.namespace}",
    )
    claims = wired(
        Claims,
        ttl=lambda app: app.settings.claim_ttl,
        kept_back=lambda app: or_(app.to_expire, app.paused),
        report_delays=lambda app: app.notifications and app.notifications.report_delays,
    )
    store_maintenance = wired(StoreMaintenance)
    quota_list = wired(QuotaList, store=lambda app: app.store_maintenance)
    delivery = wired(Delivery)
    group_queue = wired(
        GroupQueue,
        at_once=lambda app: app.settings.groups_at_once,
        size=lambda app: app.settings.group_size,
    )
    ticks = wired(Ticks)
    sweep = wired(Sweep, store=lambda app: app.store_maintenance)
    reconciler = wired(Reconciler, store=lambda app: app.store_maintenance)

    @property
    def to_expire(self) -> ColumnElement[bool]:
        names = self.settings.expiring_channels
        after = self.settings.overdue_after
        return overdue(self.database.tables, names, after) if names else false()

    @property
    def paused(self) -> ColumnElement[bool]:
        return self.database.tables.paused(self.settings.scopes)

    # Reads, for callers and operators.

    pauses = wired(Pauses)
    pause_list = wired(PauseList)
    listing = wired(Listing)
    series_rows = wired(SeriesRows)
    series_list = wired(SeriesList)
    story_reader = wired(StoryReader, contents=lambda app: app.plain_contents)
    overviews = wired(
        Overviews,
        figures=lambda app: app.make(Figures),
        fills=lambda app: app.make(
            Fills,
            client=lambda app: app.plain_redis,
            channel_limits=lambda app: {
                name: limits for name, limits in app.channel_limits.items() if limits
            },
        ),
        timelines=lambda app: Timelines(app.plain_contents, app.windows, app.rules),
    )
    verification = wired(Verification, store=lambda app: StoreMaintenance(app.database))
    broker_probe = wired(BrokerProbe, app=lambda app: app.publisher)

    @property
    def late(self) -> timedelta:
        return self.settings.enqueue_grace

    @property
    def put_off(self) -> timedelta:
        """How long at most the sweep postpones a due message."""
        return max(MOST_GRACES * self.late, self.settings.claim_ttl)

    def health(self, kind: Kind) -> Health:
        questions: dict[str, Callable[[], object]] = {
            BROKER: lambda: self.broker_probe.ask()  # noqa: PLW0108 - built at the first probe
        }
        if kind is Kind.WORKER:
            questions["redis"] = lambda: ping(self.plain_redis)
            questions["database"] = self._ask_database
        hangs_after = max(HANGS_AFTER, 3 * self.settings.sweep_interval)
        return Health(questions, clock=self.clock, hangs_after=hangs_after)

    def _ask_database(self) -> None:
        """Ask whether the database takes writes; a file, which others may lock, tells the time."""
        survey = StoreSurvey(self.database)
        if self.database.backend.file is None:
            survey.try_write()
        else:
            survey.now()

    def doctor(self, theirs: Celery | None = None) -> Doctor:
        """Return the doctor of a user's Celery app, by default ours. Raises InvalidSettings."""
        return self.make(
            Doctor,
            redis=lambda app: RedisSurvey(app.plain_redis, app.fence),
            store=lambda app: StoreSurvey(app.database),
            examined=lambda app: theirs or app.publisher,
        )

    # Begin and end.

    def build_for_sending(self) -> None:
        """Build what a worker needs. Raises InvalidSettings and MissingExtra, before it starts."""
        self.transports  # noqa: B018 - a cached property
        self.journal, self.spans  # noqa: B018 - the same

    def serve_metrics(self, kind: Kind) -> Health | None:
        """Serve metrics and health; return None without a port, and where it is taken (logged)."""
        host, port = self.settings.metrics_host, self.settings.metrics_port
        if port is None:
            return None
        health = self.health(kind)
        try:
            look = lambda: self.overviews.vitals()  # noqa: E731, PLW0108 - built at the first scrape
            self._exposition = prometheus().Exposition(look, health, host, port, self.clock)
        except InvalidSettings as error:
            log.error("metrics are not served: %s", error)  # noqa: TRY400 - it says all there is
            return None
        log.info("metrics at http://%s:%d/metrics", host, self._exposition.port)
        return health

    def stop_sending(self) -> None:
        """Begin no further send; the others are put back. Waits for no lock: for signals, too."""
        self.stop_flag[0] = 1

    def finish_sending(self) -> bool:
        """Wait for the sends that no task waits for; return whether all ended."""
        return "delivery" not in vars(self) or self.delivery.finish()

    def close_sending(self) -> None:
        """Close the connections to the providers, once no send is under way, hooks and events."""
        if "transports" in vars(self):
            close_all(self.transports.values())
        self._close_built("hooks", "events")

    def close(self) -> None:
        if "pulse" in vars(self):
            self.pulse.stop()
        if self._exposition is not None:
            self._exposition.close()
        self._close_built("broker_probe", "delivery")
        self.close_sending()
        if "pages" in vars(self):
            self.pages.database.close()
        self._close_built("redis", "plain_redis", "database", "queue", "publisher")

    def _close_built(self, *names: str) -> None:
        """Close those of these parts that were built; one that the settings turn off is None."""
        for name in names:
            part = vars(self).get(name)
            if part is not None:
                part.close()

"""The parts of a dispatcher whose time a test moves, and of one whose servers lie in memory.

All use cases are the real ones: submission, changes, delivery, the duties of the sweep. Doubled are
the clock, the broker, the transports and, in :class:`MemoryApp`, the store and Redis.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, NoReturn, TypeVar, cast

from dispatcher.app import App, built_once
from dispatcher.broker.queue import Queue
from dispatcher.delivery import Delivery
from dispatcher.delivery.reconciler import MARKER_SPARE
from dispatcher.delivery.send_log import SendLogs
from dispatcher.errors import DispatcherError
from dispatcher.limiters import Permits
from dispatcher.reservation import Contents, Copies, RefusalLog, Upkeep, Windows, longest_ms
from dispatcher.settings import Settings
from dispatcher.store import (
    Claims,
    FailedMessages,
    HeldMessages,
    JoinedMessages,
    Listing,
    Messages,
    Notifications,
    Overdue,
    Pauses,
    Replies,
    StoreMaintenance,
    Suppressions,
)
from dispatcher.telemetry.journal import Journal
from dispatcher.testing.memory.claims import MemoryClaims
from dispatcher.testing.memory.joined import MemoryJoined
from dispatcher.testing.memory.listing import (
    MemoryFailed,
    MemoryHeld,
    MemoryListing,
    MemoryNotifications,
)
from dispatcher.testing.memory.messages import (
    MemoryMessages,
    MemoryPauses,
    MemorySuppressions,
)
from dispatcher.testing.memory.permits import MemoryPermits
from dispatcher.testing.memory.queue import MemoryQueue, MemorySendLogs
from dispatcher.testing.memory.redis_reads import MemoryContents, MemoryCopies
from dispatcher.testing.memory.server import Server
from dispatcher.testing.memory.shards import MemoryShards, windows_on
from dispatcher.testing.memory.store_maintenance import MemoryOverdue, MemoryStoreMaintenance
from dispatcher.testing.memory.tables import CatchUpRules, Tables
from dispatcher.testing.memory.windows_upkeep import MemoryUpkeep
from dispatcher.times.clock import Clock
from dispatcher.transports import Transport

T = TypeVar("T")

_NOT_HERE = "this call needs the servers, and a dispatcher in memory has none"


def _as(kind: type[T], double: object) -> T:
    """Return a double as the class that it stands for."""
    del kind
    return cast(T, double)


class RefusalJournal(Journal):
    """A journal that keeps the refusals of submits."""

    def __init__(self, refusals: list[DispatcherError], **named: Any) -> None:
        super().__init__(**named)
        self._refusals = refusals

    def refused(self, error: DispatcherError) -> None:
        """Keep and count a submit that was refused."""
        self._refusals.append(error)
        super().refused(error)


class TravelApp(App):
    """The parts of a dispatcher whose time a test moves: one thread delivers, in order.

    The waits before retries are drawn from ``seed``.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        *,
        transport_of: Callable[[str], Transport],
        seed: int = 0,
    ) -> None:
        channels = {
            name: each.model_copy(update={"senders": 1}) for name, each in settings.channels.items()
        }
        super().__init__(settings.model_copy(update={"channels": channels}), clock)
        self.refused: list[DispatcherError] = []
        self._transport_of = transport_of
        self._jitter = random.Random(seed).random  # noqa: S311 - no secret

    @built_once
    def memory_queue(self) -> MemoryQueue:
        """The broker."""
        return MemoryQueue(
            group_size=self.settings.group_size, clock=self.clock, journal=self.journal
        )

    @built_once
    def queue(self) -> Queue:
        """The broker, as use cases know it."""
        return _as(Queue, self.memory_queue)

    @built_once
    def journal(self) -> Journal:
        """The log and the hooks of each transition."""
        listeners = [] if self.hooks is None else [self.hooks.on_event]
        return RefusalJournal(self.refused, log_key=self.settings.log_key, listeners=listeners)

    @built_once
    def transports(self) -> dict[str, Transport]:
        """The transport of each channel."""
        return {name: self._transport_of(name) for name in self.settings.channels}

    @built_once
    def send_logs(self) -> SendLogs:
        """The logs of claims."""
        return _as(SendLogs, MemorySendLogs())

    @built_once
    def delivery(self) -> Delivery:
        """The use case of ``deliver``; its sends happen on the thread that calls it."""
        delivery = super().delivery
        delivery.shared.jitter = self._jitter
        delivery.close()  # from now on calls for the threads of its senders run at once
        return delivery

    def needs_reconcile(self) -> bool:
        """Whether a run of ``reconcile`` may find something to do."""
        return True

    def next_to_enqueue(self) -> datetime | None:
        """Return when the first scheduled message is to be enqueued; None without one."""
        raise NotImplementedError


class UnnotedRefusals:
    """Stands in for ``RefusalLog``: the errors are in ``refused`` already."""

    def note(self, refused: object) -> None:
        """Note nothing."""

    def read(
        self, *, since: timedelta, quota: str | None, what_if: str | None, last: int
    ) -> NoReturn:
        """Raise NotImplementedError."""
        raise NotImplementedError(_NOT_HERE)

    def of(self, scopes: Sequence[str], *, last: int) -> NoReturn:
        """Raise NotImplementedError."""
        raise NotImplementedError(_NOT_HERE)


class MemoryApp(TravelApp):
    """The parts of a dispatcher in memory. What needs a server raises NotImplementedError."""

    @built_once
    def tables(self) -> Tables:
        """What the store holds."""
        return Tables(self.clock.now)

    @built_once
    def server(self) -> Server:
        """What Redis holds."""
        return Server(
            self.clock.now, namespace=self.settings.namespace, shards=self.settings.shards
        )

    def open(self) -> None:
        """Let the windows and permits be complete."""
        rebuild = self.upkeep.begin()
        if rebuild is not None:
            self.upkeep.open(rebuild)

    def needs_reconcile(self) -> bool:
        """Whether a run of ``reconcile`` may find something to do."""
        return bool(
            self.tables.unreleased or self.tables.taken_back or self.server.holds.room.scores
        )

    def next_to_enqueue(self) -> datetime | None:
        """Return when the first scheduled message is to be enqueued; None without one."""
        return self.tables.next_to_enqueue()

    @built_once
    def database(self) -> NoReturn:
        """Nothing: the store lies in ``tables``."""
        raise NotImplementedError(_NOT_HERE)

    redis = plain_redis = publisher = database

    # Redis.

    @built_once
    def refusals(self) -> RefusalLog:
        """The refused submits."""
        return _as(RefusalLog, UnnotedRefusals())

    @built_once
    def windows(self) -> Windows:
        """The windows of reservations, over shards in memory."""
        quotas, under_way = self.settings.quotas_of, self.settings.reconcile_grace * 2
        shards = MemoryShards(self.server, quotas, under_way=under_way)
        return windows_on(shards, quotas, keys=self.fence.keys, under_way=under_way)

    @built_once
    def upkeep(self) -> Upkeep:
        """Rebuilding and settling of the windows."""
        upkeep = MemoryUpkeep(
            self.server,
            longest_ms=max(map(longest_ms, self.settings.quotas_of.values())),
            marker_life=self.settings.settle + MARKER_SPARE,
            under_way=self.settings.reconcile_grace * 2,
            new_marker=lambda: "marker",
        )
        return _as(Upkeep, upkeep)

    @built_once
    def contents(self) -> Contents:
        """The reader of the windows."""
        return _as(Contents, MemoryContents(self.server, self.fence))

    @built_once
    def permits(self) -> Permits:
        """The limits of sends."""
        permits = MemoryPermits(
            self.server, scope_limits=self.scope_limits, channel_limits=self.channel_limits
        )
        return _as(Permits, permits)

    plain_contents = contents

    def copies(self) -> Copies:
        """Return copies of the windows for one plan."""
        copies = MemoryCopies(
            self.server,
            self.clock.now,
            self.settings.quotas_of,
            namespace=self.settings.namespace,
            under_way=self.settings.reconcile_grace * 2,
        )
        return _as(Copies, copies)

    # The store.

    @built_once
    def messages(self) -> Messages:
        """Messages in the store."""
        return _as(Messages, MemoryMessages(self.tables))

    @built_once
    def joined_messages(self) -> JoinedMessages:
        """Messages in transactions of callers."""
        return _as(JoinedMessages, MemoryJoined(self.tables))

    @built_once
    def suppressions(self) -> Suppressions:
        """Recipients that have opted out, in the store."""
        return _as(Suppressions, MemorySuppressions(self.tables))

    @built_once
    def pauses(self) -> Pauses:
        """The pauses, in the store."""
        return _as(Pauses, MemoryPauses(self.tables))

    @built_once
    def failed_messages(self) -> FailedMessages:
        """Failed messages in the store."""
        return _as(FailedMessages, MemoryFailed(self.tables))

    @built_once
    def held_messages(self) -> HeldMessages:
        """Held messages in the store."""
        return _as(HeldMessages, MemoryHeld(self.tables))

    @built_once
    def claims(self) -> Claims:
        """The claims of messages in the store."""
        claims = MemoryClaims(self.tables, ttl=self.settings.claim_ttl, kept_back=self._catching_up)
        return _as(Claims, claims)

    @built_once
    def store_maintenance(self) -> StoreMaintenance:
        """What the sweep reads and writes in the store."""
        return _as(
            StoreMaintenance, MemoryStoreMaintenance(self.tables, kept_back=self._catching_up)
        )

    @built_once
    def overdue(self) -> Overdue:
        """The overdue messages that ``catch_up`` handles, in the store."""
        return _as(Overdue, MemoryOverdue(self.tables, self._catching_up))

    @built_once
    def notifications(self) -> Notifications | None:
        """The statements of ``notify``; None without a ``status_channel``."""
        name = self.settings.status_channel
        if not name:
            return None
        notifications = MemoryNotifications(
            self.tables,
            channel=name,
            max_attempts=self.settings.channels[name].max_attempts,
            tells_errors=self.settings.status_errors,
        )
        return _as(Notifications, notifications)

    @built_once
    def replies(self) -> Replies:
        """Nothing: there is no HTTP API."""
        return _as(Replies, None)

    @built_once
    def listing(self) -> Listing:
        """Messages by the filters of operators."""
        late, put_off = self._patience
        return _as(Listing, MemoryListing(self.tables, late=late, put_off=put_off))

    @property
    def _catching_up(self) -> CatchUpRules:
        return CatchUpRules(
            self.settings.overdue_after,
            expire=self.settings.caught_up_by("expire"),
            reslot=self.settings.caught_up_by("reslot"),
        )

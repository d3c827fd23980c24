"""How the use cases of a process are wired to what it reaches of the servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from dispatcher.delivery import Delivery, Shared
from dispatcher.delivery.reconciler import MARKER_SPARE, Reconciler
from dispatcher.delivery.sweep import Sweep
from dispatcher.message import Message
from dispatcher.quota import Limit
from dispatcher.reservation import Windows, longest_ms
from dispatcher.submission import (
    Batches,
    CallersTransactions,
    Cancellation,
    CatchUp,
    Changes,
    DryRun,
    Enqueuer,
    Moves,
    OwnTransaction,
    Reserver,
    Submitter,
    SuppressionList,
)
from dispatcher.submission.validation import PreparedDraft
from dispatcher.telemetry.journal import Journal
from dispatcher.testing.memory.joined import MemoryTransaction
from dispatcher.testing.memory.messages import (
    MemoryMessages,
    MemorySuppressions,
)
from dispatcher.testing.memory.permits import MemoryPermits
from dispatcher.testing.memory.shards import MemoryShards, windows_on
from dispatcher.testing.memory.store_maintenance import MemoryOverdue
from dispatcher.testing.memory.windows_upkeep import MemoryUpkeep
from tests.simulation.broker import SimQueue
from tests.simulation.callers import UseCases
from tests.simulation.facts import WatchedClaims, WatchedMaintenance
from tests.simulation.faults import Line, MessagesLine, Reached
from tests.simulation.joined import MemoryJoined, Session
from tests.simulation.ledger import SimTransport
from tests.simulation.scheduler import Process
from tests.simulation.send_logs import MemoryClaimLog, MemorySendLogs
from tests.simulation.setting import CHANNEL_LIMITS, QUOTAS, catching_up, settings

if TYPE_CHECKING:
    from tests.simulation.world import World

_GIVES_BACK = ("windows.release", "windows.release_many", "store.look")
_SETTINGS = settings()
_CATCHING_UP = catching_up(_SETTINGS)
_UNDER_WAY = _SETTINGS.reconcile_grace * 2


class Wiring:
    """The doubles of a story, and the use cases of its processes on them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._messages = MemoryMessages(self._world.tables)
        self._claims = WatchedClaims(
            self._world.tables, self._world.facts, ttl=_SETTINGS.claim_ttl, kept_back=_CATCHING_UP
        )
        self._logs: list[MemoryClaimLog] = []
        self._send_logs: Any = MemorySendLogs(
            world.scheduler, self._logs, lambda: UUID(int=self._world.number())
        )
        self._maintenance = WatchedMaintenance(
            self._world.tables, self._world.facts, kept_back=_CATCHING_UP
        )
        self._shards = MemoryShards(self._world.server, _SETTINGS.quotas_of, under_way=_UNDER_WAY)
        self._windows_upkeep = MemoryUpkeep(
            self._world.server,
            longest_ms=max(map(longest_ms, _SETTINGS.quotas_of.values())),
            marker_life=_SETTINGS.settle + MARKER_SPARE,
            under_way=_UNDER_WAY,
            new_marker=lambda: f"marker {self._world.number()}",
        )
        self.permits = MemoryPermits(
            self._world.server,
            scope_limits=[Limit(quota.count, quota.length_ms) for quota in QUOTAS],
            channel_limits={"sms": CHANNEL_LIMITS},
        )

    def delivery(self, process: Process, look: Callable[[Message], None]) -> Delivery:
        """Return the use case of a worker; ``look`` is called before each send."""
        transport = SimTransport(
            self._world.provider,
            process,
            look,
            scheduler=self._world.scheduler,
            weather=self._world.weather,
            tell=lambda what, detail: self._world.tell(process.name, what, detail),
            shift_us=self._world.db_shift_us,
        )
        shared = Shared(
            settings=_SETTINGS,
            clock=process,
            claims=self._reached(self._claims, "store", process),
            permits=self._reached(self.permits, "permits", process),
            queue=self._queue_of(process),
            journal=Journal(),
            jitter=self._world.rng.random,
        )
        transports = dict.fromkeys(_SETTINGS.channels, transport)
        return Delivery(shared, transports=transports, send_logs=self._send_logs)

    def duties(self, process: Process) -> dict[str, Callable[[], object]]:
        """Return the duties of a sweeper by name."""
        parts = self._common_of(process)
        sweep = Sweep(
            settings=_SETTINGS,
            clock=process,
            store=self._reached(self._maintenance, "store", process),
            messages=parts["messages"],
            permits=self._reached(self.permits, "permits", process),
            queue=self._queue_of(process),
            journal=Journal(),
            send_logs=self._send_logs,
        )
        reconciler = Reconciler(
            settings=_SETTINGS,
            clock=process,
            store=self._reached(self._maintenance, "store", process),
            upkeep=self._reached(self._windows_upkeep, "windows", process),
            permits=self._reached(self.permits, "permits", process),
        )
        catch_up = CatchUp(
            settings=_SETTINGS,
            store=self._reached(MemoryOverdue(self._world.tables, _CATCHING_UP), "store", process),
            moves=Moves(**_without_journal(parts)),
            enqueuer=parts["enqueuer"],
            journal=Journal(),
        )
        return {
            "enqueue_due": sweep.enqueue_due, "rescue": sweep.rescue, "prune": sweep.prune,
            "reconcile": reconciler.reconcile, "catch_up": catch_up.run,
        }  # fmt: skip

    def _common_of(self, process: Process) -> dict[str, Any]:
        """Return what the use cases of those have in common who reserve."""
        messages: Any = MessagesLine(self._reached(self._messages, "store", process))
        enqueuer = Enqueuer(
            settings=_SETTINGS,
            clock=process,
            messages=messages,
            queue=self._queue_of(process),
            journal=Journal(),
        )
        return {
            "settings": _SETTINGS, "clock": process, "messages": messages,
            "windows": self._windows_of(process), "enqueuer": enqueuer, "journal": Journal(),
            "suppressions": self._reached(
                MemorySuppressions(self._world.tables), "store", process
            ),
        }  # fmt: skip

    def use_cases(self, process: Process) -> UseCases:
        """Return what the callers of a client ask."""
        parts = self._common_of(process)
        enqueuer, suppressions = parts["enqueuer"], parts["suppressions"]
        reserver = Reserver(
            clock=process,
            windows=parts["windows"],
            upkeep=self._reached(self._windows_upkeep, "windows", process),
            messages=parts["messages"],
        )
        bodies: dict[str, Any] = {"check": lambda *_: None, "prepare": PreparedDraft}
        submitter = Submitter(
            settings=_SETTINGS, clock=process, enqueuer=enqueuer, journal=Journal(), **bodies,
            lacks=lambda _: False,
        )  # fmt: skip
        own = OwnTransaction(
            settings=_SETTINGS,
            clock=process,
            messages=parts["messages"],
            suppressions=suppressions,
            reserver=reserver,
            enqueuer=enqueuer,
        )
        joined = MemoryJoined(self._world.tables, lambda it: self._reached(it, "store", process))
        callers = CallersTransactions(
            settings=_SETTINGS,
            clock=process,
            store=cast(Any, joined),
            reserver=reserver,
            enqueuer=enqueuer,
        )
        moves = Moves(**_without_journal(parts))
        cancellation = Cancellation(messages=parts["messages"], moves=moves, journal=Journal())
        return UseCases(
            submitter,
            own,
            callers,
            Batches(submitter=submitter, own=own, dry_run=_no_plans, journal=Journal()),
            Changes(
                moves=moves,
                **bodies,
                **{name: part for name, part in parts.items() if name != "windows"},
            ),
            cancellation,
            SuppressionList(
                settings=_SETTINGS,
                suppressions=suppressions,
                cancellation=cancellation,
            ),
        )

    def session(self, process: Process) -> Session:
        """Return a session of a caller's, in a transaction."""
        transaction = MemoryTransaction(self._world.tables)
        return Session(transaction, self._reached(transaction, "store", process))

    def _reached(self, part: object, room: str, process: Process) -> Any:
        return Reached(
            part,
            room,
            process,
            network=self._world.network,
            scheduler=self._world.scheduler,
            weather=self._world.weather,
            tell=lambda what, detail: self._tell_call(process, what, detail),
        )

    def _tell_call(self, process: Process, what: str, detail: str) -> None:
        self._world.tell(process.name, what, detail)
        if detail[:1] == "!" and what in _GIVES_BACK:
            asked = self._world.scheduler.running().seed
            if asked is not None:
                asked.leaks = True

    def _queue_of(self, process: Process) -> Any:
        queue = SimQueue(
            self._world.broker,
            self._world.scheduler,
            self._world.weather,
            coalesce=_SETTINGS.coalesce,
        )
        return self._reached(queue, "queue", process)

    def _windows_of(self, process: Process) -> Windows:
        line = Line(self._reached(self._shards, "windows", process))
        quotas = _SETTINGS.quotas_of
        return windows_on(line, quotas, keys=self._world.server.keys, under_way=_UNDER_WAY)


def _no_plans() -> DryRun:
    raise NotImplementedError


def _without_journal(parts: dict[str, Any]) -> dict[str, Any]:
    return {name: part for name, part in parts.items() if name not in {"journal", "suppressions"}}

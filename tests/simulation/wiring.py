"""The parts of the processes of a story: the real ones, as each process reaches them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from datetime import timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Any
from uuid import UUID

from sqlalchemy import or_

from dispatcher.app import App, built_once
from dispatcher.celery.configuration import DUTIES
from dispatcher.delivery.send_log import LeftLog
from dispatcher.errors import StoreUnavailable
from dispatcher.message import Message
from dispatcher.store.claims import Claims
from dispatcher.store.database import Database
from dispatcher.store.maintenance import StoreMaintenance
from dispatcher.telemetry.journal import Journal
from tests.simulation.facts import WatchedClaims, WatchedMaintenance, WatchedSettings
from tests.simulation.faults import CallersSession, JoinedLine, Line, MessagesLine, Reached
from tests.simulation.outside import SimTransport
from tests.simulation.scheduler import Process, Scheduler

if TYPE_CHECKING:
    from tests.simulation.world import World

DAY = timedelta(days=1)
_IN_STORE = ("messages", "claims", "store_maintenance", "suppressions", "listing", "void_ids",
             "scope_settings", "event_rows", "series_rows", "pauses")  # fmt: skip


class _Parts(App):
    """The parts that all processes of a story have in common. They are watched."""

    def __init__(self, world: World) -> None:
        super().__init__(world.settings, world.network)
        self._world = world
        self.redis = world.server.client

    @built_once
    def database(self) -> Database:
        return self._world.store.database

    @built_once
    def claims(self) -> Claims:
        return WatchedClaims(
            self.database,
            self._world,
            ttl=self.settings.claim_ttl,
            kept_back=or_(self.to_expire, self.paused),
        )

    @built_once
    def store_maintenance(self) -> StoreMaintenance:
        return WatchedMaintenance(
            self.database, self._world, to_expire=self.to_expire, paused=self.paused
        )


class Wiring:
    def __init__(self, world: World) -> None:
        self._world = world
        self.parts = _Parts(world)
        self._send_logs = MemorySendLogs(world)

    def app(self, process: Process, look: Callable[[Message], None] = lambda _: None) -> App:
        """Return the parts of a process; ``look`` is called before each send."""
        world, parts = self._world, self.parts
        app = App(world.settings, process)

        def reached(part: object, room: str) -> Any:
            return Reached(part, room, process, world)

        made = vars(app)
        made.update(
            {name: reached(getattr(parts, name), "store") for name in _IN_STORE},
            fence=parts.fence,
            redis=parts.redis,
            send_logs=self._send_logs,
            joined_messages=JoinedLine(parts.joined_messages, process, world),
            queue=reached(world.broker, "queue"),
            transports=dict.fromkeys(world.settings.channels, SimTransport(world, process, look)),
            journal=Journal(listeners=[world.facts.hear]),
            checks=lambda *_: None,
            refusals=None,
        )
        made["scope_settings"] = WatchedSettings(made["scope_settings"], process, world)
        made["messages"] = MessagesLine(made["messages"])
        made["upkeep"] = reached(app.upkeep, "windows")
        vars(app.permits)["acquire"] = world.facts.watching(app.permits)
        made["permits"] = reached(app.permits, "permits")
        # No quota is longer than messages are kept, as far as a story goes.
        app.quota_list.settings = world.settings.model_copy(update={"retention": DAY})
        app.windows.shards = Line(reached(app.windows.shards, "windows"))  # type: ignore[assignment]
        app.delivery.jitter = world.rng.random
        return app

    def duties(self, app: App) -> dict[str, Callable[[], object]]:
        """Return every duty but that of status webhooks, whose statements are not simulated."""
        methods = {name: duty.run for name, duty in DUTIES.items() if name != "notify"}
        return {name: attrgetter(method)(app) for name, method in methods.items()}

    def session(self, process: Process) -> CallersSession:
        return CallersSession(self._world.store.callers.connect(), process)

    def commit(self, line: Any) -> None:
        """Commit the transaction of a caller; a step like others. How it ends the driver says."""
        process = self._world.scheduler.running().process
        try:
            Reached(line, "store", process, self._world).commit()
        except StoreUnavailable:
            line.driver_connection.close()
            raise sqlite3.ProgrammingError("Cannot operate on a closed database.") from None


class MemoryClaimLog:
    """Stands in for ``dispatcher.delivery.send_log.ClaimLog``."""

    def __init__(self, scheduler: Scheduler, mark: UUID, message_ids: Sequence[UUID]) -> None:
        self.mark = mark
        self.claimed = list(message_ids)
        self.begun: set[UUID] = set()
        self.is_kept = False
        self._scheduler = scheduler
        self._process = scheduler.running().process
        self._is_closed = False

    def begin(self, message_id: UUID) -> bool:
        self._scheduler.running()
        self.begun.add(message_id)
        return True

    def close(self) -> None:
        self._scheduler.running()
        self._is_closed = True

    @property
    def is_over(self) -> bool:
        """Whether its process lives and has closed it."""
        return self._process.alive and self._is_closed

    @property
    def is_left(self) -> bool:
        """Whether it is for the rescue to read."""
        return self.is_kept if self.is_over else not self._process.alive


class MemorySendLogs:
    """Stands in for ``SendLogs`` of ``send_log``: those of the machine, which outlive processes."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._logs: list[MemoryClaimLog] = []

    def open(self, message_ids: Sequence[UUID]) -> MemoryClaimLog:
        mark = UUID(int=self._world.number())
        self._logs.append(MemoryClaimLog(self._world.scheduler, mark, message_ids))
        return self._logs[-1]

    def consume(self, act: Callable[[LeftLog], object], *, limit: int) -> bool:
        self._logs[:] = [log for log in self._logs if log.is_left or not log.is_over]
        left = [log for log in self._logs if log.is_left]
        for log in left[:limit]:
            act(LeftLog(log.mark, tuple(id_ for id_ in log.claimed if id_ not in log.begun)))
            if log in self._logs:
                self._logs.remove(log)
        return len(left) <= limit

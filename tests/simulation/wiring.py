"""The parts of the processes of a story: the real ones, as each process reaches them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any
from uuid import UUID

from sqlalchemy import or_

from dispatcher.app import App, built_once
from dispatcher.celery.configuration import DUTIES
from dispatcher.message import Message
from dispatcher.store.claims import Claims
from dispatcher.store.database import Database
from dispatcher.store.maintenance import StoreMaintenance
from dispatcher.telemetry.journal import Journal
from tests.simulation.broker import SimQueue
from tests.simulation.facts import WatchedClaims, WatchedMaintenance
from tests.simulation.faults import Line, MessagesLine, Reached
from tests.simulation.joined import CallersSession, JoinedLine, committed
from tests.simulation.ledger import SimTransport
from tests.simulation.scheduler import Process
from tests.simulation.send_logs import MemoryClaimLog, MemorySendLogs

if TYPE_CHECKING:
    from tests.simulation.world import World

_GIVES_BACK = ("windows.release_many", "store.stored")
_IN_STORE = ("messages", "claims", "store_maintenance", "suppressions", "void_ids")


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
        self._logs: list[MemoryClaimLog] = []
        self._send_logs = MemorySendLogs(
            world.scheduler, self._logs, lambda: UUID(int=world.number())
        )

    def app(self, process: Process, look: Callable[[Message], None] = lambda _: None) -> App:
        """Return the parts of a process; ``look`` is called before each send."""
        world, parts = self._world, self.parts
        reached = partial(self._reached, process=process)
        app = App(world.settings, process)
        made = vars(app)
        made.update(
            {name: reached(getattr(parts, name), "store") for name in _IN_STORE},
            fence=parts.fence,
            redis=parts.redis,
            send_logs=self._send_logs,
            joined_messages=JoinedLine(
                parts.joined_messages, process, partial(reached, room="store")
            ),
            queue=reached(
                SimQueue(
                    world.broker, world.scheduler, world.weather, coalesce=world.settings.coalesce
                ),
                "queue",
            ),
            transports=dict.fromkeys(
                world.settings.channels,
                SimTransport(
                    world.provider,
                    process,
                    look,
                    scheduler=world.scheduler,
                    weather=world.weather,
                    tell=partial(world.tell, process.name),
                    shift_us=world.db_shift_us,
                ),
            ),
            journal=Journal(),
            checks=lambda *_: None,
            refusals=None,
        )
        made["messages"] = MessagesLine(made["messages"])
        made["upkeep"] = reached(app.upkeep, "windows")
        made["permits"] = reached(app.permits, "permits")
        app.windows.shards = Line(reached(app.windows.shards, "windows"))  # type: ignore[assignment]
        app.delivery.shared.jitter = world.rng.random
        return app

    def duties(self, app: App) -> dict[str, Callable[[], object]]:
        """Return every duty but that of status webhooks, whose statements are not simulated."""
        methods = {name: duty.run for name, duty in DUTIES.items() if name != "notify"}
        return {name: attrgetter(method)(app) for name, method in methods.items()}

    def session(self, process: Process) -> CallersSession:
        return CallersSession(self._world.store.callers.connect(), process)

    def commit(self, line: Any) -> None:
        """Commit the transaction of a caller; a step like others."""
        process = self._world.scheduler.running().process
        committed(line, self._reached(line, "store", process))

    def _reached(
        self, part: object, room: str, process: Process, breaks: Callable[[], object] | None = None
    ) -> Any:
        return Reached(
            part,
            room,
            process,
            network=self._world.network,
            scheduler=self._world.scheduler,
            weather=self._world.weather,
            tell=partial(self._tell_call, process),
            breaks=breaks,
        )

    def _tell_call(self, process: Process, what: str, detail: str) -> None:
        self._world.tell(process.name, what, detail)
        if detail[:1] == "!" and what in _GIVES_BACK:
            asked = self._world.scheduler.running().seed
            if asked is not None:
                asked.leaks = True

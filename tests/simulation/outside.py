"""What lies outside: providers, who write down what arrives, and a broker that loses tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from dispatcher.celery.queue import TaskGroup, Ticket, group
from dispatcher.errors import PermanentFailure, TemporaryFailure
from dispatcher.message import Message
from tests.simulation.scheduler import Process
from tests.support.ledger import a_send

if TYPE_CHECKING:
    from tests.simulation.world import World


class SimTransport:
    """Carries messages to providers for one process; ``look`` is called before each send."""

    def __init__(self, world: World, process: Process, look: Callable[[Message], None]) -> None:
        self._world = world
        self._process = process
        self._look = look

    def send(self, message: Message) -> str | None:
        """Send; faults of the worker meanwhile are injected elsewhere."""
        world, scheduler, rng = self._world, self._world.scheduler, self._world.rng
        self._look(message)
        self._line("begin", message)
        fault = None if world.weather.calm else rng.random()
        world.tell(
            self._process.name, "transport.send", f"{message.id} try {message.attempt_count}"
        )
        if fault is None or fault > 0.35:
            scheduler.wait(0.001 + 0.02 * rng.random())
            self._line("accept", message)
            scheduler.wait(0.001)
            return f"receipt {message.id}"
        world.weather.note("a send goes wrong")
        if fault > 0.2:
            scheduler.wait(2.0 * rng.random())
            self._line("accept", message)
            scheduler.wait(0.1 * rng.random())
            return None
        if fault < 0.09:
            self._line("accept", message)
            scheduler.wait(0.1 * rng.random())
            raise ConnectionResetError("the line broke")
        if fault < 0.11:
            scheduler.wait(0.1 * rng.random())
            self._line("accept", message)
            scheduler.kill(self._process)
            scheduler.wait(0.0)
        if fault < 0.13:
            frozen_us = int(rng.uniform(4.0, 9.0) * 1_000_000)
            self._process.frozen_until_us = scheduler.now_us + frozen_us
        scheduler.wait(0.1 * rng.random())
        if fault < 0.14:
            self._line("accept", message)
            return None
        if fault < 0.16:
            self._line("decline", message, how="permanent")
            raise PermanentFailure("there is no such number")
        if fault < 0.18:
            raise TemporaryFailure("slow down", timedelta(seconds=1), closes_channel=True)
        raise TemporaryFailure("busy", timedelta(seconds=rng.random()))

    def _line(self, kind: str, message: Message, **more: str) -> None:
        at, who = self._world.db_us(), self._process.name
        self._world.sends.append(a_send(message, kind=kind, at=at, who=who, **more))


class Broker:
    """Stands in for ``dispatcher.celery.queue.Queue``; what no worker takes waits for one."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._tasks: list[TaskGroup] = []

    def enqueue(self, tickets: Sequence[Ticket]) -> None:
        """Publish; now and then the broker loses a task or repeats it."""
        world, weather = self._world, self._world.weather
        for task in group(tickets, coalesce=world.settings.coalesce, size=5):
            luck = 1.0 if weather.calm else world.rng.random()
            if luck < 0.05:
                weather.note("a task is lost")
                continue
            self._publish(task)
            if luck < 0.12:
                weather.note("a task is repeated")
                self._publish(task)

    def offer(self) -> None:
        waiting, self._tasks = self._tasks, []
        for task in waiting:
            self._publish(task)

    def _publish(self, task: TaskGroup) -> None:
        if not self._world.take(task):
            self._tasks.append(task)

"""The broker: tasks that are lost, repeated and late, and workers whose clocks are wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

from dispatcher.celery.queue import TaskGroup, Ticket, group
from tests.simulation.faults import Weather
from tests.simulation.scheduler import Scheduler


class Broker:
    def __init__(self, scheduler: Scheduler, weather: Weather) -> None:
        self._scheduler = scheduler
        self._weather = weather
        self.tasks: list[TaskGroup] = []
        self.take: Callable[[TaskGroup], bool] = lambda _: False

    def publish(self, task: TaskGroup) -> None:
        if not self.take(task):
            self.tasks.append(task)

    def offer(self) -> None:
        waiting, self.tasks = self.tasks, []
        for task in waiting:
            self.publish(task)


class SimQueue:
    """Stands in for ``dispatcher.celery.queue.Queue``."""

    def __init__(
        self, broker: Broker, scheduler: Scheduler, weather: Weather, *, coalesce: timedelta
    ) -> None:
        self._broker = broker
        self._scheduler = scheduler
        self._weather = weather
        self._coalesce = coalesce

    def enqueue(self, tickets: Sequence[Ticket]) -> None:
        """Publish; now and then the broker loses a task or repeats it."""
        for task in group(tickets, coalesce=self._coalesce, size=5):
            luck = 1.0 if self._weather.calm else self._scheduler.rng.random()
            if luck < 0.05:
                self._weather.note("a task is lost")
                continue
            self._broker.publish(task)
            if luck < 0.12:
                self._weather.note("a task is repeated")
                self._broker.publish(task)

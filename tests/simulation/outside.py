"""What lies outside: providers, who write down what arrives, and a broker that loses tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from dispatcher.celery.queue import TaskGroup, Ticket, group
from dispatcher.errors import PermanentFailure, TemporaryFailure
from dispatcher.message import Message
from dispatcher.times.send_time import to_ms
from tests.simulation.faults import Tell, Weather
from tests.simulation.scheduler import START, Process, Scheduler
from tests.support.ledger import a_send


class SimTransport:
    """Carries messages to providers for one process; ``sends`` are lines of a history."""

    def __init__(
        self,
        sends: list[dict[str, Any]],
        process: Process,
        look: Callable[[Message], None],
        *,
        scheduler: Scheduler,
        weather: Weather,
        tell: Tell,
        shift_us: int,
    ) -> None:
        self._sends = sends
        self._process = process
        self._look = look
        self._scheduler = scheduler
        self._weather = weather
        self._tell = tell
        self._shift_us = shift_us

    def send(self, message: Message) -> str | None:
        """Send; faults of the worker meanwhile are injected elsewhere."""
        rng = self._scheduler.rng
        self._look(message)
        self._line("begin", message)
        fault = None if self._weather.calm else rng.random()
        self._tell("transport.send", f"{message.id} try {message.attempt_count}")
        if fault is None or fault > 0.35:
            self._scheduler.wait(0.001 + 0.02 * rng.random())
            self._line("accept", message)
            self._scheduler.wait(0.001)
            return f"receipt {message.id}"
        self._weather.note("a send goes wrong")
        if fault > 0.2:
            self._scheduler.wait(2.0 * rng.random())
            self._line("accept", message)
            self._scheduler.wait(0.1 * rng.random())
            return None
        if fault < 0.09:
            self._line("accept", message)
            self._scheduler.wait(0.1 * rng.random())
            raise ConnectionResetError("the line broke")
        if fault < 0.11:
            self._scheduler.wait(0.1 * rng.random())
            self._line("accept", message)
            self._scheduler.kill(self._process)
            self._scheduler.wait(0.0)
        if fault < 0.13:
            frozen_us = int(rng.uniform(4.0, 9.0) * 1_000_000)
            self._process.frozen_until_us = self._scheduler.now_us + frozen_us
        self._scheduler.wait(0.1 * rng.random())
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
        at = to_ms(START) * 1_000 + self._scheduler.now_us + self._shift_us
        self._sends.append(a_send(message, kind=kind, at=at, **more))


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

"""The world that messages reach: it writes down what arrives, and breaks lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID

from dispatcher.errors import PermanentFailure, TemporaryFailure
from dispatcher.message import Message
from dispatcher.times.send_time import to_ms
from tests.simulation.faults import Tell, Weather
from tests.simulation.scheduler import START, Process, Scheduler
from tests.support.ledger import Line


@dataclass(slots=True)
class Provider:
    """What providers took. ``unclear`` are attempts of which the worker was told nothing clear."""

    lines: list[Line] = field(default_factory=list)
    begun_us: dict[tuple[UUID, int], int] = field(default_factory=dict)
    unclear: set[tuple[UUID, int]] = field(default_factory=set)
    refused: set[UUID] = field(default_factory=set)


class SimTransport:
    """Carries messages to the provider for one process."""

    def __init__(
        self,
        provider: Provider,
        process: Process,
        look: Callable[[Message], None],
        *,
        scheduler: Scheduler,
        weather: Weather,
        tell: Tell,
        shift_us: int,
    ) -> None:
        self._provider = provider
        self._process = process
        self._look = look
        self._scheduler = scheduler
        self._weather = weather
        self._tell = tell
        self._shift_us = shift_us

    def send(self, message: Message) -> str | None:
        """Send; faults of the worker meanwhile are injected elsewhere."""
        rng, attempt = self._scheduler.rng, (message.id, message.attempt_count)
        self._look(message)
        self._line("begin", message)
        fault = None if self._weather.calm else rng.random()
        self._tell("transport.send", f"{message.id} try {message.attempt_count}")
        if fault is None or fault > 0.35:
            self._scheduler.wait(0.001 + 0.02 * rng.random())
            self._line("end", message)
            self._scheduler.wait(0.001)
            return f"receipt {message.id}"
        self._weather.note("a send goes wrong")
        if fault > 0.2:
            self._scheduler.wait(2.0 * rng.random())
            self._line("end", message)
            self._scheduler.wait(0.1 * rng.random())
            return None
        if fault < 0.09:
            self._provider.unclear.add(attempt)
            self._line("end", message)
            self._scheduler.wait(0.1 * rng.random())
            raise ConnectionResetError("the line broke")
        if fault < 0.11:
            self._scheduler.wait(0.1 * rng.random())
            self._line("end", message)
            self._scheduler.kill(self._process)
            self._scheduler.wait(0.0)
        if fault < 0.13:
            frozen_us = int(rng.uniform(4.0, 9.0) * 1_000_000)
            self._process.frozen_until_us = self._scheduler.now_us + frozen_us
        self._scheduler.wait(0.1 * rng.random())
        if fault < 0.14:
            self._line("end", message)
            return None
        if fault < 0.16:
            self._provider.refused.add(message.id)
            raise PermanentFailure("there is no such number")
        if fault < 0.18:
            raise TemporaryFailure("slow down", timedelta(seconds=1), closes_channel=True)
        raise TemporaryFailure("busy", timedelta(seconds=rng.random()))

    def _line(self, event: str, message: Message) -> None:
        at_us = to_ms(START) * 1_000 + self._scheduler.now_us + self._shift_us
        if event == "begin":
            self._provider.begun_us[message.id, message.attempt_count] = at_us
        line = Line(
            event="begin" if event == "begin" else "end",
            id=message.id,
            scope=message.scope,
            at_us=at_us,
            attempt=message.attempt_count,
            send_at_ms=to_ms(message.send_at),
        )
        self._provider.lines.append(line)

"""What delivery's task, senders and recorders use of the process."""

from __future__ import annotations

from dataclasses import dataclass

from dispatcher.broker.queue import Queue
from dispatcher.limiters import Permits
from dispatcher.settings import Settings
from dispatcher.store import Claims
from dispatcher.telemetry.journal import Journal
from dispatcher.telemetry.tracing import Tracing
from dispatcher.times.clock import Clock


@dataclass(slots=True, kw_only=True)
class Parts:
    """One object for a process. ``is_stopping`` is set once, from a signal: no send begins then."""

    settings: Settings
    clock: Clock
    claims: Claims
    permits: Permits
    queue: Queue
    journal: Journal
    tracing: Tracing | None = None
    is_stopping: bool = False

"""The broker of tests, in the process: it begins a task when its messages are due."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from dispatcher.celery.queue import Queue, TaskGroup, Ticket
from dispatcher.telemetry.journal import Journal, Transition
from dispatcher.times.clock import Clock


class _Task(NamedTuple):
    """A task; those of one instant begin in the order of their fields."""

    begins_at: datetime
    is_first: bool
    channel: str
    number: int
    ids: list[UUID]


class InProcessQueue(Queue):
    """Stands in for the queue of a broker. Messages of a channel share an instant."""

    def __init__(self, *, group_size: int, clock: Clock, journal: Journal) -> None:
        self._size = group_size
        self._clock = clock
        self._journal = journal
        self._waiting: list[_Task] = []
        self._open_tasks: dict[tuple[datetime, str, bool], _Task] = {}
        self._numbers = 0

    def close(self) -> None:
        """Do nothing: it has no connections."""

    def enqueue(self, tickets: Sequence[Ticket]) -> None:
        now = self._clock.now()
        for ticket in tickets:
            at = max(ticket.due_at, now)
            place = at, ticket.channel, ticket.is_first
            task = None if ticket.alone else self._open_tasks.get(place)
            if task is None or len(task.ids) >= self._size:
                self._numbers += 1
                task = _Task(at, ticket.is_first, ticket.channel, self._numbers, [])
                heapq.heappush(self._waiting, task)
                if not ticket.alone:
                    self._open_tasks[place] = task
            task.ids.append(ticket.message_id)
            self._journal.tell_of(
                Transition.ENQUEUED, ticket.message_id, ticket.channel, due_at=ticket.due_at
            )

    def next_at(self) -> datetime | None:
        return self._waiting[0].begins_at if self._waiting else None

    def take(self) -> TaskGroup:
        task = heapq.heappop(self._waiting)
        place = task.begins_at, task.channel, task.is_first
        if self._open_tasks.get(place) is task:
            del self._open_tasks[place]
        return TaskGroup(task.channel, tuple(task.ids), task.begins_at, task.is_first)

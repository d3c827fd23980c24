"""The broker in memory, which begins a task when its messages are due; and the send logs."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID, uuid4

from dispatcher.broker.queue import TaskGroup, Ticket
from dispatcher.delivery.send_log import LeftLog
from dispatcher.telemetry.journal import Journal, Transition
from dispatcher.times.clock import Clock


class _Task(NamedTuple):
    """A task; those of one instant begin in the order of their fields."""

    begins_at: datetime
    is_first: bool
    channel: str
    number: int


class MemoryQueue:
    """Stands in for ``dispatcher.broker.queue.Queue``. Messages of a channel share an instant."""

    def __init__(self, *, group_size: int, clock: Clock, journal: Journal) -> None:
        self._size = group_size
        self._clock = clock
        self._journal = journal
        self._waiting: list[_Task] = []
        self._ids: dict[_Task, list[UUID]] = {}
        self._open: dict[tuple[datetime, str, bool], _Task] = {}
        self._numbers = 0

    def close(self) -> None:
        """Do nothing: it has no connections."""

    def enqueue(self, tickets: Sequence[Ticket]) -> None:
        """Keep these messages until they are due."""
        now = self._clock.now()
        for each in tickets:
            at = max(each.due_at, now)
            place = at, each.channel, each.is_first
            task = None if each.alone else self._open.get(place)
            if task is None or len(self._ids[task]) >= self._size:
                self._numbers += 1
                task = _Task(at, each.is_first, each.channel, self._numbers)
                heapq.heappush(self._waiting, task)
                self._ids[task] = []
                if not each.alone:
                    self._open[place] = task
            self._ids[task].append(each.message_id)
            self._journal.tell_of(
                Transition.ENQUEUED, each.message_id, each.channel, due_at=each.due_at
            )

    def next_at(self) -> datetime | None:
        """Return when the next task begins; None without one."""
        return self._waiting[0].begins_at if self._waiting else None

    def take(self) -> TaskGroup:
        """Return the next task, and forget it."""
        task = heapq.heappop(self._waiting)
        place = task.begins_at, task.channel, task.is_first
        if self._open.get(place) is task:
            del self._open[place]
        return TaskGroup(task.channel, tuple(self._ids.pop(task)), task.begins_at, task.is_first)


class MemoryClaimLog:
    """Stands in for ``dispatcher.delivery.send_log.ClaimLog``."""

    def __init__(self, claimed: Sequence[UUID], leave: Callable[[LeftLog], object]) -> None:
        self.mark = uuid4()
        self._left = dict.fromkeys(claimed)
        self._leave = leave
        self._users = 1
        self._is_kept = False

    def begin(self, message_id: UUID) -> bool:
        self._left.pop(message_id, None)
        return self._users > 0

    def share(self) -> None:
        self._users += 1

    def keep(self) -> None:
        self._is_kept = True

    def close(self) -> None:
        self._users -= 1
        if self._is_kept and not self._users:
            self._leave(LeftLog(self.mark, tuple(self._left)))


class MemorySendLogs:
    """Stands in for ``dispatcher.delivery.send_log.SendLogs``."""

    def __init__(self) -> None:
        self._left: list[LeftLog] = []

    def open(self, message_ids: Sequence[UUID]) -> MemoryClaimLog:
        return MemoryClaimLog(message_ids, self._left.append)

    def consume(self, act: Callable[[LeftLog], object], *, limit: int) -> bool:
        some, self._left = self._left[:limit], self._left[limit:]
        for each in some:
            act(each)
        return not self._left

    def close(self) -> None:
        """Keep nothing open."""

"""The send logs of a machine, in memory: they outlive the processes that write them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from uuid import UUID

from dispatcher.delivery.send_log import LeftLog
from tests.simulation.scheduler import Scheduler


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

    def keep(self) -> None:
        self._scheduler.running()
        self.is_kept = True

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
    """Stands in for ``SendLogs`` of ``send_log``; ``logs`` are those of the machine."""

    def __init__(
        self, scheduler: Scheduler, logs: list[MemoryClaimLog], new_mark: Callable[[], UUID]
    ) -> None:
        self._scheduler = scheduler
        self._logs = logs
        self._new_mark = new_mark

    def open(self, message_ids: Sequence[UUID]) -> MemoryClaimLog:
        self._logs.append(MemoryClaimLog(self._scheduler, self._new_mark(), message_ids))
        return self._logs[-1]

    def consume(self, act: Callable[[LeftLog], object], *, limit: int) -> bool:
        self._logs[:] = [each for each in self._logs if each.is_left or not each.is_over]
        left = [each for each in self._logs if each.is_left]
        for each in left[:limit]:
            act(LeftLog(each.mark, tuple(id_ for id_ in each.claimed if id_ not in each.begun)))
            if each in self._logs:
                self._logs.remove(each)
        return len(left) <= limit

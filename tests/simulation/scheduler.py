"""Simulated processes and threads: greenlets that change places only where somebody waits.

Time is simulated too and jumps to the next moment at which somebody has something to do. With the
same seed everything happens in the same order.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import greenlet

START = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
_SECOND = 1_000_000
_YIELDS = 0.1


class Killed(BaseException):
    """Ends a thread of a process that died; whatever it still tries to do ends the same way."""


class Process:
    """A process of its own, and its ``Clock``: threads that die together, and clocks.

    ``shift_us`` is how far its wall clock is off; while it is frozen none of its threads runs.
    """

    def __init__(self, scheduler: Scheduler, name: str) -> None:
        self.name = name
        self.alive = True
        self.shift_us = 0
        self.frozen_until_us = 0
        self.threads: list[SimThread] = []
        self._scheduler = scheduler

    def now(self) -> datetime:
        return START + timedelta(microseconds=self._scheduler.now_us + self.shift_us)

    def monotonic(self) -> float:
        return self._scheduler.now_us / _SECOND

    def sleep(self, seconds: float) -> None:
        self._scheduler.wait(seconds)


class SimThread:
    __slots__ = ("greenlet", "name", "process", "seed", "ticket")

    def __init__(self, process: Process, name: str, work: Callable[[], object], hub: Any) -> None:
        self.process = process
        self.name = name
        self.ticket = 0
        self.seed: Any = None
        self.greenlet = greenlet.greenlet(lambda: _ended(work), hub)


class Scheduler:
    def __init__(self, rng: random.Random) -> None:
        self.now_us = 0
        self.rng = rng
        self.current: SimThread | None = None
        self.no_threads = False
        self.failures: list[BaseException] = []
        self._hub = greenlet.getcurrent()
        self._due: list[tuple[int, int, SimThread]] = []
        self._tickets = 0
        self._dying: list[Process] = []

    def spawn(
        self, process: Process, name: str, work: Callable[[], object], *, after: float = 0.0
    ) -> SimThread:
        if not process.alive:
            raise Killed
        thread = SimThread(process, name, work, self._hub)
        process.threads.append(thread)
        self.wake(thread, after)
        return thread

    def wake(self, thread: SimThread, after: float = 0.0) -> None:
        """Let a thread go on ``after`` some seconds, and not before."""
        self._tickets += 1
        thread.ticket = self._tickets
        at_us = self.now_us + max(0, math.ceil(after * _SECOND))
        heapq.heappush(self._due, (at_us, self._tickets, thread))

    def wait(self, seconds: float) -> None:
        thread = self.running()
        self.wake(thread, seconds)
        self.block()

    def block(self) -> None:
        """Let others run until somebody wakes the thread that calls."""
        thread = self.running()
        self._hub.switch()
        if not thread.process.alive:
            raise Killed

    def running(self) -> SimThread:
        """Return the thread that calls. Raises Killed where its process is dead."""
        thread = self.current
        assert thread is not None, "only simulated threads wait"
        if not thread.process.alive:
            raise Killed
        return thread

    def kill(self, process: Process) -> None:
        """End a process without a word: nothing of it does anything any more."""
        if process.alive:
            process.alive = False
            self._dying.append(process)

    def run(self, until_us: int) -> None:
        while self._due and self._due[0][0] <= until_us:
            at_us, ticket, thread = heapq.heappop(self._due)
            process = thread.process
            if ticket != thread.ticket or not process.alive:
                continue
            if process.frozen_until_us > at_us:
                heapq.heappush(self._due, (process.frozen_until_us, ticket, thread))
                continue
            self.now_us = at_us
            self._switch(thread)
            while self._dying:
                self._bury(self._dying.pop())
        self.now_us = max(self.now_us, until_us)

    def _bury(self, process: Process) -> None:
        for thread in list(process.threads):
            if thread.greenlet:  # it has begun, and not ended
                self._switch(thread, Killed())
        process.threads.clear()

    def _switch(self, thread: SimThread, *error: BaseException) -> None:
        self.current = thread
        failure = thread.greenlet.throw(*error) if error else thread.greenlet.switch()
        self.current = None
        if isinstance(failure, BaseException):
            self.failures.append(failure)
        if thread.greenlet.dead and thread.process.alive:
            thread.process.threads.remove(thread)


def _ended(work: Callable[[], object]) -> BaseException | None:
    try:
        work()
    except (Killed, greenlet.GreenletExit):
        return None
    except BaseException as error:  # noqa: BLE001 - what escapes from a thread is for the judge
        return error
    return None


class Threading:
    """What a simulated process takes for the module ``threading``."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def Lock(self) -> SimLock:  # noqa: N802 - the name in threading
        return SimLock(self._scheduler)

    def Event(self) -> SimEvent:  # noqa: N802
        return SimEvent(self._scheduler)

    def Thread(  # noqa: N802
        self, *, target: Callable[[], object], name: str, daemon: bool
    ) -> SimStart:
        del daemon
        return SimStart(self._scheduler, name, target)


class SimStart:
    def __init__(self, scheduler: Scheduler, name: str, target: Callable[[], object]) -> None:
        self._scheduler = scheduler
        self._name = name
        self._target = target

    def start(self) -> None:
        if self._scheduler.no_threads:
            raise RuntimeError("can't start new thread")
        self._scheduler.spawn(self._scheduler.running().process, self._name, self._target)


class SimLock:
    """A lock at which, now and then, somebody else runs first."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._held = False
        self._waiting: deque[SimThread] = deque()

    def __enter__(self) -> None:
        scheduler = self._scheduler
        if scheduler.current is None:
            return
        if scheduler.rng.random() < _YIELDS:
            scheduler.wait(0.0)
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def acquire(self, *, blocking: bool = True) -> bool:
        while self._held:
            if not blocking:
                return False
            self._waiting.append(self._scheduler.running())
            self._scheduler.block()
        self._held = True
        return True

    def release(self) -> None:
        self._held = False
        if self._waiting:
            self._scheduler.wake(self._waiting.popleft())


class SimEvent:
    """An event. Waiting for it may end in time, as in threading."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._set = False
        self._waiting: list[SimThread] = []

    def set(self) -> None:
        self._set = True
        for thread in self._waiting:
            self._scheduler.wake(thread)
        self._waiting.clear()

    def clear(self) -> None:
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def wait(self, timeout: float) -> bool:
        if not self._set:
            thread = self._scheduler.running()
            self._waiting.append(thread)
            self._scheduler.wake(thread, timeout)
            self._scheduler.block()
            if thread in self._waiting:
                self._waiting.remove(thread)
        return self._set

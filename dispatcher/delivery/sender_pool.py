"""The senders of a channel: threads that send side by side, each message at its own instant."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf

from dispatcher.delivery.destinations import Destinations, Unsent
from dispatcher.delivery.group import NO_WAIT, EndedSend, Group, Report
from dispatcher.store import Claim
from dispatcher.times.clock import Clock

_SPACING_SECONDS = 0.000_2
"""How long a called thread waits if others are sending: one of them may be done first."""
_SOON_SECONDS = 0.005
"""A thread that has just sent takes a message that is due within this time, even if another thread
would come in time for it."""
_ON_ITS_WAY = -inf
"""Stands in ``_wakes_at`` for a thread that was called and has not taken a message yet."""


class SenderPool:
    """At most ``most`` threads, which send the messages of a channel's groups.

    A thread takes the message that is due next, waits for its instant, calls another thread if none
    will be there for the message after it, sends, and starts again. So as many threads work as
    sends overlap. Threads are started when they are needed and do not keep a process alive.
    ``send`` makes one send and must not raise.
    """

    def __init__(
        self,
        name: str,
        send: Callable[[Group, Claim], Report],
        clock: Clock,
        *,
        most: int,
        destinations: Destinations | None = None,
    ) -> None:
        self.name = name
        self._send = send
        self._clock = clock
        self._most = most
        self._destinations = destinations
        self._lock = threading.Lock()
        self._numbers = count()
        self._left: list[Unsent] = []
        # When each thread that is neither sending nor free looks at the queue again: the instant of
        # the message that it has taken, or _ON_ITS_WAY.
        self._wakes_at: list[float] = []
        # The lock on which each free thread sleeps. The one that became free last is called first.
        self._free: list[threading.Lock] = []
        self._threads = 0
        self._is_closed = False

    def add(self, group: Group, claims: Sequence[tuple[float, Claim]]) -> None:
        """Let the threads send these, none before its instant by the monotonic clock."""
        with self._lock:
            group.left += len(claims)
            group.unreported += len(claims)
            for due_at, claim in claims:
                heappush(self._left, (due_at, next(self._numbers), group, claim))
            is_closed = self._is_closed
            if is_closed:
                self._wakes_at.append(_ON_ITS_WAY)
            must_start = self._call_thread()
        if is_closed:
            self._work(None)
        elif must_start and not self._start():
            with self._lock:
                self._wakes_at.append(_ON_ITS_WAY)
            self._work(None)

    def withdraw(self, group: Group, *, only_silent: bool = False) -> list[tuple[Claim, timedelta]]:
        """Return the claims that no sender has taken, each with its wait, and forget them.

        Where ``only_silent``, only those that wait for silent destinations.
        """
        unsent: list[tuple[Claim, timedelta]] = []
        with self._lock:
            if self._destinations is not None:
                unsent = self._destinations.withdraw(group, only_silent=only_silent)
                group.left -= len(unsent)
            if group.left and not only_silent:
                unsent += [(claim, NO_WAIT) for _, _, owner, claim in self._left if owner is group]
                self._left = [entry for entry in self._left if entry[2] is not group]
                heapify(self._left)
                group.left = 0
            group.unreported -= len(unsent)
        return unsent

    def close(self) -> None:
        """Let the threads end once nothing is left."""
        with self._lock:
            self._is_closed = True
            self._wakes_at += [_ON_ITS_WAY] * len(self._free)
            while self._free:
                self._free.pop().release()

    def _comes_in_time(self) -> bool:
        """Whether a thread looks at the queue before the next message is due. With the lock."""
        return bool(self._wakes_at) and min(self._wakes_at) <= self._left[0][0]

    def _call_thread(self) -> bool:
        """Wake a free thread, or count a new one, if none comes in time for the next message.

        Return whether a new one is to be started. With the lock.
        """
        if not self._left or self._is_closed or self._comes_in_time():
            return False
        if self._free:
            self._wakes_at.append(_ON_ITS_WAY)
            self._free.pop().release()
            return False
        if self._threads == self._most:
            return False
        self._wakes_at.append(_ON_ITS_WAY)
        self._threads += 1
        return True

    def _start(self) -> bool:
        """Start a thread; return False if the system gives none and the pool has no other one."""
        name = f"{self.name}-{self._threads}"
        try:
            threading.Thread(target=self._serve, name=name, daemon=True).start()
        except (RuntimeError, MemoryError):
            with self._lock:
                self._threads -= 1
                self._wakes_at.remove(_ON_ITS_WAY)
                if self._free and self._left and not self._comes_in_time():  # free since then
                    self._wakes_at.append(_ON_ITS_WAY)
                    self._free.pop().release()
                return self._threads > 0
        return True

    def _serve(self) -> None:
        call = threading.Lock()
        call.acquire()
        while True:
            if not self._work(call):
                return
            call.acquire()

    def _work(self, call: threading.Lock | None) -> bool:
        """Send what is left; return whether the thread is free, and waits for its next call."""
        with self._lock:  # threads that neither wait nor are free are inside a send
            are_sending = self._threads > len(self._wakes_at) + len(self._free)
        if are_sending:
            self._clock.sleep(_SPACING_SECONDS)
        with self._lock:
            self._wakes_at.remove(_ON_ITS_WAY)
        while True:
            with self._lock:
                if not self._may_take_next():
                    is_free = call is not None and not self._is_closed
                    if call is not None and is_free:
                        self._free.append(call)
                    return is_free
                unsent = heappop(self._left)
                due_at, _, group, claim = unsent
                group.left -= 1
                self._wakes_at.append(due_at)
            wait = due_at - self._clock.monotonic()
            if wait > 0:
                self._clock.sleep(wait)
            with self._lock:
                self._wakes_at.remove(due_at)
                must_start = self._call_thread()
            if must_start:
                self._start()
            name = None
            if self._destinations is not None:
                name = self._destinations.name(claim.message)
                with self._lock:
                    if not self._destinations.admit(name, unsent):
                        group.left += 1
                        continue
            self._report(group, self._send(group, claim), name)

    def _report(self, group: Group, report: Report, name: str | None) -> None:
        group.reports.append(report)
        with self._lock:
            if self._destinations is not None:
                answered = report.answered if isinstance(report, EndedSend) else None
                for unsent in self._destinations.leave(name, report.claim, answered=answered):
                    heappush(self._left, unsent)
            group.unreported -= 1
            if not group.unreported:
                group.all_reported.set()

    def _may_take_next(self) -> bool:
        """Whether the thread that asks takes the next message, or leaves it to one in time.

        With the lock.
        """
        if not self._left:
            return False
        if not self._comes_in_time():
            return True
        return self._left[0][0] - self._clock.monotonic() <= _SOON_SECONDS

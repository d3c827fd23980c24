"""The senders of a channel: threads that send side by side, each message at its own instant."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf

from dispatcher.delivery.destinations import Destinations, WaitingMessage
from dispatcher.delivery.sender import NO_WAIT, EndedSend, Group, Report
from dispatcher.store import Claim
from dispatcher.times.clock import Clock

_SPACING_SECONDS = 0.000_2
"""How long a thread waits before it joins others that send: quick sends need no second one."""
_SOON_SECONDS = 0.005
"""A thread that has sent waits so long for the next instant, though another one waits already."""
_ON_ITS_WAY = -inf

_Unsent = tuple[float, int, Group, Claim]
"""When it may be sent, by the monotonic clock; a number, which keeps those of an instant in order;
its group, and the claim."""


class SenderPool:
    """At most ``most`` threads, which send the messages of a channel's groups.

    A thread takes the message that is due next, waits for its instant, sends it and takes another
    one. Before it sends it calls a thread that is free, where none waits for the next message. So
    a channel has as many threads at work as it has sends at a time, and each is woken twice for a
    message: for its instant and by the provider's answer. Threads are started when they are needed
    and do not keep a process alive. ``send`` makes one send and must not raise.
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
        self._left: list[_Unsent] = []
        # For what the threads wait that are not sending: an instant, or their first message.
        self._waits: list[float] = []
        # Each thread that is free waits for its lock; the last one comes first.
        self._free: list[threading.Lock] = []
        self._threads = 0
        self._is_closed = False

    def send(self, group: Group, claims: Sequence[tuple[float, Claim]]) -> None:
        """Send these, none before its instant by the monotonic clock."""
        with self._lock:
            group.left += len(claims)
            group.unreported += len(claims)
            for due_at, claim in claims:
                heappush(self._left, (due_at, next(self._numbers), group, claim))
            is_closed = self._is_closed
            if is_closed:
                self._waits.append(_ON_ITS_WAY)
            is_new = self._is_new_one_needed()
        if is_closed:
            self._work(None)
        elif is_new:
            self._start()

    def has_left(self, group: Group) -> bool:
        """Whether a group has messages that no sender has taken yet."""
        return bool(group.left) or bool(self._destinations and self._destinations.has(group))

    def withdraw(self, group: Group, *, only_silent: bool = False) -> list[tuple[Claim, timedelta]]:
        """Return the claims that no sender has taken, each with its wait, and forget them.

        Where ``only_silent``, only those that wait for silent destinations.
        """
        found: list[tuple[Claim, timedelta]] = []
        if self._destinations is not None:
            found = self._destinations.withdraw(group, only_silent=only_silent)
        with self._lock:
            if group.left and not only_silent:
                found += [(claim, NO_WAIT) for _, _, each, claim in self._left if each is group]
                self._left = [each for each in self._left if each[2] is not group]
                heapify(self._left)
                group.left = 0
            group.unreported -= len(found)
        return found

    def close(self) -> None:
        """Let the threads end once nothing is left."""
        with self._lock:
            self._is_closed = True
            self._waits += [_ON_ITS_WAY] * len(self._free)
            while self._free:
                self._free.pop().release()

    def _is_awaited(self) -> bool:
        """Whether a thread waits that comes in time for the next message."""
        return bool(self._waits) and min(self._waits) <= self._left[0][0]

    def _is_new_one_needed(self) -> bool:
        """Call a thread where none waits for the next message; whether it has to be started."""
        if not self._left or self._is_closed or self._is_awaited():
            return False
        if self._free:
            self._waits.append(_ON_ITS_WAY)
            self._free.pop().release()
            return False
        if self._threads == self._most:
            return False
        self._waits.append(_ON_ITS_WAY)
        self._threads += 1
        return True

    def _start(self) -> None:
        name = f"{self.name}-{self._threads}"
        try:
            threading.Thread(target=self._serve, name=name, daemon=True).start()
        except RuntimeError:  # the system gives no more threads
            with self._lock:
                self._threads -= 1
                is_alone = self._threads == 0
                if not is_alone:
                    self._waits.remove(_ON_ITS_WAY)
            if is_alone:
                self._work(None)

    def _serve(self) -> None:
        call = threading.Lock()
        call.acquire()
        while True:
            if not self._work(call):
                return
            call.acquire()

    def _work(self, call: threading.Lock | None) -> bool:
        """Send what is left; return whether the thread is free, and waits for its next call."""
        with self._lock:
            are_sending = self._threads > len(self._waits) + len(self._free)
        if are_sending:
            self._clock.sleep(_SPACING_SECONDS)
        with self._lock:
            self._waits.remove(_ON_ITS_WAY)
        while True:
            with self._lock:
                if not self._is_next_mine():
                    is_free = call is not None and not self._is_closed
                    if call is not None and is_free:
                        self._free.append(call)
                    return is_free
                due_at, _, group, claim = heappop(self._left)
                group.left -= 1
                self._waits.append(due_at)
            wait = due_at - self._clock.monotonic()
            if wait > 0:
                self._clock.sleep(wait)
            with self._lock:
                self._waits.remove(due_at)
                is_new = self._is_new_one_needed()
            if is_new:
                self._start()
            if self._destinations is None or self._destinations.admit(group, due_at, claim):
                self._report(group, self._send(group, claim))

    def _report(self, group: Group, report: Report) -> None:
        group.reports.append(report)
        resumed: Sequence[WaitingMessage] = ()
        if self._destinations is not None:
            answered = report.answered if isinstance(report, EndedSend) else None
            resumed = self._destinations.leave(report.claim, answered=answered)
        with self._lock:
            for each in resumed:
                each.group.left += 1
                heappush(self._left, (each.due_at, next(self._numbers), each.group, each.claim))
            group.unreported -= 1
            if not group.unreported:
                group.changed.set()

    def _is_next_mine(self) -> bool:
        """Whether the thread that asks shall take the message that is due next."""
        if not self._left:
            return False
        if not self._is_awaited():
            return True
        return self._left[0][0] - self._clock.monotonic() <= _SOON_SECONDS

"""The senders of a channel: threads that send side by side, each message at its own instant."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from queue import SimpleQueue

from dispatcher.delivery.destinations import Destinations
from dispatcher.delivery.group import NO_WAIT, Ended, Group, Report
from dispatcher.store import Claim
from dispatcher.times.clock import Clock

_SPACING_SECONDS = 0.000_2
"""How long after one thread another one joins in: quick sends need no second one."""


class SenderThreads:
    """At most ``most`` threads, started when they are needed. They do not keep a process alive."""

    def __init__(self, name: str, *, most: int) -> None:
        self.most = most
        self._name = name
        self._calls: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._free = 0
        self._waiting = 0
        self._is_closed = False

    def call(self, act: Callable[[], object]) -> None:
        """Run ``act`` on a thread as soon as one is free; after ``close`` on the caller's own."""
        with self._lock:
            is_closed = self._is_closed
            start = False
            if not is_closed:
                self._waiting += 1
                start = self._waiting > self._free and self._threads < self.most
                self._threads += start
                self._calls.put(act)
        if is_closed:
            act()
        elif start:
            self._start()

    def close(self) -> None:
        """Let the threads end once all calls made so far are done."""
        with self._lock:
            self._is_closed = True
            for _ in range(self._threads):
                self._calls.put(None)

    def _start(self) -> None:
        name = f"{self._name}-{self._threads}"
        try:
            threading.Thread(target=self._serve, name=name, daemon=True).start()
        except RuntimeError:  # the system gives no more threads
            with self._lock:
                self._threads -= 1
                is_alone = self._threads == 0
                self._waiting -= is_alone
            act = self._calls.get() if is_alone else None
            if act is not None:
                act()

    def _serve(self) -> None:
        while True:
            with self._lock:
                self._free += 1
            act = self._calls.get()
            if act is None:
                return
            with self._lock:
                self._free -= 1
                self._waiting -= 1
            act()


class SenderPool:
    """Sends the messages of a channel's groups.

    One thread waits for the instant of a group's next message while others send theirs. A thread
    that takes a message calls another one. ``send`` makes one send and must not raise.
    """

    def __init__(
        self,
        threads: SenderThreads,
        send: Callable[[Group, Claim], Report],
        destinations: Destinations,
        clock: Clock,
    ) -> None:
        self._threads = threads
        self._send = send
        self._destinations = destinations
        self._clock = clock

    def send(self, group: Group, claims: Sequence[tuple[float, Claim]]) -> None:
        """Send these, none before its instant by the monotonic clock; soonest first."""
        group.left.extend(claims)
        self._go_on(group)

    def has_left(self, group: Group) -> bool:
        """Whether a group has messages that no sender has taken yet."""
        return bool(group.left) or self._destinations.has(group)

    def withdraw(self, group: Group, *, only_silent: bool = False) -> list[tuple[Claim, timedelta]]:
        """Return the claims that no sender has taken, each with its wait, and forget them.

        Where ``only_silent``, only those that wait for silent destinations.
        """
        found = self._destinations.withdraw(group, only_silent=only_silent)
        while not only_silent:
            try:
                found.append((group.left.popleft()[1], NO_WAIT))
            except IndexError:
                break
        return found

    def close(self) -> None:
        """Let the threads end."""
        self._threads.close()

    def _go_on(self, group: Group) -> None:
        with group.lock:
            start = group.senders == 0
            group.senders += start
        if start:
            self._threads.call(partial(self._work, group))
        else:  # the senders at work may hang in their sends
            self._call_another(group)

    def _work(self, group: Group) -> None:
        while True:
            with group.turn:
                claim = self._take(group)
            if claim is not None:
                self._call_another(group)
                report = self._send(group, claim)
                group.reports.append(report)
                answered = report.answered if isinstance(report, Ended) else None
                for parked in self._destinations.leave(claim, answered=answered):
                    parked.group.left.appendleft((parked.due_at, parked.claim))
                    if parked.group is not group:
                        self._go_on(parked.group)
                continue
            with group.lock:
                if not group.left:
                    group.senders -= 1
                    break
        group.changed.set()

    def _take(self, group: Group) -> Claim | None:
        """Return the next message, at its instant; None where none is left."""
        while True:
            try:
                due_at, claim = group.left.popleft()
            except IndexError:
                return None
            wait = due_at - self._clock.monotonic()
            if wait > 0:
                self._clock.sleep(wait)
            if self._destinations.admit(group, due_at, claim):
                return claim

    def _call_another(self, group: Group) -> None:
        with group.lock:
            if not group.left or group.is_one_coming or group.senders >= self._threads.most:
                return
            group.is_one_coming = True
            group.senders += 1
        self._threads.call(partial(self._join, group))

    def _join(self, group: Group) -> None:
        self._clock.sleep(_SPACING_SECONDS)
        with group.lock:
            group.is_one_coming = False
        self._work(group)

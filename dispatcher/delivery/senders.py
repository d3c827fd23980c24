"""Threads that hand messages over: side by side, and each message at its instant."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from queue import SimpleQueue

from dispatcher.delivery.destinations import Destinations
from dispatcher.store import Claim
from dispatcher.times.clock import Clock

_SPACING_SECONDS = 0.000_2
"""How long after one thread another one joins in: quick hand-overs need no second one."""


class Senders:
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
        """Let a thread do that as soon as one is free; after ``close`` the caller does it."""
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
        """Let the threads end, each after what it is doing, and what was called for before."""
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


class Sending:
    """The hand-overs of one group.

    One thread waits for the instant of the next message while others send theirs. A thread that
    takes a message calls another one. ``hand_over`` must not raise; it returns the ``answered`` of
    :meth:`Destinations.leave`. ``idle`` is called when no message is left to begin.
    """

    def __init__(
        self,
        senders: Senders,
        clock: Clock,
        hand_over: Callable[[Claim], bool | None],
        idle: Callable[[], object],
        destinations: Destinations,
    ) -> None:
        self._senders = senders
        self._clock = clock
        self._destinations = destinations
        self._hand_over = hand_over
        self._idle = idle
        self._left: deque[tuple[float, Claim]] = deque()
        self._turn = threading.Lock()
        self._lock = threading.Lock()
        self._active = 0
        self._one_is_coming = False

    def add(self, claims: Sequence[tuple[float, Claim]]) -> None:
        """Hand these over, none before its instant by the monotonic clock; soonest first."""
        self._left.extend(claims)
        if claims:
            self._go_on()

    def resume(self, due_at: float, claim: Claim, *, by: object) -> None:
        """Take a parked message back, to send it next. A thread of ``by`` is free for it."""
        self._left.appendleft((due_at, claim))
        if by is not self:
            self._go_on()

    def _go_on(self) -> None:
        with self._lock:
            start = self._active == 0
            self._active += start
        if start:
            self._senders.call(self._work)
        else:  # those at work may hang in what they hand over
            self._call_another()

    @property
    def has_left(self) -> bool:
        """Whether there is something that nobody has taken yet."""
        return bool(self._left) or self._destinations.has(self)

    def withdraw(self) -> list[tuple[Claim, timedelta]]:
        """Return the claims that no thread has taken, each with its wait, and forget them."""
        found = self._destinations.withdraw(self, only_silent=False)
        while True:
            try:
                found.append((self._left.popleft()[1], timedelta(0)))
            except IndexError:
                return found

    def withdraw_silent(self) -> list[tuple[Claim, timedelta]]:
        """Return those that wait for silent destinations, as :meth:`withdraw` does."""
        return self._destinations.withdraw(self, only_silent=True)

    def _work(self) -> None:
        while True:
            with self._turn:
                claim = self._take()
            if claim is not None:
                self._call_another()
                answered = self._hand_over(claim)
                self._destinations.leave(self, claim, answered=answered)
                continue
            with self._lock:
                if not self._left:
                    self._active -= 1
                    break
        self._idle()

    def _take(self) -> Claim | None:
        while True:
            try:
                due_at, claim = self._left.popleft()
            except IndexError:
                return None
            wait = due_at - self._clock.monotonic()
            if wait > 0:
                self._clock.sleep(wait)
            if self._destinations.admit(self, due_at, claim):
                return claim

    def _call_another(self) -> None:
        with self._lock:
            if not self._left or self._one_is_coming or self._active >= self._senders.most:
                return
            self._one_is_coming = True
            self._active += 1
        self._senders.call(self._join)

    def _join(self) -> None:
        self._clock.sleep(_SPACING_SECONDS)
        with self._lock:
            self._one_is_coming = False
        self._work()

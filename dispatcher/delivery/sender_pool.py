"""The senders of a channel: threads, shared by its destinations, such as hosts and domains."""

from __future__ import annotations

import logging
import random
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf

from dispatcher.delivery.group import NO_WAIT, Group
from dispatcher.message import Message
from dispatcher.store.claims import Claim
from dispatcher.times.clock import Clock

log = logging.getLogger(__name__)

_SPACING_SECONDS = 0.000_2
"""How long a called thread waits if others are sending: one of them may be done first."""
_SOON_SECONDS = 0.005
"""A thread that has just sent takes a message that is due within this time, even if another thread
would come in time for it."""
_ON_ITS_WAY = -inf
"""Stands in ``_wakes_at`` for a thread that was called and has not taken a message yet."""
_TIMEOUTS_IN_A_ROW = 3
"""After so many a destination is silent: one sender at a time tries it."""
_APART = 1.25
"""How far apart messages for a silent destination come back, in transport timeouts."""
_MOST_REMEMBERED = 10_000
"""Silent destinations that a process remembers of a channel; the oldest is forgotten first."""

Unsent = tuple[float, int, Group, Claim]
"""When it may be sent, by the monotonic clock; a number, which keeps those of an instant in order;
its group, and the claim."""


@dataclass(eq=False)
class SenderPool:
    """At most ``most`` threads, which send the messages of a channel's groups.

    A thread takes the message that is due next, waits for its instant, calls another thread if none
    will be there for the message after it, sends, and starts again. So as many threads work as
    sends overlap. ``send`` makes one send and must not raise; it returns whether the destination
    answered in time, None where nothing was sent.
    """

    name: str
    send: Callable[[Group, Claim], bool | None]
    clock: Clock
    most: int
    destinations: Destinations | None = None

    def __post_init__(self) -> None:
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
            for due_at, claim in claims:
                heappush(self._left, (due_at, next(self._numbers), group, claim))
            must_start = self._call_thread()
            is_closed = self._is_closed
        if is_closed or (must_start and not self._start()):
            with self._lock:
                self._wakes_at.append(_ON_ITS_WAY)
            self._work(None)

    def withdraw(self, group: Group, *, only_silent: bool = False) -> list[tuple[Claim, timedelta]]:
        """Return the claims that no sender has taken, each with its wait, and forget them."""
        unsent: list[tuple[Claim, timedelta]] = []
        with self._lock:
            if self.destinations is not None:
                unsent = self.destinations.withdraw(group, only_silent=only_silent)
            if not only_silent:
                unsent += [(claim, NO_WAIT) for _, _, owner, claim in self._left if owner is group]
                self._left = [entry for entry in self._left if entry[2] is not group]
                heapify(self._left)
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
        if self._threads == self.most:
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
                if self._free:  # since then
                    self._call_thread()
                return self._threads > 0
        return True

    def _serve(self) -> None:
        call = threading.Lock()
        call.acquire()
        while self._work(call):
            call.acquire()

    def _work(self, call: threading.Lock | None) -> bool:
        """Send what is left; return whether the thread is free, and waits for its next call."""
        with self._lock:  # threads that neither wait nor are free are inside a send
            are_sending = self._threads > len(self._wakes_at) + len(self._free)
        if are_sending:
            self.clock.sleep(_SPACING_SECONDS)
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
                self._wakes_at.append(due_at)
            wait = due_at - self.clock.monotonic()
            if wait > 0:
                self.clock.sleep(wait)
            with self._lock:
                self._wakes_at.remove(due_at)
                must_start = self._call_thread()
            if must_start:
                self._start()
            name = None
            if self.destinations is not None:
                name = self.destinations.name(claim.message)
                with self._lock:
                    if not self.destinations.admit(name, unsent):
                        continue
            answered = self.send(group, claim)
            if self.destinations is not None:
                self._resume(self.destinations, name, claim, answered=answered)

    def _resume(
        self, destinations: Destinations, name: str | None, claim: Claim, *, answered: bool | None
    ) -> None:
        with self._lock:
            for unsent in destinations.leave(name, claim, answered=answered):
                heappush(self._left, unsent)

    def _may_take_next(self) -> bool:
        """Whether the thread that asks takes the next message. With the lock."""
        if not self._left:
            return False
        if not self._comes_in_time():
            return True
        return self._left[0][0] - self.clock.monotonic() <= _SOON_SECONDS


@dataclass(eq=False)
class Destinations:
    """Admits a message to a sender, or parks it while its destination has all that it may have.

    A destination may have ``share`` senders, a silent one a single sender until it answers.
    Messages for which ``name_of`` returns None share one destination that is never silent.
    ``timeout`` is that of a send, in seconds, ``longest`` the longest wait of a message for a
    silent destination. All but ``name`` is called with the lock of the sender pool.
    """

    name_of: Callable[[Message], str | None]
    share: int
    timeout: float
    longest: timedelta
    clock: Clock

    def __post_init__(self) -> None:
        self._busy: Counter[str | None] = Counter()
        self._parked: defaultdict[str | None, deque[Unsent]] = defaultdict(deque)
        self._timeouts: dict[str, int] = {}
        self._turns: dict[str, float] = {}

    def name(self, message: Message) -> str | None:
        try:
            name: object = self.name_of(message)
            if name is None or isinstance(name, str):
                return name
            problem = f"returned {type(name).__name__}, no text"
        except Exception as error:  # noqa: BLE001 - a transport may raise anything
            problem = f"raised {type(error).__name__}"  # its text may quote an address
        log.warning("message %s: destination() of its transport %s; ignored", message.id, problem)
        return None

    def admit(self, name: str | None, unsent: Unsent) -> bool:
        """Let a sender have a message for this destination; or park it and return False."""
        if self._busy[name] >= self._most(name):
            self._parked[name].append(unsent)
            return False
        self._busy[name] += 1
        return True

    def leave(self, name: str | None, claim: Claim, *, answered: bool | None) -> Sequence[Unsent]:
        """Note that a sender is free again; return the parked messages that may be sent instead.

        ``answered`` is False where the destination did not answer in time, and None where the
        message was not sent.
        """
        self._busy[name] -= 1
        if name is not None and answered is not None:
            self._note(name, claim, answered=answered)
        parked = self._parked.get(name, ())
        room = min(len(parked), self._most(name) - self._busy[name])
        resumed = [self._parked[name].popleft() for _ in range(room)]
        self._forget_if_idle(name)
        return resumed

    def withdraw(self, group: Group, *, only_silent: bool) -> list[tuple[Claim, timedelta]]:
        """Return the parked messages of a group, each with its turn, and forget them."""
        unsent: list[tuple[Claim, timedelta]] = []
        for name in list(self._parked):
            if only_silent and not self._is_silent(name):
                continue
            queue = self._parked[name]
            unsent += [(claim, self._turn(name)) for *_, owner, claim in queue if owner is group]
            self._parked[name] = deque(parked for parked in queue if parked[2] is not group)
            self._forget_if_idle(name)
        return unsent

    def _most(self, name: str | None) -> int:
        return 1 if self._is_silent(name) else self.share

    def _is_silent(self, name: str | None) -> bool:
        return name is not None and self._timeouts.get(name, 0) >= _TIMEOUTS_IN_A_ROW

    def _note(self, name: str, claim: Claim, *, answered: bool) -> None:
        if answered:
            self._timeouts.pop(name, None)
            self._turns.pop(name, None)
            return
        number = self._timeouts[name] = self._timeouts.get(name, 0) + 1
        if number == _TIMEOUTS_IN_A_ROW:
            log.warning(
                "message %s: its destination did not answer %d times in a row; one sender at a "
                "time tries it until it does", claim.message.id, number,
            )  # fmt: skip
        if len(self._timeouts) > _MOST_REMEMBERED:
            oldest = next(iter(self._timeouts))
            self._timeouts.pop(oldest)
            self._turns.pop(oldest, None)

    def _turn(self, name: str | None) -> timedelta:
        if name is None or not self._is_silent(name):
            return NO_WAIT
        now = self.clock.monotonic()
        longest = self.longest.total_seconds()
        turn = max(now, self._turns.get(name, now)) + self.timeout * _APART
        self._turns[name] = min(turn, now + longest)
        if turn - now < longest:
            return timedelta(seconds=turn - now)
        return timedelta(seconds=longest * random.uniform(0.5, 1.0))  # noqa: S311 - no secret

    def _forget_if_idle(self, name: str | None) -> None:
        if not self._busy[name]:
            del self._busy[name]
        if not self._parked.get(name):
            self._parked.pop(name, None)

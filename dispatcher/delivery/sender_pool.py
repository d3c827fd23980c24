"""The senders of a channel: threads, shared by its destinations, such as hosts and domains."""

from __future__ import annotations

import logging
import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf
from typing import TYPE_CHECKING

from dispatcher.message import Message
from dispatcher.store.claims import Claim
from dispatcher.times.clock import Clock

if TYPE_CHECKING:
    from dispatcher.delivery.group import Group

log = logging.getLogger(__name__)

NO_WAIT = timedelta(0)
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
_MOST_REMEMBERED = 1_000
"""Destinations that a process remembers of a channel; an old one is forgotten first."""

Unsent = tuple[float, int, "Group", Claim]
"""When the message may be sent, by the monotonic clock; a number that orders messages of one
instant; the group; the claim."""


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
        """Let the threads send these, none before its instant by the monotonic clock.

        A pool that is closed, or gets no thread from the system, sends them on the caller's.
        """
        with self._lock:
            for due_at, claim in claims:
                heappush(self._left, (due_at, next(self._numbers), group, claim))
            has_thread = self._call_thread()
        if not has_thread:
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

    def _lacks_thread(self) -> bool:
        """Whether no thread looks at the queue before its next message is due. With the lock."""
        return bool(self._left) and (not self._wakes_at or min(self._wakes_at) > self._left[0][0])

    def _call_thread(self) -> bool:
        """Wake a free thread, or start one, if none comes in time; return False if there is none.

        With the lock.
        """
        if not self._lacks_thread():
            return True
        if self._free:
            self._free.pop().release()
        elif self._is_closed:
            return False
        elif self._threads == self.most:
            return True
        else:
            name = f"{self.name}-{self._threads + 1}"
            try:
                threading.Thread(target=self._serve, name=name, daemon=True).start()
            except (RuntimeError, MemoryError):
                return self._threads > 0
            self._threads += 1
        self._wakes_at.append(_ON_ITS_WAY)
        return True

    def _serve(self) -> None:
        call = threading.Lock()
        call.acquire()
        is_free = True
        while is_free:
            with self._lock:  # threads that neither wait nor are free are inside a send
                are_sending = self._threads > len(self._wakes_at) + len(self._free)
            if are_sending:
                self.clock.sleep(_SPACING_SECONDS)
            with self._lock:
                self._wakes_at.remove(_ON_ITS_WAY)
            is_free = self._work(call)
            if is_free:
                call.acquire()

    def _work(self, call: threading.Lock | None) -> bool:
        """Send what is left; return whether the thread is free, and waits for its next call."""
        destinations = self.destinations
        while True:
            with self._lock:
                may_take = self._lacks_thread() or (
                    bool(self._left) and self._left[0][0] - self.clock.monotonic() <= _SOON_SECONDS
                )
                if not may_take:
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
                self._call_thread()
            if destinations is None:
                self.send(group, claim)
                continue
            name = destinations.name(claim.message)
            with self._lock:
                if not destinations.admit(name, unsent):
                    continue
            answered = self.send(group, claim)
            with self._lock:
                for resumed in destinations.leave(name, claim, answered=answered):
                    heappush(self._left, resumed)


@dataclass(slots=True)
class _Destination:
    """``timeouts`` in a row; ``turn`` is when the last message that was put back comes again."""

    busy: int = 0
    parked: deque[Unsent] = field(default_factory=deque)
    timeouts: int = 0
    turn: float = 0.0

    @property
    def is_silent(self) -> bool:
        return self.timeouts >= _TIMEOUTS_IN_A_ROW


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
        self._known: dict[str | None, _Destination] = {}

    def name(self, message: Message) -> str | None:
        try:
            name: object = self.name_of(message)
            if name is None or isinstance(name, str):
                return name
            problem = f"destination() of its transport returned {type(name).__name__}"
        except Exception as error:  # noqa: BLE001 - a transport may raise anything
            # Its text may quote an address.
            problem = f"destination() of its transport raised {type(error).__name__}"
        log.warning("message %s has no destination: %s", message.id, problem)
        return None

    def admit(self, name: str | None, unsent: Unsent) -> bool:
        """Let a sender have a message for this destination; or park it and return False."""
        destination = self._known.setdefault(name, _Destination())
        if self._room(destination) <= 0:
            destination.parked.append(unsent)
            return False
        destination.busy += 1
        return True

    def leave(self, name: str | None, claim: Claim, *, answered: bool | None) -> list[Unsent]:
        """Note that a sender is free again; return the parked messages that may be sent instead.

        ``answered`` is False where the destination did not answer in time, and None where the
        message was not sent.
        """
        destination = self._known[name]
        destination.busy -= 1
        if answered:
            destination.timeouts, destination.turn = 0, 0.0
        elif answered is not None and name is not None:
            destination.timeouts += 1
            if destination.timeouts == _TIMEOUTS_IN_A_ROW:
                log.warning(
                    "message %s: its destination did not answer %d times in a row; until it "
                    "answers, one sender at a time tries it", claim.message.id, _TIMEOUTS_IN_A_ROW,
                )  # fmt: skip
        room = min(len(destination.parked), self._room(destination))
        resumed = [destination.parked.popleft() for _ in range(room)]
        if not (destination.busy or destination.parked or destination.timeouts):
            del self._known[name]
        elif len(self._known) > _MOST_REMEMBERED:
            self._forget_one()
        return resumed

    def withdraw(self, group: Group, *, only_silent: bool) -> list[tuple[Claim, timedelta]]:
        """Return the parked messages of a group, each with its turn, and forget them."""
        unsent: list[tuple[Claim, timedelta]] = []
        for destination in self._known.values():
            if only_silent and not destination.is_silent:
                continue
            parked = destination.parked
            unsent += [(entry[3], self._turn(destination)) for entry in parked if entry[2] is group]
            destination.parked = deque(entry for entry in parked if entry[2] is not group)
        return unsent

    def _forget_one(self) -> None:
        for name, destination in self._known.items():
            if not destination.busy and not destination.parked:
                del self._known[name]
                return

    def _room(self, destination: _Destination) -> int:
        return (1 if destination.is_silent else self.share) - destination.busy

    def _turn(self, destination: _Destination) -> timedelta:
        if not destination.is_silent:
            return NO_WAIT
        now, longest = self.clock.monotonic(), self.longest.total_seconds()
        turn = max(now, destination.turn) + self.timeout * _APART
        destination.turn = min(turn, now + longest)
        if turn - now < longest:
            return timedelta(seconds=turn - now)
        return timedelta(seconds=longest * random.uniform(0.5, 1.0))  # noqa: S311 - no secret

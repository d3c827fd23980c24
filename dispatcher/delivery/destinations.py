"""The destinations of a channel, such as hosts and domains, share its senders."""

from __future__ import annotations

import logging
import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from datetime import timedelta

from dispatcher.delivery.group import NO_WAIT, Group
from dispatcher.message import Message
from dispatcher.store import Claim
from dispatcher.times.clock import Clock

log = logging.getLogger(__name__)

_TIMEOUTS_IN_A_ROW = 3
"""After so many a destination is silent: one sender at a time tries it."""
_APART = 1.25
"""How far apart messages for a silent destination come back, in transport timeouts."""
_MOST_REMEMBERED = 10_000
"""Silent destinations that a process remembers of a channel; the oldest is forgotten first."""


Unsent = tuple[float, int, Group, Claim]
"""When it may be sent, by the monotonic clock; a number, which keeps those of an instant in order;
its group, and the claim."""


class Destinations:
    """Admits a message to a sender, or parks it while its destination has all that it may have.

    A destination may have ``share`` senders, a silent one a single sender until it answers. Other
    messages overtake a parked one. ``name_of`` is the transport's ``destination``. Messages for
    which it returns None share one destination that is never silent. ``timeout`` is that of a send,
    in seconds, ``longest`` the longest wait of a message for a silent destination. All but ``name``
    is called with the lock of the sender pool.
    """

    def __init__(
        self,
        name_of: Callable[[Message], str | None],
        *,
        share: int,
        timeout: float,
        longest: timedelta,
        clock: Clock,
    ) -> None:
        self._name_of = name_of
        self._share = share
        self._timeout = timeout
        self._longest = longest.total_seconds()
        self._clock = clock
        self._busy: Counter[str | None] = Counter()
        self._parked: defaultdict[str | None, deque[Unsent]] = defaultdict(deque)
        self._timeouts: dict[str, int] = {}
        self._turns: dict[str, float] = {}

    def name(self, message: Message) -> str | None:
        try:
            name: object = self._name_of(message)
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
        """Return the parked messages of a group, each with a wait, and forget them.

        A message for a silent destination waits for a turn of its own, so that it is not claimed
        over and over. The others do not wait.
        """
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
        return 1 if self._is_silent(name) else self._share

    def _is_silent(self, name: str | None) -> bool:
        return name is not None and self._timeouts.get(name, 0) >= _TIMEOUTS_IN_A_ROW

    def _note(self, name: str, claim: Claim, *, answered: bool) -> None:
        if answered:
            self._timeouts.pop(name, None)
            self._turns.pop(name, None)
            return
        self._timeouts[name] = self._timeouts.get(name, 0) + 1
        if self._timeouts[name] == _TIMEOUTS_IN_A_ROW:
            log.warning(
                "message %s: its destination did not answer %d times in a row; one sender at a "
                "time tries it until it does",
                claim.message.id, _TIMEOUTS_IN_A_ROW,
            )  # fmt: skip
        if len(self._timeouts) > _MOST_REMEMBERED:
            oldest = next(iter(self._timeouts))
            self._timeouts.pop(oldest)
            self._turns.pop(oldest, None)

    def _turn(self, name: str | None) -> timedelta:
        if name is None or not self._is_silent(name):
            return NO_WAIT
        now = self._clock.monotonic()
        turn = max(now, self._turns.get(name, now)) + self._timeout * _APART
        self._turns[name] = min(turn, now + self._longest)
        if turn - now < self._longest:
            return timedelta(seconds=turn - now)
        return timedelta(seconds=self._longest * random.uniform(0.5, 1.0))  # noqa: S311 - no secret

    def _forget_if_idle(self, name: str | None) -> None:
        if not self._busy[name]:
            del self._busy[name]
        if not self._parked.get(name):
            self._parked.pop(name, None)

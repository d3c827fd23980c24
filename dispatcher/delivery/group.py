"""A group: messages of one channel that were claimed together."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from dispatcher.delivery.send_log import ClaimLog
from dispatcher.store import Claim, Failure, Result

NO_WAIT = timedelta(0)


@dataclass(frozen=True, slots=True)
class Ended:
    """A send that came to an end, at a time of the monotonic clock.

    It began ``late_by`` seconds after the promised time of its message. ``answered`` is False where
    it failed and took so long that its destination gave no answer in time.
    """

    claim: Claim
    outcome: Result | Failure
    at: float
    late_by: float = 0.0
    answered: bool = True


@dataclass(frozen=True, slots=True)
class Unsent:
    """A claim whose message was not sent, and when to come back."""

    claim: Claim
    wait: timedelta = NO_WAIT


@dataclass(frozen=True, slots=True)
class Escaped:
    """A claim whose send ended in what no transport should raise. Its outcome is unknown."""

    claim: Claim
    error: BaseException


Report = Ended | Unsent | Escaped


class Group:
    """What the senders and the recorder of a group share. Times are of the monotonic clock.

    The recorder says until when and of which messages a send may begin: ``ends_at`` is when the
    claims end, ``lost`` are those that another process has by now, ``is_over`` allows none.
    ``closed_until`` is when the provider wants to be asked again. The senders take from ``left``,
    add to ``reports`` and set ``changed`` when nothing is left; the other fields are theirs.
    """

    def __init__(
        self, *, claimed_at: float, received_at: float, ends_at: float, send_log: ClaimLog
    ) -> None:
        self.claimed_at = claimed_at
        self.received_at = received_at
        self.ends_at = ends_at
        self.send_log = send_log
        self.lost: set[UUID] = set()
        self.is_over = False
        self.closed_until = 0.0
        self.left: deque[tuple[float, Claim]] = deque()
        self.reports: deque[Report] = deque()
        self.changed = threading.Event()
        self.turn = threading.Lock()
        self.lock = threading.Lock()
        self.senders = 0
        self.is_one_coming = False

"""Keeps the channels of one worker process apart."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

from dispatcher.delivery.delivery import Delivery

log = logging.getLogger(__name__)

_MOST_WAITING = 2_000
"""Groups that wait in a process. What finds no room is enqueued again after its grace."""


@dataclass(slots=True)
class _Lane:
    under_way: int = 0
    waiting: deque[Sequence[UUID]] = field(default_factory=deque)


class Lanes:
    """Works on so many groups of each channel at a time.

    A channel whose provider is slow fills its own lane and leaves the worker's threads to others:
    the thread that brings one group too many leaves it here, and who ends a group takes the next.
    """

    def __init__(self, delivery: Delivery, *, at_once: int) -> None:
        self._delivery = delivery
        self._at_once = at_once
        self._lock = threading.Lock()
        self._lanes: dict[str, _Lane] = defaultdict(_Lane)

    def deliver(self, message_ids: Sequence[UUID], channel: str) -> None:
        """Deliver a group now, or leave it to a thread that is at work on this channel.

        Raises StoreUnavailable when nothing can be claimed; the sweep hands over again what was to
        be delivered.
        """
        lane = self._lanes[channel]
        with self._lock:
            if lane.under_way >= self._at_once:
                if len(lane.waiting) < _MOST_WAITING:
                    lane.waiting.append(message_ids)
                else:
                    log.info("channel %s: %d messages are left to the sweep", channel,
                             len(message_ids))  # fmt: skip
                return
            lane.under_way += 1
        group: Sequence[UUID] | None = message_ids
        try:
            while group:
                self._delivery.deliver(group)
                with self._lock:
                    group = self._next(lane)
                    lane.under_way -= group is None
        except BaseException:
            with self._lock:
                lane.waiting.clear()
                lane.under_way -= 1
            raise

    def _next(self, lane: _Lane) -> Sequence[UUID] | None:
        return lane.waiting.popleft() if lane.waiting and not self._delivery.is_stopping else None

    def stop(self) -> None:
        """Begin no further hand-over. What waits here is enqueued again after its grace.

        May be called in the handler of a signal: it waits for no lock.
        """
        self._delivery.stop()

"""The threads that lead groups: those of a worker's tasks, and one for sends that last."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING
from uuid import UUID

from dispatcher.errors import StoreUnavailable

if TYPE_CHECKING:
    from dispatcher.delivery.group import Delivery, Group

log = logging.getLogger(__name__)

RECORD_EVERY_SECONDS = 0.05
_MOST_WAITING = 2_000
"""Groups that wait in a process. What finds no room is enqueued again after its grace."""


class LastingSends:
    """Finishes groups for whose sends no task waits any more, on one thread.

    Each has a send under way, so there are never more than the process has senders.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._groups: list[Group] = []
        self.none = threading.Event()
        self.none.set()

    def take(self, group: Group) -> bool:
        """Finish this group; False where the system gives no thread for it."""
        with self._lock:
            if not self._groups:
                thread = threading.Thread(target=self._run, name="lasting sends", daemon=True)
                try:
                    thread.start()
                except RuntimeError:
                    return False
            self._groups.append(group)
            self.none.clear()
        return True

    def _run(self) -> None:
        while True:
            finished = [group for group in list(self._groups) if not _goes_on(group)]
            with self._lock:
                self._groups = [group for group in self._groups if group not in finished]
                if not self._groups:
                    self.none.set()
                    return
            if not finished:
                self.none.wait(RECORD_EVERY_SECONDS)  # not set while this thread runs


def _goes_on(group: Group) -> bool:
    """Do one step of a group; log the error that ended it, and raise none."""
    try:
        if group.step():
            return True
        error = group.error
    except BaseException as raised:  # noqa: BLE001 - no other group may end with it
        error = raised
    if error is not None:
        kind = type(error).__name__  # its text may quote a body
        log.error("a group of messages failed (%s); rescue settles what it did not record", kind)
    return False


@dataclass(slots=True)
class _ChannelQueue:
    under_way: int = 0
    waiting: list[tuple[int, int, Sequence[UUID]]] = field(default_factory=list)
    """A heap: groups by rank, each in order."""


class GroupQueue:
    """Begins ``at_once`` groups of each channel at a time; further ones wait for their turn.

    A channel whose provider is slow fills its own queue and leaves the worker's threads to others:
    the thread that brings one group too many leaves it here, and a thread that has begun a group
    takes the next. Groups that come again, perhaps at their turn under a limit, go before those
    that come for the first time: new messages must not keep snoozed ones from coming back. Before
    that larger priorities go first, and behind it shares in turns: their rank says so.
    """

    def __init__(self, delivery: Delivery, *, at_once: int, size: int = 1_000) -> None:
        self._delivery = delivery
        self._size = size
        self._at_once = at_once
        self._lock = threading.Lock()
        self._numbers = count()
        self._channels: dict[str, _ChannelQueue] = defaultdict(_ChannelQueue)

    def deliver(self, message_ids: Sequence[UUID], channel: str, *, rank: int = 0) -> None:
        """Deliver a group now, or leave it to a thread that is at work on this channel.

        It returns when the group has begun, and raises the first error of the groups that this
        thread began. Without the store none can be claimed, so what waits is left to the sweep.
        """
        queue = self._channels[channel]
        with self._lock:
            for start in range(0, len(message_ids), self._size):
                part = message_ids[start : start + self._size]
                heappush(queue.waiting, (rank, next(self._numbers), part))
            while len(queue.waiting) > _MOST_WAITING:
                last = max(queue.waiting)
                queue.waiting.remove(last)
                heapify(queue.waiting)
                log.info("channel %s: this worker's queue is full; enqueue_due enqueues %d "
                         "messages again", channel, len(last[-1]))  # fmt: skip
            if queue.under_way >= self._at_once:
                return
            queue.under_way += 1
            group: Sequence[UUID] | None = heappop(queue.waiting)[-1]
        failure: BaseException | None = None
        while group is not None:
            goes_on = True
            try:
                self._delivery.deliver(group, to_the_end=False)
            except BaseException as error:  # noqa: BLE001 - raised once no group waits
                failure = failure or error
                goes_on = isinstance(error, Exception) and not isinstance(error, StoreUnavailable)
                left = 0 if goes_on else sum(len(ids) for *_, ids in queue.waiting)
                log.error(  # noqa: TRY400 - its text may quote a body
                    "channel %s: a group of %d messages failed (%s); enqueue_due enqueues the %d "
                    "messages behind it again",
                    channel, len(group), type(error).__name__, left,
                )  # fmt: skip
            with self._lock:
                if not goes_on:
                    queue.waiting.clear()
                group = heappop(queue.waiting)[-1] if queue.waiting else None
                queue.under_way -= group is None
        if failure is not None:
            raise failure

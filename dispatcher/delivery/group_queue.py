"""Groups that wait in a worker process for their turn, by channel."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

from dispatcher.delivery.task import Delivery
from dispatcher.errors import StoreUnavailable

log = logging.getLogger(__name__)

_MOST_WAITING = 2_000
"""Groups that wait in a process. What finds no room is enqueued again after its grace."""


@dataclass(slots=True)
class _Channel:
    under_way: int = 0
    again: deque[Sequence[UUID]] = field(default_factory=deque)
    first: deque[Sequence[UUID]] = field(default_factory=deque)

    @property
    def waiting(self) -> int:
        return len(self.again) + len(self.first)


class GroupQueue:
    """Begins so many groups of each channel at a time.

    A channel whose provider is slow fills its own queue and leaves the worker's threads to others:
    the thread that brings one group too many leaves it here, and a thread that has begun a group
    takes the next. So no more is claimed than what the senders send and what these groups wait
    with. Groups that come again, perhaps at their turn under a limit, go before those that come for
    the first time: new messages must not keep snoozed ones from coming back.
    """

    def __init__(self, delivery: Delivery, *, at_once: int) -> None:
        self._delivery = delivery
        self._at_once = at_once
        self._lock = threading.Lock()
        self._channels: dict[str, _Channel] = defaultdict(_Channel)

    def deliver(self, message_ids: Sequence[UUID], channel: str, *, is_first: bool = True) -> None:
        """Deliver a group now, or leave it to a thread that is at work on this channel.

        It returns when the group has begun. Raises StoreUnavailable when nothing can be claimed;
        the sweep enqueues again what was to be delivered, and what waits here.
        """
        queue = self._channels[channel]
        with self._lock:
            if queue.under_way >= self._at_once:
                if queue.waiting < _MOST_WAITING:
                    (queue.first if is_first else queue.again).append(message_ids)
                else:
                    log.info("channel %s: %d messages are left to the sweep", channel,
                             len(message_ids))  # fmt: skip
                return
            queue.under_way += 1
        group: Sequence[UUID] | None = message_ids
        failure: Exception | None = None
        try:
            while group:
                try:
                    self._delivery.deliver(group, to_the_end=False)
                except StoreUnavailable:
                    raise  # none of those that wait can be claimed either
                except Exception as error:  # noqa: BLE001 - theirs alone: the others go on
                    told = type(error).__name__  # its text may quote a body
                    log.error("channel %s: a group was broken off (%s)", channel, told)  # noqa: TRY400
                    failure = failure or error
                with self._lock:
                    waiting = queue.again or queue.first
                    is_next = waiting and not self._delivery.is_stopping
                    group = waiting.popleft() if is_next else None
                    queue.under_way -= group is None
        except BaseException:
            with self._lock:
                left, queue.again, queue.first = [*queue.again, *queue.first], deque(), deque()
                queue.under_way -= 1
            if left:
                log.warning("channel %s: %d messages are left to the sweep", channel,
                            sum(map(len, left)))  # fmt: skip
            raise
        if failure:
            raise failure

    def stop(self) -> None:
        """Begin no further send. What waits here is enqueued again after its grace.

        May be called in the handler of a signal: it waits for no lock.
        """
        self._delivery.stop()

    def finish(self, timeout: float | None = None) -> bool:
        """Wait, at most so many seconds, for what is on its way; tell whether all has ended."""
        return self._delivery.finish(timeout)

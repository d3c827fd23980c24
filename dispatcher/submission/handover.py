"""Hand a stored message to Celery at once, where it is near, or leave it to the sweep."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from dispatcher.broker.queue import Queue, Ticket
from dispatcher.errors import QueueUnavailable, StoreUnavailable
from dispatcher.message import Message
from dispatcher.settings import Settings
from dispatcher.store import Messages
from dispatcher.times.clock import Clock

log = logging.getLogger(__name__)


class Handover:
    """Enqueues what lies inside the horizon. What cannot be enqueued, the sweep hands over."""

    def __init__(
        self, *, settings: Settings, clock: Clock, messages: Messages, queue: Queue
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._messages = messages
        self._queue = queue

    def enqueue_at(self, due_at: datetime, *, now: datetime | None = None) -> datetime:
        """Return when the sweep is to hand over a message that is due then.

        One that is near is handed over by its submit; the sweep looks after it once its grace is
        over.
        """
        near = self.is_near(due_at, now=now or self._clock.now())
        return due_at + (self._settings.enqueue_grace if near else -self._settings.horizon)

    def is_near(self, due_at: datetime, *, now: datetime) -> bool:
        """Whether a message that is due then is handed over by who stores it."""
        return due_at - now <= self._settings.horizon

    def enqueue(self, *stored: Message) -> None:
        """Enqueue those of the messages that are near."""
        near_until = self._clock.now() + self._settings.horizon
        near = [each for each in stored if each.next_attempt_at <= near_until]
        if not near:
            return
        try:
            self._queue.enqueue(
                [Ticket(each.id, each.channel, each.next_attempt_at) for each in near]
            )
        except QueueUnavailable as error:
            log.warning("%d messages are enqueued later: %s", len(near), error)
            self._leave_to_sweep([each.id for each in near])

    def _leave_to_sweep(self, message_ids: Sequence[UUID]) -> None:
        try:
            self._messages.enqueue_again(message_ids)
        except StoreUnavailable as error:
            log.warning("%d messages are enqueued after their grace: %s", len(message_ids), error)

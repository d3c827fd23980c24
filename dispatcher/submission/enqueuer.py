"""Enqueue a stored message to Celery at once, where it is near, or leave it to maintenance."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from dispatcher.celery.queue import Queue, Ticket
from dispatcher.errors import QueueUnavailable, StoreUnavailable
from dispatcher.faults import fault
from dispatcher.message import Message
from dispatcher.settings import Settings
from dispatcher.store.messages import Messages
from dispatcher.telemetry.journal import Journal, Transition
from dispatcher.times.clock import Clock

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Enqueuer:
    """Enqueues what lies inside the horizon. ``enqueue_due`` enqueues what this cannot."""

    settings: Settings
    clock: Clock
    messages: Messages
    queue: Queue
    journal: Journal

    def enqueue_at(self, due_at: datetime, *, now: datetime | None = None) -> datetime:
        """Return when ``enqueue_due`` is to enqueue a message that is due at ``due_at``.

        A message that is near is enqueued by its submit, so that this is after it is due: once
        ``enqueue_grace`` is over, it is enqueued again.
        """
        is_near = due_at - (now or self.clock.now()) <= self.settings.horizon
        return due_at + self.settings.enqueue_grace if is_near else due_at - self.settings.horizon

    def accept(self, stored: Sequence[Message]) -> None:
        for message in stored:
            self.journal.tell(Transition.SCHEDULED, message, send_at=message.send_at)
        self.enqueue(*stored)
        fault("submit.after_enqueue")

    def enqueue(self, *stored: Message) -> None:
        near_until = self.clock.now() + self.settings.horizon
        near = [message for message in stored if message.next_attempt_at <= near_until]
        if not near:
            return
        try:
            self.queue.enqueue(
                [
                    Ticket(
                        message.id,
                        message.channel,
                        message.next_attempt_at,
                        priority=message.priority,
                        share=self.settings.share_of(
                            message.channel, message.scope, message.scopes, message.campaign
                        ),
                    )
                    for message in near
                ]
            )
        except QueueUnavailable as error:
            log.warning("could not enqueue %d messages; enqueue_due does: %s", len(near), error)
            with suppress(StoreUnavailable):  # else after enqueue_grace
                self.messages.enqueue_again([message.id for message in near])

"""Puts back what was claimed and not handed over."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import timedelta

from dispatcher.broker.queue import Queue, Ticket
from dispatcher.delivery.outcomes import permit_of
from dispatcher.errors import LimitersUnavailable, QueueUnavailable, StoreUnavailable
from dispatcher.faults import fault
from dispatcher.limiters import Permits
from dispatcher.settings import Settings
from dispatcher.store import Claim, Claims
from dispatcher.telemetry.journal import Journal, Transition
from dispatcher.times.clock import Clock

log = logging.getLogger(__name__)


class Returns:
    """Returns claims to the store, each with the wait until it is due again."""

    def __init__(
        self,
        *,
        settings: Settings,
        clock: Clock,
        claims: Claims,
        permits: Permits,
        queue: Queue,
        journal: Journal,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._claims = claims
        self._permits = permits
        self._queue = queue
        self._journal = journal

    def snooze(self, refused: Sequence[tuple[Claim, timedelta]]) -> bool:
        """Put back what was refused a permit; False where the store did not take all of it.

        What is to come back before the sweep looks is enqueued.
        """
        if not refused:
            return True
        is_stored = self._snooze(refused)
        # Between the refusal and now, a rebuild may have restored permits for these claims.
        self._give_back([claim for claim, _ in refused])
        return is_stored

    def _snooze(self, refused: Sequence[tuple[Claim, timedelta]]) -> bool:
        limit = self._settings.sweep_interval * 2
        soon = [each for each in refused if each[1] <= limit]
        late = [each for each in refused if each[1] > limit]
        is_stored = self._store(late, -self._settings.horizon)
        if is_stored:
            self._tell(late)
        if not self._store(soon, self._settings.enqueue_grace):
            return False
        if not soon:
            return is_stored
        self._tell(soon)
        now = self._clock.now()
        tickets = [
            Ticket(claim.message.id, claim.message.channel, now + wait, is_first=False)
            for claim, wait in soon
        ]
        try:
            self._queue.enqueue(tickets)
        except QueueUnavailable as error:
            log.warning("%d messages are enqueued after their grace: %s", len(soon), error)
        return is_stored

    def _tell(self, snoozed: Sequence[tuple[Claim, timedelta]]) -> None:
        for claim, wait in snoozed:
            self._journal.tell(Transition.SNOOZED, claim.message, wait_seconds=wait)

    def put_back(self, unsent: Sequence[tuple[Claim, timedelta]]) -> bool:
        """Put back what was not sent, with its permit; False where the store did not take it."""
        if not unsent:
            return True
        is_stored = self._store(unsent, -self._settings.horizon)
        fault("put_back.after_row")
        self._give_back([claim for claim, _ in unsent])
        return is_stored

    def _give_back(self, unused: Sequence[Claim]) -> None:
        try:
            self._permits.give_back([permit_of(claim) for claim in unused])
        except LimitersUnavailable as error:
            log.warning("%d unused permits are given back later: %s", len(unused), error)

    def _store(self, unsent: Sequence[tuple[Claim, timedelta]], enqueue_in: timedelta) -> bool:
        """Tell whether the store knows of it. The sweep hands over ``enqueue_in`` after a wait."""
        if not unsent:
            return True
        try:
            self._claims.put_back(unsent, enqueue_in=enqueue_in)
        except StoreUnavailable as error:
            log.warning("%d messages wait for their rescue: %s", len(unsent), error)
            return False
        return True

"""Deliver a group of messages: claim, permit, send, record."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping, Sequence
from datetime import timedelta
from uuid import UUID

from dispatcher.clock import Clock
from dispatcher.delivery.outcomes import Outcomes, Round, permit_of
from dispatcher.errors import (
    LimitersUnavailable,
    PermanentFailure,
    QueueUnavailable,
    StoreUnavailable,
    TemporaryFailure,
)
from dispatcher.limiters import Permits
from dispatcher.message import Outcome, storable_text
from dispatcher.queue import Queue, Ticket
from dispatcher.retry import backoff
from dispatcher.settings import Settings
from dispatcher.store import Claim, Claims, Failure, Result
from dispatcher.transports import Transport

log = logging.getLogger(__name__)

WAIT_IN_HAND = timedelta(seconds=1)
"""Longest wait for its instant that a worker spends holding a message."""
_WAIT_FOR_PERMITS = timedelta(milliseconds=250)
"""Longest wait for permits that a worker spends holding messages. It keeps a thread."""
_LIMITERS_PAUSE = timedelta(seconds=1)
_RECORD_EVERY_SECONDS = 0.05
_NO_WAIT = timedelta(0)
_LONGEST_WAIT = timedelta(days=366)


class Delivery:
    """The use case of the worker.

    A claim makes repeated tasks harmless, a permit guards the limits, the rest of the claim is
    checked right before each hand-over, and the record is fenced by the claim's token. When the
    process dies, the sweep rescues what it held.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        clock: Clock,
        claims: Claims,
        permits: Permits,
        transports: Mapping[str, Transport],
        queue: Queue,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._claims = claims
        self._permits = permits
        self._transports = transports
        self._queue = queue
        self._outcomes = Outcomes(settings=settings, clock=clock, claims=claims, permits=permits)

    def deliver(self, message_ids: Sequence[UUID]) -> int:
        """Deliver what is due of these messages; return how many were handed over with success.

        Messages that are not scheduled any more are skipped: their task was a repeat. Raises
        StoreUnavailable when nothing can be claimed; the sweep hands the messages over again.
        """
        sent = 0
        waiting = list(message_ids)
        while waiting:
            claims, this = self._claim(waiting)
            try:
                sent += self._send_permitted(self._known(claims, this), this)
            finally:  # whatever escapes must not take the outcomes of the neighbours
                self._outcomes.record(this)
                self._put_back([(claim, _NO_WAIT) for claim in this.in_hand.values()], this)
            claimed = {claim.message.id for claim in claims}
            left = [message_id for message_id in waiting if message_id not in claimed]
            early = self._claims.early(left) if left else {}
            soon = {id_: wait for id_, wait in early.items() if wait <= WAIT_IN_HAND}
            if len(soon) < len(early):
                self._claims.enqueue_when_due([id_ for id_ in early if id_ not in soon])
            if soon:
                self._clock.sleep(max(soon.values()).total_seconds())
            waiting = list(soon)
        return sent

    def _claim(self, message_ids: Sequence[UUID]) -> tuple[list[Claim], Round]:
        claimed_at = self._clock.monotonic()
        claims = self._claims.claim(message_ids)
        ends_at = claimed_at + self._settings.claim_ttl.total_seconds()
        return claims, Round(claimed_at, ends_at, {claim.message.id: claim for claim in claims})

    def _known(self, claims: Sequence[Claim], this: Round) -> list[Claim]:
        """Return the claims of channels that these settings know; put the others back.

        While settings are being rolled out another worker may know the channel.
        """
        strange = [each for each in claims if each.message.channel not in self._transports]
        if strange:
            names = sorted({claim.message.channel for claim in strange})
            log.error("%d messages wait for a worker with channel %s", len(strange), names)
            self._put_back([(claim, self._settings.claim_ttl) for claim in strange], this)
        return [claim for claim in claims if claim.message.id in this.in_hand]

    def _send_permitted(self, claims: Sequence[Claim], this: Round) -> int:
        """Send what may go now or in a moment; put back the others to when their turn is."""
        sent, patience = 0, _WAIT_FOR_PERMITS.total_seconds()
        waiting = list(claims)
        while waiting:
            asked_at = self._clock.monotonic()
            granted, refused = self._permit(waiting, this)
            short = [each for each in refused if each[1].total_seconds() <= patience]
            self._snooze([each for each in refused if each not in short], this)
            # What may go must not wait for what may not.
            sent += self._send(granted, this)
            if not short:
                break
            self._outcomes.record(this)  # what was sent does not count as in hand any more
            passed = self._clock.monotonic() - asked_at
            pause = max(0.0, max(wait.total_seconds() for _, wait in short) - passed)
            self._clock.sleep(pause)
            patience -= pause
            waiting = [claim for claim, _ in short]
        return sent

    def _permit(
        self, claims: Sequence[Claim], this: Round
    ) -> tuple[list[Claim], list[tuple[Claim, timedelta]]]:
        """Return the claims that may go now, and the others with their waits."""
        hold = timedelta(seconds=max(0.0, this.ends_at - self._clock.monotonic()))
        try:
            decisions = self._permits.acquire([permit_of(each) for each in claims], hold=hold)
        except LimitersUnavailable as error:
            log.warning("%d messages wait for the limiters: %s", len(claims), error)
            self._put_back([(claim, _LIMITERS_PAUSE) for claim in claims], this)
            return [], []
        answers = list(zip(claims, decisions, strict=True))
        granted = [claim for claim, decision in answers if decision.allowed]
        return granted, [(claim, each.retry_after) for claim, each in answers if not each.allowed]

    def _send(self, claims: Sequence[Claim], this: Round) -> int:
        sent = 0
        recorded_at = self._clock.monotonic()
        for place, claim in enumerate(claims):
            now = self._clock.monotonic()
            if this.ends_at - now < self._settings.transport_timeout.total_seconds():
                self._put_back([(each, _NO_WAIT) for each in claims[place:]], this)
                break
            if claim.expires_in is not None and now - this.claimed_at >= claim.expires_in:
                self._put_back([(claim, _NO_WAIT)], this)
                continue
            opens_at = this.closed.get(claim.message.channel, 0.0)
            if now < opens_at:
                self._put_back([(claim, timedelta(seconds=opens_at - now))], this)
                continue
            del this.in_hand[claim.message.id]
            sent += self._hand_over(claim, this)
            # Counted at its end: a hand-over is never later than that, so never counted too early.
            this.used.append((claim, self._clock.monotonic()))
            if self._clock.monotonic() - recorded_at > _RECORD_EVERY_SECONDS:
                self._outcomes.record(this)
                recorded_at = self._clock.monotonic()
        return sent

    def _hand_over(self, claim: Claim, this: Round) -> bool:
        """Give one message to its transport: the only line that reaches the world."""
        message = claim.message
        try:
            receipt = self._transports[message.channel].send(message)
        except PermanentFailure as error:
            this.failures.append(Failure(claim, Outcome.PERMANENT, _text(error), None))
        except TemporaryFailure as error:
            this.failures.append(
                self._failure(claim, Outcome.TEMPORARY, _text(error), error.retry_after)
            )
            self._close(message.channel, error, this)
        except Exception as error:  # noqa: BLE001 - a transport may raise anything
            log.warning("message %s: its transport raised %s", message.id, type(error).__name__)
            if message.on_unknown == "hold":  # it may be with the provider: a line that broke, say
                this.failures.append(Failure(claim, Outcome.UNKNOWN, _text(error), None))
            else:
                this.failures.append(self._failure(claim, Outcome.TEMPORARY, _text(error), None))
        else:
            this.results.append(Result(claim, None if receipt is None else storable_text(receipt)))
            return True
        return False

    def _close(self, channel: str, error: TemporaryFailure, this: Round) -> None:
        """Let nobody hand over anything on a channel until its provider wants to be asked."""
        wait = _sane(error.retry_after)
        if not error.closes_channel or not wait:
            return
        this.closed[channel] = self._clock.monotonic() + wait.total_seconds()
        try:
            self._permits.close(channel, wait)
        except LimitersUnavailable as unavailable:
            log.warning("channel %s is not closed for others: %s", channel, unavailable)

    def _failure(
        self, claim: Claim, outcome: Outcome, error: str, retry_after: timedelta | None
    ) -> Failure:
        message = claim.message
        if message.attempt_count >= message.max_attempts:
            return Failure(claim, outcome, error, None)
        channel = self._settings.channels[message.channel]
        wait = backoff(
            message.attempt_count,
            base=channel.backoff_base,
            longest=channel.backoff_longest,
            at_least=_sane(retry_after),
            random=random.random,
        )
        return Failure(claim, outcome, error, wait)

    def _snooze(self, refused: Sequence[tuple[Claim, timedelta]], this: Round) -> None:
        """Put back what has no permit. What is to come back before the sweep looks is enqueued."""
        soon = [each for each in refused if each[1] <= self._settings.sweep_interval * 2]
        self._put_back([each for each in refused if each not in soon], this)
        if not soon or not self._put_back(soon, this, enqueue_in=self._settings.enqueue_grace):
            return
        now = self._clock.now()
        tickets = [Ticket(claim.message.id, claim.message.channel, now + wait)
                   for claim, wait in soon]  # fmt: skip
        try:
            self._queue.enqueue(tickets)
        except QueueUnavailable as error:
            log.warning("%d messages are enqueued after their grace: %s", len(soon), error)

    def _put_back(
        self,
        snoozed: Sequence[tuple[Claim, timedelta]],
        this: Round,
        *,
        enqueue_in: timedelta | None = None,
    ) -> bool:
        """Put back what was not handed over, with its permit if it has one.

        The sweep hands it over ``enqueue_in`` after its wait, by default a horizon before. Tell
        whether the store knows of it.
        """
        if not snoozed:
            return True
        for claim, _ in snoozed:
            this.in_hand.pop(claim.message.id, None)
        if enqueue_in is None:
            enqueue_in = -self._settings.horizon
        is_stored = True
        try:
            self._claims.put_back(snoozed, enqueue_in=enqueue_in)
        except StoreUnavailable as error:
            is_stored = False
            log.warning("%d messages wait for their rescue: %s", len(snoozed), error)
        try:
            self._permits.give_back([permit_of(claim) for claim, _ in snoozed])
        except LimitersUnavailable as error:
            log.warning("%d unused permits stay counted: %s", len(snoozed), error)
        return is_stored


def _text(error: BaseException) -> str:
    return storable_text(f"{type(error).__name__}: {storable_text(error)}")


def _sane(retry_after: object) -> timedelta | None:
    """Return a wait that a transport asked for, if it is one that can be kept."""
    if not isinstance(retry_after, timedelta):
        return None
    return min(max(retry_after, _NO_WAIT), _LONGEST_WAIT)

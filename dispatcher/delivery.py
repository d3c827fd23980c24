"""Deliver a group of messages: claim, permit, send, record."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID

from dispatcher.clock import Clock
from dispatcher.errors import (
    LimitersUnavailable,
    PermanentFailure,
    StoreUnavailable,
    TemporaryFailure,
)
from dispatcher.limiters import Permit, Permits
from dispatcher.message import Outcome, storable_text
from dispatcher.retry import backoff
from dispatcher.settings import Settings
from dispatcher.store import Claim, Claims, Failure, Result
from dispatcher.transports import Transport

log = logging.getLogger(__name__)

WAIT_IN_HAND = timedelta(seconds=1)
"""Longest wait for an instant or a permit that a worker spends holding the message."""
_LIMITERS_PAUSE = timedelta(seconds=1)
_RECORD_EVERY_SECONDS = 0.05
_RECORD_AGAIN_SECONDS = 0.2
_NO_WAIT = timedelta(0)
_LONGEST_WAIT = timedelta(days=366)


@dataclass(slots=True)
class _Round:
    """What one claim of a group has come to so far. Times are of the monotonic clock.

    ``in_hand`` are the claims that were neither handed over nor put back.
    """

    claimed_at: float
    ends_at: float
    in_hand: dict[UUID, Claim]
    results: list[Result] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    used: list[tuple[Claim, float]] = field(default_factory=list)


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
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._claims = claims
        self._permits = permits
        self._transports = transports

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
                sent += self._send(self._permit(self._known(claims, this), this), this)
            finally:  # whatever escapes must not take the outcomes of the neighbours
                self._record(this)
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

    def _claim(self, message_ids: Sequence[UUID]) -> tuple[list[Claim], _Round]:
        claimed_at = self._clock.monotonic()
        claims = self._claims.claim(message_ids)
        ends_at = claimed_at + self._settings.claim_ttl.total_seconds()
        return claims, _Round(claimed_at, ends_at, {claim.message.id: claim for claim in claims})

    def _known(self, claims: Sequence[Claim], this: _Round) -> list[Claim]:
        """Return the claims of channels that these settings know; put the others back.

        While settings are being rolled out another worker may know the channel.
        """
        strange = [each for each in claims if each.message.channel not in self._transports]
        if strange:
            names = sorted({claim.message.channel for claim in strange})
            log.error("%d messages wait for a worker with channel %s", len(strange), names)
            self._put_back([(claim, self._settings.claim_ttl) for claim in strange], this)
        return [claim for claim in claims if claim.message.id in this.in_hand]

    def _permit(self, claims: Sequence[Claim], this: _Round) -> list[Claim]:
        """Return the claims that may go now; the others are put back to when they may."""
        granted: list[Claim] = []
        waiting = list(claims)
        patience = WAIT_IN_HAND
        while waiting:
            hold = timedelta(seconds=max(0.0, this.ends_at - self._clock.monotonic()))
            try:
                decisions = self._permits.acquire([_permit(each) for each in waiting], hold=hold)
            except LimitersUnavailable as error:
                log.warning("%d messages wait for the limiters: %s", len(waiting), error)
                self._put_back([(claim, _LIMITERS_PAUSE) for claim in waiting], this)
                break
            answers = list(zip(waiting, decisions, strict=True))
            granted += [claim for claim, decision in answers if decision.allowed]
            refused = [(claim, each.retry_after) for claim, each in answers if not each.allowed]
            short = [(claim, wait) for claim, wait in refused if wait <= patience]
            self._put_back([each for each in refused if each not in short], this)
            if granted or not short:
                # What may go must not wait for what may not.
                self._put_back(short, this)
                break
            pause = max(wait for _, wait in short)
            self._clock.sleep(pause.total_seconds())
            patience -= pause
            waiting = [claim for claim, _ in short]
        return granted

    def _send(self, claims: Sequence[Claim], this: _Round) -> int:
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
            del this.in_hand[claim.message.id]
            sent += self._hand_over(claim, this)
            # Counted at its end: a hand-over is never later than that, so never counted too early.
            this.used.append((claim, self._clock.monotonic()))
            if self._clock.monotonic() - recorded_at > _RECORD_EVERY_SECONDS:
                self._record(this)
                recorded_at = self._clock.monotonic()
        return sent

    def _hand_over(self, claim: Claim, this: _Round) -> bool:
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
        except Exception as error:  # noqa: BLE001 - a transport may raise anything: temporary
            log.warning("message %s: its transport raised %s", message.id, type(error).__name__)
            this.failures.append(self._failure(claim, Outcome.TEMPORARY, _text(error), None))
        else:
            this.results.append(Result(claim, None if receipt is None else storable_text(receipt)))
            return True
        return False

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

    def _record(self, this: _Round) -> None:
        """Write down what came of the hand-overs so far, again and again while the claim holds."""
        while this.results or this.failures:
            try:
                self._claims.record(this.results, this.failures, enqueue_in=-self._settings.horizon)
                break
            except StoreUnavailable as error:
                if error.refused:
                    self._record_each(this)
                    break
                if self._clock.monotonic() > this.ends_at:
                    _lost(error)
                    break
                self._clock.sleep(_RECORD_AGAIN_SECONDS)
        self._settle(this)
        this.results, this.failures = [], []

    def _record_each(self, this: _Round) -> None:
        """Record one by one, so that what the store refuses takes no other outcome with it."""
        singles: list[tuple[list[Result], list[Failure]]] = [
            *(([each], []) for each in this.results),
            *(([], [each]) for each in this.failures),
        ]
        for results, failures in singles:
            try:
                self._claims.record(results, failures, enqueue_in=-self._settings.horizon)
            except StoreUnavailable as error:
                _lost(error)

    def _settle(self, this: _Round) -> None:
        if not this.used:
            return
        now = self._clock.monotonic()
        used = [(_permit(each), timedelta(seconds=now - ended)) for each, ended in this.used]
        this.used = []
        try:
            self._permits.settle(used)
        except LimitersUnavailable as error:
            log.warning("%d permits stay counted at their latest time: %s", len(used), error)

    def _put_back(self, snoozed: Sequence[tuple[Claim, timedelta]], this: _Round) -> None:
        """Put back what was not handed over, with its permit if it has one."""
        if not snoozed:
            return
        for claim, _ in snoozed:
            this.in_hand.pop(claim.message.id, None)
        try:
            self._claims.put_back(snoozed, enqueue_in=-self._settings.horizon)
        except StoreUnavailable as error:
            log.warning("%d messages wait for their rescue: %s", len(snoozed), error)
        try:
            self._permits.give_back([_permit(claim) for claim, _ in snoozed])
        except LimitersUnavailable as error:
            log.warning("%d unused permits stay counted: %s", len(snoozed), error)


def _permit(claim: Claim) -> Permit:
    message = claim.message
    return Permit(message.id, claim.token, message.scope, message.channel)


def _text(error: BaseException) -> str:
    return storable_text(f"{type(error).__name__}: {storable_text(error)}")


def _sane(retry_after: object) -> timedelta | None:
    """Return a wait that a transport asked for, if it is one that can be kept."""
    if not isinstance(retry_after, timedelta):
        return None
    return min(max(retry_after, _NO_WAIT), _LONGEST_WAIT)


def _lost(error: StoreUnavailable) -> None:
    log.error("outcomes are lost, their messages will be rescued: %s", error)

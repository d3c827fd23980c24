"""What came of the hand-overs of a group, and writing it down."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID

from dispatcher.clock import Clock
from dispatcher.errors import LimitersUnavailable, StoreUnavailable
from dispatcher.limiters import Permit, Permits
from dispatcher.settings import Settings
from dispatcher.store import Claim, Claims, Failure, Result

log = logging.getLogger(__name__)

_RECORD_AGAIN_SECONDS = 0.2


@dataclass(slots=True)
class Round:
    """What one claim of a group has come to so far. Times are of the monotonic clock.

    ``in_hand`` are the claims that were neither handed over nor put back, ``closed`` tells until
    when the provider of a channel wants nothing.
    """

    claimed_at: float
    ends_at: float
    in_hand: dict[UUID, Claim]
    results: list[Result] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    used: list[tuple[Claim, float]] = field(default_factory=list)
    closed: dict[str, float] = field(default_factory=dict)


class Outcomes:
    """Records what came of hand-overs, and settles their permits."""

    def __init__(
        self, *, settings: Settings, clock: Clock, claims: Claims, permits: Permits
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._claims = claims
        self._permits = permits

    def record(self, this: Round) -> None:
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

    def _record_each(self, this: Round) -> None:
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

    def _settle(self, this: Round) -> None:
        if not this.used:
            return
        now = self._clock.monotonic()
        used = [(permit_of(each), timedelta(seconds=now - ended)) for each, ended in this.used]
        this.used = []
        try:
            self._permits.settle(used)
        except LimitersUnavailable as error:
            log.warning("%d permits stay counted at their latest time: %s", len(used), error)


def permit_of(claim: Claim) -> Permit:
    """Return the leave that a claimed message needs."""
    message = claim.message
    return Permit(message.id, claim.token, message.scope, message.channel)


def _lost(error: StoreUnavailable) -> None:
    log.error("outcomes are lost, their messages will be rescued: %s", error)

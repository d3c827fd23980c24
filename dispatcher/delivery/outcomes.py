"""What came of hand-overs, and writing it down."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from dispatcher.errors import LimitersUnavailable, StoreUnavailable
from dispatcher.faults import fault
from dispatcher.limiters import Permit, Permits
from dispatcher.message import Outcome
from dispatcher.settings import Settings
from dispatcher.store import Claim, Claims, Failure, Result
from dispatcher.telemetry.journal import Journal, Transition
from dispatcher.times.clock import Clock

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ended:
    """A hand-over that came to an end, at a time of the monotonic clock.

    It began ``late_by`` seconds after the promised time of its message. ``answered`` is False where
    it failed and took so long that its destination gave no answer in time.
    """

    claim: Claim
    outcome: Result | Failure
    at: float
    late_by: float = 0.0
    answered: bool = True


class Outcomes:
    """Records what came of hand-overs, and settles their permits."""

    def __init__(
        self,
        *,
        settings: Settings,
        clock: Clock,
        claims: Claims,
        permits: Permits,
        journal: Journal,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._claims = claims
        self._permits = permits
        self._journal = journal

    def record(self, ended: Sequence[Ended], *, until: float) -> bool:
        """Write down what came of hand-overs; False where it is to be tried again.

        That is where the store is away, before that time (monotonic). After it they are lost.
        """
        results = [each.outcome for each in ended if isinstance(each.outcome, Result)]
        failures = [each.outcome for each in ended if isinstance(each.outcome, Failure)]
        try:
            self._record(results, failures)
        except StoreUnavailable as error:
            if error.refused:
                self._record_each(results, failures)
            elif self._clock.monotonic() <= until:
                return False
            else:
                _lost(error)
        for each in ended:
            outcome = Outcome.SENT if isinstance(each.outcome, Result) else each.outcome.outcome
            self._journal.attempted(each.claim.message, outcome.value, each.late_by)
        fault("deliver.after_record")
        self._settle(ended)
        return True

    def _record_each(self, results: Sequence[Result], failures: Sequence[Failure]) -> None:
        """Record one by one, so that what the store refuses takes no other outcome with it."""
        singles: list[tuple[list[Result], list[Failure]]] = [
            *(([each], []) for each in results),
            *(([], [each]) for each in failures),
        ]
        for some_results, some_failures in singles:
            try:
                self._record(some_results, some_failures)
            except StoreUnavailable as error:
                _lost(error)

    def _record(self, results: Sequence[Result], failures: Sequence[Failure]) -> None:
        expired = self._claims.record(results, failures, enqueue_in=-self._settings.horizon)
        tell = self._journal.tell
        for result in results:
            message = result.claim.message
            tell(Transition.SENT, message, attempt=message.attempt_count)
        for each in failures:
            message = each.claim.message
            facts = {"attempt": message.attempt_count, "outcome": each.outcome.value}
            if each.is_held:
                tell(Transition.HELD, message, **facts)
            elif each.wait is None:
                tell(Transition.FAILED, message, **facts)
            elif message.id in expired:
                tell(Transition.EXPIRED, message, **facts)
            else:
                tell(Transition.RETRIED, message, **facts, wait_seconds=each.wait)

    def _settle(self, ended: Sequence[Ended]) -> None:
        now = self._clock.monotonic()
        used = [(permit_of(each.claim), timedelta(seconds=now - each.at)) for each in ended]
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

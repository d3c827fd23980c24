"""Hand-overs of one group: the transport is called, and what comes of it gets its name."""

from __future__ import annotations

import logging
import random
import threading
from datetime import timedelta

from dispatcher.delivery.backoff import backoff
from dispatcher.errors import (
    LimitersUnavailable,
    PerhapsSent,
    PermanentFailure,
    TemporaryFailure,
)
from dispatcher.limiters import Permits
from dispatcher.message import Outcome, storable_text
from dispatcher.settings import Settings
from dispatcher.store import Claim, Failure, Result
from dispatcher.telemetry.tracing import Tracing
from dispatcher.times.clock import Clock
from dispatcher.transports import Transport

log = logging.getLogger(__name__)

_NO_WAIT = timedelta(0)
_LONGEST_WAIT = timedelta(days=366)


class HandOvers:
    """Hands messages of one channel to its transport; several threads may do so at once.

    ``closed_until`` is when the provider wants to be asked again, in seconds of the monotonic
    clock. Whoever hands over looks at it first.
    """

    def __init__(
        self,
        channel: str,
        transport: Transport,
        *,
        settings: Settings,
        clock: Clock,
        permits: Permits,
        tracing: Tracing | None = None,
    ) -> None:
        self.closed_until = 0.0
        self._channel = channel
        self._transport = transport
        self._settings = settings
        self._clock = clock
        self._permits = permits
        self._tracing = tracing
        self._lock = threading.Lock()

    def make(self, claim: Claim) -> Result | Failure:
        """Hand one message over; return what came of it.

        An ``Exception`` of the transport becomes a failure; anything else that it raises escapes.
        """
        tracing = self._tracing
        return self._outcome(claim) if tracing is None else self._traced(claim, tracing)

    def _traced(self, claim: Claim, tracing: Tracing) -> Result | Failure:
        with tracing.delivering(claim.message) as came_to:
            outcome = self._outcome(claim)
            if isinstance(outcome, Failure):
                came_to(outcome.outcome, outcome.error_type)
            else:
                came_to(Outcome.SENT, None)
        return outcome

    def _outcome(self, claim: Claim) -> Result | Failure:
        """Give one message to its transport: the only line that reaches the world."""
        message = claim.message
        try:
            receipt = self._transport.send(message)
        except PermanentFailure as error:
            return Failure(claim, Outcome.PERMANENT, _text(error), None, type(error).__name__)
        except PerhapsSent as error:
            return self._failure(claim, error, None, Outcome.UNKNOWN)
        except TemporaryFailure as error:
            self._close(error)
            return self._failure(claim, error, error.retry_after)
        except Exception as error:  # noqa: BLE001 - a transport may raise anything
            log.warning("message %s: its transport raised %s", message.id, type(error).__name__)
            # It may be with the provider: a line that broke, say.
            untold = Outcome.UNKNOWN if message.on_unknown == "hold" else Outcome.TEMPORARY
            return self._failure(claim, error, None, untold)
        return Result(claim, None if receipt is None else storable_text(receipt))

    def _close(self, error: TemporaryFailure) -> None:
        """Let nobody hand over anything on the channel until its provider wants to be asked."""
        wait = _sane(error.retry_after)
        if not error.closes_channel or not wait:
            return
        closed_until = self._clock.monotonic() + wait.total_seconds()
        with self._lock:  # the later end holds
            self.closed_until = max(self.closed_until, closed_until)
        try:
            self._permits.close(self._channel, wait)
        except LimitersUnavailable as unavailable:
            log.warning("channel %s is not closed for others: %s", self._channel, unavailable)

    def _failure(
        self,
        claim: Claim,
        error: BaseException,
        retry_after: object,
        outcome: Outcome = Outcome.TEMPORARY,
    ) -> Failure:
        message = claim.message
        wait = None
        if message.attempt_count < message.max_attempts:
            channel = self._settings.channels[message.channel]
            wait = backoff(
                message.attempt_count,
                base=channel.backoff_base,
                longest=channel.backoff_longest,
                at_least=_sane(retry_after),
                random=random.random,
            )
        return Failure(claim, outcome, _text(error), wait, type(error).__name__)


def _text(error: BaseException) -> str:
    return storable_text(f"{type(error).__name__}: {storable_text(error)}")


def _sane(retry_after: object) -> timedelta | None:
    """Return a wait that a transport asked for, if it is one that can be kept."""
    if not isinstance(retry_after, timedelta):
        return None
    return min(max(retry_after, _NO_WAIT), _LONGEST_WAIT)

"""Deliver a group of messages: claim, permit, send, record."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from uuid import UUID

from dispatcher.broker.queue import EARLY, Queue
from dispatcher.delivery.destinations import Destinations
from dispatcher.delivery.outcomes import Outcomes
from dispatcher.delivery.returns import Returns
from dispatcher.delivery.round import LONGEST_HOLD_SECONDS, Hands, Round
from dispatcher.delivery.send_log import ClaimLog, SendLogs
from dispatcher.delivery.senders import Senders
from dispatcher.delivery.stragglers import Stragglers
from dispatcher.faults import fault
from dispatcher.limiters import Permits
from dispatcher.settings import Settings
from dispatcher.store import Claim, Claims
from dispatcher.telemetry.journal import Journal, Transition
from dispatcher.telemetry.tracing import Tracing
from dispatcher.times.clock import Clock
from dispatcher.transports import Transport

log = logging.getLogger(__name__)

WAIT_IN_HAND = timedelta(seconds=1)
"""Longest wait for its instant that a worker spends holding a task."""
_NO_WAIT = timedelta(0)


class Delivery:
    """The use case of the worker.

    A claim makes repeated tasks harmless, a permit guards the limits, the rest of the claim is
    checked right before each hand-over, and the record is fenced by the claim's token. When the
    process dies, its send logs tell what it had not begun, and the sweep rescues the rest.
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
        journal: Journal,
        send_logs: SendLogs,
        tracing: Tracing | None = None,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._claims = claims
        self._send_logs = send_logs
        self._permits = permits
        self._journal = journal
        self._tracing = tracing
        self._outcomes = Outcomes(
            settings=settings, clock=clock, claims=claims, permits=permits, journal=journal
        )
        self._returns = Returns(
            settings=settings,
            clock=clock,
            claims=claims,
            permits=permits,
            queue=queue,
            journal=journal,
        )
        self._hands = {
            name: self._hands_of(name, transport) for name, transport in transports.items()
        }
        # Groups are due within this length; the task of one comes a little before the first.
        self._ahead = settings.coalesce + 2 * EARLY
        self._stragglers = Stragglers()
        self.is_stopping = False

    def deliver(self, message_ids: Sequence[UUID], *, to_the_end: bool = True) -> int:
        """Deliver what is due of these messages; return how many were handed over with success.

        By then all have ended; or, where not ``to_the_end``, all have begun or are put back, and
        a thread of its own sees to those that take their time. Messages that are not scheduled any
        more are skipped: their task was a repeat. Raises StoreUnavailable when nothing can be
        claimed; the sweep hands the messages over again.
        """
        sent = 0
        waiting = list(message_ids)
        while waiting and not self.is_stopping:
            claimed_at = self._clock.monotonic()
            send_log = self._send_logs.open(waiting)
            try:
                claims = self._claims.claim(waiting, ahead=self._ahead, mark=send_log.mark)
                fault("deliver.after_claim")
                received_at = self._clock.monotonic()
                leave = None if to_the_end else self._stragglers.take
                sent += self._deliver(claims, claimed_at, received_at, leave, send_log)
            except BaseException:
                send_log.keep()
                raise
            finally:
                send_log.let_go()
            claimed = {claim.message.id for claim in claims}
            left = [message_id for message_id in waiting if message_id not in claimed]
            early = self._look_after(left) if left else {}
            soon = {id_: wait for id_, wait in early.items() if wait <= WAIT_IN_HAND}
            if len(soon) < len(early):
                self._claims.enqueue_when_due([id_ for id_ in early if id_ not in soon])
            if soon:
                pause = min(max(soon.values()) - self._ahead, min(soon.values()) - EARLY)
                self._clock.sleep(max(0.0, pause.total_seconds()))
            waiting = list(soon)
        return sent

    def _look_after(self, message_ids: Sequence[UUID]) -> dict[UUID, timedelta]:
        """Return how long each of those that could not be claimed has to wait, if it is early."""
        found = self._claims.unclaimed(message_ids)
        for message_id, channel in found.expired.items():
            self._journal.tell_of(Transition.EXPIRED, message_id, channel)
        for message_id, channel in found.cancelled.items():
            self._journal.tell_of(Transition.CANCELLED, message_id, channel)
        return found.waits

    def stop(self) -> None:
        """Begin no further hand-over; what is not on its way is put back."""
        self.is_stopping = True

    def finish(self, timeout: float | None = None) -> bool:
        """Wait for the hand-overs that were not waited for; tell whether all have ended.

        ``timeout`` in seconds, None for as long as any claim is kept: what lasts longer is left to
        the rescue of its message.
        """
        return self._stragglers.finish(LONGEST_HOLD_SECONDS if timeout is None else timeout)

    def close(self) -> None:
        """Let the threads of the senders end."""
        for hands in self._hands.values():
            hands.senders.close()

    def _deliver(
        self,
        claims: Sequence[Claim],
        claimed_at: float,
        received_at: float,
        leave: Callable[[Round], bool] | None,
        send_log: ClaimLog,
    ) -> int:
        sent = 0
        waiting: dict[str, list[Claim]] = defaultdict(list)
        for claim in claims:
            waiting[claim.message.channel].append(claim)
        self._put_back_strange(waiting, send_log)
        try:
            while waiting:
                name, group = waiting.popitem()
                sent += Round(
                    group,
                    self._hands[name],
                    claimed_at=claimed_at,
                    received_at=received_at,
                    settings=self._settings,
                    clock=self._clock,
                    claims=self._claims,
                    permits=self._permits,
                    outcomes=self._outcomes,
                    returns=self._returns,
                    send_log=send_log,
                    is_stopping=lambda: self.is_stopping,
                    tracing=self._tracing,
                ).run(leave)
        finally:  # whatever escapes must not take the neighbours with it
            for group in waiting.values():
                if not self._returns.put_back([(claim, _NO_WAIT) for claim in group]):
                    send_log.keep()
        return sent

    def _put_back_strange(self, waiting: dict[str, list[Claim]], send_log: ClaimLog) -> None:
        """Put back the messages of channels that these settings do not know.

        While settings are being rolled out another worker may know the channel.
        """
        for name in sorted(waiting.keys() - self._hands.keys()):
            strange = waiting.pop(name)
            log.error("%d messages wait for a worker with channel %s", len(strange), [name])
            wait = self._settings.claim_ttl
            if not self._returns.put_back([(claim, wait) for claim in strange]):
                send_log.keep()

    def _hands_of(self, name: str, transport: Transport) -> Hands:
        """Return what the groups of a channel share.

        Where the transport names destinations, one of them leaves a quarter of the senders to the
        others.
        """
        channel = self._settings.channels[name]
        name_of = getattr(transport, "destination", None)
        for_others = max(1, channel.senders // 4) if channel.senders > 1 else 0
        return Hands(
            name,
            transport,
            Senders(f"send {name}", most=channel.senders),
            Destinations(
                name_of if callable(name_of) else None,
                share=channel.senders - for_others,
                timeout=self._settings.transport_timeout.total_seconds(),
                longest=channel.backoff_longest,
                clock=self._clock,
            ),
        )

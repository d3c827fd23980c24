"""Deliver a group of messages: claim, permit, send, record."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import timedelta
from uuid import UUID

from dispatcher.broker.queue import EARLY, Queue
from dispatcher.delivery.destinations import Destinations
from dispatcher.delivery.group import NO_WAIT, Group
from dispatcher.delivery.parts import Parts
from dispatcher.delivery.recorder import LateRecorders, Recorder, permit_of, put_back
from dispatcher.delivery.send_log import ClaimLog, SendLogs
from dispatcher.delivery.sender import Sender
from dispatcher.delivery.sender_pool import SenderPool, SenderThreads
from dispatcher.errors import LimitersUnavailable
from dispatcher.faults import fault
from dispatcher.limiters import Permits
from dispatcher.settings import Settings
from dispatcher.store import Claim, Claims
from dispatcher.telemetry.journal import Journal, Transition
from dispatcher.telemetry.tracing import Tracing
from dispatcher.times.clock import Clock
from dispatcher.transports import Transport

log = logging.getLogger(__name__)

_LONGEST_EARLY = timedelta(seconds=1)
"""Longest wait for its instant that a worker spends holding a task."""
_LONGEST_ASKING_SECONDS = 0.25
"""Longest wait for permits that a worker spends holding messages."""
_LIMITERS_PAUSE = timedelta(seconds=1)


class Delivery:
    """The use case of the worker.

    A claim makes repeated tasks harmless, a permit guards the limits, the rest of the claim is
    checked right before each send, and the record is guarded by the claim's token. When the process
    dies, its send logs name the messages that it had not begun; the sweep rescues the others.
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
        self.parts = Parts(
            settings=settings,
            clock=clock,
            claims=claims,
            permits=permits,
            queue=queue,
            journal=journal,
            tracing=tracing,
        )
        self._send_logs = send_logs
        self._pools = {name: self._pool(name, each) for name, each in transports.items()}
        # Groups are due within this length; the task of one comes a little before the first.
        self._ahead = settings.coalesce + 2 * EARLY
        self._late = LateRecorders()

    def deliver(self, message_ids: Sequence[UUID], *, to_the_end: bool = True) -> int:
        """Deliver what is due of these messages; return how many were sent with success.

        By then all have ended; or, where not ``to_the_end``, all sends have begun or are put back,
        and long sends are recorded later. Messages that are not scheduled any more
        are skipped: their task was a repeat. Raises StoreUnavailable when nothing can be claimed;
        the sweep enqueues the messages again.
        """
        sent, waiting = 0, list(message_ids)
        while waiting and not self.parts.is_stopping:
            claimed_at = self.parts.clock.monotonic()
            send_log = self._send_logs.open(waiting)
            try:
                claims = self.parts.claims.claim(waiting, ahead=self._ahead, mark=send_log.mark)
                fault("deliver.after_claim")
                sent += self._deliver(claims, claimed_at, send_log, to_the_end=to_the_end)
            except BaseException:
                send_log.keep()
                raise
            finally:
                send_log.let_go()
            all_claimed = len(claims) == len(waiting)
            waiting = [] if all_claimed else self._wait_for_early(waiting, claims)
        return sent

    def _deliver(
        self, claims: Sequence[Claim], claimed_at: float, send_log: ClaimLog, *, to_the_end: bool
    ) -> int:
        """Deliver the claims of each channel in turn; return the successes."""
        received_at = self.parts.clock.monotonic()
        channels: dict[str, list[Claim]] = defaultdict(list)
        for claim in claims:
            channels[claim.message.channel].append(claim)
        for name in sorted(channels.keys() - self._pools.keys()):
            self._put_back_unknown(name, channels.pop(name), send_log)
        sent = 0
        try:
            while channels:
                name, some = channels.popitem()
                group = Group(
                    claimed_at=claimed_at,
                    received_at=received_at,
                    ends_at=claimed_at + self.parts.settings.claim_ttl.total_seconds(),
                    send_log=send_log,
                )
                recorder = Recorder(self.parts, self._pools[name], group, some)
                sent += self._deliver_group(recorder, to_the_end=to_the_end)
        finally:  # after an error in one channel the others are put back
            for some in channels.values():
                put_back(self.parts, send_log, [(claim, NO_WAIT) for claim in some])
        return sent

    def _deliver_group(self, recorder: Recorder, *, to_the_end: bool) -> int:
        """Acquire permits, send and record; return the successes. Raises the error of the group."""
        ask_until = recorder.ask_at + _LONGEST_ASKING_SECONDS
        try:
            self._send_permitted(recorder, ask_until)
            while recorder.step():
                if not to_the_end and recorder.is_late() and self._late.take(recorder):
                    return recorder.sent
                recorder.pause()
                self._send_permitted(recorder, ask_until)
        except BaseException as error:  # noqa: BLE001 - it is raised below
            recorder.fail(error)
            recorder.finish()
        if recorder.error:
            raise recorder.error
        return recorder.sent

    def _send_permitted(self, recorder: Recorder, ask_until: float) -> None:
        """Send the messages that get a permit; snooze those that get none until ``ask_until``."""
        claims = recorder.waiting
        asked_at = self.parts.clock.monotonic()
        if not claims or self.parts.is_stopping or asked_at < recorder.ask_at:
            return
        try:
            answers = self.parts.permits.acquire(
                [permit_of(each) for each in claims], hold=recorder.hold
            )
        except LimitersUnavailable as error:
            log.warning(
                "no permits for %d messages, tried again in a second: %s", len(claims), error
            )
            recorder.waiting = []
            recorder.put_back([(claim, _LIMITERS_PAUSE) for claim in claims])
            return
        fault("deliver.after_permits")
        granted, soon, refused = [], [], []
        for claim, answer in zip(claims, answers, strict=True):
            comes_at = asked_at + answer.retry_after.total_seconds()
            if answer.allowed:
                granted.append(claim)
            elif comes_at <= ask_until:
                soon.append(claim)
                recorder.ask_at = max(recorder.ask_at, comes_at)
            else:
                refused.append((claim, answer.retry_after))
        recorder.waiting = soon
        if granted:
            recorder.send(granted)
        if refused:
            recorder.snooze(refused)

    def stop(self) -> None:
        """Begin no further send; messages whose send has not begun are put back."""
        self.parts.is_stopping = True

    @property
    def is_stopping(self) -> bool:
        """Whether no further send begins."""
        return self.parts.is_stopping

    def finish(self, timeout: float | None = None) -> bool:
        """Wait for the sends that no task waits for; return whether all have ended.

        ``timeout`` in seconds, None for as long as any claim is renewed. Messages whose sends last
        longer are left to ``rescue``.
        """
        return self._late.finish(timeout)

    def close(self) -> None:
        """Let the threads of the senders end."""
        for pool in self._pools.values():
            pool.close()

    def _put_back_unknown(self, channel: str, claims: Sequence[Claim], send_log: ClaimLog) -> None:
        """Put back the messages of a channel that these settings do not know.

        While settings are being rolled out another worker may know the channel.
        """
        log.error(
            "channel %s is not in this worker's settings: %d messages put back for another one",
            [channel], len(claims),
        )  # fmt: skip
        wait = self.parts.settings.claim_ttl
        put_back(self.parts, send_log, [(claim, wait) for claim in claims])

    def _wait_for_early(self, asked: Sequence[UUID], claims: Sequence[Claim]) -> list[UUID]:
        """Wait for messages that are due in a moment, and return them.

        Those that are due later are left to the sweep; those that have ended go into the journal.
        """
        claimed = {claim.message.id for claim in claims}
        left = [message_id for message_id in asked if message_id not in claimed]
        if not left:
            return []
        found = self.parts.claims.unclaimed(left)
        for message_id, channel in found.expired.items():
            self.parts.journal.tell_of(Transition.EXPIRED, message_id, channel)
        for message_id, channel in found.cancelled.items():
            self.parts.journal.tell_of(Transition.CANCELLED, message_id, channel)
        soon = {id_: wait for id_, wait in found.waits.items() if wait <= _LONGEST_EARLY}
        if len(soon) < len(found.waits):
            self.parts.claims.enqueue_when_due([id_ for id_ in found.waits if id_ not in soon])
        if soon:
            pause = min(max(soon.values()) - self._ahead, min(soon.values()) - EARLY)
            self.parts.clock.sleep(max(0.0, pause.total_seconds()))
        return list(soon)

    def _pool(self, name: str, transport: Transport) -> SenderPool:
        """Return the senders of a channel.

        Where the transport names destinations, one of them leaves a quarter of the senders to the
        others.
        """
        parts = self.parts
        channel = parts.settings.channels[name]
        name_of = getattr(transport, "destination", None)
        for_others = max(1, channel.senders // 4) if channel.senders > 1 else 0
        destinations = Destinations(
            name_of if callable(name_of) else None,
            share=channel.senders - for_others,
            timeout=parts.settings.transport_timeout.total_seconds(),
            longest=channel.backoff_longest,
            clock=parts.clock,
        )
        threads = SenderThreads(f"send {name}", most=channel.senders)
        send = Sender(name, transport, parts).send
        return SenderPool(threads, send, destinations, parts.clock)

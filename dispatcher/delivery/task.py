"""The task of a worker: claim a group, acquire permits, send, and record what came of it."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID

from dispatcher.celery.queue import EARLY
from dispatcher.delivery.group import NO_WAIT, Group, LastingSends, Shared, permit_of
from dispatcher.delivery.send_log import ClaimLog, SendLogs
from dispatcher.delivery.sender import Sender
from dispatcher.delivery.sender_pool import Destinations, SenderPool
from dispatcher.errors import InvalidValue, LimitersUnavailable, StoreUnavailable
from dispatcher.faults import fault
from dispatcher.settings import Settings
from dispatcher.store.claims import Claim
from dispatcher.telemetry.journal import Transition
from dispatcher.times.quiet_hours import read_hours
from dispatcher.times.send_time import from_ms, to_ms
from dispatcher.times.zones import known_zone
from dispatcher.transports import Transport

log = logging.getLogger(__name__)

_LONGEST_EARLY = timedelta(seconds=1)
"""Longest wait for its instant that a worker spends holding a task."""
_LONGEST_ASKING_SECONDS = 0.25
"""Longest wait for permits that a worker spends holding messages."""
_LIMITERS_PAUSE = timedelta(seconds=1)
_MOST_WAITING = 2_000
"""Groups that wait in a process. What finds no room is enqueued again after its grace."""


class Delivery:
    """Claims, acquires permits, sends and records.

    A claim makes repeated tasks harmless, a permit guards the limits, the rest of the claim is
    checked right before each send, and the record is guarded by the claim's token. When the process
    dies, its send logs name the messages that it had not begun; the sweep rescues the others.
    """

    def __init__(
        self, shared: Shared, *, transports: Mapping[str, Transport], send_logs: SendLogs
    ) -> None:
        self.shared = shared
        self._send_logs = send_logs
        self._pools = {name: self._pool(name, each) for name, each in transports.items()}
        # Groups are due within this length; the task of one comes a little before the first.
        self._ahead = shared.settings.coalesce + 2 * EARLY
        self._lasting = LastingSends()
        self._unclaimed: deque[UUID] = deque()

    def deliver(self, message_ids: Sequence[UUID], *, to_the_end: bool = True) -> int:
        """Deliver what is due of these messages; return how many were sent with success.

        When it returns, every send has ended. Without ``to_the_end`` it returns once each send has
        begun or its message is put back; sends that last are recorded later. Messages that are not
        scheduled any more are skipped: their task was a repeat. Raises StoreUnavailable when
        nothing can be claimed; the sweep enqueues the messages again.
        """
        sent, ids = 0, list(message_ids)
        while ids and not self.shared.is_stopping:
            claimed_at = self.shared.clock.monotonic()
            send_log = self._send_logs.open(ids)
            try:
                claims = self.shared.claims.claim(ids, ahead=self._ahead, mark=send_log.mark)
                fault("deliver.after_claim")
                sent += self._deliver_claims(claims, claimed_at, send_log, to_the_end=to_the_end)
            except BaseException:
                send_log.keep()
                raise
            finally:
                send_log.close()
            ids = self._wait_for_early(ids, claims) if len(claims) < len(ids) else []
        self._unclaimed.extend(ids)
        return sent

    def _deliver_claims(
        self, claims: Sequence[Claim], claimed_at: float, send_log: ClaimLog, *, to_the_end: bool
    ) -> int:
        """Deliver the claims of each channel in turn; return the successes.

        After an error in one the others are put back. So are messages of a channel that these
        settings do not know: while settings are being rolled out another worker may know it.
        """
        received_at = self.shared.clock.monotonic()
        ttl = self.shared.settings.claim_ttl
        channels: dict[str, list[Claim]] = defaultdict(list)
        for claim in claims:
            channels[claim.message.channel].append(claim)
        sent = 0
        try:
            for name in sorted(channels.keys() - self._pools.keys()):
                unknown = channels.pop(name)
                log.error(
                    "channel %s is not in this worker's settings: %d messages put back for "
                    "another one", [name], len(unknown),
                )  # fmt: skip
                self.shared.put_back([(claim, ttl) for claim in unknown], send_log)
            while channels:
                name, known = channels.popitem()
                group = Group(
                    self.shared,
                    self._pools[name],
                    known,
                    claimed_at=claimed_at,
                    received_at=received_at,
                    send_log=send_log,
                )
                sent += self._deliver_group(group, to_the_end=to_the_end)
        finally:
            for left in channels.values():
                self.shared.put_back([(claim, NO_WAIT) for claim in left], send_log)
        return sent

    def _deliver_group(self, group: Group, *, to_the_end: bool) -> int:
        ask_until = group.ask_at + _LONGEST_ASKING_SECONDS
        try:
            self._put_quiet_back(group)
            self._send_permitted(group, ask_until)
            while group.step():
                if not to_the_end and group.has_lasting_sends() and self._lasting.take(group):
                    return group.sent
                group.pause()
                self._send_permitted(group, ask_until)
        except BaseException as error:  # noqa: BLE001 - raised once all is recorded
            group.fail(error)
            while group.step():
                group.pause()
        if group.error:
            raise group.error
        return group.sent

    def _put_quiet_back(self, group: Group) -> None:
        waits = [(claim, _quiet_wait(claim, self.shared.settings)) for claim in group.waiting]
        quiet = [(claim, wait) for claim, wait in waits if wait]
        if quiet:
            group.waiting = [claim for claim, wait in waits if not wait]
            group.snooze(quiet)

    def _send_permitted(self, group: Group, ask_until: float) -> None:
        claims = group.waiting
        asked_at = self.shared.clock.monotonic()
        if not claims or self.shared.is_stopping or asked_at < group.ask_at:
            return
        permits = [*map(permit_of, claims)]
        try:
            answers = self.shared.permits.acquire(permits, within=group.time_left)
        except LimitersUnavailable as error:
            log.warning(
                "no permits for %d messages, tried again in a second: %s", len(claims), error
            )
            group.put_waiting_back(_LIMITERS_PAUSE)
            return
        fault("deliver.after_permits")
        permitted, soon, refused = [], [], []
        for claim, answer in zip(claims, answers, strict=True):
            comes_at = asked_at + answer.retry_after.total_seconds()
            if answer.allowed:
                permitted.append(claim)
            elif comes_at <= ask_until:
                soon.append(claim)
                group.ask_at = max(group.ask_at, comes_at)
            else:
                refused.append((claim, answer.retry_after))
        group.waiting = soon
        if permitted:
            group.send(permitted)
        if refused:
            group.snooze(refused)

    @property
    def is_stopping(self) -> bool:
        return self.shared.is_stopping

    def take_unclaimed(self) -> list[UUID]:
        """Return, and forget, the messages that a stop kept from being claimed."""
        return [self._unclaimed.popleft() for _ in range(len(self._unclaimed))]

    def finish(self, timeout: float | None = None) -> bool:
        """Wait for the sends that no task waits for; return whether all have ended.

        ``timeout`` in seconds, None for as long as any claim is renewed. Messages whose sends last
        longer are left to ``rescue``.
        """
        return self._lasting.finish(timeout)

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()

    def _wait_for_early(self, message_ids: Sequence[UUID], claims: Sequence[Claim]) -> list[UUID]:
        """Wait for messages that are due in a moment, and return them.

        Those that are due later are left to the sweep; those that have ended go into the journal.
        """
        claimed = {claim.message.id for claim in claims}
        unclaimed = self.shared.claims.unclaimed([id_ for id_ in message_ids if id_ not in claimed])
        for message_id, channel in unclaimed.expired.items():
            self.shared.journal.tell_of(Transition.EXPIRED, message_id, channel)
        for message_id, channel in unclaimed.cancelled.items():
            self.shared.journal.tell_of(Transition.CANCELLED, message_id, channel)
        soon = {id_: wait for id_, wait in unclaimed.waits.items() if wait <= _LONGEST_EARLY}
        if len(soon) < len(unclaimed.waits):
            self.shared.claims.enqueue_when_due([id_ for id_ in unclaimed.waits if id_ not in soon])
        if soon:
            pause = min(max(soon.values()) - self._ahead, min(soon.values()) - EARLY)
            # A message that is due already and was not claimed is paused. The least wait keeps
            # this loop from asking without a break until the message is resumed.
            self.shared.clock.sleep(max(EARLY, pause).total_seconds())
        return list(soon)

    def _pool(self, name: str, transport: Transport) -> SenderPool:
        """Where the transport names destinations, one leaves a quarter of the senders to others."""
        shared = self.shared
        channel = shared.settings.channels[name]
        name_of = getattr(transport, "destination", None)
        destinations = None
        if callable(name_of):
            for_others = max(1, channel.senders // 4) if channel.senders > 1 else 0
            destinations = Destinations(
                name_of,
                share=channel.senders - for_others,
                timeout=shared.settings.transport_timeout.total_seconds(),
                longest=channel.backoff_longest,
                clock=shared.clock,
            )
        send = Sender(name, transport, shared).send
        return SenderPool(
            f"send {name}", send, shared.clock, most=channel.senders, destinations=destinations
        )


def _quiet_wait(claim: Claim, settings: Settings) -> timedelta:
    """Return how long a late message waits for the end of its quiet hours; no time for others.

    It is late by more than ``enqueue_grace`` at the instant at which it would be sent.
    """
    message = claim.message
    quiet = settings.channels[message.channel].quiet
    late_by = timedelta(seconds=claim.late_by + claim.due_in)
    if late_by <= settings.enqueue_grace:
        return NO_WAIT
    if message.quiet_hours is not None:
        try:
            quiet = read_hours(message.quiet_hours)
        except InvalidValue:  # another program wrote it: the rest of the group goes on
            log.warning(
                "message %s: its quiet hours cannot be read; those of its channel apply", message.id
            )
    if quiet is None:
        return NO_WAIT
    zone = known_zone(message.zone) or settings.zone
    ends_ms = quiet.end(zone, to_ms(message.send_at + late_by))
    if ends_ms is None:
        return NO_WAIT
    return from_ms(ends_ms) - message.send_at - timedelta(seconds=claim.late_by)


@dataclass(slots=True)
class _ChannelQueue:
    under_way: int = 0
    again: deque[Sequence[UUID]] = field(default_factory=deque)
    first: deque[Sequence[UUID]] = field(default_factory=deque)


class GroupQueue:
    """Begins ``at_once`` groups of each channel at a time; further ones wait for their turn.

    A channel whose provider is slow fills its own queue and leaves the worker's threads to others:
    the thread that brings one group too many leaves it here, and a thread that has begun a group
    takes the next. So no more is claimed than what the senders send and what these groups wait
    with. Groups that come again, perhaps at their turn under a limit, go before those that come for
    the first time: new messages must not keep snoozed ones from coming back.
    """

    def __init__(self, delivery: Delivery, *, at_once: int) -> None:
        self._delivery = delivery
        self._at_once = at_once
        self._lock = threading.Lock()
        self._channels: dict[str, _ChannelQueue] = defaultdict(_ChannelQueue)

    def deliver(self, message_ids: Sequence[UUID], channel: str, *, is_first: bool = True) -> None:
        """Deliver a group now, or leave it to a thread that is at work on this channel.

        It returns when the group has begun. Raises StoreUnavailable when nothing can be claimed;
        the sweep enqueues again what was to be delivered, and what waits here.
        """
        queue = self._channels[channel]
        with self._lock:
            if queue.under_way >= self._at_once:
                if len(queue.again) + len(queue.first) < _MOST_WAITING:
                    (queue.first if is_first else queue.again).append(message_ids)
                else:
                    log.info("channel %s: this worker's queue is full; enqueue_due enqueues %d "
                             "messages again", channel, len(message_ids))  # fmt: skip
                return
            queue.under_way += 1
        group: Sequence[UUID] | None = message_ids
        failure: Exception | None = None
        try:
            while group:
                try:
                    self._delivery.deliver(group, to_the_end=False)
                except StoreUnavailable:
                    raise  # none of those that wait can be claimed either
                except Exception as error:  # noqa: BLE001 - theirs alone: the others go on
                    kind = type(error).__name__  # its text may quote a body
                    log.error(  # noqa: TRY400 - its text may quote a body
                        "channel %s: a group of %d messages failed (%s); they are rescued; the "
                        "traceback of the task says why", channel, len(group), kind,
                    )  # fmt: skip
                    failure = failure or error
                with self._lock:
                    waiting = queue.again or queue.first
                    is_next = waiting and not self._delivery.is_stopping
                    group = waiting.popleft() if is_next else None
                    queue.under_way -= group is None
        except BaseException:
            with self._lock:
                left, queue.again, queue.first = [*queue.again, *queue.first], deque(), deque()
                queue.under_way -= 1
            if left:
                log.warning("channel %s: a group failed; enqueue_due enqueues %d messages again",
                            channel, sum(map(len, left)))  # fmt: skip
            raise
        if failure:
            raise failure

    def take_waiting(self) -> list[UUID]:
        with self._lock:
            queues = [each for some in self._channels.values() for each in (some.again, some.first)]
            groups = [group for each in queues for group in each]
            for each in queues:
                each.clear()
        return [message_id for group in groups for message_id in group]

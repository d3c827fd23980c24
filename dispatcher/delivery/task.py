"""The task of a worker: it claims messages, and leads their group until that has ended."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from heapq import heappop, heappush
from itertools import count
from uuid import UUID

from dispatcher.celery.queue import EARLY
from dispatcher.delivery.group import LONGEST_CLAIM_SECONDS, RECORD_EVERY_SECONDS, Group, Shared
from dispatcher.delivery.send_log import SendLogs
from dispatcher.delivery.sender_pool import Destinations, SenderPool
from dispatcher.errors import StoreUnavailable
from dispatcher.faults import fault
from dispatcher.store.claims import Claim
from dispatcher.telemetry.journal import Transition
from dispatcher.transports import Transport

log = logging.getLogger(__name__)

_LONGEST_EARLY = timedelta(seconds=1)
"""Longest wait for its instant that a worker spends holding a task."""
_MOST_WAITING = 2_000
"""Groups that wait in a process. What finds no room is enqueued again after its grace."""


class Delivery:
    """Claims, acquires permits, sends and records.

    A claim makes repeated tasks harmless, a permit guards the limits, the rest of the claim is
    checked right before each send, and the record is guarded by the claim's token.
    """

    def __init__(
        self, shared: Shared, *, transports: Mapping[str, Transport], send_logs: SendLogs
    ) -> None:
        self.shared = shared
        self._send_logs = send_logs
        self._pools = {name: self._pool(name, transport) for name, transport in transports.items()}
        # Groups are due within this length; the task of one comes a little before the first.
        self._ahead = shared.settings.coalesce + 2 * EARLY
        self._lasting = LastingSends()

    def deliver(self, message_ids: Sequence[UUID], *, to_the_end: bool = True) -> int:
        """Deliver what is due of these messages; return how many were sent with success.

        When it returns, every send has ended. Without ``to_the_end`` it returns once each send has
        begun or its message is put back; sends that last are recorded later. Messages that are not
        scheduled any more are skipped: their task was a repeat. What a stop kept from being claimed
        is enqueued by the next sweep. Raises StoreUnavailable when nothing can be claimed.
        """
        sent, ids = 0, list(message_ids)
        while ids and not self.shared.is_stopping:
            claimed_at = self.shared.clock.monotonic()
            send_log = self._send_logs.open(ids)
            try:
                claims = self.shared.claims.claim(ids, ahead=self._ahead, mark=send_log.mark)
                fault("deliver.after_claim")
            except BaseException:
                send_log.keep()
                send_log.close()
                raise
            group = Group(
                self.shared, self._pools, claims, claimed_at=claimed_at, send_log=send_log
            )
            self._lead(group, to_the_end=to_the_end)
            sent += group.sent
            ids = self._wait_for_early(ids, claims) if len(claims) < len(ids) else []
        if ids:
            self.shared.claims.enqueue_when_due(ids)
        return sent

    def _lead(self, group: Group, *, to_the_end: bool) -> None:
        try:
            group.put_unfit_back()
            while group.step():
                if not to_the_end and group.has_lasting_sends() and self._lasting.take(group):
                    return
                group.pause()
        except BaseException as error:  # noqa: BLE001 - raised once all is recorded
            group.fail(error)
            while group.step():
                group.pause()
        if group.error:
            raise group.error

    def finish(self, timeout: float = LONGEST_CLAIM_SECONDS) -> bool:
        """Wait for the sends that no task waits for; return whether all have ended."""
        return self._lasting.none.wait(timeout)

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()

    def _wait_for_early(self, message_ids: Sequence[UUID], claims: Sequence[Claim]) -> list[UUID]:
        claimed = {claim.message.id for claim in claims}
        unclaimed = self.shared.claims.unclaimed([id_ for id_ in message_ids if id_ not in claimed])
        self.shared.journal.tell_all(Transition.EXPIRED, unclaimed.expired)
        self.shared.journal.tell_all(Transition.CANCELLED, unclaimed.cancelled)
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
        send = partial(Group.send, transport=transport)
        return SenderPool(
            f"send {name}", send, shared.clock, most=channel.senders, destinations=destinations
        )


class LastingSends:
    """Finishes groups for whose sends no task waits any more, on one thread.

    Each has a send under way, so there are never more than the process has senders.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._groups: list[Group] = []
        self.none = threading.Event()
        self.none.set()

    def take(self, group: Group) -> bool:
        """Finish this group; False where the system gives no thread for it."""
        with self._lock:
            if not self._groups:
                thread = threading.Thread(target=self._run, name="lasting sends", daemon=True)
                try:
                    thread.start()
                except RuntimeError:
                    return False
            self._groups.append(group)
            self.none.clear()
        return True

    def _run(self) -> None:
        while True:
            finished = [group for group in list(self._groups) if not _goes_on(group)]
            with self._lock:
                self._groups = [group for group in self._groups if group not in finished]
                if not self._groups:
                    self.none.set()
                    return
            if not finished:
                self.none.wait(RECORD_EVERY_SECONDS)  # not set while this thread runs


def _goes_on(group: Group) -> bool:
    """Do one step of a group; log the error that ended it, and raise none."""
    try:
        if group.step():
            return True
        error = group.error
    except BaseException as raised:  # noqa: BLE001 - no other group may end with it
        error = raised
    if error is not None:
        kind = type(error).__name__  # its text may quote a body
        log.error("a group ended in %s; what it did not record will be rescued", kind)
    return False


@dataclass(slots=True)
class _ChannelQueue:
    under_way: int = 0
    waiting: list[tuple[bool, int, Sequence[UUID]]] = field(default_factory=list)
    """A heap: those that come again before those that come for the first time, each in order."""


class GroupQueue:
    """Begins ``at_once`` groups of each channel at a time; further ones wait for their turn.

    A channel whose provider is slow fills its own queue and leaves the worker's threads to others:
    the thread that brings one group too many leaves it here, and a thread that has begun a group
    takes the next. Groups that come again, perhaps at their turn under a limit, go before those
    that come for the first time: new messages must not keep snoozed ones from coming back.
    """

    def __init__(self, delivery: Delivery, *, at_once: int) -> None:
        self._delivery = delivery
        self._at_once = at_once
        self._lock = threading.Lock()
        self._numbers = count()
        self._channels: dict[str, _ChannelQueue] = defaultdict(_ChannelQueue)

    def deliver(self, message_ids: Sequence[UUID], channel: str, *, is_first: bool = True) -> None:
        """Deliver a group now, or leave it to a thread that is at work on this channel.

        It returns when the group has begun, and raises the first error of the groups that this
        thread began. Without the store none can be claimed, so what waits is left to the sweep.
        """
        queue = self._channels[channel]
        with self._lock:
            if queue.under_way >= self._at_once:
                if len(queue.waiting) < _MOST_WAITING:
                    heappush(queue.waiting, (is_first, next(self._numbers), message_ids))
                else:
                    log.info("channel %s: this worker's queue is full; enqueue_due enqueues %d "
                             "messages again", channel, len(message_ids))  # fmt: skip
                return
            queue.under_way += 1
        group: Sequence[UUID] | None = message_ids
        failure: BaseException | None = None
        while group is not None:
            goes_on = True
            try:
                self._delivery.deliver(group, to_the_end=False)
            except BaseException as error:  # noqa: BLE001 - raised once no group waits
                failure = failure or error
                goes_on = isinstance(error, Exception) and not isinstance(error, StoreUnavailable)
                left = 0 if goes_on else sum(len(ids) for *_, ids in queue.waiting)
                log.error(  # noqa: TRY400 - its text may quote a body
                    "channel %s: a group of %d messages failed (%s); enqueue_due enqueues %d "
                    "messages again that waited for it",
                    channel, len(group), type(error).__name__, left,
                )  # fmt: skip
            with self._lock:
                if not goes_on:
                    queue.waiting.clear()
                group = heappop(queue.waiting)[-1] if queue.waiting else None
                queue.under_way -= group is None
        if failure is not None:
            raise failure

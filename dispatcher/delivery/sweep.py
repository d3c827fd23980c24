"""The periodic maintenance that beat starts, beside ``reconcile`` (``reconciler.py``)."""

from __future__ import annotations

import logging
import math
import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from dispatcher.celery.queue import Queue, Ticket
from dispatcher.delivery.group import give_back
from dispatcher.delivery.send_log import LeftLog, SendLogs
from dispatcher.errors import QueueUnavailable, StoreUnavailable
from dispatcher.faults import fault
from dispatcher.limiters.permits import Permit, Permits
from dispatcher.message import Status
from dispatcher.settings import Settings
from dispatcher.store.maintenance import Due, StoreMaintenance
from dispatcher.store.messages import Messages
from dispatcher.store.notifications import Notifications
from dispatcher.telemetry.journal import Journal, Transition
from dispatcher.times.clock import Clock

log = logging.getLogger(__name__)

BATCH = 1_000
_MOST_BATCHES = 20
_MOST_PRUNED = 200
"""In batches a run."""
_AT_ONCE = 2
_MOST_AT_ONCE = BATCH * _MOST_BATCHES
_WHOLE_EVERY_SECONDS = 60.0
_RESUMED = timedelta(minutes=2)
_OVERLAP = timedelta(seconds=10)
"""How much of the time before its last look a duty looks at again."""
_LOGS_AT_ONCE = 200
"""How many send logs one run of ``rescue`` reads."""
_APART = timedelta(milliseconds=20)
_SPREAD = timedelta(seconds=1)
"""The time between two messages of unknown outcome, and at most between the first and the last."""
_ENDS = {
    Status.HELD: Transition.HELD,
    Status.FAILED: Transition.FAILED,
    Status.EXPIRED: Transition.EXPIRED,
}
"""The transition of a rescued message that is not tried again, by its status."""


@dataclass(kw_only=True)
class Sweep:
    """Duties of the sweep. Each works in bounded batches and returns how many messages it changed.

    Any number may run side by side. ``notifications`` is None without a status channel.
    """

    settings: Settings
    clock: Clock
    store: StoreMaintenance
    messages: Messages
    permits: Permits
    queue: Queue
    journal: Journal
    send_logs: SendLogs
    notifications: Notifications | None = None

    def __post_init__(self) -> None:
        self._enqueues, self._rescues = Looks(self.clock), Looks(self.clock)

    def enqueue_due(self) -> int:
        """Enqueue messages inside the horizon, and again those that are due and not claimed."""
        has_resumed = self.store.has_resumed(within=_RESUMED)
        return self._enqueues.run(self._enqueue_due, is_whole=has_resumed)

    def _enqueue_due(self, within: timedelta | None) -> tuple[int, bool]:
        rows = self.store.due(limit=_MOST_AT_ONCE, within=within)
        enqueued = 0
        for start in range(0, len(rows), BATCH):
            due = self.store.take_due(
                rows[start : start + BATCH], grace=self.settings.enqueue_grace
            )
            fault("enqueue_due.after_take")
            try:
                self.queue.enqueue(self._tickets(due))
            except QueueUnavailable as error:
                log.warning(
                    "could not enqueue %d messages; the next enqueue_due does: %s", len(due), error
                )
                self.messages.enqueue_again([row.message_id for row in due])
                return enqueued, False
            enqueued += len(due)
        return enqueued, len(rows) < _MOST_AT_ONCE

    def enqueue_again(self, message_ids: Sequence[UUID]) -> None:
        """Let the next ``enqueue_due`` enqueue these messages, whose tasks are lost."""
        try:
            for start in range(0, len(message_ids), BATCH):
                self.messages.enqueue_again(message_ids[start : start + BATCH])
        except StoreUnavailable as error:
            log.warning(
                "%d messages lost their tasks; enqueue_due enqueues them after enqueue_grace: %s",
                len(message_ids), error,
            )  # fmt: skip

    def _tickets(self, due: Sequence[Due]) -> list[Ticket]:
        # A message of unknown outcome may kill any worker that sends it. So each has its own task.
        # These tasks come in a random order and a little apart: the one before is done by then, the
        # one after is not claimed yet.
        share_of = self.settings.share_of
        tickets = [
            Ticket(*row[:3], False, row.is_first, row.priority, share_of(row[1], *row[6:]))
            for row in due
            if not row.is_suspect
        ]
        suspects = [row for row in due if row.is_suspect]
        random.shuffle(suspects)
        apart = min(_APART, _SPREAD / max(1, len(suspects)))
        now = self.clock.now()
        for number, row in enumerate(suspects):
            at = max(now, row.next_attempt_at) + number * apart
            tickets.append(Ticket(row.message_id, row.channel, at, True, False, row.priority))
        return tickets

    def rescue(self) -> int:
        """Free the messages whose worker died or froze; return how many.

        First those that workers of this machine had claimed and will not send, by their send logs.
        While more logs are left than one run reads, it ends no claim.
        """
        counts: list[int] = []
        are_all_read = self.send_logs.consume(
            lambda left: counts.append(self._put_back(left)), limit=_LOGS_AT_ONCE
        )
        if put_back := sum(counts):
            log.warning(
                "%d messages put back: their worker had not begun to send them, and died or could "
                "not put them back", put_back,
            )  # fmt: skip
        if not are_all_read:
            return put_back
        rescued = self._rescues.run(self._rescue)
        if rescued:
            log.warning("%d messages rescued, outcome unknown: retried, held or ended", rescued)
        return put_back + rescued

    def _put_back(self, left: LeftLog) -> int:
        rows = self.store.unbegun(left.unbegun, mark=left.mark, died=left.died)
        if not rows:
            return 0
        # First: once they are put back, the store returns them no more.
        give_back(self.permits, [Permit(*row[:4], scopes=row.scopes) for row in rows])
        fault("rescue.before_put_back")
        self.store.put_back(rows, wait=self.settings.claim_ttl, died=left.died)
        for row in rows:
            self._tell_rescued(row[0], row.channel, row.attempt, row.status, "temporary")
        return len(rows)

    def _rescue(self, within: timedelta | None) -> tuple[int, bool]:
        def rescue(limit: int) -> int:
            rescued = self.store.rescue(limit=limit, within=within)
            for message in rescued:
                self._tell_rescued(*message, "unknown")
            return len(rescued)

        done = in_batches(rescue)
        return done, done < _MOST_AT_ONCE

    def _tell_rescued(
        self, message_id: UUID, channel: str, attempt: int, status: Status, outcome: str
    ) -> None:
        tell = self.journal.tell_of
        tell(Transition.RESCUED, message_id, channel, attempt=attempt)
        if status in _ENDS:
            tell(_ENDS[status], message_id, channel, attempt=attempt, outcome=outcome)

    def catch_up(self) -> int:
        """Expire the overdue messages of channels that do not send them."""
        if not self.settings.expiring_channels:
            return 0

        expire = self.store.expire_overdue
        expired = in_batches(
            lambda limit: self.journal.tell_all(Transition.EXPIRED, expire(limit=limit))
        )
        if expired:
            log.warning("%d overdue messages expired", expired)
        return expired

    def notify(self) -> int:
        """Make status messages, due at once, for the callers who asked for them.

        The status is read from the rows: one that lasted shorter than the time between two runs
        may be skipped, the final one is reported.
        """
        notifications, channel = self.notifications, self.settings.status_channel
        if notifications is None:
            return 0

        def tell(limit: int) -> int:
            made = dict.fromkeys(notifications.tell(limit=limit), channel)
            return self.journal.tell_all(Transition.SCHEDULED, made)

        return in_batches(tell)

    def prune(self) -> int:
        """Delete what ended longer ago than the retention: messages, whole days at once; events."""
        keep = self.settings.retention
        self.store.prune_events(older_than=keep)
        try:
            days = self.store.keep_days(older_than=keep)
        except StoreUnavailable as error:
            log.warning("partitions of days not made or deleted; the next prune does: %s", error)
            days = []
        for day in days:
            log.info("deleted the messages that ended on %s", day)
        return in_batches(
            lambda limit: self.store.prune(older_than=keep, limit=limit), most=_MOST_PRUNED
        )


class Looks:
    """Lets a duty look at what became due since its last look, and once a minute at all that is.

    So a row that was due for long before it can be seen is found within the minute: its transaction
    was long, or a clock is wrong. One that leaves something is followed by a look at all.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._saw_all_at = self._whole_again_at = -math.inf

    def run(
        self, work: Callable[[timedelta | None], tuple[int, bool]], *, is_whole: bool = False
    ) -> int:
        """Return how much ``work`` did; it takes the time to look back, and says if it saw all."""
        now = self._clock.monotonic()
        is_whole = is_whole or now >= self._whole_again_at
        within = None if is_whole else timedelta(seconds=now - self._saw_all_at) + _OVERLAP
        done, saw_all = work(within)
        if saw_all:
            self._saw_all_at = now
        if is_whole or not saw_all:
            self._whole_again_at = now + _WHOLE_EVERY_SECONDS * saw_all
        return done


class Ticks:
    """Begins each duty at most twice in its interval, in one process.

    Where no thread was free for a while, many ticks come together. A duty that takes longer than
    its interval is under way twice at most: one may hang, none may pile up.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._begun_at: dict[str, float] = {}
        self._under_way: Counter[str] = Counter()

    def run(self, duty: str, every: timedelta, work: Callable[[], object]) -> bool:
        """Do a duty and return True; False where it was begun just before, or is under way."""
        with self._lock:
            now = self._clock.monotonic()
            is_early = now - self._begun_at.get(duty, -math.inf) < every.total_seconds() / 2
            if is_early or self._under_way[duty] >= _AT_ONCE:
                return False
            self._begun_at[duty] = now
            self._under_way[duty] += 1
        try:
            work()
        finally:
            with self._lock:
                self._under_way[duty] -= 1
        return True


def in_batches(work: Callable[[int], int], *, most: int = _MOST_BATCHES) -> int:
    total = 0
    for _ in range(most):
        done = work(BATCH)
        total += done
        if done < BATCH:
            break
    return total

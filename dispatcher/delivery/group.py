"""A group of claims of one channel: record outcomes, renew claims, put back what was not sent.

``Shared`` is what all tasks, senders and groups of a process share.
"""

from __future__ import annotations

import logging
import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from mmap import mmap
from typing import TYPE_CHECKING
from uuid import UUID

from dispatcher.celery.queue import Queue, Ticket
from dispatcher.delivery.send_log import ClaimLog
from dispatcher.errors import LimitersUnavailable, QueueUnavailable, StoreUnavailable
from dispatcher.faults import fault
from dispatcher.limiters import Permit, Permits
from dispatcher.settings import Settings
from dispatcher.store.claims import Claim, Claims, Failure, Success
from dispatcher.telemetry.journal import Journal, Transition
from dispatcher.times.clock import Clock

if TYPE_CHECKING:
    from dispatcher.delivery.sender_pool import SenderPool
    from dispatcher.telemetry.spans import Spans

log = logging.getLogger(__name__)

StopFlag = bytearray | mmap
NO_WAIT = timedelta(0)
_RECORD_EVERY_SECONDS = 0.05
_RECORD_AGAIN_SECONDS = 0.2
_RECORD_FOR_SECONDS = 120.0
"""How long at least to try to record outcomes while the store is away."""
_LASTING_AFTER_SECONDS = 0.05
"""How long all sends of a group have begun before its task stops waiting for them."""
_RENEW_AGAIN_SECONDS = 1.0
LONGEST_CLAIM_SECONDS = 600.0
"""After this time the claim of a send that does not end is not renewed: its message is rescued."""


@dataclass(slots=True, kw_only=True)
class Shared:
    """What the tasks, senders and groups of a process share.

    ``jitter`` gives random numbers from 0 to 1 for the wait before a retry. ``stop_flag`` is one
    byte, which processes may share.
    """

    settings: Settings
    clock: Clock
    claims: Claims
    permits: Permits
    queue: Queue
    journal: Journal
    spans: Spans | None = None
    jitter: Callable[[], float] = random.random
    stop_flag: StopFlag = field(default_factory=lambda: bytearray(1))

    @property
    def is_stopping(self) -> bool:
        return self.stop_flag[0] != 0

    def put_back(
        self,
        unsent: Sequence[tuple[Claim, timedelta]],
        send_log: ClaimLog,
        *,
        enqueue_in: timedelta | None = None,
    ) -> bool:
        """Put back messages that were not sent, each with the wait until it is due, and its permit.

        Maintenance enqueues them ``enqueue_in`` after that, by default as soon as the horizon
        allows. Return whether the store has put them back; else they stay claimed until ``rescue``,
        which reads the send log. Permits are given back also where none was granted: a rebuild may
        have restored some for these claims.
        """
        is_stored = True
        try:
            lead = -self.settings.horizon if enqueue_in is None else enqueue_in
            self.claims.put_back(unsent, enqueue_in=lead)
        except StoreUnavailable as error:
            log.warning(
                "could not put back %d messages, they will be rescued: %s", len(unsent), error
            )
            send_log.keep()
            is_stored = False
        fault("put_back.after_row")
        give_back(self.permits, [permit_of(claim) for claim, _ in unsent])
        return is_stored


@dataclass(frozen=True, slots=True)
class EndedSend:
    """A send that came to an end, at a time of the monotonic clock. ``record`` is to be recorded.

    It began ``late_by`` seconds after the promised time of its message. ``answered`` is False where
    it failed and took so long that its destination gave no answer in time.
    """

    claim: Claim
    record: Success | Failure
    at: float
    late_by: float = 0.0
    answered: bool = True


@dataclass(frozen=True, slots=True)
class UnsentClaim:
    """A claim whose message was not sent, and when to come back."""

    claim: Claim
    wait: timedelta = NO_WAIT


@dataclass(frozen=True, slots=True)
class BrokenSend:
    """A claim whose send ended in what no transport should raise. Its outcome is unknown."""

    claim: Claim
    error: BaseException


Report = EndedSend | UnsentClaim | BrokenSend


class Group:
    """Messages of one channel that were claimed together, until each is recorded or put back.

    One thread at a time leads it: the task's, then that of :class:`LastingSends`. ``waiting`` are
    the claims without a permit yet, ``ask_at`` is when to ask for it, ``sent`` counts the
    successes, ``error`` is the error that ended the group.

    Senders read of which messages a send may begin, and until when: ``ends_at`` is when the claims
    end, ``lost`` are those that another process has by now, ``is_over`` allows none,
    ``closed_until``, guarded by ``lock``, is when the provider wants to be asked again. They add to
    ``reports`` and set ``all_reported`` with the last one. ``left`` counts the messages that no
    sender has taken, ``unreported`` those without a report; both are the sender pool's. Times are
    of the monotonic clock.
    """

    def __init__(
        self,
        shared: Shared,
        pool: SenderPool,
        claims: Sequence[Claim],
        *,
        claimed_at: float,
        received_at: float,
        send_log: ClaimLog,
    ) -> None:
        self._shared = shared
        self._pool = pool
        self._ttl = shared.settings.claim_ttl.total_seconds()
        self._timeout = shared.settings.transport_timeout.total_seconds()
        self.waiting = list(claims)
        self.ask_at = shared.clock.monotonic()
        self.sent = 0
        self.error: BaseException | None = None
        self.claimed_at = claimed_at
        self.received_at = received_at
        self.ends_at = claimed_at + self._ttl
        self.send_log = send_log
        self.lost: set[UUID] = set()
        self.is_over = False
        self.closed_until = 0.0
        self.left = 0
        self.unreported = 0
        self.reports: deque[Report] = deque()
        self.all_reported = threading.Event()
        self.lock = threading.Lock()
        self._sending: dict[UUID, Claim] = {}
        self._ended: list[EndedSend] = []
        self._is_broken_off = False
        self._all_begun_at = claimed_at
        self._record_at = claimed_at + _RECORD_EVERY_SECONDS
        self._record_until = 0.0
        self._is_store_away = False
        self._renew_at = 0.0
        send_log.share()

    @property
    def time_left(self) -> timedelta:
        return timedelta(seconds=max(0.0, self.ends_at - self._shared.clock.monotonic()))

    def send(self, permitted: Sequence[Claim]) -> None:
        self._sending |= {claim.message.id: claim for claim in permitted}
        self._pool.add(self, [(self.received_at + claim.due_in, claim) for claim in permitted])

    def step(self) -> bool:
        """Do what is due now; return whether more will be.

        After an error no further send of the group begins, messages that were not sent are put
        back, and sends under way are waited for and recorded. A second error is raised at once.
        """
        try:
            self._collect()
            self._withdraw(only_silent=True)
            if (self.error or self._shared.is_stopping) and not self._is_broken_off:
                self._break_off()
            self._renew()
            if self.ends_at - self._shared.clock.monotonic() < self._timeout:
                # No sender can begin it any more, and rescued its outcome would be unknown.
                self._withdraw()
        except BaseException as error:  # noqa: BLE001 - kept in self.error, or raised at once
            self.fail(error)
        goes_on = bool(self.waiting or self._sending or self._ended)
        if not goes_on:
            self.send_log.close()
        return goes_on

    def pause(self) -> None:
        clock = self._shared.clock
        left = max(0.0, self.ask_at - clock.monotonic())
        if self._sending:
            longest = _RECORD_EVERY_SECONDS
            self.all_reported.wait(min(longest, left) if self.waiting else longest)
        elif self.waiting:
            clock.sleep(left)
            self.ask_at = clock.monotonic()
        elif self._ended:
            clock.sleep(_RECORD_AGAIN_SECONDS)

    def has_lasting_sends(self) -> bool:
        now = self._shared.clock.monotonic()
        if self.waiting or self.left or not self._sending:
            self._all_begun_at = now
        return now - self._all_begun_at >= _LASTING_AFTER_SECONDS

    def fail(self, error: BaseException) -> None:
        """Break the group off because of an error. Raises it where that was done before."""
        if self._is_broken_off:
            raise error
        self.error = self.error or error
        self.send_log.keep()
        self._break_off()

    def put_back(
        self, unsent: Sequence[tuple[Claim, timedelta]], *, enqueue_in: timedelta | None = None
    ) -> bool:
        return self._shared.put_back(unsent, self.send_log, enqueue_in=enqueue_in)

    def snooze(self, refused: Sequence[tuple[Claim, timedelta]]) -> None:
        """Put back the messages that got no permit, each with the wait until it is due again.

        Those that are due again before the sweep runs are enqueued.
        """
        settings = self._shared.settings
        limit = settings.sweep_interval * 2
        soon = [(claim, wait) for claim, wait in refused if wait <= limit]
        later = [(claim, wait) for claim, wait in refused if wait > limit]
        if later and self.put_back(later):
            self._tell_snoozed(later)
        if soon and self.put_back(soon, enqueue_in=settings.enqueue_grace):
            self._tell_snoozed(soon)
            self._enqueue(soon)

    def put_waiting_back(self, wait: timedelta = NO_WAIT) -> None:
        waiting, self.waiting = self.waiting, []
        if waiting:
            self.put_back([(claim, wait) for claim in waiting])

    def _collect(self) -> None:
        self.all_reported.clear()
        unsent = []
        has_ended = False
        while self.reports:
            report = self.reports.popleft()
            del self._sending[report.claim.message.id]
            if isinstance(report, EndedSend):
                has_ended = True
                self._ended.append(report)
                self.sent += isinstance(report.record, Success)
            elif isinstance(report, BrokenSend):
                self.error = report.error
                self.send_log.keep()
            else:
                unsent.append((report.claim, report.wait))
        if unsent:
            self.put_back(unsent)
        now = self._shared.clock.monotonic()
        if has_ended:
            # While the store is away no rescue ends these claims, and the token guards the record.
            patience = 0.0 if self._shared.is_stopping else _RECORD_FOR_SECONDS
            self._record_until = max(self.ends_at, now + patience)
        is_time = now >= self._record_at
        is_last = not self._sending and not self._is_store_away
        if self._ended and (is_time or is_last):
            self._ended = self._record(self._ended)
            self._is_store_away = bool(self._ended)
            # The thread does not wait for the store: it may have other groups.
            pause = _RECORD_AGAIN_SECONDS if self._is_store_away else _RECORD_EVERY_SECONDS
            self._record_at = self._shared.clock.monotonic() + pause

    def _break_off(self) -> None:
        self._is_broken_off = self.is_over = True
        self.put_waiting_back()
        self._withdraw()

    def _withdraw(self, *, only_silent: bool = False) -> None:
        unsent = self._pool.withdraw(self, only_silent=only_silent)
        for claim, _ in unsent:
            del self._sending[claim.message.id]
        if unsent:
            self.put_back(unsent)

    def _renew(self) -> None:
        """Renew the claims that are sent or wait for permits, when half of their time is over.

        Earlier when no send could begin any more by then.
        """
        now = self._shared.clock.monotonic()
        left = self.ends_at - now
        is_time = 0 < left < max(self._ttl / 2, self._timeout + _RENEW_AGAIN_SECONDS)
        too_long = now - self.claimed_at > LONGEST_CLAIM_SECONDS
        if not self._sending or not is_time or too_long or now < self._renew_at:
            return
        held = [*self._sending.values(), *self.waiting]
        try:
            # Permits first: nothing may be sent later than they count. Messages that wait have
            # none, or one that a rebuild has restored and no limit has judged.
            self._shared.permits.extend(
                [permit_of(claim) for claim in self._sending.values()],
                within=self._shared.settings.claim_ttl,
            )
            fault("renew.after_permits")
            ours = self._shared.claims.renew(held)
            fault("renew.after_claims")
        except (LimitersUnavailable, StoreUnavailable) as error:
            log.warning("could not renew %d claims, tried again in a second: %s", len(held), error)
            self._renew_at = now + _RENEW_AGAIN_SECONDS
            return
        self.lost |= {claim.message.id for claim in held} - ours
        self.ends_at = now + self._ttl

    def _record(self, ended: list[EndedSend]) -> list[EndedSend]:
        """Record outcomes and settle their permits; return those to be recorded by a later try."""
        try:
            self._store(ended)
        except StoreUnavailable as error:
            if error.refused and len(ended) > 1:
                # One by one: an outcome that the store refuses affects no other.
                return [left for send in ended for left in self._record([send])]
            if not error.refused and self._shared.clock.monotonic() <= self._record_until:
                return ended
            if len(ended) == 1 and (plainer := _with_plainer_text(ended[0])) is not None:
                log.warning(
                    "message %s: the database refused the text of its outcome, recorded without "
                    "what it cannot store: %s", ended[0].claim.message.id, error,
                )  # fmt: skip
                return self._record([plainer])
            text = "could not record %d outcomes, their messages will be rescued: %s"
            log.error(text, len(ended), error)  # noqa: TRY400 - the traceback would say no more
        self._shared.journal.attempted(
            (send.claim.message, send.record.outcome.value, send.late_by) for send in ended
        )
        fault("deliver.after_record")
        self._settle_permits(ended)
        return []

    def _store(self, ended: Sequence[EndedSend]) -> None:
        records = [send.record for send in ended]
        successes = [record for record in records if isinstance(record, Success)]
        failures = [record for record in records if isinstance(record, Failure)]
        enqueue_in = -self._shared.settings.horizon
        expired = self._shared.claims.record(successes, failures, enqueue_in=enqueue_in)
        tell = self._shared.journal.tell
        for success in successes:
            message = success.claim.message
            tell(Transition.SENT, message, attempt=message.attempt_count)
        for failure in failures:
            message = failure.claim.message
            facts = {"attempt": message.attempt_count, "outcome": failure.outcome.value}
            if failure.is_held:
                tell(Transition.HELD, message, **facts)
            elif failure.wait is None:
                tell(Transition.FAILED, message, **facts)
            elif message.id in expired:
                tell(Transition.EXPIRED, message, **facts)
            else:
                tell(Transition.RETRIED, message, **facts, wait_seconds=failure.wait)

    def _settle_permits(self, ended: Sequence[EndedSend]) -> None:
        now = self._shared.clock.monotonic()
        used = [(permit_of(send.claim), timedelta(seconds=now - send.at)) for send in ended]
        try:
            self._shared.permits.settle(used)
        except LimitersUnavailable as error:
            log.warning(
                "could not settle %d permits, they stay counted for longer: %s", len(used), error
            )

    def _tell_snoozed(self, snoozed: Sequence[tuple[Claim, timedelta]]) -> None:
        for claim, wait in snoozed:
            self._shared.journal.tell(Transition.SNOOZED, claim.message, wait_seconds=wait)

    def _enqueue(self, snoozed: Sequence[tuple[Claim, timedelta]]) -> None:
        now = self._shared.clock.now()
        tickets = [
            Ticket(claim.message.id, claim.message.channel, now + wait, is_first=False)
            for claim, wait in snoozed
        ]
        try:
            self._shared.queue.enqueue(tickets)
        except QueueUnavailable as error:
            log.warning("could not enqueue %d messages, enqueue_due will: %s", len(snoozed), error)


def _with_plainer_text(ended: EndedSend) -> EndedSend | None:
    """Return it with its text in ASCII, without a text where it was; None where it had none."""
    record = ended.record
    text = record.receipt if isinstance(record, Success) else record.error
    if not text:
        return None
    text = "" if text.isascii() else text.encode("ascii", "replace").decode()
    if isinstance(record, Success):
        return replace(ended, record=replace(record, receipt=text or None))
    return replace(ended, record=replace(record, error=text))


class LastingSends:
    """Finishes groups for whose sends no task waits any more, on one thread.

    The thread is there while there is a group. Each has a send under way, or a message that a
    sender has taken, so there are never more than the process has senders.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._groups: list[Group] = []
        self._none = threading.Event()
        self._none.set()

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
            self._none.clear()
        return True

    def finish(self, timeout: float | None = None) -> bool:
        """Wait until none is left; return whether that is so.

        ``timeout`` in seconds, None for as long as any claim is renewed.
        """
        return self._none.wait(LONGEST_CLAIM_SECONDS if timeout is None else timeout)

    def _run(self) -> None:
        while True:
            finished = [group for group in list(self._groups) if not _goes_on(group)]
            with self._lock:
                self._groups = [group for group in self._groups if group not in finished]
                if not self._groups:
                    self._none.set()
                    return
            if not finished:
                self._none.wait(_RECORD_EVERY_SECONDS)  # not set while this thread runs


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
        log.error("could not record a group (%s); its messages will be rescued", kind)
    return False


def give_back(permits: Permits, unused: Sequence[Permit]) -> None:
    try:
        permits.give_back(unused)
    except LimitersUnavailable as error:
        log.warning(
            "could not give back %d unused permits, they stay counted for longer: %s",
            len(unused), error,
        )  # fmt: skip


def permit_of(claim: Claim) -> Permit:
    message = claim.message
    return Permit(message.id, claim.token, message.scope, message.channel)

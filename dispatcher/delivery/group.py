"""Deliver: claim a group, ask for permits, send, record, put back what was not sent."""

from __future__ import annotations

import logging
import random
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from mmap import mmap
from types import MappingProxyType
from typing import TYPE_CHECKING
from uuid import UUID

from dispatcher.celery.queue import EARLY, Queue, Ticket
from dispatcher.delivery.send_log import ClaimLog, SendLogs
from dispatcher.delivery.sender_pool import NO_WAIT, Destinations, SenderPool
from dispatcher.delivery.task import RECORD_EVERY_SECONDS, LastingSends
from dispatcher.errors import (
    InvalidValue,
    LimitersUnavailable,
    PerhapsSent,
    PermanentFailure,
    QueueUnavailable,
    StoreUnavailable,
    TemporaryFailure,
)
from dispatcher.faults import fault
from dispatcher.limiters.permits import CLOSED_BY_PROVIDER, OwnLimits, Permit, Permits
from dispatcher.message import Outcome, storable_text
from dispatcher.scope import OWN_SCOPE
from dispatcher.settings import Settings
from dispatcher.store.claims import Claim, Claims, Failure, Success
from dispatcher.store.schema import MAX_DELAYED_BY
from dispatcher.telemetry.journal import Journal, Transition
from dispatcher.times.clock import Clock
from dispatcher.times.quiet_hours import read_hours
from dispatcher.times.send_time import from_ms, to_ms
from dispatcher.times.zones import known_zone
from dispatcher.transports import Transport

if TYPE_CHECKING:
    from dispatcher.telemetry.spans import Spans

log = logging.getLogger(__name__)

StopFlag = bytearray | mmap
_LONGEST_EARLY = timedelta(seconds=1)
"""Longest wait for its instant that a worker spends holding a message."""
_RECORD_AGAIN_SECONDS = 0.2
_RECORD_FOR_SECONDS = 120.0
"""How long at least to try to record outcomes while the store is away."""
_LASTING_AFTER_SECONDS = 0.05
"""How long all sends of a group have begun before its task stops waiting for them."""
_RENEW_AGAIN_SECONDS = 1.0
_ASKING_AGAIN_SECONDS = 0.03
_LONGEST_ASKING_SECONDS = 0.25
"""Longest wait for permits that a worker spends holding messages."""
_LIMITERS_PAUSE = timedelta(seconds=1)
_LONGEST_WAIT = timedelta(days=366)
_IN_TIME = 0.5
"""Share of the timeout after which a send that failed had no answer in time."""
Waits = Sequence[tuple[Claim, timedelta]]
Limits = Mapping[UUID, str]
"""By message, the limit that makes it wait."""
_NO_LIMITS: Limits = MappingProxyType({})
_LONGEST_CLAIM_SECONDS = 600.0
"""After this time the claim of a send that does not end is not renewed: its message is rescued."""


@dataclass(kw_only=True)
class Delivery:
    """Claims, acquires permits, sends and records.

    A claim makes repeated tasks harmless, a permit guards the limits, the rest of the claim is
    checked right before each send, and the record is guarded by the claim's token. No send begins
    once the byte of ``stop_flag`` is set. ``jitter`` gives random numbers from 0 to 1, for waits.
    """

    settings: Settings
    clock: Clock
    claims: Claims
    permits: Permits
    queue: Queue
    journal: Journal
    transports: Mapping[str, Transport]
    send_logs: SendLogs
    spans: Spans | None = None
    jitter: Callable[[], float] = random.random
    stop_flag: StopFlag = field(default_factory=lambda: bytearray(1))

    def __post_init__(self) -> None:
        self.pools = {
            name: self._pool(name, transport) for name, transport in self.transports.items()
        }
        # Groups are due within coalesce; the task of one comes a little before the first.
        self._ahead = self.settings.coalesce + 2 * EARLY
        self._lasting = LastingSends()

    def deliver(self, message_ids: Sequence[UUID], *, to_the_end: bool = True) -> int:
        """Deliver what is due of these messages; return how many were sent with success.

        When it returns, every send has ended. Without ``to_the_end`` it returns once each send has
        begun or its message is put back; sends that last are recorded later. Messages that are not
        scheduled any more are skipped: their task was a repeat. What a stop kept from being claimed
        is enqueued by the next sweep. Raises StoreUnavailable when nothing can be claimed.
        """
        sent, ids = 0, list(message_ids)
        while ids and not self.stop_flag[0]:
            claimed_at = self.clock.monotonic()
            send_log = self.send_logs.open(ids)
            try:
                claims = self.claims.claim(ids, ahead=self._ahead, mark=send_log.mark)
                fault("deliver.after_claim")
            except BaseException:
                send_log.is_kept = True
                send_log.close()
                raise
            group = Group(self, claims, claimed_at=claimed_at, send_log=send_log)
            self._lead(group, to_the_end=to_the_end)
            sent += group.sent
            ids = self._wait_for_early(ids, claims) if len(claims) < len(ids) else []
        if ids:
            self.claims.enqueue_when_due(ids)
        return sent

    def finish(self, timeout: float = _LONGEST_CLAIM_SECONDS) -> bool:
        """Wait for the sends that no task waits for; return whether all have ended."""
        return self._lasting.none.wait(timeout)

    def close(self) -> None:
        for pool in self.pools.values():
            pool.close()

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

    def _wait_for_early(self, message_ids: Sequence[UUID], claims: Sequence[Claim]) -> list[UUID]:
        claimed = {claim.message.id for claim in claims}
        unclaimed = self.claims.unclaimed([id_ for id_ in message_ids if id_ not in claimed])
        self.journal.tell_all(Transition.EXPIRED, unclaimed.expired)
        self.journal.tell_all(Transition.CANCELLED, unclaimed.cancelled)
        soon = {id_: wait for id_, wait in unclaimed.waits.items() if wait <= _LONGEST_EARLY}
        if len(soon) < len(unclaimed.waits):
            self.claims.enqueue_when_due([id_ for id_ in unclaimed.waits if id_ not in soon])
        if soon:
            pause = min(max(soon.values()) - self._ahead, min(soon.values()) - EARLY)
            # A message that is due already and was not claimed is paused. The least wait keeps
            # this loop from asking without a break until the message is resumed.
            self.clock.sleep(max(EARLY, pause).total_seconds())
        return list(soon)

    def _pool(self, name: str, transport: Transport) -> SenderPool:
        """Where the transport names destinations, one leaves a quarter of the senders to others."""
        channel = self.settings.channels[name]
        name_of = getattr(transport, "destination", None)
        destinations = None
        if callable(name_of):
            destinations = Destinations(
                name_of,
                share=max(1, channel.senders - max(1, channel.senders // 4)),
                timeout=self.settings.transport_timeout.total_seconds(),
                longest=channel.backoff_longest,
                clock=self.clock,
            )
        send = partial(Group.send, transport=transport)
        return SenderPool(
            f"send {name}", send, self.clock, most=channel.senders, destinations=destinations
        )


@dataclass(frozen=True, slots=True)
class EndedSend:
    """``at`` is of the monotonic clock; ``late_by`` is in seconds, after the promised time."""

    record: Success | Failure
    at: float
    late_by: float
    in_time: bool


Report = EndedSend | timedelta | None
"""What a sender reports of a claim: an ended send; the wait of an unsent message until it comes
back; or None for an error that no transport should raise, which leaves the outcome unknown."""


class Group:
    """Messages that were claimed together, until each is recorded or put back.

    One thread at a time leads it: the task's, then that of :class:`LastingSends`. Senders
    :meth:`send` the claims that they take. Times are of the monotonic clock.
    """

    def __init__(
        self, delivery: Delivery, claims: Sequence[Claim], *, claimed_at: float, send_log: ClaimLog
    ) -> None:
        self._delivery = delivery
        self._ttl = delivery.settings.claim_ttl.total_seconds()
        self._timeout = delivery.settings.transport_timeout.total_seconds()
        self.sent = 0
        self.error: BaseException | None = None
        self._claimed_at = claimed_at
        self._received_at = delivery.clock.monotonic()
        self._ends_at = claimed_at + self._ttl
        self._send_log = send_log
        self._waiting = list(claims)
        """Claims without a permit yet."""
        self._ask_at = self._received_at
        self._ask_until = self._received_at + _LONGEST_ASKING_SECONDS
        self._own_limits: OwnLimits = {}
        self._sending: dict[UUID, Claim] = {}
        """Claims with a permit that senders have and have not reported."""
        self._begun: set[UUID] = set()
        self._closed_until: dict[str, float] = {}
        """Until when a provider closed a channel, by the monotonic clock."""
        self._lost: set[UUID] = set()
        """Messages that another process has claimed since."""
        self._reports: deque[tuple[Claim, Report]] = deque()
        self._all_reported = threading.Event()
        self._ended: list[EndedSend] = []
        self._is_broken_off = False
        self._all_begun_at = claimed_at
        self._record_at = claimed_at + RECORD_EVERY_SECONDS
        self._record_until = 0.0
        self._is_store_away = False
        self._renew_at = 0.0

    # Called by senders.

    def send(self, claim: Claim, transport: Transport) -> bool | None:
        """Send a message if it still may be sent, and note what came of it.

        Return whether its destination answered in time, None where nothing was sent. After anything
        but an ``Exception`` of the transport no other message of the group is sent.
        """
        report: Report = None
        try:
            report = self._try_send(claim, transport)
        except BaseException as error:  # noqa: BLE001 - the thread that leads the group raises it
            self.error = self.error or error
            self._send_log.is_kept = True
        self._reports.append((claim, report))
        if len(self._reports) >= len(self._sending):
            self._all_reported.set()
        return report.in_time if isinstance(report, EndedSend) else None

    def _try_send(self, claim: Claim, transport: Transport) -> EndedSend | timedelta:
        clock = self._delivery.clock
        fault("deliver.before_send")
        wait = self._refusal(claim, clock.monotonic())
        if wait is not None:
            return wait
        if not self._send_log.begin(claim.message.id):
            return NO_WAIT
        self._begun.add(claim.message.id)
        fault("deliver.after_begin")
        now = clock.monotonic()
        wait = self._refusal(claim, now)  # the note may have waited for a slow disk
        if wait is not None:
            return wait
        record = self._call(transport, claim)
        fault("deliver.after_send")
        # Counted at its end: a send is never later than that, so never counted too early.
        ended_at = clock.monotonic()
        late_by = now - self._received_at + claim.late_by
        in_time = isinstance(record, Success) or ended_at - now < self._timeout * _IN_TIME
        return EndedSend(record, ended_at, late_by, in_time)

    def _refusal(self, claim: Claim, now: float) -> timedelta | None:
        """Return when a message that must not be sent comes back; None for one that may be sent."""
        is_over = self.error is not None or self._delivery.stop_flag[0]
        if is_over or claim.message.id in self._lost or self._ends_at - now < self._timeout:
            return NO_WAIT
        if claim.expires_in is not None and now - self._claimed_at >= claim.expires_in:
            return NO_WAIT
        closed_for = self._closed_until.get(claim.message.channel, now) - now
        return timedelta(seconds=closed_for) if closed_for > 0 else None

    def _call(self, transport: Transport, claim: Claim) -> Success | Failure:
        spans = self._delivery.spans
        record: Success | Failure
        with nullcontext() if spans is None else spans.delivering(claim.message) as came_to:
            try:
                receipt = transport.send(claim.message)
            except Exception as error:  # noqa: BLE001 - a transport may raise anything
                record = self._failure(claim, error)
            else:
                record = Success(claim, None if receipt is None else storable_text(receipt))
            if came_to is not None:
                came_to(record.outcome, record.error_type if isinstance(record, Failure) else None)
        return record

    def _failure(self, claim: Claim, error: Exception) -> Failure:
        message, kind = claim.message, type(error).__name__
        text = storable_text(f"{kind}: {storable_text(error)}")
        outcome, asked, counts = Outcome.UNKNOWN, NO_WAIT, True
        match error:
            case PermanentFailure():
                return Failure(claim, Outcome.PERMANENT, text, None, kind)
            case TemporaryFailure():
                outcome = Outcome.TEMPORARY
                if isinstance(error.retry_after, timedelta):
                    asked = min(max(error.retry_after, NO_WAIT), _LONGEST_WAIT)
                if error.closes_channel and asked:
                    # It says nothing of the message, so it uses up none of its attempts.
                    counts = False
                    self._close(message.channel, asked)
            case PerhapsSent():
                ...
            case _:  # it may be with the provider: a line that broke, say
                log.warning(
                    "message %s: its transport raised %s, none of TemporaryFailure, "
                    "PermanentFailure and PerhapsSent; its outcome is unknown", message.id, kind,
                )  # fmt: skip
        wait = None
        if message.attempt_count < message.max_attempts or not counts:
            channel = self._delivery.settings.channels[message.channel]
            wait = asked + backoff(
                message.attempt_count,
                base=channel.backoff_base,
                longest=channel.backoff_longest,
                jitter=self._delivery.jitter(),
            )
        return Failure(claim, outcome, text, wait, kind, counts)

    def _close(self, channel: str, wait: timedelta) -> None:
        # Redis has the later end, also where another sender has just noted that here.
        until = self._delivery.clock.monotonic() + wait.total_seconds()
        self._closed_until[channel] = max(until, self._closed_until.get(channel, until))
        try:
            self._delivery.permits.close(channel, wait)
        except LimitersUnavailable as error:
            log.warning("channel %s not closed: other workers may send on it: %s", channel, error)

    # Called by the thread that leads.

    def put_unfit_back(self) -> None:
        """Put back what is in its quiet hours, or on a channel that another worker may know."""
        pools, settings = self._delivery.pools, self._delivery.settings
        known = [claim for claim in self._waiting if claim.message.channel in pools]
        unknown = [claim for claim in self._waiting if claim.message.channel not in pools]
        quiet = [(claim, wait) for claim in known if (wait := _quiet_wait(claim, settings))]
        put_back = {claim.message.id for claim, _ in quiet}
        self._waiting = [claim for claim in known if claim.message.id not in put_back]
        if unknown:
            log.error(
                "channels %s missing in this worker's settings: %d messages put back; add the "
                "channels", sorted({claim.message.channel for claim in unknown}), len(unknown),
            )  # fmt: skip
            self.put_back([(claim, settings.claim_ttl) for claim in unknown])
        if quiet:
            self._snooze(quiet)

    def step(self) -> bool:
        """Do what is due now; return whether more will be.

        After an error no further send of the group begins, messages that were not sent are put
        back, and sends under way are waited for and recorded. A second error is raised at once.
        """
        try:
            self._withdraw_limited()
            self._ask()
            self._collect()
            self._withdraw(only_silent=True)
            if (self.error or self._delivery.stop_flag[0]) and not self._is_broken_off:
                self._break_off()
            self._renew()
            if self._ends_at - self._delivery.clock.monotonic() < self._timeout:
                # No sender can begin it any more, and rescued its outcome would be unknown.
                self._withdraw()
        except BaseException as error:  # noqa: BLE001 - kept in self.error, or raised at once
            self.fail(error)
        goes_on = bool(self._waiting or self._sending or self._ended)
        if not goes_on:
            self._send_log.close()
        return goes_on

    def pause(self) -> None:
        clock = self._delivery.clock
        left = max(0.0, self._ask_at - clock.monotonic())
        if self._sending:
            longest = RECORD_EVERY_SECONDS
            self._all_reported.wait(min(longest, left) if self._waiting else longest)
        elif self._waiting:
            clock.sleep(left)
            self._ask_at = clock.monotonic()
        elif self._ended:
            clock.sleep(_RECORD_AGAIN_SECONDS)

    def has_lasting_sends(self) -> bool:
        now = self._delivery.clock.monotonic()
        if self._waiting or not self._sending or not self._sending.keys() <= self._begun:
            self._all_begun_at = now
        return now - self._all_begun_at >= _LASTING_AFTER_SECONDS

    def fail(self, error: BaseException) -> None:
        """Break the group off. Raises the error where that was done before."""
        if self._is_broken_off:
            raise error
        self.error = self.error or error
        self._send_log.is_kept = True
        self._break_off()

    def put_back(
        self, unsent: Waits, *, enqueue_in: timedelta | None = None, limits: Limits = _NO_LIMITS
    ) -> bool:
        """Put back messages that were not sent, each with the wait until it is due, and its permit.

        Maintenance enqueues them ``enqueue_in`` after that, by default as soon as the horizon
        allows. Return whether the store has put them back; else ``rescue`` does, by the send log.
        Permits are given back also where none was granted: a rebuild may have restored some.
        """
        delivery, delays = self._delivery, None
        told = self._untold(unsent, limits)
        try:
            lead = -delivery.settings.horizon if enqueue_in is None else enqueue_in
            delays = delivery.claims.put_back(unsent, enqueue_in=lead, delayed_by=told)
        except StoreUnavailable as error:
            log.warning("could not put back %d messages; rescue does: %s", len(unsent), error)
            self._send_log.is_kept = True
        fault("put_back.after_row")
        give_back(delivery.permits, [permit_of(claim) for claim, _ in unsent])
        if delays is None:
            return False
        now, journal = delivery.clock.now(), delivery.journal
        for claim, wait in unsent:
            if (id_ := claim.message.id) in delays.told:
                journal.tell(Transition.DELAYED, claim.message, limit=told[id_], due_at=now + wait)
        reports = dict.fromkeys(delays.reports, delivery.settings.status_channel)
        journal.tell_all(Transition.SCHEDULED, reports)
        return True

    def _untold(self, unsent: Waits, limits: Limits) -> dict[UUID, str]:
        """Return the limits of those messages whose delay is long, and was not told yet."""
        after = self._delivery.settings.tell_delay_after
        if after is None:
            return {}
        return {
            claim.message.id: limits[claim.message.id][:MAX_DELAYED_BY]
            for claim, wait in unsent
            if claim.message.id in limits
            and claim.message.delayed_by is None
            and _held_for(claim, wait) > after
        }

    def _snooze(self, refused: Waits, limits: Limits = _NO_LIMITS) -> None:
        """Put messages back that come again, and enqueue those that do so soon."""
        delivery = self._delivery
        limit, grace = delivery.settings.sweep_interval * 2, delivery.settings.enqueue_grace
        soon = [(claim, wait) for claim, wait in refused if wait <= limit]
        later = [(claim, wait) for claim, wait in refused if wait > limit]
        for unsent, enqueue_in in ((later, None), (soon, grace)):
            if not unsent or not self.put_back(unsent, enqueue_in=enqueue_in, limits=limits):
                continue
            for claim, wait in unsent:
                delivery.journal.tell(Transition.SNOOZED, claim.message, wait_seconds=wait)
            if unsent is soon:
                self._enqueue(soon)

    def _ask(self) -> None:
        delivery, claims = self._delivery, self._waiting
        now = delivery.clock.monotonic()
        if not claims or delivery.stop_flag[0] or now < self._ask_at:
            return
        time_left = timedelta(seconds=max(0.0, self._ends_at - now))
        try:
            permits = [permit_of(claim, delivery.settings) for claim in claims]
            answers = delivery.permits.acquire(permits, within=time_left)
        except LimitersUnavailable as error:
            log.warning("no permits for %d messages, put back for a second: %s", len(claims), error)
            self._put_waiting_back(_LIMITERS_PAUSE)
            return
        fault("deliver.after_permits")
        permitted = defaultdict(list)
        refused, self._waiting, turns = [], [], []
        limits: dict[UUID, str] = {}
        for claim, answer in zip(claims, answers, strict=True):
            comes_at = now + answer.retry_after.total_seconds()
            if answer.allowed:
                self._sending[claim.message.id] = claim
                permitted[claim.message.channel].append((self._received_at + claim.due_in, claim))
            elif comes_at <= self._ask_until:
                self._waiting.append(claim)
                turns.append(comes_at)
            else:
                refused.append((claim, answer.retry_after))
                limits[claim.message.id] = answer.limit
        if turns:  # a message that comes late loses its turn to others
            self._ask_at = min(max(turns), min(turns) + _ASKING_AGAIN_SECONDS)
        for channel, due in permitted.items():
            delivery.pools[channel].add(self, due)
        if refused:
            self._snooze(refused, limits)

    def _put_waiting_back(self, wait: timedelta = NO_WAIT) -> None:
        waiting, self._waiting = self._waiting, []
        if waiting:
            self.put_back([(claim, wait) for claim in waiting])

    def _collect(self) -> None:
        self._all_reported.clear()
        unsent = []
        has_ended = False
        while self._reports:
            claim, report = self._reports.popleft()
            del self._sending[claim.message.id]
            if isinstance(report, EndedSend):
                has_ended = True
                self._ended.append(report)
                self.sent += isinstance(report.record, Success)
            elif isinstance(report, timedelta):
                unsent.append((claim, report))
        if unsent:
            closed = {claim.message.id: CLOSED_BY_PROVIDER for claim, wait in unsent if wait}
            self.put_back(unsent, limits=closed)
        now = self._delivery.clock.monotonic()
        if has_ended:
            # While the store is away no rescue ends these claims, and the token guards the record.
            patience = 0.0 if self._delivery.stop_flag[0] else _RECORD_FOR_SECONDS
            self._record_until = max(self._ends_at, now + patience)
        is_time = now >= self._record_at
        is_last = not self._sending and not self._is_store_away
        if self._ended and (is_time or is_last):
            self._ended = self._record(self._ended)
            self._is_store_away = bool(self._ended)
            # The thread does not wait for the store: it may have other groups.
            pause = _RECORD_AGAIN_SECONDS if self._is_store_away else RECORD_EVERY_SECONDS
            self._record_at = self._delivery.clock.monotonic() + pause

    def _break_off(self) -> None:
        self._is_broken_off = True
        self._put_waiting_back()
        self._withdraw()

    def _withdraw(self, *, only_silent: bool = False) -> None:
        for name in {claim.message.channel for claim in self._sending.values()}:
            unsent = self._delivery.pools[name].withdraw(self, only_silent=only_silent)
            for claim, _ in unsent:
                del self._sending[claim.message.id]
            if unsent:
                self.put_back(unsent)

    def _withdraw_limited(self) -> None:
        """Withdraw what got limits since its permit, which does not count against them."""
        with suppress(LimitersUnavailable):
            before, self._own_limits = self._own_limits, self._delivery.permits.own_limits()
            own = self._own_limits
            if own is not before and any(
                own.get(named) != before.get(named)
                for permit in map(permit_of, self._sending.values())
                for named in ((OWN_SCOPE, permit.scope), *(permit.scopes or {}).items())
            ):
                self._withdraw()

    def _renew(self) -> None:
        """Renew the claims when half of their time is over, or no send could begin any more."""
        now = self._delivery.clock.monotonic()
        left = self._ends_at - now
        is_time = 0 < left < max(self._ttl / 2, self._timeout + _RENEW_AGAIN_SECONDS)
        too_long = now - self._claimed_at > _LONGEST_CLAIM_SECONDS
        if not self._sending or not is_time or too_long or now < self._renew_at:
            return
        held = [*self._sending.values(), *self._waiting]
        try:
            # Permits first: nothing may be sent later than they count. Messages that wait have
            # none, or one that a rebuild has restored and no limit has judged.
            usable_for = self._delivery.settings.claim_ttl
            self._delivery.permits.settle(
                [(permit_of(claim), -usable_for) for claim in self._sending.values()]
            )
            fault("renew.after_permits")
            ours = self._delivery.claims.renew(held)
            fault("renew.after_claims")
        except (LimitersUnavailable, StoreUnavailable) as error:
            log.warning("could not renew %d claims, tried again in a second: %s", len(held), error)
            self._renew_at = now + _RENEW_AGAIN_SECONDS
            return
        self._lost |= {claim.message.id for claim in held} - ours
        self._ends_at = now + self._ttl

    def _record(self, ended: list[EndedSend]) -> list[EndedSend]:
        """Record outcomes and settle their permits; return those to be recorded by a later try."""
        try:
            self._store(ended)
        except StoreUnavailable as error:
            if error.refused and len(ended) > 1:
                # One by one: an outcome that the store refuses affects no other.
                return [left for send in ended for left in self._record([send])]
            if not error.refused and self._delivery.clock.monotonic() <= self._record_until:
                return ended
            if len(ended) == 1 and (plainer := _with_plainer_text(ended[0])) is not None:
                log.warning(
                    "message %s: outcome recorded in ASCII, because the database refused its text: "
                    "%s", ended[0].record.claim.message.id, error,
                )  # fmt: skip
                return self._record([plainer])
            text = "could not record %d outcomes; rescue ends their claims as unknown: %s"
            log.error(text, len(ended), error)  # noqa: TRY400 - the traceback would say no more
        attempts = [
            (send.record.claim.message, send.record.outcome.value, send.late_by) for send in ended
        ]
        self._delivery.journal.count(lambda meter: meter.attempted(attempts))
        fault("deliver.after_record")
        self._settle_permits(ended)
        return []

    def _store(self, ended: Sequence[EndedSend]) -> None:
        records = [send.record for send in ended]
        successes = [record for record in records if isinstance(record, Success)]
        failures = [record for record in records if isinstance(record, Failure)]
        enqueue_in = -self._delivery.settings.horizon
        expired = self._delivery.claims.record(successes, failures, enqueue_in=enqueue_in)
        tell = self._delivery.journal.tell
        for success in successes:
            message = success.claim.message
            tell(Transition.SENT, message, attempt=message.attempt_count)
        for failure in failures:
            message, wait = failure.claim.message, None
            if failure.is_held:
                kind = Transition.HELD
            elif failure.wait is None:
                kind = Transition.FAILED
            elif message.id in expired:
                kind = Transition.EXPIRED
            else:
                kind, wait = Transition.RETRIED, failure.wait
            facts = {"attempt": message.attempt_count, "outcome": failure.outcome.value}
            tell(kind, message, **facts, wait_seconds=wait)

    def _settle_permits(self, ended: Sequence[EndedSend]) -> None:
        now = self._delivery.clock.monotonic()
        used = [(permit_of(send.record.claim), timedelta(seconds=now - send.at)) for send in ended]
        try:
            self._delivery.permits.settle(used)
        except LimitersUnavailable as error:
            log.warning(
                "could not settle %d permits, they stay counted for longer: %s", len(used), error
            )

    def _enqueue(self, snoozed: Waits) -> None:
        now = self._delivery.clock.now()
        tickets = [
            Ticket(
                claim.message.id,
                claim.message.channel,
                now + wait,
                is_first=False,
                priority=claim.message.priority,
            )
            for claim, wait in snoozed
        ]
        try:
            self._delivery.queue.enqueue(tickets)
        except QueueUnavailable as error:
            log.warning("could not enqueue %d messages; enqueue_due does: %s", len(snoozed), error)


def _with_plainer_text(ended: EndedSend) -> EndedSend | None:
    """Return it with its text in ASCII; None where it is."""
    record = ended.record
    text = (record.receipt if isinstance(record, Success) else record.error) or ""
    if text.isascii():
        return None
    text = text.encode("ascii", "replace").decode()
    if isinstance(record, Success):
        return replace(ended, record=replace(record, receipt=text))
    return replace(ended, record=replace(record, error=text))


def give_back(permits: Permits, unused: Sequence[Permit]) -> None:
    try:
        permits.give_back(unused)
    except LimitersUnavailable as error:
        log.warning(
            "could not give back %d unused permits, they stay counted for longer: %s",
            len(unused), error,
        )  # fmt: skip


def permit_of(claim: Claim, settings: Settings | None = None) -> Permit:
    """Return the permit of a claim; to ask for it, with its share by the settings."""
    message = claim.message
    of = message.channel, message.scope, message.scopes, message.campaign
    share = "" if settings is None else settings.share_of(*of)
    scope, channel = message.scope, message.channel
    return Permit(message.id, claim.token, scope, channel, message.priority, share, message.scopes)


def _held_for(claim: Claim, wait: timedelta) -> timedelta:
    """Return how long limits have kept a message from its time by the end of ``wait``.

    Not while nobody claimed it, which a pause may be the reason for, and not before a failure.
    """
    message = claim.message
    return wait if message.attempt_count > 1 else message.next_attempt_at - message.send_at + wait


def _quiet_wait(claim: Claim, settings: Settings) -> timedelta:
    """Return how long a message that is late by more than ``enqueue_grace`` waits for their end."""
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
                "message %s: quiet hours unreadable; those of its channel apply", message.id
            )
    if quiet is None:
        return NO_WAIT
    zone = known_zone(message.zone) or settings.zone
    ends_ms = quiet.end(zone, to_ms(message.send_at + late_by))
    if ends_ms is None:
        return NO_WAIT
    return from_ms(ends_ms) - message.send_at - timedelta(seconds=claim.late_by)


def backoff(attempt: int, *, base: timedelta, longest: timedelta, jitter: float) -> timedelta:
    """Return the wait after attempt number ``attempt`` (from 1). ``jitter`` is 0 to 1, random.

    Full jitter spreads a herd that failed together better than any narrower one (M. Brooker,
    "Exponential Backoff And Jitter", AWS Architecture Blog, 2015).
    """
    ceiling: timedelta = min(base * (1 << min(attempt - 1, 32)), longest)
    return ceiling * jitter

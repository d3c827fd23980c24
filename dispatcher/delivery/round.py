"""One group that was claimed together, from its permits to its records."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from dispatcher.delivery.destinations import Destinations
from dispatcher.delivery.hand_overs import HandOvers
from dispatcher.delivery.outcomes import Ended, Outcomes, permit_of
from dispatcher.delivery.returns import Returns
from dispatcher.delivery.send_log import ClaimLog
from dispatcher.delivery.senders import Senders, Sending
from dispatcher.errors import LimitersUnavailable, StoreUnavailable
from dispatcher.faults import fault
from dispatcher.limiters import Permits
from dispatcher.settings import Settings
from dispatcher.store import Claim, Claims, Result
from dispatcher.telemetry.tracing import Tracing
from dispatcher.times.clock import Clock
from dispatcher.transports import Transport

log = logging.getLogger(__name__)

_WAIT_FOR_PERMITS_SECONDS = 0.25
"""Longest wait for permits that a worker spends holding messages."""
_LIMITERS_PAUSE = timedelta(seconds=1)
_RECORD_EVERY_SECONDS = 0.05
_RECORD_AGAIN_SECONDS = 0.2
_STRAGGLES_AFTER_SECONDS = 0.05
_RECORD_FOR_SECONDS = 120.0
"""How long at least to try to write down what came of hand-overs, while the store is away."""
_RENEW_AGAIN_SECONDS = 1.0
LONGEST_HOLD_SECONDS = 600.0
"""After which a hand-over that does not end is left to the rescue of its message."""
_IN_TIME = 0.5
"""Share of the timeout after which a send that failed had no answer in time."""
_NO_WAIT = timedelta(0)


@dataclass(frozen=True, slots=True)
class Unsent:
    """A claim that was not handed over, and when to come back."""

    claim: Claim
    wait: timedelta = _NO_WAIT


@dataclass(frozen=True, slots=True)
class Escaped:
    """A claim whose hand-over ended in what no transport should raise. Its outcome is unknown."""

    claim: Claim
    error: BaseException


@dataclass(frozen=True, slots=True)
class Hands:
    """What the groups of one channel share in a process."""

    name: str
    transport: Transport
    senders: Senders
    destinations: Destinations


class Round:
    """Hands over the claims of one channel and writes down what came of them.

    One thread leads: it asks for permits, records, renews the claim while hand-overs last, and puts
    back what did not go. When only hand-overs are left that last, another may lead on. The
    channel's senders hand over. Times are of the monotonic clock.
    """

    def __init__(
        self,
        group: Sequence[Claim],
        hands: Hands,
        *,
        claimed_at: float,
        received_at: float,
        settings: Settings,
        clock: Clock,
        claims: Claims,
        permits: Permits,
        outcomes: Outcomes,
        returns: Returns,
        send_log: ClaimLog,
        is_stopping: Callable[[], bool],
        tracing: Tracing | None = None,
    ) -> None:
        self._hand_overs = HandOvers(
            hands.name,
            hands.transport,
            settings=settings,
            clock=clock,
            permits=permits,
            tracing=tracing,
        )
        self._claimed_at = claimed_at
        self._received_at = received_at
        self._settings = settings
        self._clock = clock
        self._claims = claims
        self._permits = permits
        self._outcomes = outcomes
        self._returns = returns
        self._send_log = send_log
        self._has_log = True
        send_log.hold()
        self._is_stopping = is_stopping
        self._ttl = settings.claim_ttl.total_seconds()
        self._timeout = settings.transport_timeout.total_seconds()
        self._ends_at = claimed_at + self._ttl
        self._renew_at = 0.0
        self._lost: set[UUID] = set()
        self._is_over = False
        self._is_ending = False
        self._begun_at = claimed_at
        self._events: deque[Ended | Unsent | Escaped] = deque()
        self._changed = threading.Event()
        self._sending = Sending(
            hands.senders, clock, self._hand_over, self._changed.set, hands.destinations
        )
        self._with_senders: dict[UUID, Claim] = {}
        self._ended: list[Ended] = []
        self._record_at = claimed_at + _RECORD_EVERY_SECONDS
        self._record_until = 0.0
        self._is_unrecorded = False
        self._escaped: BaseException | None = None
        self._sent = 0
        self._waiting = list(group)
        self._ask_at = clock.monotonic()
        self._patience_ends = self._ask_at + _WAIT_FOR_PERMITS_SECONDS

    def run(self, leave: Callable[[Round], bool] | None = None) -> int:
        """Hand over what may go, now or in a moment; return how many went with success.

        Where everything has begun and something lasts, the rest is left to whom ``leave`` calls,
        if that one answers that it takes it. Raises what escaped from a hand-over.
        """
        try:
            while self.step():
                if leave is not None and self._is_straggling() and leave(self):
                    return self._sent
                self._pause()
        except BaseException as error:  # noqa: BLE001 - it is raised below
            self._escape(error)
            while self.step():
                self._pause()
        self.check()
        return self._sent

    def step(self) -> bool:
        """Do what there is to do now; tell whether more will come.

        Whatever goes wrong, what did not go is put back, and what is on its way is waited for and
        recorded. Raises what goes wrong in that, too.
        """
        try:
            self._do()
        except BaseException as error:  # noqa: BLE001 - raised by who asks, or at once
            self._escape(error)
        goes_on = bool(self._waiting or self._with_senders or self._ended)
        if self._has_log and not goes_on:
            self._has_log = False
            self._send_log.let_go()
        return goes_on

    def _escape(self, error: BaseException) -> None:
        if self._is_ending:
            raise error
        self._escaped = self._escaped or error
        self._break_off()

    def check(self) -> None:
        """Raise what escaped, if anything did."""
        if self._escaped:
            raise self._escaped

    def _do(self) -> None:
        if self._waiting and not self._is_stopping() and self._clock.monotonic() >= self._ask_at:
            self._ask()
        self._collect()
        self._take_back(self._sending.withdraw_silent())
        if (self._escaped or self._is_stopping()) and not self._is_ending:
            self._break_off()
        self._keep_hold()

    def _is_straggling(self) -> bool:
        """Whether all has begun, and that some time ago."""
        now = self._clock.monotonic()
        if self._waiting or self._sending.has_left or not self._with_senders:
            self._begun_at = now
        return now - self._begun_at >= _STRAGGLES_AFTER_SECONDS

    def _ask(self) -> None:
        """Ask for permits, give what has one to the senders, and put back what waits for long."""
        asked_at = self._clock.monotonic()
        claims = self._waiting
        hold = timedelta(seconds=max(0.0, self._ends_at - asked_at))
        try:
            decisions = self._permits.acquire([permit_of(each) for each in claims], hold=hold)
        except LimitersUnavailable as error:
            log.warning("%d messages wait for the limiters: %s", len(claims), error)
            self._waiting = []
            self._put_back([(claim, _LIMITERS_PAUSE) for claim in claims])
            return
        fault("deliver.after_permits")
        granted, short, long = [], [], []
        for claim, decision in zip(claims, decisions, strict=True):
            comes_at = asked_at + decision.retry_after.total_seconds()
            if decision.allowed:
                granted.append((self._received_at + claim.due_in, claim))
            elif comes_at <= self._patience_ends:
                short.append(claim)
                self._ask_at = max(self._ask_at, comes_at)
            else:
                long.append((claim, decision.retry_after))
        self._waiting = short
        self._with_senders |= {claim.message.id: claim for _, claim in granted}
        self._sending.add(granted)
        if not self._returns.snooze(long):
            self._send_log.keep()

    def _collect(self) -> None:
        """Take what the senders report, and record it where it is time."""
        self._changed.clear()
        unsent = []
        while self._events:
            event = self._events.popleft()
            del self._with_senders[event.claim.message.id]
            if isinstance(event, Ended):
                self._ended.append(event)
                self._record_until = self._patience()
                self._sent += isinstance(event.outcome, Result)
            elif isinstance(event, Unsent):
                unsent.append((event.claim, event.wait))
            else:
                self._escaped = event.error
                self._send_log.keep()
        self._put_back(unsent)
        is_time = self._clock.monotonic() >= self._record_at
        is_last = not self._with_senders and not self._is_unrecorded
        if self._ended and (is_time or is_last):
            self._record()

    def _patience(self) -> float:
        """Return until when to try to write down what has ended now."""
        # Nobody can rescue what was claimed while the store is away, and the token fences.
        patience = 0.0 if self._is_stopping() else _RECORD_FOR_SECONDS
        return max(self._ends_at, self._clock.monotonic() + patience)

    def _record(self) -> None:
        """Record once. What is to be tried again holds up nobody who is led by the same thread."""
        is_done = self._outcomes.record(self._ended, until=self._record_until)
        self._is_unrecorded = not is_done
        if is_done:
            self._ended = []
        pause = _RECORD_EVERY_SECONDS if is_done else _RECORD_AGAIN_SECONDS
        self._record_at = self._clock.monotonic() + pause

    def _keep_hold(self) -> None:
        """Renew claims in time; put back what no sender can begin any more.

        Rescued, its outcome would count as unknown.
        """
        self._renew()
        if self._ends_at - self._clock.monotonic() < self._timeout:
            self._withdraw()

    def _renew(self) -> None:
        """Renew what the senders have and what waits, when half of the claim is over but not all.

        Earlier where nothing could be begun any more by then.
        """
        now = self._clock.monotonic()
        left = self._ends_at - now
        is_time = 0 < left < max(self._ttl / 2, self._timeout + _RENEW_AGAIN_SECONDS)
        too_long = now - self._claimed_at > LONGEST_HOLD_SECONDS
        if not self._with_senders or not is_time or too_long or now < self._renew_at:
            return
        held = [*self._with_senders.values(), *self._waiting]
        try:
            # Permits first: nothing may be handed over later than they count.
            self._permits.extend([permit_of(each) for each in held], hold=self._settings.claim_ttl)
            fault("renew.after_permits")
            ours = self._claims.renew(held)
            fault("renew.after_claims")
        except (LimitersUnavailable, StoreUnavailable) as error:
            log.warning("%d claims are not renewed: %s", len(held), error)
            self._renew_at = now + _RENEW_AGAIN_SECONDS
            return
        self._lost |= {claim.message.id for claim in held} - ours
        self._ends_at = now + self._ttl

    def _pause(self) -> None:
        """Wait for the senders, or until it is time to ask for permits."""
        left = max(0.0, self._ask_at - self._clock.monotonic())
        if self._with_senders:
            longest = _RECORD_EVERY_SECONDS
            self._changed.wait(min(longest, left) if self._waiting else longest)
        elif self._waiting:
            self._clock.sleep(left)
            self._ask_at = self._clock.monotonic()
        elif self._ended:
            self._clock.sleep(_RECORD_AGAIN_SECONDS)

    def _break_off(self) -> None:
        """Put back what does not go any more."""
        self._is_ending = self._is_over = True
        waiting, self._waiting = self._waiting, []
        self._put_back([(claim, _NO_WAIT) for claim in waiting])
        self._withdraw()

    def _withdraw(self) -> None:
        """Put back what no sender has taken."""
        self._take_back(self._sending.withdraw())

    def _take_back(self, unsent: Sequence[tuple[Claim, timedelta]]) -> None:
        for claim, _ in unsent:
            del self._with_senders[claim.message.id]
        self._put_back(unsent)

    def _put_back(self, unsent: Sequence[tuple[Claim, timedelta]]) -> None:
        if not self._returns.put_back(unsent):
            self._send_log.keep()

    def _hand_over(self, claim: Claim) -> bool | None:
        """Report what came of one claim. The senders call this.

        Return whether its destination answered in time, None where nothing was sent.
        """
        event: Ended | Unsent | Escaped
        try:
            event = self._tried(claim)
        except BaseException as error:  # noqa: BLE001 - the leading thread raises it
            self._is_over = True
            event = Escaped(claim, error)
        self._events.append(event)
        return event.answered if isinstance(event, Ended) else None

    def _tried(self, claim: Claim) -> Ended | Unsent:
        fault("deliver.before_hand_over")
        unsent = self._unsent(claim, self._clock.monotonic())
        if unsent is not None:
            return unsent
        if not self._send_log.begin(claim.message.id):
            return Unsent(claim)
        fault("deliver.after_begin")
        now = self._clock.monotonic()
        unsent = self._unsent(claim, now)  # the note may have waited for a slow disk
        if unsent is not None:
            return unsent
        outcome = self._hand_overs.make(claim)
        fault("deliver.after_hand_over")
        # Counted at its end: a hand-over is never later than that, so never counted too early.
        ended_at = self._clock.monotonic()
        late_by = now - self._received_at + claim.late_by
        in_time = ended_at - now < self._timeout * _IN_TIME
        return Ended(claim, outcome, ended_at, late_by, isinstance(outcome, Result) or in_time)

    def _unsent(self, claim: Claim, now: float) -> Unsent | None:
        """Return what is reported of a message that must not be sent, None for the others."""
        is_ours = claim.message.id not in self._lost and self._ends_at - now >= self._timeout
        if self._is_over or self._is_stopping() or not is_ours:
            return Unsent(claim)
        if claim.expires_in is not None and now - self._claimed_at >= claim.expires_in:
            return Unsent(claim)
        closed_until = self._hand_overs.closed_until
        if now < closed_until:
            return Unsent(claim, timedelta(seconds=closed_until - now))
        return None

"""What ``store/claims.py`` does, in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from uuid import UUID

from dispatcher.message import Outcome, Status
from dispatcher.store import Claim, Failure, Success, Unclaimed
from dispatcher.store.schema import MOST_ATTEMPTS
from dispatcher.store.suppressions import REASON
from dispatcher.testing.memory.tables import (
    NO_CATCH_UP,
    OPEN,
    AttemptRow,
    CatchUpRules,
    Row,
    Tables,
    error_before,
    rounded,
)

_NO_WAIT = timedelta(0)


class MemoryClaims:
    """Stands in for ``dispatcher.store.Claims``."""

    def __init__(
        self, tables: Tables, *, ttl: timedelta, kept_back: CatchUpRules = NO_CATCH_UP
    ) -> None:
        self._tables = tables
        self._ttl = ttl
        self._rules = kept_back

    def claim(
        self,
        message_ids: Sequence[UUID],
        *,
        ahead: timedelta = _NO_WAIT,
        mark: UUID | None = None,
    ) -> list[Claim]:
        tables, now = self._tables, self._tables.now()
        taken = []
        for message_id in set(message_ids):
            row = tables.scheduled(message_id)
            if row is None or row.next_attempt_at > now + ahead:
                continue
            if row.expires_at is not None and row.expires_at <= now:
                continue
            if tables.is_suppressed(row.recipient, row.channel) or self._rules.keeps_back(row, now):
                continue
            if tables.is_paused(row):
                continue
            row.status = Status.SENDING
            row.claim_token += 1
            row.claimed_by = mark
            row.attempt_count += 1
            row.claim_expires_at = now + self._ttl
            begun = AttemptRow(row.id, row.claim_token, max(row.next_attempt_at, now))
            tables.attempts[row.id][row.claim_token] = begun
            taken.append(row)
        taken.sort(key=lambda row: (row.next_attempt_at, row.id))
        return [
            Claim(
                row.message(),
                row.claim_token,
                max(0.0, (row.next_attempt_at - now).total_seconds()),
                None if row.expires_at is None else (row.expires_at - now).total_seconds(),
                (now - row.send_at).total_seconds(),
            )
            for row in taken
        ]

    def renew(self, claims: Sequence[Claim]) -> set[UUID]:
        ours = [self._tables.ours(each, (Status.SENDING,)) for each in claims]
        for row in filter(None, ours):
            row.claim_expires_at = self._tables.now() + self._ttl
        return {row.id for row in ours if row is not None}

    def unclaimed(self, message_ids: Sequence[UUID]) -> Unclaimed:
        now = self._tables.now()
        found = Unclaimed({}, {}, {})
        for row in filter(None, map(self._tables.scheduled, message_ids)):
            if self._tables.is_suppressed(row.recipient, row.channel):
                row.end(Status.CANCELLED, now, REASON)
                found.cancelled[row.id] = row.channel
            elif row.next_attempt_at > now:
                found.waits[row.id] = row.next_attempt_at - now
            elif row.expires_at is not None and row.expires_at <= now:
                row.end(Status.EXPIRED, now)
                found.expired[row.id] = row.channel
        return found

    def enqueue_when_due(self, message_ids: Sequence[UUID]) -> None:
        for row in filter(None, map(self._tables.scheduled, message_ids)):
            row.enqueue_at = min(row.enqueue_at, row.next_attempt_at)

    def record(
        self, successes: Sequence[Success], failures: Sequence[Failure], *, enqueue_in: timedelta
    ) -> set[UUID]:
        tables, now = self._tables, self._tables.now()
        expired: set[UUID] = set()
        for success in successes:
            row = tables.sent_by(success.claim)
            if row is not None:
                self._overtake(row, success.claim)
                row.end(Status.SENT, now)
                row.last_error = None
            self._outcome(success.claim, Outcome.SENT, None, success.receipt)
        for failure in failures:
            row = tables.ours(failure.claim, OPEN)
            if row is not None:
                self._failed(row, failure, enqueue_in)
            if failure.wait is not None and not failure.is_held:
                expired |= self._expired(failure.claim)
            self._outcome(failure.claim, failure.outcome, failure.error, None)
        return expired

    def put_back(
        self, snoozed: Iterable[tuple[Claim, timedelta]], *, enqueue_in: timedelta
    ) -> None:
        tables = self._tables
        for claim, wait in list(snoozed):
            row = tables.ours(claim, OPEN)
            if row is not None:
                row.attempt_count -= 1
                row.last_error = error_before(row)
                due_at = row.next_attempt_at
                self._again(row, wait, enqueue_in)
                row.next_attempt_at = max(due_at, row.next_attempt_at)
                if row.enqueue_at > row.next_attempt_at:
                    row.enqueued_at = tables.now()
            attempt = tables.attempts[claim.message.id].get(claim.token)
            if attempt is None:
                continue
            held = tables.ours(claim, (Status.SCHEDULED, Status.HELD))
            was_held = held is not None and held.on_unknown == "hold"
            sent = tables.ours(claim, (Status.SENT,))
            is_unknown = attempt.outcome is Outcome.UNKNOWN
            if sent is not None and is_unknown:
                sent.attempt_count -= 1
            if attempt.finished_at is None or ((was_held or sent) and is_unknown):
                del tables.attempts[claim.message.id][claim.token]

    def _overtake(self, row: Row, claim: Claim) -> None:
        current = self._tables.attempts[row.id].get(row.claim_token)
        if row.claim_token != claim.token and row.claim_expires_at is not None and current:
            current.end(Outcome.UNKNOWN, row.claim_expires_at)

    def _failed(self, row: Row, failure: Failure, enqueue_in: timedelta) -> None:
        row.last_error = failure.error
        if failure.is_held:
            row.status, row.claim_expires_at = Status.HELD, None
            row.next_attempt_at = self._tables.now()
        elif failure.wait is None:
            row.end(Status.FAILED, self._tables.now())
        else:
            self._again(row, failure.wait, enqueue_in)
            row.max_attempts = min(row.max_attempts + (not failure.counts), MOST_ATTEMPTS)

    def _again(self, row: Row, wait: timedelta, enqueue_in: timedelta) -> None:
        now = self._tables.now()
        row.status, row.claim_expires_at = Status.SCHEDULED, None
        row.next_attempt_at = now + rounded(wait)
        row.enqueue_at = now + rounded(max(_NO_WAIT, wait + enqueue_in))

    def _expired(self, claim: Claim) -> set[UUID]:
        row = self._tables.ours(claim, (Status.SCHEDULED,))
        if row is None or row.expires_at is None or row.expires_at > row.next_attempt_at:
            return set()
        row.end(Status.EXPIRED, self._tables.now())
        return {row.id}

    def _outcome(
        self, claim: Claim, outcome: Outcome, error: str | None, receipt: str | None
    ) -> None:
        attempt = self._tables.attempts[claim.message.id].get(claim.token)
        if attempt is None:
            return
        if attempt.finished_at is None or attempt.outcome is Outcome.UNKNOWN:
            attempt.end(outcome, self._tables.now())
            attempt.error, attempt.receipt = error, receipt

"""What becomes of messages, told as it happens: a log line for each transition, and figures.

The logger ``dispatcher.journal`` says it at INFO, or WARNING where a person may have to look; steps
that every message takes, or takes often, at DEBUG. Each record carries the :data:`FIELDS` that fit
as attributes, so that a formatter can write them on their own. None of them is a body, an address
or a secret.

The store is the truth, not this: a process that dies right after a commit does not tell.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Protocol
from uuid import UUID

from dispatcher.errors import (
    BatchRefused,
    DispatcherError,
    IdempotencyConflict,
    InvalidValue,
    OutcomeUnknown,
    QuietHours,
    QuotaExceeded,
    Suppressed,
    Unavailable,
)
from dispatcher.message import Message
from dispatcher.times.send_time import as_text

log = logging.getLogger("dispatcher.journal")

FIELDS = (
    "transition", "message_id", "channel", "recipient", "attempt", "outcome", "send_at", "due_at",
    "wait_seconds",
)  # fmt: skip
"""What a record may carry: ``recipient`` is a digest, instants are ISO 8601 in UTC."""

Fact = str | int | float | datetime | timedelta | None


class Transition(StrEnum):
    """What may become of a message."""

    SCHEDULED = "scheduled"
    """Accepted and stored."""
    ENQUEUED = "enqueued"
    """Given to Celery, perhaps once more."""
    SENT = "sent"
    RETRIED = "retried"
    """Tried without success, or given another round by a person: to be tried again."""
    SNOOZED = "snoozed"
    """Put back by a limiter; no attempt counts."""
    FAILED = "failed"
    HELD = "held"
    """Nobody knows what came of it, and a person decides."""
    RELEASED = "released"
    """Held, and to be tried once more."""
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    RESCUED = "rescued"
    """Taken back from a worker that died or froze."""
    RESCHEDULED = "rescheduled"
    """Given another time by who asked for it."""
    RESLOTTED = "reslotted"
    """Overdue after an outage, and booked again by a sweep."""


_LEVELS = {
    Transition.ENQUEUED: logging.DEBUG,
    Transition.SNOOZED: logging.DEBUG,
    Transition.FAILED: logging.WARNING,
    Transition.HELD: logging.WARNING,
    Transition.RESCUED: logging.WARNING,
}


_REASONS: tuple[tuple[type[DispatcherError], str], ...] = (
    (QuotaExceeded, "quota"),
    (QuietHours, "quiet_hours"),
    (Suppressed, "suppressed"),
    (InvalidValue, "invalid"),
    (IdempotencyConflict, "idempotency"),
    (BatchRefused, "batch"),
    (OutcomeUnknown, "unknown"),
    (Unavailable, "unavailable"),
)


class Meter(Protocol):
    """Counts what happens. It is called often and must be quick."""

    def became(self, transition: Transition, channel: str) -> None:
        """Count a transition."""

    def attempted(self, channel: str, outcome: str, late_seconds: float | None) -> None:
        """Count a try; ``late_seconds`` where it is the first of its message."""

    def refused(self, reason: str, quota: str) -> None:
        """Count a submit that was refused, by which quota if by one."""

    def swept(self, duty: str, did: Mapping[str, int] | None) -> None:
        """Count a run of a duty and what it did, None for one that failed."""

    def item_rejected(self) -> None:
        """Count an item of the broker that was no task."""


Listen = Callable[[Transition, UUID, Message | None], object]
"""Takes each transition, and the message where it is at hand. It must be quick."""


class Journal:
    """Tells what became of messages, in the log, to a meter and to who listens, if there are any.

    With a ``log_key`` a line names its recipient by a digest that only who has the key can make,
    the same in every process; without one by nothing.
    """

    def __init__(
        self, *, log_key: str = "", meter: Meter | None = None, listen: Listen | None = None
    ) -> None:
        self._meter = meter
        self._listen = listen
        self._key = hashlib.sha256(log_key.encode()).digest() if log_key else b""

    def tell(self, transition: Transition, message: Message, **facts: Fact) -> None:
        """Say what became of a message. ``facts`` are named as in :data:`FIELDS`."""
        self._tell(transition, message.id, message.channel, message.recipient, facts)
        if self._listen is not None:
            self._listen(transition, message.id, message)

    def tell_of(
        self, transition: Transition, message_id: UUID, channel: str, **facts: Fact
    ) -> None:
        """Like :meth:`tell`, where only the id and the channel are at hand."""
        self._tell(transition, message_id, channel, None, facts)
        if self._listen is not None:
            self._listen(transition, message_id, None)

    def attempted(self, message: Message, outcome: str, late_seconds: float) -> None:
        """Say that a try was recorded, and how long after its time it began."""
        late = late_seconds if message.attempt_count == 1 else None
        self._count(lambda meter: meter.attempted(message.channel, outcome, late))

    def refused(self, error: DispatcherError) -> None:
        """Say that a submit was refused. The caller is told why, so no line is written."""
        reason = next((name for kind, name in _REASONS if isinstance(error, kind)), "other")
        quota = error.quota if isinstance(error, QuotaExceeded) else ""
        self._count(lambda meter: meter.refused(reason, quota))

    def swept(self, duty: str, did: Mapping[str, int] | None) -> None:
        """Say that a duty was done, and how much it did; None where it failed."""
        self._count(lambda meter: meter.swept(duty, did))

    def item_rejected(self) -> None:
        """Say that a worker deleted an item of the broker. It has written a line itself."""
        self._count(lambda meter: meter.item_rejected())

    def _count(self, call: Callable[[Meter], object]) -> None:
        """Count. A meter that cannot, its disk being full say, must not hold up a message."""
        if self._meter is None:
            return
        try:
            call(self._meter)
        except Exception:
            self._meter = None
            log.exception("nothing is counted any more in this process")

    def _tell(
        self,
        transition: Transition,
        message_id: UUID,
        channel: str,
        recipient: str | None,
        facts: dict[str, Fact],
    ) -> None:
        self._count(lambda meter: meter.became(transition, channel))
        level = _LEVELS.get(transition, logging.INFO)
        if not log.isEnabledFor(level):
            return
        told: dict[str, Fact] = {"channel": channel}
        if recipient is not None and self._key:
            told["recipient"] = self._digest(recipient)
        told |= {name: _plain(fact) for name, fact in facts.items() if fact is not None}
        known = " ".join(f"{name}={fact}" for name, fact in told.items())
        record = told | {"transition": transition.value, "message_id": str(message_id)}
        log.log(level, "message %s %s %s", message_id, transition.value, known, extra=record)

    def _digest(self, recipient: str) -> str:
        return hashlib.blake2b(
            recipient.encode("utf-8", "surrogatepass"), key=self._key, digest_size=8
        ).hexdigest()


def _plain(fact: Fact) -> str | int | float | None:
    if isinstance(fact, datetime):
        return as_text(fact)
    if isinstance(fact, timedelta):
        return round(fact.total_seconds(), 3)
    return fact

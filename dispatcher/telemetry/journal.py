"""One event for each transition of a message, given to the metrics, the log and all listeners.

The logger ``dispatcher.journal`` says it at INFO, or WARNING where a person may have to look; steps
that every message takes, or takes often, at DEBUG. Each record carries the :data:`FIELDS` that fit
as attributes. None of them is a body, an address or a secret.

The store is the truth, not the events: a process that dies right after a commit gives none.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple
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

if TYPE_CHECKING:
    from dispatcher.telemetry.prometheus import Meter

log = logging.getLogger("dispatcher.journal")

FIELDS = (
    "transition", "message_id", "channel", "recipient", "attempt", "outcome", "send_at", "due_at",
    "wait_seconds",
)  # fmt: skip
"""What a record may carry: ``recipient`` is a digest, instants are ISO 8601 in UTC."""

Fact = str | int | float | datetime | timedelta | None


class Transition(StrEnum):
    SCHEDULED = "scheduled"
    """Accepted and stored."""
    ENQUEUED = "enqueued"
    """Given to Celery, perhaps once more."""
    SENT = "sent"
    RETRIED = "retried"
    """Tried without success, or given another round by a person: to be tried again."""
    SNOOZED = "snoozed"
    """Put back by a limiter, or late in quiet hours; no attempt counts."""
    FAILED = "failed"
    HELD = "held"
    """The outcome is unknown, and a person decides."""
    RELEASED = "released"
    """Held, and to be tried once more."""
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    RESCUED = "rescued"
    """Taken back from a worker that died or froze."""
    RESCHEDULED = "rescheduled"
    """Given another time by its caller."""


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


class Event(NamedTuple):
    """A transition of a message that is committed. ``details`` are named as in :data:`FIELDS`.

    ``message`` is given where it is at hand, as the transition left it.
    """

    kind: Transition
    message_id: UUID
    channel: str
    details: Mapping[str, Fact]
    message: Message | None = None


Listener = Callable[[Event], object]
"""It is called often, by many threads, and must be quick and not raise."""


class Journal:
    """Tells each event to the meter, to the log and to its listeners, in this order.

    Use cases tell after the commit. With a ``log_key`` a line names its recipient by a digest, the
    same in every process; without one not at all.
    """

    def __init__(
        self, *, log_key: str = "", meter: Meter | None = None, listeners: Iterable[Listener] = ()
    ) -> None:
        self._meter = meter
        self._digest = digest_with(log_key)
        self._listeners = (self._log, *listeners)

    def tell(self, kind: Transition, message: Message, **details: Fact) -> None:
        self._tell(Event(kind, message.id, message.channel, details, message))

    def tell_of(self, kind: Transition, message_id: UUID, channel: str, **details: Fact) -> None:
        """Like :meth:`tell`, where only the id and the channel are at hand."""
        self._tell(Event(kind, message_id, channel, details))

    def tell_all(self, kind: Transition, channels: Mapping[UUID, str]) -> int:
        """Tell of each of these messages; return how many they are."""
        for message_id, channel in channels.items():
            self.tell_of(kind, message_id, channel)
        return len(channels)

    def _tell(self, event: Event) -> None:
        self.count(lambda meter: meter.on_event(event))
        for listen in self._listeners:
            listen(event)

    def refused(self, error: DispatcherError) -> None:
        """Count a submit that was refused. The caller has the error, so no line is written."""
        reason = next((name for kind, name in _REASONS if isinstance(error, kind)), "other")
        quota = error.quota if isinstance(error, QuotaExceeded) else ""
        self.count(lambda meter: meter.refused(reason, quota))

    def count(self, call: Callable[[Meter], object]) -> None:
        """Count. A meter that cannot, its disk being full say, is asked no more."""
        if self._meter is None:
            return
        try:
            call(self._meter)
        except Exception:
            self._meter = None
            log.exception("metrics stopped in this process; restart it")

    def _log(self, event: Event) -> None:
        level = _LEVELS.get(event.kind, logging.INFO)
        if not log.isEnabledFor(level):
            return
        facts: dict[str, Fact] = {"channel": event.channel}
        if event.message is not None and self._digest is not None:
            facts["recipient"] = self._digest(event.message.recipient)
        facts |= {name: _plain(fact) for name, fact in event.details.items() if fact is not None}
        known = " ".join(f"{name}={fact}" for name, fact in facts.items())
        kind, message_id = event.kind.value, event.message_id
        record = facts | {"transition": kind, "message_id": str(message_id)}
        log.log(level, "message %s %s %s", message_id, kind, known, extra=record)


def digest_with(log_key: str) -> Callable[[str], str] | None:
    """Return what makes the digest of a recipient. None without a key: it could be guessed."""
    if not log_key:
        return None
    key = hashlib.sha256(log_key.encode()).digest()

    def digest(recipient: str) -> str:
        text = recipient.encode("utf-8", "surrogatepass")
        return hashlib.blake2b(text, key=key, digest_size=8).hexdigest()

    return digest


def _plain(fact: Fact) -> str | int | float | None:
    if isinstance(fact, datetime):
        return as_text(fact)
    if isinstance(fact, timedelta):
        return round(fact.total_seconds(), 3)
    return fact

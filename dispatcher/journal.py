"""What becomes of messages, told as it happens: a log line for each transition.

The logger ``dispatcher.journal`` says it at INFO, or WARNING where a person may have to look; steps
that every message takes, or takes often, at DEBUG. Each record carries the :data:`FIELDS` that fit
as attributes, so that a formatter can write them on their own. None of them is a body, an address
or a secret.

The store is the truth, not this: a process that dies right after a commit does not tell.
"""

from __future__ import annotations

import hashlib
import logging
from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID

from dispatcher.message import Message

log = logging.getLogger(__name__)

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


_LEVELS = {
    Transition.ENQUEUED: logging.DEBUG,
    Transition.SNOOZED: logging.DEBUG,
    Transition.FAILED: logging.WARNING,
    Transition.HELD: logging.WARNING,
    Transition.RESCUED: logging.WARNING,
}


class Journal:
    """Tells what became of messages.

    With a ``log_key`` a line names its recipient by a digest that only who has the key can make,
    the same in every process; without one by nothing.
    """

    def __init__(self, *, log_key: str = "") -> None:
        self._key = hashlib.sha256(log_key.encode()).digest() if log_key else b""

    def tell(self, transition: Transition, message: Message, **facts: Fact) -> None:
        """Say what became of a message. ``facts`` are named as in :data:`FIELDS`."""
        self._tell(transition, message.id, message.channel, message.recipient, facts)

    def tell_of(
        self, transition: Transition, message_id: UUID, channel: str, **facts: Fact
    ) -> None:
        """Like :meth:`tell`, where only the id and the channel are at hand."""
        self._tell(transition, message_id, channel, None, facts)

    def _tell(
        self,
        transition: Transition,
        message_id: UUID,
        channel: str,
        recipient: str | None,
        facts: dict[str, Fact],
    ) -> None:
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
        return fact.isoformat(timespec="milliseconds")
    if isinstance(fact, timedelta):
        return round(fact.total_seconds(), 3)
    return fact

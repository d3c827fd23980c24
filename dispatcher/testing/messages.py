"""Messages as transports get them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from dispatcher.message import Message, Status, new_id

_AT = datetime(2100, 1, 1, 12, tzinfo=UTC)


def a_message(**fields: Any) -> Message:
    """Return a message at its first attempt, with these fields.

    Each has a new id. By default ``recipient`` is ``ada``, ``body`` is ``{"text": "hello"}``.
    """
    recipient = fields.get("recipient", "ada")
    usual: dict[str, Any] = {
        "id": new_id(),
        "channel": "test",
        "recipient": recipient,
        "scope": recipient,
        "body": {"text": "hello"},
        "send_at": _AT,
        "next_attempt_at": _AT,
        "expires_at": None,
        "status": Status.SENDING,
        "attempt_count": 1,
        "max_attempts": 5,
        "idempotency_key": None,
        "created_at": _AT,
        "finished_at": None,
        "last_error": None,
    }
    return Message(**usual | fields)

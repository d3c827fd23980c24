"""Messages for those who hand them over, without a house around."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from dispatcher import Message, Status
from dispatcher.message import new_id

_AT = datetime(2100, 1, 1, 12, tzinfo=UTC)


def a_message(**fields: Any) -> Message:
    """Return a message that is being handed over, with some fields of its own."""
    message = Message(
        id=new_id(), channel="sms", recipient="ada", scope="s", body={"text": "hello"},
        send_at=_AT, next_attempt_at=_AT, expires_at=None, status=Status.SENDING, attempt_count=1,
        max_attempts=5, idempotency_key=None, created_at=_AT, finished_at=None, last_error=None,
    )  # fmt: skip
    return replace(message, **fields)

"""Messages and attempts as rows, and back."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Row

from dispatcher.message import Attempt, Message, Outcome, Status, dump_json
from dispatcher.store.engines.types import database_now, to_length_ms
from dispatcher.store.schema import Tables

WRITTEN = (
    "id", "channel", "recipient", "scope", "body", "send_at", "next_attempt_at", "enqueue_at",
    "expires_at", "status", "attempt_count", "max_attempts", "claim_token", "reserved",
    "idempotency_key", "fingerprint", "created_at", "scopes", "zone", "quiet_hours", "on_unknown",
    "expire_after", "asked_at", "trace", "status_url", "told", "enqueued_at",
)  # fmt: skip
"""The columns of a new message, in the order of the table, in which they are written."""


class Addition(NamedTuple):
    """A message to store, when maintenance is to enqueue it, its fingerprint, its body as JSON.

    ``status_url`` receives its status webhooks.
    """

    message: Message
    enqueue_at: datetime
    fingerprint: str | None
    body_json: str
    status_url: str | None = None


class Movable(NamedTuple):
    """A message, and the guard of its move.

    ``token`` rises whenever its time changes, or its moves are barred. It was read at ``read_at``,
    by the database's clock.
    """

    message: Message
    token: int
    read_at: datetime


def to_row(
    message: Message, *, enqueue_at: datetime, fingerprint: str | None, status_url: str | None
) -> dict[str, Any]:
    """Turn a new message into the row that is inserted."""
    return {name: getattr(message, name) for name in Message.__dataclass_fields__} | {
        "status": message.status.value,
        "enqueue_at": enqueue_at,
        "claim_token": 0,
        "reserved": True,
        "fingerprint": fingerprint,
        "scopes": message.scopes or None,
        "status_url": status_url,
        "told": _told_at_first(status_url),
    }


def to_values(addition: Addition) -> tuple[Any, ...]:
    """Turn a new message into the values of the columns of ``WRITTEN``.

    For drivers that take instants and UUIDs.
    """
    message, enqueue_at, fingerprint, body_json, status_url = addition
    return (
        message.id, message.channel, message.recipient, message.scope, body_json,
        message.send_at, message.next_attempt_at, enqueue_at, message.expires_at,
        message.status.value, message.attempt_count, message.max_attempts, 0, True,
        message.idempotency_key, fingerprint, message.created_at,
        dump_json(message.scopes) if message.scopes else None, message.zone,
        message.quiet_hours, message.on_unknown, _to_ms(message.expire_after), message.asked_at,
        message.trace, status_url, _told_at_first(status_url), message.enqueued_at,
    )  # fmt: skip


def to_message(row: Sequence[Any]) -> Message:
    """Turn a row that begins with the columns of a message into one."""
    values = dict(zip(Message.__dataclass_fields__, row, strict=False))
    values["status"] = Status(values["status"])
    values["scopes"] = values["scopes"] or {}
    return Message(**values)


def movable_columns(tables: Tables) -> tuple[ColumnElement[Any], ...]:
    """Return the columns of a :class:`Movable`."""
    return (
        *tables.message_columns, tables.messages.c.move_token, database_now().label("read_at")
    )  # fmt: skip


def to_movable(row: Row[Any]) -> Movable:
    """Turn a row of :func:`movable_columns`, and perhaps more, into a :class:`Movable`."""
    return Movable(to_message(row), row.move_token, row.read_at)


def to_attempt(row: Row[Any]) -> Attempt:
    """Turn a row of attempts into one."""
    values = dict(row._mapping)
    values["outcome"] = Outcome(values["outcome"]) if values["outcome"] else None
    return Attempt(**values)


def _told_at_first(status_url: str | None) -> str | None:
    """Return the initial ``told`` of a message; None without a status URL."""
    return None if status_url is None else Status.SCHEDULED.value


def _to_ms(length: timedelta | None) -> int | None:
    return None if length is None else to_length_ms(length)

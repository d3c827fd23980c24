"""Status messages: they report the statuses of messages to their status URLs."""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Row, Select, insert, select, update

from dispatcher.faults import fault
from dispatcher.message import Body, Outcome, Status
from dispatcher.scope import NO_SCOPE
from dispatcher.store.database import Database
from dispatcher.store.engines.types import database_now, one_of
from dispatcher.store.lists import REASON
from dispatcher.store.maintenance import OVERDUE
from dispatcher.store.messages import DROPPED
from dispatcher.times.send_time import as_text

_VERSION, _VARIANT = 0x7 << 76, 0b10 << 62
_SHOWN = (
    "id", "channel", "status", "attempt_count", "send_at", "finished_at", "last_error",
    "claim_token", "status_url",
)  # fmt: skip


class Reason(StrEnum):
    """Why a message has its status, as receivers read it. See docs/transports.md."""

    REFUSED = "refused"
    ATTEMPTS_USED_UP = "attempts_used_up"
    DROPPED = "dropped"
    EXPIRY = "expiry"
    OVERDUE = "overdue"
    REQUESTED = "requested"
    SUPPRESSED = "suppressed"
    OUTCOME_UNKNOWN = "outcome_unknown"


class Notifications:
    """The statements of ``notify``. Any number of sweeps may run side by side."""

    def __init__(
        self, database: Database, *, channel: str, tells_errors: bool = False, **row: int
    ) -> None:
        self._database = database
        self._tells_errors = tells_errors
        self._tables = database.tables
        self._is_due, self._order = database.backend.due_notifications(database.tables)
        # It has no reservation. After an unknown outcome it is retried whatever its channel says:
        # receivers know a repeated report by its id.
        self._add = insert(self._tables.messages).values(
            channel=channel, scope=NO_SCOPE, status=Status.SCHEDULED.value, on_unknown="retry",
            **row,
        )  # fmt: skip

    def tell(self, *, limit: int) -> list[UUID]:
        """Add a status message for each of so many messages; return the ids of those added.

        The reported status is noted in the same transaction.
        """
        messages, attempts = self._tables.messages, self._tables.attempts
        due: Select[Any] = (
            select(*(messages.c[name] for name in _SHOWN), database_now().label("now"))
            .where(self._is_due)
            .order_by(*self._order)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )

        def work(connection: Connection) -> list[UUID]:
            rows = connection.execute(due).all()
            if not rows:
                return []
            made = {id_of(row): row for row in rows}
            there = select(messages.c.id).where(self._tables.has_id(list(made)))
            present = set(connection.scalars(there))
            ids = [row.id for row in rows]
            ended = select(attempts.c.message_id, attempts.c.outcome).where(
                one_of(attempts.c.message_id, ids), attempts.c.outcome.is_not(None)
            )
            outcomes = dict(map(tuple, connection.execute(ended.order_by(attempts.c.token))))
            new = [
                {
                    "id": id_,
                    "recipient": row.status_url,
                    "body": body_of(row, outcomes.get(row.id), tells_errors=self._tells_errors),
                }
                for id_, row in made.items()
                if id_ not in present
            ]
            if new:
                connection.execute(self._add, new)
            fault("tell.in_transaction")
            noted = update(messages).where(self._tables.has_id(ids))
            connection.execute(noted.values(notified_status=messages.c.status))
            return [row["id"] for row in new]

        return self._database.transact(work)


def id_of(row: Row[Any]) -> UUID:
    """Return the id of the status message for the status of a row, the same each time.

    Its time is that of the message's id, so that both rows lie near each other.
    """
    source = f"{row.id} {row.status} {row.claim_token}".encode()
    digest = int.from_bytes(hashlib.blake2b(source, digest_size=10).digest(), "big")
    free = digest & ~(0xF << 76) & ~(0b11 << 62)
    return UUID(int=row.id.int >> 80 << 80 | _VERSION | _VARIANT | free)


def body_of(row: Row[Any], outcome: str | None, *, tells_errors: bool) -> Body:
    """Return the report; neither body nor recipient, which the text of a provider may quote."""
    if row.status == Status.SENT.value:  # perhaps by an attempt that was not the last
        outcome = Outcome.SENT.value
    data = {
        "id": str(row.id),
        "channel": row.channel,
        "status": row.status,
        "attempt_count": row.attempt_count,
        "send_at": as_text(row.send_at),
        "finished_at": None if row.finished_at is None else as_text(row.finished_at),
        "outcome": outcome,
        "reason": _reason(row, outcome),
    }
    if tells_errors:
        data["last_error"] = row.last_error
    return {
        "type": f"message.{row.status}",
        "timestamp": as_text(row.finished_at or row.now),
        "data": data,
    }


def _reason(row: Row[Any], outcome: str | None) -> Reason | None:
    match Status(row.status):
        case Status.FAILED:
            is_refused = outcome == Outcome.PERMANENT.value
            usual = Reason.REFUSED if is_refused else Reason.ATTEMPTS_USED_UP
            return Reason.DROPPED if (row.last_error or "").startswith(DROPPED) else usual
        case Status.EXPIRED:
            return Reason.OVERDUE if row.last_error == OVERDUE else Reason.EXPIRY
        case Status.CANCELLED:
            return Reason.SUPPRESSED if row.last_error == REASON else Reason.REQUESTED
        case Status.HELD:
            return Reason.OUTCOME_UNKNOWN
        case _:
            return None

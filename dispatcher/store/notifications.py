"""Status messages: they report the statuses of messages to their status URLs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
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
    "claim_token", "status_url", "delayed_by", "next_attempt_at",
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
    """The statements of ``notify``, and of claims that tell delays. Any number may run at once."""

    def __init__(
        self, database: Database, *, channel: str, tells_errors: bool = False, **row: int
    ) -> None:
        self._database = database
        self._tells_errors = tells_errors
        self._tables = database.tables
        shown = (self._tables.messages.c[name] for name in _SHOWN)
        self._query: Select[Any] = select(*shown, database_now().label("now"))
        self._is_due, self._order = database.backend.due_notifications(database.tables)
        # It has no reservation. After an unknown outcome it is retried whatever its channel says:
        # receivers know a repeated report by its id.
        self._add = insert(self._tables.messages).values(
            channel=channel, scope=NO_SCOPE, status=Status.SCHEDULED.value, on_unknown="retry",
            **row,
        )  # fmt: skip

    def tell(self, *, limit: int) -> list[UUID]:
        """Add a status message for each of so many messages; return the ids of those added.

        The reported status is noted in the same transaction. Reports of delays that were not sent
        yet are cancelled.
        """
        messages, attempts = self._tables.messages, self._tables.attempts
        due = (
            self._query.where(self._is_due)
            .order_by(*self._order)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )

        def work(connection: Connection) -> list[UUID]:
            rows = connection.execute(due).all()
            if not rows:
                return []
            ids = [row.id for row in rows]
            ended = select(attempts.c.message_id, attempts.c.outcome).where(
                one_of(attempts.c.message_id, ids), attempts.c.outcome.is_not(None)
            )
            outcomes = dict(map(tuple, connection.execute(ended.order_by(attempts.c.token))))
            if stale := [id_of(row, of_delay=True) for row in rows if row.delayed_by]:
                unsent = self._tables.has_id(stale), self._tables.is_scheduled
                cancel = {"status": Status.CANCELLED.value, "finished_at": database_now()}
                connection.execute(update(messages).where(*unsent).values(cancel))
            new = self._report(connection, rows, outcomes)
            noted = update(messages).where(self._tables.has_id(ids))
            connection.execute(noted.values(notified_status=messages.c.status))
            return new

        return self._database.transact(work)

    def report_delays(self, connection: Connection, message_ids: Sequence[UUID]) -> list[UUID]:
        """Add a status message for each of these that is scheduled and has a status URL."""
        is_asked = self._tables.messages.c.status_url.is_not(None)
        is_theirs = self._tables.has_id(message_ids), self._tables.is_scheduled, is_asked
        return self._report(connection, connection.execute(self._query.where(*is_theirs)).all(), {})

    def _report(
        self, connection: Connection, rows: Sequence[Row[Any]], outcomes: Mapping[UUID, str]
    ) -> list[UUID]:
        made = {id_of(row): row for row in rows}
        there = select(self._tables.messages.c.id).where(self._tables.has_id(list(made)))
        present = set(connection.scalars(there))
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
        return [row["id"] for row in new]


def id_of(row: Row[Any], *, of_delay: bool = False) -> UUID:
    """Return the id of the status message for the status of a row, the same each time.

    Its time is that of the message's id, so that both rows lie near each other.
    """
    is_delay = of_delay or row.status == Status.SCHEDULED.value
    what = f"delayed {as_text(row.send_at)}" if is_delay else f"{row.status} {row.claim_token}"
    source = f"{row.id} {what}".encode()
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
    kind = row.status
    if kind == Status.SCHEDULED.value:
        kind = "delayed"
        data |= {"limit": row.delayed_by, "expected_at": as_text(row.next_attempt_at)}
    return {
        "type": f"message.{kind}",
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

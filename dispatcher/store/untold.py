"""Of whom somebody is yet to be told, and the status messages that do it."""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Row,
    Select,
    and_,
    insert,
    literal_column,
    or_,
    select,
    update,
)

from dispatcher.faults import fault
from dispatcher.message import Body, Status
from dispatcher.scope import NOBODY
from dispatcher.store.columns import MYSQL
from dispatcher.store.database import Database
from dispatcher.store.instants import database_now
from dispatcher.store.schema import TOLD_OF, UNTOLD, messages

_VERSION, _VARIANT = 0x7 << 76, 0b10 << 62
_SHOWN = tuple(
    messages.c[name]
    for name in (
        "id", "channel", "status", "attempt_count", "send_at", "finished_at", "last_error",
        "claim_token", "status_url",
    )
)  # fmt: skip


class Untold:
    """The store's half of telling. Any number of sweeps may run side by side.

    Status messages go on ``channel``, each tried up to ``max_attempts`` times.
    """

    def __init__(self, database: Database, *, channel: str, max_attempts: int) -> None:
        self._database = database
        self._found = found_untold(database.engine.dialect.name)
        now = database_now()
        # It has no place that could be freed, and its try is repeated whatever the channel says:
        # who is told twice knows it by the id.
        self._add = insert(messages).values(
            channel=channel, scope=NOBODY, send_at=now, next_attempt_at=now, enqueue_at=now,
            created_at=now, status=Status.SCHEDULED.value, attempt_count=0,
            max_attempts=max_attempts, claim_token=0, reserved=False, on_unknown="retry",
        )  # fmt: skip

    def tell(self, *, at_most: int) -> list[UUID]:
        """Add a status message for each of so many messages; return the ids of those added.

        What is told is noted in the same transaction. Should a status message be there already,
        it is the same one.
        """
        wanted: Select[Any] = (
            select(*_SHOWN, database_now().label("now"))
            .where(self._found.where)
            .order_by(*self._found.order)
            .limit(at_most)
            .with_for_update(skip_locked=True)
        )

        def work(connection: Connection) -> list[UUID]:
            rows = connection.execute(wanted).all()
            if not rows:
                return []
            made = {_id(row): row for row in rows}
            there = set(
                connection.scalars(
                    select(messages.c.id).where(self._database.one_of(messages.c.id, list(made)))
                )
            )
            new = [
                {"id": id_, "recipient": row.status_url, "body": _body(row)}
                for id_, row in made.items()
                if id_ not in there
            ]
            if new:
                connection.execute(self._add, new)
            fault("tell.in_transaction")
            these = self._database.one_of(messages.c.id, [row.id for row in rows])
            connection.execute(update(messages).where(these).values(told=messages.c.status))
            return [each["id"] for each in new]

        return self._database.transact(work)


class FoundUntold(NamedTuple):
    """The condition that somebody is yet to be told, and the order of its index."""

    where: ColumnElement[bool]
    order: tuple[Column[Any], ...]


def found_untold(dialect: str) -> FoundUntold:
    """Return it in the words by which a database takes the index, and reads nothing else.

    A partial index holds nothing else. MariaDB and MySQL, which have none, find what is equal: each
    pair, and both that ``reserved`` may be, since that stands between in the index.
    """
    row = messages.c
    if dialect not in MYSQL:
        return FoundUntold(literal_column(UNTOLD), (row.told, row.status, row.id))
    every = (Status.SCHEDULED.value, *(each.value for each in TOLD_OF))
    pairs = (
        and_(row.status == each, row.told.in_([told for told in every if told != each]))
        for each in every[1:]
    )
    where = and_(row.reserved.in_([False, True]), or_(*pairs))
    return FoundUntold(where, (row.status, row.reserved, row.told, row.id))


def _id(row: Row[Any]) -> UUID:
    """Return the id of the status message that tells what a row says, the same each time.

    Its first bits are those of the message's id, its time: ids stay in the order of submits, and
    both rows lie near each other.
    """
    said = f"{row.id} {row.status} {row.claim_token}".encode()
    digest = int.from_bytes(hashlib.blake2b(said, digest_size=10).digest(), "big")
    free = digest & ~(0xF << 76) & ~(0b11 << 62)
    return UUID(int=row.id.int >> 80 << 80 | _VERSION | _VARIANT | free)


def _body(row: Row[Any]) -> Body:
    """Return what is told: neither the body nor the recipient of the message."""
    return {
        "type": f"message.{row.status}",
        "timestamp": (row.finished_at or row.now).isoformat(),
        "data": {
            "id": str(row.id),
            "channel": row.channel,
            "status": row.status,
            "attempt_count": row.attempt_count,
            "send_at": row.send_at.isoformat(),
            "finished_at": _iso(row.finished_at),
            "last_error": row.last_error,
        },
    }


def _iso(instant: datetime | None) -> str | None:
    return None if instant is None else instant.isoformat()

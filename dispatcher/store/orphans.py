"""Orphans: reservations whose message is not stored, and must not be once they are released.

Its submit may be frozen between reservation and INSERT. So the id is taken first, by a void row:
the primary key then refuses any late INSERT. Where an INSERT is under way the database waits for
its end, and the message is found.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, select

from dispatcher.errors import StoreUnavailable
from dispatcher.store.database import Database
from dispatcher.store.engines.types import database_now
from dispatcher.store.reservations import ReservedTime, time_columns
from dispatcher.store.schema import VOID

log = logging.getLogger(__name__)

_MOST_FAILURES = 5
"""After so many failures the others wait for the next sweep."""


class GivenUp(StoreUnavailable):
    """The reservation was released before the message was stored: it cannot be stored any more."""

    def __init__(self) -> None:
        super().__init__("storing it took longer than its reservation lasted", refused=True)


_NOW = database_now()
_NOTHING: dict[str, Any] = {
    "channel": "", "recipient": "", "scope": "", "body": {}, "status": VOID, "reserved": False,
    "send_at": _NOW, "next_attempt_at": _NOW, "enqueue_at": _NOW, "created_at": _NOW,
    "finished_at": _NOW, "attempt_count": 0, "max_attempts": 1, "claim_token": 0,
}  # fmt: skip


class Settled(NamedTuple):
    """The state of messages after :func:`give_up`.

    ``holding``: messages that hold a reservation. ``void``: messages that can never be stored.
    ``under_way``: messages that another transaction may still be storing.
    """

    holding: dict[UUID, ReservedTime]
    void: set[UUID]
    under_way: set[UUID]


def give_up(database: Database, message_ids: Sequence[UUID]) -> Settled:
    """Prevent these from being stored from now on; return their state. Raises StoreUnavailable."""
    tables = database.tables
    messages = tables.messages
    ordered = sorted(message_ids)  # in the same order everywhere, so that no two deadlock
    try:
        database.transact(lambda connection: _take(database, connection, ordered))
    except StoreUnavailable as error:
        log.warning(
            "could not settle %d reservations together, settling each alone: %s",
            len(ordered),
            error,
        )
        if not database.backend.has_one_writer:
            _take_singly(database, ordered)
    query = select(
        *time_columns(tables), messages.c.status, tables.holds_no_reservation.label("ended")
    ).where(database.one_of(messages.c.id, ordered))
    rows = database.read(query)
    void = {row.id for row in rows if row.status == VOID}
    holding = {
        row.id: ReservedTime(row.send_at, row.move_token)
        for row in rows
        if not row.ended and row.id not in void
    }
    return Settled(holding, void, set(ordered) - {row.id for row in rows})


def _take_singly(database: Database, message_ids: Sequence[UUID]) -> None:
    """Take the ids that can be taken, in random order, so that each has its turn in some sweep.

    One transaction may be storing a thousand of them, and each of these waits for it.
    """
    failures = 0
    for message_id in random.sample(message_ids, len(message_ids)):
        try:
            database.transact(partial(_take, database, message_ids=[message_id]))
        except StoreUnavailable as error:
            log.warning(
                "could not settle the reservation of message %s; the next sweep will: %s",
                message_id, error,
            )  # fmt: skip
            failures += 1
            if failures == _MOST_FAILURES:
                return


def _take(database: Database, connection: Connection, message_ids: Sequence[UUID]) -> None:
    backend = database.backend
    insert = backend.insert_if_absent(database.tables.messages).values(_NOTHING)
    with backend.impatient(connection):
        for message_id in message_ids:
            backend.is_inserted(connection, insert, {"id": message_id})

"""Orphans: reservations whose message is not stored, and never will be once they are given back.

Its submit may be frozen between reservation and INSERT. So the id is taken first, by a row that is
no message: the primary key then refuses the late INSERT, on whatever way it comes. Where an INSERT
is under way the database waits for its end, and the message is found.
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
"""After which the others wait for the next sweep."""


class GivenUp(StoreUnavailable):
    """The place was given back before the message was stored, which nobody can do any more."""

    def __init__(self) -> None:
        super().__init__("storing it took longer than its place was kept", refused=True)


_NOW = database_now()
_NOTHING: dict[str, Any] = {
    "channel": "", "recipient": "", "scope": "", "body": {}, "status": VOID, "reserved": False,
    "send_at": _NOW, "next_attempt_at": _NOW, "enqueue_at": _NOW, "created_at": _NOW,
    "finished_at": _NOW, "attempt_count": 0, "max_attempts": 1, "claim_token": 0,
}  # fmt: skip


class Settled(NamedTuple):
    """What came of it.

    ``holding``: messages that hold a place. ``void``: what is never stored.
    ``under_way``: what some transaction is perhaps still storing.
    """

    holding: dict[UUID, ReservedTime]
    void: set[UUID]
    under_way: set[UUID]


def give_up(database: Database, message_ids: Sequence[UUID]) -> Settled:
    """Let none of these be stored from now on, and say how they stand. Raises StoreUnavailable."""
    tables = database.tables
    messages = tables.messages
    ordered = sorted(message_ids)  # as others take them, so that no two wait for each other
    try:
        database.transact(lambda connection: _take(database, connection, ordered))
    except StoreUnavailable as error:
        log.warning("could not settle %d reservations together: %s", len(ordered), error)
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
    """Take what can be taken, in an order that lets everyone have a turn when it comes again.

    One transaction may be storing a thousand of them, and each is waited for.
    """
    failures = 0
    for message_id in random.sample(message_ids, len(message_ids)):
        try:
            database.transact(partial(_take, database, message_ids=[message_id]))
        except StoreUnavailable as error:
            log.warning("could not settle the reservation of message %s: %s", message_id, error)
            failures += 1
            if failures == _MOST_FAILURES:
                return


def _take(database: Database, connection: Connection, message_ids: Sequence[UUID]) -> None:
    backend = database.backend
    insert = backend.insert_if_absent(database.tables.messages).values(_NOTHING)
    with backend.impatient(connection):
        for message_id in message_ids:
            backend.is_inserted(connection, insert, {"id": message_id})

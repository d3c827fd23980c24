"""Reservations and permits as the rows tell them, to compare Redis with; and orphans.

An orphan is a reservation whose message is not stored, and must not be once it is released: its
submit may be frozen before the INSERT. So the id is taken first, by a void row: the primary key
then refuses any late INSERT, and the database waits for the end of one that is under way.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Container, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import Connection, delete, exists, select

from dispatcher.errors import StoreUnavailable
from dispatcher.scope import Scope, counted
from dispatcher.store.database import Database
from dispatcher.store.schema import VOID, VOID_VALUES

log = logging.getLogger(__name__)

_MOST_FAILURES = 5
"""After so many failures the others wait for the next sweep."""


class ReservationRow(NamedTuple):
    """The reservation that a message should have, and what its scopes follow from."""

    message_id: UUID
    scope: str
    send_at: datetime
    channel: str
    scopes: Mapping[str, str] | None
    tail: str

    def counted(self, kinds: Container[str]) -> tuple[Scope, ...]:
        return counted(kinds, scope=self.scope, channel=self.channel, scopes=self.scopes)


class PermitRow(NamedTuple):
    """``age``: the time since the latest instant of its send, negative while it may happen."""

    message_id: UUID
    token: int
    scope: str
    channel: str
    age: timedelta
    is_under_way: bool


class ReservedTime(NamedTuple):
    send_at: datetime
    tail: str


class ReservationState(NamedTuple):
    """Whether a message ``holds`` its reservation; ``frees``: it ended a short while ago."""

    row: ReservationRow
    holds: bool
    frees: bool


class Settled(NamedTuple):
    """``void`` can never be stored; another transaction may be storing what is ``under_way``."""

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
            len(ordered), error,
        )  # fmt: skip
        if not database.backend.has_one_writer:
            _take_singly(database, ordered)
    row = messages.c
    ended = tables.holds_no_reservation.label("ended")
    query = select(row.id, row.send_at, row.tail, row.status, ended)
    rows = database.read_of(query, row.id, ordered)
    void = {row.id for row in rows if row.status == VOID}
    holding = {row.id: ReservedTime(row.send_at, row.tail) for row in rows if not row.ended}
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
    backend, messages = database.backend, database.tables.messages
    insert = backend.insert_if_absent(messages).values(VOID_VALUES)
    with backend.impatient(connection):
        for message_id in message_ids:
            backend.try_insert(connection, insert, {"id": message_id})
    if backend.has_partitions:  # a message that has ended lies beside them, and keeps its id
        ended = messages.alias()
        is_stored = exists().where(ended.c.id == messages.c.id, ended.c.status != VOID)
        these = database.one_of(messages.c.id, message_ids)
        connection.execute(delete(messages).where(these, messages.c.status == VOID, is_stored))

"""Ids that no message can be stored under any more: their rows are void.

An orphan is a reservation whose message is not stored, and must not be once it is released: its
submit may be frozen before the INSERT. So the id is taken first, by a void row: the primary key
then refuses any late INSERT, and the database waits for the end of one that is under way.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import sqlalchemy as sa

from dispatcher.errors import StoreUnavailable
from dispatcher.message import Message, Status
from dispatcher.store.database import Database
from dispatcher.store.engines.base import is_added
from dispatcher.store.engines.types import database_now, insert_if_absent, one_of
from dispatcher.store.messages import free_key
from dispatcher.store.schema import TAKEN_BACK, VOID

log = logging.getLogger(__name__)

_MOST_FAILURES = 5
"""After so many failures the others wait for the next sweep."""
VOID_VALUES: dict[str, Any] = {
    "channel": "", "recipient": "", "scope": "", "body": {}, "status": VOID, "max_attempts": 1,
}  # fmt: skip
"""The values of a void row, but for its id."""


class ReservedTime(NamedTuple):
    send_at: datetime
    tail: str


class Settled(NamedTuple):
    """``holding`` are stored and need these reservations, ``void`` are not and never will be.

    Another transaction may be storing what is ``under_way``.
    """

    holding: dict[UUID, ReservedTime]
    void: set[UUID]
    under_way: set[UUID]


class VoidIds:
    """Takes ids, so that no message is stored under them any more. Raises StoreUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._tables = database.tables

    def give_up(self, message_ids: Sequence[UUID]) -> Settled:
        """Prevent these from being stored; return their state."""
        ordered = sorted(message_ids)  # in the same order everywhere, so that no two deadlock
        try:
            self._take(ordered)
        except StoreUnavailable as error:
            log.warning(
                "could not settle %d reservations together, settling each alone: %s",
                len(ordered), error,
            )  # fmt: skip
            if not self._database.backend.has_one_writer:
                self._take_singly(ordered)
        row = self._tables.messages.c
        ended = self._tables.holds_no_reservation.label("ended")
        query = sa.select(row.id, row.send_at, row.tail, row.status, ended)
        rows = self._database.read_of(query.where(self._tables.has_id("values")), ordered)
        void = {row.id for row in rows if row.status == VOID}
        holding = {row.id: ReservedTime(row.send_at, row.tail) for row in rows if not row.ended}
        return Settled(holding, void, set(ordered) - {row.id for row in rows})

    def _take_singly(self, message_ids: Sequence[UUID]) -> None:
        """Take the ids that can be taken, in random order: one transaction may hold a thousand."""
        failures = 0
        for message_id in random.sample(message_ids, len(message_ids)):
            try:
                self._take([message_id])
            except StoreUnavailable as error:
                log.warning(
                    "could not settle the reservation of message %s; the next reconcile does: %s",
                    message_id, error,
                )  # fmt: skip
                failures += 1
                if failures == _MOST_FAILURES:
                    return

    def _take(self, message_ids: Sequence[UUID]) -> None:
        backend, messages = self._database.backend, self._tables.messages
        insert = insert_if_absent(messages).values(VOID_VALUES)

        def work(connection: sa.Connection) -> None:
            with backend.impatient(connection):
                for message_id in message_ids:
                    is_added(connection, insert, {"id": message_id})
            # A message that has ended keeps its id, also where the database took the id twice.
            ended = backend.ended_before(connection, self._tables, message_ids)
            if ended:
                taken = (one_of(messages.c.id, [*ended]), messages.c.status == VOID)
                connection.execute(sa.delete(messages).where(*taken))

        self._database.transact(work)

    def take_back(self, message: Message) -> Settled:
        """Take back a message that lost its reservation, and return its state: void then.

        One that was claimed, if only before, moved or cancelled meanwhile stays.

        Without an idempotency key its row becomes void. With one, a duplicate submit may have
        returned the message, so it is cancelled, and the key is free.
        """
        messages, key = self._tables.messages, message.idempotency_key
        values: dict[str, Any] = {
            "status": Status.CANCELLED.value, "last_error": TAKEN_BACK, "idempotency_key": None,
            "finished_at": database_now(),
        }  # fmt: skip
        if key is None:
            values = {
                "status": VOID, "recipient": "", "body": {}, "trace": None, "status_url": None,
                "notified_status": None, "next_attempt_at": database_now(),
            }  # fmt: skip
        this = messages.c.id == message.id
        row = messages.c
        stands = (this, self._tables.is_scheduled, row.claim_token == 0, row.tail == "")
        ended = self._tables.holds_no_reservation.label("ended")
        columns = (
            row.id, row.send_at, row.tail, row.status, row.idempotency_key, row.last_error, ended
        )  # fmt: skip

        def work(connection: sa.Connection) -> Settled:
            connection.execute(sa.update(messages).where(*stands).values(**values))
            rows = connection.execute(sa.select(*columns).where(this)).all()
            if key is not None and any(row.idempotency_key is None for row in rows):
                connection.execute(free_key(self._tables, key, message.id))
            stay = [row for row in rows if row.status != VOID and row.last_error != TAKEN_BACK]
            holding = {row.id: ReservedTime(row.send_at, row.tail) for row in stay if not row.ended}
            return Settled(holding, set() if stay else {message.id}, set())

        return self._database.transact(work)

"""Ids that no message can be stored under any more: their rows are void.

An orphan is a reservation whose message is not stored, and must not be once it is released: its
submit may be frozen before the INSERT. So the id is taken first, by a void row: the primary key
then refuses any late INSERT, and the database waits for the end of one that is under way.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, delete, exists, select, update

from dispatcher.errors import StoreUnavailable
from dispatcher.message import Message, Status
from dispatcher.store.database import Database
from dispatcher.store.engines.types import database_now
from dispatcher.store.maintenance import ReservedTime
from dispatcher.store.messages import free_key
from dispatcher.store.schema import TAKEN_BACK, VOID

log = logging.getLogger(__name__)

_MOST_FAILURES = 5
"""After so many failures the others wait for the next sweep."""
_NOW = database_now()
VOID_VALUES: dict[str, Any] = {
    "channel": "", "recipient": "", "scope": "", "body": {}, "status": VOID, "reserved": False,
    "send_at": _NOW, "next_attempt_at": _NOW, "enqueue_at": _NOW, "created_at": _NOW,
    "attempt_count": 0, "max_attempts": 1, "claim_token": 0,
}  # fmt: skip
"""The values of a void row, but for its id."""


class Settled(NamedTuple):
    """``void`` can never be stored; another transaction may be storing what is ``under_way``."""

    holding: dict[UUID, ReservedTime]
    void: set[UUID]
    under_way: set[UUID]


class VoidIds:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._tables = database.tables

    def give_up(self, message_ids: Sequence[UUID]) -> Settled:
        """Prevent these from being stored; return their state. Raises StoreUnavailable."""
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
        query = select(row.id, row.send_at, row.tail, row.status, ended)
        rows = self._database.read_of(query, row.id, ordered)
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
                    "could not settle the reservation of message %s; the next sweep will: %s",
                    message_id, error,
                )  # fmt: skip
                failures += 1
                if failures == _MOST_FAILURES:
                    return

    def _take(self, message_ids: Sequence[UUID]) -> None:
        backend, messages = self._database.backend, self._tables.messages
        insert = backend.insert_if_absent(messages).values(VOID_VALUES)

        def work(connection: Connection) -> None:
            with backend.impatient(connection):
                for message_id in message_ids:
                    backend.try_insert(connection, insert, {"id": message_id})
            if backend.has_partitions:  # a message that has ended lies beside them, keeps its id
                ended = messages.alias()
                is_stored = exists().where(ended.c.id == messages.c.id, ended.c.status != VOID)
                taken = (backend.one_of(messages.c.id, message_ids), messages.c.status == VOID)
                connection.execute(delete(messages).where(*taken, is_stored))

        self._database.transact(work)

    def take_back(self, message: Message) -> bool:
        """Take back a message that lost its reservation, unless it was claimed or moved.

        Without an idempotency key its row becomes void. With one, a duplicate submit may have
        returned the message, so it is cancelled, and the key is free.
        """
        messages, key = self._tables.messages, message.idempotency_key
        values: dict[str, Any] = {
            "status": Status.CANCELLED.value, "last_error": TAKEN_BACK, "idempotency_key": None,
            "finished_at": _NOW,
        }  # fmt: skip
        if key is None:
            values = {
                "status": VOID, "recipient": "", "body": {}, "trace": None, "status_url": None,
                "notified_status": None, "next_attempt_at": _NOW,
            }  # fmt: skip
        this = messages.c.id == message.id
        stands = (this, self._tables.is_scheduled, messages.c.tail == "")
        query = select(messages.c.status, messages.c.idempotency_key).where(this)

        def work(connection: Connection) -> bool:
            connection.execute(update(messages).where(*stands).values(**values))
            rows = connection.execute(query).all()
            if key is not None and any(row.idempotency_key is None for row in rows):
                connection.execute(free_key(self._tables, key, message.id))
            return all(row.status in {VOID, Status.CANCELLED.value} for row in rows)

        return self._database.transact(work)

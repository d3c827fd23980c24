"""What the store says of single messages and the places they hold."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Row, Select, and_, select, true

from dispatcher.store.database import Database
from dispatcher.store.instants import database_now, later
from dispatcher.store.upkeep import Place, place_columns

_IDS_AT_ONCE = 5_000


class Standing(NamedTuple):
    """How a message stands to its place.

    ``holds`` tells whether the place is the message's. ``frees`` tells that it is no more but may
    still be taken, because the message ended a short while ago.
    """

    place: Place
    holds: bool
    frees: bool


class Standings:
    """Looks messages up by their ids."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._tables = database.tables

    def of(self, message_ids: Sequence[UUID], *, grace: timedelta) -> dict[UUID, Standing]:
        """Return how these messages stand; those that are not stored are left out.

        ``grace`` is how long after its end a message may still have its place.
        """
        tables = self._tables
        messages = tables.messages
        recently = messages.c.finished_at > later(database_now(), -grace.total_seconds())
        query = select(
            *place_columns(tables),
            (~tables.holds_no_place).label("holds"),
            and_(tables.holds_no_place, messages.c.reserved == true(), recently).label("frees"),
        )
        found = {}
        for start in range(0, len(message_ids), _IDS_AT_ONCE):
            some = self._database.one_of(messages.c.id, message_ids[start : start + _IDS_AT_ONCE])
            for row in self._read(query.where(some, tables.is_message)):
                found[row.id] = Standing(Place._make(row[:-2]), bool(row.holds), bool(row.frees))
        return found

    def _read(self, query: Select[Any]) -> Sequence[Row[Any]]:
        return self._database.run(lambda connection: connection.execute(query).all())

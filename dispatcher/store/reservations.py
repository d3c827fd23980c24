"""Reservations and permits as the rows tell them, to compare Redis with."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Column, and_, select, true

from dispatcher.scope import Scope, counted
from dispatcher.store.database import Database
from dispatcher.store.engines.types import database_now, later
from dispatcher.store.schema import Tables

_IDS_AT_ONCE = 5_000


class ReservationRow(NamedTuple):
    """The reservation that a message should have, and what its scopes follow from."""

    message_id: UUID
    scope: str
    send_at: datetime
    channel: str
    scopes: Mapping[str, str] | None

    def counted(self, kinds: Container[str]) -> tuple[Scope, ...]:
        """Return the scopes it counts against: those whose kind is one of ``kinds``."""
        return counted(kinds, scope=self.scope, channel=self.channel, scopes=self.scopes)


class PermitRow(NamedTuple):
    """The permit of an attempt that has begun.

    ``age`` is the time since the latest instant of its send; negative while the send may still
    happen. ``is_under_way`` while the attempt has no outcome.
    """

    message_id: UUID
    token: int
    scope: str
    channel: str
    age: timedelta
    is_under_way: bool


class ReservedTime(NamedTuple):
    """The send time of a message that holds a reservation, and the token of its last move."""

    send_at: datetime
    token: int


class ReservationState(NamedTuple):
    """The state of a message's reservation.

    ``holds``: the message holds it. ``frees``: it does not any more, but the reservation may not be
    released yet, because the message ended a short while ago.
    """

    row: ReservationRow
    holds: bool
    frees: bool


def reservation_columns(tables: Tables) -> tuple[Column[Any], ...]:
    """Return the columns of a :class:`ReservationRow`."""
    row = tables.messages.c
    return row.id, row.scope, row.send_at, row.channel, row.scopes


def time_columns(tables: Tables) -> tuple[Column[Any], ...]:
    """Return the columns of an id and of a :class:`ReservedTime`."""
    row = tables.messages.c
    return row.id, row.send_at, row.move_token


class ReservationStates:
    """Looks up the reservations of messages by their ids."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._tables = database.tables

    def of(self, message_ids: Sequence[UUID], *, grace: timedelta) -> dict[UUID, ReservationState]:
        """Return the reservations of these messages; those that are not stored are left out.

        A message that was taken back (``VOID``) may still have its reservation, as one that ended.
        ``grace`` is how long after its end a message may still have its reservation.
        """
        tables = self._tables
        messages = tables.messages
        recently = messages.c.finished_at > later(database_now(), -grace.total_seconds())
        query = select(
            *reservation_columns(tables),
            (~tables.holds_no_reservation).label("holds"),
            and_(tables.holds_no_reservation, messages.c.reserved == true(), recently).label(
                "frees"
            ),
        )
        found = {}
        for start in range(0, len(message_ids), _IDS_AT_ONCE):
            some = self._database.one_of(messages.c.id, message_ids[start : start + _IDS_AT_ONCE])
            for row in self._database.read(query.where(some)):
                found[row.id] = ReservationState(
                    ReservationRow._make(row[:-2]), bool(row.holds), bool(row.frees)
                )
        return found

"""What was asked for by the clocks of a zone, and is booked for another time than they show now."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from itertools import chain
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Row, func, null, select

from dispatcher.errors import InvalidSendTime
from dispatcher.message import Status
from dispatcher.store.database import Database
from dispatcher.store.engines.base import pages
from dispatcher.store.engines.types import database_now
from dispatcher.store.events import EventRows, meant_at
from dispatcher.store.schema import Event
from dispatcher.times.offset import Offset
from dispatcher.times.send_time import check_zone, instant_of

_EXAMINED = 5_000
"""How many rows a statement reads."""


class WrongTime(NamedTuple):
    """An event, or a message, which has an ``id``, that stands ``at`` another time than it should.

    ``means`` is that of its wish by the present rules; None where this host has no such zone. Once
    it is moved, or that is refused, it is ``now`` at a time, or ``refused`` has the reason.
    """

    id: UUID | None
    event: str | None
    zone: str | None
    wish: str
    at: datetime
    means: datetime | None
    now: datetime | None = None
    refused: str | None = None


class Wishes:
    """Compares stored times with what was asked for. ``zone`` is that of events without one."""

    def __init__(self, database: Database, event_rows: EventRows, zone: str) -> None:
        self._database = database
        self._event_rows = event_rows
        self._zone = zone
        tables = database.tables
        self._messages, self._events = message, event = tables.messages.c, tables.events.c
        at = func.coalesce(message.asked_at, message.send_at).label("at")
        self._scheduled = select(
            message.id, message.event, message.zone, message.wish, at, message.enqueue_at,
            (message.send_at > database_now()).label("is_to_come"),
        ).where(tables.is_in_index(Status.SCHEDULED), tables.is_live)  # fmt: skip
        no_id, name = null().label("id"), event.name.label("event")
        self._to_come = select(no_id, name, event.name, event.zone, event.wish, event.at).where(
            event.wish.is_not(None), event.cancelled_at.is_(None), event.at > database_now()
        )

    def wrong_events(self) -> Iterator[WrongTime]:
        read = pages(self._database.read, self._to_come, [self._events.name], _EXAMINED)
        return filter(None, map(self._wrong, chain.from_iterable(read)))

    def wrong_messages(self) -> Iterator[list[WrongTime]]:
        """Yield those of the messages that are next to be enqueued, of those behind them, etc."""
        key = (self._messages.enqueue_at, self._messages.id)
        for rows in pages(self._database.read, self._scheduled, key, _EXAMINED):
            wished = [row for row in rows if row.wish is not None and row.is_to_come]
            followed = {row.event for row in wished if "T" not in row.wish}
            events = self._event_rows.read([*followed])
            compared = (self._wrong(row, events.get(row.event)) for row in wished)
            yield [*filter(None, compared)]

    def _wrong(self, row: Row[Any], event: Event | None = None) -> WrongTime | None:
        means = None
        with suppress(InvalidSendTime):
            if "T" in row.wish:
                means = instant_of(row.wish, row.zone or "UTC")
            elif event is None:  # that of a reminder was deleted
                return None
            else:
                zone = check_zone(event.zone or self._zone)
                means = Offset.parse(row.wish).from_event(meant_at(event), zone)
        if means == row.at:
            return None
        return WrongTime(row.id, row.event, row.zone, row.wish, row.at, means)

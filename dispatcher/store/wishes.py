"""What was asked for by the clocks of a zone, and is booked for another time than they show now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Row, func, null, select

from dispatcher.errors import InvalidSendTime
from dispatcher.message import Status
from dispatcher.store.database import Database
from dispatcher.store.engines.base import pages
from dispatcher.store.engines.types import database_now
from dispatcher.store.events import EventRows, meant_at
from dispatcher.store.listing import IndexScan
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

    @property
    def moves_later(self) -> bool:
        return self.means is not None and self.means > self.at


class Wishes:
    """Compares stored times with what was asked for. ``zone`` is that of events without one."""

    def __init__(self, database: Database, event_rows: EventRows, zone: str) -> None:
        self._database = database
        self._event_rows = event_rows
        self._zone = zone
        tables = database.tables
        self._messages, self._events = message, event = tables.messages.c, tables.events.c
        self._scheduled = [tables.is_in_index(Status.SCHEDULED), tables.is_live]
        at = func.coalesce(message.asked_at, message.send_at).label("at")
        wished = select(message.id, message.event, message.zone, message.wish, at)
        self._wished = wished.add_columns(message.enqueue_at).where(
            *self._scheduled, message.wish.is_not(None), message.send_at > database_now()
        )
        no_id, name = null().label("id"), event.name.label("event")
        self._to_come = select(no_id, name, event.zone, event.wish, event.at).where(
            event.wish.is_not(None), event.cancelled_at.is_(None), event.at > database_now()
        )

    def wrong_events(self) -> Iterator[list[WrongTime]]:
        scan = IndexScan([self._events.name], [])
        for start, end in scan.stretches(self._database, size=_EXAMINED):
            rows = self._database.read(self._to_come.where(*scan.between(start, end)))
            yield self._wrong(rows, {})

    def wrong_messages(
        self, *, last_first: bool = False, most: int | None = None
    ) -> Iterator[list[WrongTime]]:
        """Yield pages, by the index of what is to be enqueued; ``most`` of them."""
        row = self._messages
        scan = IndexScan([row.enqueue_at], self._scheduled, oldest_first=not last_first)
        read = partial(pages, self._database.read, key=(row.enqueue_at, row.id), size=_EXAMINED)
        for start, end in islice(scan.stretches(self._database, size=_EXAMINED), most):
            stretch = read(self._wished.where(*scan.between(start, end)), last_first=last_first)
            for rows in islice(stretch, most):
                followed = {row.event for row in rows if "T" not in row.wish}
                yield self._wrong(rows, self._event_rows.read([*followed]) if followed else {})

    def _wrong(self, rows: Sequence[Row[Any]], events: Mapping[str, Event]) -> list[WrongTime]:
        compared = [
            WrongTime(row.id, row.event, row.zone, row.wish, row.at,
                      self._means(row.wish, row.zone, events.get(row.event)))
            for row in rows if "T" in row.wish or row.event in events
        ]  # fmt: skip
        return [row for row in compared if row.means != row.at]

    def _means(self, wish: str, zone: str | None, event: Event | None) -> datetime | None:
        with suppress(InvalidSendTime):
            if event is None or "T" in wish:
                return instant_of(wish, zone or "UTC")
            zone = event.zone or self._zone
            return Offset.parse(wish).from_event(meant_at(event), check_zone(zone))
        return None

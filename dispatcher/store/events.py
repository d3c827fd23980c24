"""Events that messages remind of, and what is stored or changed with them in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import sqlalchemy as sa

from dispatcher.errors import StoreUnavailable
from dispatcher.store.database import Database
from dispatcher.store.engines.base import is_added
from dispatcher.store.engines.types import database_now, insert_if_absent, one_of
from dispatcher.store.schema import AS_NAMED, Addition, Event, Movable, Tables, to_movable
from dispatcher.times.send_time import instant_of

if TYPE_CHECKING:
    from dispatcher.store.messages import Messages, NewSlot

CANCELLED = "its event was cancelled"
LATE = "its event was moved so near that its time was past"
"""The errors of messages that were cancelled with their event, or by a move of it."""
_COUNTED = {**AS_NAMED, "preserve_rowcount": True}


class EventChanged(StoreUnavailable):
    """The event of the message moved or was cancelled before the message was stored."""

    def __init__(self) -> None:
        super().__init__("its event kept moving", remedy="try again", refused=True)


def events_named(
    tables: Tables, read: Callable[[sa.Select[Any]], Sequence[sa.Row[Any]]]
) -> dict[str, Event]:
    """Return the events of the names that ``read`` selects; a series is none."""
    row = tables.events.c
    query = sa.select(*(row[name] for name in Event._fields))
    rows = read(query.where(one_of(row.name, "values"), row.at.is_not(None)))
    return {row.name: Event._make(row) for row in rows}


def hold_events(tables: Tables, connection: sa.Connection, additions: Sequence[Addition]) -> None:
    """Lock the events of these messages until the transaction ends, in the order of their names.

    New ones are added first. Raises EventChanged where one has another token, or was cancelled.
    """
    row = tables.events.c
    new = {a.new_event.name: a.new_event for a in additions if a.new_event is not None}
    for name in sorted(new):
        is_added(connection, insert_if_absent(tables.events), new[name]._asdict(), AS_NAMED)
    held = {a.event_token: a.message.event for a in additions if a.event_token is not None}
    if held:
        # A token belongs to one event. Several events are locked in one statement.
        these = (one_of(row.name, sorted(set(held.values()))), row.token.in_(held))
        hold = sa.update(tables.events).where(*these, row.cancelled_at.is_(None))
        hold = hold.values(token=row.token)
        if connection.execute(hold, execution_options=_COUNTED).rowcount != len(held):
            raise EventChanged


def meant_at(event: Event) -> datetime:
    """Return when an event is by the present rules of its zone. Raises InvalidSendTime."""
    return event.at if event.wish is None else instant_of(event.wish, event.zone or "UTC")


class EventRows:
    """Reads and changes events, each change in one transaction with messages of the event."""

    def __init__(self, database: Database, messages: Messages) -> None:
        self._database = database
        self._messages = messages
        self._tables = tables = database.tables
        self._events, row = tables.events, tables.messages.c
        self._reminders = tables.movable.where(
            row.event == sa.bindparam("event"), tables.is_scheduled
        )
        self._locked = self._reminders.order_by(row.id).with_for_update()

    def read(self, names: Sequence[str]) -> dict[str, Event]:
        return events_named(self._tables, lambda query: self._database.read_of(query, names))

    def add(self, event: Event) -> None:
        """Add an event unless there is one of its name."""
        self._database.add_if_absent(self._events, **event._asdict())

    def reminders(self, name: str) -> list[Movable]:
        """Return the scheduled messages of an event."""
        return [*map(to_movable, self._database.read(self._reminders, {"event": name}))]

    def move(
        self,
        before: Event,
        after: Event,
        read: Collection[Movable],
        moves: Sequence[NewSlot],
        late: Sequence[UUID],
        *,
        within: timedelta,
    ) -> Mapping[UUID, Movable] | None:
        """Move an event, these messages of it, and cancel ``late`` ones; return all as they are.

        None, and nothing is changed, where it is not the event, and its scheduled messages are not
        those, that were ``read``.
        """

        def work(connection: sa.Connection) -> Mapping[UUID, Movable]:
            if self._change(connection, before, after._asdict()):
                rows = map(to_movable, connection.execute(self._locked, {"event": before.name}))
                if {(row.message.id, row.token) for row in rows} != known:
                    raise EventChanged
                if not self._messages.move_in(connection, moves, within=within):
                    raise EventChanged
                self._messages.cancel_in(connection, late, LATE)
            elif self._token(connection, before.name) != after.token:  # else it was done before
                raise EventChanged
            return self._changed(connection, [message_id for message_id, _ in known])

        known = {(row.message.id, row.token) for row in read}
        try:
            return self._database.transact(work)
        except EventChanged:
            return None

    def cancel(self, before: Event, token: str) -> Mapping[UUID, Movable] | None:
        """Cancel an event with its scheduled messages; return these, None where it has moved."""
        after = {"token": token, "cancelled_at": database_now()}

        def work(connection: sa.Connection) -> Mapping[UUID, Movable] | None:
            if not self._change(connection, before, after):
                return {} if self._token(connection, before.name) == token else None
            ids = [row.id for row in connection.execute(self._locked, {"event": before.name})]
            self._messages.cancel_in(connection, ids, CANCELLED)
            return self._changed(connection, ids)

        return self._database.transact(work)

    def _change(self, connection: sa.Connection, before: Event, after: Mapping[str, Any]) -> bool:
        row = self._events.c
        this = (row.name == before.name, row.token == before.token, row.cancelled_at.is_(None))
        change = sa.update(self._events).where(*this).values(**after)
        return connection.execute(change, execution_options=_COUNTED).rowcount == 1

    def _token(self, connection: sa.Connection, name: str) -> str | None:
        row = self._events.c
        return connection.scalar(sa.select(row.token).where(row.name == name))

    def _changed(self, connection: sa.Connection, ids: Sequence[UUID]) -> Mapping[UUID, Movable]:
        rows = connection.execute(self._tables.movable.where(self._tables.has_id(ids)))
        return {row.id: to_movable(row) for row in rows}

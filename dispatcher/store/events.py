"""Events that messages remind of, and what is stored or changed with them in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import sqlalchemy as sa

from dispatcher.errors import StoreUnavailable
from dispatcher.store.database import Database
from dispatcher.store.engines.base import is_added
from dispatcher.store.engines.types import insert_if_absent, one_of
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


class EventChange(NamedTuple):
    """What becomes of an event and its messages; those ``cancelled`` have ``because`` as error."""

    event: Event
    moves: Sequence[NewSlot] = ()
    cancelled: Sequence[UUID] = ()
    because: str = CANCELLED


class EventRows:
    """Reads and changes events, each change in one transaction with messages of the event."""

    def __init__(self, database: Database, messages: Messages) -> None:
        self._database = database
        self._messages = messages
        self._tables = tables = database.tables
        self._events, row = tables.events, tables.messages.c
        reminders = tables.movable.where(row.event == sa.bindparam("event"), tables.is_scheduled)
        self._locked = reminders.order_by(row.id).with_for_update()

    def read(self, names: Sequence[str]) -> dict[str, Event]:
        return events_named(self._tables, lambda query: self._database.read_of(query, names))

    def add(self, event: Event) -> None:
        """Add an event unless there is one of its name."""
        self._database.add_if_absent(self._events, **event._asdict())

    def change(
        self, name: str, decide: Callable[[Event | None, Sequence[Movable]], EventChange]
    ) -> tuple[Event, Collection[UUID]]:
        """Change an event as ``decide`` says; return it, and the ids of messages to be cancelled.

        It is given the event and its scheduled messages, which nothing else changes meanwhile. It
        may be asked again, also where the change was made and its reply lost: then the ids are
        those of every time.
        """
        ended = set[UUID]()

        def work(connection: sa.Connection) -> Event:
            def read(query: sa.Select[Any]) -> Sequence[sa.Row[Any]]:
                return connection.execute(query.with_for_update(), {"values": [name]}).all()

            event = events_named(self._tables, read).get(name)
            rows = connection.execute(self._locked, {"event": name})
            after, moves, cancelled, because = decide(event, [*map(to_movable, rows)])
            ended.update(cancelled)
            this = self._events.c.name == name
            connection.execute(sa.update(self._events).where(this).values(after._asdict()))
            self._messages.change_locked(connection, moves, cancelled, because)
            return after

        return self._database.transact(work), ended

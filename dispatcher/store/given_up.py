"""Making sure that a message whose place is given back is not stored afterwards.

Its submit may be frozen between reservation and INSERT. So the id is taken first, by a row that is
no message: the primary key then refuses the late INSERT, on whatever way it comes. Where an INSERT
is under way the database waits for its end, and the message is found.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Column, Connection, Insert, select

from dispatcher.errors import StoreUnavailable
from dispatcher.store.columns import MYSQL
from dispatcher.store.database import Database
from dispatcher.store.instants import database_now
from dispatcher.store.once import insert_once, unless_there
from dispatcher.store.schema import VOID, Tables

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


class Kept(NamedTuple):
    """The promised time of a message that holds a place, and the token of its last move."""

    send_at: datetime
    token: int


class Settled(NamedTuple):
    """What came of it.

    ``holding``: messages that hold a place. ``void``: what is never stored.
    ``under_way``: what some transaction is perhaps still storing.
    """

    holding: dict[UUID, Kept]
    void: set[UUID]
    under_way: set[UUID]


def kept_columns(tables: Tables) -> tuple[Column[Any], ...]:
    """Return the columns of an id and of what is :class:`Kept`."""
    row = tables.messages.c
    return row.id, row.send_at, row.move_token


def give_up(database: Database, message_ids: Sequence[UUID]) -> Settled:
    """Let none of these be stored from now on, and say how they stand. Raises StoreUnavailable."""
    tables = database.tables
    messages = tables.messages
    ordered = sorted(message_ids)  # as others take them, so that no two wait for each other
    try:
        database.transact(lambda connection: _take(database.tables, connection, ordered))
    except StoreUnavailable as error:
        log.warning("%d reservations are looked at one by one: %s", len(ordered), error)
        if database.url.get_backend_name() != "sqlite":  # there one writer keeps out all others
            _take_singly(database, ordered)
    query = select(
        *kept_columns(tables), messages.c.status, tables.holds_no_place.label("ended")
    ).where(database.one_of(messages.c.id, ordered))
    rows = database.run(lambda connection: connection.execute(query).all())
    void = {row.id for row in rows if row.status == VOID}
    holding = {
        row.id: Kept(row.send_at, row.move_token)
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
            database.transact(partial(_take, database.tables, message_ids=[message_id]))
        except StoreUnavailable as error:
            log.warning("message %s: it is perhaps being stored: %s", message_id, error)
            failures += 1
            if failures == _MOST_FAILURES:
                return


def _take(tables: Tables, connection: Connection, message_ids: Sequence[UUID]) -> None:
    messages = tables.messages
    insert = insert_once(tables, connection.dialect.name).values(_NOTHING)
    with _impatience(connection):
        if _is_mysql(connection):  # the shortest wait that it knows is a second, for each
            seen = select(messages.c.id).where(messages.c.id.in_(message_ids))
            connection.execute(seen.with_for_update(nowait=True))
        for message_id in message_ids:
            unless_there(partial(_insert, connection, insert, message_id))


@contextmanager
def _impatience(connection: Connection) -> Iterator[None]:
    """Wait for no transaction for long: the sweep comes again. SQLite lets nobody in at all."""
    dialect = connection.dialect
    if dialect.name == "postgresql":
        connection.exec_driver_sql("SET LOCAL lock_timeout = 200")
    if dialect.name not in MYSQL:
        yield
        return
    usual = connection.exec_driver_sql("SELECT @@innodb_lock_wait_timeout").scalar_one()
    shortest = 1 if _is_mysql(connection) else 0
    connection.exec_driver_sql(f"SET innodb_lock_wait_timeout = {shortest}")
    try:
        yield
    finally:
        if not connection.invalidated:
            connection.exec_driver_sql(f"SET innodb_lock_wait_timeout = {usual}")


def _is_mysql(connection: Connection) -> bool:
    dialect = connection.dialect
    return dialect.name in MYSQL and not getattr(dialect, "is_mariadb", False)


def _insert(connection: Connection, insert: Insert, message_id: UUID) -> bool:
    return connection.execute(insert, {"id": message_id}).rowcount > 0

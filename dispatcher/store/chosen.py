"""Changing the messages that a query finds and locks, on each kind of database.

MariaDB and MySQL change no table that the statement also reads, and return no rows that they have
changed. There a transaction reads first what it will change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, Delete, Row, Select, Update

from dispatcher.store.columns import MYSQL
from dispatcher.store.database import Database
from dispatcher.store.schema import messages


def chosen(connection: Connection, query: Select[tuple[UUID]]) -> Any:
    """Return what a statement of the same transaction can compare ids with, to change them."""
    if connection.dialect.name in MYSQL:
        return connection.scalars(query).all()
    return query.scalar_subquery()


def change_chosen(
    database: Database,
    query: Select[tuple[UUID]],
    change: Update | Delete,
    *wanted: ColumnElement[Any],
) -> Sequence[Row[Any]]:
    """Change the messages whose ids ``query`` finds; return ``wanted`` of them, ``id`` first.

    On some databases as it was before: ``wanted`` is nothing that is changed.
    """

    def at_once(connection: Connection) -> Sequence[Row[Any]]:
        these = messages.c.id.in_(query.scalar_subquery())
        return connection.execute(change.where(these).returning(*wanted)).all()

    def in_two(connection: Connection) -> Sequence[Row[Any]]:
        rows: Sequence[Row[Any]] = connection.execute(query.with_only_columns(*wanted)).all()
        if rows:
            connection.execute(change.where(messages.c.id.in_([row[0] for row in rows])))
        return rows

    if database.engine.dialect.name in MYSQL:
        return database.transact(in_two)
    return database.run(at_once)

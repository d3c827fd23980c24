"""Changing the messages that a query finds and locks, on each kind of database.

MariaDB and MySQL change no table that the statement also reads, and return no rows that they have
changed. There a transaction reads first what it will change.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Connection,
    Delete,
    Dialect,
    Row,
    Select,
    Table,
    TextClause,
    Update,
    any_,
    func,
    text,
)

from dispatcher.store.columns import MYSQL
from dispatcher.store.database import Database


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
    messages = database.tables.messages

    def at_once(connection: Connection) -> Sequence[Row[Any]]:
        these = _among(messages.c.id, query, connection.dialect)
        return connection.execute(change.where(these).returning(*wanted)).all()

    def in_two(connection: Connection) -> Sequence[Row[Any]]:
        rows: Sequence[Row[Any]] = connection.execute(query.with_only_columns(*wanted)).all()
        if rows:
            ids = [row[0] for row in rows]
            connection.execute(
                _deletion(connection, change, ids)
                if isinstance(change, Delete)
                else change.where(messages.c.id.in_(ids))
            )
        return rows

    if database.engine.dialect.name in MYSQL:
        return database.transact(in_two)
    return database.run(at_once)


def _among(
    column: ColumnElement[UUID], query: Select[tuple[UUID]], dialect: Dialect
) -> ColumnElement[bool]:
    """Return that a row is one that ``query`` finds.

    PostgreSQL may join what stands behind IN to the table, and run a query with LIMIT and SKIP
    LOCKED anew for each row. It runs the query of an ARRAY once.
    """
    if dialect.name == "postgresql":
        return column == any_(func.array(query.scalar_subquery(), type_=ARRAY(column.type)))
    return column.in_(query.scalar_subquery())


def _deletion(connection: Connection, change: Delete, ids: Sequence[UUID]) -> TextClause:
    """Return the statement of MariaDB and MySQL that deletes these rows and reads no others.

    ``DELETE … WHERE id IN (…)`` reads the whole table where that looks cheaper, and then waits for
    every row that another transaction has locked: two that do so end in a deadlock. (An UPDATE
    passes by a locked row that it would not change.) This join has one order.
    """
    table = connection.dialect.identifier_preparer.format_table(cast("Table", change.table))
    return text(
        f"DELETE {table} FROM "
        "JSON_TABLE(:ids, '$[*]' COLUMNS (id CHAR(32) PATH '$')) AS gone "
        f"STRAIGHT_JOIN {table} ON {table}.id = UNHEX(gone.id)"
    ).bindparams(ids=json.dumps([each.hex for each in ids]))

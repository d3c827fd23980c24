"""Inserting a message unless its id or its idempotency key is there, on each kind of database."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlalchemy import Insert, bindparam, insert, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError

from dispatcher.store import numbers
from dispatcher.store.schema import Tables


def insert_once(tables: Tables, dialect: str) -> Insert:
    """Return the statement. On MariaDB and MySQL it is a plain one, and the key's refusal counts.

    Their INSERT IGNORE would also swallow values that do not fit, and what ON DUPLICATE KEY UPDATE
    answers for a row that is there depends on a flag of the connection.
    """
    messages = tables.messages
    if dialect == "postgresql":
        return postgresql.insert(messages).on_conflict_do_nothing()
    if dialect == "sqlite":
        return sqlite.insert(messages).on_conflict_do_nothing()
    return insert(messages)


def insert_if_wanted(tables: Tables, dialect: str, names: Sequence[str]) -> Insert:
    """Return the statement that also inserts nothing where the recipient has opted out.

    It is given the columns of these names as ``new_<name>``.
    """
    messages = tables.messages
    given = {name: bindparam(f"new_{name}", type_=messages.c[name].type) for name in names}
    row = select(*given.values()).where(~tables.suppressed(given["recipient"], given["channel"]))
    if dialect == "postgresql":
        return postgresql.insert(messages).from_select(names, row).on_conflict_do_nothing()
    if dialect == "sqlite":
        return sqlite.insert(messages).from_select(names, row).on_conflict_do_nothing()
    return insert(messages).from_select(names, row)


def unless_there(execute: Callable[[], bool]) -> bool:
    """Return what ``execute``, which inserts, returns; False where the id or the key was there."""
    try:
        return execute()
    except IntegrityError as error:
        if numbers.of(error) != numbers.TAKEN:
            raise
        return False

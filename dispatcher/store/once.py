"""Inserting a message unless its id or its idempotency key is there, on each kind of database."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Insert, insert
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError

from dispatcher.store import numbers
from dispatcher.store.schema import messages


def insert_once(dialect: str) -> Insert:
    """Return the statement. On MariaDB and MySQL it is a plain one, and the key's refusal counts.

    Their INSERT IGNORE would also swallow values that do not fit, and what ON DUPLICATE KEY UPDATE
    answers for a row that is there depends on a flag of the connection.
    """
    if dialect == "postgresql":
        return postgresql.insert(messages).on_conflict_do_nothing()
    if dialect == "sqlite":
        return sqlite.insert(messages).on_conflict_do_nothing()
    return insert(messages)


def unless_there(execute: Callable[[], bool]) -> bool:
    """Return what ``execute``, which inserts, returns; False where the id or the key was there."""
    try:
        return execute()
    except IntegrityError as error:
        if numbers.of(error) != numbers.TAKEN:
            raise
        return False

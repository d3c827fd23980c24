"""Changes of rows that are guarded by a token: one statement for many where it takes arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.types import TypeEngine

from dispatcher.store.database import Database
from dispatcher.store.engines import StoreEngine
from dispatcher.store.engines.types import Instant, Length, id_type

GivenRow = dict[str, Any]
_TYPES: dict[str, TypeEngine[Any]] = {
    "id": id_type(), "token": sa.Integer(), "wait": sa.Float(), "enqueue": sa.Float(),
    "more": sa.Integer(), "error": sa.Text(), "outcome": sa.Text(), "receipt": sa.Text(),
    "send_at": Instant(), "next_attempt_at": Instant(),
    "enqueue_at": Instant(), "expires_at": Instant(), "asked_at": Instant(), "until": Instant(),
    "expire_after": Length(), "zone": sa.Text(), "max_attempts": sa.Integer(), "key": sa.Text(),
    "tail": sa.Text(),
}  # fmt: skip


class Given:
    def __init__(self) -> None:
        self.names: dict[str, None] = {}

    def __call__(self, name: str) -> sa.ColumnElement[Any]:
        self.names[name] = None
        return sa.bindparam(f"given_{name}", type_=_TYPES[name])

    def finds(self, key: sa.Column[Any], name: str = "id") -> sa.ColumnElement[bool]:
        return key == self(name)


class GivenArrays(Given):
    """The values of many rows as arrays; ``same`` are those that all rows have."""

    def __init__(
        self, backend: StoreEngine, names: Iterable[str], **same: sa.ColumnElement[Any]
    ) -> None:
        super().__init__()
        self._same = same
        self._rows = backend.rows_from({name: _TYPES[name] for name in names})

    def __call__(self, name: str) -> sa.ColumnElement[Any]:
        return self._same[name] if name in self._same else self._rows.c[name]

    def finds(self, key: sa.Column[Any], name: str = "id") -> sa.ColumnElement[bool]:
        """Return the condition that ``key`` has the row's value, and so is one of all values.

        The latter is redundant: without it PostgreSQL joins by reading the whole index where a
        vacuum has counted no row, and that may have millions of entries of dead rows.
        """
        every = sa.bindparam(f"given_{name}", type_=sa.ARRAY(_TYPES[name]))
        return sa.and_(super().finds(key, name), key == sa.any_(every))


Make = Callable[[Given], sa.Update | sa.Delete]


class GuardedChange:
    def __init__(self, backend: StoreEngine, make: Make) -> None:
        self.make = make
        given = Given()
        self._one = make(given)
        self._names = tuple(given.names)
        self._many = make(GivenArrays(backend, self._names)) if backend.takes_arrays else None

    def run(self, connection: sa.Connection, rows: Sequence[GivenRow]) -> int:
        """Change these rows, as far as their tokens are still current; return how many."""
        if not rows:
            return 0
        if self._many is not None and len(rows) > 1:
            return connection.execute(self._many, arrays(rows, self._names)).rowcount
        given = [{f"given_{name}": row[name] for name in self._names} for row in rows]
        return connection.execute(self._one, given).rowcount

    def run_and_read(
        self, database: Database, rows: Sequence[GivenRow], query: sa.Select[Any]
    ) -> Sequence[sa.Row[Any]]:
        def work(connection: sa.Connection) -> Sequence[sa.Row[Any]]:
            self.run(connection, rows)
            return connection.execute(query).all()

        return database.transact(work) if len(rows) > 1 else database.run(work)


def arrays(rows: Sequence[GivenRow], names: Iterable[str] = ()) -> dict[str, list[Any]]:
    return {f"given_{name}": [row[name] for row in rows] for name in names or rows[0]}

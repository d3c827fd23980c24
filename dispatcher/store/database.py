"""Runs statements on pooled connections, and changes of many rows that a token guards."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Self, TypeVar
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.engine import ExceptionContext, create_engine
from sqlalchemy.exc import StatementError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.types import TypeEngine

from dispatcher.forks import never_finalise, renew_after_fork
from dispatcher.message import dump_json
from dispatcher.settings import TABLE_PREFIX, Settings
from dispatcher.store.engines import engine_of
from dispatcher.store.engines.base import StoreEngine, transaction
from dispatcher.store.engines.errors import (
    cause,
    refused_by_driver,
    takes_no_writes,
    unavailable,
    was_conflict,
    worth_another_try,
)
from dispatcher.store.engines.types import Instant, Length, id_type
from dispatcher.store.schema import tables_named

T = TypeVar("T")

_CONNECTIONS, _KEPT_OPEN = 32, 5
_TRIES = 3
_APART_SECONDS = 0.005
_VALUES_AT_ONCE = 5_000

GivenRow = dict[str, Any]
_TYPES: dict[str, TypeEngine[Any]] = {
    "id": id_type(), "token": sa.Integer(), "wait": sa.Float(), "enqueue": sa.Float(),
    "more": sa.Integer(), "error": sa.Text(), "outcome": sa.Text(), "receipt": sa.Text(),
    "status": sa.Text(), "may_expire": sa.Integer(),
    "send_at": Instant(), "next_attempt_at": Instant(),
    "enqueue_at": Instant(), "expires_at": Instant(), "asked_at": Instant(), "until": Instant(),
    "expire_after": Length(), "zone": sa.Text(), "max_attempts": sa.Integer(),
    "tail": sa.Text(),
}  # fmt: skip


def _leave_demoted(context: ExceptionContext) -> None:
    if takes_no_writes(context.sqlalchemy_exception):
        context.is_disconnect = True


class Database:
    """Runs pieces of work on pooled connections in autocommit mode. Raises StoreUnavailable.

    Every piece of work must be safe to run again: when the connection breaks, it is run up to two
    more times, because it may have been done; up to five where other transactions are in the way.
    """

    def __init__(
        self,
        url: str,
        *,
        table_prefix: str = TABLE_PREFIX,
        table_schema: str | None = None,
        connections: int = _CONNECTIONS,
        statement_seconds: int | None = None,
    ) -> None:
        self.backend = engine_of(url)
        self.backend.statement_seconds = statement_seconds
        self.url = self.backend.url
        self.tables = tables_named(
            table_prefix, table_schema, partial_indexes=self.backend.has_partial_indexes
        )
        self.engine = create_engine(
            self.url,
            isolation_level="AUTOCOMMIT",
            pool_reset_on_return=None,
            pool_size=_KEPT_OPEN,
            max_overflow=connections - _KEPT_OPEN,
            pool_timeout=2,
            json_serializer=dump_json,
            json_deserializer=json.loads,
            hide_parameters=True,
        )
        self.backend.prepare(self.engine)
        sa.event.listen(self.engine, "handle_error", _leave_demoted)
        renew_after_fork(self, Database._renew)

    def _renew(self) -> None:
        """Let a forked child connect anew, also for those who hold this object past the App's."""
        never_finalise(self.engine.pool)
        self.engine.dispose(close=False)

    @classmethod
    def of(cls, settings: Settings, **bounds: int) -> Self:
        return cls(
            settings.database_url,
            table_prefix=settings.table_prefix,
            table_schema=settings.table_schema or None,
            **bounds,
        )

    def close(self) -> None:
        self.engine.dispose()

    def one_of(self, column: sa.Column[Any], values: Sequence[Any]) -> sa.ColumnElement[bool]:
        return column == values[0] if len(values) == 1 else self.backend.one_of(column, values)

    def run(
        self, work: Callable[[sa.Connection], T], *, once: bool = False, begin: str | None = None
    ) -> T:
        """Do a piece of work, in a transaction where a statement to ``begin`` it is given.

        With ``once`` not again when the connection breaks.
        """
        broken = conflicts = 0
        while True:
            try:
                with (
                    self.engine.connect() as connection,
                    transaction(connection, begin) if begin else nullcontext(),
                ):
                    return work(connection)
            except (StatementError, PoolTimeout) as error:
                if was_conflict(error):
                    conflicts += 1
                else:
                    broken += _TRIES if once else 1
                if not worth_another_try(error) or _TRIES in (broken, conflicts // 2):
                    raise unavailable(error, self.url) from cause(error)
            except (UnicodeError, OverflowError) as error:
                raise refused_by_driver(error) from None
            # Not for security: so that two that met do not meet again.
            time.sleep(random.uniform(0, conflicts * _APART_SECONDS))  # noqa: S311

    def try_once(
        self, statement: sa.Select[*tuple[Any, ...]], values: Mapping[str, Any]
    ) -> Sequence[sa.Row[*tuple[Any, ...]]] | None:
        """Run a statement that must not be run again; None where it may have been done, or not."""
        is_tried = False

        def work(connection: sa.Connection) -> Sequence[sa.Row[*tuple[Any, ...]]] | None:
            nonlocal is_tried
            if is_tried:
                return None
            is_tried = True
            return connection.execute(statement, values).all()

        return self.run(work)

    def transact(self, work: Callable[[sa.Connection], T], *, once: bool = False) -> T:
        return self.run(work, once=once, begin=self.backend.begin)

    def read(self, query: sa.Select[*tuple[Any, ...]]) -> Sequence[sa.Row[*tuple[Any, ...]]]:
        return self.run(lambda connection: connection.execute(query).all())

    def read_of(
        self, query: sa.Select[*tuple[Any, ...]], column: sa.Column[Any], values: Sequence[Any]
    ) -> list[sa.Row[Any]]:
        rows: list[sa.Row[Any]] = []
        for start in range(0, len(values), _VALUES_AT_ONCE):
            these = self.one_of(column, values[start : start + _VALUES_AT_ONCE])
            rows += self.read(query.where(these))
        return rows

    def execute(self, statement: sa.Executable) -> None:
        self.run(lambda connection: connection.execute(statement))

    def add_if_absent(self, table: sa.Table, **values: Any) -> bool:
        """Add a row unless its key is there; return whether it surely was added by this call."""
        insert = self.backend.insert_if_absent(table).values(**values)
        return self.run(lambda connection: self.backend.try_insert(connection, insert, {}))

    def update_returning(
        self,
        query: sa.Select[tuple[UUID]],
        change: sa.Update | sa.Delete,
        *wanted: sa.ColumnElement[Any],
    ) -> Sequence[sa.Row[Any]]:
        """Change what ``query`` finds; return unchanged columns of these messages, ``id`` first."""

        def work(connection: sa.Connection) -> Sequence[sa.Row[Any]]:
            return self.backend.update_returning(connection, query, change, wanted)

        return self.run(work) if self.backend.changes_at_once else self.transact(work)


class Given:
    def __init__(self) -> None:
        self.names: dict[str, None] = {}

    def __call__(self, name: str) -> sa.ColumnElement[Any]:
        self.names[name] = None
        return sa.bindparam(f"given_{name}", type_=_TYPES[name])

    def finds(self, ids: sa.Column[Any]) -> sa.ColumnElement[bool]:
        return ids == self("id")


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

    def finds(self, ids: sa.Column[Any]) -> sa.ColumnElement[bool]:
        """Return the condition that an id is the row's, and that it is one of all ids.

        The second one is redundant: without it PostgreSQL joins by reading the whole index where a
        vacuum has counted no row, and that may have millions of entries of dead rows.
        """
        every = sa.bindparam("given_id", type_=sa.ARRAY(id_type()))
        return sa.and_(super().finds(ids), ids == sa.any_(every))


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

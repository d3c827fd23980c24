"""Runs statements on pooled connections."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import ExceptionContext, create_engine
from sqlalchemy.exc import StatementError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from dispatcher.forks import never_finalise, renew_after_fork
from dispatcher.message import dump_json
from dispatcher.settings import TABLE_PREFIX, Settings
from dispatcher.store.engines import engine_of
from dispatcher.store.engines.base import is_added, transaction
from dispatcher.store.engines.errors import (
    cause,
    is_broken,
    refused_by_driver,
    takes_no_writes,
    unavailable,
    was_conflict,
    was_undone,
)
from dispatcher.store.engines.types import insert_if_absent
from dispatcher.store.schema import tables_named

T = TypeVar("T")

_CONNECTIONS, _KEPT_OPEN = 32, 5
_TRIES = 6
"""After conflicts that fail at once; half as many after errors that may come after a wait."""
_APART_SECONDS = 0.005
_VALUES_AT_ONCE = 5_000


def _leave_demoted(context: ExceptionContext) -> None:
    if takes_no_writes(context.sqlalchemy_exception):
        context.is_disconnect = True


class Database:
    """Runs pieces of work on pooled connections in autocommit mode. Raises StoreUnavailable.

    Every piece of work must be safe to run again: when the connection breaks, it is run up to two
    more times, because it may have been done, and as often after a wait for a lock that was too
    long; up to five more times after a conflict with another transaction.
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

    def run(self, work: Callable[[sa.Connection], T], *, once: bool = False) -> T:
        """Do a piece of work; with ``once`` not again when the connection breaks."""
        tries = 0
        while True:
            try:
                with self.engine.connect() as connection:
                    return work(connection)
            except (StatementError, PoolTimeout) as error:
                tries += 1 if was_conflict(error) else 2
                may_try = was_undone(error) or (is_broken(error) and not once)
                if not may_try or tries >= _TRIES:
                    raise unavailable(error, self.url) from cause(error)
            except (UnicodeError, OverflowError) as error:
                raise refused_by_driver(error) from None
            # Not for security: so that two that met do not meet again.
            time.sleep(random.uniform(0, tries * _APART_SECONDS))  # noqa: S311

    def try_once(
        self, statement: sa.Executable, values: Mapping[str, Any]
    ) -> Sequence[sa.Row[Any]] | None:
        """Run a statement that must not be run again; None where it may have been done, or not."""
        is_tried = False

        def work(connection: sa.Connection) -> Sequence[sa.Row[Any]] | None:
            nonlocal is_tried
            if is_tried:
                return None
            is_tried = True
            return connection.execute(statement, values).all()

        return self.run(work)

    def transact(self, work: Callable[[sa.Connection], T], *, once: bool = False) -> T:
        def whole(connection: sa.Connection) -> T:
            with transaction(connection, self.backend.begin):
                return work(connection)

        return self.run(whole, once=once)

    def read(
        self, query: sa.Select[*tuple[Any, ...]], parameters: Mapping[str, Any] | None = None
    ) -> Sequence[sa.Row[*tuple[Any, ...]]]:
        return self.run(lambda connection: connection.execute(query, parameters).all())

    def read_of(
        self, query: sa.Select[*tuple[Any, ...]], values: Sequence[Any]
    ) -> list[sa.Row[Any]]:
        """Read what a query finds for all ``values``, its parameter of :func:`one_of`."""
        rows: list[sa.Row[Any]] = []
        for start in range(0, len(values), _VALUES_AT_ONCE):
            rows += self.read(query, {"values": values[start : start + _VALUES_AT_ONCE]})
        return rows

    def execute(self, statement: sa.Executable) -> None:
        self.run(lambda connection: connection.execute(statement))

    def add_if_absent(self, table: sa.Table, **values: Any) -> bool:
        """Add a row unless its key is there; return whether it surely was added by this call."""
        insert = insert_if_absent(table).values(**values)
        return self.run(lambda connection: is_added(connection, insert))

    def change(self, query: sa.Select[Any], change: sa.Update) -> Sequence[sa.Row[Any]]:
        """Change the messages that a locking ``query`` finds; return its rows, which have an id."""

        def work(connection: sa.Connection) -> Sequence[sa.Row[Any]]:
            rows = connection.execute(query).all()
            if rows:
                connection.execute(change.where(self.tables.has_id([row.id for row in rows])))
            return rows

        return self.transact(work)

    def change_each(
        self,
        change: sa.Update,
        rows: Sequence[Mapping[str, Any]],
        query: sa.Select[Any],
        parameters: Mapping[str, Any] | None = None,
    ) -> Sequence[sa.Row[Any]]:
        """Run a guarded change with the values of each of these rows; return what is read then."""

        def work(connection: sa.Connection) -> Sequence[sa.Row[Any]]:
            if rows:
                connection.execute(change, rows)
            return connection.execute(query, parameters).all()

        return self.transact(work) if len(rows) > 1 else self.run(work)

"""The interface of an engine: how one kind of database connects, and what it does differently."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple
from uuid import UUID

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Delete,
    Engine,
    Executable,
    FromClause,
    Insert,
    Row,
    Select,
    Table,
    Update,
)
from sqlalchemy.engine import URL
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.types import TypeEngine

if TYPE_CHECKING:
    from alembic.ddl.impl import DefaultImpl

    from dispatcher.store.schema import Tables

Location = frozenset[tuple[object, ...]]
"""Where a connection reads and writes: the files of SQLite, or a database of one server."""
Direct = Callable[[Mapping[str, Any]], list[Any]]
"""Runs a statement past SQLAlchemy and returns its rows.

Raises StoreUnavailable where the server waited as long as it may, since asking again would double
that; Unanswered for any other failure.
"""


def files_of(paths: Iterable[Path]) -> Location:
    """Return the identity of files, whatever their names."""
    return frozenset((found.st_dev, found.st_ino) for found in map(Path.stat, paths))


class Unanswered(Exception):
    """A statement that was run past SQLAlchemy failed.

    ``perhaps_done``: the connection broke, so the statement may have been done.
    """

    def __init__(self, *, perhaps_done: bool) -> None:
        super().__init__("perhaps done" if perhaps_done else "not done")
        self.perhaps_done = perhaps_done


class Durability(NamedTuple):
    """The settings of a database on which it depends that commits survive a crash.

    With those that are ``unsafe`` a crash may lose commits; ``remedy`` says what to change.
    """

    found: Mapping[str, str]
    unsafe: tuple[str, ...]
    remedy: str


class DurableSettings(NamedTuple):
    """The settings on which it depends that a commit is kept, and their ``safe`` values."""

    safe: Mapping[str, tuple[str, ...]]
    remedy: str

    def judge(self, found: Mapping[str, str]) -> Durability:
        """Return these values with the names of those that are not safe."""
        unsafe = tuple(name for name, safe in self.safe.items() if found[name].lower() not in safe)
        return Durability(found, unsafe, self.remedy)


class StoreEngine(ABC):
    """One kind of database: how it connects, and what it does differently."""

    names: ClassVar[tuple[str, ...]]
    """What SQLAlchemy may call it on a caller's connection."""
    begin: ClassVar[str] = "BEGIN"
    """The statement that begins a transaction which writes."""
    durable: ClassVar[DurableSettings]
    changes_at_once: ClassVar[bool] = True
    """Whether :meth:`update_returning` is one statement; else it needs a transaction."""
    copies: ClassVar[bool] = False
    """Whether many rows are stored by :meth:`copy`."""
    takes_arrays: ClassVar[bool] = False
    """Whether one statement can be given many rows as arrays, and change several tables (WITH)."""
    has_one_writer: ClassVar[bool] = False
    """Whether a transaction that writes keeps out all others."""
    undoes_statements: ClassVar[bool] = False
    """Whether a statement that fails in a transaction is undone alone, without a savepoint."""
    sees_a_snapshot: ClassVar[bool] = False
    """Whether a caller's transaction reads by default from a snapshot of its first read."""
    has_partial_indexes: ClassVar[bool] = True
    locks_what_it_sorts: ClassVar[bool] = False
    """Whether ``FOR UPDATE`` locks what it reads to find the first rows, not those rows alone."""
    rebuilds_tables: ClassVar[bool] = False
    """Whether a migration changes a table by making it anew."""

    def __init__(self, url: URL) -> None:
        self.url = url

    # Connecting.

    def check_driver(self) -> None:
        """Raise ImportError or NoSuchModuleError where the driver is missing."""
        self.url.get_dialect().import_dbapi()

    def connect_args(self) -> dict[str, Any]:
        """Return what the driver's ``connect`` is given."""
        return {}

    @abstractmethod
    def prepare(self, engine: Engine) -> None:
        """Configure each new connection of ``engine``."""

    @property
    def file(self) -> Path | None:
        """The file of the database; None for a server."""
        return None

    # Conditions and statements.

    def one_of(self, column: Column[Any], values: Sequence[Any]) -> ColumnElement[bool]:
        """Return the condition that ``column`` is one of ``values``."""
        return column.in_(values)

    def rows_from(self, types: Mapping[str, TypeEngine[Any]]) -> FromClause:
        """Return rows with these columns, given as arrays named ``given_<name>``.

        Where ``takes_arrays``.
        """
        raise NotImplementedError

    @abstractmethod
    def insert_if_absent(
        self, table: Table, columns: Sequence[str] = (), rows: Select[Any] | None = None
    ) -> Insert:
        """Return an INSERT that adds nothing where a key exists; of ``rows`` if they are given.

        It is run by :meth:`is_inserted`.
        """

    def is_inserted(
        self,
        connection: Connection,
        statement: Insert,
        row: Mapping[str, Any],
        options: Mapping[str, Any] | None = None,
    ) -> bool:
        """Run what :meth:`insert_if_absent` returned; return whether it added the row."""
        options = {"preserve_rowcount": True, **(options or {})}
        return connection.execute(statement, row, execution_options=options).rowcount > 0

    def copy(
        self, connection: Connection, table: Table, names: Sequence[str], rows: Iterable[Any]
    ) -> None:
        """Store rows of the driver's own values, all or none, where ``copies``.

        Raises SQLAlchemyError or StoreUnavailable.
        """
        raise NotImplementedError

    def direct(self, engine: Engine, statement: Executable) -> Direct | None:
        """Return a function that runs a statement past SQLAlchemy; None where that is not done."""
        del engine, statement
        return None

    def ids_found(self, connection: Connection, query: Select[tuple[UUID]]) -> Any:
        """Return what a statement of the same transaction can compare ids with, to change them."""
        del connection
        return query.scalar_subquery()

    def update_returning(
        self,
        connection: Connection,
        ids: Column[UUID],
        query: Select[tuple[UUID]],
        change: Update | Delete,
        wanted: Sequence[ColumnElement[Any]],
    ) -> Sequence[Row[Any]]:
        """Change the rows whose ids ``query`` finds and locks; return ``wanted`` of them."""
        these = change.where(self._among(ids, query))
        return connection.execute(these.returning(*wanted)).all()

    def _among(self, ids: Column[UUID], query: Select[tuple[UUID]]) -> ColumnElement[bool]:
        return ids.in_(query.scalar_subquery())

    def untold(self, tables: Tables) -> tuple[ColumnElement[bool], tuple[Column[Any], ...]]:
        """Return the condition that a status is not reported yet, and the order of its index.

        Written so that the database uses the index, and reads no other rows.
        """
        row = tables.messages.c
        return tables.is_untold, (row.told, row.status, row.id)

    # Transactions.

    def impatient(self, connection: Connection) -> AbstractContextManager[None]:
        """Let statements inside wait for locks for a moment at most, where the database can."""
        del connection
        return nullcontext()

    def commits_by_itself(self, connection: Connection) -> bool:
        """Whether each statement of a caller's connection is committed as soon as it is done."""
        if connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT":
            return True
        proxied = connection.connection.dbapi_connection
        return proxied is not None and connection.dialect.detect_autocommit_setting(proxied)

    def mismatch(self, connection: Connection) -> str | None:
        """Return what a caller's database is, where it is of another kind."""
        name = connection.dialect.name
        return None if name in self.names else name

    def cuts_values(self, connection: Connection) -> bool:
        """Whether what does not fit into a column would be cut to fit."""
        del connection
        return False

    def ended_by(self, error: SQLAlchemyError) -> SQLAlchemyError | None:
        """Return the error that ended the whole transaction of ``error``, if one did."""
        del error
        return None

    @abstractmethod
    def location(self, connection: Connection) -> Location:
        """Return where a connection reads and writes."""

    # Looking after it.

    @abstractmethod
    def setting_query(self, name: str) -> str:
        """Return the statement that shows one of the settings of ``durable``."""

    @abstractmethod
    def migrating(self, connection: Connection, tables: Tables) -> AbstractContextManager[None]:
        """Let other migrations wait; statements inside have no time limit."""

    def table_options(self) -> dict[str, Any]:
        """Return the options with which a migration creates a table."""
        return {}

    def go_past_what_is_done(self, impl: DefaultImpl, tables: Tables) -> None:
        """Prepare Alembic for a migration that an earlier one may have begun."""
        del impl, tables

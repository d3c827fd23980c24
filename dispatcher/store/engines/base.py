"""The interface of an engine: how one kind of database connects, and what it does differently."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import date, timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.sql.compiler import SQLCompiler

from dispatcher.store.engines.errors import code_of
from dispatcher.store.engines.types import Instant

if TYPE_CHECKING:
    from alembic.ddl.impl import DefaultImpl

    from dispatcher.store.schema import Tables

_ROWS_AT_ONCE = 1_000
_TAKEN_ON_MARIADB = 1062
"""The id or the key is there already."""

Location = frozenset[tuple[object, ...]]
"""Where a connection reads and writes: the files of SQLite, or a database of one server."""


class Prepared:
    """A statement compiled once, for connections of one engine. Values come by position."""

    def __init__(
        self, engine: sa.Engine, statement: sa.ClauseElement, names: Sequence[str]
    ) -> None:
        dialect = engine.dialect
        if not dialect.positional:
            make: Any = type(dialect)  # its constructor has no types
            dialect = make(paramstyle="format")
        self.statement = statement
        self.names = names
        compiled = cast("SQLCompiler", statement.compile(dialect=dialect, column_keys=names))
        self.text = str(compiled)
        self.indexes = [names.index(name) for name in compiled.positiontup or ()]
        """Which value stands where."""
        self._converters: list[tuple[int, Callable[[Any], Any]]] = []
        for place, index in enumerate(self.indexes):
            kind = compiled.binds[names[index]].type
            if isinstance(kind, sa.Uuid | Instant):
                convert = kind.dialect_impl(dialect).bind_processor(dialect)
                if convert is not None:
                    self._converters.append((place, convert))

    def run(
        self,
        connection: sa.Connection,
        rows: Sequence[Sequence[Any]],
        options: Mapping[str, Any] | None = None,
    ) -> sa.CursorResult[Any]:
        parameters: list[tuple[Any, ...]] = []
        for row in rows:
            values = [row[index] for index in self.indexes]
            for place, convert in self._converters:
                if (value := values[place]) is not None:
                    values[place] = convert(value)
            parameters.append(tuple(values))
        return connection.exec_driver_sql(
            self.text,
            parameters if len(parameters) > 1 else parameters[0],
            execution_options=options,
        )


def files_of(paths: Iterable[Path]) -> Location:
    return frozenset((file.st_dev, file.st_ino) for file in map(Path.stat, paths))


def is_added(
    connection: sa.Connection,
    insert: sa.Insert | Prepared,
    row: Any = None,
    options: Mapping[str, Any] | None = None,
) -> bool:
    """Run what :func:`insert_if_absent` returned; return whether it added the row."""
    options = {"preserve_rowcount": True, **(options or {})}
    try:
        if isinstance(insert, Prepared):
            return insert.run(connection, [row], options).rowcount > 0
        return connection.execute(insert, row, execution_options=options).rowcount > 0
    except IntegrityError as error:
        if code_of(error) != _TAKEN_ON_MARIADB:
            raise
        return False


class InsertFailed(Exception):
    """An INSERT past SQLAlchemy failed; ``perhaps_done``: the connection broke."""

    def __init__(self, *, perhaps_done: bool) -> None:
        self.perhaps_done = perhaps_done


class AtOnce(NamedTuple):
    """Steps of claims in one statement each, where there is one. What they leave is done in steps.

    ``claim`` takes the claimable messages and begins their attempts: it returns their columns,
    ``claim_token`` and ``now``. ``record`` records successes of current claims, and ``put_back``
    puts current claims back: they return the ids of others.
    """

    claim: sa.Select[Any] | None = None
    record: sa.TextClause | None = None
    put_back: sa.TextClause | None = None


class Durability(NamedTuple):
    """The settings on which it depends that a commit is kept: ``safe`` values, and those it has.

    ``shows`` is the statement that shows one of them.
    """

    shows: str
    safe: Mapping[str, tuple[str, ...]]
    remedy: str
    values: Mapping[str, str] = {}

    def read(self, connection: sa.Connection) -> Durability:
        def shown(name: str) -> str:
            return str(connection.exec_driver_sql(self.shows.format(name)).scalar_one())

        return self._replace(values={name: shown(name) for name in self.safe})

    @property
    def unsafe(self) -> list[str]:
        return [name for name, safe in self.safe.items() if self.values[name].lower() not in safe]


class Slot(NamedTuple):
    name: str
    is_active: bool
    kept_bytes: int
    transactions: int


class Days(NamedTuple):
    """How many days from tomorrow on have a partition; whether rows lie in none."""

    ahead: int
    misplaced: bool


class Backlog(NamedTuple):
    name: str
    versions: int
    usual: int


class Housekeeping(NamedTuple):
    """What the database has not removed yet, the age of what keeps it, the ``right`` to see all."""

    oldest: timedelta | None
    backlogs: tuple[Backlog, ...]
    slots: tuple[Slot, ...] = ()
    days: Days | None = None
    limited_to: str = ""
    right: str = ""


def pages(
    read: Callable[[sa.Select[Any]], Iterable[sa.Row[Any]]],
    query: sa.Select[Any],
    key: Sequence[sa.ColumnElement[Any]],
    size: int,
) -> Iterator[list[sa.Row[Any]]]:
    """Yield the rows of a query, which has the columns of ``key``, in the order of that."""
    page = query = query.order_by(*key).limit(size)
    while True:
        rows = list(read(page))
        if rows:
            yield rows
        if len(rows) < size:
            return
        first, *more = last = [sa.literal(rows[-1]._mapping[column], column.type) for column in key]
        behind = [key[0] > first]
        if more:  # redundant: MariaDB does not seek in an index by a tuple
            behind = [key[0] >= first, sa.tuple_(*key) > sa.tuple_(*last)]
        page = query.where(*behind)


@contextmanager
def transaction(connection: sa.Connection, begin: str = "BEGIN") -> Iterator[None]:
    """Run the statements inside in one transaction of a connection that is in none."""
    connection.exec_driver_sql(begin)
    try:
        yield
        connection.exec_driver_sql("COMMIT")
    except BaseException:
        if not (connection.invalidated or connection.closed):
            try:
                connection.exec_driver_sql("ROLLBACK")
            except DBAPIError:
                connection.invalidate()
        raise


class StoreEngine(ABC):
    names: ClassVar[tuple[str, ...]]
    """SQLAlchemy's names of this database on a caller's connection."""
    begin: ClassVar[str] = "BEGIN"
    """The statement that begins a transaction which writes."""
    durable: ClassVar[Durability]
    whereabouts: ClassVar[sa.TextClause]
    """The query of what :meth:`location` compares."""
    has_one_writer: ClassVar[bool] = False
    """Whether a transaction that writes keeps out all others."""
    sees_a_snapshot: ClassVar[bool] = False
    """Whether a caller's transaction reads by default from a snapshot of its first read."""
    has_partial_indexes: ClassVar[bool] = True

    file: Path | None = None
    statement_seconds: int | None = None
    """How long each statement takes at most, where the engine can bound it; None for the usual."""

    def __init__(self, url: URL) -> None:
        self.url = url

    # Connecting.

    def prepare(self, engine: sa.Engine) -> None:
        sa.event.listen(engine, "do_connect", self.connect)

    @abstractmethod
    def connect(
        self, dialect: object, record: object, arguments: list[Any], parameters: dict[str, Any]
    ) -> Any:
        """Return a new connection of the driver; None lets SQLAlchemy make it."""

    def make(self) -> None:  # noqa: B027 - servers make no database
        """Make an empty database where there is none. Only migrations do so."""

    # Statements.

    def insert_rows(
        self, connection: sa.Connection, insert: Prepared, rows: Iterator[Sequence[Any]]
    ) -> None:
        while page := list(islice(rows, _ROWS_AT_ONCE)):
            insert.run(connection, page)

    def direct_insert(
        self, _engine: sa.Engine, _insert: Prepared
    ) -> Callable[[Sequence[Any]], bool] | None:
        """Return what runs an INSERT of one row past SQLAlchemy; None where that is not done.

        It returns whether it added the row. Raises StoreUnavailable where the server waited for as
        long as it may, InsertFailed for any other failure.
        """
        return None

    def at_once(self, _tables: Tables, _claimable: sa.Select[Any], _take: sa.Update) -> AtOnce:
        """Return the steps of claims that the database takes in one statement."""
        return AtOnce()

    def due_notifications(
        self, tables: Tables
    ) -> tuple[sa.ColumnElement[bool], tuple[sa.Column[Any], ...]]:
        """Return the condition that a report is due, and the order of its index."""
        row = tables.messages.c
        return tables.is_notification_due, (row.notified_status, row.status, row.id)

    # Transactions.

    def undone_alone(self, connection: sa.Connection) -> AbstractContextManager[object]:
        """Return what lets a caller's transaction go on after a statement inside has failed."""
        return connection.begin_nested()

    def impatient(self, _connection: sa.Connection) -> AbstractContextManager[None]:
        """Let statements inside wait for locks for a moment at most, where the database can."""
        return nullcontext()

    def commits_by_itself(self, connection: sa.Connection) -> bool:
        """Whether each statement of a caller's connection is committed as soon as it is done."""
        if connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT":
            return True
        proxied = connection.connection.dbapi_connection
        return proxied is not None and connection.dialect.detect_autocommit_setting(proxied)

    def encoding(self, _connection: sa.Connection) -> str:
        return "UTF8"

    def cuts_values(self, _connection: sa.Connection) -> bool:
        return False

    def ended_by(self, _error: SQLAlchemyError) -> SQLAlchemyError | None:
        """Return the error that ended the whole transaction of this one, if one did."""
        return None

    def location(self, connection: sa.Connection) -> Location:
        return frozenset({tuple(connection.execute(self.whereabouts).one())})

    def ended_before(
        self, _connection: sa.Connection, _tables: Tables, _ids: Sequence[UUID]
    ) -> Collection[UUID]:
        """Return which of these ids, just inserted, ended messages have, too."""
        return ()

    # Looking after it.

    def unset_behind_pooler(self, _connection: sa.Connection) -> tuple[str, ...] | None:
        """Name the timeouts that a pooler's sessions lack; None where no pooler is in between."""
        return None

    @abstractmethod
    def migrating(self, connection: sa.Connection) -> AbstractContextManager[None]:
        """Let other migrations wait; statements inside have no time limit."""

    def housekeeping(self, _connection: sa.Connection, _tables: Tables) -> Housekeeping:
        return Housekeeping(None, ())

    def key_holder(self, table: sa.Table, _tables: Tables) -> str:
        return table.name

    def keep_days(
        self, _connection: sa.Connection, _tables: Tables, _retention: timedelta
    ) -> list[date]:
        return []

    def kept_for(self, retention: timedelta) -> timedelta:
        """Return how long after its end a message is deleted, where no partition takes it along."""
        return retention

    def skip_applied_statements(self, impl: DefaultImpl, tables: Tables) -> None:  # noqa: B027
        """Prepare Alembic for a migration that an earlier one may have begun."""

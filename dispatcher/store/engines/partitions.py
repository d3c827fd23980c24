"""Partitions of PostgreSQL: what lives in one, what has ended in one for each day of its end.

``messages`` and ``attempts`` are each split by ``finished_at IS NULL`` into ``…_live`` and
``…_history``, and the latter into days in UTC, ``…_history_20261123``. An UPDATE that sets or
clears ``finished_at`` moves the row. ``…_history_other`` takes the rows of a day without a
partition, so that no outcome is lost where maintenance has made none.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Connection,
    Select,
    Table,
    TableClause,
    Text,
    Uuid,
    column,
    delete,
    exists,
    func,
    literal,
    select,
    table,
    text,
)
from sqlalchemy.exc import DBAPIError

from dispatcher.store.engines.types import database_now, later

if TYPE_CHECKING:
    from dispatcher.store.schema import Tables

log = logging.getLogger(__name__)

_DAYS_AHEAD = 3
_LEAST_IN_DAYS = timedelta(days=2)
"""With a shorter retention messages are deleted one by one: a day more would be a large part."""
_LIVE, _HISTORY, _OTHER = "live", "history", "history_other"
_IMPATIENT = "SET LOCAL lock_timeout = 200"
_KEYS_AT_ONCE = 5_000
_DAYS = text(
    "SELECT child.relname FROM pg_inherits JOIN pg_class child ON child.oid = inhrelid "
    "WHERE inhparent = CAST(:parent AS regclass) ORDER BY child.relname"
)
_TODAY = text("SELECT CAST(statement_timestamp() AT TIME ZONE 'UTC' AS date)")
# Another sweep makes the same day.
_MADE_BEFORE = frozenset({"42P07", "23505", "42710"})
_MISPLACED = "23514"
_IN_USE, _GONE, _NOT_OWNED = "55P03", "42P01", "42501"


class _Split(NamedTuple):
    """A table and its partitions, on a connection."""

    table: Table
    connection: Connection

    def part(self, name: str) -> TableClause:
        """Return a partition, with the columns of the table."""
        columns = (column(each.name, each.type) for each in self.table.columns)
        return table(f"{self.table.name}_{name}", *columns, schema=self.table.schema)

    def of_day(self, day: date) -> TableClause:
        """Return the partition of a day, whether there is one or not."""
        return self.part(f"{_HISTORY}_{day:%Y%m%d}")

    def name(self, named: Table | TableClause) -> str:
        """Return the name of a table as SQL has it."""
        quote = self.connection.dialect.identifier_preparer
        schema = f"{quote.quote_schema(named.schema)}." if named.schema else ""
        return f"{schema}{quote.quote(named.name)}"

    def days(self) -> Iterator[date]:
        """Yield the days that have a partition, the first one first."""
        history = self.part(_HISTORY)
        for (name,) in self.connection.execute(_DAYS, {"parent": self.name(history)}).all():
            if (day := name.removeprefix(f"{history.name}_")).isdigit():
                yield datetime.strptime(day, "%Y%m%d").replace(tzinfo=UTC).date()

    def has(self, query: Select[Any]) -> bool:
        """Return whether a query finds a row."""
        return bool(self.connection.scalar(select(query.exists())))


def live_name(connection: Connection, split: Table) -> str:
    """Return the name of the partition of what lives, as SQL has it."""
    found = _Split(split, connection)
    return found.name(found.part(_LIVE))


def key_holder(split: Table) -> str:
    """Return the name of the partition that has the primary key of a split table."""
    return f"{split.name}_{_LIVE}"


def make(connection: Connection, tables: Tables, options: str) -> None:
    """Make the partitions of both tables, and those of the coming days.

    ``options`` are the storage parameters of those that are changed often.
    """
    for split in _splits(connection, tables):
        parent, history = split.name(split.table), split.name(split.part(_HISTORY))
        key = ", ".join(each.name for each in split.table.primary_key)
        run = connection.exec_driver_sql
        run(
            f"CREATE TABLE {split.name(split.part(_LIVE))} PARTITION OF {parent} "
            f"(PRIMARY KEY ({key})) FOR VALUES IN (true) WITH ({options})"
        )
        run(
            f"CREATE TABLE {history} PARTITION OF {parent} (PRIMARY KEY ({key}, finished_at)) "
            "FOR VALUES IN (false) PARTITION BY RANGE (finished_at)"
        )
        run(f"CREATE TABLE {split.name(split.part(_OTHER))} PARTITION OF {history} DEFAULT")
        # What a day is asked before it is dropped.
        if split.table is tables.attempts:
            run(f"CREATE INDEX ON {history} (message_id) WHERE outcome = 'unknown'")
        else:
            run(f"CREATE INDEX ON {history} (id) WHERE idempotency_key IS NOT NULL")
        for day in _coming(connection):
            run(_make_day(split, day))


def pruned_until(retention: timedelta) -> ColumnElement[datetime]:
    """Return until when a message must have ended to be deleted: to the end of a day, as a rule."""
    until: ColumnElement[datetime] = later(database_now(), -retention)
    return func.date_trunc("day", until, "UTC") if _goes_by_days(retention) else until


def pruned_at(ended_at: datetime, retention: timedelta) -> datetime:
    """Return when a message that ended then is to be deleted."""
    return retention + (_end(ended_at.date()) if _goes_by_days(retention) else ended_at)


def keep_days(connection: Connection, tables: Tables, retention: timedelta) -> list[date]:
    """Make the partitions of the coming days; drop those of old ones, and return these days.

    A day of messages goes when nothing that remains to be done needs one of them. A day of attempts
    goes later when a message is still stored whose outcome is unknown by one of them. Where another
    transaction uses a table, another sweep drops it, or its owner is another role, the rest is left
    to the next run.
    """
    dropped: list[date] = []
    try:
        for split in _splits(connection, tables):
            there = set(split.days())
            for day in _coming(connection):
                if day not in there:
                    _make_alone(connection, split, day)
        until: datetime = connection.execute(select(pruned_until(retention))).scalar_one()
        for split in _splits(connection, tables):
            for day in split.days():
                if _end(day) > until or _is_needed(split, day, tables):
                    continue
                if split.table is tables.messages:
                    _free_keys(split, day, tables)
                _alone(connection, f"DROP TABLE {split.name(split.of_day(day))}")
                dropped += [day] * (split.table is tables.messages)
    except DBAPIError as error:
        if _code(error) not in {_IN_USE, _GONE, _NOT_OWNED}:
            raise
        log.debug("partitions are left to the next run (%s)", _code(error))
    return dropped


def state(connection: Connection, tables: Tables) -> tuple[int, bool]:
    """Return how many days from tomorrow on have a partition, and whether rows lie in no day's.

    A role that may not read partitions alone sees none of the latter.
    """
    today, splits = _today(connection), _splits(connection, tables)
    ahead = min(sum(day > today for day in split.days()) for split in splits)
    others = [(split, split.part(_OTHER)) for split in splits]
    return ahead, any(
        split.has(select(literal(1)).select_from(other))
        for split, other in others
        if connection.scalar(select(func.has_table_privilege(split.name(other), "SELECT")))
    )


def _splits(connection: Connection, tables: Tables) -> list[_Split]:
    return [_Split(each, connection) for each in (tables.messages, tables.attempts)]


def _goes_by_days(retention: timedelta) -> bool:
    return retention >= _LEAST_IN_DAYS


def _today(connection: Connection) -> date:
    today: date = connection.scalar(_TODAY)
    return today


def _coming(connection: Connection) -> list[date]:
    today = _today(connection)
    return [today + timedelta(days=number) for number in range(_DAYS_AHEAD + 1)]


def _end(day: date) -> datetime:
    return datetime.combine(day + timedelta(days=1), time(), UTC)


def _make_day(split: _Split, day: date) -> str:
    start, end = datetime.combine(day, time(), UTC), _end(day)
    return (
        f"CREATE TABLE {split.name(split.of_day(day))} PARTITION OF "
        f"{split.name(split.part(_HISTORY))} "
        f"FOR VALUES FROM ('{start.isoformat()}') TO ('{end.isoformat()}')"
    )


def _make_alone(connection: Connection, split: _Split, day: date) -> None:
    """Make a day, unless another sweep does, or it has rows in the partition of other days."""
    try:
        _alone(connection, _make_day(split, day))
    except DBAPIError as error:
        if _code(error) not in {_MISPLACED, *_MADE_BEFORE}:
            raise


def _alone(connection: Connection, statement: str) -> None:
    """Run a statement that locks a table, in a transaction that waits for a moment only."""
    connection.exec_driver_sql("BEGIN")
    try:
        connection.exec_driver_sql(_IMPATIENT)
        connection.exec_driver_sql(statement)
        connection.exec_driver_sql("COMMIT")
    except DBAPIError:
        connection.exec_driver_sql("ROLLBACK")
        raise


def _code(error: DBAPIError) -> str | None:
    found: str | None = getattr(error.orig, "sqlstate", None)
    return found


def _is_needed(split: _Split, day: date, tables: Tables) -> bool:
    """Return whether something that remains to be done needs a row of that day.

    A message has a reservation to release or a status to report; or the outcome of a message that
    is stored is unknown by an attempt.
    """
    rows = split.of_day(day)
    if split.table is tables.attempts:
        is_stored = exists().where(tables.messages.c.id == rows.c.message_id)
        is_unknown = rows.c.outcome == text("'unknown'")
        return split.has(select(rows.c.message_id).where(is_unknown, is_stored))
    ids = select(rows.c.id)
    return any(split.has(ids.where(each)) for each in (tables.is_unreleased, tables.is_untold))


def _free_keys(split: _Split, day: date, tables: Tables) -> None:
    """Free the idempotency keys of the messages of a day, some at a time."""
    rows, keys = split.of_day(day), tables.keys
    page = (
        select(rows.c.id, rows.c.idempotency_key)
        .where(rows.c.idempotency_key.is_not(None))
        .order_by(rows.c.id)
        .limit(_KEYS_AT_ONCE)
    )
    after: UUID | None = None
    while True:
        query = page if after is None else page.where(rows.c.id > after)
        found = split.connection.execute(query).all()
        if found:
            old = (
                func.unnest(
                    literal([row.id for row in found], ARRAY(Uuid())),
                    literal([row.idempotency_key for row in found], ARRAY(Text())),
                )
                .table_valued(column("id", Uuid()), column("key", Text()), name="old")
                .render_derived()
            )
            is_old = (keys.c.idempotency_key == old.c.key, keys.c.message_id == old.c.id)
            split.connection.execute(delete(keys).where(*is_old))
        if len(found) < _KEYS_AT_ONCE:
            return
        after = found[-1].id

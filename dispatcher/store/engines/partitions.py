"""Partitions of PostgreSQL: what lives in one, what has ended in one for each day of its end.

``messages`` and ``attempts`` are each split by ``finished_at IS NULL`` into ``…_live`` and
``…_history``, and the latter into days in UTC, ``…_history_20261123``. An UPDATE that sets or
clears ``finished_at`` moves the row. ``…_history_other`` takes the rows of a day without a
partition, so that no outcome is lost where maintenance has made none.

Days are two tables a day, so they lie in a schema of their own, ``…_days``. Where the role in
``database_url`` may not create in it, they lie beside the tables.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, time, timedelta
from itertools import takewhile
from typing import Any, NamedTuple
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from dispatcher.store.engines.base import StoreEngine, pages, transaction
from dispatcher.store.engines.errors import code_of
from dispatcher.store.engines.types import one_of
from dispatcher.store.schema import AS_NAMED, CLOCK_STEP, Tables
from dispatcher.times.send_time import from_ms

log = logging.getLogger(__name__)

_DAY = timedelta(days=1)
_DAYS_AHEAD = 3
_LEAST = timedelta(days=2)
"""With a shorter retention messages are deleted one by one: a day more would be a large part."""
_LIVE, _HISTORY, _OTHER, _DETACHED = "live", "history", "history_other", "detached"
_TO_DROP_IT = _DAY
"""How long a partition may wait to be dropped until its rows are deleted one by one."""
_PATIENCE_MS = 200
_VACUUM_SHARE, _VACUUM_LEAST = 0.02, 1_000
_BUSY_TABLE = {
    # Room for the new version of a row beside the old one.
    "fillfactor": 85,
    # By default a fifth of the table is dead before it is vacuumed: millions of rows.
    "autovacuum_vacuum_scale_factor": _VACUUM_SHARE,
    "autovacuum_vacuum_threshold": _VACUUM_LEAST,
    "autovacuum_analyze_scale_factor": _VACUUM_SHARE,
    "autovacuum_analyze_threshold": _VACUUM_LEAST,
}
_ROWS_AT_ONCE = 5_000
# Tables without a schema in the settings have one in the database.
_SCHEMA_OF_DAYS = sa.text(
    "SELECT days FROM (SELECT CASE nspname WHEN 'public' THEN '' ELSE nspname || '_' END || :days "
    "AS days FROM pg_class JOIN pg_namespace own ON own.oid = relnamespace "
    "WHERE pg_class.oid = CAST(:parent AS regclass)) AS named "
    "WHERE octet_length(days) < 64 AND NOT starts_with(days, 'pg_')"
)
_IS_USABLE = sa.text(
    "SELECT has_schema_privilege(oid, 'CREATE') AND has_schema_privilege(oid, 'USAGE') "
    "FROM pg_namespace WHERE nspname = :days"
)
_MAY_CREATE = sa.text("SELECT has_database_privilege(current_database(), 'CREATE')")
_CHILDREN = sa.text(
    "SELECT nspname, relname FROM pg_inherits JOIN pg_class child ON child.oid = inhrelid "
    "JOIN pg_namespace own ON own.oid = relnamespace "
    "WHERE inhparent = CAST(:parent AS regclass) ORDER BY relname"
)
_LIKE = sa.text(
    "SELECT nspname, relname FROM pg_class JOIN pg_namespace own ON own.oid = relnamespace "
    "WHERE relkind = 'r' AND starts_with(relname, :beginning) AND (nspname = :days OR own.oid = "
    "(SELECT relnamespace FROM pg_class WHERE oid = CAST(:history AS regclass))) ORDER BY relname"
)
_DAY_OF = sa.text(
    "SELECT CAST((statement_timestamp() - CAST(:ago AS interval)) AT TIME ZONE 'UTC' AS date)"
)
# Another sweep makes the same day.
_MADE_BEFORE = frozenset({"42P07", "23505", "42710", "42P17"})
_MISPLACED = "23514"
_IN_USE, _GONE, _NOT_OWNED = "55P03", "42P01", "42501"


class _Day(NamedTuple):
    rows: sa.TableClause
    day: date


class _Split(NamedTuple):
    """A table and its partitions; ``days`` names the schema of those of one day, if it is there."""

    table: sa.Table
    connection: sa.Connection
    days: str = ""

    def part(self, name: str, schema: str | None = None) -> sa.TableClause:
        columns = (sa.column(column.name, column.type) for column in self.table.columns)
        return sa.table(f"{self.table.name}_{name}", *columns, schema=schema or self.table.schema)

    def name(self, named: sa.Table | sa.TableClause) -> str:
        quote = self.connection.dialect.identifier_preparer
        name = quote.quote(named.name)
        return f"{quote.quote_schema(named.schema)}.{name}" if named.schema else name

    def made(self) -> Iterator[_Day]:
        history = self.part(_HISTORY)
        parent = {"parent": self.name(history)}
        for schema, name in self.connection.execute(_CHILDREN, parent).all():
            if (digits := name.removeprefix(f"{history.name}_")).isdigit():
                day = datetime.strptime(digits, "%Y%m%d").replace(tzinfo=UTC).date()
                yield _Day(self.part(f"{_HISTORY}_{digits}", schema), day)

    def covered(self) -> set[date]:
        return {made.day for made in self.made()}

    def is_usable(self) -> bool | None:
        """Return whether the role may create in the schema of days; None where it is missing."""
        usable: bool | None = self.connection.scalar(_IS_USABLE, {"days": self.days})
        return usable

    def has(self, query: sa.Select[Any]) -> bool:
        return bool(self.connection.scalar(sa.select(query.exists())))


class PartitionedEngine(StoreEngine):
    def key_holder(self, table: sa.Table, tables: Tables) -> str:
        split = table.name in {tables.messages.name, tables.attempts.name}
        return f"{table.name}_{_LIVE}" if split else table.name

    def ended_before(
        self, connection: sa.Connection, tables: Tables, ids: Sequence[UUID]
    ) -> set[UUID]:
        """Look at the days from which on they can have ended; the ids lie close together."""
        row, first = tables.messages.c, min(ids)
        since = from_ms(first.int >> 80) - CLOCK_STEP
        near = sa.select(row.id).where(row.id.between(first, max(ids)), row.finished_at >= since)
        return set(ids).intersection(connection.scalars(near, execution_options=AS_NAMED))

    def kept_for(self, retention: timedelta) -> timedelta:
        return retention if retention < _LEAST else retention + _DAY + _TO_DROP_IT

    def keep_days(
        self, connection: sa.Connection, tables: Tables, retention: timedelta
    ) -> list[date]:
        """Make the partitions of the coming days; drop those of old ones, and return these days.

        A day of messages goes when nothing that remains to be done needs one of them, a day of
        attempts when no stored message has an unknown outcome by one of them.
        """
        messages, attempts = splits = _splits(connection, tables)
        for split in splits:
            with _left_to_the_next_run():
                _make_coming(split)
        until: date = connection.scalar(_DAY_OF, {"ago": retention})
        dropped: list[date] = []
        with _left_to_the_next_run():
            _drop_detached(messages, tables)
            for rows, day in messages.made():
                if day < until and not _has_messages_to_keep(messages, rows, tables):
                    _detach(messages, rows, day)
                    dropped.append(day)
                    _drop_detached(messages, tables)
        with _left_to_the_next_run():
            for rows, day in attempts.made():
                if day < until and not _has_attempts_to_keep(attempts, rows, tables):
                    _alone(connection, f"DROP TABLE {attempts.name(rows)}")
            _delete_orphans(attempts, until, tables)
        return dropped


def make(connection: sa.Connection, tables: Tables) -> None:
    options = ", ".join(f"{name} = {value}" for name, value in _BUSY_TABLE.items())
    run, splits = connection.exec_driver_sql, _splits(connection, tables)
    _make_schema(splits[0])
    for split in splits:
        parent, history = split.name(split.table), split.name(split.part(_HISTORY))
        key = ", ".join(column.name for column in split.table.primary_key)
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
        for missing in _missing(split):
            run(_make_day(split, missing))


def live_name(connection: sa.Connection, table: sa.Table) -> str:
    split = _Split(table, connection)
    return split.name(split.part(_LIVE))


def state(connection: sa.Connection, tables: Tables) -> tuple[int, bool]:
    splits = _splits(connection, tables)
    ahead = min(max(0, _days_there(split) - 1) for split in splits)
    others = [(split, split.part(_OTHER)) for split in splits]
    return ahead, any(
        split.has(sa.select(sa.literal(1)).select_from(other))
        for split, other in others
        if connection.scalar(sa.select(sa.func.has_table_privilege(split.name(other), "SELECT")))
    )


def _splits(connection: sa.Connection, tables: Tables) -> list[_Split]:
    parent = _Split(tables.messages, connection).name(tables.messages)
    names = {"days": f"{tables.prefix}days", "parent": parent}
    days = connection.scalar(_SCHEMA_OF_DAYS, names) or ""
    return [_Split(table, connection, days) for table in (tables.messages, tables.attempts)]


def _make_schema(split: _Split) -> None:
    connection, is_usable = split.connection, split.is_usable()
    if not split.days or is_usable:
        return
    name = connection.dialect.identifier_preparer.quote(split.days)
    if is_usable is None and connection.scalar(_MAY_CREATE):
        connection.exec_driver_sql(f"CREATE SCHEMA {name}")
    else:
        log.warning(
            "no right to create in schema %s: partitions of days are made beside the tables; an "
            "administrator may run: %s <role of database_url>",
            split.days, f"CREATE SCHEMA {name} AUTHORIZATION"
            if is_usable is None else f"GRANT USAGE, CREATE ON SCHEMA {name} TO",
        )  # fmt: skip


def _coming(connection: sa.Connection) -> list[date]:
    today: date = connection.scalar(_DAY_OF, {"ago": timedelta(0)})
    return [today + number * _DAY for number in range(_DAYS_AHEAD + 1)]


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)


def _missing(split: _Split) -> Iterator[_Day]:
    schema = split.days if split.is_usable() else None
    for day in _coming(split.connection):
        if day not in split.covered():
            yield _Day(split.part(f"{_HISTORY}_{day:%Y%m%d}", schema), day)


def _make_day(split: _Split, missing: _Day) -> str:
    start, end = _midnight(missing.day), _midnight(missing.day + _DAY)
    return (
        f"CREATE TABLE {split.name(missing.rows)} PARTITION OF {split.name(split.part(_HISTORY))} "
        f"FOR VALUES FROM ('{start.isoformat()}') TO ('{end.isoformat()}')"
    )


def _days_there(split: _Split) -> int:
    return sum(1 for _ in takewhile(split.covered().__contains__, _coming(split.connection)))


def _make_coming(split: _Split) -> None:
    spare = _days_there(split) - 1
    patience = _PATIENCE_MS if spare > 1 else 10 * _PATIENCE_MS
    for missing in _missing(split):
        try:
            _alone(split.connection, _make_day(split, missing), patience_ms=patience)
        except DBAPIError as error:
            # Another sweep makes it, or it has rows in the partition of other days.
            if code_of(error) not in {_MISPLACED, *_MADE_BEFORE}:
                raise


def _alone(connection: sa.Connection, *statements: str, patience_ms: int = _PATIENCE_MS) -> None:
    with transaction(connection):
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = {patience_ms}")
        for statement in statements:
            connection.exec_driver_sql(statement)


@contextmanager
def _left_to_the_next_run() -> Iterator[None]:
    try:
        yield
    except DBAPIError as error:
        if code_of(error) not in {_IN_USE, _GONE, _NOT_OWNED}:
            raise
        log.debug("partitions are left to the next run (%s)", code_of(error))


def _detach(split: _Split, rows: sa.TableClause, day: date) -> None:
    detached = split.part(f"{_DETACHED}_{day:%Y%m%d}")
    quote = split.connection.dialect.identifier_preparer.quote
    _alone(
        split.connection,
        f"ALTER TABLE {split.name(split.part(_HISTORY))} DETACH PARTITION {split.name(rows)}",
        f"ALTER TABLE {split.name(rows)} RENAME TO {quote(detached.name)}",
    )


def _drop_detached(split: _Split, tables: Tables) -> None:
    """Free the idempotency keys of days that were taken out, and drop them."""
    beginning = f"{split.table.name}_{_DETACHED}_"
    history = split.name(split.part(_HISTORY))
    names = {"history": history, "beginning": beginning, "days": split.days}
    for schema, name in split.connection.execute(_LIKE, names).all():
        rows = split.part(name.removeprefix(f"{split.table.name}_"), schema)
        _free_keys(split.connection, rows, tables)
        _alone(split.connection, f"DROP TABLE {split.name(rows)}")


def _delete_orphans(attempts: _Split, until: date, tables: Tables) -> None:
    """Delete old attempts of a day without a partition whose messages went with theirs."""
    rows, key = attempts.part(_OTHER), tables.attempts.primary_key
    columns = [rows.c[column.name] for column in key]
    has_message = sa.exists().where(tables.messages.c.id == rows.c.message_id)
    is_old = rows.c.finished_at < _midnight(until)
    page = sa.select(*columns).where(is_old, ~has_message).limit(_ROWS_AT_ONCE)
    while orphans := attempts.connection.execute(page).all():
        is_orphan = sa.tuple_(*columns).in_(map(tuple, orphans))
        attempts.connection.execute(sa.delete(rows).where(is_orphan))
        if len(orphans) < _ROWS_AT_ONCE:
            return


def _has_messages_to_keep(split: _Split, rows: sa.TableClause, tables: Tables) -> bool:
    ids = sa.select(rows.c.id)
    return any(
        split.has(ids.where(is_needed))
        for is_needed in (tables.is_unreleased, tables.is_notification_due)
    )


def _has_attempts_to_keep(split: _Split, rows: sa.TableClause, tables: Tables) -> bool:
    is_unknown = rows.c.outcome == sa.text("'unknown'")
    query = sa.select(rows.c.message_id).where(is_unknown)
    for page in pages(split.connection.execute, query, [rows.c.message_id], _ROWS_AT_ONCE):
        has_id = tables.has_id([message_id for (message_id,) in page])
        if split.has(sa.select(tables.messages.c.id).where(has_id)):
            return True
    return False


def _free_keys(connection: sa.Connection, rows: sa.TableClause, tables: Tables) -> None:
    keys = tables.keys
    query = sa.select(rows.c.id, rows.c.idempotency_key).where(rows.c.idempotency_key.is_not(None))
    for page in pages(connection.execute, query, [rows.c.id], _ROWS_AT_ONCE):
        is_old = one_of(keys.c.idempotency_key, [row.idempotency_key for row in page])
        is_theirs = one_of(keys.c.message_id, [row.id for row in page])
        connection.execute(sa.delete(keys).where(is_old, is_theirs))

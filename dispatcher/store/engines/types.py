"""Column types, conditions and an INSERT that mean the same on every database, and its clock.

SQLAlchemy asks for them by the name of the dialect, also on a caller's connection. No driver is
needed here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.mysql import BINARY, DATETIME, LONGTEXT
from sqlalchemy.dialects.postgresql.dml import OnConflictDoNothing
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.expression import FunctionElement, literal
from sqlalchemy.types import TypeDecorator, TypeEngine

from dispatcher.message import dump_json
from dispatcher.times.clock import MILLISECOND, to_length_ms

MARIADB = ("mysql", "mariadb")
"""What SQLAlchemy calls MariaDB: by the name of the URL."""

TABLE_OPTIONS = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_nopad_bin",
}
"""MariaDB compares text by its bytes then: case, accents and trailing spaces tell apart."""
BUSY_TABLE_OPTIONS = TABLE_OPTIONS | {"postgresql_partition_by": "LIST ((finished_at IS NULL))"}
"""The options of a table whose rows are changed several times each."""

_SQLITE_FORMAT = "%Y-%m-%d %H:%M:%f"


class _Bytes(TypeDecorator[UUID]):
    """A UUID as its 16 bytes, which sort by time: half as long as text in every index."""

    impl = BINARY(16)
    cache_ok = True

    def process_bind_param(self, value: UUID | None, _dialect: sa.Dialect) -> bytes | None:
        return None if value is None else value.bytes

    def process_result_value(self, value: Any, _dialect: sa.Dialect) -> UUID | None:
        return None if value is None else UUID(bytes=bytes(value))


class _Text(TypeDecorator[Any]):
    impl = LONGTEXT
    cache_ok = True

    def process_bind_param(self, value: Any, _dialect: sa.Dialect) -> str | None:
        return None if value is None else dump_json(value)

    def process_result_value(self, value: Any, _dialect: sa.Dialect) -> Any:
        return None if value is None else json.loads(value)


def id_type() -> sa.Uuid[UUID]:
    return sa.Uuid().with_variant(_Bytes(), *MARIADB)


def json_type(*, none_as_null: bool = False) -> sa.JSON:
    return sa.JSON(none_as_null=none_as_null).with_variant(_Text(), *MARIADB)


def partial(condition: str) -> dict[str, Any]:
    where = sa.text(condition)
    return {"postgresql_where": where, "sqlite_where": where}


# Most instants of a row are one of two objects, and those of a batch are alike.
@lru_cache
def _as_text(instant: datetime | None) -> str | None:
    if instant is None:
        return None
    return instant.astimezone(UTC).isoformat(" ", "milliseconds")[:23]


@lru_cache
def _without_zone(instant: datetime | None) -> datetime | None:
    return None if instant is None else instant.astimezone(UTC).replace(tzinfo=None)


_WRITE_INSTANT = {"sqlite": _as_text, **dict.fromkeys(MARIADB, _without_zone)}


class Instant(TypeDecorator[datetime]):
    """An aware UTC datetime: ``timestamptz`` where the database has it.

    On SQLite text with milliseconds, as it tells its own time. On MariaDB ``DATETIME(6)``, because
    its ``TIMESTAMP`` ends in 2038 or 2106 and follows the session's zone.
    """

    impl = (
        sa.DateTime(timezone=True)
        .with_variant(sa.String(23), "sqlite")
        .with_variant(DATETIME(fsp=6), *MARIADB)
    )
    cache_ok = True

    def bind_processor(self, dialect: sa.Dialect) -> Callable[[datetime | None], Any] | None:
        return _WRITE_INSTANT.get(dialect.name)

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> Any:
        write = self.bind_processor(dialect)
        return value if write is None else write(value)

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> datetime | None:
        if value is None:
            return None
        if dialect.name == "sqlite":
            return datetime.fromisoformat(value).replace(tzinfo=UTC)
        instant: datetime = value
        return instant.replace(tzinfo=UTC) if dialect.name in MARIADB else instant.astimezone(UTC)


class Length(TypeDecorator[timedelta]):
    impl = sa.BigInteger
    cache_ok = True

    def process_bind_param(self, value: timedelta | None, _dialect: sa.Dialect) -> int | None:
        return None if value is None else to_length_ms(value)

    def process_result_value(self, value: int | None, _dialect: sa.Dialect) -> timedelta | None:
        return None if value is None else value * MILLISECOND


def _function(name: str, kind: TypeEngine[Any]) -> type[FunctionElement[Any]]:
    made = type(name, (FunctionElement,), {"type": kind, "inherit_cache": True, "name": name})
    compiles(made)(_spell)
    return made


def _spell(element: FunctionElement[Any], compiler: SQLCompiler, **kw: Any) -> str:
    # Without a spelling the condition is always true: only PostgreSQL has partitions.
    spelt = _SPELT.get(compiler.dialect.name, _SPELT["postgresql"]).get(element.name, "1 = 1")
    clauses = list(element.clauses)
    return _PLACE.sub(lambda place: compiler.process(clauses[int(place[1])], **kw), spelt)


_PLACE = re.compile(r"\{(\d)\}")
_SPELT = {
    "sqlite": {
        "now": f"strftime('{_SQLITE_FORMAT}', 'now')",
        "later": f"strftime('{_SQLITE_FORMAT}', {{0}}, printf('%+.3f seconds', {{1}}))",
        "minute_of": "(substr({0}, 1, 17) || '00.000')",
        "one_of": "{0}",
    },
    "mysql": {
        "now": "UTC_TIMESTAMP(6)",  # that of the statement's start, whatever the session's zone
        "later": "({0} + INTERVAL ROUND({1} * 1000000) MICROSECOND)",
        "minute_of": "CAST(DATE_FORMAT({0}, '%%Y-%%m-%%d %%H:%%i:00') AS DATETIME(6))",
        "one_of": "{0}",
    },
    "postgresql": {
        "now": "statement_timestamp()",
        "later": "({0} + make_interval(secs => {1}))",
        "minute_of": "date_trunc('minute', {0})",
        "one_of": "{1}",
        "where_partitioned": "({0})",
    },
}
_SPELT["mariadb"] = _SPELT["mysql"]
_INSTANTS = dict.fromkeys(MARIADB, "CAST('{}' AS DATETIME(6))")
_INSTANTS["postgresql"] = "timestamptz '{}+00'"
_CONDITION = sa.types.NullType()
"""Not Boolean: databases without that type would compare the condition with 1."""


database_now = _function("now", Instant())
"""The present instant by the database's clock, the same throughout a statement."""
minute_of = _function("minute_of", Instant())
where_partitioned = _function("where_partitioned", _CONDITION)
"""A redundant condition that leads to partitions; always true where there are none."""
_later = _function("later", Instant())
_one_of = _function("one_of", _CONDITION)


def with_present(
    connection: sa.Connection, statement: str, now: Callable[[], datetime], function: str
) -> str:
    """Return a statement in which ``now()`` stands for :func:`database_now`.

    A ``function`` of this name answers SQLite, which would prepare every new text anew.
    """

    def present(precision: str = "milliseconds") -> str:
        return now().astimezone(UTC).replace(tzinfo=None).isoformat(" ", precision)

    name = connection.dialect.name
    spelt, literal_of = _SPELT[name]["now"], _INSTANTS.get(name)
    if spelt not in statement:
        return statement
    if literal_of is not None:
        return statement.replace(spelt, literal_of.format(present("microseconds")))
    if function not in connection.info:
        driver: Any = connection.connection.dbapi_connection
        driver.create_function(function, 0, present, deterministic=True)
        connection.info[function] = True
    return statement.replace(spelt, f"{function}()")


def later(
    instant: sa.ColumnElement[datetime], length: sa.ColumnElement[float] | timedelta | float
) -> Any:
    """Return ``instant`` moved by a length; a number is one of seconds."""
    if isinstance(length, timedelta):
        length = length.total_seconds()
    return _later(instant, literal(float(length)) if isinstance(length, int | float) else length)


def one_of(column: sa.Column[Any], values: Sequence[Any] | str) -> sa.ColumnElement[bool]:
    """Return the condition that a column has one of these values, or of a parameter's so named.

    On PostgreSQL they are one array: a statement is the same, and prepared, for any number.
    """
    if isinstance(values, str):
        listed = sa.bindparam(values, type_=column.type, expanding=True)
        array = sa.bindparam(values, type_=sa.ARRAY(column.type))
    else:
        listed = sa.bindparam(None, values, type_=column.type, expanding=True, unique=True)
        array = sa.literal(list(values), sa.ARRAY(column.type))
    return _one_of(column.in_(listed), column == sa.any_(array))


@cache
def insert_if_absent(table: sa.Table) -> postgresql.Insert:
    """Return an INSERT for :func:`is_added` that adds nothing where a key exists.

    On MariaDB a plain one: INSERT IGNORE would also swallow values that do not fit.
    """
    return postgresql.insert(table).on_conflict_do_nothing()


@compiles(OnConflictDoNothing, *MARIADB)
def _plain(_element: OnConflictDoNothing, _compiler: SQLCompiler, **_kw: Any) -> str:
    return ""

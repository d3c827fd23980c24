"""Instants and lengths in SQL: their column types and the database's clock, on every dialect."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, DateTime, Dialect, String
from sqlalchemy.dialects.mysql import DATETIME
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.expression import FunctionElement, literal
from sqlalchemy.types import TypeDecorator, TypeEngine

from dispatcher.store.columns import MYSQL

_SQLITE_FORMAT = "%Y-%m-%d %H:%M:%f"
_MILLISECOND = timedelta(milliseconds=1)


class Instant(TypeDecorator[datetime]):
    """An aware UTC datetime.

    ``timestamptz`` where the database has it. On SQLite text in UTC with milliseconds, the form
    in which SQLite tells its own time, so that the two compare as text. On MariaDB and MySQL
    ``DATETIME(6)`` in UTC: their ``TIMESTAMP`` ends in 2038 or 2106 and follows the session's zone.
    """

    impl = DateTime(timezone=True)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Choose the column type."""
        if dialect.name == "sqlite":
            return dialect.type_descriptor(String(23))
        if dialect.name in MYSQL:
            return dialect.type_descriptor(DATETIME(fsp=6))
        return dialect.type_descriptor(DateTime(timezone=True))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        """Turn an aware datetime into what the driver takes."""
        if value is None:
            return None
        if dialect.name in MYSQL:
            return value.astimezone(UTC).replace(tzinfo=None)
        if dialect.name != "sqlite":
            return value
        return value.astimezone(UTC).isoformat(" ", "milliseconds")[:23]

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        """Turn what the driver gives into an aware UTC datetime."""
        if value is None:
            return None
        if dialect.name == "sqlite":
            return datetime.fromisoformat(value).replace(tzinfo=UTC)
        if dialect.name in MYSQL:
            naive: datetime = value
            return naive.replace(tzinfo=UTC)
        instant: datetime = value.astimezone(UTC)
        return instant


class Length(TypeDecorator[timedelta]):
    """A length, in whole milliseconds."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: timedelta | None, dialect: Dialect) -> int | None:
        """Turn a length into what is stored."""
        del dialect
        return None if value is None else to_length_ms(value)

    def process_result_value(self, value: int | None, dialect: Dialect) -> timedelta | None:
        """Turn what is stored into a length."""
        del dialect
        return None if value is None else value * _MILLISECOND


def to_length_ms(length: timedelta) -> int:
    """Return a length as it is stored."""
    return length // _MILLISECOND


class _DatabaseNow(FunctionElement[datetime]):
    type = Instant()
    inherit_cache = True
    name = "database_now"


class _MinuteOf(FunctionElement[datetime]):
    type = Instant()
    inherit_cache = True
    name = "minute_of"


class _Later(FunctionElement[datetime]):
    type = Instant()
    inherit_cache = True
    name = "later"


def database_now() -> ColumnElement[datetime]:
    """Return the present instant by the database's clock, the same throughout a statement."""
    return _DatabaseNow()


def later(instant: ColumnElement[datetime], seconds: ColumnElement[float] | float) -> Any:
    """Return ``instant`` moved by ``seconds``."""
    shift = literal(float(seconds)) if isinstance(seconds, int | float) else seconds
    return _Later(instant, shift)


def minute_of(instant: ColumnElement[datetime]) -> ColumnElement[datetime]:
    """Return the beginning of the minute in which ``instant`` lies."""
    return _MinuteOf(instant)


@compiles(_DatabaseNow)
def _now(element: _DatabaseNow, compiler: SQLCompiler, **kw: Any) -> str:
    del element, compiler, kw
    return "statement_timestamp()"


@compiles(_DatabaseNow, "sqlite")
def _now_sqlite(element: _DatabaseNow, compiler: SQLCompiler, **kw: Any) -> str:
    del element, compiler, kw
    return f"strftime('{_SQLITE_FORMAT}', 'now')"


@compiles(_DatabaseNow, *MYSQL)
def _now_mysql(element: _DatabaseNow, compiler: SQLCompiler, **kw: Any) -> str:
    del element, compiler, kw
    return "UTC_TIMESTAMP(6)"  # that of the statement's start, whatever the session's zone


@compiles(_Later)
def _later(element: _Later, compiler: SQLCompiler, **kw: Any) -> str:
    instant, seconds = (compiler.process(clause, **kw) for clause in element.clauses)
    return f"({instant} + make_interval(secs => {seconds}))"


@compiles(_Later, "sqlite")
def _later_sqlite(element: _Later, compiler: SQLCompiler, **kw: Any) -> str:
    instant, seconds = (compiler.process(clause, **kw) for clause in element.clauses)
    return f"strftime('{_SQLITE_FORMAT}', {instant}, printf('%+.3f seconds', {seconds}))"


@compiles(_Later, *MYSQL)
def _later_mysql(element: _Later, compiler: SQLCompiler, **kw: Any) -> str:
    instant, seconds = (compiler.process(clause, **kw) for clause in element.clauses)
    return f"({instant} + INTERVAL ROUND({seconds} * 1000000) MICROSECOND)"


@compiles(_MinuteOf)
def _minute_of(element: _MinuteOf, compiler: SQLCompiler, **kw: Any) -> str:
    [instant] = (compiler.process(clause, **kw) for clause in element.clauses)
    return f"date_trunc('minute', {instant})"


@compiles(_MinuteOf, "sqlite")
def _minute_of_sqlite(element: _MinuteOf, compiler: SQLCompiler, **kw: Any) -> str:
    [instant] = (compiler.process(clause, **kw) for clause in element.clauses)
    return f"(substr({instant}, 1, 17) || '00.000')"


@compiles(_MinuteOf, *MYSQL)
def _minute_of_mysql(element: _MinuteOf, compiler: SQLCompiler, **kw: Any) -> str:
    [instant] = (compiler.process(clause, **kw) for clause in element.clauses)
    return f"CAST(DATE_FORMAT({instant}, '%%Y-%%m-%%d %%H:%%i:00') AS DATETIME(6))"

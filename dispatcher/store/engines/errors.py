"""What the errors of databases mean, by their SQLSTATE, their number or their text.

An error of SQLAlchemy does not say of which database it is, and no two give it in the same form: a
number is MariaDB's, whose SQLSTATE is mostly "general error".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.engine import URL
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from dispatcher.errors import StoreUnavailable, quoted

_PORTS = {"postgresql": 5432, "mysql": 3306}
# An error of a PostgreSQL connection has no SQLSTATE, only what the server, a pooler, libpq or
# psycopg wrote. libpq may try with TLS and without: the first that fits is the reason.
_REFUSALS: tuple[tuple[str, frozenset[int], str, str], ...] = (
    (
        r"authentication failed|no password|FATAL:\s+(role .* does not exist|no such user)",
        frozenset({1045, 1698}),
        "the server{at} refuses the user or the password",
        "correct them in database_url",
    ),
    (
        r"FATAL:\s+(?:database .* does not exist|no such database)",
        frozenset({1049}),
        "the server has no database {database}",
        "create it, or correct database_url",
    ),
    (
        r"FATAL:\s+permission denied for database",
        frozenset({1044}),
        "the user lacks the right to connect to the database{at}",
        "grant it, or correct database_url",
    ),
    (
        r"pg_hba\.conf",
        frozenset({1130}),
        "the server{at} takes no connection of this user from this host",
        "allow it (pg_hba.conf, or the host of MariaDB's user), or connect with TLS",
    ),
    (
        r"\[SSL: |SSL error:|not support SSL|certificate (?:file|for|authentication)|client cert",
        frozenset({2026, 3159}),
        "TLS with the server{at} fails",
        "correct the parameters of TLS in database_url, or the certificate of the server",
    ),
    (
        r"failed to resolve host|could not translate host name|\(\[Errno (?:-\d+|8)\]",
        frozenset(),
        "the host name of the server{at} is unknown",
        "correct it in database_url, or let this machine resolve it",
    ),
    (
        r"unsupported startup parameter",
        frozenset(),
        "the pooler{at} refuses a parameter of database_url",
        "remove its options, or let PgBouncer ignore_startup_parameters",
    ),
)
"""What a server says that lets a client not in: the text, MariaDB's numbers, meaning, remedy."""
_LACKS_A_RIGHT = frozenset({"42501", 1142, 1143, 1227, 1370})
# A table or a column: PostgreSQL, then MariaDB.
_NO_SUCH_TABLE = frozenset({"42P01", "42703", 1146, 1054})
_NO_SUCH_IN_SQLITE = re.compile(r"no such table|no such column|table \w+ has no column")
_NOT_REACHED = frozenset({2002, 2003, 2005})
_CONFLICTS = frozenset({"40P01", "40001", 1020, 1213})
"""A deadlock, a serialization failure, or, on MariaDB, a change since the snapshot."""
_UNDONE = _CONFLICTS | {1205}
"""The database undid the transaction and says so; on MariaDB also after a wait for a lock."""

_DEMOTED = frozenset({"25006", 1290, 1792, 1836})
"""A server takes no writes: it was demoted, and its name leads, or will lead, to another one."""
_MEANINGS = (
    ({"53100", 1021, 1114, "SQLITE_FULL"}, "no space is left"),
    (_DEMOTED | {"SQLITE_READONLY"}, "it takes no writes"),
    (_LACKS_A_RIGHT, "its user lacks a right"),
    ({"22P05", 1366}, "its encoding lacks a character of a text"),
    ({"SQLITE_BUSY"}, "another connection was writing for too long"),
    ({"55P03", 1205}, "another transaction, perhaps of this thread, kept a row for too long"),
)
_TOO_LONG = frozenset({"57014", 1969})
"""The statement took longer than it may."""
_CHECKS = frozenset({3819, 4025})
"""A CHECK refused the row."""


def code_of(error: BaseException | None) -> int | str | None:
    """Return the number of MariaDB, the SQLSTATE of PostgreSQL, or the name of SQLite."""
    driver = getattr(error, "orig", error)
    number = None if driver is error else next(iter(getattr(driver, "args", ())), None)
    if isinstance(number, int):
        return number
    named: str | None = getattr(driver, "sqlstate", None)
    return named or getattr(driver, "sqlite_errorname", None)


def unavailable(error: SQLAlchemyError, url: URL | None = None) -> StoreUnavailable:
    """Say what went wrong without statements, values or secrets; ``url`` gives the address."""
    if isinstance(error, PoolTimeout):
        remedy = "let fewer threads call at a time, or use another Dispatcher"
        return StoreUnavailable("no connection became free in time", remedy=remedy)
    if not isinstance(error, DBAPIError):
        return StoreUnavailable(type(error).__name__)
    name, code = type(error.orig).__name__, code_of(error)
    if (error.connection_invalidated and not takes_no_writes(error)) or name in {
        "ConnectionTimeout",
        "AdminShutdown",
    }:
        return StoreUnavailable("the connection to the database broke")
    is_kept_out = (code is None and name == "OperationalError") or code in _NOT_REACHED
    for pattern, numbers, reason, remedy in _REFUSALS:
        if code in numbers or (is_kept_out and re.search(pattern, str(error.orig))):
            database = quoted(url.database) if url and _at(url) else "of that name"
            meaning = reason.format(at=_at(url), database=database)
            return StoreUnavailable(meaning, remedy=remedy)
    if is_kept_out:
        helps = "start it, let this machine reach it, or correct database_url"
        return StoreUnavailable(f"the database{_at(url)} cannot be reached", remedy=helps)
    refused = isinstance(error, IntegrityError | DataError) or code in _CHECKS
    file = f"the file {url.database}" if url and url.database else "the file"
    reason, remedy = _answer(error, code or name, file)
    return StoreUnavailable(reason, refused=refused, timed_out=code in _TOO_LONG, remedy=remedy)


def _answer(error: DBAPIError, code: object, file: str) -> tuple[str, str]:
    if code in _NO_SUCH_TABLE or _NO_SUCH_IN_SQLITE.match(str(error.orig)):
        return f"the schema of the database is out of date ({code})", "run `dispatcher migrate`"
    if code == "SQLITE_CANTOPEN":
        needed = "let this user read and write it and its folder"
        return f"{file} cannot be opened ({code})", f"{needed}, or run the command as its owner"
    remedy = "give the user of database_url all rights on the tables of the dispatcher"
    return answered(code), remedy if code in _LACKS_A_RIGHT else ""


def answered(code: object) -> str:
    for codes, meaning in _MEANINGS:
        if code in codes:
            return f"the database answered {code}: {meaning}"
    return f"the database answered {code}"


def _at(url: URL | None) -> str:
    if url is None or "@" in f"{url.host}{url.database}":  # of a password, unless it is written %40
        return ""
    host = url.host or url.query.get("host") or url.query.get("unix_socket")
    if not isinstance(host, str):  # none is named, or several
        return ""
    port = url.port or _PORTS.get(url.get_backend_name())
    return f" at {host}" if host.startswith("/") else f" at {host}:{port}"


def cause(error: SQLAlchemyError) -> SQLAlchemyError | None:
    """Return the error to chain to ours: none where the database may quote the row in it.

    MariaDB may in most; not in those of a broken line, and of what it undid or writes no more.
    """
    code = code_of(error)
    quotes = isinstance(code, int) and code not in {*range(2000, 3000), *_UNDONE, *_DEMOTED}
    return None if quotes or isinstance(error, IntegrityError | DataError) else error


def is_broken(error: SQLAlchemyError) -> bool:
    return isinstance(error, DBAPIError) and error.connection_invalidated


def takes_no_writes(error: BaseException | None) -> bool:
    return code_of(error) in _DEMOTED


def was_conflict(error: SQLAlchemyError) -> bool:
    return isinstance(error, DBAPIError) and code_of(error) in _CONFLICTS


def was_undone(error: SQLAlchemyError) -> bool:
    """Whether another transaction was in the way: the database has undone this one."""
    return isinstance(error, DBAPIError) and code_of(error) in _UNDONE


def refused_by_driver(error: Exception) -> StoreUnavailable:
    return StoreUnavailable(f"the driver refused a value ({type(error).__name__})", refused=True)


@contextmanager
def translated(url: URL | None = None) -> Iterator[None]:
    try:
        yield
    except SQLAlchemyError as error:
        raise unavailable(error, url) from cause(error)

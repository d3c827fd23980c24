"""Errors of redis-py, SQLAlchemy and kombu become ours in the room that talks to that thing."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kombu.exceptions
import psycopg
import pymysql
import pytest
import redis
import sqlalchemy.exc as sa

from dispatcher import (
    InvalidSettings,
    LimitersUnavailable,
    QueueUnavailable,
    ReservationsUnavailable,
    Settings,
    StoreUnavailable,
)
from dispatcher.bootstrap import Parts
from dispatcher.errors import Unavailable
from dispatcher.limiters.base import translated as in_limiters
from dispatcher.message import new_id
from dispatcher.queue import Ticket
from dispatcher.redis_errors import EvictingServer
from dispatcher.reservation.answers import translated as in_reservation
from dispatcher.store.database import Database, unavailable
from dispatcher.store.database import translated as in_store
from tests.support.clock import NOON, MovableClock

SECRET = "hunter2-ada"  # noqa: S105 - looked for where it must not be

REDIS_ERRORS: list[redis.RedisError] = [
    redis.ConnectionError(f"redis://:{SECRET}@host"),
    redis.TimeoutError(f"text {SECRET}"),
    redis.AuthenticationError(f"text {SECRET}"),
    redis.exceptions.NoPermissionError(f"text {SECRET}"),
    redis.exceptions.BusyLoadingError(f"text {SECRET}"),
    redis.exceptions.ReadOnlyError(f"text {SECRET}"),
    redis.exceptions.OutOfMemoryError(f"text {SECRET}"),
    redis.exceptions.NoScriptError(f"NOSCRIPT {SECRET}"),
    redis.ResponseError(f"WRONGTYPE {SECRET}"),
    redis.ResponseError(f"OOM {SECRET}"),
    redis.DataError(f"Invalid {SECRET}"),
    redis.exceptions.ClusterDownError(f"CLUSTERDOWN {SECRET}"),
    redis.exceptions.MaxConnectionsError("Too many connections"),
    EvictingServer("Redis runs maxmemory-policy allkeys-lru; it must be noeviction"),
]


@pytest.mark.parametrize("error", REDIS_ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(
    ("room", "ours"),
    [(in_reservation, ReservationsUnavailable), (in_limiters, LimitersUnavailable)],
)
def test_redis_errors_are_translated_without_their_text(
    room: Callable[[], Any], ours: type[Unavailable], error: redis.RedisError
) -> None:
    with pytest.raises(ours) as caught, room():
        raise error
    assert type(caught.value) is ours
    # What the server answered is quoted with its command, so no traceback may show it.
    answered = isinstance(error, redis.ResponseError)
    assert caught.value.__cause__ is (None if answered else error)
    assert caught.value.__suppress_context__
    assert caught.value.reason
    assert SECRET not in str(caught.value)


SQL_ERRORS: list[tuple[sa.SQLAlchemyError, str]] = [
    (sa.TimeoutError("QueuePool limit reached"), "no connection became free in time"),
    (
        sa.OperationalError(
            SECRET, {}, psycopg.OperationalError(SECRET), connection_invalidated=True
        ),
        "the connection to the database broke",
    ),
    (
        sa.OperationalError(SECRET, {}, psycopg.errors.AdminShutdown(SECRET)),
        "the connection to the database broke",
    ),
    (sa.DBAPIError(SECRET, {}, psycopg.errors.QueryCanceled(SECRET)), "answered 57014"),
    (sa.IntegrityError(SECRET, {}, psycopg.errors.CheckViolation(SECRET)), "answered 23514"),
    (sa.ProgrammingError(SECRET, {}, psycopg.errors.UndefinedTable(SECRET)), "answered 42P01"),
    (
        sa.OperationalError(
            SECRET, {}, pymysql.OperationalError(2013, SECRET), connection_invalidated=True
        ),
        "the connection to the database broke",
    ),
    (sa.OperationalError(SECRET, {}, pymysql.OperationalError(2003, SECRET)), "cannot be reached"),
    (sa.OperationalError(SECRET, {}, pymysql.OperationalError(1205, SECRET)), "answered 1205"),
    (sa.ProgrammingError(SECRET, {}, pymysql.ProgrammingError(1064, SECRET)), "answered 1064"),
    (sa.OperationalError(SECRET, {}, sqlite3.OperationalError(SECRET)), "cannot be reached"),
    (sa.DatabaseError(SECRET, {}, sqlite3.DatabaseError(SECRET)), "DatabaseError"),
    (sa.StatementError(SECRET, SECRET, {}, ValueError(SECRET)), "StatementError"),
    (sa.NoSuchTableError(SECRET), "NoSuchTableError"),
]


@pytest.mark.parametrize(("error", "says"), SQL_ERRORS, ids=lambda each: type(each).__name__)
def test_sql_errors_are_translated_without_their_text(error: sa.SQLAlchemyError, says: str) -> None:
    with pytest.raises(StoreUnavailable) as caught, in_store():
        raise error
    assert says in caught.value.reason
    assert caught.value.reason == unavailable(error).reason
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("error", "refused"),
    [
        (sa.IntegrityError(SECRET, {}, pymysql.IntegrityError(1062, SECRET)), True),
        (sa.DataError(SECRET, {}, pymysql.DataError(1406, SECRET)), True),
        (sa.OperationalError(SECRET, {}, pymysql.OperationalError(4025, SECRET)), True),
        (sa.OperationalError(SECRET, {}, pymysql.OperationalError(3819, SECRET)), True),
        (sa.OperationalError(SECRET, {}, pymysql.OperationalError(1213, SECRET)), False),
    ],
)
def test_what_mariadb_refuses_is_told_from_what_it_could_not_do(
    error: sa.DBAPIError, refused: bool
) -> None:
    assert unavailable(error).refused is refused


@pytest.mark.parametrize("number", [1064, 1292, 1366, 1406, 1644, 4025])
def test_an_error_of_mariadb_that_may_quote_values_is_not_chained(number: int) -> None:
    with pytest.raises(StoreUnavailable) as caught, in_store():
        raise sa.OperationalError(SECRET, {}, pymysql.OperationalError(number, SECRET))
    assert caught.value.__cause__ is None
    with pytest.raises(StoreUnavailable) as caught, in_store():
        raise sa.OperationalError("", {}, pymysql.OperationalError(1205, "Lock wait timeout"))
    assert "Lock wait timeout" in str(caught.value.__cause__)


@pytest.mark.parametrize(
    "error",
    [
        sa.StatementError(SECRET, SECRET, {}, ValueError(SECRET)),
        sa.TimeoutError("QueuePool limit reached"),
        sa.OperationalError(SECRET, {}, sqlite3.OperationalError(SECRET)),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_piece_of_work_raises_nothing_of_sqlalchemy(error: Exception, tmp_path: Path) -> None:
    def work(_: object) -> None:
        raise error

    database = Database(f"sqlite:///{tmp_path}/x.db")
    with pytest.raises(StoreUnavailable) as caught:
        database.run(work)
    assert SECRET not in str(caught.value)
    database.close()


@pytest.mark.parametrize(
    "error",
    [
        kombu.exceptions.OperationalError(SECRET),
        redis.ConnectionError(SECRET),
        OSError(111, SECRET),
        TimeoutError(SECRET),
        RuntimeError(SECRET),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_the_broker_raises_is_translated(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = MovableClock()
    parts = Parts(Settings.load(broker_url="memory://"), clock)

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(parts.queue._app.amqp, "send_task_message", fail)
    ticket = Ticket(new_id(), "sms", NOON)
    with pytest.raises(QueueUnavailable) as caught:
        parts.queue.enqueue([ticket])
    assert type(error).__name__ in caught.value.reason
    assert SECRET not in str(caught.value)
    with pytest.raises(QueueUnavailable, match="a moment ago"):
        parts.queue.enqueue([ticket])
    parts.close()


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"redis_url": f"http://:{SECRET}@host"}, "redis"),
        ({"redis_url": f"redis://:{SECRET}@host:port"}, "redis"),
        ({"redis_url": ""}, "redis"),
        ({"database_url": f"oracle://ada:{SECRET}@host/x"}, "database"),
        ({"database_url": f"mysql+mysqldb://ada:{SECRET}@host/x"}, "database"),
        ({"database_url": SECRET}, "database"),
        ({"database_url": ""}, "database"),
        ({"database_url": "sqlite+nothing:///x.db"}, "database"),
        ({"database_url": "sqlite://"}, "database"),
    ],
    ids=str,
)  # fmt: skip
def test_an_address_that_cannot_be_used_names_its_setting_and_not_its_secret(
    settings: dict[str, str], part: str
) -> None:
    parts = Parts(Settings.load(**settings))
    with pytest.raises(InvalidSettings) as caught:
        getattr(parts, part)
    assert caught.value.field == f"{part}_url"
    assert SECRET not in str(caught.value)

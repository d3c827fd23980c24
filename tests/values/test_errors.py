"""Errors: one tree, each carries its data; those of others become ours where they are raised."""

from __future__ import annotations

import inspect
import pickle
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from typing import Any
from uuid import UUID

import kombu.exceptions
import psycopg
import pymysql
import pytest
import redis
import sqlalchemy.exc as sa
from amqp.exceptions import AccessRefused, NotAllowed

from dispatcher import (
    InvalidSettings,
    LimitersUnavailable,
    QueueUnavailable,
    ReservationsUnavailable,
    Settings,
    StoreUnavailable,
    errors,
)
from dispatcher.app import App
from dispatcher.celery.configuration import create_app
from dispatcher.celery.queue import Ticket, broker_facts
from dispatcher.celery.queue import translated as of_broker
from dispatcher.errors import Unavailable
from dispatcher.limiters.limiter import translated as in_limiters
from dispatcher.message import new_id
from dispatcher.redis.errors import START_REDIS, EvictingServer, reason, remedy, translated
from dispatcher.store.database import Database
from dispatcher.store.engines.errors import translated as in_store
from dispatcher.store.engines.errors import unavailable
from tests.support.clock import NOON, MovableClock

ID = UUID(int=7)


def classes() -> dict[str, type[BaseException]]:
    return {
        name: kind
        for name, kind in vars(errors).items()
        if inspect.isclass(kind) and issubclass(kind, BaseException)
    }


def drawn() -> dict[str, str | None]:
    """Read the tree in the module's docstring: each name with its parent's."""
    path: list[tuple[int, str]] = []
    tree: dict[str, str | None] = {}
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"^ {4}([│├└─ ]*)([A-Z]\w+)", line)
        if match is None:
            continue
        depth, name = len(match[1]), match[2]
        while path and path[-1][0] >= depth:
            path.pop()
        tree[name] = path[-1][1] if path else None
        path.append((depth, name))
    return tree


def test_the_drawn_tree_is_the_real_one() -> None:
    real = {
        name: next((base.__name__ for base in kind.__bases__ if base.__name__ in classes()), None)
        for name, kind in classes().items()
    }
    assert drawn() == real


class LineCut(errors.TemporaryFailure, ConnectionError):
    """An error of a transport of the user's own."""

    def __init__(self, line: str) -> None:
        super().__init__(line)


SECONDS = timedelta(seconds=5)
NO_ROOM: dict[str, object] = {"reason": "it is full"}
CARRYING: list[tuple[errors.DispatcherError, dict[str, object], list[str]]] = [
    (
        errors.InvalidDraft("recipient", "256 characters", "1 to 255"),
        {"field": "recipient", "problem": "256 characters", "accepted": "1 to 255"},
        ["recipient", "256 characters", "1 to 255"],
    ),
    (errors.InvalidSendTime("send_at", "past", "later"), {"field": "send_at"}, ["past", "later"]),
    (
        errors.UnknownChannel("fax", ["email", "sms"]),
        {"channel": "fax", "known": ("email", "sms"), "field": "channel"},
        ["fax", "email", "sms"],
    ),
    (
        errors.QuotaExceeded(
            quota="1/minute", scope="ann", send_at=NOON, conflicting=[ID], next_slot=NOON
        ),
        {"quota": "1/minute", "scope": "ann", "conflicting": (ID,), "next_slot": NOON},
        ["1/minute", "ann"],
    ),
    (
        errors.QuotaExceeded(
            quota="1/minute", scope="ann", send_at=NOON, conflicting=[ID] * 5, next_slot=NOON
        ),
        {"conflicting": (ID,) * 5},
        [str(ID), "2 more", NOON.isoformat()],
    ),
    (errors.IdempotencyConflict("k", ID), {"key": "k", "message_id": ID}, [str(ID)]),
    (errors.MessageNotFound(ID), {"message_id": ID}, [str(ID)]),
    (errors.TooLate(ID, "sent"), {"message_id": ID, "status": "sent"}, ["sent"]),
    (errors.OutcomeUnknown("down", ID), {"message_id": ID}, [str(ID), "down"]),
    (errors.TemporaryFailure("busy"), {"retry_after": None}, ["busy"]),
    (errors.TemporaryFailure("busy", SECONDS), {"retry_after": SECONDS}, ["busy"]),
    (errors.PermanentFailure("no"), {}, ["no"]),
    (LineCut("line 7"), {"args": ("line 7",)}, ["line 7"]),
    *(
        (kind("it is full"), NO_ROOM, [f"{kind.what} unavailable: it is full"])
        for kind in errors.Unavailable.__subclasses__()
        if "what" in vars(kind)
    ),
]


@pytest.mark.parametrize(
    ("error", "data", "said"), CARRYING, ids=[type(error).__name__ for error, _, _ in CARRYING]
)
def test_an_error_carries_its_data_says_it_and_survives_the_way_between_processes(
    error: errors.DispatcherError, data: dict[str, object], said: list[str]
) -> None:
    """One that cannot be unpickled hangs a process pool and confuses Celery's workers."""
    assert {name: getattr(error, name) for name in data} == data
    assert all(part in str(error) for part in said)
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


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


def away(text: str, at: str = "", helps: str = "") -> tuple[redis.RedisError, str, str]:
    return redis.ConnectionError(text), f"Redis {at}cannot be reached", helps


REFUSED, NO_FILE, FORBIDDEN = "Connection refused", "No such file or directory", "Permission denied"
AT = "connecting to"


@pytest.mark.parametrize(
    ("error", "says", "helps"),
    [
        away(f"Error 111 {AT} 127.0.0.1:6390. {REFUSED}.", "at 127.0.0.1:6390 ", "start it, let"),
        away(f"Error 111 {AT} ::1:6390. {REFUSED}.", "at ::1:6390 ", "start it"),
        away(f"Error 2 {AT} /run/r.sock. {NO_FILE}.", "at /run/r.sock ", START_REDIS),
        away(f"Error 13 {AT} /run/r.sock. {FORBIDDEN}.", "at /run/r.sock ", "as the user of that"),
        away(f"Error 13 {AT} host:6379. {FORBIDDEN}.", "at host:6379 ", "or correct redis_url"),
        away(f"{AT} redis://:{SECRET}@host:1/0."),
        away("Connection closed by server."),
        (redis.AuthenticationError("WRONGPASS"), "Redis refused the credentials", "password in"),
        (redis.exceptions.NoPermissionError("NOPERM"), "the user of Redis lacks a right",
         "SECURITY.md lists"),
        (redis.ResponseError("DB index is out of range"), "Redis has no database of that number",
         "correct redis_url"),
    ],
)  # fmt: skip
def test_a_redis_that_does_not_serve_is_named_with_the_remedy(
    error: redis.RedisError, says: str, helps: str
) -> None:
    assert reason(error) == says
    assert helps in remedy(error)
    assert bool(remedy(error)) is bool(helps)


@pytest.mark.parametrize("error", REDIS_ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(
    ("room", "ours"),
    [
        (lambda: translated(ReservationsUnavailable), ReservationsUnavailable),
        (lambda: in_limiters, LimitersUnavailable),
    ],
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


def sql(
    driver: Exception, kind: type[sa.DBAPIError] = sa.OperationalError, *, broke: bool = False
) -> sa.DBAPIError:
    return kind(SECRET, {}, driver, connection_invalidated=broke)


BROKE, NO_DATABASE = "connection to the database broke", "the server has no database of that name"
SQL_ERRORS: list[tuple[sa.SQLAlchemyError, str]] = [
    (sa.TimeoutError("QueuePool limit reached"), "no connection became free in time"),
    (sql(psycopg.OperationalError(SECRET), broke=True), BROKE),
    (sql(psycopg.errors.AdminShutdown(SECRET)), BROKE),
    (sql(psycopg.errors.QueryCanceled(SECRET), sa.DBAPIError), "answered 57014"),
    (sql(psycopg.errors.CheckViolation(SECRET), sa.IntegrityError), "answered 23514"),
    (sql(psycopg.errors.UndefinedTable(SECRET), sa.ProgrammingError), "out of date (42P01)"),
    (sql(psycopg.OperationalError(f'FATAL:  database "{SECRET}" does not exist')), NO_DATABASE),
    (sql(pymysql.OperationalError(2013, SECRET), broke=True), BROKE),
    (sql(pymysql.OperationalError(2003, SECRET)), "cannot be reached"),
    (sql(pymysql.OperationalError(1049, SECRET)), NO_DATABASE),
    (sql(pymysql.OperationalError(1205, SECRET)), "answered 1205: another transaction"),
    (sql(psycopg.errors.LockNotAvailable(SECRET)), "answered 55P03: another transaction"),
    (sql(pymysql.ProgrammingError(1064, SECRET), sa.ProgrammingError), "answered 1064"),
    (sql(sqlite3.OperationalError(SECRET)), "cannot be reached"),
    (sql(sqlite3.DatabaseError(SECRET), sa.DatabaseError), "DatabaseError"),
    (sa.StatementError(SECRET, SECRET, {}, ValueError(SECRET)), "StatementError"),
    (sa.NoSuchTableError(SECRET), "NoSuchTableError"),
]


@pytest.mark.parametrize(("error", "says"), SQL_ERRORS, ids=lambda error: type(error).__name__)
def test_sql_errors_are_translated_without_their_text(error: sa.SQLAlchemyError, says: str) -> None:
    with pytest.raises(StoreUnavailable) as caught, in_store():
        raise error
    assert says in caught.value.reason
    assert caught.value.reason == unavailable(error).reason
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        (
            f"postgresql://ada:{SECRET}@127.0.0.1:1/x?password={SECRET}",
            "the database at 127.0.0.1:1 cannot be reached",
        ),
        (f"mariadb://ada:{SECRET}@127.0.0.1:1/x", "the database at 127.0.0.1:1 cannot be reached"),
        (
            f"postgresql://ada:x@{SECRET}@127.0.0.1:1/x",
            "the host name of the server is unknown",
        ),  # it should be x%40…
        ("postgresql:///x?host=/nowhere/run", "the database at /nowhere/run cannot be reached"),
    ],
)
def test_a_database_that_is_away_is_named_by_its_address(url: str, says: str) -> None:
    database = Database(url)
    with pytest.raises(StoreUnavailable) as caught:
        database.run(lambda _: None)
    assert caught.value.reason == says
    assert SECRET not in str(caught.value)
    database.close()


@pytest.mark.parametrize(
    ("kind", "number", "refused"),
    [
        ("IntegrityError", 1062, True),
        ("DataError", 1406, True),
        ("OperationalError", 4025, True),
        ("OperationalError", 3819, True),
        ("OperationalError", 1213, False),
    ],
)
def test_refusals_of_mariadb_differ_from_its_outages(kind: str, number: int, refused: bool) -> None:
    error = sql(getattr(pymysql, kind)(number, SECRET), getattr(sa, kind))
    assert unavailable(error).refused is refused


@pytest.mark.parametrize("number", [1064, 1292, 1366, 1406, 1644, 4025])
def test_an_error_of_mariadb_that_may_quote_values_is_not_chained(number: int) -> None:
    with pytest.raises(StoreUnavailable) as caught, in_store():
        raise sql(pymysql.OperationalError(number, SECRET))
    assert caught.value.__cause__ is None
    with pytest.raises(StoreUnavailable) as caught, in_store():
        raise sa.OperationalError("", {}, pymysql.OperationalError(1205, "Lock wait timeout"))
    assert "Lock wait timeout" in str(caught.value.__cause__)


@pytest.mark.parametrize(
    "error",
    [kombu.exceptions.OperationalError(SECRET), OSError(111, SECRET), RuntimeError(SECRET)],
    ids=lambda error: type(error).__name__,
)
def test_every_error_of_the_broker_is_translated(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    ticket = Ticket(new_id(), "sms", NOON)
    with closing(App(Settings.load(broker_url="memory://"), MovableClock())) as parts:
        monkeypatch.setattr(parts.queue._app.amqp, "send_task_message", fail)
        with pytest.raises(QueueUnavailable) as caught:
            parts.queue.enqueue([ticket])
        assert type(error).__name__ in caught.value.reason
        assert SECRET not in str(caught.value)
        with pytest.raises(QueueUnavailable, match="a moment ago"):
            parts.queue.enqueue([ticket])


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (
            AccessRefused("access to exchange 'x' in vhost '/' refused for user", (40, 10)),
            "the broker refuses the user or the password, or a right of the user",
        ),
        (
            NotAllowed("access to vhost 'x' refused for user 'y'", (10, 40)),
            "the broker has no such virtual host, or the user lacks the right to it",
        ),
        (redis.ConnectionError(SECRET), "Redis cannot be reached"),
        (redis.exceptions.NoPermissionError(SECRET), "the user of Redis lacks a right"),
    ],
    ids=lambda error: str(error)[:20],
)
def test_a_broker_that_gives_no_right_says_so(error: Exception, says: str) -> None:
    refused = of_broker(error, "the broker did not take the tasks")
    assert refused.reason == says
    assert SECRET not in str(refused)


def test_a_version_of_redis_py_that_kombu_refuses_is_said_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = Settings.load(broker_url="redis://127.0.0.1:1/0")

    def refused(_: object) -> None:
        raise kombu.exceptions.VersionMismatch("Redis transport requires redis-py 6.1.0 or later")

    monkeypatch.setattr("kombu.transport.redis.Channel._get_client", refused)
    app = create_app(settings, submitting=True)
    with pytest.raises(QueueUnavailable, match=r"requires redis-py 6\.1\.0") as caught:
        broker_facts(app)
    assert caught.value.remedy == "install 'kombu<5.7', or redis 6.1 or newer"
    app.close()


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"redis_url": f"http://:{SECRET}@host"}, "redis"),
        ({"redis_url": f"redis://:{SECRET}@host:port"}, "redis"),
        ({"database_url": f"oracle://ada:{SECRET}@host/x"}, "database"),
        ({"database_url": f"mysql+nothing://ada:{SECRET}@host/x"}, "database"),
        ({"database_url": SECRET}, "database"),
        ({"database_url": "sqlite://"}, "database"),
        # By default it is the broker's, too.
        ({"redis_url": f"http://:{SECRET}@host"}, "queue"),
        ({"broker_url": f"pigeon://ada:{SECRET}@host"}, "queue"),
        ({"broker_url": f"redis://:{SECRET}@host/0?loft=7"}, "queue"),
    ],
    ids=str,
)  # fmt: skip
def test_an_address_that_cannot_be_used_names_its_setting_and_not_its_secret(
    settings: dict[str, str], part: str
) -> None:
    parts = App(Settings.load(**settings))
    with pytest.raises(InvalidSettings) as caught:
        getattr(parts, part)
    assert [caught.value.field] == [*settings]
    assert SECRET not in str(caught.value)

"""The database and the Redis of a story: what they hold, and what may happen to them."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple, cast
from uuid import UUID
from zoneinfo import ZoneInfo

from redis import Redis
from sqlalchemy import Engine, NullPool, create_engine, event

from dispatcher.message import Outcome, Status
from dispatcher.redis.keys import scope_of
from dispatcher.reservation.fence import Fence
from dispatcher.store.database import Database
from dispatcher.testing.app import new_database, servers
from dispatcher.testing.clock import RedisTime, sql_time
from dispatcher.times.offset import Offset
from dispatcher.times.send_time import to_ms
from tests.simulation.setting import settings

_QUICK = ("synchronous=OFF", "busy_timeout=0", "foreign_keys=ON")


@dataclass(frozen=True, slots=True)
class Row:
    id: UUID
    status: Status
    channel: str
    recipient: str
    scope: str
    scopes: dict[str, str] | None
    send_at: datetime
    next_attempt_at: datetime
    created_at: datetime
    finished_at: datetime | None
    expires_at: datetime | None
    claim_expires_at: datetime | None
    claim_token: int
    attempt_count: int
    max_attempts: int
    idempotency_key: str | None
    last_error: str | None
    on_unknown: str | None
    tail: str
    body: str
    delayed_by: str | None
    priority: int
    event: str | None

    @classmethod
    def of(cls, values: Sequence[Any]) -> Row:
        id_, status, channel, recipient, scope, scopes, *rest = values
        instants: list[Any] = [value and _instant(value) for value in rest[:6]]
        scopes = json.loads(scopes) if scopes else None
        return cls(
            UUID(id_), Status(status), channel, recipient, scope, scopes, *instants, *rest[6:]
        )


class Told(NamedTuple):
    """What the row of a series became; it was deleted where it has no ``definition``."""

    at: datetime
    name: str
    token: str
    definition: dict[str, Any]
    booked_until: datetime


class Try(NamedTuple):
    token: int
    started_at: datetime
    finished_at: datetime | None
    outcome: Outcome | None


_LOG = """
CREATE TABLE told (at TEXT, name TEXT, token TEXT, definition TEXT, booked_until TEXT);
CREATE TRIGGER added AFTER INSERT ON dispatcher_events WHEN NEW.definition IS NOT NULL BEGIN
    INSERT INTO told
    VALUES (story_now(), NEW.name, NEW.token, NEW.definition, NEW.booked_until); END;
CREATE TRIGGER changed AFTER UPDATE ON dispatcher_events WHEN NEW.definition IS NOT NULL AND
    (NEW.token, NEW.definition, NEW.booked_until)
    IS NOT (OLD.token, OLD.definition, OLD.booked_until)
BEGIN
    INSERT INTO told
    VALUES (story_now(), NEW.name, NEW.token, NEW.definition, NEW.booked_until); END;
CREATE TRIGGER removed AFTER DELETE ON dispatcher_events WHEN OLD.definition IS NOT NULL BEGIN
    INSERT INTO told VALUES (story_now(), OLD.name, '', NULL, OLD.booked_until); END;
"""
"""Keeps all that a series was: what a pass has skipped a later one may forget."""
_STRAY = """
SELECT m.id, m.send_at, m.wish, e.at FROM dispatcher_messages m JOIN dispatcher_events e
ON m.event = e.name WHERE m.status = 'scheduled' AND m.claim_token = 0 AND e.at IS NOT NULL
"""
_MESSAGES = "FROM dispatcher_messages WHERE status <> 'void'"
_ROWS = f"SELECT {', '.join(Row.__dataclass_fields__)} {_MESSAGES}"
_TRIES = (
    "SELECT token, started_at, finished_at, outcome FROM dispatcher_attempts WHERE message_id = ?"
)


@cache
def _files() -> tuple[Database, Engine, Path, Path]:
    """Return the database of all stories, an engine for callers, its file, and an empty one."""
    database = Database(new_database(settings()))
    callers = create_engine(database.url, poolclass=NullPool)
    for engine in (database.engine, callers):
        event.listen(engine, "connect", _prepare)
    file = database.backend.file
    assert file is not None
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript(_LOG)
    empty = file.with_suffix(".empty")
    shutil.copyfile(file, empty)
    return database, callers, file, empty


def _prepare(connection: Any, _record: object) -> None:
    connection.create_function("story_now", 0, lambda: Store.present().isoformat())
    for words in _QUICK:
        connection.execute(f"PRAGMA {words}")


class Store:
    """The database of a story. A lock is not waited for: nobody lets go of it meanwhile."""

    present: Callable[[], datetime]

    def __init__(self, now: Callable[[], datetime]) -> None:
        Store.present = now
        self.database, self.callers, file, empty = _files()
        self._now = now
        self.database.close()
        for end in ("", "-wal", "-shm"):  # a new file, whoever has the one of an earlier story open
            file.with_name(file.name + end).unlink(missing_ok=True)
        shutil.copyfile(empty, file)
        self._view = sqlite3.connect(file, isolation_level=None)
        self._version = 0

    @contextmanager
    def told_the_time(self) -> Iterator[None]:
        with sql_time(self.database.url.render_as_string(hide_password=False), self._now):
            try:
                yield
            finally:
                self._keep()

    def _keep(self) -> None:
        """Read from a copy from now on: the file is for the next story."""
        copy = sqlite3.connect(":memory:")
        with closing(self._view):
            self._view.backup(copy)
        self._view = copy

    def now(self) -> datetime:
        now = self._now()
        return now.replace(microsecond=now.microsecond // 1_000 * 1_000)

    def rows(self) -> list[Row]:
        return [Row.of(row) for row in self.values()]

    def row(self, message_id: UUID) -> Row | None:
        rows = self._read(f"{_ROWS} AND id = ?", message_id.hex)
        return Row.of(rows[0]) if rows else None

    def values(self) -> list[tuple[Any, ...]]:
        """Return all messages in SQLite's values: the first one is the id in hex."""
        return self._read(_ROWS)

    def ids(self) -> set[UUID]:
        return {UUID(row[0]) for row in self._read(f"SELECT id {_MESSAGES}")}

    def new_ends(self) -> list[tuple[str, str, str | None]]:
        """Return id, status and end of all messages; nothing where no row has changed."""
        [(version,)] = self._read("PRAGMA data_version")
        if version == self._version:
            return []
        self._version = version
        return self._read(f"SELECT id, status, finished_at {_MESSAGES}")

    def strays(self) -> Iterator[str]:
        """Yield the scheduled reminders that do not stand where their events are."""
        for id_, send_at, wish, at in self._read(_STRAY):
            stands = Offset.parse(wish).from_event(_instant(at), ZoneInfo("UTC"))
            if stands != _instant(send_at):
                yield f"{UUID(id_)} stands at {send_at}, and its event at {at} {wish}"

    def told(self) -> Iterator[Told]:
        """Yield what series were, in order."""
        for at, name, token, definition, booked_until in self._read("SELECT * FROM told"):
            of = json.loads(definition or "{}")
            yield Told(datetime.fromisoformat(at), name, token, of, _instant(booked_until))

    def is_settled(self) -> bool:
        return not self._read(f"{_ROWS} AND status IN ('scheduled', 'sending') LIMIT 1")

    def tries(self, message_id: UUID) -> list[Try]:
        return [
            Try(token, _instant(begun), end and _instant(end), outcome and Outcome(outcome))
            for token, begun, end, outcome in self._read(_TRIES, message_id.hex)
        ]

    def _read(self, query: str, *values: Any) -> list[Any]:
        return self._view.execute(query, values).fetchall()


def _instant(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


_FACTOR = 64
"""The ends of keys are multiples of it (``travel.lua``)."""
_Kept = dict[bytes, tuple[bytes, int]]


class Server:
    """One Redis that may become another one, with older data."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self.number = 1
        self._now = now
        self.client.flushdb()
        self._kept: _Kept = {}

    @cached_property
    def client(self) -> Redis:
        path = servers().socket
        # Replies have the form of RESP2, as those of the dispatcher's clients.
        client = RedisTime(path, self._now).told_by(Redis(unix_socket_path=str(path), protocol=2))
        vars(client)["info"] = self._info
        return client

    def _info(self, *_: object) -> dict[str, Any]:
        return {"run_id": f"run {self.number}", "maxmemory_policy": "noeviction"}

    def now_ms(self) -> int:
        return to_ms(self._now())

    def flush(self) -> None:
        self.client.flushdb()

    def keep(self) -> None:
        """Remember how things stand, as a replica does that lags behind."""
        names = self._names()
        pipeline = self.client.pipeline(transaction=True)
        pipeline.time()
        for name in names:
            pipeline.dump(name)
            pipeline.pttl(name)
        (seconds, micros), *replies = pipeline.execute()
        now_ms = seconds * 1_000 + micros // 1_000
        self._kept = {
            name: (dump, 0 if life < 0 else round((now_ms + life) / _FACTOR) * _FACTOR)
            for name, dump, life in zip(names, replies[::2], replies[1::2], strict=True)
        }

    def fail_over(self, fence: Fence) -> None:
        """Become another server with what was kept. Whoever connects takes the epochs back."""
        pipeline = self.client.pipeline(transaction=True)
        pipeline.flushdb()
        for name, (dump, ends_at) in self._kept.items():
            pipeline.restore(name, ends_at, dump, absttl=ends_at > 0)
        pipeline.execute()
        self.number += 1
        fence.incomplete(self.client, fence.parts)

    def members(self) -> set[bytes]:
        """Return the members of all windows."""
        pipeline = self.client.pipeline(transaction=False)
        for name in self._names():
            if scope_of(name) is not None:
                pipeline.zrange(name, 0, -1)
        return {member for members in pipeline.execute() for member in members}

    def unconfirmed(self, fence: Fence) -> int:
        return sum(int(cast("Any", self.client.zcard(keys.pending))) for keys in fence.keys)

    def scores(self, name: str) -> dict[bytes, float]:
        return dict(cast("Any", self.client.zrange(name, 0, -1, withscores=True)))

    def _names(self) -> list[bytes]:
        return sorted(cast("list[bytes]", self.client.keys("{sim:*")))

"""The database of a story: a SQLite file, and what it holds as the judge reads it."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Engine, NullPool, create_engine, event

from dispatcher.message import Outcome, Status
from dispatcher.store.database import Database
from dispatcher.testing.app import new_database
from dispatcher.testing.clock import sql_time
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

    @classmethod
    def of(cls, values: Sequence[Any]) -> Row:
        id_, status, channel, recipient, scope, scopes, *rest = values
        instants: list[Any] = [each and _instant(each) for each in rest[:6]]
        scopes = json.loads(scopes) if scopes else None
        return cls(
            UUID(id_), Status(status), channel, recipient, scope, scopes, *instants, *rest[6:]
        )


class Try(NamedTuple):
    token: int
    started_at: datetime
    finished_at: datetime | None
    outcome: Outcome | None


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
    empty = file.with_suffix(".empty")
    shutil.copyfile(file, empty)
    return database, callers, file, empty


def _prepare(connection: Any, _record: object) -> None:
    for words in _QUICK:
        connection.execute(f"PRAGMA {words}")


class Store:
    """The database of a story. A lock is not waited for: nobody lets go of it meanwhile."""

    def __init__(self, now: Callable[[], datetime]) -> None:
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
        return [Row.of(each) for each in self.values()]

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

"""The parts of a dispatcher whose time a test moves, and the servers of this process's tests.

All parts are the real ones but the clock, the broker and the transports. One thread delivers, in
order. The servers, a Redis and SQLite databases, are started once and emptied for each test. The
Redis is the one of the extra ``embedded``, or one on PATH. It keeps nothing on disk and ends with
this process, also where that is killed.
"""

from __future__ import annotations

import atexit
import heapq
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import redis
from redis import Redis
from sqlalchemy import Select, event, func, select

from dispatcher.app import App, built_once, wired
from dispatcher.celery.queue import Queue, TaskGroup, Ticket
from dispatcher.delivery import Delivery
from dispatcher.embedded import START_SECONDS, redis_command
from dispatcher.errors import DispatcherError, EmbeddedUnavailable
from dispatcher.message import Status
from dispatcher.settings import Settings
from dispatcher.store.database import Database
from dispatcher.store.engines.base import StoreEngine
from dispatcher.store.migrate import migrate
from dispatcher.telemetry.journal import Event, Journal, Transition
from dispatcher.testing.clock import RedisTime, TravelClock
from dispatcher.times.clock import Clock
from dispatcher.transports import Transport

_POLL_SECONDS = 0.002
_MIGRATED: set[str] = set()
_UNTIL_THE_PIPE_CLOSES = '"$@" & read _; kill $!; wait'
"""A shell that runs a command until its standard input ends, as it does when this process dies."""
_SETTLED = frozenset({Transition.SCHEDULED, Transition.ENQUEUED, Transition.SENT})
"""The transitions after which the sweep has nothing to do."""


class _RefusalJournal(Journal):
    def __init__(self, refusals: list[DispatcherError], **options: Any) -> None:
        super().__init__(**options)
        self._refusals = refusals

    def refused(self, error: DispatcherError) -> None:
        self._refusals.append(error)
        super().refused(error)


class _Place(NamedTuple):
    """When a message is delivered, and with which others: those of one task are alike but last."""

    begins_at: datetime
    behind: int
    is_first: bool
    channel: str
    alone: bool
    number: int


class InProcessQueue(Queue):
    """Stands in for the queue of a broker. Messages of a channel share an instant."""

    def __init__(self, *, group_size: int, clock: Clock, journal: Journal) -> None:
        self._size = group_size
        self._clock = clock
        self._journal = journal
        self._waiting: list[tuple[_Place, UUID]] = []
        self._numbers = count()

    def close(self) -> None:
        """Do nothing: it has no connections."""

    def enqueue(self, tickets: Sequence[Ticket]) -> None:
        now = self._clock.now()
        for message_id, channel, due_at, alone, is_first, priority, _ in tickets:
            place = _Place(
                max(due_at, now), -priority, is_first, channel, alone, next(self._numbers)
            )
            heapq.heappush(self._waiting, (place, message_id))
            self._journal.tell_of(Transition.ENQUEUED, message_id, channel, due_at=due_at)

    def next_at(self) -> datetime | None:
        return self._waiting[0][0].begins_at if self._waiting else None

    def take(self) -> TaskGroup:
        first, message_id = heapq.heappop(self._waiting)
        ids = [message_id]
        while self._waiting and len(ids) < self._size and not first.alone:
            if self._waiting[0][0][:-1] != first[:-1]:
                break
            ids.append(heapq.heappop(self._waiting)[1])
        return TaskGroup(first.channel, tuple(ids), first.begins_at, first.is_first)


class TestApp(App):
    """``settings`` lead to the servers of the test, ``transport`` sends on every channel."""

    __test__ = False  # pytest would take it for a test

    def __init__(
        self,
        settings: Settings,
        clock: TravelClock,
        *,
        transport: Transport,
        redis_time: RedisTime,
        seed: int = 0,
    ) -> None:
        super().__init__(settings, clock)
        self.refused: list[DispatcherError] = []
        self.is_settled = False
        """Whether the duties of the sweep have nothing to do before the next message is due."""
        self._transport = transport
        self._redis_time = redis_time
        self._jitter = random.Random(seed).random  # noqa: S311 - no secret

    @built_once
    def database(self) -> Database:
        """The database of the store. A crash of the machine may lose what a test stored."""
        database = super().database
        backend = database.backend
        if backend.file is not None:
            event.listen(
                database.engine,
                "connect",
                lambda connection, _: connection.execute("PRAGMA synchronous=OFF"),
            )
        # Every statement goes through SQLAlchemy, which puts the present of the test into it.
        vars(backend)["direct_insert"] = partial(StoreEngine.direct_insert, backend)
        return database

    @built_once
    def redis(self) -> Redis:
        return self._redis_time.told_by(super().redis)

    @built_once
    def plain_redis(self) -> Redis:
        return self._redis_time.told_by(super().plain_redis)

    queue = wired(InProcessQueue)

    @built_once
    def journal(self) -> Journal:
        listeners: list[Callable[[Event], None]] = [self._unsettle]
        if self.hooks is not None:
            listeners.append(self.hooks.on_event)
        if self.settings.events_kept:
            listeners.append(self.events.on_event)
        return _RefusalJournal(self.refused, log_key=self.settings.log_key, listeners=listeners)

    @built_once
    def transports(self) -> Mapping[str, Transport]:
        return dict.fromkeys(self.settings.channels, self._transport)

    @built_once
    def delivery(self) -> Delivery:
        """The use case of ``deliver``; its sends happen on the thread that calls it."""
        delivery = super().delivery
        delivery.jitter = self._jitter
        delivery.close()  # from now on calls for the threads of its senders run at once
        return delivery

    def _unsettle(self, happened: Event) -> None:
        if happened.kind not in _SETTLED:
            self.is_settled = False

    def needs_reconcile(self) -> bool:
        pending = [keys.pending for keys in self.fence.keys]
        return bool(self.redis.exists(*pending) or self.store_maintenance.unreleased(limit=1))

    def next_to_sweep(self) -> datetime | None:
        """Return when the first message is to be enqueued, or a series booked; None without any."""
        [first] = self.database.read(self._first_to_sweep)
        return min((at for at in first if at is not None), default=None)

    @built_once
    def _first_to_sweep(self) -> Select[Any]:
        tables, row = self.database.tables, self.database.tables.messages.c
        waiting = (tables.is_live, row.status == Status.SCHEDULED.value, ~self.paused)
        enqueued = select(func.min(row.enqueue_at)).where(*waiting)
        booked = select(func.min(tables.events.c.due_at))
        return select(enqueued.scalar_subquery(), booked.scalar_subquery())


class Servers(NamedTuple):
    """A folder for the files of tests, and the socket of their Redis."""

    folder: Path
    socket: Path


@cache
def servers() -> Servers:
    """Return the servers of this process, started once. Raises EmbeddedUnavailable."""
    folder = Path(tempfile.mkdtemp(prefix="dispatcher-tests-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    socket = folder / "redis.sock"
    options = {"databases": "1", "logfile": str(folder / "redis.log")}
    command = redis_command(folder, socket, options)
    shell = subprocess.Popen(  # noqa: S603 - the command is made in this file
        ["/bin/sh", "-c", _UNTIL_THE_PIPE_CLOSES, "sh", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    atexit.register(shell.communicate)
    deadline = time.monotonic() + START_SECONDS
    with redis.Redis(unix_socket_path=str(socket)) as client:
        while True:
            try:
                client.ping()
            except redis.ConnectionError:
                if shell.poll() is not None or time.monotonic() > deadline:
                    problem = f"a Redis did not start; its log is {folder / 'redis.log'}"
                    raise EmbeddedUnavailable(problem) from None
                time.sleep(_POLL_SECONDS)
            else:
                return Servers(folder, socket)


def new_database(settings: Settings) -> str:
    """Return the URL of a new, empty SQLite database with the tables of these settings."""
    template = _template(settings.table_prefix)
    path = template.with_name(f"{uuid4().hex}.db")
    shutil.copyfile(template, path)
    return f"sqlite:///{path}"


@cache
def _template(prefix: str) -> Path:
    path = servers().folder / f"template-{prefix}.db"
    database = Database(f"sqlite:///{path}", table_prefix=prefix)
    database.backend.make()
    database.tables.metadata.create_all(database.engine)
    with database.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()
    return path


def empty_database(settings: Settings) -> None:
    """Migrate the database of these settings, and delete all rows of the dispatcher's tables."""
    database = Database.of(settings)
    try:
        if settings.database_url not in _MIGRATED:
            migrate(database)
            _MIGRATED.add(settings.database_url)
        with database.engine.begin() as connection:
            for table in reversed(database.tables.metadata.sorted_tables):
                connection.execute(table.delete())
    finally:
        database.close()

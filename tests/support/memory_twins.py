"""A dispatcher in memory and one on real servers, at the same time by all their clocks.

Both get the same calls. Redis has the clock of ``tests.support.limiters``; PostgreSQL finds a
function of our own where statements ask for its clock. Everything between is as it ships.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from typing import Any
from unittest.mock import patch
from uuid import UUID

from sqlalchemy import func, select, text

from dispatcher import Dispatcher, Message, Settings
from dispatcher.app import built_once
from dispatcher.errors import (
    DispatcherError,
    PerhapsSent,
    PermanentFailure,
    TemporaryFailure,
)
from dispatcher.message import Plan, Rejection, Status
from dispatcher.redis.keys import permit_parts
from dispatcher.reservation import Timeline, booking, longest_ms, windows
from dispatcher.store import Database
from dispatcher.store.schema import VOID
from dispatcher.submission import submitter
from dispatcher.testing.app import MemoryApp, TravelApp
from dispatcher.testing.travel import Outbox, Travel, TravelClock
from dispatcher.times.send_time import to_ms
from tests.support.limiters import Clocked

_CLOCK = """
CREATE SCHEMA test_clock;
CREATE TABLE test_clock.present (at timestamptz);
INSERT INTO test_clock.present VALUES (clock_timestamp());
CREATE FUNCTION test_clock.statement_timestamp() RETURNS timestamptz LANGUAGE sql STABLE
    AS 'SELECT at FROM test_clock.present';
CREATE FUNCTION test_clock.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE
    AS 'SELECT at FROM test_clock.present';
"""
_COLUMNS = (
    "id", "channel", "recipient", "scope", "body", "send_at", "next_attempt_at", "expires_at",
    "status", "attempt_count", "max_attempts", "idempotency_key", "created_at", "finished_at",
    "last_error", "zone", "quiet_hours", "on_unknown", "expire_after", "asked_at", "enqueued_at",
    "enqueue_at", "claim_token", "move_token", "reserved", "status_url", "notified_status",
    "campaign",
)  # fmt: skip
_ATTEMPT = ("message_id", "token", "started_at", "finished_at", "outcome", "error", "receipt")
Failing = dict[str, tuple[str, int]]
"""How sends to a recipient fail, and up to which attempt."""


class RealApp(TravelApp):
    """The parts on real servers whose clocks a test moves."""

    client: Clocked

    @built_once
    def redis(self) -> Any:
        """The client whose scripts see the time of the test."""
        return self.client

    plain_redis = redis

    def needs_reconcile(self) -> bool:
        """Whether a reservation is to be released, or a snoozed message to be brought forward."""
        [part] = permit_parts(self.settings.namespace, 1)
        return bool(self.redis.exists(part.room) or self.store_maintenance.unreleased(limit=1))

    def next_to_enqueue(self) -> datetime | None:
        """Return when the first scheduled message is to be enqueued; None without one."""
        tables = self.database.tables
        row = tables.messages.c
        waits = (row.status == Status.SCHEDULED.value, ~tables.paused(self.settings.scopes))
        query = select(func.min(row.enqueue_at)).where(*waits)
        [(first,)] = self.database.read(query)
        return None if first is None else first


class Side:
    """One of the two."""

    def __init__(self, app: TravelApp, clock: TravelClock, settings: Settings) -> None:
        self.app = app
        self.clock = clock
        self.outbox = Outbox(clock)
        app._transport_of = lambda _: self.outbox
        app._jitter = lambda: 0.5
        self.dispatcher = Dispatcher(settings, clock=clock)
        self.dispatcher._app = app
        app.reconciler.reconcile(settle=timedelta(0))
        self.travel = Travel(app, clock)


class RealClock(TravelClock):
    """Moves the clocks of Redis and PostgreSQL along."""

    def __init__(self, start: datetime, client: Clocked, database: Database) -> None:
        super().__init__(start)
        self._client = client
        self._database = database
        self._tell()

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self._tell()

    def move_to(self, instant: datetime) -> None:
        before = self.now()
        super().move_to(instant)
        if self.now() != before:
            self._tell()

    def _tell(self) -> None:
        at = self.now()
        self._client.set_us(to_ms(at) * 1_000)
        set_clock = text("UPDATE test_clock.present SET at = :at")
        self._database.run(lambda connection: connection.execute(set_clock, {"at": at}))


class Servers:
    """The real servers, emptied for each story."""

    def __init__(self, client: Clocked, url: str) -> None:
        self.client = client
        plain = Database(url)
        plain.run(lambda connection: connection.execute(text(_CLOCK)))
        plain.close()
        sign = "&" if "?" in url else "?"
        self.url = f"{url}{sign}options=-csearch_path%3Dtest_clock,public,pg_catalog%20"
        self.url += "-csynchronous_commit%3Doff"
        self.database = Database(self.url)

    def emptied(self) -> None:
        """Delete everything but the clock."""
        tables = self.database.tables.messages.metadata.sorted_tables
        names = [each.name for each in reversed(tables)]

        def work(connection: Any) -> None:
            for name in names:
                connection.execute(text(f"DELETE FROM {name}"))  # noqa: S608 - our own names

        self.database.run(work)
        self.client.flushdb()

    def close(self) -> None:
        """Close the connections."""
        self.database.close()
        self.client.close()


class Twins:
    """Both sides, and the comparison of all that they answer, store, reserve and send."""

    def __init__(self, servers: Servers, settings: Settings, start: datetime) -> None:
        servers.emptied()
        settings = settings.model_copy(update={"database_url": servers.url})
        real_clock = RealClock(start, servers.client, servers.database)
        clock = TravelClock(start)
        real = RealApp(settings, real_clock, transport_of=_unset)
        real.client = servers.client
        vars(real)["database"] = servers.database
        memory = MemoryApp(settings, clock, transport_of=_unset)
        self.failing: Failing = {}
        self.calls = 0
        self.is_broken = False
        self._numbers = 0
        self._stack = ExitStack()
        self._stack.enter_context(patch.object(submitter, "new_ids", self._new_ids))
        self._stack.enter_context(patch.object(booking, "new_id", self._new_id))
        self._stack.enter_context(patch.object(windows, "new_hold", self._new_hold))
        self._stack.enter_context(patch("dispatcher.delivery.sweep.random.shuffle", _in_order))
        self.real = Side(real, real_clock, settings)
        self.memory = Side(memory, clock, settings)
        for side in (self.real, self.memory):
            side.outbox.before = self._fail

    @property
    def now(self) -> datetime:
        """The present of both."""
        return self.memory.clock.now()

    def ask(self, call: Callable[[Side], Any]) -> Any:
        """Ask both; return the answer, which must be the same, and compare all they hold."""
        self.calls += 1
        self.is_broken, found = True, []
        for side in (self.real, self.memory):
            self._numbers = 0
            try:
                answer = call(side)
            except DispatcherError as error:
                answer = error
            found.append((answer, _plain(answer)))
        (_, real), (answer, memory) = found
        _same("answers", memory, real)
        self.compare()
        self.is_broken = False
        return answer

    def compare(self) -> None:
        """Fail unless both have the same rows, attempts, windows, sends and time."""
        _same("time", self.memory.clock.now(), self.real.clock.now())
        _same("sends", _sent(self.memory), _sent(self.real))
        tables, memory = self.real.app.database.tables, self.memory.app
        assert isinstance(memory, MemoryApp)
        rows = self.real.app.database.read(select(tables.messages).where(tables.is_message))
        double = {
            row.id: {name: _value(getattr(row, name)) for name in _COLUMNS}
            for row in memory.tables.messages.values()
        }
        real = {row.id: {name: _value(getattr(row, name)) for name in _COLUMNS} for row in rows}
        for message_id in double.keys() | real.keys():
            _same("rows", double.get(message_id), real.get(message_id))
        tries = self.real.app.database.read(select(tables.attempts))
        ours = [each for some in memory.tables.attempts.values() for each in some.values()]
        _same(
            "attempts",
            sorted(_fields(each, _ATTEMPT) for each in ours),
            sorted(_fields(each, _ATTEMPT) for each in tries),
        )
        void = select(tables.messages.c.id).where(tables.messages.c.status == VOID)
        given_up = {row.id for row in self.real.app.database.read(void)}
        _same("void", set(memory.tables.void), given_up)
        longest = max(map(longest_ms, memory.settings.quotas_of.values()))
        counted_ms = to_ms(self.now) - longest  # what is older is deleted some time
        _same("windows", _windows(memory, counted_ms), self._real_windows(counted_ms))

    def close(self) -> None:
        """End the story."""
        self.real.app.delivery.close()
        self._stack.close()

    def _real_windows(self, counted_ms: int) -> dict[str, dict[bytes, int]]:
        client: Any = self.real.app.redis
        found = {}
        for name in client.keys("*:window*"):
            members = client.zrangebyscore(name, counted_ms, "+inf", withscores=True)
            if members:
                found[name.decode()] = {member: int(score) for member, score in members}
        return found

    def _new_id(self) -> UUID:
        self._numbers += 1
        number = (self.calls << 16) + self._numbers
        return UUID(int=(to_ms(self.now) << 80) | (7 << 76) | (2 << 62) | number)

    def _new_ids(self, count: int) -> list[UUID]:
        return [self._new_id() for _ in range(count)]

    def _new_hold(self, message_id: UUID) -> bytes:
        self._numbers += 1
        return message_id.bytes + b"hold%08d" % ((self.calls << 16) + self._numbers)

    def _fail(self, message: Message) -> None:
        how, until = self.failing.get(message.recipient, ("", 0))
        if message.attempt_count > until:
            return
        if how == "temporary":
            raise TemporaryFailure("busy")
        if how == "later":
            raise TemporaryFailure("busy", retry_after=timedelta(minutes=10))
        if how == "closed":
            raise TemporaryFailure("closed", retry_after=timedelta(hours=1), closes_channel=True)
        if how == "permanent":
            raise PermanentFailure("no such address")
        if how == "unknown":
            raise PerhapsSent("the line broke")
        if how == "strange":
            raise ValueError("a fault of the transport")


@contextmanager
def twins(servers: Servers, settings: Settings, start: datetime) -> Iterator[Twins]:
    """Give both sides for one story."""
    made = Twins(servers, settings, start)
    try:
        yield made
    finally:
        made.close()


def _unset(_: str) -> Any:
    raise AssertionError


def _same(what: str, memory: Any, real: Any) -> None:
    """Fail unless both are the same, and say where they differ."""
    if memory == real:
        return
    told = f"\nin memory:  {memory}\non servers: {real}"
    if isinstance(memory, dict) and isinstance(real, dict):
        both = {name: (memory.get(name), real.get(name)) for name in memory.keys() | real.keys()}
        differ = {name: each for name, each in both.items() if each[0] != each[1]}
        told = f", in memory and on servers: {differ}"
    raise AssertionError(f"{what} differ{told}")


def _in_order(tickets: list[Any]) -> None:
    tickets.sort(key=lambda each: each.message_id)


def _windows(app: MemoryApp, counted_ms: int) -> dict[str, dict[bytes, int]]:
    found = {
        name: {member: int(at) for member, at in window.items() if at >= counted_ms}
        for name, window in app.server.holds.windows.items()
    }
    return {name: window for name, window in found.items() if window}


def _sent(side: Side) -> list[tuple[Any, ...]]:
    return sorted(
        (each.at, each.message.id, each.message.attempt_count, each.recipient, each.body)
        for each in side.outbox
    )


def _fields(row: Any, names: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(_value(getattr(row, name)) for name in names)


def _value(value: Any) -> Any:
    return str(value) if isinstance(value, Status) else value


def _plain(answer: Any) -> Any:
    """Return an answer as it is compared: errors by kind and text."""
    if isinstance(answer, Exception):
        return type(answer).__name__, str(answer)
    if isinstance(answer, Rejection):
        return answer.number, _plain(answer.error)
    if isinstance(answer, list | tuple) and not hasattr(answer, "_fields"):
        return [_plain(each) for each in answer]
    if isinstance(answer, Plan):
        return (*(getattr(answer, name) for name in ("accepted", "known", "shifted")),
                answer.first_send_at, answer.last_send_at, _plain(answer.rejections))  # fmt: skip
    if isinstance(answer, Timeline):
        return repr(answer)
    return answer

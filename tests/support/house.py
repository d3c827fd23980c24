"""The whole house, wired on real servers, with a clock a test moves and a look into everything."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, Protocol, Self, cast
from uuid import UUID

import redis
from sqlalchemy import insert, select, text, update

from dispatcher import Dispatcher, Draft, Message, Outcome, Settings
from dispatcher.app import App
from dispatcher.message import Status, new_id
from dispatcher.redis.keys import PermitKeys, ShardKeys, permit_parts, shard_of
from dispatcher.reservation.encoding import member_of
from dispatcher.scope import Scope, counted
from dispatcher.store.database import Database
from dispatcher.store.schema import VOID, Tables
from dispatcher.store.survey import StoreSurvey
from dispatcher.times.clock import SystemClock
from dispatcher.times.send_time import to_ms
from dispatcher.transports import MemoryTransport
from tests.support import canaries
from tests.support.clock import MovableClock
from tests.support.doubles import Between, WorkerDied, raising
from tests.support.reserving import scores, value_of, window
from tests.support.servers import RedisServer
from tests.support.tables import messages

BROKER_DB = 1
HOUR = timedelta(hours=1)
FAR = datetime(2100, 1, 1, 11, 0, tzinfo=UTC)
"""Where the clocks of those who only submit stand: nothing is ever due."""
_USE_CASES = (
    "reserver", "submitter", "own_transaction", "callers_transactions", "enqueuer",
    "changes", "delivery", "sweep", "reconciler", "timeline_reader", "verification", "decisions",
    "suppression_list", "cancellation",
)  # fmt: skip
BODY = {"text": canaries.BODY}


@dataclass(frozen=True)
class Snapshot:
    redis: dict[tuple[int, bytes], bytes]
    messages: list[tuple[Any, ...]]
    attempts: list[tuple[Any, ...]]


class Gate(Protocol):
    """Where windows and permits lie: a server, a cluster, or a master with its sentinels."""

    @property
    def url(self) -> str:
        """What the settings take."""

    def client(self) -> redis.Redis:
        """Return a client without the dispatcher's fence."""


class House(AbstractContextManager["House"]):
    """A dispatcher and what lies behind its front door.

    ``server`` holds the queues and, unless there is a ``gate``, windows and permits. ``url`` is
    where tests look at the store; the dispatcher may reach it another way.
    """

    def __init__(
        self,
        settings: Settings,
        clock: MovableClock | SystemClock,
        *,
        server: RedisServer,
        url: str,
        gate: Gate | None = None,
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.server = server
        self.url = url
        self.dispatcher = Dispatcher(settings, clock=clock)
        self.parts: App = self.dispatcher._app
        self.redis = (gate or server).client()
        self.broker = redis.Redis(unix_socket_path=str(server.socket), db=BROKER_DB)

    @cached_property
    def database(self) -> Database:
        """The store, seen from beside the dispatcher."""
        return Database(self.url, table_prefix=self.tables.prefix, table_schema=self.tables.schema)

    @property
    def tables(self) -> Tables:
        return self.parts.database.tables

    @property
    def moved(self) -> MovableClock:
        assert isinstance(self.clock, MovableClock)
        return self.clock

    @property
    def memory(self) -> MemoryTransport:
        return cast("MemoryTransport", self.parts.transports["memory"])

    @property
    def sent(self) -> list[UUID]:
        return [message.id for message in self.memory.sent]

    def open(self) -> None:
        """Let Redis be declared complete: by the sweep, if there is anything stored.

        Nothing is read back where nothing is stored: half of what a test of the house cost was
        the reconcile that found this out.
        """
        messages = self.tables.messages
        if self.parts.database.read(select(messages.c.id).limit(1)):
            self.parts.reconciler.reconcile(settle=timedelta(0))
            return
        upkeep = self.parts.upkeep
        rebuild = upkeep.begin()
        if rebuild is not None:
            upkeep.wipe(rebuild)
            upkeep.open(rebuild.of(ShardKeys))
            upkeep.open(rebuild.of(PermitKeys))

    def reconciled(self) -> Self:
        self.parts.reconciler.reconcile()
        return self

    def swap(self, name: str, part: object) -> None:
        """Put a double in the place of a part; the use cases are wired again."""
        if "delivery" in vars(self.parts):
            self.parts.delivery.close()
        for built in _USE_CASES:
            vars(self.parts).pop(built, None)
        vars(self.parts)[name] = part

    def between(self, use_case: str, part: str, **hooks: Any) -> Any:
        """Put a :class:`Between` with these hooks before a part of a use case; return the part."""
        parts = vars(getattr(self.parts, use_case))
        real = parts[part]
        parts[part] = Between(real, **hooks)
        return real

    def submit(self, recipient: str = "ada", **asked: Any) -> Message:
        if "send_at" not in asked and "send_in" not in asked:
            asked["send_in"] = timedelta(0)
        return self.dispatcher.submit(
            **{"channel": "memory", "recipient": recipient, "body": BODY} | asked
        )

    def deliver(self, *messages: Message | UUID) -> int:
        ids = [message.id if isinstance(message, Message) else message for message in messages]
        return self.parts.delivery.deliver(ids)

    def again(self, message: Message) -> Message:
        return self.dispatcher.get(message.id)

    def snapshot(self) -> Snapshot:
        """Look at everything but the figures of refusals and the limits of callers."""
        values: dict[tuple[int, bytes], bytes] = {}
        for number, client in enumerate((self.redis, self.broker)):
            for key in cast("list[bytes]", client.keys("*")):
                if b"@refusals}" in key or b".api" in key:
                    continue
                values[number, key] = value_of(client, key)
        return Snapshot(values, self.rows(), self.attempt_rows())

    def everything(self) -> Iterator[tuple[str, object]]:
        """Yield each table, key and file of data with what it holds."""
        for table in self.tables.metadata.sorted_tables:
            yield table.name, self._all(select(table))
        for client in (self.redis, self.broker):
            yield from ((f"key {name!r}", value_of(client, name)) for name in client.scan_iter())
        for path in self.settings.data_dir.rglob("*"):
            if path.is_file():
                yield str(path), path.read_bytes()

    def rows(self) -> list[tuple[Any, ...]]:
        messages = self.tables.messages
        return self._all(select(messages).where(self.tables.is_message).order_by(messages.c.id))

    def attempt_rows(self) -> list[tuple[Any, ...]]:
        attempts = self.tables.attempts
        return self._all(select(attempts).order_by(attempts.c.message_id, attempts.c.token))

    def columns(self, message: Message, *names: str) -> tuple[Any, ...]:
        messages = self.tables.messages
        query = select(*(messages.c[name] for name in names)).where(messages.c.id == message.id)
        return self._all(query)[0]

    def change(self, targets: Iterable[Message], **values: Any) -> None:
        ids = [message.id for message in targets]
        messages = self.tables.messages
        statement = update(messages).where(messages.c.id.in_(ids)).values(**values)
        self.database.run(lambda connection: connection.execute(statement))

    def end_claims(self, *messages: Message) -> None:
        """Let the claims of these messages run out a second ago."""
        self.change(messages, claim_expires_at=self.database_time() - timedelta(seconds=1))

    def make_due(self, *messages: Message) -> None:
        self.change(messages, next_attempt_at=self.database_time() - timedelta(milliseconds=1))

    def fail_sends(self, *errors: BaseException) -> None:
        fail = raising(*errors)
        self.memory.before = lambda _: fail()

    def lose(self, *messages: Message) -> None:
        """Let the worker of each message die in its send; their claims have run out."""
        for message in messages:
            self.fail_sends(WorkerDied())
            with suppress(WorkerDied):
                self.deliver(message)
        self.end_claims(*messages)

    def outcomes(self, message: Message) -> list[Outcome | None]:
        return [attempt.outcome for attempt in self.dispatcher.attempts(message.id)]

    def database_time(self) -> datetime:
        return StoreSurvey(self.database).now()

    def redis_ms(self) -> int:
        """The time that decides about permits, in ms."""
        seconds, micros = self.redis.time()
        return seconds * 1_000 + micros // 1_000

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        def work(connection: Any) -> list[tuple[Any, ...]]:
            result = connection.execute(text(statement))
            return [tuple(row) for row in result] if result.returns_rows else []

        return self.database.run(work)

    def store_copy(self, message: Message, *, rows: int) -> None:
        """Store ``rows`` messages like this one under new ids, past the dispatcher."""
        messages = self.tables.messages
        whole = self._all(select(messages).where(messages.c.id == message.id))[0]
        values = dict(zip(messages.c.keys(), whole, strict=True))
        copies = [values | {"id": new_id()} for _ in range(rows)]
        self.database.run(lambda connection: connection.execute(insert(messages), copies))

    def keys(self, scope: str) -> ShardKeys:
        return ShardKeys(self.settings.namespace, shard_of(scope, self.settings.shards))

    def members(self, scope: str = "ada") -> dict[UUID, int]:
        return window(self.redis, self.keys(scope).window(scope))

    def all_members(self) -> dict[str, dict[UUID, int]]:
        windows = {}
        for name in self.redis.scan_iter(match=f"{{{self.settings.namespace}:*:window:*"):
            key = name.decode()
            windows[key.split(":window:", 1)[1]] = window(self.redis, key)
        return windows

    def pending(self) -> set[UUID]:
        ids: set[UUID] = set()
        for keys in self.parts.fence.keys:
            members = cast("list[bytes]", self.redis.zrange(keys.pending, 0, -1))
            ids |= {UUID(bytes=member[:16]) for member in members}
        return ids

    def permit_shards(self) -> tuple[PermitKeys, ...]:
        return permit_parts(self.settings.namespace, self.settings.shards)

    def permit_keys(self, name: str) -> PermitKeys:
        return self.permit_shards()[shard_of(name, self.settings.shards)]

    def permits(self, scope: str = "ada") -> dict[bytes, int]:
        """The log of a scope's sends: permit id and time in ms."""
        return scores(self.redis, self.permit_keys(scope).scope(scope))

    def reservations(self) -> dict[str, dict[UUID, int]]:
        """What the windows must hold by the store: scope, message id and promised time in ms."""
        messages = self.tables.messages
        query = select(messages.c.scope, messages.c.id, messages.c.send_at).where(
            messages.c.status.notin_(["cancelled", "expired", VOID])
        )
        windows: dict[str, dict[UUID, int]] = {}
        for scope, message_id, send_at in self._all(query):
            windows.setdefault(scope, {})[message_id] = to_ms(send_at)
        return windows

    def close(self) -> None:
        self.dispatcher.close()
        self.redis.close()
        self.broker.close()
        if "database" in vars(self):
            self.database.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _all(self, query: Any) -> list[tuple[Any, ...]]:
        return self.database.run(
            lambda connection: [tuple(row) for row in connection.execute(query)]
        )


def house_on(
    server: RedisServer,
    url: str,
    *,
    clock: MovableClock | SystemClock | None = None,
    gate: Gate | None = None,
    opened: bool = True,
    in_order: bool = True,
    **settings: Any,
) -> House:
    """Build a house on a Redis server and a migrated database; ``settings`` override.

    Its windows and permits lie in the ``gate``, if there is one.

    ``in_order`` lets one thread send the messages of a channel.
    """
    chosen: dict[str, Any] = {
        "namespace": "house",
        "default_channels": "channels" not in settings,
        "shards": 4,
        "redis_url": (gate or server).url,
        "database_url": url,
        "broker_url": f"redis+socket://{server.socket}?virtual_host={BROKER_DB}",
        "data_dir": server.folder / "data",
    }
    loaded = Settings.load(**chosen | settings)
    if in_order:
        channels = {
            name: channel.model_copy(update={"senders": 1})
            for name, channel in loaded.channels.items()
        }
        loaded = loaded.model_copy(update={"channels": channels})
    house = House(loaded, clock or MovableClock(FAR), server=server, url=url, gate=gate)
    if opened:
        house.open()
        if isinstance(house.clock, MovableClock):
            house.clock.sleeps.clear()
    return house


def draft(recipient: str = "ada", **asked: Any) -> Draft:
    values: dict[str, Any] = {"channel": "memory", "recipient": recipient, "body": BODY}
    return Draft(**values | {"send_at": FAR + HOUR} | asked)


def hour_ago() -> MovableClock:
    """Return a clock that is an hour slow: what is submitted by it is due at once."""
    return MovableClock(SystemClock().now().replace(microsecond=0) - timedelta(hours=1))


Windows = dict[str, dict[bytes, int]]
"""By the name of the key: members and their times in ms."""

_GRACE = timedelta(hours=1)
"""More than any grace of a house in tests."""


def key_of(house: House, scope: Scope) -> str:
    return house.keys(scope.home).window(scope.name, scope.kind)


def windows_of(house: House) -> Windows:
    names = house.redis.scan_iter(match=f"{{{house.settings.namespace}:*}}:window*")
    return {name.decode(): scores(house.redis, name) for name in names}


def promised(house: House) -> Windows:
    columns = (messages.c[name] for name in ("id", "scope", "channel", "scopes", "send_at", "tail"))
    query = select(*columns).where(
        messages.c.status.notin_([Status.CANCELLED.value, Status.EXPIRED.value, VOID])
    )
    windows: Windows = {}
    for message_id, scope, channel, scopes, send_at, tail in house.database.run(
        lambda connection: [tuple(row) for row in connection.execute(query)]
    ):
        kinds = house.settings.quotas_of
        for place in counted(kinds, scope=scope, channel=channel, scopes=scopes):
            members = windows.setdefault(key_of(house, place), {})
            members[member_of(message_id, tail)] = to_ms(cast("datetime", send_at))
    return windows


def shard(house: House, scope: Scope) -> int:
    return shard_of(scope.home, house.settings.shards)


def pending_entries(house: House) -> list[bytes]:
    return [
        entry
        for keys in house.parts.fence.keys
        for entry in cast("list[bytes]", house.redis.zrange(keys.pending, 0, -1))
    ]


def let_graces_pass(house: House) -> None:
    older = -(_GRACE // timedelta(milliseconds=1))
    client: Any = house.redis
    for keys in house.parts.fence.keys:
        for entry in client.zrange(keys.pending, 0, -1):
            client.zincrby(keys.pending, older, entry)
        if client.exists(keys.epoch):
            client.hincrby(keys.epoch, "opened_at_ms", older)

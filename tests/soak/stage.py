"""What a soak plays on: servers, the lines to them, the services, and a look at what is left."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import psycopg
from psycopg.rows import DictRow, dict_row

from dispatcher import Dispatcher, Settings
from dispatcher.errors import InvalidValue
from dispatcher.store.database import Database
from dispatcher.store.lists import ScopeSettings
from tests.soak.contents import (
    CANARY,
    CHANGED_SERIES,
    EMAIL,
    LOOSEST_LIMITS,
    LOOSEST_QUOTAS,
    PERSON,
    QUOTAS_OF_TENANTS,
    SERIES,
    WEBHOOK,
    body_of,
    digest_of,
    tag_of,
)
from tests.soak.receivers import Receivers
from tests.support.cluster import MASTERS, QUICK_MS, Cluster, three_masters
from tests.support.environment import SHORT, accepts, child_environment
from tests.support.history import Recorder, now_us, read
from tests.support.lines import Lines, places, stored, terms_of
from tests.support.proxy import Proxy
from tests.support.servers import HARNESS, PostgresServer, RedisServer
from tests.support.service import Service, Supervised
from tests.support.tables import migrate_at
from tests.support.waiting import wait_until

QUOTAS = {"": "3/2 second, 6/5 second", "recipient.text": "2/2 second"}
LIMITS = {
    "mail": ["40/second"],
    "text": ["25/second", "60/3 second"],
    EMAIL: ["12/second"],
    WEBHOOK: ["12/second"],
}
CONCURRENCY = {"text": 12}
WORKERS, BEATS, CLIENTS = ("worker-1", "worker-2"), ("beat-1", "beat-2"), ("client-1", "client-2")
SIDES, SERVERS = (*WORKERS, "beats", "clients"), ("windows", "broker", "store")
"""Each side has a line of its own to each server, but none to the nodes of a cluster."""
NODES = tuple(f"windows-{number}" for number in range(2 * MASTERS))
"""The nodes of the cluster, where there is one for the windows."""

_ROOMY = 40.0
MINUTE = timedelta(minutes=1)


@dataclass
class Stage:
    """Everything that runs. Nothing of it outlives the exit."""

    folder: Path
    seed: int
    bug: str | None = None
    clustered: bool = False
    lines: dict[str, Proxy] = field(default_factory=dict)
    _begun: dict[str, datetime] = field(default_factory=dict)
    """The first occurrence of each series that is surely to come."""

    def __enter__(self) -> Self:
        self._stack = ExitStack()
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self) -> None:
        enter = self._stack.enter_context
        self.windows: RedisServer | Cluster
        if self.clustered:
            self.windows = enter(three_masters(node_timeout_ms=QUICK_MS, min_replicas=1))
        else:
            self.windows = enter(RedisServer())
        self.broker = enter(RedisServer())
        self.store = enter(PostgresServer())
        self.database = self.store.create_database()
        migrate_at(self.store.url(self.database))
        with closing(Database(self.store.url(self.database))) as database:
            for tenant, limits in LOOSEST_LIMITS.items():
                ScopeSettings(database).put("tenant", tenant, "limits", [limits])
        for side in SIDES:
            for name in SERVERS[1:] if self.clustered else SERVERS:
                self.lines[f"{side}/{name}"] = enter(Proxy(getattr(self, name).socket))
        self.recorder = Recorder(self.folder / "nemesis.jsonl")
        self._stack.callback(self.recorder.close)
        self.receivers = enter(Receivers(self.folder / "receivers.jsonl", self.seed))
        self.away = threading.Lock()
        """Held by the fault that keeps a node of the cluster away."""
        names = (*WORKERS, *BEATS, *CLIENTS)
        self.supervised = Supervised({name: self._service(name) for name in names})
        self._stack.callback(self.supervised.close)
        self.supervised.up(*WORKERS, *BEATS)
        with Dispatcher(self.settings("clients")) as dispatcher:
            wait_until(lambda: accepts(dispatcher), _ROOMY, every=0.1)
            self._add_series(dispatcher)
        self.supervised.up(*CLIENTS)

    def _add_series(self, dispatcher: Dispatcher) -> None:
        """Add series, each with a recipient of its own, that have a time each minute."""
        now = datetime.now(UTC).replace(microsecond=0)
        for number, event in enumerate(SERIES):
            start = now + timedelta(seconds=number * 60 // len(SERIES))
            body, recipient = body_of("mail", event), f"{PERSON}-{event}"
            digest = digest_of("mail", recipient, body)
            with self._asked("add_series", event, tag=event, digest=digest):
                dispatcher.series.add(
                    _name(event),
                    "FREQ=MINUTELY",
                    start=start,
                    channel="mail",
                    recipient=recipient,
                    body=body,
                    missed="last" if event in CHANGED_SERIES else "all",
                )
            self._begun[event] = start if datetime.now(UTC) < start else start + MINUTE

    def end_series(self) -> None:
        """Remove all series, once those that nobody has changed have been booked until now."""
        behind = "SELECT 1 FROM dispatcher_events WHERE booked_until < now() AND name <> ALL(%s)"
        with self.sql() as connection, suppress(AssertionError):  # the judge tells what is missing
            wait_until(
                lambda: connection.execute(behind, [CHANGED_SERIES]).fetchone() is None,
                150,
                every=0.2,
            )
        with Dispatcher(self.settings("clients")) as dispatcher:
            for event in SERIES:
                self._tell_booked(event)
                with self._asked("remove_series", event), suppress(InvalidValue):
                    dispatcher.series.remove(_name(event))

    def _tell_booked(self, event: str) -> None:
        """Write down which occurrences of a series that nobody has changed are booked by now."""
        at, who = self._begun[event], f"{PERSON}-{event}"
        while event not in CHANGED_SERIES and at < datetime.now(UTC):
            nominal = f"{at:%Y-%m-%dT%H:%M:%SZ}".replace(":00Z", "Z")
            self.recorder.write("occurrence", event=event, scope=who, token="", nominal=nominal)
            at += MINUTE

    @contextmanager
    def _asked(self, op: str, event: str, **asked: Any) -> Iterator[None]:
        """Write down a call that is answered with yes, also where it was done before."""
        number = f"{op} {event}"
        self.recorder.write("call", n=number, op=op, who="stage", event=event, **asked)
        yield
        self.recorder.write("answer", n=number, answer="ok")

    def settings(self, side: str, quotas_of_tenants: str = QUOTAS_OF_TENANTS) -> Settings:
        ports = {
            name: line.port
            for name in SERVERS
            if (line := self.lines.get(f"{side}/{name}")) is not None
        }
        windows = self.windows
        in_cluster = isinstance(windows, Cluster)
        path = str(self.folder / "provider.jsonl")
        patience = {"max_attempts": 12, "backoff_base": 0.3, "backoff_longest": 1.5}
        provider = patience | {
            "transport": "tests.soak.provider:Provider",
            "options": {"path": path, "seed": self.seed},
        }
        received = {
            name: patience
            | {"transport": f"tests.soak.provider:{name.title()}", "limits": LIMITS[name]}
            | {"options": {"path": path} | options}
            for name, options in self.receivers.options().items()
        }
        channels = received | {
            "mail": provider | {"limits": LIMITS["mail"]},
            "text": provider
            | {
                "limits": LIMITS["text"],
                "concurrency": CONCURRENCY["text"],
                "fair_by": "tenant",
                "weights": {"acme": 2},
                "recipient_quotas": QUOTAS["recipient.text"],
            },
        }
        addresses = {
            "redis_url": windows.url if in_cluster else f"redis://127.0.0.1:{ports['windows']}/0",
            "broker_url": f"redis://127.0.0.1:{ports['broker']}/0",
            "database_url": self.store.url(self.database, port=ports["store"]),
        }
        more = {
            "data_dir": self.folder,
            "quotas": QUOTAS[""],
            "scopes": {"tenant": {"quotas": quotas_of_tenants}},
            "book_ahead": 240,
            "transaction_grace": 1,
            "tell_delay_after": 1,
            "hooks": "tests.soak.provider:DelayHook",
        }
        return Settings.load(channels=channels, **{**SHORT, **addresses, **more})

    def terms(self) -> dict[str, Any]:
        settings = self.settings("clients", LOOSEST_QUOTAS)
        limits = {f"tenant {name}": [text] for name, text in LOOSEST_LIMITS.items()}
        return terms_of(
            settings,
            limits,
            concurrency=CONCURRENCY,
            longest_ms=settings.transport_timeout.total_seconds() * 1_000,
            recovery_ms=120_000,
            answer_ms=60_000,
        )

    def leave(self, *names: str) -> None:
        """Let these services come to an end in good order, or without it."""
        self.supervised.leave(*names)
        for name in names:
            self.supervised.signal(name, signal.SIGCONT)
            self.supervised.signal(name, signal.SIGTERM)
        services = self.supervised.services
        with suppress(AssertionError):
            wait_until(lambda: not any(services[name].alive for name in names), 15, every=0.1)
        self.supervised.kill(*names)

    def node(self, name: str) -> RedisServer:
        if isinstance(self.windows, Cluster):
            return self.windows.nodes[NODES.index(name)] if name in NODES else self.broker
        return self.windows if name == "windows" else self.broker

    def pass_all(self) -> None:
        for line in self.lines.values():
            line.pass_all()
        if isinstance(self.windows, Cluster):
            self.windows.mend()

    @contextmanager
    def sql(self, **more: Any) -> Iterator[psycopg.Connection[DictRow]]:
        with psycopg.connect(
            self.store.url(self.database),
            autocommit=True,
            row_factory=dict_row,
            application_name=HARNESS,
            **more,
        ) as connection:
            yield connection

    def is_drained(self) -> bool:
        with self.sql() as connection:
            query = (
                "SELECT 1 FROM dispatcher_messages "
                "WHERE finished_at IS NULL AND status NOT IN ('held', 'void') LIMIT 1"
            )
            return connection.execute(query).fetchone() is None

    def rows(self) -> Lines:
        with closing(Database(self.store.url(self.database))) as database:
            yield from stored(database, self.settings("clients").quotas_of, _content)

    def places(self) -> Lines:
        with self.windows.client() as client:
            yield from places(client, self.settings("clients").namespace)

    def leaks(self) -> Iterator[dict[str, Any]]:
        for log in self.folder.glob("*.log"):
            for text in log.read_text(errors="replace").splitlines():
                for secret in (CANARY, PERSON):
                    if secret in text:
                        line = {"log": log.name, "secret": secret, "text": text}
                        yield {"kind": "leak", "at": now_us()} | line

    def told(self) -> Iterator[dict[str, Any]]:
        for path in sorted(self.folder.glob("*.jsonl")):
            yield from read(path)

    def sends_begun(self) -> int:
        path = self.folder / "provider.jsonl"
        return path.read_bytes().count(b'"begin"') if path.exists() else 0

    def _service(self, name: str) -> Service:
        side = name if name in WORKERS else "beats" if name in BEATS else "clients"
        command = [sys.executable, "-m"]
        if self.bug is not None:
            command += ["tests.soak.seeded", self.bug]
        if name in CLIENTS:
            command += ["tests.soak.client", "--name", name, "--seed", str(self.seed)]
        else:
            command += ["dispatcher", "worker" if name in WORKERS else "beat"]
        return Service(name, command, self.folder, child_environment(self.settings(side)))


def _name(event: str) -> str:
    return event.removeprefix("series:")


def _content(row: Any) -> dict[str, Any]:
    return {"tag": tag_of(row.body), "digest": digest_of(row.channel, row.recipient, row.body)}

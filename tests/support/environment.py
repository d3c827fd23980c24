"""A whole dispatcher in real processes: a worker, always two beats, and a supervisor for them."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Self
from uuid import UUID

from sqlalchemy import select

from dispatcher import Dispatcher, Settings
from dispatcher.errors import ReservationsUnavailable, StoreUnavailable
from dispatcher.message import Message
from dispatcher.store.database import Database
from tests.support.history import FINAL, History, read
from tests.support.judge import false_windows, judge
from tests.support.lines import places, stored, terms_of, told
from tests.support.nodes import client_of
from tests.support.service import Forked, Service, Supervised
from tests.support.tables import IS_MESSAGE, messages
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
"""What children import ``dispatcher`` and ``tests`` from."""

CHANNEL = "ledger"
BROKER_DB = 1
SHORT: Mapping[str, Any] = {
    "quotas": "2/2 second, 4/5 second",
    "horizon": 3,
    "sweep_interval": 0.5,
    "redelivery_timeout": 20,
    "enqueue_grace": 1,
    "claim_ttl": 3,
    "transport_timeout": 1,
    "reconcile_grace": 2,
    "settle": 0.3,
}
"""Settings that heal within seconds."""

_MOST_SHOWN = 20


def short_settings(folder: Path, **overrides: Any) -> Settings:
    transport = {
        "transport": "tests.support.ledger:Ledger",
        "options": {"path": str(folder / "ledger")},
        "max_attempts": 20,
    }
    values = {"data_dir": folder, "channels": {CHANNEL: transport}, **SHORT, **overrides}
    return Settings.load(**values)


def child_environment(settings: Settings | None = None) -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("DISPATCHER_")}
    ours = settings.environment() if settings else {}
    return {**inherited, **ours, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}


def dispatcher_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "dispatcher", *arguments]


SERVICES: Mapping[str, Sequence[str]] = {
    "worker": dispatcher_command("worker"),
    "beat-1": dispatcher_command("beat"),
    "beat-2": dispatcher_command("beat"),
}


def accepts(dispatcher: Dispatcher) -> bool:
    try:
        dispatcher.next_slot(recipient="anybody")
    except (ReservationsUnavailable, StoreUnavailable):
        return False
    return True


class Environment:
    """Runs the services, starts again what ends by itself, and judges what came of it all.

    Celery workers end when they lose a broker connection that holds an unacknowledged task; every
    real environment has a supervisor for that.
    """

    def __init__(
        self, folder: Path, settings: Settings, services: Mapping[str, Sequence[str]] = SERVICES
    ) -> None:
        self.settings = settings
        self.dispatcher = Dispatcher(settings)
        self._database = Database.of(settings)
        self._ledger = folder / "ledger"
        env = child_environment(settings)
        self._supervised = Supervised(
            {name: _service(name, command, folder, env) for name, command in services.items()}
        )

    def __enter__(self) -> Self:
        self.up()
        try:
            wait_until(self.accepts)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def up(self, *names: str) -> None:
        self._supervised.up(*(names or self._supervised.services))

    def kill(self, *names: str) -> None:
        """``kill -9`` these services; they are started again."""
        self._supervised.kill(*names)

    def down(self, *names: str) -> None:
        """``kill -9`` these services; they stay down until ``up``."""
        self._supervised.leave(*names)
        self.kill(*names)

    def stop(self, name: str) -> None:
        """Tell a service to end in good order, and wait for it; it stays down until ``up``."""
        self._supervised.leave(name)
        service = self._supervised.services[name]
        os.kill(service.pid, signal.SIGTERM)
        wait_until(lambda: not service.alive)

    def pid(self, name: str) -> int:
        return self._supervised.services[name].pid

    @property
    def restarts(self) -> int:
        return self._supervised.restarts

    def accepts(self) -> bool:
        return accepts(self.dispatcher)

    def submit(self, recipient: str, after: float = 0.0, **asked: Any) -> Message:
        if "send_at" not in asked:
            asked["send_in"] = timedelta(seconds=after)
        usual = {"channel": CHANNEL, "recipient": recipient, "body": {}}
        return self.dispatcher.submit(**usual | asked)

    def ledger(self) -> list[dict[str, Any]]:
        return read(self._ledger)

    def logs(self) -> str:
        ends = [
            f"--- {name}\n{service.log.read_text(errors='replace')[-6_000:]}"
            for name, service in self._supervised.services.items()
            if service.log.exists()
        ]
        return "\n".join(ends)

    def stored(self) -> History:
        return History.of(stored(self._database, self.settings.quotas_of))

    def rows(self) -> Sequence[Any]:
        with self._database.engine.connect() as connection:
            return connection.execute(select(messages).where(IS_MESSAGE)).all()

    def wait_until_ended(self) -> None:
        """Wait until nothing is scheduled or being sent; the deadline is for each next message."""

        def under_way() -> int:
            return sum(row["status"] not in FINAL for row in self.stored().rows.values())

        while left := under_way():
            wait_until(lambda: under_way() < left, every=0.1)

    def check(self, accepted: Iterable[Message | UUID]) -> None:
        """Fail if a promise was broken, or if the windows are not what SQL says."""
        ids = [message if isinstance(message, UUID) else message.id for message in accepted]
        with suppress(AssertionError):  # told below what is wrong
            wait_until(lambda: not self.false_windows(), every=0.1)
        problems = judge([*told(ids), *self.ledger(), *self.lines()])
        shown = "\n".join(map(str, problems[:_MOST_SHOWN]))
        assert not problems, f"{len(problems)} broken promises:\n{shown}"

    def lines(self) -> Iterator[dict[str, Any]]:
        yield terms_of(self.settings, ends=("sent", "cancelled"))
        yield from stored(self._database, self.settings.quotas_of)
        with client_of(self.settings.redis_url) as client:
            yield from places(client, self.settings.namespace)

    def false_windows(self) -> list[str]:
        return [*false_windows(History.of(self.lines()))]

    def close(self) -> None:
        self._supervised.close()
        self.dispatcher.close()
        self._database.close()


def _service(name: str, command: Sequence[str], folder: Path, env: dict[str, str]) -> Service:
    start = dispatcher_command()
    if command[: len(start)] != start:
        return Service(name, command, folder, env)
    return Forked(name, command[len(start) :], folder, env)


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Stop a process we started for a while: its connections stay, but nothing answers."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def broker_on(server_url: str, db: int = BROKER_DB) -> str:
    """Return the URL by which Celery reaches a database of a Redis on a unix socket."""
    return f"redis+socket://{server_url.removeprefix('unix://')}?virtual_host={db}"


Maker = Callable[..., Environment]

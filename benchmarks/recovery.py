"""Measure how soon messages are sent again after a fault, one fault at a time.

Real servers and processes, the settings' defaults: a worker, two beats and their supervisor, a
Redis for the windows, a Redis as broker, PostgreSQL. 50 messages a second are due all the time.
Measured is from the end of the fault (the cut; the kill of the worker; the moment a restarted
server answers) to the first send that begins of a message due after that end; inf where none
did within 20 s, and then the logs are printed.

    recovery.py [times each, default 20] [fault ...]
"""

from __future__ import annotations

import math
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # servers, proxy and supervisor of the tests

from rounds import facts, folder

from dispatcher import Draft, Message
from dispatcher.errors import DispatcherError
from dispatcher.settings import Settings
from dispatcher.store.database import Database
from dispatcher.store.migrate import migrate
from dispatcher.times.send_time import to_ms
from tests.support.environment import CHANNEL, Environment, broker_on
from tests.support.proxy import Proxy
from tests.support.servers import PostgresServer, RedisServer
from tests.support.waiting import wait_until

TIMES = 20
PER_SECOND, SECONDS = 50, 25
BEFORE = timedelta(seconds=2)
"""How long all is well before the fault."""
LONGEST_SECONDS = 20.0
FAULTS = (
    "cut-redis",
    "cut-postgresql",
    "cut-broker",
    "restart-redis",
    "restart-postgresql",
    "restart-broker",
    "kill-worker",
)

Fault = Callable[[], object]
"""Does it, and returns at its end."""


def main(times: int, chosen: list[str]) -> None:
    if unknown := set(chosen) - set(FAULTS):
        raise SystemExit(f"there is no fault {unknown}; there are: {', '.join(FAULTS)}")
    found = {}
    for name in chosen or FAULTS:
        with folder() as path, surroundings(path, name) as (running, fault):
            found[name] = [told(name, recovery(running, fault)) for _ in range(times)]
    report(found, times)


@contextmanager
def surroundings(path: Path, name: str) -> Iterator[tuple[Environment, Fault]]:
    """Run everything; yield it with the fault of this name.

    There is a proxy only on a line that is cut: all others go straight, as they do in use.
    """
    with ExitStack() as stack:
        redis, broker = (stack.enter_context(RedisServer()) for _ in range(2))
        postgres = stack.enter_context(PostgresServer())
        database = postgres.create_database()
        addresses = {
            "database_url": postgres.url(database),
            "redis_url": redis.url,
            "broker_url": broker_on(broker.url),
        }
        proxy: Proxy | None = None
        if name == "cut-redis":
            proxy = stack.enter_context(Proxy(redis.socket))
            addresses["redis_url"] = f"redis://127.0.0.1:{proxy.port}/0"
        elif name == "cut-postgresql":
            proxy = stack.enter_context(Proxy(postgres.socket))
            addresses["database_url"] = postgres.url(database, port=proxy.port)
        elif name == "cut-broker":
            proxy = stack.enter_context(Proxy(broker.socket))
            addresses["broker_url"] = f"redis://127.0.0.1:{proxy.port}/0"
        settings = settings_in(path, **addresses)
        store = Database.of(settings)
        migrate(store)
        store.close()
        running = stack.enter_context(Environment(path, settings))
        servers = {"redis": redis, "postgresql": postgres, "broker": broker}

        def fault() -> None:
            what = name.removeprefix("restart-")
            if proxy is not None:
                proxy.cut_all()
            elif what in servers:
                servers[what].kill()
                servers[what].start()
            else:
                running.kill("worker")

        yield running, fault


def settings_in(path: Path, **addresses: str) -> Settings:
    """Return the default settings, with one channel that writes to a ledger."""
    transport: dict[str, Any] = {
        "transport": "tests.support.ledger:Ledger",
        "options": {"path": str(path / "ledger")},
    }
    return Settings.load(data_dir=path, channels={CHANNEL: transport}, **addresses)


def recovery(running: Environment, fault: Fault) -> float:
    """Let messages be due all the time, let the fault happen, and return the seconds."""
    wait_until(running.accepts, LONGEST_SECONDS)
    start = datetime.now(UTC) + timedelta(seconds=1)
    drafts = [
        Draft(channel=CHANNEL, recipient=f"{start:%H%M%S%f} {number}", body={}, send_at=at)
        for number in range(PER_SECOND * SECONDS)
        for at in (start + timedelta(seconds=number / PER_SECOND),)
    ]
    messages = accepted(running, drafts)
    while datetime.now(UTC) < start + BEFORE:
        time.sleep(0.01)
    fault()
    ended_us = time.time_ns() // 1_000

    def first() -> int | None:
        """Return when the first message that was due after the end began to be sent."""
        begun = (line["at"] for line in running.ledger()
                 if line["kind"] == "begin" and line["send_at_ms"] * 1_000 >= ended_us)  # fmt: skip
        return min(begun, default=None)

    try:
        at_us = wait_until(first, LONGEST_SECONDS, every=0.1)
    except AssertionError:
        at_us = None
        print(running.logs(), file=sys.stderr)
    clear(running, messages)
    if at_us is None:
        return math.inf
    assert at_us < to_ms(messages[-1].send_at) * 1_000, "messages ran out before it recovered"
    return (at_us - ended_us) / 1e6


def told(name: str, seconds: float) -> float:
    """Say on stderr how long it took; the run is a long one."""
    print(f"{datetime.now(UTC):%H:%M:%S} {name} {seconds:.2f} s", file=sys.stderr, flush=True)
    return seconds


def accepted(running: Environment, drafts: list[Draft]) -> list[Message]:
    results = running.dispatcher.submit_many(drafts)
    messages = [each for each in results if isinstance(each, Message)]
    if len(messages) < len(drafts):
        raise SystemExit("the windows were not ready: a message was refused")
    return messages


def clear(running: Environment, messages: list[Message]) -> None:
    """Cancel what is left of a round, and empty the ledger.

    What a killed worker had in hand goes out later: its claims last, and its permits count.
    """
    now = datetime.now(UTC)
    for each in messages:
        if each.send_at > now + timedelta(seconds=0.5):
            try:
                running.dispatcher.cancel(each.id)
            except DispatcherError:
                continue  # it was sent meanwhile, or goes out in the next round
    shutil.move(running.settings.data_dir / "ledger", running.settings.data_dir / "ledger.before")


def report(found: dict[str, list[float]], times: int) -> None:
    """Print a Markdown table."""
    print(f"\n### Recovery: {times} × each fault, {PER_SECOND} messages due a second\n")
    print(f"{datetime.now(UTC):%Y-%m-%d}, {facts()}\n")
    print("| fault | p50 s | max s |")
    print("|---|---|---|")
    for name, seconds in found.items():
        print(f"| {name} | {statistics.median(seconds):.2f} | {max(seconds):.2f} |")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else TIMES, sys.argv[2:])

"""Measure the memory of a worker that holds what waits for its time: 20,000 messages.

Against Celery's own way, one ETA task for each. Counted is what the worker's memory grows by from
the moment it is ready until it holds everything, and what the broker needs for the same.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import redis
from delivery import BODY, POOL, channelled, dispatcher_command, plain_app, prepare, running
from rounds import facts, folder
from submit import postgres

from dispatcher import Dispatcher, Draft, Settings
from dispatcher.embedded import embedded

MESSAGES = 20_000
_BROKER_DB = 1


def main(messages: int) -> None:
    with folder() as path, embedded(path / "redis") as servers, postgres() as url:
        settings = channelled(servers, url, path / "ledger", limits=[])
        settings = settings.model_copy(
            update={"horizon": timedelta(seconds=120), "redelivery_timeout": timedelta(hours=1)}
        )
        prepare(settings)
        client = redis.Redis(unix_socket_path=urlsplit(settings.broker_url).path, db=_BROKER_DB)
        figures = {
            "Celery, a task for each": theirs(settings, path, client, messages),
            "dispatcher, groups of 50": ours(settings, path, client, messages),
        }
    print(f"\n### {messages:,} messages that wait for their time in one worker\n")
    print(f"{datetime.now(UTC):%Y-%m-%d}, {facts()}\n")
    print("| | worker grows by, MB | bytes a message | broker, bytes a message |")
    print("|---|---|---|---|")
    for name, (grown, stored) in figures.items():
        print(f"| {name} | {grown / 1e6:.0f} | {grown / messages:,.0f} "
              f"| {stored / messages:,.0f} |")  # fmt: skip


def ours(settings: Settings, path: Path, client: redis.Redis, messages: int) -> tuple[float, float]:
    def submit() -> None:
        at = datetime.now(UTC) + timedelta(seconds=100)
        drafts = [
            Draft(channel="sms", recipient=f"to {number}", body=BODY,
                  send_at=at + timedelta(milliseconds=number / 10))
            for number in range(messages)
        ]  # fmt: skip
        with Dispatcher(settings) as dispatcher:
            dispatcher.submit_many(drafts)

    command = dispatcher_command("worker", "--concurrency=16")
    worker = partial(running, settings, path, command)
    return held(client, "dispatcher.sms", submit, worker, path / "process-0.log")


def theirs(
    settings: Settings, path: Path, client: redis.Redis, messages: int
) -> tuple[float, float]:
    app = plain_app(settings)

    def publish() -> None:
        eta = datetime.now(UTC) + timedelta(minutes=10)
        with app.producer_pool.acquire(block=True) as producer:
            for _ in range(messages):
                app.send_task("nothing", eta=eta, producer=producer, ignore_result=True)

    command = [sys.executable, "-m", "celery", "-A", "delivery:plain", "worker", *POOL]
    command += ["--without-gossip", "--without-mingle", "--queues=plain", "--loglevel=INFO"]
    worker = partial(running, settings, path, command)
    return held(client, "plain", publish, worker, path / "process-0.log")


def held(
    client: redis.Redis,
    queue: str,
    publish: Callable[[], None],
    worker: Callable[[], AbstractContextManager[list[int]]],
    log: Path,
) -> tuple[float, float]:
    """Return by how many bytes a worker and the broker grow."""
    publish()
    stored = cast("int", client.memory_usage(queue, samples=0))
    hidden = f"{queue}.hidden"
    client.rename(queue, hidden)
    with worker() as (pid, *_):
        deadline = time.monotonic() + 60
        while b"ready" not in log.read_bytes():
            if time.monotonic() > deadline:
                raise SystemExit("the worker does not become ready")
            time.sleep(0.2)
        time.sleep(1)
        ready = resident(pid)
        client.rename(hidden, queue)
        while client.exists(queue) and time.monotonic() < deadline:
            time.sleep(0.2)
        time.sleep(1)
        grown = resident(pid) - ready
    client.flushdb()
    return grown, stored


def resident(pid: int) -> float:
    """Return the memory of a process in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1_024.0 * next(int(each.split()[1]) for each in lines if each.startswith("VmRSS"))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else MESSAGES)

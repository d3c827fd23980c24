"""Measure delivery by 1, 2 and 4 worker processes on one machine: throughput, and claims won.

Messages are due at once and enqueued before the workers start. Each worker claims groups of its own
tasks; a claim is lost where another worker has the message. First all processes share the cores;
then PostgreSQL and Redis have the last core alone, and the workers share the others. More processes
help only where cores are left. ``workers.py --worker``, with the file of claims, is a worker that
writes down how many messages each claim asked for and got.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import redis
from delivery import (
    BODY,
    channelled,
    count,
    cpu_of_all,
    cpu_seconds,
    prepare,
    processes_of_postgres,
    running,
)
from rounds import facts, folder
from submit import postgres

from dispatcher import Dispatcher, Draft, Message, Settings
from dispatcher.embedded import embedded
from dispatcher.store.claims import Claims

MESSAGES, ROUNDS = 20_000, 3
WORKERS = (1, 2, 4)
CORES = sorted(os.sched_getaffinity(0))
PLACES = {"share all cores": (CORES, CORES), "servers pinned apart": (CORES[:-1], CORES[-1:])}


class Run(NamedTuple):
    """Messages/s, CPU seconds for 1,000 of the workers and of the servers, and claims."""

    rate: float
    workers: float
    servers: float
    tried: int
    won: int


def main(messages: int) -> None:
    figures: dict[tuple[str, int], list[Run]] = {
        (place, many): [] for place in PLACES for many in WORKERS
    }
    with folder() as path, embedded(path / "redis") as servers, postgres() as url:
        settings = channelled(servers, url, path / "ledger")
        prepare(settings)
        for _ in range(ROUNDS):
            for (place, many), runs in figures.items():
                runs.append(run(settings, path, messages, many, PLACES[place]))
    print(f"\n### {messages:,} due at once, several worker processes, PostgreSQL\n")
    print(f"{datetime.now(UTC):%Y-%m-%d}, {facts()}, {len(CORES)} cores\n")
    print(
        "| workers | cores | messages/s (median) | least–most "
        "| CPU s per 1,000: workers | servers | claims tried | won |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for (place, many), runs in figures.items():
        rates = [each.rate for each in runs]
        print(
            f"| {many} | {place} | {statistics.median(rates):,.0f} "
            f"| {min(rates):,.0f}–{max(rates):,.0f} "
            f"| {statistics.median(each.workers for each in runs):.3f} "
            f"| {statistics.median(each.servers for each in runs):.3f} "
            f"| {sum(each.tried for each in runs):,} | {sum(each.won for each in runs):,} |"
        )


def run(
    settings: Settings,
    path: Path,
    messages: int,
    many: int,
    cores: tuple[Sequence[int], Sequence[int]],
) -> Run:
    """Deliver the messages with so many workers; the workers and the servers have these cores."""
    for_workers, for_servers = cores
    at = datetime.now(UTC) + timedelta(seconds=5 + messages / 1_000)
    with Dispatcher(settings) as dispatcher:
        drafts = [
            Draft(channel="sms", recipient=f"{at:%H%M%S} {number}", body=BODY, send_at=at)
            for number in range(messages)
        ]
        if not all(isinstance(each, Message) for each in dispatcher.submit_many(drafts)):
            raise SystemExit("submitting took longer than the messages had")
    while datetime.now(UTC) < at:
        time.sleep(0.1)
    ledger, claims = path / "ledger", path / "claims"
    for each in (ledger, claims):
        each.unlink(missing_ok=True)
    with redis.Redis.from_url(settings.redis_url) as client:
        of_redis = int(client.info("server")["process_id"])
    for pid in (of_redis, *processes_of_postgres(settings)):
        os.sched_setaffinity(pid, for_servers)
    command = [sys.executable, __file__, "--worker", str(claims)]
    with running(settings, path, *[command] * many) as pids:
        for pid in pids:
            os.sched_setaffinity(pid, for_workers)
        deadline = time.monotonic() + 120
        while count(ledger) < messages // 20 and time.monotonic() < deadline:
            time.sleep(0.01)
        before, began = used(pids, settings), count(ledger)
        while count(ledger) < messages and time.monotonic() < deadline:
            time.sleep(0.05)
        after = used(pids, settings)
    times = sorted(float(line.split()[1]) for line in ledger.read_text().splitlines())
    if len(times) != messages:
        raise SystemExit(f"{len(times)} of {messages} were sent")
    workers, servers = (
        (end - start) / (messages - began) * 1_000 for start, end in zip(before, after, strict=True)
    )
    pairs = [line.split() for line in claims.read_text().splitlines()]
    tried, won = (sum(int(pair[index]) for pair in pairs) for index in (0, 1))
    rate = (messages - began) / (times[-1] - times[began])
    return Run(rate, workers, servers, tried, won)


def used(pids: list[int], settings: Settings) -> tuple[float, float]:
    """Return the CPU seconds of the workers and of the servers so far."""
    _, *servers = cpu_of_all(pids[0], settings)
    return sum(map(cpu_seconds, pids)), sum(servers)


def work(path: str) -> None:
    """Run a worker that writes its claims down."""
    from dispatcher.__main__ import main as command  # noqa: PLC0415 - in the worker alone

    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    claim = Claims.claim

    def noted(self: Claims, message_ids: Sequence[Any], **more: Any) -> list[Any]:
        won = claim(self, message_ids, **more)
        os.write(file, f"{len(message_ids)} {len(won)}\n".encode())
        return won

    setattr(Claims, "claim", noted)  # noqa: B010 - a method is not assigned to
    sys.argv = ["dispatcher", "worker", "--concurrency=16"]
    command()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(sys.argv[2])
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else MESSAGES)

"""Measure delivery by 1, 2 and 4 worker processes on one machine: throughput, and lost claims.

Messages are due at once and enqueued before the workers start. Each worker claims groups of its own
tasks; a claim is lost where another worker has the message. Workers, PostgreSQL and Redis share the
machine's cores, so more processes help only where cores are left.
"""

from __future__ import annotations

import statistics
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
from delivery import (
    BODY,
    channelled,
    count,
    cpu_of_all,
    cpu_seconds,
    dispatcher_command,
    prepare,
    running,
)
from rounds import facts, folder
from submit import postgres

from dispatcher import Dispatcher, Draft, Message, Settings
from dispatcher.embedded import embedded

MESSAGES, ROUNDS = 20_000, 3
WORKERS = (1, 2, 4)
ATTEMPTS = "SELECT count(*), count(DISTINCT message_id) FROM dispatcher_attempts"


def main(messages: int) -> None:
    figures: dict[int, list[tuple[float, float, float]]] = {many: [] for many in WORKERS}
    lost = dict.fromkeys(WORKERS, 0)
    with folder() as path, embedded(path / "redis") as servers, postgres() as url:
        settings = channelled(servers, url, path / "ledger")
        prepare(settings)
        for _ in range(ROUNDS):
            for many in WORKERS:
                figures[many].append(run(settings, path, messages, many))
                with psycopg.connect(url, autocommit=True) as sql:
                    [[attempts, sent]] = sql.execute(ATTEMPTS).fetchall()
                    lost[many] += attempts - sent
                    sql.execute("TRUNCATE dispatcher_messages, dispatcher_attempts")
    print(f"\n### {messages:,} due at once, several worker processes, PostgreSQL\n")
    print(f"{datetime.now(UTC):%Y-%m-%d}, {facts()}\n")
    print("| workers | messages/s (median) | least–most | CPU s per 1,000: workers | servers "
          "| claimed twice |")  # fmt: skip
    print("|---|---|---|---|---|---|")
    for many, some in figures.items():
        rates, workers, others = zip(*some, strict=True)
        print(
            f"| {many} | {statistics.median(rates):,.0f} | {min(rates):,.0f}–{max(rates):,.0f} "
            f"| {statistics.median(workers):.3f} | {statistics.median(others):.3f} | {lost[many]} |"
        )


def run(settings: Settings, path: Path, messages: int, many: int) -> tuple[float, float, float]:
    """Return messages/s, and CPU seconds for 1,000 of the workers and of the servers."""
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
    ledger = path / "ledger"
    ledger.unlink(missing_ok=True)
    command = dispatcher_command("worker", "--concurrency=16")
    with running(settings, path, *[command] * many) as pids:
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
    workers, others = (
        (end - start) / (messages - began) * 1_000 for start, end in zip(before, after, strict=True)
    )
    return (messages - began) / (times[-1] - times[began]), workers, others


def used(pids: list[int], settings: Settings) -> tuple[float, float]:
    """Return the CPU seconds of the workers and of the servers so far."""
    _, *servers = cpu_of_all(pids[0], settings)
    return sum(map(cpu_seconds, pids)), sum(servers)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else MESSAGES)

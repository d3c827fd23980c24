"""The kinds of faults: what each does, to whom, how often and for how long."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import psycopg
import redis

from dispatcher.app import App
from dispatcher.celery.queue import Ticket
from dispatcher.redis.keys import ShardKeys
from tests.soak.stage import BEATS, CLIENTS, NODES, SERVERS, SIDES, WORKERS, Stage
from tests.support.cluster import Cluster, slot_of
from tests.support.servers import HARNESS

FORGOTTEN_BYTES = 8_000
_PATIENCE_SECONDS = 1.0
_RECKLESS = 0.1
"""How often a node of a cluster goes away though another has not come back."""

Heal = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Done:
    """A fault that was done: how to end it, and which processes it froze."""

    heal: Heal = lambda: None
    pids: tuple[int, ...] = ()


Act = Callable[[Stage, str, random.Random], Done | None]
"""Does it to a target. None: it could not be done, because the target was not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A kind. ``share`` is how often it comes beside others; ``lasts`` between two lengths, s."""

    name: str
    act: Act
    targets: Sequence[str]
    share: float
    lasts: tuple[float, float] = (0.0, 0.0)


def _kill(stage: Stage, target: str, _: random.Random) -> Done | None:
    return Done() if stage.supervised.signal(target, signal.SIGKILL) else None


def _end(stage: Stage, target: str, _: random.Random) -> Done | None:
    return Done() if stage.supervised.signal(target, signal.SIGTERM) else None


def _freeze(stage: Stage, target: str, _: random.Random) -> Done | None:
    pid = stage.supervised.signal(target, signal.SIGSTOP)
    return Done(lambda: stage.supervised.signal(target, signal.SIGCONT), (pid,)) if pid else None


def _cut(stage: Stage, target: str, _: random.Random) -> Done:
    stage.lines[target].cut_all()
    return Done()


def _refuse(stage: Stage, target: str, _: random.Random) -> Done:
    stage.lines[target].refuse()
    stage.lines[target].cut_all()
    return Done(stage.lines[target].pass_all)


def _black_hole(stage: Stage, target: str, _: random.Random) -> Done:
    stage.lines[target].blackhole()
    return Done(stage.lines[target].pass_all)


def _slow(stage: Stage, target: str, chance: random.Random) -> Done:
    stage.lines[target].slow(chance.uniform(0.002, 0.02))
    return Done(stage.lines[target].pass_all)


def _lose_reply(pattern: bytes) -> Act:
    def act(stage: Stage, target: str, chance: random.Random) -> Done:
        stage.lines[target].drop_reply(pattern, nth=chance.randint(1, 3))
        return Done(stage.lines[target].pass_all)

    return act


def _lose_answer(pattern: bytes) -> Act:
    def act(stage: Stage, target: str, _: random.Random) -> Done:
        stage.lines[target].lose_answer(pattern)
        return Done(stage.lines[target].pass_all)

    return act


def _ask_redis(*command: str) -> Act:
    def act(stage: Stage, target: str, _: random.Random) -> Done | None:
        with stage.node(target).client() as client, suppress(redis.RedisError):
            client.execute_command(*command)
            return Done()
        return None

    return act


def _pause(stage: Stage, target: str, chance: random.Random) -> Done | None:
    return _ask_redis("CLIENT", "PAUSE", str(chance.randint(100, 1_800)))(stage, target, chance)


def _configure(name: str, value: str, usual: str) -> Act:
    def act(stage: Stage, target: str, chance: random.Random) -> Done | None:
        done = _ask_redis("CONFIG", "SET", name, value)(stage, target, chance)
        # A restart in between has the same effect.
        return done and Done(
            lambda: _ask_redis("CONFIG", "SET", name, usual)(stage, target, chance)
        )

    return act


def _freeze_redis(stage: Stage, target: str, _: random.Random) -> Done:
    pid = stage.node(target).pid
    os.kill(pid, signal.SIGSTOP)
    return Done(lambda: _continue(pid))


def _restart_redis(stage: Stage, target: str, _: random.Random) -> Done:
    stage.node(target).kill()
    return Done(stage.node(target).start)


def _forget(stage: Stage, target: str, chance: random.Random) -> Done:
    server = stage.node(target)
    server.kill()
    logs = [path for path in server.folder.rglob("*.aof") if ".base." not in path.name]
    for newest in sorted(logs, key=lambda path: path.stat().st_mtime)[-1:]:
        _cut_tail(newest, chance.randint(100, FORGOTTEN_BYTES))
    return Done(server.start)


def _lose_disk(stage: Stage, target: str, _: random.Random) -> Done:
    """Let a node come back under its name with nothing in it."""
    server = stage.node(target)
    server.kill()
    for path in server.folder.rglob("*.aof"):
        path.unlink()
    return Done(server.start)


def _cut_tail(path: Path, length: int) -> None:
    with path.open("r+b") as log:
        log.truncate(max(0, path.stat().st_size - length))


def _alone(fault: Act) -> Act:
    """Let one node at a time be away, and mostly only where all others stand by.

    Where masters and their replicas are away together nothing is judged but an outage.
    """

    def act(stage: Stage, target: str, chance: random.Random) -> Done | None:
        cluster = stage.windows
        if not isinstance(cluster, Cluster) or not stage.away.acquire(timeout=_PATIENCE_SECONDS):
            return None
        done: Done | None = None
        try:
            if chance.random() < _RECKLESS or cluster.is_whole:
                done = fault(stage, target, chance)
        finally:
            if done is None:
                stage.away.release()
        if done is None:
            return None
        heal = done.heal

        def healed() -> None:
            try:
                heal()
            finally:
                stage.away.release()

        return Done(healed, done.pids)

    return act


def _take_over(how: str) -> Act:
    """Let a replica become the master: with its master's consent, or without any."""

    def act(stage: Stage, target: str, _: random.Random) -> Done | None:
        with suppress(redis.RedisError), stage.node(target).client() as client:
            client.execute_command("CLUSTER", "FAILOVER", *how.split())
            return Done()
        return None  # it is a master

    return act


def _move_slot(stage: Stage, target: str, chance: random.Random) -> Done | None:
    """Begin to move the slot of a shard to a master; the rest moves when it is healed."""
    cluster = stage.windows
    if not isinstance(cluster, Cluster):
        return None
    settings = stage.settings("clients")
    shard = ShardKeys(settings.namespace, chance.randrange(settings.shards))
    slot = slot_of(shard.epoch)
    with suppress(redis.RedisError, StopIteration):  # a node is away; what has begun is ended
        to = cluster.elsewhere(cluster.master_of(slot))
        cluster.begin_move(slot, to)
        for _ in range(chance.randrange(4)):
            cluster.move_one(slot, to)
    return Done(lambda: cluster.mend_slot(slot))


def _delete_queues(stage: Stage, target: str, _: random.Random) -> Done | None:
    with stage.broker.client() as client, suppress(redis.RedisError):
        for name in stage.settings("clients").queues:
            client.delete(name)
        return Done()
    return None


def _repeat_tasks(stage: Stage, target: str, chance: random.Random) -> Done | None:
    """Publish tasks again: of what is due, of what is not, and of what is over."""
    try:
        with stage.sql() as connection:
            found = connection.execute(
                "SELECT id, channel, next_attempt_at FROM dispatcher_messages "
                "ORDER BY id DESC LIMIT 60"
            ).fetchall()
    except psycopg.Error:
        return None
    parts = App(stage.settings("clients"))
    try:
        tickets = [
            Ticket(
                UUID(str(row["id"])),
                row["channel"],
                chance.choice([row["next_attempt_at"], datetime.now(UTC)])
                + timedelta(milliseconds=chance.choice([-700, 0, 1, 300])),
            )
            for row in found
            for _ in range(2)
        ]
        with suppress(Exception):
            parts.queue.enqueue(tickets)
    finally:
        parts.close()
    return Done()


def _terminate(stage: Stage, target: str, chance: random.Random) -> Done | None:
    share = chance.choice([0.2, 0.5, 1.0])
    with suppress(psycopg.Error), stage.sql() as connection:
        for pid in _backends(connection):
            if chance.random() < share:
                connection.execute("SELECT pg_terminate_backend(%s)", [pid])
        return Done()
    return None


def _freeze_backend(stage: Stage, target: str, chance: random.Random) -> Done | None:
    with suppress(psycopg.Error), stage.sql() as connection:
        backends = list(_backends(connection))
        if backends:
            pid = chance.choice(backends)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
            return Done(lambda: _continue(pid))
    return None


def _backends(connection: psycopg.Connection[dict[str, object]]) -> Iterator[int]:
    query = (
        "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' "
        "AND application_name <> %s ORDER BY pid"
    )
    for row in connection.execute(query, [HARNESS]).fetchall():
        yield int(str(row["pid"]))


def _restart_store(stage: Stage, target: str, _: random.Random) -> Done:
    stage.store.kill()
    return Done(stage.store.start)


def _lock(statement: str) -> Act:
    def act(stage: Stage, target: str, _: random.Random) -> Done | None:
        stack = ExitStack()
        try:
            connection = stack.enter_context(stage.sql(options="-c lock_timeout=2s"))
            connection.execute("BEGIN")
            connection.execute(statement.encode())
        except psycopg.Error:
            stack.close()
            return None

        def heal() -> None:
            with suppress(psycopg.Error):
                connection.execute("ROLLBACK")
            with suppress(psycopg.Error):
                stack.close()

        return Done(heal)

    return act


def _make_read_only(stage: Stage, target: str, _: random.Random) -> Done | None:
    def write(value: str) -> None:
        with suppress(psycopg.Error), stage.sql() as connection:
            connection.execute(f"ALTER SYSTEM SET default_transaction_read_only = {value}".encode())
            connection.execute("SELECT pg_reload_conf()")

    write("on")
    return Done(lambda: write("off"))


def _continue(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


_ALL = [f"{side}/{name}" for side in SIDES for name in SERVERS]
_STORES = [f"{side}/store" for side in SIDES]
_WINDOWS = [f"{side}/windows" for side in SIDES]
_CLAIMS = [f"{side}/store" for side in WORKERS]
_TASKS = [f"{side}/broker" for side in WORKERS]
_REDIS = ("windows", "broker")
_ROWS = (
    "SELECT id FROM dispatcher_messages WHERE finished_at IS NULL ORDER BY id LIMIT 20 FOR UPDATE"
)

FAULTS = (
    Fault(name="worker.kill", act=_kill, targets=WORKERS, share=2),
    Fault(name="worker.freeze", act=_freeze, targets=WORKERS, share=3, lasts=(0.1, 5)),
    Fault(name="worker.end", act=_end, targets=WORKERS, share=1),
    Fault(name="beat.kill", act=_kill, targets=BEATS, share=1),
    Fault(name="beat.freeze", act=_freeze, targets=BEATS, share=2, lasts=(0.1, 4)),
    Fault(name="client.kill", act=_kill, targets=CLIENTS, share=2),
    Fault(name="client.freeze", act=_freeze, targets=CLIENTS, share=3, lasts=(0.1, 4)),
    Fault(name="line.cut", act=_cut, targets=_ALL, share=14),
    Fault(name="line.refuse", act=_refuse, targets=_ALL, share=7, lasts=(0.05, 1.5)),
    Fault(name="line.black-hole", act=_black_hole, targets=_ALL, share=4, lasts=(0.1, 2.5)),
    Fault(name="line.slow", act=_slow, targets=_ALL, share=5, lasts=(0.2, 1.5)),
    Fault(name="reply.script", act=_lose_reply(b"EVALSHA"), targets=_WINDOWS, share=10,
          lasts=(0.1, 0.6)),
    Fault(name="reply.insert", act=_lose_answer(b"INSERT 0 1\0"), targets=["clients/store"],
          share=8, lasts=(0.1, 0.6)),
    Fault(name="reply.update", act=_lose_answer(b"UPDATE 1\0"), targets=_STORES, share=8,
          lasts=(0.1, 0.6)),
    Fault(name="reply.commit", act=_lose_answer(b"COMMIT\0"), targets=_STORES, share=6,
          lasts=(0.1, 0.8)),
    Fault(name="reply.claim", act=_lose_answer(b"claim_token\0"), targets=_CLAIMS,
          share=7, lasts=(0.1, 0.6)),
    Fault(name="reply.task", act=_lose_answer(b"dispatcher.deliver"), targets=_TASKS,
          share=6, lasts=(0.1, 0.6)),
    Fault(name="reply.publish", act=_lose_reply(b"LPUSH"), targets=["clients/broker"], share=5,
          lasts=(0.1, 0.6)),
    Fault(name="redis.client-kill", act=_ask_redis("CLIENT", "KILL", "TYPE", "normal"),
          targets=_REDIS, share=9),
    Fault(name="redis.pause", act=_pause, targets=_REDIS, share=5),
    Fault(name="redis.script-flush", act=_ask_redis("SCRIPT", "FLUSH"), targets=["windows"],
          share=9),
    Fault(name="redis.flush-all", act=_ask_redis("FLUSHALL"), targets=["windows"], share=2),
    Fault(name="redis.freeze", act=_freeze_redis, targets=_REDIS, share=3, lasts=(0.1, 2)),
    Fault(name="redis.restart", act=_restart_redis, targets=_REDIS, share=2, lasts=(0, 1)),
    Fault(name="redis.forget", act=_forget, targets=["windows"], share=1, lasts=(0, 0.5)),
    Fault(name="redis.full", act=_configure("maxmemory", "1", "0"), targets=_REDIS, share=2,
          lasts=(0.1, 1)),
    Fault(name="redis.evicting", act=_configure("maxmemory-policy", "allkeys-lru", "noeviction"),
          targets=["windows"], share=1.5, lasts=(0.1, 1)),
    Fault(name="broker.no-queues", act=_delete_queues, targets=["broker"], share=5),
    Fault(name="broker.repeat", act=_repeat_tasks, targets=["broker"], share=6),
    Fault(name="store.terminate", act=_terminate, targets=["store"], share=7),
    Fault(name="store.freeze", act=_freeze_backend, targets=["store"], share=4, lasts=(0.1, 4)),
    Fault(name="store.restart", act=_restart_store, targets=["store"], share=1.5, lasts=(0, 0.5)),
    Fault(name="store.rows-locked", act=_lock(_ROWS), targets=["store"], share=4, lasts=(0.1, 4)),
    Fault(name="store.table-locked", act=_lock("LOCK TABLE dispatcher_messages IN EXCLUSIVE MODE"),
          targets=["store"], share=2, lasts=(0.1, 1.5)),
    Fault(name="store.read-only", act=_make_read_only, targets=["store"], share=2,
          lasts=(0.1, 1.2)),
)  # fmt: skip

FAULTS_OF_CLUSTERS = (
    Fault(name="node.kill", act=_alone(_restart_redis), targets=NODES, share=4, lasts=(0.1, 6)),
    Fault(name="node.freeze", act=_alone(_freeze_redis), targets=NODES, share=6, lasts=(0.1, 6)),
    Fault(name="node.lose-disk", act=_alone(_lose_disk), targets=NODES, share=1, lasts=(0.1, 4)),
    Fault(name="node.client-kill", act=_ask_redis("CLIENT", "KILL", "TYPE", "normal"),
          targets=NODES, share=8),
    Fault(name="node.pause", act=_pause, targets=NODES, share=5),
    Fault(name="node.script-flush", act=_ask_redis("SCRIPT", "FLUSH"), targets=NODES, share=8),
    Fault(name="node.flush-all", act=_ask_redis("FLUSHALL"), targets=NODES, share=2),
    Fault(name="node.full", act=_configure("maxmemory", "1", "0"), targets=NODES, share=3,
          lasts=(0.1, 1)),
    Fault(name="node.evicting", act=_configure("maxmemory-policy", "allkeys-lru", "noeviction"),
          targets=NODES, share=1.5, lasts=(0.1, 1)),
    Fault(name="node.fail-over", act=_alone(_take_over("")), targets=NODES, share=4),
    Fault(name="node.take-over", act=_alone(_take_over("TAKEOVER")), targets=NODES, share=3),
    Fault(name="cluster.move-slot", act=_alone(_move_slot), targets=["windows"], share=12,
          lasts=(0, 2)),
)  # fmt: skip
"""In the place of those of one server for the windows."""


def in_cluster() -> list[Fault]:
    gone = {"windows", *_WINDOWS}
    left = [(fault, [each for each in fault.targets if each not in gone]) for fault in FAULTS]
    found = [
        replace(fault, targets=targets, share=fault.share * len(targets) / len(fault.targets))
        for fault, targets in left
        if targets
    ]
    return [*found, *FAULTS_OF_CLUSTERS]


BY_NAME = {fault.name: fault for fault in (*FAULTS, *FAULTS_OF_CLUSTERS)}

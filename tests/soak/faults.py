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


@dataclass(frozen=True, slots=True)
class Fault:
    """A kind. ``share`` is how often it comes beside others; ``lasts`` between two lengths, s."""

    name: str
    act: Act
    targets: Sequence[str]
    share: float
    lasts: tuple[float, float] = (0.0, 0.0)


def _end_by(number: signal.Signals) -> Act:
    return lambda stage, target, _: Done() if stage.supervised.signal(target, number) else None


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
_EVICT = _configure("maxmemory-policy", "allkeys-lru", "noeviction")
_TABLE = "LOCK TABLE dispatcher_messages IN EXCLUSIVE MODE"
_ROWS = (
    "SELECT id FROM dispatcher_messages WHERE finished_at IS NULL ORDER BY id LIMIT 20 FOR UPDATE"
)

FAULTS = (
    Fault("worker.kill", _end_by(signal.SIGKILL), WORKERS, 2),
    Fault("worker.freeze", _freeze, WORKERS, 3, (0.1, 5)),
    Fault("worker.end", _end_by(signal.SIGTERM), WORKERS, 1),
    Fault("beat.kill", _end_by(signal.SIGKILL), BEATS, 1),
    Fault("beat.freeze", _freeze, BEATS, 2, (0.1, 4)),
    Fault("client.kill", _end_by(signal.SIGKILL), CLIENTS, 2),
    Fault("client.freeze", _freeze, CLIENTS, 3, (0.1, 4)),
    Fault("line.cut", _cut, _ALL, 14),
    Fault("line.refuse", _refuse, _ALL, 7, (0.05, 1.5)),
    Fault("line.black-hole", _black_hole, _ALL, 4, (0.1, 2.5)),
    Fault("line.slow", _slow, _ALL, 5, (0.2, 1.5)),
    Fault("reply.script", _lose_reply(b"EVALSHA"), _WINDOWS, 10, (0.1, 0.6)),
    Fault("reply.insert", _lose_answer(b"INSERT 0 1\0"), ["clients/store"], 8, (0.1, 0.6)),
    Fault("reply.update", _lose_answer(b"UPDATE 1\0"), _STORES, 8, (0.1, 0.6)),
    Fault("reply.commit", _lose_answer(b"COMMIT\0"), _STORES, 6, (0.1, 0.8)),
    Fault("reply.claim", _lose_answer(b"claim_token\0"), _CLAIMS, 7, (0.1, 0.6)),
    Fault("reply.task", _lose_answer(b"dispatcher.deliver"), _TASKS, 6, (0.1, 0.6)),
    Fault("reply.publish", _lose_reply(b"LPUSH"), ["clients/broker"], 5, (0.1, 0.6)),
    Fault("redis.client-kill", _ask_redis("CLIENT", "KILL", "TYPE", "normal"), _REDIS, 9),
    Fault("redis.pause", _pause, _REDIS, 5),
    Fault("redis.script-flush", _ask_redis("SCRIPT", "FLUSH"), ["windows"], 9),
    Fault("redis.flush-all", _ask_redis("FLUSHALL"), ["windows"], 2),
    Fault("redis.freeze", _freeze_redis, _REDIS, 3, (0.1, 2)),
    Fault("redis.restart", _restart_redis, _REDIS, 2, (0, 1)),
    Fault("redis.forget", _forget, ["windows"], 1, (0, 0.5)),
    Fault("redis.full", _configure("maxmemory", "1", "0"), _REDIS, 2, (0.1, 1)),
    Fault("redis.evicting", _EVICT, ["windows"], 1.5, (0.1, 1)),
    Fault("broker.no-queues", _delete_queues, ["broker"], 5),
    Fault("broker.repeat", _repeat_tasks, ["broker"], 6),
    Fault("store.terminate", _terminate, ["store"], 7),
    Fault("store.freeze", _freeze_backend, ["store"], 4, (0.1, 4)),
    Fault("store.restart", _restart_store, ["store"], 1.5, (0, 0.5)),
    Fault("store.rows-locked", _lock(_ROWS), ["store"], 4, (0.1, 4)),
    Fault("store.table-locked", _lock(_TABLE), ["store"], 2, (0.1, 1.5)),
    Fault("store.read-only", _make_read_only, ["store"], 2, (0.1, 1.2)),
)

FAULTS_OF_CLUSTERS = (
    Fault("node.kill", _alone(_restart_redis), NODES, 4, (0.1, 6)),
    Fault("node.freeze", _alone(_freeze_redis), NODES, 6, (0.1, 6)),
    Fault("node.lose-disk", _alone(_lose_disk), NODES, 1, (0.1, 4)),
    Fault("node.client-kill", _ask_redis("CLIENT", "KILL", "TYPE", "normal"), NODES, 8),
    Fault("node.pause", _pause, NODES, 5),
    Fault("node.script-flush", _ask_redis("SCRIPT", "FLUSH"), NODES, 8),
    Fault("node.flush-all", _ask_redis("FLUSHALL"), NODES, 2),
    Fault("node.full", _configure("maxmemory", "1", "0"), NODES, 3, (0.1, 1)),
    Fault("node.evicting", _EVICT, NODES, 1.5, (0.1, 1)),
    Fault("node.fail-over", _alone(_take_over("")), NODES, 4),
    Fault("node.take-over", _alone(_take_over("TAKEOVER")), NODES, 3),
    Fault("cluster.move-slot", _alone(_move_slot), ["windows"], 12, (0, 2)),
)
"""In the place of those of one server for the windows."""


def in_cluster() -> list[Fault]:
    gone = {"windows", *_WINDOWS}
    left = [(fault, [target for target in fault.targets if target not in gone]) for fault in FAULTS]
    strikes = [
        replace(fault, targets=targets, share=fault.share * len(targets) / len(fault.targets))
        for fault, targets in left
        if targets
    ]
    return [*strikes, *FAULTS_OF_CLUSTERS]


BY_NAME = {fault.name: fault for fault in (*FAULTS, *FAULTS_OF_CLUSTERS)}

"""The checks of the doctor; those that need a server which does not answer are skipped."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial, wraps
from typing import TYPE_CHECKING

from dispatcher.errors import InvalidSettings, StoreUnavailable, Unavailable
from dispatcher.redis.errors import FOREIGN_KEY, START_REDIS
from dispatcher.reservation.contents import RedisNode
from dispatcher.settings import config_file, open_to_others
from dispatcher.store.maintenance import MOST_GRACES
from dispatcher.store.survey import LateCount
from dispatcher.telemetry.journal import find_hooks
from dispatcher.telemetry.liveness import MISSED_INTERVALS, Kind
from dispatcher.times.clock import Clock
from dispatcher.times.zones import PACKAGE, database

if TYPE_CHECKING:
    from dispatcher.operations.doctor import Doctor


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"
    """It works, and will fail under circumstances that the finding names."""
    ERROR = "error"
    """It does not work, or breaks a promise."""
    SKIPPED = "skipped"
    """Not examined, because of another finding."""


@dataclass(frozen=True, slots=True)
class Finding:
    """With ``stops_worker`` a worker must not start: waiting does not correct the error."""

    check: str = field(default="", kw_only=True)
    level: Level
    found: str
    remedy: str | None = None
    stops_worker: bool = field(default=False, kw_only=True)


ok = partial(Finding, Level.OK)
warning = partial(Finding, Level.WARNING)
error = partial(Finding, Level.ERROR)
skipped = partial(Finding, Level.SKIPPED)
Check = Callable[["Doctor"], Finding]


def worst(findings: Iterable[Finding]) -> Finding:
    severity = (Level.SKIPPED, Level.OK, Level.WARNING, Level.ERROR)
    return max(findings, key=lambda finding: severity.index(finding.level))


@dataclass(frozen=True, slots=True)
class Examination:
    findings: tuple[Finding, ...]

    @property
    def counts(self) -> Mapping[Level, int]:
        counted = Counter(finding.level for finding in self.findings)
        return {level: counted[level] for level in Level}

    @property
    def level(self) -> Level:
        return worst(self.findings).level


def _answers(ask: Callable[[], object], remedy: str, *, stops_worker: bool = False) -> Finding:
    try:
        ask()
    except Unavailable as silent:
        return error(silent.reason, silent.remedy or remedy, stops_worker=stops_worker)
    return ok("it answers")


# Redis.

_OLDEST = 6, 2
_NEARLY_FULL = 0.8
_MOST_NAMED = 10
_VULNERABILITIES = "CVE-2025-49844, CVE-2025-46817, CVE-2025-46818 and CVE-2025-46819"
_FIXED: Mapping[str, tuple[tuple[int, ...], ...]] = {
    "Redis": ((6, 2, 20), (7, 2, 11), (7, 4, 6), (8, 0, 4), (8, 2, 2)),
    "Valkey": ((7, 2, 11), (8, 0, 6), (8, 1, 4)),
}
"""The first fixed patch of each release line. Later lines never had them."""


def _of_each_node(judge: Callable[[RedisNode], Finding]) -> Check:
    """Make the judgement of a server a check, whose finding is that of the worst server."""

    def judged(node: RedisNode) -> Finding:
        finding = judge(node)
        return replace(finding, found=f"{node.name}: {finding.found}") if node.name else finding

    return wraps(judge)(lambda doctor: worst(map(judged, doctor.redis_nodes())))


def _numbers(version: object) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", str(version))[:3])


def redis_answers(doctor: Doctor) -> Finding:
    return _answers(doctor.redis_nodes, START_REDIS)


@_of_each_node
def redis_version(node: RedisNode) -> Finding:
    version = str(node.info.get("redis_version", ""))
    if _numbers(version) >= _OLDEST:
        return ok(version)
    problem, remedy = f"Redis {version or 'without a version'}", "run Redis 6.2 or newer, or Valkey"
    return error(problem, remedy, stops_worker=True)


@_of_each_node
def redis_vulnerabilities(node: RedisNode) -> Finding:
    name = "Valkey" if "valkey_version" in node.info else "Redis"
    version, fixed = str(node.info.get(f"{name.lower()}_version", "")), _FIXED[name]
    numbers = _numbers(version)
    if numbers[:2] > max(fixed)[:2] or any(
        numbers[:2] == patch[:2] and numbers >= patch for patch in fixed
    ):
        return ok(f"{name} {version} has no known vulnerability")
    problem = f"{name} {version} may lack the fixes of {_VULNERABILITIES}"
    if node.is_private:
        return ok(f"{problem}; only the user of this process reaches it, by a socket")
    versions = ", ".join(".".join(map(str, patch)) for patch in fixed)
    return warning(
        f"{problem}: a client that may run scripts on it may run any code as its user",
        f"run {name} {versions} or newer, or look for these CVEs in the changelog of your package. "
        "Until then let only the dispatcher reach it",
    )


@_of_each_node
def redis_eviction(node: RedisNode) -> Finding:
    policy = node.info.get("maxmemory_policy", "unknown")
    if policy == "noeviction":
        return ok("nothing is evicted")
    return error(
        f"maxmemory-policy is {policy}: reservations would be forgotten, so every call is refused",
        "CONFIG SET maxmemory-policy noeviction, and the same in redis.conf",
        stops_worker=True,
    )


@_of_each_node
def redis_writes(node: RedisNode) -> Finding:
    if node.info.get("role") == "slave":
        problem = "the server is a read-only replica: every submit is refused"
        return error(problem, "let redis_url lead to the master")
    names = {"aof_last_write_status": "log", "rdb_last_bgsave_status": "snapshot"}
    failed = [what for name, what in names.items() if node.info.get(name, "ok") != "ok"]
    if not failed:
        return ok("writes are taken")
    return error(
        f"the last {' and '.join(failed)} could not be written: Redis may refuse writes",
        "free space on Redis' disk, check the rights of its folder, see its log",
    )


@_of_each_node
def redis_persistence(node: RedisNode) -> Finding:
    if node.info.get("aof_enabled"):
        return ok("appendonly is on")
    kept = {
        True: "only snapshots are written",
        False: "nothing is written to disk",
        None: "appendonly is off; whether snapshots are written, the server does not tell",
    }
    return warning(
        f"{kept[node.has_snapshots]}: a restart forgets submits under way, closed channels, the "
        "turns of messages that wait for a limit, and what limiters of your own count; the rest "
        "comes back from SQL",
        "CONFIG SET appendonly yes, and the same in redis.conf, with appendfsync everysec",
    )


@_of_each_node
def redis_replicas(node: RedisNode) -> Finding:
    replicas = node.info.get("connected_slaves", 0)
    if not replicas:
        return ok("no replicas")
    if "min_slaves_good_slaves" in node.info:
        return ok(f"{replicas} replicas, and writes are refused without them")
    return warning(
        f"{replicas} replicas, and min-replicas-to-write is 0: after a failover an old master "
        "may go on to take bookings, and quotas break",
        "CONFIG SET min-replicas-to-write 1, and the same in redis.conf",
    )


@_of_each_node
def redis_cluster(node: RedisNode) -> Finding:
    if node.cluster is None:
        return ok("no cluster")
    nodes = int(node.cluster.get("cluster_size") or 0)
    cluster = f"a cluster with slots on {nodes} nodes"
    if node.cluster.get("cluster_state") != "ok":
        return error(
            f"{cluster}, which does not serve all slots",
            "redis-cli --cluster check HOST:PORT says which; redis-cli --cluster fix mends it",
            stops_worker=not node.all_nodes_asked,
        )
    if nodes == 1 or node.all_nodes_asked:
        return ok(cluster)
    return error(
        f"{cluster}, of which redis_url names one: keys that lie elsewhere are refused",
        "write redis_url as a cluster URL: redis+cluster://host:port,host:port",
        stops_worker=True,
    )


@_of_each_node
def redis_memory(node: RedisNode) -> Finding:
    used_bytes, most_bytes = (int(node.info.get(name, 0)) for name in ("used_memory", "maxmemory"))
    used, most = (f"{size / 2**20:.1f} MiB" for size in (used_bytes, most_bytes))
    if not most_bytes:
        return ok(f"{used} used, without maxmemory")
    if used_bytes < _NEARLY_FULL * most_bytes:
        return ok(f"{used} of {most} used")
    remedy = "raise maxmemory, or give the broker a Redis of its own if it shares this one"
    if used_bytes >= most_bytes:
        return error(f"{used} of {most} used: bookings are refused", remedy)
    return warning(f"{used} of {most} used: at {most} bookings are refused", remedy)


def redis_complete(doctor: Doctor) -> Finding:
    doctor.redis_nodes()
    states = doctor.redis.parts()
    total = sum(map(len, states.values()))
    incomplete = {state: names for state, names in states.items() if names and state != "complete"}
    if not incomplete:
        return ok(f"all {total} parts of Redis are complete")
    words = (
        f"{state}: {', '.join(names) if len(names) < total else f'all {total} parts'}"
        for state, names in incomplete.items()
    )
    return error(
        f"{'; '.join(words)}. The windows are built from the database, also on a fresh "
        "deployment; until then such shards refuse submits, or give no permit to send",
        "start a worker and a beat, whose sweep builds them; then run the doctor again",
    )


def redis_foreign(doctor: Doctor) -> Finding:
    doctor.redis_nodes()
    foreign = sorted(doctor.redis.foreign())
    if not foreign:
        return ok("no other program wrote into the windows")
    names = ", ".join(name.decode("utf-8", "backslashreplace") for name in foreign[:_MOST_NAMED])
    return error(
        f"another program wrote {len(foreign)} keys of reservations: calls that need one fail: "
        f"{names}{', …' * (len(foreign) > _MOST_NAMED)}",
        FOREIGN_KEY,
    )


# The database.


def store_answers(doctor: Doctor) -> Finding:
    remedy = "start the database, or correct database_url"
    return _answers(doctor.schema, remedy, stops_worker=doctor.store.lacks_file)


def store_migrations(doctor: Doctor) -> Finding:
    standing = doctor.schema()
    if standing.obstacle is not None:
        problem = f"the database cannot be migrated: {standing.obstacle.problem}"
        return error(problem, standing.obstacle.remedy, stops_worker=True)
    if not standing.is_known:
        return warning(
            f"the database is at revision {standing.revision}, which this version does not know",
            "finish the roll-out: this version works with a later schema only during an upgrade",
        )
    if not standing.missing:
        return ok(f"at revision {standing.revision}")
    there = f"at revision {standing.revision}" if standing.revision else "without tables"
    problem = f"the database is {there}; missing: {', '.join(standing.missing)}"
    return error(problem, "run `dispatcher migrate` first", stops_worker=True)


def store_indexes(doctor: Doctor) -> Finding:
    if not doctor.schema().revision:
        return skipped("the database has no tables")
    missing = doctor.store.missing_indexes()
    if not missing:
        return ok("all indexes are there")
    problem = f"missing indexes: {', '.join(missing)}"
    remedy = "create them again as in dispatcher/store/schema.py"
    unique = [name for name in missing if name.startswith("pk_")]
    if unique:
        problem += f". Without {unique[0]} one message may be stored several times"
        return error(problem, remedy, stops_worker=True)
    return warning(f"{problem}. The sweep reads the whole table instead", remedy)


def store_durability(doctor: Doctor) -> Finding:
    doctor.schema()
    durability = doctor.store.durability()
    if not durability.unsafe:
        return ok(", ".join(f"{name} {value}" for name, value in durability.values.items()))
    wrong = ", ".join(f"{name} is {durability.values[name]}" for name in durability.unsafe)
    danger = "messages that were accepted can be lost when the machine dies"
    return warning(f"{wrong}: {danger}", durability.remedy)


def store_encoding(doctor: Doctor) -> Finding:
    doctor.schema()
    database = doctor.store.database
    encoding = database.run(database.backend.encoding)
    if encoding == "UTF8":
        return ok("texts are stored in UTF-8")
    return warning(
        f"texts are stored in {encoding}: submits with other characters are refused, and "
        "receipts and errors are stored without them",
        "move to a database in UTF-8",
    )


def store_pooler(doctor: Doctor) -> Finding:
    doctor.schema()
    database = doctor.store.database
    unset = database.run(database.backend.unset_behind_pooler)
    if unset is None:
        return ok("no pooler between the dispatcher and the database")
    pooler = "the database is reached through a pooler (such as PgBouncer): nothing is prepared"
    if not unset:
        return ok(pooler)
    return warning(
        f"{pooler}; its sessions have no {', '.join(unset)}: a statement whose client is gone may "
        "wait for a lock for ever",
        "ALTER ROLE … SET statement_timeout = '10s', lock_timeout = '5s' and "
        "idle_in_transaction_session_timeout = '30s', one by one, for the role in database_url",
    )


def store_writes(doctor: Doctor) -> Finding:
    tables = doctor.tables
    try:
        tables.try_write()
    except StoreUnavailable as refusal:
        return error(
            f"a row cannot be stored: {refusal.reason}. Every submit fails",
            "free space on the database's disk, let the user of database_url write, see its log",
        )
    return ok("a row was stored and rolled back")


# What keeps the tables small.

_LONG_OPEN = timedelta(minutes=10)
_MANY_TRANSACTIONS = 1_000_000
_MUCH_LOG = 2**30


def store_transactions(doctor: Doctor) -> Finding:
    facts = doctor.housekeeping()
    looked = f"; visible: {facts.limited_to} ({facts.right} is missing)" if facts.limited_to else ""
    if facts.oldest is None:
        return ok(f"no transaction keeps old versions of rows{looked}")
    age = _rounded(facts.oldest)
    if facts.oldest < _LONG_OPEN:
        return ok(f"the oldest transaction is open for {age}{looked}")
    return warning(
        f"a transaction is open for {age}: since then no old version of a row is removed, and all "
        "work on the tables gets slower and slower",
        "end it (PostgreSQL: pg_stat_activity by xact_start, and pg_prepared_xacts; MariaDB: "
        "information_schema.innodb_trx). Give programs that do so an "
        "idle_in_transaction_session_timeout, and let backups read from a replica",
    )


def store_dead_rows(doctor: Doctor) -> Finding:
    facts = doctor.housekeeping()
    if not facts.backlogs:
        return ok("this database counts no old versions of rows")
    named = ", ".join(f"{backlog.name} {backlog.versions:,}" for backlog in facts.backlogs)
    if all(backlog.versions <= backlog.usual for backlog in facts.backlogs):
        return ok(f"old versions of rows: {named}")
    return warning(
        f"old versions of rows: {named}: more than is removed in time, so reads get slower",
        "see store.transactions and store.replication first. On PostgreSQL look whether autovacuum "
        "is on and gets done (pg_stat_progress_vacuum): raise autovacuum_vacuum_cost_limit and "
        "maintenance_work_mem, or run VACUUM",
    )


def store_replication(doctor: Doctor) -> Finding:
    facts = doctor.housekeeping()
    if not facts.slots:
        return ok("no replication slot")
    held = [
        f"{slot.name} ({'' if slot.is_active else 'not '}in use, "
        f"{slot.kept_bytes / 2**20:,.0f} MiB of the log, rows of {slot.transactions:,} "
        "transactions)"
        for slot in facts.slots
        if not slot.is_active
        or slot.kept_bytes > _MUCH_LOG
        or slot.transactions > _MANY_TRANSACTIONS
    ]
    if not held:
        return ok(f"{len(facts.slots)} replication slots in use, none far behind")
    return warning(
        f"replication slots hold back what the database could remove: {', '.join(held)}",
        "let the consumer catch up, or drop the slot: SELECT pg_drop_replication_slot('NAME'). "
        "max_slot_wal_keep_size bounds the log that is kept",
    )


def store_partitions(doctor: Doctor) -> Finding:
    facts = doctor.housekeeping()
    if facts.days is None:
        return ok("this database keeps all messages in one table")
    ahead, misplaced = facts.days
    if ahead and not misplaced:
        return ok(f"{ahead} of the coming days have a partition")
    wrong = "rows lie in the partition of other days" if ahead else "tomorrow has no partition"
    return warning(
        f"{wrong}: these messages are deleted one by one",
        "`prune` makes the partitions: see work.prune, and whether the role in database_url owns "
        "the tables. Rows of other days go when they are older than the retention",
    )


# The broker, and the Celery app that uses it.

_CONSUMER_TIMEOUT = timedelta(minutes=30)
"""RabbitMQ's default: how long a task may stay unacknowledged."""


def broker_answers(doctor: Doctor) -> Finding:
    remedy = "start the broker, correct broker_url, or install the module that is missing"
    return _answers(doctor.broker_facts, remedy)


def broker_queues(doctor: Doctor) -> Finding:
    """Refuse other queues: a worker cannot consume from them, and would reconnect for ever."""
    broker, queue_type = doctor.broker_facts(), doctor.settings.queue_type
    if not broker.other_queues:
        return ok("each queue can be used, or does not exist yet")
    other = "classic" if queue_type == "quorum" else "quorum"
    return error(
        f"queues of another type than queue_type = {queue_type!r}: "
        f"{', '.join(broker.other_queues)}",
        "stop the workers and delete these queues (rabbitmqctl delete_queue …), whose tasks are "
        f"enqueued again; or set queue_type = {other!r}",
        stops_worker=True,
    )


def broker_separate(doctor: Doctor) -> Finding:
    broker = doctor.broker_facts()
    ids = {str(node.info.get("run_id")): node for node in doctor.redis_nodes()}
    redis = None if broker.run_id is None else ids.get(broker.run_id)
    if redis is None:
        return ok("the broker is not the server of the windows")
    if broker.database != redis.database:
        return ok(f"the broker is database {broker.database} of the server of the windows")
    return warning(
        f"broker and windows share database {redis.database} of one Redis: emptying the broker "
        "empties the windows, and a flooded queue fills the memory that bookings need",
        "give the broker a Redis of its own, or another database number in broker_url",
    )


def app_answers(doctor: Doctor) -> Finding:
    return _answers(doctor.app_facts, "correct the options of the Celery app")


def app_serializer(doctor: Doctor) -> Finding:
    app = doctor.app_facts()
    if app.accepts == ("json",) and app.serializer == "json":
        return ok("JSON only")
    return error(
        f"the app accepts {', '.join(app.accepts)} and writes {app.serializer}: a forged task of "
        "another form can run code in a worker, and others refuse tasks that are no JSON",
        "set accept_content = ['json'] and task_serializer = 'json'",
        stops_worker=True,
    )


def app_redelivery(doctor: Doctor) -> Finding:
    app, horizon = doctor.app_facts(), doctor.settings.horizon
    if app.redelivery is None:
        if horizon < _CONSUMER_TIMEOUT:
            return ok(f"horizon {horizon}, below the consumer_timeout of RabbitMQ")
        return warning(
            f"the horizon is {horizon}: RabbitMQ closes the connection to a worker that has a task "
            f"for longer than consumer_timeout, by default {_CONSUMER_TIMEOUT}",
            "shorten horizon, or raise consumer_timeout",
        )
    if app.redelivery > 2 * horizon:
        return ok(f"visibility_timeout {app.redelivery}, horizon {horizon}")
    return error(
        f"visibility_timeout is {app.redelivery}: tasks that wait for their ETA are redelivered",
        "set broker_transport_options['visibility_timeout'] to more than twice the horizon of "
        f"{horizon}",
    )


def app_attached(doctor: Doctor) -> Finding:
    app = doctor.app_facts()
    wrong = []
    if not app.has_our_broker:
        wrong.append("its broker is not broker_url, or its queues have a global_keyprefix")
    if not app.has_our_route:
        wrong.append("dispatcher.deliver is not routed to the dispatcher's queue")
    if app.missing_sweeps:
        wrong.append(f"its beat does not start {', '.join(app.missing_sweeps)}")
    if not wrong:
        return ok("broker, route and sweep are there")
    return error(
        "; ".join(wrong),
        "call dispatcher.install(app, settings) after setting the app's own options, and give both "
        "the same broker_url",
    )


# Clocks.

_LOOKS = 4
_ROUNDED = timedelta(milliseconds=1)
"""Servers answer in whole milliseconds."""
_MOST_APART = timedelta(seconds=1)
"""Submitters check send times by their clocks; workers expire ticks by theirs."""
_WARNING_APART = _MOST_APART / 2
"""Another machine may be off by as much in the other direction."""


def measure(ask: Callable[[], datetime], clock: Clock) -> tuple[timedelta, timedelta]:
    """Return how far a clock is ahead of this machine's at least, and at most.

    It was read between the question and the answer, and so it is in each of some looks.
    """
    least, most = [], []
    for _ in range(_LOOKS):
        asked_at = clock.now()
        server_time = ask()
        least.append(server_time - clock.now() - _ROUNDED)
        most.append(server_time - asked_at + _ROUNDED)
    return max(least), min(most)


def clock_store(doctor: Doctor) -> Finding:
    doctor.schema()
    bounds = measure(doctor.store.now, doctor.clock)
    return judge_clock("the database", *bounds, stops_worker=True)


def clock_redis(doctor: Doctor) -> Finding:
    doctor.redis_nodes()
    bounds = [measure(ask, doctor.clock) for ask in doctor.redis.clocks()]
    return worst(judge_clock("Redis", least, most) for least, most in bounds)


def judge_clock(
    whose: str, least: timedelta, most: timedelta, *, stops_worker: bool = False
) -> Finding:
    surely, perhaps = max(least, -most, timedelta(0)), max(most, -least)
    way = "behind" if most < timedelta(0) else "ahead of"
    problem = f"the clock of {whose} is {surely.total_seconds():.3f} s or more {way} this machine's"
    bound = f"at most {perhaps.total_seconds():.3f} s off"
    remedy = "let NTP set the clocks of all machines"
    if surely > _MOST_APART:
        problem += ". Send times are judged wrongly, and workers far ahead of beat drop its tasks"
        return error(problem, remedy, stops_worker=stops_worker)
    if surely > _WARNING_APART:
        return warning(f"{problem}; another machine may be as far off the other way", remedy)
    if perhaps > _MOST_APART:
        return warning(
            f"answers took too long to tell: the clock of {whose} is {bound}",
            f"look again when the connection to {whose} is less busy",
        )
    return ok(bound)


# Work that is late.

_LONG_WAIT = timedelta(hours=1)
"""How long after its send time a message may wait. At defaults the waits between all attempts are a
quarter of an hour."""
_PRUNE_PATIENCE = timedelta(hours=1)
_SEE = "see work.processes and work.sweep: the same beat starts"


def work_processes(doctor: Doctor) -> Finding:
    signs, late = doctor.seen(), LateCount()
    alive = {kind: sum(sign.is_alive for sign in signs[kind]) for kind in (Kind.WORKER, Kind.BEAT)}
    missing = " and ".join(f"no {kind.value}" for kind, count in alive.items() if not count)
    if not missing:
        numbers = (_counted(count, kind.value) for kind, count in alive.items())
        return ok(f"alive: {', '.join(numbers)}")
    remedy = (
        "start `dispatcher worker` and `dispatcher beat` under a supervisor; with processes of an "
        "app of yours, look whether they reach the Redis of redis_url"
    )
    with suppress(Unavailable):
        late = max(_not_enqueued(doctor), _overdue(doctor))
    if late.messages:
        return error(f"{missing} is alive, and {_waiting(late)}", remedy)
    return warning(f"{missing} is alive: due messages are not sent", remedy)


def work_zones(doctor: Doctor) -> Finding:
    own = database()
    versions = {sign.name for sign in doctor.seen()[Kind.ZONES] if sign.is_alive}
    zones = f"times go by the tz database {own.version or 'of unknown version'} of {own.source}"
    if others := versions - {own.version}:
        named = ", ".join(sorted(name or "an unknown one" for name in others))
        return warning(
            f"{zones}; a worker or a beat goes by {named}",
            f"install one version of the package {PACKAGE} on every host, and restart",
        )
    return ok(zones)


def work_sweep(doctor: Doctor) -> Finding:
    return _late(
        _not_enqueued(doctor),
        otherwise="nothing waits for the sweep",
        where="for the sweep",
        why=": no sweep runs, or it is too slow" + _paused(doctor),
        remedy="start `dispatcher beat` and `dispatcher worker`. Where both run, look for pauses "
        "(`dispatcher status`), busy workers, clocks that differ, and errors in their logs",
    )


def work_overdue(doctor: Doctor) -> Finding:
    return _late(
        _overdue(doctor),
        otherwise="nothing is overdue",
        where="to be claimed though due",
        why=_paused(doctor),
        remedy="see work.sweep first. Where the sweep runs and nothing is paused, no worker takes "
        "the queue or all are busy: start more, and look for slow transports",
    )


def _paused(doctor: Doctor) -> str:
    if not (pauses := len(doctor.pauses.in_force())):
        return ""
    are = "is" if pauses == 1 else "are"
    return f"; {_counted(pauses, 'pause')} {are} in force: paused messages count, too"


def _not_enqueued(doctor: Doctor) -> LateCount:
    return doctor.tables.not_enqueued(older_than=doctor.patience)


def _overdue(doctor: Doctor) -> LateCount:
    grace = doctor.settings.enqueue_grace
    older_than = grace + doctor.patience
    return doctor.tables.overdue(older_than=older_than, grace=MOST_GRACES * grace)


def work_waiting(doctor: Doctor) -> Finding:
    return _late(
        doctor.tables.waiting(older_than=_LONG_WAIT),
        otherwise="no message waits more than an hour after its send time",
        where="more than an hour after the send time",
        why=": put back by a limit or for a silent destination, or tried again and again",
        remedy="`dispatcher list --status scheduled` finds them and `dispatcher show` shows one. "
        "Raise the limit or correct the address; expire_after ends messages that are too late",
    )


def work_claims(doctor: Doctor) -> Finding:
    return _late(
        doctor.tables.not_rescued(older_than=doctor.patience),
        otherwise="no claim has expired",
        where="with an expired claim",
        why=", and `rescue` does not run",
        remedy=f"{_SEE} `rescue`",
    )


def work_orphans(doctor: Doctor) -> Finding:
    doctor.redis_nodes()
    older_than = doctor.settings.reconcile_grace + doctor.patience
    count = doctor.redis.unconfirmed(older_than=older_than)
    if not count:
        return ok("every reservation is confirmed, or within reconcile_grace")
    return warning(
        f"not settled within reconcile_grace: {_counted(count, 'reservation')}, which "
        "count against quotas, perhaps without a message",
        f"{_SEE} `reconcile`, which also stops where the database does not answer",
    )


def work_channels(doctor: Doctor) -> Finding:
    strange = doctor.tables.unknown_channels(doctor.settings.channels)
    if not strange:
        return ok("every channel of scheduled messages is known")
    named = ", ".join(f"{name} ({count})" for name, count in strange.items())
    return warning(
        f"scheduled messages of unknown channels: {named}. Workers put them back again and again",
        "add the channels to the settings of every worker, or cancel the messages",
    )


def work_notifications(doctor: Doctor) -> Finding:
    if doctor.settings.status_channel:
        older_than = doctor.patience
        why = ": the duty `notify` does not run"
        remedy = f"{_SEE} `notify`, where its settings have the status_channel"
    else:
        older_than = timedelta(0)  # nothing posts any of them, however young it is
        why = ", and there is no status_channel: no webhook is sent, and no such message is deleted"
        remedy = "set status_channel for beat and workers to a webhook with payload = 'body'"
    late = doctor.tables.late_notifications(older_than=older_than)
    otherwise, where = "no status webhook is late", "for a status webhook"
    return _late(late, otherwise=otherwise, where=where, why=why, remedy=remedy)


def work_prune(doctor: Doctor) -> Finding:
    behind = doctor.tables.not_pruned(retention=doctor.settings.retention)
    interval, age = doctor.settings.prune_interval, None
    with suppress(Unavailable):
        age = next((sign.age for sign in doctor.seen()[Kind.DUTY] if sign.name == "prune"), None)
    done = f"last done {_rounded(age)} ago" if age is not None else "not done within a day"
    if behind > _PRUNE_PATIENCE:
        return warning(
            f"`prune` is {_rounded(behind)} behind the retention, {done}: the tables grow",
            f"{_SEE} `prune`. Where it is done and stays behind, set a shorter prune_interval",
        )
    if age is not None and age > MISSED_INTERVALS * interval:
        return warning(
            f"`prune` should be done every {interval}, {done}",
            f"{_SEE} `prune`; look for its errors in the logs of the workers",
        )
    return ok(f"nothing waits for `prune`, {done}")


def _late(late: LateCount, *, otherwise: str, where: str, why: str, remedy: str) -> Finding:
    """Warn of messages that wait ``where``; ``otherwise`` if none does."""
    return warning(_waiting(late, f" {where}") + why, remedy) if late.messages else ok(otherwise)


def _waiting(late: LateCount, where: str = "") -> str:
    waits = f"{_counted(late.messages, 'message')} {'waits' if late.messages == 1 else 'wait'}"
    return f"{waits}{where}, the first one for {_rounded(late.longest)}"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _rounded(length: timedelta) -> timedelta:
    return timedelta(seconds=round(length.total_seconds()))


# What was asked for by the clocks of a zone.


def zones_wishes(doctor: Doctor) -> Finding:
    """Look at the messages that are to be enqueued next."""
    _ = doctor.tables
    wrong = next(doctor.wishes.wrong_messages(), [])
    if not wrong:
        return ok("the next messages go out at the local times that were asked for")
    if unknown := {row.zone for row in wrong if row.means is None}:
        named = ", ".join(sorted(filter(None, unknown)))
        return warning(
            f"this host has no zone {named}, in which messages were asked for",
            f"install the newest version of the package {PACKAGE} on every host, and restart",
        )
    return warning(
        f"{_counted(len(wrong), 'message')} of the next would go out at another local time than "
        "was asked for: the rules of their zones have changed",
        "`dispatcher zones check` lists all, `dispatcher zones repair` moves them",
    )


# What the settings name.


def settings_transports(doctor: Doctor) -> Finding:
    unmade = doctor.probes().unmade
    if not unmade:
        return ok("a worker can make the transport of every channel")
    problem = f"a worker with these settings does not start: {_listed(unmade)}"
    return error(problem, "correct what is named, or install what is missing", stops_worker=True)


def settings_servers(doctor: Doctor) -> Finding:
    probed = doctor.probes()
    if probed.refuse:
        return error(
            f"no message gets through: {_listed(probed.refuse)}",
            "start the server, let this machine reach it, or correct the options of the channel: "
            "where it is, user and password",
        )
    if not probed.answer:
        return ok("no channel has a server that could be asked")
    return ok(f"every server answers, and takes the log-in: {', '.join(probed.answer)}")


def settings_files(doctor: Doctor) -> Finding:
    private = (config_file(), doctor.settings.data_dir, doctor.store.database.backend.file)
    readable = [str(path) for path in private if path and open_to_others(path)]
    if not readable:
        return ok("other users cannot read the settings file, data_dir or the SQLite file")
    return warning(
        f"other users of this machine may read {', '.join(readable)}",
        f"chmod o= {' '.join(readable)}",
    )


def settings_hooks(doctor: Doctor) -> Finding:
    setting = doctor.settings.hooks
    if not setting:
        return ok("there are no hooks")
    try:
        find_hooks(setting)
    except InvalidSettings as wrong:
        return error(
            f"{wrong.problem}; every submit and every worker fails",
            f"make it importable for all of them, or correct hooks: {wrong.accepted}",
        )
    return ok(f"{setting} can be loaded")


def settings_templates(doctor: Doctor) -> Finding:
    problems = doctor.templates.problems()
    wrong = [f"{problem.field}: {problem.problem}" for problem in problems.values() if problem]
    if wrong:
        return error(
            f"submits that name them are refused: {'; '.join(wrong)}",
            "correct the template, or take it out of the settings",
        )
    return ok(f"each of {len(problems)} compiles" if problems else "there are no templates")


def settings_recipients(doctor: Doctor) -> Finding:
    return _of_channels(
        doctor.settings.spellings.problems(),
        what="spelling rules",
        otherwise="submits to these channels are refused",
        accepted="email, phone, or package.module:function that takes and returns a str",
    )


def settings_bodies(doctor: Doctor) -> Finding:
    return _of_channels(
        doctor.settings.body_types.problems(),
        what="body types",
        otherwise="submits to these channels fail, and so does the OpenAPI document",
        accepted="package.module:attribute of a model of pydantic, a dataclass or a TypedDict",
    )


def _of_channels(
    problems: Mapping[str, InvalidSettings | None], *, what: str, otherwise: str, accepted: str
) -> Finding:
    wrong = [f"{path}: {problem.problem}" for path, problem in problems.items() if problem]
    if wrong:
        remedy = "make it importable for submitting programs, or correct the setting"
        return error(f"{otherwise}: {'; '.join(wrong)}", f"{remedy}: {accepted}")
    if not problems:
        return ok(f"there are no {what}")
    return ok(f"the {what} of {_counted(len(problems), 'channel')} can be loaded")


def _listed(reasons: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {why}" for name, why in reasons.items())


_KINDS = {"redis", "store", "broker", "app", "clock", "work", "zones", "settings"}
CHECKS: dict[str, Check] = {
    name.replace("_", ".", 1): judge
    for name, judge in list(globals().items())
    if name.partition("_")[0] in _KINDS
}
"""Every function whose name begins with a kind, in the order of their findings."""
AT_START = (
    "redis.version", "redis.eviction", "redis.cluster", "store.answers", "store.migrations",
    "store.indexes", "broker.queues", "clock.store",
)  # fmt: skip
"""The checks that may stop a worker, and are made before it starts."""

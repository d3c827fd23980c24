"""The checks of the doctor: of the servers and their clocks, of late work, and of the settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from dispatcher.celery.survey import AppFacts
from dispatcher.errors import InvalidSettings, StoreUnavailable, Unavailable
from dispatcher.file_modes import open_to_others
from dispatcher.operations.findings import Finding, Level, error, ok, skipped, warning
from dispatcher.reservation import RedisNode
from dispatcher.reservation.taken_keys import REMEDY
from dispatcher.settings import Settings, config_file
from dispatcher.store.engines.base import Housekeeping
from dispatcher.store.maintenance import MOST_GRACES
from dispatcher.store.migrate import SchemaStanding
from dispatcher.store.survey import LateCount
from dispatcher.telemetry.hooks import find as find_hooks
from dispatcher.telemetry.liveness import MISSED_INTERVALS, Kind
from dispatcher.times.clock import Clock
from dispatcher.times.zones import PACKAGE, database

if TYPE_CHECKING:
    from dispatcher.operations.doctor import Doctor

# Redis.

_BY_SEVERITY = (Level.OK, Level.WARNING, Level.ERROR)
_OLDEST = (6, 2)
_NEARLY_FULL = 0.8
_MOST_NAMED = 10
_VULNERABILITIES = "CVE-2025-49844, CVE-2025-46817, CVE-2025-46818 and CVE-2025-46819"
_FIXED: Mapping[str, Mapping[tuple[int, ...], int]] = {
    "Redis": {(6, 2): 20, (7, 2): 11, (7, 4): 6, (8, 0): 4, (8, 2): 2},
    "Valkey": {(7, 2): 11, (8, 0): 6, (8, 1): 4},
}
"""The first fixed patch of each release line. Later lines never had them."""


def redis_version(node: RedisNode) -> Finding:
    version = str(node.info.get("redis_version", ""))
    numbers = tuple(int(each) for each in re.findall(r"\d+", version)[:2])
    if numbers >= _OLDEST:
        return ok(version)
    floor = ".".join(map(str, _OLDEST))
    return error(
        f"Redis {version or 'without a version'}",
        f"run Redis {floor} or newer, or Valkey",
        stops_worker=True,
    )


def redis_vulnerabilities(node: RedisNode) -> Finding:
    name = "Valkey" if "valkey_version" in node.info else "Redis"
    version = str(node.info.get(f"{name.lower()}_version", ""))
    numbers = [int(each) for each in re.findall(r"\d+", version)[:3]]
    line, patch = tuple(numbers[:2]), (numbers[2:] or [0])[0]
    fixed = _FIXED[name]
    if line > max(fixed) or (line in fixed and patch >= fixed[line]):
        return ok(
            f"{name} {version} has no vulnerability that this version of the dispatcher knows"
        )
    problem = f"{name} {version} may lack the fixes of {_VULNERABILITIES}"
    if node.is_private:
        return ok(f"{problem}; only the user of this process reaches it, by a socket")
    versions = ", ".join(f"{'.'.join(map(str, each))}.{last}" for each, last in fixed.items())
    return warning(
        f"{problem}: a client that may run scripts on it may run any code as its user",
        f"run {name} {versions} or newer. Distributions patch older versions: check the changelog "
        "of your package for these CVEs. Until then let only the dispatcher reach it",
    )


def redis_eviction(node: RedisNode) -> Finding:
    policy = node.info.get("maxmemory_policy", "unknown")
    if policy == "noeviction":
        return ok("nothing is evicted")
    return error(
        f"maxmemory-policy is {policy}: reservations and permits are forgotten when memory "
        "is short, so the dispatcher refuses this server",
        "CONFIG SET maxmemory-policy noeviction, and the same in redis.conf",
        stops_worker=True,
    )


def redis_writes(node: RedisNode) -> Finding:
    if node.info.get("role") == "slave":
        return error(
            "the server is a read-only replica: every submit is refused",
            "let redis_url lead to the master",
        )
    names = {"aof_last_write_status": "log", "rdb_last_bgsave_status": "snapshot"}
    failed = [what for name, what in names.items() if node.info.get(name, "ok") != "ok"]
    if failed:
        return error(
            f"the last {' and '.join(failed)} could not be written to disk; "
            "Redis may refuse writes",
            "free space on Redis' disk, check the rights of its folder, see its log",
        )
    return ok("writes are taken")


def redis_persistence(node: RedisNode) -> Finding:
    if node.info.get("aof_enabled"):
        return ok("appendonly is on")
    kept = "only snapshots are written" if node.has_snapshots else "nothing is written to disk"
    if node.has_snapshots is None:
        kept = "appendonly is off; whether snapshots are written, the server does not tell"
    return warning(
        f"{kept}: a restart forgets reservations that are not in SQL yet, the turns of messages "
        "that wait for a limit, closed channels and what limiters of your own count; windows and "
        "permits come back from SQL",
        "CONFIG SET appendonly yes, and the same in redis.conf, with appendfsync everysec",
    )


def redis_replicas(node: RedisNode) -> Finding:
    replicas = node.info.get("connected_slaves", 0)
    if not replicas:
        return ok("no replicas")
    if "min_slaves_good_slaves" in node.info:
        return ok(f"{replicas} replicas, and writes are refused without them")
    return warning(
        f"{replicas} replicas, and min-replicas-to-write is 0: after a failover an old "
        "master that still serves its clients takes bookings on its own, and quotas break",
        "CONFIG SET min-replicas-to-write 1, and the same in redis.conf",
    )


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


def redis_memory(node: RedisNode) -> Finding:
    used_bytes, most_bytes = (int(node.info.get(name, 0)) for name in ("used_memory", "maxmemory"))
    used = f"{used_bytes / 2**20:.1f} MiB"
    if not most_bytes:
        return ok(f"{used} used, without maxmemory")
    most = f"{most_bytes / 2**20:.1f} MiB"
    share = used_bytes / most_bytes
    if share < _NEARLY_FULL:
        return ok(f"{used} of {most} used")
    remedy = "raise maxmemory, or give the broker a Redis of its own if it shares this one"
    if share >= 1:
        return error(f"{used} of {most} used: bookings are refused", remedy)
    return warning(f"{used} of {most} used: at {most} bookings are refused", remedy)


def redis_complete(doctor: Doctor) -> Finding:
    states = doctor.redis.parts()
    total = sum(map(len, states.values()))
    incomplete = {state: names for state, names in states.items() if names and state != "complete"}
    if not incomplete:
        return ok(f"all {total} parts are complete")
    words = (
        f"{state}: {', '.join(names) if len(names) < total else f'all {total} parts'}"
        for state, names in incomplete.items()
    )
    return error(
        f"{'; '.join(words)}. The windows are built from the database, also on a fresh "
        "deployment; until then such shards refuse submits, and without permits nothing is sent",
        "start a worker and a beat: the sweep builds them within seconds, or longer with many "
        "messages. Then run the doctor again",
    )


def redis_foreign(doctor: Doctor) -> Finding:
    taken = doctor.redis.taken()
    if not taken:
        return ok("every key with the name of a window is a window")
    names = ", ".join(taken[:_MOST_NAMED]) + ", …" * (len(taken) > _MOST_NAMED)
    return error(
        f"another program wrote {len(taken)} keys of reservations, so that calls which need "
        f"one fail: {names}",
        REMEDY,
    )


def worst(judge: Callable[[RedisNode], Finding], nodes: Sequence[RedisNode]) -> Finding:
    findings = [(node, judge(node)) for node in nodes]
    node, finding = max(findings, key=lambda pair: _BY_SEVERITY.index(pair[1].level))
    return replace(finding, found=f"{node.name}: {finding.found}") if node.name else finding


# The database.

_MIGRATE = "run `dispatcher migrate`"


def store_migrations(standing: SchemaStanding) -> Finding:
    if standing.obstacle is not None:
        return error(
            f"the database cannot be migrated: {standing.obstacle.found}",
            standing.obstacle.remedy,
            stops_worker=True,
        )
    if not standing.is_known:
        return warning(
            f"the database is at revision {standing.revision}, which this version does not know",
            "finish the roll-out: this version works with a later schema only during an upgrade",
        )
    if not standing.missing:
        return ok(f"at revision {standing.revision}")
    missing = ", ".join(standing.missing)
    there = f"at revision {standing.revision}" if standing.revision else "without tables"
    return error(
        f"the database is {there}; missing: {missing}", f"{_MIGRATE} first", stops_worker=True
    )


def store_indexes(doctor: Doctor) -> Finding:
    if not doctor.facts("store").revision:
        return skipped("the database has no tables")
    missing = doctor.store.missing_indexes()
    if not missing:
        return ok("all are there")
    names = ", ".join(missing)
    remedy = (
        f"create {'it' if len(missing) == 1 else 'them'} again as in dispatcher/store/schema.py"
    )
    unique = [name for name in missing if name.startswith("pk_")]
    if unique:
        return error(
            f"missing: {names}. Without {unique[0]} one message may be stored several times",
            remedy,
            stops_worker=True,
        )
    return warning(f"missing: {names}. The sweep reads the whole table instead", remedy)


def store_durability(doctor: Doctor) -> Finding:
    durability = doctor.store.durability()
    if not durability.unsafe:
        return ok(", ".join(f"{name} {value}" for name, value in durability.found.items()))
    wrong = ", ".join(f"{name} is {durability.found[name]}" for name in durability.unsafe)
    danger = "messages that were accepted can be lost when the machine dies"
    return warning(f"{wrong}: {danger}", durability.remedy)


def store_encoding(doctor: Doctor) -> Finding:
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
    try:
        doctor.store.try_write()
    except StoreUnavailable as refusal:
        return error(
            f"a row cannot be stored: {refusal.reason}. Every submit fails",
            "free space on the database's disk, and let the user of database_url write; see the "
            "log of the server",
        )
    return ok("a row was stored and rolled back")


# What keeps the tables small.

_LONG_OPEN = timedelta(minutes=10)
_MANY_TRANSACTIONS = 1_000_000
_MUCH_LOG = 2**30


def store_transactions(facts: Housekeeping) -> Finding:
    looked = f"; seen: {facts.limited_to}, as {facts.right} is missing" if facts.limited_to else ""
    if facts.oldest is None:
        return ok(f"none keeps old versions of rows{looked}")
    age = _rounded(facts.oldest)
    if facts.oldest < _LONG_OPEN:
        return ok(f"the oldest one is open for {age}{looked}")
    return warning(
        f"a transaction is open for {age}: the database keeps every version of a row since then, "
        "and all work on the tables gets slower and slower",
        "find it (PostgreSQL: pg_stat_activity by xact_start, and pg_prepared_xacts; MariaDB: "
        "information_schema.innodb_trx) and end it. Give the programs that do so an "
        "idle_in_transaction_session_timeout, and let backups read from a replica",
    )


def store_dead_rows(facts: Housekeeping) -> Finding:
    if not facts.backlogs:
        return ok("this database counts no old versions of rows")
    found = ", ".join(f"{each.name} {each.versions:,}" for each in facts.backlogs)
    text = f"old versions of rows: {found}"
    if all(each.versions <= each.usual for each in facts.backlogs):
        return ok(text)
    return warning(
        f"{text}: more than is removed in time, so reads and the sweep get slower",
        "see store.transactions and store.replication first. On PostgreSQL look whether autovacuum "
        "is on and gets done (pg_stat_progress_vacuum): raise autovacuum_vacuum_cost_limit and "
        "maintenance_work_mem, or run VACUUM",
    )


def store_replication(facts: Housekeeping) -> Finding:
    if not facts.slots:
        return ok("no replication slot")
    held = [
        f"{each.name} ({'' if each.is_active else 'not '}in use, "
        f"{each.kept_bytes / 2**20:,.0f} MiB of the log, rows of {each.transactions:,} "
        "transactions)"
        for each in facts.slots
        if not each.is_active
        or each.kept_bytes > _MUCH_LOG
        or each.transactions > _MANY_TRANSACTIONS
    ]
    if not held:
        return ok(f"{len(facts.slots)} in use, none far behind")
    return warning(
        f"replication slots hold back what the database could remove: {', '.join(held)}",
        "let the consumer catch up, or drop the slot: SELECT pg_drop_replication_slot('NAME'). "
        "max_slot_wal_keep_size bounds the log that is kept",
    )


def store_partitions(facts: Housekeeping) -> Finding:
    if facts.days is None:
        return ok("this database keeps all messages in one table")
    ahead, misplaced = facts.days
    if ahead and not misplaced:
        return ok(f"{ahead} of the coming days have one")
    found = [
        *(["tomorrow has none"] * (not ahead)),
        *(["rows lie in the partition of other days"] * misplaced),
    ]
    return warning(
        f"{' and '.join(found)}: these messages are deleted one by one",
        "`prune` makes the partitions of the coming days: see work.prune, and look whether the "
        "role in database_url owns the tables, which it needs for that. Rows of other days go when "
        "they are older than the retention",
    )


# The broker, and the Celery app that uses it.

_CONSUMER_TIMEOUT = timedelta(minutes=30)
"""RabbitMQ's default: how long a task may stay unacknowledged."""


def broker_separate(doctor: Doctor) -> Finding:
    broker = doctor.facts("broker")
    ids = {str(node.info.get("run_id")): node for node in doctor.facts("redis")}
    redis = None if broker.run_id is None else ids.get(broker.run_id)
    if redis is None:
        return ok("not the server of the windows")
    if broker.database != redis.database:
        return ok(f"database {broker.database} of the server of the windows")
    return warning(
        f"broker and windows share database {redis.database} of one Redis: emptying the broker "
        "empties the windows, and a flooded queue fills the memory that bookings need",
        "give the broker a Redis of its own, or another database number in broker_url",
    )


def broker_queues(doctor: Doctor) -> Finding:
    """Refuse other queues: a worker cannot consume from them, and would reconnect for ever."""
    broker, queue_type = doctor.facts("broker"), doctor.settings.queue_type
    if not broker.other_queues:
        return ok("each queue can be used, or does not exist yet")
    named = ", ".join(broker.other_queues)
    other = "classic" if queue_type == "quorum" else "quorum"
    return error(
        f"queues of another type than queue_type = {queue_type!r}: {named}",
        "stop the workers and delete these queues (rabbitmqctl delete_queue …): the tasks in "
        f"them are enqueued again; or set queue_type = {other!r}",
        stops_worker=True,
    )


def app_serializer(app: AppFacts) -> Finding:
    if app.accepts == ("json",) and app.serializer == "json":
        return ok("JSON only")
    return error(
        f"the app accepts {', '.join(app.accepts)} and writes {app.serializer}: a forged task of "
        "another form can run code in a worker, and tasks that are no JSON are refused by others",
        "set accept_content = ['json'] and task_serializer = 'json'",
        stops_worker=True,
    )


def app_redelivery(doctor: Doctor) -> Finding:
    app, settings = doctor.facts("app"), doctor.settings
    if app.redelivery is None:
        return _held_by_a_consumer(settings.horizon)
    given = {"redelivery_timeout": app.redelivery.total_seconds()}
    try:
        Settings.load(**settings.model_dump() | given)
    except InvalidSettings as refused:
        return error(
            f"visibility_timeout is {app.redelivery}: {refused.problem}",
            "set broker_transport_options['visibility_timeout'] to more than twice the horizon "
            f"of {settings.horizon}, or tasks that wait for their ETA are redelivered",
        )
    return ok(f"visibility_timeout {app.redelivery}, horizon {settings.horizon}")


def _held_by_a_consumer(horizon: timedelta) -> Finding:
    if horizon < _CONSUMER_TIMEOUT:
        return ok(f"horizon {horizon}, below the consumer_timeout of RabbitMQ")
    return warning(
        f"the horizon is {horizon}: RabbitMQ closes the connection to a worker that has a task "
        f"unacknowledged for longer than consumer_timeout, by default {_CONSUMER_TIMEOUT}",
        "shorten horizon, or raise consumer_timeout",
    )


def app_attached(app: AppFacts) -> Finding:
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


class Offset(NamedTuple):
    """Bounds of how far a clock is ahead of this machine's."""

    least: timedelta
    most: timedelta

    @property
    def at_least(self) -> timedelta:
        if self.least <= timedelta(0) <= self.most:
            return timedelta(0)
        return min(abs(self.least), abs(self.most))

    @property
    def at_most(self) -> timedelta:
        return max(abs(self.least), abs(self.most))


def measure(ask: Callable[[], datetime], clock: Clock) -> Offset:
    """Ask several times; return the bounds of the quickest round trip.

    The other clock was read between the question and the answer.
    """
    looks = []
    for _ in range(_LOOKS):
        before = clock.now()
        server_time = ask()
        after = clock.now()
        looks.append(Offset(server_time - after - _ROUNDED, server_time - before + _ROUNDED))
    return min(looks, key=lambda look: look.most - look.least)


def clock_store(doctor: Doctor) -> Finding:
    there = measure(doctor.store.now, doctor.clock)
    return clock_of("the database", there, stops_worker=True)


def clock_redis(doctor: Doctor) -> Finding:
    offsets = [measure(ask, doctor.clock) for ask in doctor.redis.clocks()]
    return clock_of("Redis", max(offsets, key=lambda offset: offset.at_least))


def clock_of(whose: str, offset: Offset, *, stops_worker: bool = False) -> Finding:
    seconds = offset.at_least.total_seconds()
    way = "behind" if offset.most < timedelta(0) else "ahead of"
    found = f"the clock of {whose} is {seconds:.3f} s or more {way} this machine's"
    remedy = "let NTP set the clocks of all machines"
    if offset.at_least > _MOST_APART:
        return error(
            f"{found}. Send times are judged by a clock that is wrong, and a worker that is "
            "far ahead of beat drops every task of the sweep",
            remedy,
            stops_worker=stops_worker,
        )
    if offset.at_least > _WARNING_APART:
        return warning(f"{found}; another machine may be as far off the other way", remedy)
    if offset.at_most > _MOST_APART:
        return warning(
            f"answers took too long to tell: the clock of {whose} is at most "
            f"{offset.at_most.total_seconds():.3f} s off",
            f"look again when the connection to {whose} is less busy",
        )
    return ok(f"at most {offset.at_most.total_seconds():.3f} s off")


# Work that is late.

_LONG_WAIT = timedelta(hours=1)
"""How long after its send time a message may wait. At defaults the waits between all attempts are a
quarter of an hour."""
_PRUNE_PATIENCE = timedelta(hours=1)


def processes(doctor: Doctor) -> Finding:
    signs, late = doctor.signs.read(), LateCount()
    workers, beats = (
        sum(sign.is_alive for sign in signs[kind]) for kind in (Kind.WORKER, Kind.BEAT)
    )
    if workers and beats:
        return ok(f"alive: {_counted(workers, 'worker')}, {_counted(beats, 'beat')}")
    missing = " and ".join(
        f"no {name}" for name, many in (("worker", workers), ("beat", beats)) if not many
    )
    remedy = (
        "start `dispatcher worker` and `dispatcher beat` under a supervisor; with processes of an "
        "app of yours, look whether they reach the Redis of redis_url"
    )
    with suppress(Unavailable):
        doctor.facts("schema")
        late = doctor.not_enqueued()
        late = late if late.many else _overdue(doctor)
    if late.many:
        return error(f"{missing} is alive, and {_waiting(late)}", remedy)
    return warning(f"{missing} is alive: due messages are not sent", remedy)


def zones(doctor: Doctor) -> Finding:
    own = database()
    versions = {sign.name for sign in doctor.signs.read()[Kind.ZONES] if sign.is_alive}
    found = f"times go by the tz database {own.version or 'of unknown version'} of {own.source}"
    if others := versions - {own.version}:
        named = ", ".join(sorted(each or "an unknown one" for each in others))
        return warning(
            f"{found}; a worker or a beat goes by {named}",
            f"install one version of the package {PACKAGE} on every host, and restart",
        )
    return ok(found)


def sweep(doctor: Doctor) -> Finding:
    return _late(
        doctor.not_enqueued(),
        len(doctor.pauses.in_force()),
        otherwise="nothing waits for the sweep",
        where="for the sweep",
        why=": no sweep runs, or it is too slow",
        remedy="start `dispatcher beat` and `dispatcher worker`. Where both run: are messages "
        "paused (`dispatcher status` names pauses)? Are all threads of the workers busy, does "
        "their clock agree with beat's, are there errors in their logs?",
    )


def overdue(doctor: Doctor) -> Finding:
    return _late(
        _overdue(doctor),
        len(doctor.pauses.in_force()),
        otherwise="nothing is overdue",
        where="to be claimed though due",
        remedy="see work.sweep first. Where the sweep runs and nothing is paused, no worker takes "
        "the queue or all are busy: start more, and look for slow transports",
    )


def _overdue(doctor: Doctor) -> LateCount:
    grace = doctor.settings.enqueue_grace
    older_than = grace + doctor.patience
    return doctor.store.overdue(older_than=older_than, grace=MOST_GRACES * grace)


def waiting(doctor: Doctor) -> Finding:
    return _late(
        doctor.store.waiting(older_than=_LONG_WAIT),
        otherwise="no message waits more than an hour after its send time",
        where="more than an hour after the send time",
        why=": put back by a limit or for a destination that does not answer, or tried again and "
        "again",
        remedy="`dispatcher list --status scheduled` finds them and `dispatcher show` shows one. "
        "Raise the limit or correct the address; expire_after ends messages that are too late",
    )


def claims(doctor: Doctor) -> Finding:
    return _late(
        doctor.store.not_rescued(older_than=doctor.patience),
        otherwise="no claim has expired",
        where="with an expired claim",
        why=", and `rescue` does not run",
        remedy="see work.processes and work.sweep: the same beat starts `rescue`",
    )


def orphans(doctor: Doctor) -> Finding:
    older_than = doctor.settings.reconcile_grace + doctor.patience
    many = doctor.redis.unconfirmed(older_than=older_than)
    if not many:
        return ok("every reservation is confirmed, or young")
    return warning(
        f"not settled within reconcile_grace: {_counted(many, 'reservation')}, which "
        "count against quotas, perhaps without a message",
        "see work.processes and work.sweep: the same beat starts `reconcile`; a database that does "
        "not answer stops it, too",
    )


def channels(doctor: Doctor) -> Finding:
    strange = doctor.store.unknown_channels(doctor.settings.channels)
    if not strange:
        return ok("every channel of scheduled messages is known")
    named = ", ".join(f"{name} ({many})" for name, many in strange.items())
    return warning(
        f"scheduled messages of channels that the settings do not know: {named}. Workers put them "
        "back again and again",
        "add the channels to the settings of every worker, or cancel the messages",
    )


def notifications(doctor: Doctor) -> Finding:
    status_channel = doctor.settings.status_channel
    # Without a status_channel nothing posts any of them, however young it is.
    older_than = doctor.patience if status_channel else timedelta(0)
    return _late(
        doctor.store.late_notifications(older_than=older_than),
        otherwise="no status webhook is late",
        where="for a status webhook",
        why=": the duty `notify` does not run"
        if status_channel
        else ", and there is no status_channel: none is sent, and the messages are never deleted",
        remedy="see work.processes and work.sweep: the same beat starts `notify`, where its "
        "settings have the status_channel"
        if status_channel
        else "set status_channel for beat and workers to a webhook channel with payload = 'body'",
    )


def prune(doctor: Doctor) -> Finding:
    behind = doctor.store.not_pruned(retention=doctor.settings.retention)
    interval, age = doctor.settings.prune_interval, None
    with suppress(Unavailable):
        doctor.facts("redis")
        ages = {duty.name: duty.age for duty in doctor.signs.read()[Kind.DUTY]}
        age = ages.get("prune")
    done = f"last done {_rounded(age)} ago" if age is not None else "not done within a day"
    missed = age is not None and age > MISSED_INTERVALS * interval
    if behind > _PRUNE_PATIENCE:
        return warning(
            f"`prune` is {_rounded(behind)} behind the retention, {done}: the tables grow",
            "see work.processes and work.sweep: the same beat starts `prune`. Where it is done and "
            "stays behind, set a shorter prune_interval",
        )
    if missed:
        return warning(
            f"`prune` should be done every {interval}, {done}",
            "see work.processes and work.sweep: the same beat starts `prune`; look for its errors "
            "in the logs of the workers",
        )
    return ok(f"nothing waits for `prune`, {done}")


def _late(
    late: LateCount, pauses: int = 0, *, otherwise: str, where: str, why: str = "", remedy: str
) -> Finding:
    """Warn of messages that wait ``where``, of which some may be paused; ``otherwise`` if none."""
    if not late.many:
        return ok(otherwise)
    told = _waiting(late, where) + why
    if pauses:
        are = "is" if pauses == 1 else "are"
        told += f"; {_counted(pauses, 'pause')} {are} in force: paused messages count, too"
    return warning(told, remedy)


def _waiting(late: LateCount, where: str = "") -> str:
    waits = f"{_counted(late.many, 'message')} {'waits' if late.many == 1 else 'wait'}"
    return f"{f'{waits} {where}'.rstrip()}, the first one for {_rounded(late.longest)}"


def _counted(many: int, what: str) -> str:
    return f"{many} {what}{'' if many == 1 else 's'}"


def _rounded(length: timedelta) -> timedelta:
    return timedelta(seconds=round(length.total_seconds()))


# What the settings name.


def transports(doctor: Doctor) -> Finding:
    found = doctor.facts("transports")
    if not found.unmade:
        return ok("a worker can make the transport of every channel")
    return error(
        f"a worker with these settings does not start: {_listed(found.unmade)}",
        "correct what is named, or install what is missing",
        stops_worker=True,
    )


def files(doctor: Doctor) -> Finding:
    private = (config_file(), doctor.settings.data_dir, doctor.store.database.backend.file)
    found = [str(path) for path in private if path and open_to_others(path)]
    if not found:
        return ok("other users cannot read the settings file, data_dir or the SQLite file")
    return warning(
        f"other users of this machine may read {', '.join(found)}: addresses, messages, secrets",
        f"chmod o= {' '.join(found)}",
    )


def servers(doctor: Doctor) -> Finding:
    found = doctor.facts("transports")
    if found.refuse:
        return error(
            f"no message gets through: {_listed(found.refuse)}",
            "start the server, let this machine reach it, or correct the options of the channel: "
            "where it is, user and password",
        )
    if not found.answer:
        return ok("no channel has a server that could be asked")
    return ok(f"every server answers, and takes the log-in: {', '.join(found.answer)}")


def hooks(doctor: Doctor) -> Finding:
    setting = doctor.settings.hooks
    if not setting:
        return ok("there are none")
    try:
        find_hooks(setting)
    except InvalidSettings as wrong:
        return error(
            f"{wrong.problem}; every submit and every worker fails",
            "make it importable for submitting programs and workers, or correct hooks: "
            f"{wrong.accepted}",
        )
    return ok(f"{setting} can be loaded")


def templates(doctor: Doctor) -> Finding:
    found = doctor.templates.problems()
    wrong = [f"{each.field}: {each.problem}" for each in found.values() if each is not None]
    if wrong:
        return error(
            f"submits that name them are refused: {'; '.join(wrong)}",
            "correct the template, or take it out of the settings",
        )
    return ok(f"each of {len(found)} compiles" if found else "there are none")


def recipients(doctor: Doctor) -> Finding:
    return _of_channels(
        doctor.settings.spellings.problems(),
        what="rules",
        otherwise="submits to these channels are refused",
        remedy="make it importable for submitting programs, or correct the setting: email, phone, "
        "or package.module:function that takes and returns a str",
    )


def bodies(doctor: Doctor) -> Finding:
    return _of_channels(
        doctor.settings.body_types.problems(),
        what="types",
        otherwise="submits to these channels fail, and so does the OpenAPI document",
        remedy="make it importable for submitting programs, or correct the setting: "
        "package.module:attribute of a model of pydantic, a dataclass or a TypedDict",
    )


def _of_channels(
    found: Mapping[str, InvalidSettings | None], *, what: str, otherwise: str, remedy: str
) -> Finding:
    wrong = [f"{path}: {each.problem}" for path, each in found.items() if each is not None]
    if wrong:
        return error(f"{otherwise}: {'; '.join(wrong)}", remedy)
    many = _counted(len(found), "channel")
    return ok(f"the {what} of {many} can be loaded" if found else f"there are no {what}")


def _listed(found: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {why}" for name, why in found.items())

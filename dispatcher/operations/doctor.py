"""The doctor: asks each server, and runs the checks on the answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache, partial
from typing import TypeAlias, TypeVar

from dispatcher.broker.survey import AppFacts, BrokerFacts, BrokerSurvey
from dispatcher.errors import StoreUnavailable, Unavailable
from dispatcher.file_modes import open_to_others
from dispatcher.operations import housekeeping_checks, server_checks, work_checks
from dispatcher.operations.findings import Examination, Finding, error, ok, skipped
from dispatcher.operations.server_checks import StoreFacts
from dispatcher.redis.errors import START_REDIS
from dispatcher.reservation import RedisFacts, RedisSurvey
from dispatcher.settings import Settings, config_file
from dispatcher.store import MOST_GRACES, Housekeeping, LateCount, Pauses, StoreSurvey
from dispatcher.telemetry.liveness import Kind, Signs
from dispatcher.templating import Templates
from dispatcher.times.clock import Clock
from dispatcher.times.zones import database
from dispatcher.transports import probe_all

F = TypeVar("F")
Answer: TypeAlias = F | Unavailable

_REMEDIES = {
    "redis": START_REDIS,
    "store": "start the database, or correct database_url",
    "broker": "start the broker, correct broker_url, or install the module that is missing",
    "app": "correct the options of the Celery app",
}
_SWEEPS = 3
"""After how many missed ticks of the sweep a message is late."""
_LONG_WAIT = timedelta(hours=1)
"""How long after its send time a message may wait. At defaults the waits between all attempts are a
quarter of an hour."""

_OF_REDIS = {
    "redis.version": server_checks.redis_version,
    "redis.vulnerabilities": server_checks.redis_vulnerabilities,
    "redis.eviction": server_checks.redis_eviction,
    "redis.writes": server_checks.redis_writes,
    "redis.persistence": server_checks.redis_persistence,
    "redis.replicas": server_checks.redis_replicas,
    "redis.cluster": server_checks.redis_cluster,
    "redis.memory": server_checks.redis_memory,
}
_OF_STORE = {
    "store.migrations": server_checks.store_migrations,
    "store.indexes": server_checks.store_indexes,
    "store.durability": server_checks.store_durability,
    "store.encoding": server_checks.store_encoding,
    "store.pooler": server_checks.store_pooler,
}
_OF_HOUSEKEEPING = {
    "store.transactions": housekeeping_checks.store_transactions,
    "store.dead_rows": housekeeping_checks.store_dead_rows,
    "store.replication": housekeeping_checks.store_replication,
    "store.partitions": housekeeping_checks.store_partitions,
}


@dataclass(frozen=True, kw_only=True)
class Doctor:
    """Examines a deployment. Changes nothing; a server without an answer is a finding, no error."""

    settings: Settings
    clock: Clock
    redis: RedisSurvey
    signs: Signs
    store: StoreSurvey
    broker: BrokerSurvey
    templates: Templates
    pauses: Pauses

    def examine(self) -> Examination:
        redis, store = _asked(self.redis.servers), _asked(self._store_facts)
        migrated = _with_schema(store)
        findings = [
            *_of_redis(redis),
            _checked(
                "redis.complete",
                lambda _: server_checks.redis_complete(self.redis.readiness()),
                redis,
            ),
            _checked(
                "redis.foreign", lambda _: server_checks.redis_foreign(self.redis.taken()), redis
            ),
            *self._of_store(store),
            _checked(
                "store.writes",
                lambda _: server_checks.store_writes(self._refused_write()),
                migrated,
            ),
            *self._of_housekeeping(migrated),
            *self._of_broker(redis),
            *self._of_clocks(redis, store),
            *self._of_work(redis, migrated),
            *self._of_settings(),
        ]
        return Examination(tuple(findings))

    def before_start(self) -> tuple[Finding, ...]:
        """Return the findings with which a worker must not start: those that no waiting corrects.

        A server that does not answer is not among them: workers wait for their servers. A missing
        file of SQLite is.
        """
        redis, store = _asked(self.redis.servers), _asked(self._store_facts)
        findings = [
            *_of_redis(redis),
            *self._of_store(store),
            *self._of_queues(_asked(self.broker.server)),
            *self._of_clocks(redis, store),
        ]
        return tuple(each for each in findings if each.stops_worker)

    def _of_store(self, store: Answer[StoreFacts]) -> list[Finding]:
        """Return the findings about the database.

        The first, ``store.answers``, stops a worker where the file is missing.
        """
        first, *others = _of_server("store", store, _OF_STORE)
        stops = isinstance(store, Unavailable) and self.store.lacks_file
        return [replace(first, stops_worker=stops), *others]

    def _of_housekeeping(self, store: Answer[StoreFacts]) -> list[Finding]:
        ask = cache(self.store.housekeeping)

        def after_asking(judge: Callable[[Housekeeping | None], Finding]) -> Callable[..., Finding]:
            return lambda _: judge(ask())

        return [
            _checked(name, after_asking(judge), store) for name, judge in _OF_HOUSEKEEPING.items()
        ]

    def _of_queues(self, broker: Answer[BrokerFacts]) -> list[Finding]:
        queues = partial(server_checks.broker_queues, queue_type=self.settings.queue_type)
        return _of_server("broker", broker, {"broker.queues": queues})

    def _of_broker(self, redis: Answer[Sequence[RedisFacts]]) -> list[Finding]:
        broker, app = _asked(self.broker.server), _asked(self.broker.app)
        if isinstance(broker, Unavailable) or isinstance(redis, Unavailable):
            separate = skipped("not examined: the broker or Redis does not answer")
        else:
            separate = server_checks.broker_separate(broker, redis)
        app_checks: dict[str, Callable[[AppFacts], Finding]] = {
            "app.serializer": server_checks.app_serializer,
            "app.redelivery": partial(server_checks.app_redelivery, settings=self.settings),
            "app.attached": server_checks.app_attached,
        }
        return [
            *self._of_queues(broker),
            replace(separate, check="broker.separate"),
            *_of_server("app", app, app_checks),
        ]

    def _of_clocks(
        self, redis: Answer[Sequence[RedisFacts]], store: Answer[StoreFacts]
    ) -> list[Finding]:
        def offset(ask: Callable[[], datetime]) -> server_checks.Offset:
            return server_checks.measure(ask, self.clock)

        def of_store(_: object) -> Finding:
            there = offset(self.store.now)
            return server_checks.clock_of("the database", there, stops_worker=True)

        def of_redis(_: object) -> Finding:
            offsets = map(offset, self.redis.clocks())
            return server_checks.clock_of("Redis", max(offsets, key=lambda each: each.at_least))

        return [
            _checked("clock.store", of_store, store),
            _checked("clock.redis", of_redis, redis),
        ]

    def _of_work(
        self, redis: Answer[Sequence[RedisFacts]], store: Answer[StoreFacts]
    ) -> list[Finding]:
        given, ask, checks = self.settings, self.store, work_checks
        patience = _SWEEPS * given.sweep_interval
        # Without a status_channel nothing posts any of them, however young it is.
        patience_to_tell = patience if given.status_channel else timedelta(0)

        def not_enqueued() -> LateCount:
            return ask.not_enqueued(older_than=patience)

        def overdue() -> LateCount:
            grace = given.enqueue_grace
            return ask.overdue(older_than=grace + patience, grace=MOST_GRACES * grace)

        def processes(_: object) -> Finding:
            signs = self.signs.read()
            late = LateCount()
            if not isinstance(store, Unavailable):
                late = not_enqueued()
                late = late if late.many else overdue()
            workers, beats = (
                sum(each.is_alive for each in signs[kind]) for kind in (Kind.WORKER, Kind.BEAT)
            )
            return checks.processes(workers, beats, late)

        def zones(_: object) -> Finding:
            alive = (each.name for each in self.signs.read()[Kind.ZONES] if each.is_alive)
            return checks.zones(database(), frozenset(alive))

        def pauses() -> int:
            return len(self.pauses.in_force())

        def orphans(_: object) -> Finding:
            older_than = given.reconcile_grace + patience
            return checks.orphans(self.redis.unconfirmed(older_than=older_than))

        def notifications(_: object) -> Finding:
            late = ask.late_notifications(older_than=patience_to_tell)
            return checks.notifications(late, given.status_channel)

        def prune(_: object) -> Finding:
            behind = ask.not_pruned(retention=given.retention)
            duties = () if isinstance(redis, Unavailable) else self.signs.read()[Kind.DUTY]
            age = next((each.age for each in duties if each.name == "prune"), None)
            return housekeeping_checks.prune(age, behind, given.prune_interval)

        return [
            _checked("work.processes", processes, redis),
            _checked("work.zones", zones, redis),
            _checked("work.sweep", lambda _: checks.sweep(not_enqueued(), pauses()), store),
            _checked("work.overdue", lambda _: checks.overdue(overdue(), pauses()), store),
            _checked(
                "work.waiting",
                lambda _: checks.waiting(ask.waiting(older_than=_LONG_WAIT)),
                store,
            ),
            _checked(
                "work.claims", lambda _: checks.claims(ask.not_rescued(older_than=patience)), store
            ),
            _checked("work.orphans", orphans, redis),
            _checked(
                "work.channels",
                lambda _: checks.channels(ask.unknown_channels(given.channels)),
                store,
            ),
            _checked("work.notifications", notifications, store),
            _checked("work.prune", prune, store),
        ]

    def _of_settings(self) -> list[Finding]:
        probed = probe_all(self.settings)
        named = (config_file(), self.settings.data_dir, self.store.file)
        files = [each for each in named if each and open_to_others(each)]
        findings = {
            "settings.transports": work_checks.transports(probed),
            "settings.servers": work_checks.servers(probed),
            "settings.files": work_checks.files(files),
            "settings.hooks": work_checks.hooks(self.settings.hooks),
            "settings.templates": work_checks.templates(self.templates.problems()),
            "settings.recipients": work_checks.recipients(self.settings.spellings.problems()),
            "settings.bodies": work_checks.bodies(self.settings.body_types.problems()),
        }
        return [replace(each, check=name) for name, each in findings.items()]

    def _refused_write(self) -> str | None:
        try:
            self.store.try_write()
        except StoreUnavailable as silent:
            return silent.reason
        return None

    def _store_facts(self) -> StoreFacts:
        standing = self.store.standing()
        return StoreFacts(
            standing=standing,
            missing_indexes=self.store.missing_indexes() if standing.revision else None,
            durability=self.store.durability(),
            encoding=self.store.encoding(),
            unset_behind_pooler=self.store.unset_behind_pooler(),
        )


def _with_schema(store: Answer[StoreFacts]) -> Answer[StoreFacts]:
    """Return the facts of a database with the tables of this version, or why there are none."""
    if isinstance(store, StoreFacts) and store.standing.missing:
        return StoreUnavailable("the schema of the database is out of date")
    return store


def _asked(ask: Callable[[], F]) -> Answer[F]:
    try:
        return ask()
    except Unavailable as silent:
        return silent


def _of_redis(answer: Answer[Sequence[RedisFacts]]) -> list[Finding]:
    checks = {name: partial(server_checks.worst, judge) for name, judge in _OF_REDIS.items()}
    return _of_server("redis", answer, checks)


def _of_server(
    server: str, answer: Answer[F], checks: Mapping[str, Callable[[F], Finding]]
) -> list[Finding]:
    """Return whether a server answered, and the findings of the checks on its answer."""
    first = ok("it answers")
    if isinstance(answer, Unavailable):
        first = error(answer.reason, answer.remedy or _REMEDIES[server])
    return [
        replace(first, check=f"{server}.answers"),
        *(_checked(name, judge, answer) for name, judge in checks.items()),
    ]


def _checked(name: str, judge: Callable[[F], Finding], answer: Answer[F]) -> Finding:
    """Return what ``judge`` finds in an answer, or after it; it may ask for more."""
    if isinstance(answer, Unavailable):
        return replace(skipped(f"not examined: {answer.reason}"), check=name)
    try:
        finding = judge(answer)
    except Unavailable as silent:
        remedy = silent.remedy or "run the doctor again; then see the log of the server"
        finding = error(f"no answer: {silent.reason}", remedy)
    return replace(finding, check=name)

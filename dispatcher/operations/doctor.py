"""The doctor: one table of checks, each of which asks and judges."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

from dispatcher.celery.survey import BrokerSurvey
from dispatcher.errors import StoreUnavailable, Unavailable
from dispatcher.operations import checks
from dispatcher.operations.findings import Examination, Finding, error, ok, skipped
from dispatcher.redis.errors import START_REDIS
from dispatcher.reservation import RedisSurvey
from dispatcher.settings import Settings
from dispatcher.store.lists import Pauses
from dispatcher.store.migrate import schema_standing
from dispatcher.store.survey import LateCount, StoreSurvey
from dispatcher.telemetry.liveness import Signs
from dispatcher.templating import Templates
from dispatcher.times.clock import Clock
from dispatcher.transports import probe_all

_REMEDIES = {
    "redis": START_REDIS,
    "store": "start the database, or correct database_url",
    "broker": "start the broker, correct broker_url, or install the module that is missing",
    "app": "correct the options of the Celery app",
}
_SWEEPS = 3
"""After how many missed ticks of the sweep a message is late."""


@dataclass(frozen=True, kw_only=True)
class Doctor:
    """Examines a deployment. Changes nothing; a server without an answer is a finding, no error.

    It asks a server once for its facts.
    """

    settings: Settings
    clock: Clock
    redis: RedisSurvey
    signs: Signs
    store: StoreSurvey
    broker: BrokerSurvey
    templates: Templates
    pauses: Pauses
    _answers: dict[str, Any] = field(default_factory=dict, init=False)

    def examine(self) -> Examination:
        return Examination(tuple(self.find(CHECKS)))

    def before_start(self) -> tuple[Finding, ...]:
        """Return the findings with which a worker must not start: those that no waiting corrects.

        A server that does not answer is not among them: workers wait for their servers. A missing
        file of SQLite is.
        """
        at_start = (name for name, check in CHECKS.items() if check.at_start)
        return tuple(finding for finding in self.find(at_start) if finding.stops_worker)

    def find(self, names: Iterable[str]) -> list[Finding]:
        return [replace(self._find(CHECKS[name]), check=name) for name in names]

    def facts(self, of: str) -> Any:
        """Return what there is to know of something, asked once. Raises Unavailable."""
        if of not in self._answers:
            try:
                self._answers[of] = _QUESTIONS[of](self)
            except Unavailable as silent:
                self._answers[of] = silent
        if isinstance(self._answers[of], Unavailable):
            raise self._answers[of]
        return self._answers[of]

    @property
    def patience(self) -> timedelta:
        return _SWEEPS * self.settings.sweep_interval

    def not_enqueued(self) -> LateCount:
        return self.store.not_enqueued(older_than=self.patience)

    def _find(self, check: Check) -> Finding:
        try:
            for need in check.needs:
                self.facts(need)
        except Unavailable as silent:
            return skipped(f"not examined: {silent.reason}")
        try:
            return check.judge(self)
        except Unavailable as silent:
            remedy = silent.remedy or "run the doctor again; then see the log of the server"
            return error(f"no answer: {silent.reason}", remedy)


class Check(NamedTuple):
    """What to find where those answer that it ``needs``; ``at_start``: before a worker starts."""

    judge: Callable[[Doctor], Finding]
    needs: Sequence[str] = ()
    at_start: bool = False


def _check_schema(doctor: Doctor) -> None:
    if doctor.facts("store").missing:
        raise StoreUnavailable("the schema of the database is out of date")


_QUESTIONS: dict[str, Callable[[Doctor], Any]] = {
    "redis": lambda doctor: doctor.redis.servers(),
    "store": lambda doctor: schema_standing(doctor.store.database),
    "schema": _check_schema,
    "housekeeping": lambda doctor: doctor.store.housekeeping(),
    "broker": lambda doctor: doctor.broker.server(),
    "app": lambda doctor: doctor.broker.app(),
    "transports": lambda doctor: probe_all(doctor.settings),
}


def _answers(server: str, doctor: Doctor) -> Finding:
    """Find whether a server answers. A worker does not start without the file of SQLite."""
    try:
        doctor.facts(server)
    except Unavailable as silent:
        stops = server == "store" and doctor.store.lacks_file
        return error(silent.reason, silent.remedy or _REMEDIES[server], stops_worker=stops)
    return ok("it answers")


def _of_facts(server: str, judge: Callable[[Any], Finding], *, at_start: bool = True) -> Check:
    return Check(lambda doctor: judge(doctor.facts(server)), [server], at_start)


def _of_housekeeping(judge: Callable[[Any], Finding]) -> Check:
    return Check(lambda doctor: judge(doctor.facts("housekeeping")), ["schema"])


def _of_redis(judge: Callable[[Any], Finding]) -> Check:
    return _of_facts("redis", partial(checks.worst, judge))


CHECKS = {
    "redis.answers": Check(partial(_answers, "redis"), at_start=True),
    "redis.version": _of_redis(checks.redis_version),
    "redis.vulnerabilities": _of_redis(checks.redis_vulnerabilities),
    "redis.eviction": _of_redis(checks.redis_eviction),
    "redis.writes": _of_redis(checks.redis_writes),
    "redis.persistence": _of_redis(checks.redis_persistence),
    "redis.replicas": _of_redis(checks.redis_replicas),
    "redis.cluster": _of_redis(checks.redis_cluster),
    "redis.memory": _of_redis(checks.redis_memory),
    "redis.complete": Check(checks.redis_complete, ["redis"]),
    "redis.foreign": Check(checks.redis_foreign, ["redis"]),
    "store.answers": Check(partial(_answers, "store"), at_start=True),
    "store.migrations": _of_facts("store", checks.store_migrations),
    "store.indexes": Check(checks.store_indexes, ["store"], at_start=True),
    "store.durability": Check(checks.store_durability, ["store"]),
    "store.encoding": Check(checks.store_encoding, ["store"]),
    "store.pooler": Check(checks.store_pooler, ["store"]),
    "store.writes": Check(checks.store_writes, ["schema"]),
    "store.transactions": _of_housekeeping(checks.store_transactions),
    "store.dead_rows": _of_housekeeping(checks.store_dead_rows),
    "store.replication": _of_housekeeping(checks.store_replication),
    "store.partitions": _of_housekeeping(checks.store_partitions),
    "broker.answers": Check(partial(_answers, "broker"), at_start=True),
    "broker.queues": Check(checks.broker_queues, ["broker"], at_start=True),
    "broker.separate": Check(checks.broker_separate, ["broker", "redis"]),
    "app.answers": Check(partial(_answers, "app")),
    "app.serializer": _of_facts("app", checks.app_serializer, at_start=False),
    "app.redelivery": Check(checks.app_redelivery, ["app"]),
    "app.attached": _of_facts("app", checks.app_attached, at_start=False),
    "clock.store": Check(checks.clock_store, ["store"], at_start=True),
    "clock.redis": Check(checks.clock_redis, ["redis"], at_start=True),
    "work.processes": Check(checks.processes, ["redis"]),
    "work.zones": Check(checks.zones, ["redis"]),
    "work.sweep": Check(checks.sweep, ["schema"]),
    "work.overdue": Check(checks.overdue, ["schema"]),
    "work.waiting": Check(checks.waiting, ["schema"]),
    "work.claims": Check(checks.claims, ["schema"]),
    "work.orphans": Check(checks.orphans, ["redis"]),
    "work.channels": Check(checks.channels, ["schema"]),
    "work.notifications": Check(checks.notifications, ["schema"]),
    "work.prune": Check(checks.prune, ["schema"]),
    "settings.transports": Check(checks.transports),
    "settings.servers": Check(checks.servers),
    "settings.files": Check(checks.files),
    "settings.hooks": Check(checks.hooks),
    "settings.templates": Check(checks.templates),
    "settings.recipients": Check(checks.recipients),
    "settings.bodies": Check(checks.bodies),
}

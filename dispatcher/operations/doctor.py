"""The doctor: asks each server once, and makes the checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, TypeVar

from celery import Celery

from dispatcher.celery.queue import AppFacts, BrokerFacts, app_facts, broker_facts
from dispatcher.errors import StoreUnavailable, Unavailable
from dispatcher.operations.checks import AT_START, CHECKS, Examination, Finding, error, skipped
from dispatcher.reservation.contents import RedisNode, RedisSurvey
from dispatcher.settings import Settings
from dispatcher.store.engines.base import Housekeeping
from dispatcher.store.lists import Pauses
from dispatcher.store.migrate import SchemaStanding, schema_standing
from dispatcher.store.survey import StoreSurvey
from dispatcher.store.wishes import Wishes
from dispatcher.telemetry.liveness import Kind, Sign, Signs
from dispatcher.templating import Templates
from dispatcher.times.clock import Clock
from dispatcher.transports import probe_all
from dispatcher.transports.base import Probed

T = TypeVar("T")

_SWEEPS = 3
"""After how many missed ticks of the sweep a message is late."""


@dataclass(frozen=True, kw_only=True)
class Doctor:
    """Examines a deployment. Changes nothing; a server without an answer is a finding, no error.

    The questions raise Unavailable, and are asked once.
    """

    settings: Settings
    clock: Clock
    redis: RedisSurvey
    signs: Signs
    store: StoreSurvey
    publisher: Celery
    examined: Celery
    templates: Templates
    pauses: Pauses
    wishes: Wishes
    _answers: dict[str, Any] = field(default_factory=dict, init=False)

    def examine(self) -> Examination:
        return Examination(tuple(self.find(CHECKS)))

    def before_start(self) -> tuple[Finding, ...]:
        """Return the findings with which a worker must not start: those that no waiting corrects.

        A server that does not answer is not among them: workers wait for their servers. A missing
        file of SQLite is.
        """
        return tuple(finding for finding in self.find(AT_START) if finding.stops_worker)

    def find(self, names: Iterable[str]) -> list[Finding]:
        return [replace(self._find(name), check=name) for name in names]

    def _find(self, name: str) -> Finding:
        try:
            return CHECKS[name](self)
        except Unavailable as silent:
            if any(silent is answer for answer in self._answers.values()):
                return skipped(f"not examined: {silent.reason}")
            remedy = silent.remedy or "run the doctor again; then see the log of the server"
            return error(f"no answer: {silent.reason}", remedy)

    def redis_nodes(self) -> list[RedisNode]:
        return self._once("redis", self.redis.servers)

    def seen(self) -> dict[Kind, tuple[Sign, ...]]:
        self.redis_nodes()
        return self.signs.read()

    def schema(self) -> SchemaStanding:
        return self._once("schema", lambda: schema_standing(self.store.database))

    @property
    def tables(self) -> StoreSurvey:
        """The store, whose schema is that of this version."""
        self._once("tables", self._check_schema)
        return self.store

    def _check_schema(self) -> None:
        if self.schema().missing:
            raise StoreUnavailable("the schema of the database is out of date")

    def housekeeping(self) -> Housekeeping:
        tables = self.tables
        return self._once("housekeeping", tables.housekeeping)

    def broker_facts(self) -> BrokerFacts:
        return self._once("broker", lambda: broker_facts(self.publisher))

    def app_facts(self) -> AppFacts:
        return self._once("app", lambda: app_facts(self.examined, self.settings))

    def probes(self) -> Probed:
        return self._once("probes", lambda: probe_all(self.settings))

    @property
    def patience(self) -> timedelta:
        return _SWEEPS * self.settings.sweep_interval

    def _once(self, name: str, ask: Callable[[], T]) -> T:
        if name not in self._answers:
            try:
                self._answers[name] = ask()
            except Unavailable as silent:
                self._answers[name] = silent
        answer: Any = self._answers[name]
        if isinstance(answer, Unavailable):
            raise answer
        known: T = answer
        return known

"""Asks each server once, runs the checks on the answers, and skips those without an answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeVar

from dispatcher.broker.survey import BrokerFacts, BrokerSurvey
from dispatcher.errors import InvalidSettings, StoreUnavailable, Unavailable
from dispatcher.file_modes import open_to_others
from dispatcher.operations.doctor import (
    broker_checks,
    clock_checks,
    redis_checks,
    settings_checks,
    store_checks,
    work_checks,
)
from dispatcher.operations.doctor.finding import Check, Finding, Level
from dispatcher.operations.doctor.store_checks import StoreFacts
from dispatcher.reservation import RedisFacts, RedisSurvey
from dispatcher.settings import Settings, config_file
from dispatcher.store import Late, StoreSurvey
from dispatcher.telemetry import hooks
from dispatcher.telemetry.liveness import Kind, Signs
from dispatcher.templating import Templates
from dispatcher.times.clock import Clock
from dispatcher.transports import probe_all

F = TypeVar("F")

_REMEDIES = {
    "redis": "start Redis (`dispatcher up` runs one here), or correct redis_url",
    "store": "start the database, or correct database_url",
    "broker": "start the broker, correct broker_url, or install the module that is missing",
    "app": "correct the options of the Celery app",
}
_SWEEPS = 3
"""After how many missed ticks of the sweep a message is late."""
_LONG_WAIT = timedelta(hours=1)
"""How long after its send time a message may wait. At defaults the waits between all attempts are a
quarter of an hour."""


class _NotAsked(NamedTuple):
    """Why a question was not asked."""

    reason: str


Answer: TypeAlias = F | Unavailable | _NotAsked


@dataclass(frozen=True, slots=True)
class Examination:
    """The findings of all checks."""

    findings: tuple[Finding, ...]

    @property
    def counts(self) -> Mapping[Level, int]:
        """The number of findings of each level."""
        counted = Counter(each.level for each in self.findings)
        return {level: counted[level] for level in Level}

    @property
    def level(self) -> Level:
        """The worst level."""
        counts = self.counts
        return next((each for each in (Level.ERROR, Level.WARNING) if counts[each]), Level.OK)


class Doctor:
    """Examines a deployment. Changes nothing; a server without an answer is a finding, no error."""

    def __init__(
        self,
        *,
        settings: Settings,
        clock: Clock,
        redis: RedisSurvey,
        signs: Signs,
        store: StoreSurvey,
        broker: BrokerSurvey,
        templates: Templates,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._redis = redis
        self._signs = signs
        self._store = store
        self._broker = broker
        self._templates = templates

    def examine(self) -> Examination:
        """Run every check."""
        redis, store = _asked(self._redis.server), _asked(self._store_facts)
        found = [
            *_server_findings("redis", redis, redis_checks.CHECKS),
            _finding(redis_checks.complete, _asked(self._redis.readiness, after=redis)),
            _finding(redis_checks.foreign, _asked(self._redis.foreign, after=redis)),
            *_server_findings("store", store, store_checks.CHECKS),
            _finding(store_checks.writes, _asked(self._refused_write, after=_with_schema(store))),
            *self._broker_findings(redis),
            *self._clock_findings(redis, store),
            *self._work_findings(redis, store),
            *self._settings_findings(),
        ]
        return Examination(tuple(found))

    def before_start(self) -> tuple[Finding, ...]:
        """Return the findings with which a worker must not start: those that no waiting corrects.

        A server that does not answer is not among them: workers wait for their servers.
        """
        redis, store = _asked(self._redis.server), _asked(self._store_facts)
        found = [
            *_server_findings("redis", redis, redis_checks.CHECKS),
            *_server_findings("store", store, store_checks.CHECKS),
            *_server_findings(
                "broker", _asked(self._broker.server), (broker_checks.queues(self._settings),)
            ),
            *self._clock_findings(redis, store),
        ]
        return tuple(each for each in found if each.stops_worker)

    def _broker_findings(self, redis: Answer[RedisFacts]) -> list[Finding]:
        broker, app = _asked(self._broker.server), _asked(self._broker.app)

        pair: Answer[broker_checks.Servers] = _NotAsked("one of the two does not answer")
        if isinstance(broker, BrokerFacts) and isinstance(redis, RedisFacts):
            pair = broker_checks.Servers(broker, redis)
        app_checks = (
            broker_checks.serializer,
            broker_checks.redelivery(self._settings),
            broker_checks.attached,
        )
        return [
            *_server_findings("broker", broker, (broker_checks.queues(self._settings),)),
            _finding(broker_checks.separate, pair),
            *_server_findings("app", app, app_checks),
        ]

    def _clock_findings(
        self, redis: Answer[RedisFacts], store: Answer[StoreFacts]
    ) -> list[Finding]:
        def offset(ask: Callable[[], datetime]) -> Callable[[], clock_checks.Offset]:
            return lambda: clock_checks.measure(ask, self._clock)

        return [
            _finding(clock_checks.OF_STORE, _asked(offset(self._store.now), after=store)),
            _finding(clock_checks.OF_REDIS, _asked(offset(self._redis.now), after=redis)),
        ]

    def _work_findings(self, redis: Answer[RedisFacts], store: Answer[StoreFacts]) -> list[Finding]:
        given, ask = self._settings, self._store
        patience = _SWEEPS * given.sweep_interval
        store = _with_schema(store)

        def processes() -> work_checks.ProcessFacts:
            signs = self._signs.read()
            late = (
                ask.not_enqueued(older_than=patience) if isinstance(store, StoreFacts) else Late()
            )
            late = late if late.many or isinstance(store, Unavailable) else overdue()
            workers, beats = (
                sum(each.is_alive for each in signs[kind]) for kind in (Kind.WORKER, Kind.BEAT)
            )
            return work_checks.ProcessFacts(workers, beats, late)

        def overdue() -> Late:
            return ask.overdue(older_than=given.enqueue_grace + patience, grace=given.enqueue_grace)

        def untold() -> work_checks.UntoldFacts:
            # Without a status_channel nothing posts any of them, however young it is.
            older_than = patience if given.status_channel else timedelta(0)
            return work_checks.UntoldFacts(ask.untold(older_than=older_than), given.status_channel)

        def orphans() -> int:
            return self._redis.unconfirmed(older_than=given.reconcile_grace + patience)

        return [
            _finding(work_checks.processes, _asked(processes, after=redis)),
            _finding(
                work_checks.sweep,
                _asked(lambda: ask.not_enqueued(older_than=patience), after=store),
            ),
            _finding(work_checks.overdue, _asked(overdue, after=store)),
            _finding(
                work_checks.waiting, _asked(lambda: ask.waiting(older_than=_LONG_WAIT), after=store)
            ),
            _finding(
                work_checks.claims,
                _asked(lambda: ask.not_rescued(older_than=patience), after=store),
            ),
            _finding(work_checks.orphans, _asked(orphans, after=redis)),
            _finding(
                work_checks.channels,
                _asked(lambda: ask.strange_channels(given.channels), after=store),
            ),
            _finding(work_checks.untold, _asked(untold, after=store)),
        ]

    def _settings_findings(self) -> list[Finding]:
        probed = probe_all(self._settings)
        return [
            _finding(settings_checks.transports, probed),
            _finding(settings_checks.servers, probed),
            _finding(settings_checks.files, self._open_files()),
            _finding(settings_checks.hooks, self._hooks()),
            _finding(settings_checks.templates, self._templates.judged()),
            _finding(settings_checks.recipients, self._settings.spellings.problems()),
        ]

    def _open_files(self) -> tuple[Path, ...]:
        """Return the files and folders of the settings that other users may read."""
        named = (config_file(), self._settings.data_dir, self._store.file)
        return tuple(each for each in named if each and open_to_others(each))

    def _refused_write(self) -> str | None:
        try:
            self._store.try_write()
        except StoreUnavailable as error:
            return error.reason
        return None

    def _hooks(self) -> settings_checks.HooksFacts:
        setting = self._settings.hooks
        try:
            if setting:
                hooks.find(setting)
        except InvalidSettings as error:
            return settings_checks.HooksFacts(setting, error)
        return settings_checks.HooksFacts(setting, None)

    def _store_facts(self) -> StoreFacts:
        standing = self._store.standing()
        return StoreFacts(
            standing=standing,
            missing_indexes=self._store.missing_indexes() if standing.revision else None,
            durability=self._store.durability(),
        )


def _with_schema(store: Answer[StoreFacts]) -> Answer[StoreFacts]:
    """Return the facts of a database with the tables of this version, or why there are none."""
    if isinstance(store, StoreFacts) and store.standing.missing:
        return StoreUnavailable("its schema is behind")
    return store


def _asked(ask: Callable[[], F], *, after: object = None) -> Answer[F]:
    """Return the answer, or why there is none. Not asked after a question without an answer."""
    if isinstance(after, Unavailable):
        return _NotAsked(after.reason)
    try:
        return ask()
    except Unavailable as error:
        return error


def _server_findings(server: str, answer: Answer[F], checks: Sequence[Check[F]]) -> list[Finding]:
    """Return whether a server answered, and the findings of the checks on its answer."""
    if not isinstance(answer, Unavailable):
        answered = Finding(check=f"{server}.answers", level=Level.OK, found="it answers")
        return [answered, *(_finding(each, answer) for each in checks)]
    silent = Finding(
        check=f"{server}.answers",
        level=Level.ERROR,
        found=answer.reason,
        remedy=answer.remedy or _REMEDIES[server],
    )
    return [silent, *(_finding(each, _NotAsked(answer.reason)) for each in checks)]


def _finding(check: Check[F], answer: Answer[F]) -> Finding:
    if isinstance(answer, _NotAsked):
        return check.skipped(f"not looked at: {answer.reason}")
    if isinstance(answer, Unavailable):
        return Finding(
            check=check.name,
            level=Level.ERROR,
            found=f"no answer: {answer.reason}",
            remedy=answer.remedy or "look again; where it stays so, see the log of the server",
        )
    return check(answer)

"""Asks each server once, lets the checks judge the answers, and skips what cannot be asked."""

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
    of_broker,
    of_clocks,
    of_redis,
    of_settings,
    of_store,
    of_work,
)
from dispatcher.operations.doctor.finding import Check, Finding, Level
from dispatcher.operations.doctor.of_store import StoreFacts
from dispatcher.reservation import RedisFacts, RedisSurvey
from dispatcher.settings import Settings, config_file
from dispatcher.store import Late, StoreSurvey
from dispatcher.telemetry import hooks
from dispatcher.telemetry.liveness import Kind, Signs
from dispatcher.templating import Templates
from dispatcher.times.clock import Clock
from dispatcher.transports import probe_all

F = TypeVar("F")

_REMEDY_OF_SILENCE = {
    "redis": "start Redis (`dispatcher up` runs one here), or correct redis_url",
    "store": "start the database, or correct database_url",
    "broker": "start the broker, correct broker_url, or install the module that is missing",
    "app": "correct the options of the Celery app",
}
_SWEEPS = 3
"""How many turns of the sweep may be missed before something is late."""
_LONG_WAIT = timedelta(hours=1)
"""How long after its send time a message may be kept back. At defaults the waits between all tries
take a quarter of an hour."""


class _NotAsked(NamedTuple):
    """Why a question was left out."""

    reason: str


Answer: TypeAlias = F | Unavailable | _NotAsked


@dataclass(frozen=True, slots=True)
class Examined:
    """What all checks found."""

    findings: tuple[Finding, ...]

    @property
    def counts(self) -> Mapping[Level, int]:
        """How many findings there are of each level."""
        counted = Counter(each.level for each in self.findings)
        return {level: counted[level] for level in Level}

    @property
    def level(self) -> Level:
        """The worst level."""
        counts = self.counts
        return next((each for each in (Level.ERROR, Level.WARNING) if counts[each]), Level.OK)


class Doctor:
    """Examines a deployment. Changes nothing, and raises nothing of a server that is away."""

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

    def examine(self) -> Examined:
        """Run every check."""
        redis, store = _asked(self._redis.server), _asked(self._store_facts)
        found = [
            *_of("redis", redis, of_redis.CHECKS),
            _judged(of_redis.complete, _asked(self._redis.readiness, after=redis)),
            _judged(of_redis.foreign, _asked(self._redis.foreign, after=redis)),
            *_of("store", store, of_store.CHECKS),
            _judged(of_store.writes, _asked(self._refused_write, after=_with_schema(store))),
            *self._of_broker(redis),
            *self._of_clocks(redis, store),
            *self._of_work(redis, store),
            *self._of_settings(),
        ]
        return Examined(tuple(found))

    def before_start(self) -> tuple[Finding, ...]:
        """Return why a worker must not start: what no waiting heals.

        A server that does not answer is not among it: workers wait for their servers.
        """
        redis, store = _asked(self._redis.server), _asked(self._store_facts)
        found = [
            *_of("redis", redis, of_redis.CHECKS),
            *_of("store", store, of_store.CHECKS),
            *_of("broker", _asked(self._broker.server), (of_broker.queues(self._settings),)),
            *self._of_clocks(redis, store),
        ]
        return tuple(each for each in found if each.stops_worker)

    def _of_broker(self, redis: Answer[RedisFacts]) -> list[Finding]:
        broker, app = _asked(self._broker.server), _asked(self._broker.app)

        pair: Answer[of_broker.Neighbours] = _NotAsked("one of the two does not answer")
        if isinstance(broker, BrokerFacts) and isinstance(redis, RedisFacts):
            pair = of_broker.Neighbours(broker, redis)
        of_app = (of_broker.serializer, of_broker.redelivery(self._settings), of_broker.attached)
        return [
            *_of("broker", broker, (of_broker.queues(self._settings),)),
            _judged(of_broker.separate, pair),
            *_of("app", app, of_app),
        ]

    def _of_clocks(self, redis: Answer[RedisFacts], store: Answer[StoreFacts]) -> list[Finding]:
        def offset(ask: Callable[[], datetime]) -> Callable[[], of_clocks.Offset]:
            return lambda: of_clocks.measure(ask, self._clock)

        return [
            _judged(of_clocks.OF_STORE, _asked(offset(self._store.now), after=store)),
            _judged(of_clocks.OF_REDIS, _asked(offset(self._redis.now), after=redis)),
        ]

    def _of_work(self, redis: Answer[RedisFacts], store: Answer[StoreFacts]) -> list[Finding]:
        given, ask = self._settings, self._store
        patience = _SWEEPS * given.sweep_interval
        store = _with_schema(store)

        def processes() -> of_work.ProcessFacts:
            signs = self._signs.read()
            late = (
                ask.not_enqueued(older_than=patience) if isinstance(store, StoreFacts) else Late()
            )
            late = late if late.many or isinstance(store, Unavailable) else overdue()
            workers, beats = (
                sum(each.is_alive for each in signs[kind]) for kind in (Kind.WORKER, Kind.BEAT)
            )
            return of_work.ProcessFacts(workers, beats, late)

        def overdue() -> Late:
            return ask.overdue(older_than=given.enqueue_grace + patience, grace=given.enqueue_grace)

        def untold() -> of_work.UntoldFacts:
            # Without a channel none of them will be told, however young it is.
            older_than = patience if given.status_channel else timedelta(0)
            return of_work.UntoldFacts(ask.untold(older_than=older_than), given.status_channel)

        def orphans() -> int:
            return self._redis.unconfirmed(older_than=given.reconcile_grace + patience)

        return [
            _judged(of_work.processes, _asked(processes, after=redis)),
            _judged(
                of_work.sweep, _asked(lambda: ask.not_enqueued(older_than=patience), after=store)
            ),
            _judged(of_work.overdue, _asked(overdue, after=store)),
            _judged(
                of_work.waiting, _asked(lambda: ask.waiting(older_than=_LONG_WAIT), after=store)
            ),
            _judged(
                of_work.claims, _asked(lambda: ask.not_rescued(older_than=patience), after=store)
            ),
            _judged(of_work.orphans, _asked(orphans, after=redis)),
            _judged(
                of_work.channels,
                _asked(lambda: ask.strange_channels(given.channels), after=store),
            ),
            _judged(of_work.untold, _asked(untold, after=store)),
        ]

    def _of_settings(self) -> list[Finding]:
        probed = probe_all(self._settings)
        return [
            _judged(of_settings.transports, probed),
            _judged(of_settings.servers, probed),
            _judged(of_settings.files, self._open_files()),
            _judged(of_settings.hooks, self._hooks()),
            _judged(of_settings.templates, self._templates.judged()),
            _judged(of_settings.recipients, self._settings.spellings.problems()),
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

    def _hooks(self) -> of_settings.HooksFacts:
        setting = self._settings.hooks
        try:
            if setting:
                hooks.find(setting)
        except InvalidSettings as error:
            return of_settings.HooksFacts(setting, error)
        return of_settings.HooksFacts(setting, None)

    def _store_facts(self) -> StoreFacts:
        standing = self._store.standing()
        return StoreFacts(
            kind=self._store.kind,
            standing=standing,
            missing_indexes=self._store.missing_indexes() if standing.revision else None,
            durability=self._store.durability(),
        )


def _with_schema(store: Answer[StoreFacts]) -> Answer[StoreFacts]:
    """Return the facts of a database that has the tables of this version, or why there are none."""
    if isinstance(store, StoreFacts) and store.standing.missing:
        return StoreUnavailable("its schema is behind")
    return store


def _asked(ask: Callable[[], F], *, after: object = None) -> Answer[F]:
    """Return the answer, or why there is none: no question follows one without an answer."""
    if isinstance(after, Unavailable):
        return _NotAsked(after.reason)
    try:
        return ask()
    except Unavailable as error:
        return error


def _of(room: str, answer: Answer[F], checks: Sequence[Check[F]]) -> list[Finding]:
    """Judge what a server said, after telling whether it answered."""
    if not isinstance(answer, Unavailable):
        heard = Finding(check=f"{room}.answers", level=Level.OK, found="it answers")
        return [heard, *(_judged(each, answer) for each in checks)]
    silent = Finding(
        check=f"{room}.answers",
        level=Level.ERROR,
        found=answer.reason,
        remedy=answer.remedy or _REMEDY_OF_SILENCE[room],
    )
    return [silent, *(_judged(each, _NotAsked(answer.reason)) for each in checks)]


def _judged(check: Check[F], answer: Answer[F]) -> Finding:
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

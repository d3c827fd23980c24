"""The doctor: asks each server once, and runs the checks on the answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeVar

from dispatcher.broker.survey import BrokerFacts, BrokerSurvey
from dispatcher.errors import InvalidSettings, StoreUnavailable, Unavailable
from dispatcher.file_modes import open_to_others
from dispatcher.operations import housekeeping_checks, server_checks, work_checks
from dispatcher.operations.findings import Check, Examination, Finding, Level
from dispatcher.operations.server_checks import StoreFacts
from dispatcher.redis.errors import START_REDIS
from dispatcher.reservation import RedisFacts, RedisSurvey
from dispatcher.settings import Settings, config_file
from dispatcher.store import MOST_GRACES, LateCount, Pauses, StoreSurvey
from dispatcher.telemetry import hooks
from dispatcher.telemetry.liveness import Kind, Signs
from dispatcher.templating import Templates
from dispatcher.times.clock import Clock
from dispatcher.times.zones import database
from dispatcher.transports import probe_all

F = TypeVar("F")

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


class _NotAsked(NamedTuple):
    """Why a question was not asked."""

    reason: str


Answer: TypeAlias = F | Unavailable | _NotAsked


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
        pauses: Pauses,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._redis = redis
        self._signs = signs
        self._store = store
        self._broker = broker
        self._templates = templates
        self._pauses = pauses

    def examine(self) -> Examination:
        """Run every check."""
        redis, store = _asked(self._redis.servers), _asked(self._store_facts)
        migrated = _with_schema(store)
        found = [
            *_of_server("redis", redis, server_checks.OF_REDIS),
            _looked(server_checks.redis_complete, self._redis.readiness, after=redis),
            _looked(server_checks.redis_foreign, self._redis.taken, after=redis),
            *self._of_store(store),
            _looked(server_checks.store_writes, self._refused_write, after=migrated),
            *self._of_housekeeping(migrated),
            *self._of_broker(redis),
            *self._of_clocks(redis, store),
            *self._of_work(redis, migrated),
            *self._of_settings(),
        ]
        return Examination(tuple(found))

    def before_start(self) -> tuple[Finding, ...]:
        """Return the findings with which a worker must not start: those that no waiting corrects.

        A server that does not answer is not among them: workers wait for their servers. A missing
        file of SQLite is.
        """
        redis, store = _asked(self._redis.servers), _asked(self._store_facts)
        queues = server_checks.broker_queues(self._settings)
        found = [
            *_of_server("redis", redis, server_checks.OF_REDIS),
            *self._of_store(store),
            *_of_server("broker", _asked(self._broker.server), (queues,)),
            *self._of_clocks(redis, store),
        ]
        return tuple(each for each in found if each.stops_worker)

    def _of_store(self, store: Answer[StoreFacts]) -> list[Finding]:
        """Return the findings about the database.

        The first, ``store.answers``, stops a worker where the file is missing.
        """
        first, *others = _of_server("store", store, server_checks.OF_STORE)
        stops = isinstance(store, Unavailable) and self._store.lacks_file
        return [replace(first, stops_worker=stops), *others]

    def _of_housekeeping(self, store: Answer[StoreFacts]) -> list[Finding]:
        found = _asked(self._store.housekeeping, after=store)
        return [_finding(each, found) for each in housekeeping_checks.OF_HOUSEKEEPING]

    def _of_broker(self, redis: Answer[Sequence[RedisFacts]]) -> list[Finding]:
        broker, app = _asked(self._broker.server), _asked(self._broker.app)
        pair: Answer[server_checks.Servers] = _NotAsked("the broker or Redis does not answer")
        if isinstance(broker, BrokerFacts) and not isinstance(redis, Unavailable | _NotAsked):
            pair = server_checks.Servers(broker, redis)
        app_checks = (
            server_checks.app_serializer,
            server_checks.app_redelivery(self._settings),
            server_checks.app_attached,
        )
        return [
            *_of_server("broker", broker, (server_checks.broker_queues(self._settings),)),
            _finding(server_checks.broker_separate, pair),
            *_of_server("app", app, app_checks),
        ]

    def _of_clocks(
        self, redis: Answer[Sequence[RedisFacts]], store: Answer[StoreFacts]
    ) -> list[Finding]:
        def offset(ask: Callable[[], datetime]) -> Callable[[], server_checks.Offset]:
            return lambda: server_checks.measure(ask, self._clock)

        def worst_of_redis() -> server_checks.Offset:
            offsets = [offset(ask)() for ask in self._redis.clocks()]
            return max(offsets, key=lambda each: each.at_least)

        return [
            _looked(server_checks.STORE_CLOCK, offset(self._store.now), after=store),
            _looked(server_checks.REDIS_CLOCK, worst_of_redis, after=redis),
        ]

    def _of_work(
        self, redis: Answer[Sequence[RedisFacts]], store: Answer[StoreFacts]
    ) -> list[Finding]:
        given, ask, checks = self._settings, self._store, work_checks
        patience = _SWEEPS * given.sweep_interval
        # Without a status_channel nothing posts any of them, however young it is.
        patience_to_tell = patience if given.status_channel else timedelta(0)

        def processes() -> checks.ProcessFacts:
            signs = self._signs.read()
            late = not_enqueued() if isinstance(store, StoreFacts) else LateCount()
            late = late if late.many or isinstance(store, Unavailable) else overdue()
            workers, beats = (
                sum(each.is_alive for each in signs[kind]) for kind in (Kind.WORKER, Kind.BEAT)
            )
            return checks.ProcessFacts(workers, beats, late)

        def zones() -> checks.ZoneFacts:
            alive = (each.name for each in self._signs.read()[Kind.ZONES] if each.is_alive)
            return checks.ZoneFacts(database(), frozenset(alive))

        def not_enqueued() -> LateCount:
            return ask.not_enqueued(older_than=patience)

        def overdue() -> LateCount:
            grace = given.enqueue_grace
            return ask.overdue(older_than=grace + patience, grace=MOST_GRACES * grace)

        def beside_pauses(late: Callable[[], LateCount]) -> Callable[[], checks.DueFacts]:
            return lambda: checks.DueFacts(late(), len(self._pauses.in_force()))

        def orphans() -> int:
            return self._redis.unconfirmed(older_than=given.reconcile_grace + patience)

        def late_notifications() -> LateCount:
            return ask.late_notifications(older_than=patience_to_tell)

        def pruned() -> housekeeping_checks.PruneFacts:
            behind = ask.not_pruned(retention=given.retention)
            ages = {} if isinstance(redis, Unavailable) else self._ages_of_duties()
            return housekeeping_checks.PruneFacts(ages.get("prune"), behind, given.prune_interval)

        return [
            _looked(checks.processes, processes, after=redis),
            _looked(checks.zones, zones, after=redis),
            _looked(checks.sweep, beside_pauses(not_enqueued), after=store),
            _looked(checks.overdue, beside_pauses(overdue), after=store),
            _looked(checks.waiting, lambda: ask.waiting(older_than=_LONG_WAIT), after=store),
            _looked(checks.claims, lambda: ask.not_rescued(older_than=patience), after=store),
            _looked(checks.orphans, orphans, after=redis),
            _looked(checks.channels, lambda: ask.unknown_channels(given.channels), after=store),
            _looked(checks.notifications(given.status_channel), late_notifications, after=store),
            _looked(housekeeping_checks.prune, pruned, after=store),
        ]

    def _ages_of_duties(self) -> dict[str, timedelta]:
        return {each.name: each.age for each in self._signs.read()[Kind.DUTY]}

    def _of_settings(self) -> list[Finding]:
        probed = probe_all(self._settings)
        return [
            work_checks.transports(probed),
            work_checks.servers(probed),
            work_checks.files(self._open_files()),
            work_checks.hooks(self._hooks()),
            work_checks.templates(self._templates.problems()),
            work_checks.recipients(self._settings.spellings.problems()),
            work_checks.bodies(self._settings.body_types.problems()),
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

    def _hooks(self) -> dict[str, InvalidSettings | None]:
        setting = self._settings.hooks
        if not setting:
            return {}
        try:
            hooks.find(setting)
        except InvalidSettings as wrong:
            return {setting: wrong}
        return {setting: None}

    def _store_facts(self) -> StoreFacts:
        standing = self._store.standing()
        return StoreFacts(
            standing=standing,
            missing_indexes=self._store.missing_indexes() if standing.revision else None,
            durability=self._store.durability(),
            encoding=self._store.encoding(),
            unset_behind_pooler=self._store.unset_behind_pooler(),
        )


def _with_schema(store: Answer[StoreFacts]) -> Answer[StoreFacts]:
    """Return the facts of a database with the tables of this version, or why there are none."""
    if isinstance(store, StoreFacts) and store.standing.missing:
        return StoreUnavailable("the schema of the database is out of date")
    return store


def _asked(ask: Callable[[], F], *, after: object = None) -> Answer[F]:
    """Return the answer, or why there is none. Not asked after a question without an answer."""
    if isinstance(after, Unavailable):
        return _NotAsked(after.reason)
    try:
        return ask()
    except Unavailable as error:
        return error


def _looked(check: Check[F], ask: Callable[[], F], *, after: object) -> Finding:
    return _finding(check, _asked(ask, after=after))


def _of_server(server: str, answer: Answer[F], checks: Sequence[Check[F]]) -> list[Finding]:
    """Return whether a server answered, and the findings of the checks on its answer."""
    name = f"{server}.answers"
    first = Finding(check=name, level=Level.OK, found="it answers")
    if isinstance(answer, Unavailable):
        remedy = answer.remedy or _REMEDIES[server]
        first = Finding(check=name, level=Level.ERROR, found=answer.reason, remedy=remedy)
        answer = _NotAsked(answer.reason)
    return [first, *(_finding(each, answer) for each in checks)]


def _finding(check: Check[F], answer: Answer[F]) -> Finding:
    if isinstance(answer, _NotAsked):
        found = f"not examined: {answer.reason}"
        return Finding(check=check.name, level=Level.SKIPPED, found=found)
    if isinstance(answer, Unavailable):
        return Finding(
            check=check.name,
            level=Level.ERROR,
            found=f"no answer: {answer.reason}",
            remedy=answer.remedy or "run the doctor again; then see the log of the server",
        )
    return check(answer)

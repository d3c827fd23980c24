"""Signs of life: which workers and beats are at work, when each duty was last done; and health.

A thread of each process writes its sign to Redis every two seconds, whatever the broker is. No
other work waits for it or depends on it: without Redis the signs are missing, and work goes on.

Health is for a supervisor that probes a worker or a beat. Alive: its main loop turns, or waits for
a broker that is away. Ready: its servers answer.
"""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswer
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from threading import Event, Lock, Thread
from typing import Any, NamedTuple

import redis

from dispatcher.errors import ReservationsUnavailable, Unavailable
from dispatcher.redis.client import now_ms
from dispatcher.redis.errors import translated
from dispatcher.redis.keys import LooseKeys
from dispatcher.telemetry.journal import started
from dispatcher.times.clock import MILLISECOND, Clock
from dispatcher.times.zones import database

log = logging.getLogger(__name__)

EVERY = timedelta(seconds=2)
"""How often a process gives signs of life."""
LOST_AFTER = timedelta(seconds=10)
"""How long after its last sign a process is taken for dead."""
_REMEMBERED = timedelta(days=1)
_PATIENCE_SECONDS = 5.0
MISSED_INTERVALS = 10
"""After how many of its intervals a duty is taken for dead."""
BROKER = "broker"
HANGS_AFTER = timedelta(seconds=60)
"""How long a main loop may stand still while its broker answers."""
PATIENCE = timedelta(milliseconds=800)
"""How long a probe waits for servers: less than Kubernetes waits for a probe by default, 1 s."""
_PUBLISHES_WITHIN_SECONDS = 5.0
_RECONNECTS_WITHIN_SECONDS = 10.0


class Gauge(NamedTuple):
    """A metric that no process can count on its own: its ``values`` by tuples of ``labels``."""

    name: str
    text: str
    values: Mapping[Any, float]
    labels: tuple[str, ...] = ()


class Kind(StrEnum):
    WORKER = "worker"
    BEAT = "beat"
    DUTY = "duty"
    ZONES = "zones"
    """A version of the tz database that a worker or a beat goes by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """A process or a duty, when it was last seen at work, and at which age it counts as dead."""

    name: str
    age: timedelta
    lost_after: timedelta = LOST_AFTER

    @property
    def is_alive(self) -> bool:
        return self.age <= self.lost_after


class Signs:
    """Signs of life in Redis. Every call raises ReservationsUnavailable."""

    def __init__(self, client: redis.Redis, *, namespace: str) -> None:
        self._client = client
        self._keys = LooseKeys(namespace)

    def note(self, kind: Kind, ages: Mapping[str, timedelta]) -> None:
        """Say of what has these names how long ago it was seen."""
        signs = self._keys.signs(kind)
        with translated(ReservationsUnavailable):
            now = now_ms(self._client)
            times = {name: now - age // MILLISECOND for name, age in ages.items()}
            pipeline = self._client.pipeline(transaction=False)
            pipeline.zadd(signs, times, gt=True)
            pipeline.zremrangebyscore(signs, "-inf", now - _REMEMBERED // MILLISECOND)
            pipeline.pexpire(signs, _REMEMBERED)
            pipeline.execute()

    def forget(self, kind: Kind, name: str) -> None:
        with translated(ReservationsUnavailable):
            self._client.zrem(self._keys.signs(kind), name)

    def count_rejected(self, items: int) -> None:
        """Add to the number of rejected items of the broker, which is kept for a day more."""
        with translated(ReservationsUnavailable):
            pipeline = self._client.pipeline()
            pipeline.incrby(self._keys.items_rejected, items)
            pipeline.pexpire(self._keys.items_rejected, _REMEMBERED)
            pipeline.execute()

    def items_rejected(self) -> int:
        with translated(ReservationsUnavailable):
            return int(self._client.get(self._keys.items_rejected) or 0)

    def read(self) -> dict[Kind, tuple[Sign, ...]]:
        """Return everything that was seen within a day, sorted by name."""
        with translated(ReservationsUnavailable):
            now = now_ms(self._client)
            pipeline = self._client.pipeline(transaction=False)
            for kind in Kind:
                pipeline.zrange(self._keys.signs(kind), 0, -1, withscores=True)
            members_of = dict(zip(Kind, pipeline.execute(), strict=True))
        signs: dict[Kind, tuple[Sign, ...]] = {}
        for kind, members in members_of.items():
            ages = {
                name.decode("utf-8", "replace"): max(0, now - int(score)) * MILLISECOND
                for name, score in members
            }
            signs[kind] = tuple(Sign(name=name, age=ages[name]) for name in sorted(ages))
        return signs


class Pulse:
    """Lets this process give signs of life, from a thread of its own."""

    def __init__(self, signs: Signs, clock: Clock) -> None:
        self._signs = signs
        self._clock = clock
        self._lock = Lock()
        self._stopped = Event()
        self._thread: Thread | None = None
        self._own: dict[Kind, str] = {}
        self._done: dict[str, float] = {}
        self._rejected = 0

    def start(self, kind: Kind, name: str) -> None:
        """Say from now on that this process, such as ``celery@host``, is alive."""
        self._own[kind] = f"{name or kind.value} {os.getpid()}"
        self._run()

    def done(self, duty: str) -> None:
        """Note that a duty was done just now; it is said a little later."""
        self._done[duty] = self._clock.monotonic()
        self._run()

    def item_rejected(self) -> None:
        """Note that this worker deleted an item of its broker; it is said a little later."""
        with self._lock:
            self._rejected += 1
        self._run()

    def stop(self) -> None:
        self._stopped.set()
        thread = self._thread
        if thread is not None and thread.is_alive():
            thread.join(_PATIENCE_SECONDS)

    def _run(self) -> None:
        with self._lock:
            if self._thread is None and not self._stopped.is_set():
                self._thread = started(self._beat, "signs of life")

    def _beat(self) -> None:
        is_last, wait = False, 0.0
        while not is_last:
            is_last = self._stopped.wait(wait)
            wait = EVERY.total_seconds()
            try:
                self._say()
                if is_last:
                    for kind, name in self._own.items():
                        self._signs.forget(kind, name)
            except Unavailable as error:
                log.debug("could not give a sign of life: %s", error)

    def _say(self) -> None:
        ages: dict[Kind, dict[str, timedelta]] = defaultdict(dict)
        for kind, name in dict(self._own).items():
            ages[kind][name] = timedelta(0)
        if self._own:
            ages[Kind.ZONES][database().version] = timedelta(0)
        now = self._clock.monotonic()
        for duty, at in dict(self._done).items():
            ages[Kind.DUTY][duty] = timedelta(seconds=now - at)
        for kind, ages_by_name in ages.items():
            self._signs.note(kind, ages_by_name)
        with self._lock:
            rejected = self._rejected
        if rejected:
            self._signs.count_rejected(rejected)
            with self._lock:
                self._rejected -= rejected


class Health:
    """Answers the probes of one process. Shared by threads.

    ``servers`` has for each server a question that raises where it does not answer. Each is asked
    in a thread of its own, and never twice at a time: a server that hangs costs one thread.
    """

    def __init__(
        self,
        servers: Mapping[str, Callable[[], object]],
        *,
        clock: Clock,
        hangs_after: timedelta = HANGS_AFTER,
        patience: timedelta = PATIENCE,
    ) -> None:
        self._clock = clock
        self._hangs_after_seconds = hangs_after.total_seconds()
        self._patience_seconds = patience.total_seconds()
        self.servers = servers
        self._answers: dict[str, Future[bool]] = {}
        self._lock = Lock()
        self._turned_at = clock.monotonic()
        self._suspected: tuple[float, float] | None = None
        """The turn after which the loop has stood still, and when a probe first found that."""
        self._publishes_since: float | None = None
        self._last_away: Sequence[str] = []

    def turned(self) -> None:
        self._turned_at = self._clock.monotonic()

    @contextmanager
    def turning(self) -> Iterator[None]:
        """Decorate a call whose end is a turn of the main loop."""
        try:
            yield
        finally:
            self.turned()

    @contextmanager
    def publishing(self) -> Iterator[None]:
        """Decorate a call that publishes: while it hangs, the broker counts as away.

        A RabbitMQ whose memory or disk is full answers everything but a publish.
        """
        self._publishes_since = self._clock.monotonic()
        try:
            yield
        finally:
            self._publishes_since = None

    def hangs_for(self) -> timedelta | None:
        """Return how long the main loop has stood still, None for a process that is alive.

        While the broker is away the loop may wait for it, and is given the same time again. The
        broker may also have come back a moment ago. So a loop hangs only if it still has not turned
        10 seconds after a probe found it standing still and its broker answering.
        """
        turned_at, now = self._turned_at, self._clock.monotonic()
        still = now - turned_at
        if still <= self._hangs_after_seconds:
            return None
        if self._away([BROKER]):
            self.turned()
            return None
        if self._suspected is None or self._suspected[0] != turned_at:
            self._suspected = (turned_at, now)
        if now - self._suspected[1] < _RECONNECTS_WITHIN_SECONDS:
            return None
        return timedelta(seconds=still)

    def away(self) -> Sequence[str]:
        """Return the names of the servers that do not answer: none where all is ready."""
        away = self._away([*self.servers])
        if away != self._last_away:
            self._last_away = away
            if away:
                log.warning("not ready: no answer from %s", ", ".join(away))
            else:
                log.info("ready: every server answers")
        return away

    def _away(self, names: Sequence[str]) -> Sequence[str]:
        answers = {name: self._answer(name) for name in names}
        until = self._clock.monotonic() + self._patience_seconds
        away = []
        for name, answer in answers.items():
            try:
                answers_well = answer.result(max(0.0, until - self._clock.monotonic()))
            except NoAnswer:
                answers_well = False
            if name == BROKER and (since := self._publishes_since) is not None:
                publishes_for = self._clock.monotonic() - since
                answers_well = answers_well and publishes_for <= _PUBLISHES_WITHIN_SECONDS
            if not answers_well:
                away.append(name)
        return away

    def _answer(self, name: str) -> Future[bool]:
        """Ask a server, unless that is under way; it is told whether it answers."""
        with self._lock:
            answer = self._answers.get(name)
            if answer is None or answer.done():
                answer = self._answers[name] = Future()
                title = f"health {name}"
                Thread(target=self._ask, args=(name, answer), name=title, daemon=True).start()
            return answer

    def _ask(self, name: str, answer: Future[bool]) -> None:
        try:
            self.servers[name]()
        except Exception as error:  # noqa: BLE001 - whatever it is, the server is of no use
            log.debug("%s does not answer (%s)", name, type(error).__name__)
            answer.set_result(False)
        else:
            answer.set_result(True)

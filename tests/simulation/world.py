"""One story: processes that submit, deliver and sweep, and what happens to them."""

from __future__ import annotations

import hashlib
import logging
import random
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from uuid import UUID

from dispatcher import faults
from dispatcher.app import App
from dispatcher.celery.queue import TaskGroup
from dispatcher.delivery import group, sender_pool, sweep, task
from dispatcher.errors import DispatcherError
from dispatcher.message import Draft, Message, Outcome, Status
from dispatcher.reservation import booking, rulebook, shards
from dispatcher.reservation.fence import Fence
from dispatcher.store import database
from dispatcher.submission import events, pipeline, series, validation
from dispatcher.times.send_time import to_ms
from tests.simulation.callers import Caller
from tests.simulation.chaos import Chaos
from tests.simulation.facts import Asked, Facts
from tests.simulation.faults import Fault, Weather
from tests.simulation.outside import Broker
from tests.simulation.recurring import Organiser
from tests.simulation.scheduler import START, Process, Scheduler, Threading
from tests.simulation.servers import Server, Store
from tests.simulation.setting import LEASE, settings
from tests.simulation.wiring import Wiring

_SECOND = 1_000_000
_CALM_SECONDS = 400
_BOOK = "book_ahead"
_BATCH = 3
"""Drafts of a bulk submit that are booked and stored together."""
_AT_POINTS = 0.3
"""How often something happens at a fault point."""
_SETTINGS = settings()


class World:
    settings = _SETTINGS

    def __init__(self, seed: int, kinds: Collection[Fault] = ()) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.scheduler = Scheduler(self.rng)
        self.weather = Weather(self.rng, kinds)
        self.story: list[tuple[int, str, str, str]] = []
        self.facts = Facts()
        self._shifts_us = [self.rng.randrange(-2 * _SECOND, 2 * _SECOND) for _ in range(2)]
        self.store = Store(self._server_clock(0))
        self.server = Server(self._server_clock(1))
        self.sends: list[dict[str, Any]] = []
        self.broker = Broker(self)
        self.workers: dict[Process, App] = {}
        self._numbers = 0
        self._pace = 0.5 + 12 * self.weather.often
        self.is_restless = self.rng.random() < 0.3  # callers move the same messages about
        self.known_keys: list[tuple[str, Draft]] = []
        self.known_ids: list[UUID] = []
        self.movable_ids: list[UUID] = []
        self.events: list[str] = []
        self.network = Process(self.scheduler, "network")
        self.everybody: list[Process] = []
        self.wiring = Wiring(self)

    def play(self, seconds: int = 90) -> None:
        """Let it storm for so long, then be calm until everything has come to its end."""
        with patched(self):
            self._start()
            while self.scheduler.now_us < seconds * _SECOND:
                self._pass(1)
            self._calm()
            self._pass(14)  # callers who were asking, or frozen, still get their answers
            last = self._process("the last client", 0)
            self.scheduler.spawn(last, "end", Organiser(self, last, self.wiring.app(last)).end)
            self._pass(4)
            end_us = self.scheduler.now_us + _CALM_SECONDS * _SECOND
            while self.scheduler.now_us < end_us and not self.store.is_settled():
                self._pass(1)
            # What nobody confirmed is looked up once its grace is over, what was rebuilt later too.
            grace = 2 * int(_SETTINGS.reconcile_grace.total_seconds() + 4)
            self._pass(grace)
            for process in self.everybody:
                self.scheduler.kill(process)
            self.scheduler.run(self.scheduler.now_us + _SECOND)

    def digest(self) -> str:
        return hashlib.sha256(repr(self.story).encode()).hexdigest()[:16]

    def tell(self, who: str, what: str, detail: str = "") -> None:
        self.story.append((self.scheduler.now_us, who, what, detail))

    @property
    def fence(self) -> Fence:
        return self.wiring.parts.fence

    def db_us(self) -> int:
        """Return microseconds since 1970 by the database's clock."""
        return to_ms(START) * 1_000 + self.scheduler.now_us + self._shifts_us[0]

    def redis_ms_of(self, db_us: int) -> float:
        """Return an instant of the database's clock by that of Redis, in ms."""
        return (db_us - self._shifts_us[0] + self._shifts_us[1]) / 1_000

    def _pass(self, seconds: int) -> None:
        """Let some time pass. What ended before does not change any more.

        But for what has failed, and turns out to have been sent when its worker tells so late.
        """
        self.scheduler.run(self.scheduler.now_us + seconds * _SECOND)
        ended = self.facts.ended
        self.facts.wrong += self.store.strays()
        for id_, status, at in self.store.new_ends():
            if at is not None or id_ in ended:
                before = ended.setdefault(id_, (status, at))
                if (before[0], status) == (Status.FAILED, Status.SENT):
                    ended[id_] = before = status, at
                if before != (status, at):
                    self.facts.wrong.append(f"{id_} was {before[0]} and is {status} now")

    def pass_by(self, point: str) -> None:
        """Pass a fault point; at some a process may die or be slow."""
        if point.endswith("in_transaction") or point.startswith(("series.", "event.")):
            self._perhaps_die(point)

    def _perhaps_die(self, point: str) -> None:
        if not self.weather.calm:
            luck = self.rng.random()
            if luck < _AT_POINTS:
                process = self.scheduler.running().process
                self.weather.note(f"a {point.partition('.')[0]} goes wrong")
                self.tell(process.name, point, "! its process is slow, or dies")
                if luck < _AT_POINTS / 2:
                    self.scheduler.kill(process)
                self.scheduler.wait(self.rng.random())

    # Who there is

    def _start(self) -> None:
        for number in range(2):
            self._worker(number)
            self._sweeper(number)
            self._booker(number)
        for number in range(3):
            self._client(number)
        chaos = self._process("chaos", 0)
        self.scheduler.spawn(chaos, "chaos", Chaos(self).work)

    def _process(self, name: str, most_shift: float) -> Process:
        process = Process(self.scheduler, name)
        process.shift_us = int(self.rng.uniform(-most_shift, most_shift) * _SECOND)
        self.everybody.append(process)
        return process

    def _worker(self, number: int) -> None:
        process = self._process(f"worker {number}", self.rng.choice([0.01, 1, 3_600]))
        self.workers[process] = self.wiring.app(process, self._is_claimed)
        self._reborn(process, lambda: self._worker(number))
        self.broker.offer()

    def _is_claimed(self, message: Message) -> None:
        """Nothing is sent but under the claim that holds, by the database's clock."""
        row = self.store.row(message.id)
        ends_at = None if row is None else row.claim_expires_at
        if row is not None and row.status is Status.SENT:
            tries = {attempt.token: attempt.outcome for attempt in self.store.tries(message.id)}
            if tries.get(row.claim_token) is Outcome.UNKNOWN:
                return  # an earlier try was told to be sent after this one was claimed
        if row is None or ends_at is None or ends_at <= self.store.now():
            self.facts.wrong.append(f"{message.id} was sent after its claim had ended")
        elif row.attempt_count != message.attempt_count:
            self.facts.wrong.append(f"{message.id} was sent under an old claim")

    def take(self, task: TaskGroup) -> bool:
        alive = [process for process in self.workers if process.alive]
        if not alive:
            return False
        process = self.rng.choice(alive)
        own = self.workers[process].group_queue
        wait = max(0.0, (task.begins_at - process.now()).total_seconds())
        late = 0.0 if self.weather.calm or self.rng.random() > 0.05 else 8 * self.rng.random()
        if late:
            self.weather.note("a task is late")

        def deliver() -> None:
            self._try(
                process,
                "deliver",
                lambda: own.deliver(task.message_ids, task.channel, rank=task.rank),
            )

        # One whose clock is behind waits too long.
        self.scheduler.spawn(process, "task", deliver, after=0.001 + min(wait, 10.0) + late)
        return True

    def _sweeper(self, number: int) -> None:
        process = self._process(f"sweeper {number}", self.rng.choice([0.01, 3_600]))
        duties = self.wiring.duties(self.wiring.app(process))
        del duties[_BOOK]

        def every(duty: Callable[[], object], name: str) -> Callable[[], None]:
            def work() -> None:
                while True:
                    self._try(process, name, duty)
                    process.sleep((5.0 if name == "prune" else 1.5) + self.weather.calm)

            return work

        for name, duty in duties.items():
            self.scheduler.spawn(process, name, every(duty, name), after=self.rng.random())
        self._reborn(process, lambda: self._sweeper(number))

    def _booker(self, number: int) -> None:
        """Book series, by a clock that is right: what is missed it takes from there."""
        process = self._process(f"booker {number}", 0.5)
        book = self.wiring.duties(self.wiring.app(process))[_BOOK]

        def work() -> None:
            while True:
                booked = self.scheduler.running().seed = Asked(None, "")
                began = process.monotonic()
                try:
                    self._try(process, _BOOK, book)
                finally:
                    if process.monotonic() - began > _SETTINGS.settle.total_seconds():
                        self.facts.perhaps_over_quota.update(booked.ids)
                process.sleep(0.7)

        self.scheduler.spawn(process, _BOOK, work)
        self._reborn(process, lambda: self._booker(number))

    def _client(self, number: int) -> None:
        process = self._process(f"client {number}", 2.0)
        caller = Caller(self, process, self.wiring.app(process))

        def work(place: int) -> None:
            if place == 0:
                caller.begin()
            while not self.weather.calm:
                process.sleep(self.rng.expovariate(self._pace))
                caller.ask()

        for place in range(2):
            self.scheduler.spawn(process, f"thread {place}", partial(work, place))
        self._reborn(process, lambda: self._client(number))

    def _reborn(self, process: Process, begin: Callable[[], None]) -> None:
        supervisor = getattr(self, "_supervisor", None)
        if supervisor is None:
            supervisor = self._supervisor = self._process("supervisor", 0)

        def watch() -> None:
            while process.alive:
                self.scheduler.wait(0.5)
            self.tell(process.name, "died")
            self.workers.pop(process, None)
            self.scheduler.wait(2 * self.rng.random())
            if process in self.everybody:
                self.everybody.remove(process)
            begin()

        self.scheduler.spawn(supervisor, f"of {process.name}", watch)

    def _try(self, process: Process, what: str, act: Callable[[], object]) -> None:
        try:
            answer = act()
        except DispatcherError as error:
            self.tell(process.name, what, f"raises {type(error).__name__}")
        else:
            if answer:
                self.tell(process.name, what, f"answers {answer}")

    def _calm(self) -> None:
        self.weather.calm = True
        self.weather.outages.clear()
        self.scheduler.no_threads = False
        self.tell("chaos", "it is calm")
        for process in self.everybody:
            process.frozen_until_us = 0

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _server_clock(self, place: int) -> Callable[[], datetime]:
        def now() -> datetime:
            return START + timedelta(microseconds=self.scheduler.now_us + self._shifts_us[place])

        return now

    def new_id(self) -> UUID:
        """Return an id of version 7 by the clock of the process that asks for it."""
        thread = self.scheduler.running()
        made = (to_ms(thread.process.now()) << 80) | (7 << 76) | (2 << 62) | self.number()
        id_ = UUID(int=made)
        if isinstance(thread.seed, Asked):
            thread.seed.ids.append(id_)
        return id_

    def new_ids(self, count: int) -> list[UUID]:
        return [self.new_id() for _ in range(count)]

    def new_token(self, _: int) -> str:
        return f"{self.number():012d}"

    def new_tail(self) -> str:
        return f"{self.number():08d}"


@contextmanager
def patched(world: World) -> Iterator[None]:
    """Let the package take threads, ids, luck and time from the world."""
    threading = Threading(world.scheduler)
    log = logging.getLogger("dispatcher")
    level = log.level
    seams: list[tuple[object, str, object]] = [
        *((module, "threading", threading)
          for module in (group, sender_pool, task, rulebook)),
        *((module, "random", world.rng) for module in (sender_pool, sweep, database)),
        *((module, "new_tail", world.new_tail) for module in (booking, shards)),
        *((module, "token_hex", world.new_token) for module in (events, series, validation)),
        (series, "_LEASE", LEASE),
        (series, "_AT_ONCE", _BATCH),
        (pipeline, "new_ids", world.new_ids),
        (booking, "new_id", world.new_id),
        (pipeline, "BATCH", _BATCH),
        (database, "time", SimpleNamespace(sleep=world.scheduler.wait)),
        (faults, "_armed", world),
        (world.store.callers.dialect, "do_commit", world.wiring.commit),
    ]  # fmt: skip
    with ExitStack() as stack:
        for part, name, value in seams:
            stack.enter_context(patch.object(part, name, value))
        stack.enter_context(world.store.told_the_time())
        log.setLevel(logging.CRITICAL + 1)
        try:
            yield
        finally:
            log.setLevel(level)

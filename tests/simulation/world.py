"""One story: processes that submit, deliver and sweep, and what happens to them."""

from __future__ import annotations

import hashlib
import logging
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import UUID

from dispatcher import sweep
from dispatcher.channel import Channel
from dispatcher.delivery import Delivery, Lanes, hand_overs, lanes, senders, stragglers
from dispatcher.delivery import round as round_
from dispatcher.errors import (
    DispatcherError,
    MessageNotFound,
    OutcomeUnknown,
    TooLate,
)
from dispatcher.journal import Journal
from dispatcher.message import Draft, Message, Outcome, Status
from dispatcher.queue import Group
from dispatcher.quota import Limit, Quota
from dispatcher.sendtime import to_ms
from dispatcher.settings import Settings
from dispatcher.store import Claim, Failure, Result
from dispatcher.submission import Changes, Handover, Submission, Wish, submission
from dispatcher.sweep import MARKER_SPARE, Sweep
from tests.simulation.broker import Broker, SimQueue, begins_in
from tests.simulation.faults import Reached, Weather
from tests.simulation.ledger import Provider, SimTransport
from tests.simulation.scheduler import START, Process, Scheduler, Threading
from tests.simulation.scheduler import SimQueue as Calls
from tests.simulation.store import (
    OPEN,
    MemoryClaims,
    MemoryMessages,
    MemoryStoreUpkeep,
    Row,
    Tables,
)
from tests.simulation.windows import MemoryPermits, MemoryUpkeep, MemoryWindows, Server

QUOTAS = (Quota(2, 3_000), Quota(5, 15_000))
CHANNEL_LIMITS = (Limit(2, 2_500), Limit(3, 8_000))
SCOPES = ("ada", "bob", "cyd")
_SECOND = 1_000_000
_CALM_SECONDS = 400
_GIVES_BACK = ("windows.withdraw", "windows.release")


def settings() -> Settings:
    """Return settings with short lengths, so that everything happens within a minute or two."""
    channel: dict[str, Any] = {
        "transport": "memory", "max_attempts": 4, "senders": 2,
        "backoff_base": 0.5, "backoff_longest": 2.0,
    }  # fmt: skip
    return Settings(
        data_dir=Path("nowhere"),
        namespace="sim",
        shards=2,
        quotas=QUOTAS,
        channels={
            "sms": Channel(**channel, limits=CHANNEL_LIMITS),
            "mail": Channel(**channel, on_unknown="hold"),
        },
        horizon=timedelta(seconds=6),
        sweep_interval=timedelta(seconds=1),
        enqueue_grace=timedelta(seconds=2),
        claim_ttl=timedelta(seconds=5),
        transport_timeout=timedelta(seconds=2),
        reconcile_grace=timedelta(seconds=8),
        settle=timedelta(seconds=1),
        groups_at_once=2,
        group_size=5,
    )


_SETTINGS = settings()


@dataclass(slots=True)
class Asked:
    """One submit, and what its caller was told: nothing, as long as ``told`` is empty.

    ``ids`` are those under which it tried to book; ``leaks`` tells that giving one back failed.
    """

    key: str | None
    ids: list[UUID] = field(default_factory=list)
    told: str = ""
    answer: UUID | None = None
    leaks: bool = False
    server: int = 0


@dataclass(slots=True)
class Facts:
    """What callers were told."""

    asked: list[Asked] = field(default_factory=list)
    cancelled: dict[UUID, int] = field(default_factory=dict)
    perhaps_cancelled: set[UUID] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)
    known_then: dict[UUID, list[Outcome | None]] = field(default_factory=dict)
    """What SQL said of each try of a message when the message was next claimed."""
    ended: dict[UUID, tuple[Status, datetime | None]] = field(default_factory=dict)


class World:
    """Everything that one seed makes."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.scheduler = Scheduler(self.rng)
        self.weather = Weather(self.rng)
        self.story: list[tuple[int, str, str, str]] = []
        self.settings = _SETTINGS
        self.facts = Facts()
        self._shifts_us = [self.rng.randrange(-2 * _SECOND, 2 * _SECOND) for _ in range(2)]
        self.tables = Tables(self._server_clock(0))
        self.server = Server(
            self._server_clock(1),
            namespace="sim",
            shards=_SETTINGS.shards,
            under_way=_SETTINGS.reconcile_grace * 2,
        )
        self.provider = Provider()
        self.broker = Broker(self.scheduler, self.weather)
        self.broker.take = self._take
        self.workers: dict[Process, Lanes] = {}
        self._numbers = 0
        self._pace = 0.5 + 12 * self.weather.often
        self._restless = self.rng.random() < 0.3  # callers move the same messages about
        self._keys: list[tuple[str, Draft]] = []
        self._known: list[UUID] = []
        self._current_ask: dict[Any, Asked] = {}
        self._old = self.server.snapshot()
        self.messages = MemoryMessages(self.tables)
        self.claims = WatchedClaims(self.tables, self.facts, ttl=_SETTINGS.claim_ttl)
        self.upkeep = MemoryStoreUpkeep(self.tables)
        self.windows = MemoryWindows(
            self.server,
            QUOTAS,
            twins_life=_SETTINGS.reconcile_grace * 2,
            new_hold=lambda id_: id_.bytes + b"hold%08d" % self._number(),
        )
        self.windows_upkeep = MemoryUpkeep(
            self.server,
            longest_ms=max(quota.length_ms for quota in QUOTAS),
            marker_life=_SETTINGS.settle + MARKER_SPARE,
            new_marker=lambda: f"marker {self._number()}",
        )
        self.permits = MemoryPermits(
            self.server,
            scope_limits=[Limit(quota.count, quota.length_ms) for quota in QUOTAS],
            channel_limits={"sms": CHANNEL_LIMITS},
        )

    def play(self, seconds: int = 90) -> None:
        """Let it storm for so long, then be calm until everything has come to its end."""
        with patched(self):
            self._start()
            while self.scheduler.now_us < seconds * _SECOND:
                self._pass(1)
            self._calm()
            self._pass(14)  # callers who were asking, or frozen, still get their answers
            end_us = self.scheduler.now_us + _CALM_SECONDS * _SECOND
            while self.scheduler.now_us < end_us and not self._is_settled():
                self._pass(1)
            # What nobody confirmed is looked up once its grace is over, what was rebuilt later too.
            grace = 2 * int(_SETTINGS.reconcile_grace.total_seconds() + 4)
            self._pass(grace)
            for process in self._all:
                self.scheduler.kill(process)
            self.scheduler.run(self.scheduler.now_us + _SECOND)

    def digest(self) -> str:
        """Return a digest of the story: the same seed has the same one."""
        return hashlib.sha256(repr(self.story).encode()).hexdigest()[:16]

    def tell(self, who: str, what: str, detail: str = "") -> None:
        """Go on with the story."""
        self.story.append((self.scheduler.now_us, who, what, detail))

    def db_ms(self) -> int:
        """Return the present by the database's clock."""
        return to_ms(self.tables.now())

    @property
    def db_shift_us(self) -> int:
        """How far the database's clock is off."""
        return self._shifts_us[0]

    def redis_ms_of(self, db_us: int) -> float:
        """Return an instant of the database's clock by that of Redis, in ms."""
        return (db_us - self._shifts_us[0] + self._shifts_us[1]) / 1_000

    def _pass(self, seconds: int) -> None:
        """Let some time pass. What ended before does not change any more.

        But for what has failed, and turns out to have been sent when its worker tells so late.
        """
        self.scheduler.run(self.scheduler.now_us + seconds * _SECOND)
        for row in self.tables.messages.values():
            if row.status.is_final or row.id in self.facts.ended:
                now = row.status, row.finished_at
                before = self.facts.ended.get(row.id, now)[0]
                if (before, row.status) == (Status.FAILED, Status.SENT):
                    self.facts.ended[row.id] = now
                if self.facts.ended.setdefault(row.id, now) != now:
                    self.facts.wrong.append(f"{row.id} was {before} and is {row.status} now")

    # Who there is

    def _start(self) -> None:
        self._all: list[Process] = []
        self._network = Process(self.scheduler, "network")
        for number in range(2):
            self._worker(number)
            self._sweeper(number)
        for number in range(3):
            self._client(number)
        chaos = self._process("chaos", 0)
        self.scheduler.spawn(chaos, "chaos", self._chaos)

    def _process(self, name: str, most_shift: float) -> Process:
        process = Process(self.scheduler, name)
        process.shift_us = int(self.rng.uniform(-most_shift, most_shift) * _SECOND)
        self._all.append(process)
        return process

    def _reached(self, part: object, room: str, process: Process) -> Any:
        return Reached(
            part,
            room,
            process,
            network=self._network,
            scheduler=self.scheduler,
            weather=self.weather,
            tell=lambda what, detail: self._tell_call(process, what, detail),
        )

    def _tell_call(self, process: Process, what: str, detail: str) -> None:
        self.tell(process.name, what, detail)
        if detail[:1] == "!" and what in _GIVES_BACK:
            asked = self.scheduler.running().seed
            if asked is not None:
                asked.leaks = True

    def _queue_of(self, process: Process) -> Any:
        queue = SimQueue(self.broker, self.scheduler, self.weather, coalesce=self.settings.coalesce)
        return self._reached(queue, "queue", process)

    def _worker(self, number: int) -> None:
        process = self._process(f"worker {number}", self.rng.choice([0.01, 1, 3_600]))
        transport = SimTransport(
            self.provider,
            process,
            self._is_claimed,
            scheduler=self.scheduler,
            weather=self.weather,
            tell=lambda what, detail: self.tell(process.name, what, detail),
            shift_us=self.db_shift_us,
        )
        delivery = Delivery(
            settings=self.settings,
            clock=process,
            claims=self._reached(self.claims, "store", process),
            permits=self._reached(self.permits, "permits", process),
            transports={"sms": transport, "mail": transport},
            queue=self._queue_of(process),
            journal=Journal(),
        )
        self.workers[process] = Lanes(delivery, at_once=self.settings.groups_at_once)
        self._reborn(process, lambda: self._worker(number))
        self.broker.offer()

    def _is_claimed(self, message: Message) -> None:
        """Nothing is handed over but under the claim that holds, by the database's clock."""
        row = self.tables.messages.get(message.id)
        ends_at = None if row is None else row.claim_expires_at
        if row is not None and row.status is Status.SENT:
            last = self.tables.attempts[message.id].get(row.claim_token)
            if last is not None and last.outcome is Outcome.UNKNOWN:
                return  # an earlier try was told to be sent after this one was claimed
        if row is None or ends_at is None or ends_at <= self.tables.now():
            self.facts.wrong.append(f"{message.id} was handed over after its claim had ended")
        elif row.attempt_count != message.attempt_count:
            self.facts.wrong.append(f"{message.id} was handed over under an old claim")

    def _take(self, task: Group) -> bool:
        alive = [process for process in self.workers if process.alive]
        if not alive:
            return False
        process = self.rng.choice(alive)
        own = self.workers[process]
        wait = begins_in(task, process.now())
        late = 0.0 if self.weather.calm or self.rng.random() > 0.05 else 8 * self.rng.random()
        if late:
            self.weather.note("a task is late")

        def deliver() -> None:
            self._try(
                process,
                "deliver",
                lambda: own.deliver(task.message_ids, task.channel, is_first=task.is_first),
            )

        self.scheduler.spawn(process, "task", deliver, after=0.001 + min(wait, 10.0) + late)
        return True

    def _sweeper(self, number: int) -> None:
        process = self._process(f"sweeper {number}", self.rng.choice([0.01, 3_600]))
        sweep = Sweep(
            settings=self.settings,
            clock=process,
            store=self._reached(self.upkeep, "store", process),
            messages=self._reached(self.messages, "store", process),
            windows=self._reached(self.windows_upkeep, "windows", process),
            permits=self._reached(self.permits, "permits", process),
            queue=self._queue_of(process),
            journal=Journal(),
        )

        def every(duty: Callable[[], object], name: str) -> Callable[[], None]:
            def work() -> None:
                while True:
                    self._try(process, name, duty)
                    process.sleep(1.0 + self.weather.calm)

            return work

        for name in ("enqueue_due", "rescue", "reconcile"):
            duty = every(getattr(sweep, name), name)
            self.scheduler.spawn(process, name, duty, after=self.rng.random())
        self._reborn(process, lambda: self._sweeper(number))

    def _client(self, number: int) -> None:
        process = self._process(f"client {number}", 2.0)
        messages = self._reached(self.messages, "store", process)
        windows = self._reached(self.windows, "windows", process)
        handover = Handover(
            settings=self.settings, clock=process, messages=messages, queue=self._queue_of(process)
        )
        parts: dict[str, Any] = {
            "settings": self.settings, "clock": process, "windows": windows,
            "messages": messages, "handover": handover, "journal": Journal(),
        }  # fmt: skip
        submission_, changes = Submission(**parts), Changes(**parts)

        def work() -> None:
            while not self.weather.calm:
                process.sleep(self.rng.expovariate(self._pace))
                self._ask(process, submission_, changes)

        for place in range(2):
            self.scheduler.spawn(process, f"thread {place}", work)
        self._reborn(process, lambda: self._client(number))

    def _reborn(self, process: Process, begin: Callable[[], None]) -> None:
        """Start a process anew some time after it died."""
        supervisor = getattr(self, "_supervisor", None)
        if supervisor is None:
            supervisor = self._supervisor = self._process("supervisor", 0)

        def watch() -> None:
            while process.alive:
                self.scheduler.wait(0.5)
            self.tell(process.name, "died")
            self.workers.pop(process, None)
            self.scheduler.wait(2 * self.rng.random())
            if process in self._all:
                self._all.remove(process)
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

    # What callers ask for

    def _ask(self, process: Process, submission_: Submission, changes: Changes) -> None:
        luck = self.rng.random()
        if luck < (0.4 if self._restless else 0.8) or not self._known:
            self._submit(process, submission_)
        elif luck < 0.88:
            self._cancel(process, changes)
        else:
            self._reschedule(process, changes)

    def _submit(self, process: Process, submission_: Submission) -> None:
        draft = self._draft()
        asked = Asked(draft.idempotency_key, server=self.server.number)
        self.facts.asked.append(asked)
        thread = self.scheduler.running()
        thread.seed = asked
        self.tell(process.name, "asks: submit", f"{draft.recipient} key {draft.idempotency_key}")
        try:
            message = submission_.submit(draft)
        except OutcomeUnknown as error:
            asked.told = "unknown"
            self.tell(process.name, "is told", f"{type(error).__name__} {error.message_id}")
        except DispatcherError as error:
            asked.told = "refused"
            self.tell(process.name, "is told", type(error).__name__)
            self._no_trace(asked, error)
        else:
            asked.told, asked.answer = "accepted", message.id
            self._known.append(message.id)
            self.tell(process.name, "is told", f"accepted {message.id}")
        thread.seed = None

    def _no_trace(self, asked: Asked, error: DispatcherError) -> None:
        """A refusal leaves no place, at once, unless giving it back failed or a twin needs it."""
        if asked.key is not None or asked.leaks or asked.server != self.server.number:
            return
        members = {id_ for window in self.server.holds.windows.values() for id_ in window}
        for id_ in asked.ids:
            if id_.bytes in members and id_ not in self.tables.messages:
                name = type(error).__name__
                self.facts.wrong.append(f"{id_} was refused with {name} and has a place")

    def _draft(self) -> Draft:
        rng = self.rng
        if self._keys and rng.random() < 0.15:
            key, known = rng.choice(self._keys[-6:])
            if rng.random() < 0.9:
                return known
        else:
            key = f"key {self._number()}"
        options: dict[str, Any] = {}
        if rng.random() < 0.5:
            options["on_conflict"] = "shift"
        if rng.random() < 0.3:
            options["expire_after"] = timedelta(seconds=rng.choice([1, 4, 20]))
        draft = Draft(
            channel=rng.choice(["sms", "mail"]),
            recipient=rng.choice(SCOPES),
            body={"text": str(self._number())},
            send_in=timedelta(milliseconds=rng.choice([0, 500, 5_000, 20_000, 40_000]))
            + timedelta(milliseconds=rng.randrange(1_000)),
            idempotency_key=key if rng.random() < 0.5 else None,
            on_unknown=rng.choice(["retry", "retry", "hold", None]),
            **options,
        )
        if draft.idempotency_key is not None:
            self._keys.append((key, draft))
        return draft

    def _cancel(self, process: Process, changes: Changes) -> None:
        id_ = self.rng.choice(self._known[-15:])
        self.tell(process.name, "asks: cancel", str(id_))
        self.facts.perhaps_cancelled.add(id_)
        for _ in range(3):
            try:
                changes.cancel(id_)
            except (TooLate, MessageNotFound) as error:
                self._told_too_late(id_, error)
                self.tell(process.name, "is told", type(error).__name__)
                return
            except DispatcherError as error:
                self.tell(process.name, "is told", type(error).__name__)
            else:
                self.facts.cancelled.setdefault(id_, self.db_ms())
                self.tell(process.name, "is told", f"cancelled {id_}")
                return

    def _told_too_late(self, id_: UUID, error: DispatcherError) -> None:
        row = self.tables.messages.get(id_)
        # One that was being sent may have been put back since, and cancelled by another caller.
        was_final = not isinstance(error, TooLate) or error.status not in OPEN
        if was_final and row is not None and row.status is Status.CANCELLED:
            self.facts.wrong.append(f"{id_} is cancelled, but its caller was told {error}")

    def _reschedule(self, process: Process, changes: Changes) -> None:
        id_ = self.rng.choice(self._known[-2 if self._restless else -15 :])
        wish = Wish(
            send_in=timedelta(milliseconds=self.rng.choice([500, 5_000, 20_000, 20_000])),
            on_conflict=self.rng.choice(["reject", "shift"]),
        )
        self.tell(process.name, "asks: reschedule", str(id_))
        try:
            moved = changes.reschedule(id_, wish)
        except DispatcherError as error:
            self.tell(process.name, "is told", type(error).__name__)
        else:
            self.tell(process.name, "is told", f"moved to {moved.send_at.time()}")

    # What happens to all of them

    def _chaos(self) -> None:
        rng, weather = self.rng, self.weather
        while not weather.calm:
            self.scheduler.wait(rng.expovariate(0.4))
            if weather.calm:
                return
            what, act = rng.choice(self._disasters())
            weather.note(what)
            self.tell("chaos", what)
            act()

    def _disasters(self) -> list[tuple[str, Callable[[], None]]]:
        rng = self.rng
        living = [each for each in self._all if each.name not in ("chaos", "supervisor")]
        one = rng.choice(living)

        def outage(room: str) -> Callable[[], None]:
            def act() -> None:
                self.weather.outages.add(room)
                self.scheduler.wait(rng.choice([0.3, 2.0, 6.0]) * rng.random())
                self.weather.outages.discard(room)

            return act

        def freeze() -> None:
            one.frozen_until_us = self.scheduler.now_us + int(rng.choice([1, 6, 12]) * _SECOND)

        def shift() -> None:
            if not one.name.startswith("client"):
                one.shift_us += int(rng.uniform(-60, 60) * _SECOND)

        def keep() -> None:
            self._old = self.server.snapshot()

        def no_threads() -> None:
            self.scheduler.no_threads = True
            self.scheduler.wait(0.5)
            self.scheduler.no_threads = False

        def stop() -> None:
            if not self.workers:
                return
            worker = rng.choice(list(self.workers))
            self.workers[worker].stop()
            self.scheduler.wait(3 * rng.random())
            self.scheduler.kill(worker)

        return [
            ("redis is emptied", self.server.flush),
            ("redis fails over to older data", lambda: self.server.fail_over(self._old)),
            ("a replica begins to lag", keep),
            (f"{one.name} is killed", lambda: self.scheduler.kill(one)),
            (f"{one.name} freezes", freeze),
            (f"the clock of {one.name} jumps", shift),
            ("the store is away", outage("store")),
            ("redis is away", outage("redis")),
            ("the broker is away", outage("broker")),
            ("the system gives no more threads", no_threads),
            ("a worker is told to end", stop),
        ]

    def _calm(self) -> None:
        self.weather.calm = True
        self.weather.outages.clear()
        self.scheduler.no_threads = False
        self.tell("chaos", "it is calm")
        for process in self._all:
            process.frozen_until_us = 0

    def _is_settled(self) -> bool:
        return all(row.status.is_final or row.status is Status.HELD for row in self._rows())

    def _rows(self) -> list[Row]:
        return list(self.tables.messages.values())

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _server_clock(self, place: int) -> Callable[[], datetime]:
        def now() -> datetime:
            return START + timedelta(microseconds=self.scheduler.now_us + self._shifts_us[place])

        return now

    def new_id(self) -> UUID:
        """Return an id of version 7 by the clock of the process that asks for it."""
        thread = self.scheduler.running()
        made = (to_ms(thread.process.now()) << 80) | (7 << 76) | (2 << 62) | self._number()
        id_ = UUID(int=made)
        if isinstance(thread.seed, Asked):
            thread.seed.ids.append(id_)
        return id_


class WatchedClaims(MemoryClaims):
    """Claims. What is known of earlier tries when a message is claimed again is written down.

    And whether a claim is ended by one that is not the last: by a success alone.
    """

    def __init__(self, tables: Tables, facts: Facts, *, ttl: timedelta) -> None:
        super().__init__(tables, ttl=ttl)
        self._rows = tables
        self._facts = facts

    def claim(self, message_ids: Sequence[UUID], *, ahead: timedelta = timedelta(0)) -> list[Claim]:
        claims = super().claim(message_ids, ahead=ahead)
        for claim in claims:
            known = self._rows.outcomes(claim.message.id, before=claim.token)
            then = self._facts.known_then.setdefault(claim.message.id, [])
            then[len(then) :] = known[len(then) :]
        return claims

    def record(
        self, results: Sequence[Result], failures: Sequence[Failure], *, enqueue_in: timedelta
    ) -> set[UUID]:
        others = self._of_others(each.claim for each in failures)
        expired = super().record(results, failures, enqueue_in=enqueue_in)
        self._look_again(others)
        return expired

    def put_back(
        self, snoozed: Iterable[tuple[Claim, timedelta]], *, enqueue_in: timedelta
    ) -> None:
        given = list(snoozed)
        others = self._of_others(claim for claim, _ in given)
        super().put_back(given, enqueue_in=enqueue_in)
        self._look_again(others)

    def _of_others(self, claims: Iterable[Claim]) -> list[Row]:
        """Return the rows that somebody else has claimed since."""
        rows = ((self._rows.messages.get(each.message.id), each.token) for each in claims)
        return [
            row for row, token in rows
            if row and row.status is Status.SENDING and row.claim_token != token
        ]  # fmt: skip

    def _look_again(self, rows: Iterable[Row]) -> None:
        for row in rows:
            if row.status is not Status.SENDING:
                self._facts.wrong.append(f"the claim of {row.id} was ended by an older one")


@contextmanager
def patched(world: World) -> Iterator[None]:
    """Let the use cases take threads, ids and luck from the world."""
    threading = Threading(world.scheduler)
    log = logging.getLogger("dispatcher")
    level = log.level
    with ExitStack() as stack:
        for module in (hand_overs, lanes, round_, senders, stragglers):
            stack.enter_context(patch.object(module, "threading", threading))
        stack.enter_context(patch.object(senders, "SimpleQueue", lambda: Calls(world.scheduler)))
        stack.enter_context(patch.object(hand_overs, "random", world.rng))
        stack.enter_context(patch.object(sweep, "random", world.rng))
        stack.enter_context(patch.object(submission, "new_id", world.new_id))
        log.setLevel(logging.CRITICAL + 1)
        try:
            yield
        finally:
            log.setLevel(level)

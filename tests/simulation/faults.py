"""What goes wrong between a use case and the part that it calls."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from types import GeneratorType
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from dispatcher.errors import (
    DispatcherError,
    LimitersUnavailable,
    OutcomeUnknown,
    QueueUnavailable,
    ReservationsUnavailable,
    StoreUnavailable,
)
from dispatcher.reservation.shards import LegAnswer
from dispatcher.store.outbox import JoinedMessages
from dispatcher.store.schema import Addition
from tests.simulation.scheduler import Killed, Process

if TYPE_CHECKING:
    from tests.simulation.world import World


class Fault(StrEnum):
    REFUSED = "refused"
    LOST = "done, but its reply is lost"
    DIES_BEFORE = "its process dies before it"
    DIES_AFTER = "its process dies after it"
    FREEZES_BEFORE = "its process freezes before it"
    FREEZES_AFTER = "its process freezes after it"
    SLOW_BEFORE = "slow on its way"
    SLOW_AFTER = "slow on its way back"
    REPEATED = "done, and again when a copy comes late"


_KINDS = {
    Fault.REFUSED: 30, Fault.LOST: 40, Fault.DIES_BEFORE: 2, Fault.DIES_AFTER: 3,
    Fault.FREEZES_BEFORE: 3, Fault.FREEZES_AFTER: 5, Fault.SLOW_BEFORE: 6, Fault.SLOW_AFTER: 6,
    Fault.REPEATED: 12,
}  # fmt: skip


class Weather:
    """How often something goes wrong: different in each story, nothing once it is calm.

    Where ``kinds`` are named only those do. ``outages`` names the rooms that do not answer at all.
    """

    def __init__(self, rng: random.Random, kinds: Collection[Fault] = ()) -> None:
        self.rng = rng
        self.calm = False
        self.outages: set[str] = set()
        self.counts: Counter[str] = Counter()
        self.often = rng.choice([0.04, 0.1, 0.2, 0.35])
        self._kinds = list(_KINDS)
        # Each story has its own mixture, some lack whole kinds of faults.
        self._weights = [weight * rng.choice([0, 0.3, 1, 3]) for weight in _KINDS.values()]
        if kinds:
            self._weights = [float(kind in kinds) for kind in self._kinds]
        elif not any(self._weights):
            self._weights[0] = 1.0

    def draw(self, room: str) -> Fault | None:
        if self.calm:
            return None
        if room in self.outages:
            return self.count(Fault.REFUSED)
        if self.rng.random() >= self.often:
            return None
        return self.count(self.rng.choices(self._kinds, self._weights)[0])

    def count(self, fault: Fault) -> Fault:
        self.counts[fault] += 1
        return fault

    def note(self, what: str) -> None:
        self.counts[what] += 1

    @property
    def faults(self) -> int:
        return sum(self.counts.values())


_ROOMS: dict[str, Callable[[], DispatcherError]] = {
    "store": lambda: StoreUnavailable("the connection to the database broke"),
    "windows": lambda: ReservationsUnavailable("redis did not answer"),
    "permits": lambda: LimitersUnavailable("redis did not answer"),
    "queue": lambda: QueueUnavailable("the broker did not take the tasks"),
}
_COPIED = frozenset({"release_many", "release", "confirm"})
"""Calls of the windows that a client makes again on another line when no answer comes."""
_GIVES_BACK = ("windows.release_many", "store.stored")
_SERVER_OF = {"store": "store", "windows": "redis", "permits": "redis", "queue": "broker"}


class Reached:
    """A part as one process reaches it: each call is a step at which others may come between.

    ``breaks`` is called where the line breaks.
    """

    def __init__(
        self,
        part: object,
        room: str,
        process: Process,
        world: World,
        breaks: Callable[[], object] | None = None,
    ) -> None:
        self._part = part
        self._room = room
        self._process = process
        self._world = world
        self._scheduler = world.scheduler
        self._breaks = breaks

    def __getattr__(self, name: str) -> Any:
        target = getattr(self._part, name)
        if not callable(target):
            return target

        def call(*positional: Any, **named: Any) -> Any:
            return self._call(name, lambda: target(*positional, **named), positional)

        vars(self)[name] = call
        return call

    def _call(self, name: str, act: Callable[[], Any], about: tuple[Any, ...] = ()) -> Any:
        scheduler, rng = self._scheduler, self._world.rng
        scheduler.wait(0.0002 + 0.002 * rng.random())
        fault = self._world.weather.draw(_SERVER_OF[self._room])
        if fault is not None:
            self._tell(name, f"! {fault}")
            self._before(fault, name, about)
        try:
            answer = act()
        except DispatcherError as error:
            self._tell(name, f"raises {type(error).__name__}")
            raise
        if isinstance(answer, GeneratorType):
            return self._pages(name, answer)
        self._tell(name, "")
        if fault is Fault.REPEATED:
            self._repeat(name, act, about)
        if fault is not None:
            self._after(fault, name, about)
        scheduler.wait(0.0002 + 0.001 * rng.random())
        return answer

    def _tell(self, name: str, detail: str) -> None:
        what = f"{self._room}.{name}"
        self._world.tell(self._process.name, what, detail)
        if detail[:1] == "!" and what in _GIVES_BACK:
            asked = self._scheduler.running().seed
            if asked is not None:
                asked.leaks = True

    def _pages(self, name: str, pages: Iterator[Any]) -> Iterator[Any]:
        end: list[Any] = []
        while True:
            page = self._call(f"{name} page", lambda: next(pages, end))
            if page is end:
                return
            yield page

    def _before(self, fault: Fault, name: str, about: tuple[Any, ...]) -> None:
        rng = self._scheduler.rng
        if fault is Fault.REFUSED:
            if self._room == "store" and rng.random() < 0.1:
                raise StoreUnavailable("the database answered DataError", refused=True)
            if self._is_one(name, about) and rng.random() < 0.3:
                raise OutcomeUnknown("the connection to the database broke", about[0].message.id)
            raise self._error()
        if fault is Fault.SLOW_BEFORE:
            self._scheduler.wait(rng.choice([0.1, 1.0, 4.0]) * rng.random())
        elif fault is Fault.FREEZES_BEFORE:
            self._freeze()
        elif fault is Fault.DIES_BEFORE:
            self._die()

    def _after(self, fault: Fault, name: str, about: tuple[Any, ...]) -> None:
        rng = self._scheduler.rng
        if fault is Fault.LOST:
            self._scheduler.wait(0.01)
            if self._is_one(name, about):
                raise OutcomeUnknown("the connection to the database broke", about[0].message.id)
            raise self._error()
        if fault is Fault.SLOW_AFTER:
            self._scheduler.wait(rng.choice([0.1, 1.0, 4.0]) * rng.random())
        elif fault is Fault.FREEZES_AFTER:
            self._freeze()
        elif fault is Fault.DIES_AFTER:
            self._die()

    def _repeat(self, name: str, act: Callable[[], Any], about: tuple[Any, ...]) -> None:
        """Let a copy of a call arrive later, whatever its process does."""
        is_move = name == "book" and about[0][0][1].left_tail is not None
        if self._room != "windows" or (name not in _COPIED and not is_move):
            return

        def arrive() -> None:
            with suppress(DispatcherError):
                act()
            self._tell(name, "a copy has arrived")

        rng = self._scheduler.rng
        late = rng.choice([0.01, 1.0, 12.0]) * rng.random()
        self._scheduler.spawn(self._world.network, "a copy", arrive, after=late)

    def _is_one(self, name: str, about: tuple[Any, ...]) -> bool:
        """Whether a call adds one message, which may be stored where no answer comes."""
        return name == "add" and isinstance(about[0], Addition) and self._breaks is None

    def _error(self) -> DispatcherError:
        if self._breaks is not None:
            self._breaks()
        return _ROOMS[self._room]()

    def _freeze(self) -> None:
        length_us = int(self._scheduler.rng.uniform(0.5, 9.0) * 1_000_000)
        self._process.frozen_until_us = self._scheduler.now_us + length_us
        self._scheduler.wait(0.0)

    def _die(self) -> None:
        self._scheduler.kill(self._process)
        self._scheduler.wait(0.0)


class MessagesLine:
    """The messages as a client reaches them: what goes wrong while many are added is an answer."""

    def __init__(self, reached: Any) -> None:
        self._reached = reached

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reached, name)

    def lacks(self, _: str) -> bool:
        """SQLite stores all characters: it is not asked."""
        return False

    def add_together(self, additions: Iterable[Addition], **more: bool) -> bool | None:
        every = list(additions)
        try:
            return cast("bool | None", self._reached.add_together(every, **more))
        except StoreUnavailable as error:
            return False if error.refused else None


class Line:
    """The shards as a client reaches them that makes a call for many messages once more.

    ``reached`` is where calls may go wrong.
    """

    def __init__(self, reached: Any) -> None:
        self._reached = reached

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reached, name)

    def book(self, asked: Sequence[Any], **more: Any) -> list[LegAnswer]:
        try:
            return cast("list[LegAnswer]", self._reached.book(asked, **more))
        except ReservationsUnavailable:
            if len(asked) == 1:
                raise
            return cast("list[LegAnswer]", self._reached.book(asked, **more))


OnEnd = Callable[[Sequence[Any], bool], None]


@dataclass(frozen=True, slots=True)
class _End:
    """What a process does at the end of a transaction; nothing once it is dead."""

    process: Process
    on_end: OnEnd

    def __call__(self, joined: Sequence[Any], is_certain: bool) -> None:
        with suppress(Killed):  # the pool gets its connection back
            if self.process.alive:
                self.on_end(joined, is_certain)


class JoinedLine:
    """The messages of transactions as a process reaches them; one ends where its line breaks."""

    def __init__(self, real: JoinedMessages, process: Process, world: World) -> None:
        self._real = real
        self._process = process
        self._world = world

    def join(self, session: Session, on_end: OnEnd) -> Any:
        transaction = self._real.join(session, _End(self._process, on_end))
        breaks = session.connection().invalidate
        return Reached(transaction, "store", self._process, self._world, breaks)

    def stored(self, message_ids: Sequence[UUID]) -> Any:
        return Reached(self._real, "store", self._process, self._world).stored(message_ids)


class CallersSession(Session):
    def __init__(self, connection: Connection, process: Process) -> None:
        super().__init__(connection)
        self._line = connection
        self._process = process

    @property
    def is_open(self) -> bool:
        return not self._line.invalidated

    def close(self) -> None:
        """Close it and its connection, also in a process that has died."""
        if not self._process.alive and self.is_open:
            self._line.invalidate()
        super().close()
        self._line.close()

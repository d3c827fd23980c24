"""What happens to processes and servers, whatever they are doing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.simulation.scheduler import Process

if TYPE_CHECKING:
    from tests.simulation.world import World

_SECOND = 1_000_000
Disaster = tuple[str, Callable[[], None]]


class Chaos:
    """Lets something happen every few seconds, as long as it storms."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = world.rng

    def work(self) -> None:
        world, weather = self._world, self._world.weather
        while not weather.calm:
            world.scheduler.wait(self._rng.expovariate(0.4))
            if weather.calm:
                return
            disasters = self._disasters()
            weights = [0.5, 0.5, *[1.0] * (len(disasters) - 2)]  # after those few are accepted
            what, act = self._rng.choices(disasters, weights)[0]
            weather.note(what)
            world.tell("chaos", what)
            act()

    def _disasters(self) -> list[Disaster]:
        server, scheduler = self._world.server, self._world.scheduler
        names = ("chaos", "supervisor")
        one = self._rng.choice([who for who in self._world.everybody if who.name not in names])
        return [
            ("redis is emptied", server.flush),
            ("redis fails over to older data", lambda: server.fail_over(self._world.fence)),
            ("a replica begins to lag", server.keep),
            (f"{one.name} is killed", lambda: scheduler.kill(one)),
            (f"{one.name} freezes", lambda: self._freeze(one)),
            (f"the clock of {one.name} jumps", lambda: self._shift(one)),
            ("the store is away", lambda: self._away("store")),
            ("redis is away", lambda: self._away("redis")),
            ("the broker is away", lambda: self._away("broker")),
            ("the system gives no more threads", self._no_threads),
            ("a worker is told to end", self._stop),
        ]

    def _freeze(self, one: Process) -> None:
        length_us = int(self._rng.choice([1, 6, 12]) * _SECOND)
        one.frozen_until_us = self._world.scheduler.now_us + length_us

    def _shift(self, one: Process) -> None:
        if not one.name.startswith(("client", "booker")):
            one.shift_us += int(self._rng.uniform(-60, 60) * _SECOND)

    def _away(self, room: str) -> None:
        self._world.weather.outages.add(room)
        self._world.scheduler.wait(self._rng.choice([0.3, 2.0, 6.0]) * self._rng.random())
        self._world.weather.outages.discard(room)

    def _no_threads(self) -> None:
        self._world.scheduler.no_threads = True
        self._world.scheduler.wait(0.5)
        self._world.scheduler.no_threads = False

    def _stop(self) -> None:
        if not self._world.workers:
            return
        worker = self._rng.choice(list(self._world.workers))
        self._world.workers[worker].delivery.stop_flag[0] = 1
        self._world.scheduler.wait(3 * self._rng.random())
        self._world.scheduler.kill(worker)

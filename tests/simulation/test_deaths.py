"""A pass that books series dies at each of its fault points: each occurrence is booked once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from dispatcher.errors import DispatcherError
from tests.simulation.judge import judge
from tests.simulation.recurring import Organiser
from tests.simulation.scheduler import Process
from tests.simulation.world import World, patched
from tests.support.examples import examples

DEATHS = 10
"""How often at least a pass dies at each point in one story."""
STORIES = examples(10)
"""A hundred are a thousand deaths at each point, in seven minutes of processor time."""
_POINTS = (
    "series.after_take", "cancel.after_rows", "series.after_cancel", "submit.before_reserve",
    "reserve.between_shards", "submit.after_reserve", "submit.after_commit", "series.after_batch",
)  # fmt: skip
_OF_CALLERS = ("series.after_change", "series.after_removal")
_FIELDS: dict[str, Any] = {
    "rule": "FREQ=HOURLY", "channel": "push", "zone": "UTC", "missed": "all",
    "recipients": [("dan", None, None), ("eve", None, None)], "scopes": {"tenant": "red"},
}  # fmt: skip
_LATER = timedelta(minutes=6)
"""How long after one pass the next begins."""


class _Deadly(World):
    """A story without weather, in which what runs dies where it comes to ``point``."""

    settings = World.settings.model_copy(update={"book_ahead": timedelta(hours=2)})
    point = ""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.weather.calm = True
        self.died: Counter[str] = Counter()

    def pass_by(self, point: str) -> None:
        if point == self.point:
            self.died[point] += 1
            self.scheduler.kill(self.scheduler.running().process)
            self.scheduler.wait(0.0)

    def act(self, act: Callable[[Process], object], point: str = "") -> None:
        """Let a process of its own do something, and die at a point."""
        process, self.point = self._process("one", 0), point
        self.scheduler.spawn(process, "act", partial(act, process))
        self._pass(_LATER.seconds)
        self.scheduler.kill(process)

    def do(self, duty: str, process: Process) -> None:
        with suppress(DispatcherError):
            self.wiring.duties(self.wiring.app(process))[duty]()

    def ask(self, op: str, process: Process, **fields: Any) -> None:
        asks = Organiser(self, process, self.wiring.app(process))
        if op in ("add", "end"):
            getattr(asks, op)(**fields)
        else:
            act = partial(getattr(asks.series, op), **fields)
            asks.ask(f"{op}_series", f"series:{fields['name']}", act)


@pytest.mark.parametrize("seed", range(STORIES))
def test_each_occurrence_is_booked_once_wherever_a_pass_dies(seed: int) -> None:
    """Meanwhile callers die who change one series and remove the other."""
    world = _Deadly(seed)
    book, reconcile = (partial(world.do, duty) for duty in ("book_ahead", "reconcile"))
    points, turns = (*_POINTS, *_OF_CALLERS), 0
    with patched(world):
        world.act(reconcile)
        world.act(partial(world.ask, "add", name="s0", **_FIELDS))
        while min(world.died[point] for point in points) < DEATHS:
            assert turns < 3 * DEATHS, world.died
            world.act(partial(world.ask, "add", name="s1", **_FIELDS))
            world.act(book)
            rule = f"FREQ=HOURLY;BYMINUTE={turns}"
            world.act(partial(world.ask, "change", name="s0", rule=rule), "series.after_change")
            world.act(partial(world.ask, "remove", name="s1"), "series.after_removal")
            for point in _POINTS:
                world.act(book, point)
            world.act(book)
            world.act(reconcile)
            turns += 1
        world.act(partial(world.ask, "end"))
        for _ in range(4):
            world.act(reconcile)
    assert judge(world) == []

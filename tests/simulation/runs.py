"""Plays stories one after the other and judges each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.simulation.judge import judge
from tests.simulation.world import World


@dataclass(slots=True)
class Found:
    faults: int = 0
    stories: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    broken: dict[int, list[str]] = field(default_factory=dict)


def played(seed: int) -> World:
    world = World(seed)
    world.play()
    return world


def search(*, faults: int, first: int = 0, stop_at_first: bool = True) -> Found:
    """Play stories from seed ``first`` on until so much has gone wrong in them."""
    found = Found()
    seed = first
    while found.faults < faults and not (found.broken and stop_at_first):
        world = played(seed)
        found.faults += world.weather.faults
        found.stories += 1
        found.counts += world.weather.counts
        if broken := judge(world):
            found.broken[seed] = broken
        seed += 1
    return found


def told(world: World, about: str = "") -> Iterator[str]:
    """Yield the story, one line a step; with ``about`` only what names it."""
    for at_us, who, what, detail in world.story:
        line = f"{at_us / 1_000_000:11.6f}  {who:<10}  {what:<28} {detail}"
        if about in line:
            yield line.rstrip()

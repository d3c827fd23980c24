"""Search all that may happen while one message is moved: ``python -m tests.support.moves_search``.

Breadth first, so that the first story found is a shortest one.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from tests.support.moves_house import Happenings, House, State, Sweep, Turns
from tests.support.moves_model import GRACE, Windows


@dataclass(frozen=True, slots=True)
class Found:
    """What a search has found: a promise that is broken, and a shortest story to that.

    ``steps`` are those that movers came to: what was not reached was not searched.
    """

    states: int
    broken: str = ""
    story: tuple[str, ...] = ()
    steps: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return "\n  ".join(
            (f"{self.broken or 'nothing broken'}, {self.states} states", *self.story)
        )


class Search:
    """Looks at every state that a house can come to.

    In each, the time of a scheduled row has the place of its message or a hold in every window. And
    from each, were everybody to die in it, two sweeps make the windows agree with the row.
    """

    def __init__(self, house: House) -> None:
        self._happenings = Happenings(house)
        self._healed: dict[tuple[object, ...], str] = {}

    def run(self) -> Found:
        """Search, and stop at the first promise that is broken."""
        first = self._happenings.at_first()
        before: dict[State, tuple[State, str] | None] = {first: None}
        coming = deque([first])
        steps: set[str] = set()
        while coming:
            state = coming.popleft()
            for told, after in self._happenings.next(state):
                if after in before:
                    continue
                before[after] = (state, told)
                steps.update(mover.step for mover in after.movers)
                broken = self._broken(after)
                if broken:
                    return Found(len(before), broken, _story(before, after), frozenset(steps))
                coming.append(after)
        return Found(len(before), steps=frozenset(steps))

    def _broken(self, state: State) -> str:
        return self._uncovered(state) or self._robbed(state) or self._unhealed(state)

    def _uncovered(self, state: State) -> str:
        """Say in which window the row's time is without a place.

        Known and left (decision 0031): a hold that a rebuild did not know is held again by its
        mover, or put right by the sweep, but for a while the row's time has no place.
        """
        at = state.row.time
        if not state.row.is_scheduled:
            return ""
        for number, window in enumerate(state.windows.each):
            if not window.keeps(at) and at not in window.lost:
                return f"time {at} of the row has no place in window {number}"
        return ""

    def _robbed(self, state: State) -> str:
        """Say which old time another message got while its mover might still go back to it."""
        for mover in state.movers:
            if mover.step == "kept":
                for number, window in enumerate(state.windows.each):
                    if mover.before in window.booked:
                        return f"another message has the old time of {mover.name} in {number}"
        return ""

    def _unhealed(self, state: State) -> str:
        """Say what two sweeps leave wrong when nobody else does anything any more.

        Known and left (docs/reliability.md): no hold is left, because a rebuild did not know it;
        its mover changes the row just when its grace ends, while the sweep confirms the old place;
        and it dies before it holds the new place again, or has lost that and cannot go back.
        """
        is_under_way = any(mover.step != "end" for mover in state.movers)
        is_known = is_under_way and not any(each.holds for each in state.windows.each)
        known = [is_known and state.row.time in each.lost for each in state.windows.each]
        key = (state.row, state.windows, tuple(known))
        if key not in self._healed:
            self._healed[key] = self._after_sweeps(state, known)
        return self._healed[key]

    def _after_sweeps(self, state: State, known: Sequence[bool]) -> str:
        state = state._replace(movers=(), sweep=Sweep(), late=(), freed=None)
        for _ in range(2):
            windows = self._happenings.scripts.forget(state.windows.later(GRACE))
            state = state._replace(windows=windows, turns=Turns(sweeps=1))
            while step := next(self._happenings.sweep(state), None):
                state = step[1]
        return _left(state.windows, state.row.time if state.row.is_scheduled else None, known)


def _left(windows: Windows, own: int | None, known: Sequence[bool]) -> str:
    for number, window in enumerate(windows.each):
        if window.holds:
            return f"after two sweeps window {number} has the hold {window.holds[0].name}"
        if window.own != own and not known[number]:
            return f"after two sweeps window {number} has {window.own}, the row {own}"
    return ""


def _story(before: dict[State, tuple[State, str] | None], state: State) -> tuple[str, ...]:
    story: list[str] = []
    while (step := before[state]) is not None:
        state, told = step
        story.append(told)
    return tuple(reversed(story))


LARGE = (
    House("one window", (1, 2), turns=Turns(ticks=4, sweeps=2)),
    House("one window", (1, 2), turns=Turns(ticks=2, sweeps=1, copies=1)),
    House("one window", (1, 2), turns=Turns(ticks=2, sweeps=1, cancels=1)),
    House("one window", (1, 2), turns=Turns(ticks=2, sweeps=1, bookings=1, rebuilds=1)),
    House("one window", (1, 2), tries=2, turns=Turns(ticks=3, sweeps=1)),
    House("one window", (1, 2, 1), turns=Turns(ticks=3, sweeps=0)),
    House("two windows of a group", (1, 2), turns=Turns(ticks=3, sweeps=1)),
    House("two windows of a group", (1,), turns=Turns(ticks=3, sweeps=2, copies=1)),
    House("two shards", (1, 2), turns=Turns(ticks=2, sweeps=1)),
    House("two shards", (1,), turns=Turns(ticks=2, sweeps=1, bookings=1, rebuilds=1)),
    House("own shard twice", (1, 2), turns=Turns(ticks=2)),
    House("own shard twice", (1,), turns=Turns(ticks=2, sweeps=1, copies=1)),
    House("own shard twice", (1,), turns=Turns(ticks=2, sweeps=1, cancels=1)),
)
"""What ``make test`` has no time for: up to some hundred thousand states each."""


def main() -> int:
    """Search large houses; return 1 when a promise was broken."""
    broken = False
    for house in LARGE:
        started = time.process_time()
        found = Search(house).run()
        took = time.process_time() - started
        told = f"{house.layout}, wishes {house.wishes}, {house.turns}"
        print(f"{told}: {found}, {took:.0f} s", flush=True)  # noqa: T201 - a command
        broken = broken or bool(found.broken)
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())

"""Search all that may happen while one message is moved: ``python -m tests.support.moves_search``.

Breadth first, so that the first story found is a shortest one.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.support.moves_model import (
    GRACE,
    LAYOUTS,
    OWN,
    Call,
    Mover,
    Moves,
    Protocol,
    Row,
    Scripts,
    Side,
    Windows,
)

# Everybody who touches the message: beside the movers a sweep (``_settle_unconfirmed`` and
# ``_release_unneeded`` in ``delivery/reconciler.py``), a cancel, another message that wants a
# place, a shard that is rebuilt, copies of calls that arrive late, and the clock. Each has a
# bounded number of turns.


class Turns(NamedTuple):
    """How often each may have a turn yet."""

    ticks: int = 0
    sweeps: int = 0
    copies: int = 0
    cancels: int = 0
    bookings: int = 0
    rebuilds: int = 0


class Sweep(NamedTuple):
    """A ``reconcile`` under way: which step comes next, and what it has found.

    ``found`` are windows and members, ``until`` is up to which entry in ``pending`` counts.
    """

    step: str = "find"
    found: tuple[tuple[int, str], ...] = ()
    until: int = 0
    row: Row = Row()


class State(NamedTuple):
    """All there is. ``freed`` is the next group that the cancel releases."""

    row: Row
    windows: Windows
    movers: tuple[Mover, ...] = ()
    sweep: Sweep = Sweep()
    late: tuple[Call, ...] = ()
    freed: int | None = None
    turns: Turns = Turns()


Step = tuple[str, State]


@dataclass(frozen=True, slots=True)
class House:
    """Who is there, and what may happen next."""

    layout: str
    wishes: tuple[int, ...] = (1,)
    tries: int = 1
    turns: Turns = field(default_factory=Turns)
    protocol: Protocol = field(default_factory=Protocol)


class Happenings:
    """What may happen in a house."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.scripts = Scripts(LAYOUTS[house.layout], house.protocol)
        self._moves = Moves(self.scripts)

    def at_first(self) -> State:
        """Return the message at time 0, and movers who want it elsewhere."""
        house = self.house
        movers = tuple(
            Mover(f"m{number}", wish, house.tries) for number, wish in enumerate(house.wishes, 1)
        )
        return State(Row(), self.scripts.at_first(), movers, turns=house.turns)

    def next(self, state: State) -> Iterator[Step]:
        """Yield all that may happen next, and what comes of each."""
        yield from self._movers(state)
        yield from self.sweep(state)
        yield from self._cancel(state)
        yield from self._others(state)
        yield from self._late(state)
        yield from self._clock(state)

    def _movers(self, state: State) -> Iterator[Step]:
        side = Side(state.row, state.windows)
        for number, mover in enumerate(state.movers):
            done = self._moves.next(side, mover)
            if done is not None:
                told, (row, windows), then, call = done
                movers = (*state.movers[:number], then, *state.movers[number + 1 :])
                after = state._replace(row=row, windows=windows, movers=movers)
                yield from self._twice(f"{mover.name} {told}", after, call)

    def _twice(self, told: str, after: State, call: Call | None) -> Iterator[Step]:
        """Yield a step, and the same where a copy of its call is on its way yet."""
        yield told, after
        if call is not None and after.turns.copies:
            turns = after.turns._replace(copies=after.turns.copies - 1)
            late = tuple(sorted((*after.late, call)))
            yield f"{told} (a copy is on its way)", after._replace(late=late, turns=turns)

    def _late(self, state: State) -> Iterator[Step]:
        for place, call in enumerate(state.late):
            windows, reply = self.scripts.run(state.windows, call)
            late = state.late[:place] + state.late[place + 1 :]
            yield f"a copy arrives: {call}: {reply}", state._replace(windows=windows, late=late)

    def _clock(self, state: State) -> Iterator[Step]:
        if state.turns.ticks:
            turns = state.turns._replace(ticks=state.turns.ticks - 1)
            windows = self.scripts.forget(state.windows.later(1))
            yield f"it is {windows.now}", state._replace(windows=windows, turns=turns)

    def _cancel(self, state: State) -> Iterator[Step]:
        row, turns = state.row, state.turns
        if turns.cancels and row.is_scheduled:
            turns = turns._replace(cancels=turns.cancels - 1)
            row = row._replace(is_scheduled=False)
            yield "cancel", state._replace(row=row, turns=turns, freed=0)
        if state.freed is not None:
            call = Call("release", state.freed)
            windows, _ = self.scripts.run(state.windows, call)
            freed = state.freed + 1 if state.freed + 1 < len(self.scripts.layout) else None
            yield f"cancel: {call}", state._replace(windows=windows, freed=freed)

    def _others(self, state: State) -> Iterator[Step]:
        if state.turns.bookings:
            turns = state.turns._replace(bookings=state.turns.bookings - 1)
            for number, window in enumerate(state.windows.each):
                for time in sorted({0, *self.house.wishes}):
                    if time in window.booked or window.keeps(time):
                        continue
                    booked = window._replace(booked=tuple(sorted((*window.booked, time))))
                    windows = state.windows.put(number, booked)
                    told = f"another message gets time {time} [{number}]"
                    yield told, state._replace(windows=windows, turns=turns)
        if state.turns.rebuilds:
            turns = state.turns._replace(rebuilds=state.turns.rebuilds - 1)
            for shard in sorted({group.shard for group in self.scripts.layout}):
                windows = self._rebuilt(state, shard)
                yield f"shard {shard} is rebuilt", state._replace(windows=windows, turns=turns)

    def _rebuilt(self, state: State, shard: int) -> Windows:
        windows = state.windows
        for number, window in enumerate(windows.each):
            if self.scripts.shards[number] == shard:
                own = state.row.time if state.row.is_scheduled else None
                pending = None if own is None else windows.now
                lost = {each.time for each in window.holds} - {own}
                restored = window._replace(own=own, pending=pending, holds=(), told=-1)
                windows = windows.put(number, restored._replace(lost=tuple(sorted(lost))))
        return windows

    def sweep(self, state: State) -> Iterator[Step]:
        """Yield the next step of the sweep."""
        sweep = state.sweep
        if sweep.step == "find":
            if state.turns.sweeps:
                yield from self._find(state)
        elif sweep.step == "bar":
            row = state.row._replace(token=state.row.token + 1)
            after = state._replace(row=row, sweep=sweep._replace(step="look"))
            yield f"sweep bars moves: token {row.token}", after
        elif sweep.step == "look":
            row = state.row
            beside = row.is_scheduled and any(member for _, member in sweep.found)
            beside = beside and self.house.protocol.sweep_looks_beside
            sweep = sweep._replace(step="add" if beside else "settle", row=row)
            yield f"sweep reads the row: time {row.time}", state._replace(sweep=sweep)
        elif sweep.step == "add":
            yield self._add(state)
        elif sweep.step == "settle":
            yield from self._settle(state)
        elif sweep.step == "release":
            yield self._release(state)
        elif sweep.step == "mark":
            row = state.row._replace(is_reserved=False)
            yield "sweep notes that it is released", state._replace(row=row, sweep=Sweep())

    def _find(self, state: State) -> Iterator[Step]:
        until = state.windows.now - GRACE
        entries: list[tuple[int, int, int, str]] = []
        for number, window in enumerate(state.windows.each):
            shard = self.scripts.shards[number]
            entries += [
                (shard, each.since, number, each.name)
                for each in window.holds
                if each.since <= until
            ]
            if window.pending is not None and window.pending <= until:
                entries.append((shard, window.pending, number, OWN))
        found = tuple((number, name) for _, _, number, name in sorted(entries))
        needs_release = not state.row.is_scheduled and state.row.is_reserved
        if not found and not needs_release:
            return
        is_barring = self.house.protocol.sweep_bars and any(name for _, name in found)
        step = ("bar" if is_barring else "look") if found else "release"
        turns = state.turns._replace(sweeps=state.turns.sweeps - 1)
        names = ", ".join(f"{name or 'own place'} [{number}]" for number, name in found)
        sweep = Sweep(step, found, until) if found else Sweep(step)
        yield f"sweep finds {names or 'a cancelled one'}", state._replace(sweep=sweep, turns=turns)

    def _add(self, state: State) -> Step:
        """Let the own places be confirmed in all windows, as ``Upkeep.await_confirmation`` does."""
        sweep, windows = state.sweep, state.windows
        for number, window in enumerate(windows.each):
            if window.pending is None:
                windows = windows.put(number, window._replace(pending=sweep.until))
        found = sweep.found + tuple((number, OWN) for number in range(len(windows.each)))
        sweep = sweep._replace(step="settle", found=found)
        return "sweep adds all own places", state._replace(windows=windows, sweep=sweep)

    def _settle(self, state: State) -> Iterator[Step]:
        sweep, row = state.sweep, state.sweep.row
        (number, member), *rest = sweep.found
        script = "confirm" if row.is_scheduled else "orphan"
        call = Call(script, number, member, row.time, row.token, sweep.until)
        windows, reply = self.scripts.run(state.windows, call)
        if rest:
            sweep = sweep._replace(found=tuple(rest))
        else:
            needs_release = not state.row.is_scheduled and state.row.is_reserved
            sweep = Sweep("release") if needs_release else Sweep()
        after = state._replace(windows=windows, sweep=sweep)
        is_repeated = call if script == "confirm" else None
        yield from self._twice(f"sweep: {call}: {reply}", after, is_repeated)

    def _release(self, state: State) -> Step:
        windows = state.windows
        for number, window in enumerate(windows.each):
            windows = windows.put(number, window._replace(own=None))
        sweep = Sweep("mark")
        return "sweep releases all places", state._replace(windows=windows, sweep=sweep)


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

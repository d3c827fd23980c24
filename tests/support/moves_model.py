"""A model of the windows of one message that is moved: what the scripts of a move do to them.

Times and instants are small numbers; ``GRACE`` and ``LIFE`` are lengths. Redis and the database
have one clock. Every window has room for one place at a time, so that a time that nothing keeps
may become another message's. Who calls the scripts, and in which order, is in ``movers.py`` and
``moves_house.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

GRACE = 1
LIFE = 2 * GRACE
"""How long a window remembers what it was told, and for how long a hold can be taken."""
OWN = ""
"""The member that is the message itself; every other member is a hold."""


class Group(NamedTuple):
    """Windows of one shard that one call changes together."""

    shard: int
    windows: tuple[int, ...]


Layout = tuple[Group, ...]
LAYOUTS: dict[str, Layout] = {
    "one window": (Group(0, (0,)),),
    "two windows of a group": (Group(0, (0, 1)),),
    "two shards": (Group(0, (0,)), Group(1, (1,))),
    "own shard twice": (Group(1, (0,)), Group(0, (1,)), Group(1, (2,))),
}


@dataclass(frozen=True, slots=True)
class Protocol:
    """What keeps moves apart. Each is True in the product; a mutant does without one of them."""

    sweep_bars: bool = True
    sweep_looks_beside: bool = True
    take_compares_tokens: bool = True
    windows_are_told_singly: bool = True
    holds_have_a_life: bool = True
    take_waits_for_all_shards: bool = True
    change_is_guarded: bool = True
    mover_looks_again: bool = True


class Hold(NamedTuple):
    """A place that is not the message's yet. It is pending ``since`` then."""

    name: str
    time: int
    since: int


class Window(NamedTuple):
    """One window, with its part of ``pending`` and of ``moved:<id>``.

    ``own`` is the place of the message, ``pending`` since when that waits for the store, ``told``
    the highest token it remembers, ``booked`` what other messages have. ``lost`` are the times of
    holds that a rebuild did not know.
    """

    own: int | None = 0
    pending: int | None = None
    holds: tuple[Hold, ...] = ()
    told: int = -1
    booked: tuple[int, ...] = ()
    lost: tuple[int, ...] = ()

    def hold(self, name: str) -> Hold | None:
        """Return the hold of that name."""
        return next((each for each in self.holds if each.name == name), None)

    def without(self, name: str) -> Window:
        """Return the window without a hold."""
        return self._replace(holds=tuple(each for each in self.holds if each.name != name))

    def with_hold(self, hold: Hold) -> Window:
        """Return the window with a hold, in place of one of the same name."""
        return self._replace(holds=tuple(sorted((*self.without(hold.name).holds, hold))))

    def keeps(self, time: int) -> bool:
        """Tell whether the message has that time here, as its place or as a hold."""
        return self.own == time or any(each.time == time for each in self.holds)

    def is_free(self, time: int, *but: str) -> bool:
        """Tell whether the message may hold a time here, where these holds count as free."""
        others = (each for each in self.holds if each.name not in but)
        return time not in self.booked and all(each.time != time for each in others)


class Windows(NamedTuple):
    """All windows of the message. ``ends`` is when each shard forgets what it was told."""

    now: int
    each: tuple[Window, ...]
    ends: tuple[int, ...]

    def put(self, number: int, window: Window) -> Windows:
        """Return the windows with another one in place of one."""
        return self._replace(each=(*self.each[:number], window, *self.each[number + 1 :]))

    def later(self, by: int) -> Windows:
        """Return the windows some time later."""
        return self._replace(now=self.now + by)


class Call(NamedTuple):
    """A call of a script. ``place`` is a group, of ``confirm`` and ``orphan`` a window.

    ``instant`` is, for ``take``, since when the place was held; for ``confirm`` and ``orphan``, up
    to which entry in ``pending`` counts.
    """

    script: str
    place: int
    member: str = OWN
    time: int = 0
    token: int = 0
    instant: int = 0
    beside: str = OWN

    def __str__(self) -> str:
        about = f" {self.member or 'own place'}" if self.script != "release" else ""
        return f"{self.script}{about} [{self.place}]"


Reply = int | None
"""Of ``move`` when the place is held since, None where it is blocked; of ``take`` 1 or 0."""


class Scripts:
    """The scripts of a move, in one layout, by one protocol."""

    def __init__(self, layout: Layout, protocol: Protocol) -> None:
        self.layout = layout
        self.protocol = protocol
        shards = {number: group.shard for group in layout for number in group.windows}
        self.shards = tuple(shards[number] for number in sorted(shards))
        """The shard of each window."""
        self._scripts: dict[str, Callable[[Windows, Call], tuple[Windows, Reply]]] = {
            "move": self._move,
            "take": self._take,
            "drop": self._drop,
            "release": self._release,
            "confirm": self._confirm,
            "orphan": self._orphan,
        }

    def at_first(self) -> Windows:
        """Return windows that have the message at time 0."""
        return Windows(0, (Window(),) * len(self.shards), (0,) * (1 + max(self.shards)))

    def run(self, windows: Windows, call: Call) -> tuple[Windows, Reply]:
        """Do what a call does."""
        return self._scripts[call.script](windows, call)

    def _told(self, windows: Windows, number: int) -> int:
        is_known = windows.ends[self.shards[number]] > windows.now
        return windows.each[number].told if is_known else -1

    def _tell(self, windows: Windows, number: int, token: int) -> Windows:
        shard = self.shards[number]
        for other, its in enumerate(self.shards):
            if its == shard:
                is_it = other == number or not self.protocol.windows_are_told_singly
                told = token if is_it else self._told(windows, other)
                windows = windows.put(other, windows.each[other]._replace(told=told))
        ends = list(windows.ends)
        ends[shard] = windows.now + LIFE
        return windows._replace(ends=tuple(ends))

    def forget(self, windows: Windows) -> Windows:
        """Return the windows without what they no longer remember."""
        for number in range(len(self.shards)):
            told = self._told(windows, number)
            windows = windows.put(number, windows.each[number]._replace(told=told))
        ends = tuple(end if end > windows.now else 0 for end in windows.ends)
        return windows._replace(ends=ends)

    def _move(self, windows: Windows, call: Call) -> tuple[Windows, Reply]:
        places = self.layout[call.place].windows
        held = [windows.each[number].hold(call.member) for number in places]
        if all(each and each.time == call.time for each in held):
            return windows, windows.now
        but = (call.member, call.beside)
        if not all(windows.each[number].is_free(call.time, *but) for number in places):
            return windows, None
        hold = Hold(call.member, call.time, windows.now)
        for number in places:
            windows = windows.put(number, windows.each[number].with_hold(hold))
        return windows, windows.now

    def _take(self, windows: Windows, call: Call) -> tuple[Windows, Reply]:
        places = self.layout[call.place].windows
        compares = self.protocol.take_compares_tokens
        late = {n for n in places if compares and self._told(windows, n) >= call.token}
        has_life = self.protocol.holds_have_a_life
        is_alive = not has_life or call.instant > windows.now - LIFE
        for number in places:
            hold = windows.each[number].hold(call.member)
            if number not in late and not (is_alive and hold and hold.time == call.time):
                return windows, 0
        for number in places:
            window = windows.each[number].without(call.member)
            if number not in late:
                window = window._replace(own=call.time, pending=windows.now)
            windows = windows.put(number, window)
        for number in places:
            if number not in late:
                windows = self._tell(windows, number, call.token)
        return windows, 1

    def _drop(self, windows: Windows, call: Call) -> tuple[Windows, Reply]:
        for number in self.layout[call.place].windows:
            windows = windows.put(number, windows.each[number].without(call.member))
        return windows, 1

    def _release(self, windows: Windows, call: Call) -> tuple[Windows, Reply]:
        for number in self.layout[call.place].windows:
            window = windows.each[number]._replace(own=None, pending=None)
            windows = windows.put(number, window)
        return windows, 1

    def _counts(self, window: Window, call: Call) -> bool:
        hold = window.hold(call.member)
        since = (hold.since if hold else None) if call.member else window.pending
        return since is not None and since <= call.instant

    def _confirm(self, windows: Windows, call: Call) -> tuple[Windows, Reply]:
        number, window = call.place, windows.each[call.place]
        is_asked_again = window.pending is not None and window.pending > call.instant
        if not self._counts(window, call) or is_asked_again:
            return windows, 0
        is_old = self._told(windows, number) > call.token
        if is_old and not call.member:
            return windows, 0
        if call.member:
            windows = windows.put(number, window.without(call.member))
            if not is_old:
                windows = self._tell(windows, number, call.token)
        else:
            windows = windows.put(number, window._replace(pending=None))
        window = windows.each[number]
        if is_old or window.own == call.time:
            return windows, 0
        return windows.put(number, window._replace(own=call.time)), 1

    def _orphan(self, windows: Windows, call: Call) -> tuple[Windows, Reply]:
        window = windows.each[call.place]
        if not self._counts(window, call):
            return windows, 0
        if call.member:
            return windows.put(call.place, window.without(call.member)), 1
        return windows.put(call.place, window._replace(own=None, pending=None)), 1

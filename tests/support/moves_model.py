"""A model of the windows of one message that is moved: what the scripts of a move do to them.

Times and instants are small numbers; ``GRACE`` and ``LIFE`` are lengths. Redis and the database
have one clock. Every window has room for one place at a time, so that a time that nothing keeps
may become another message's. Below are those who move the message; who else touches it is in
``moves_search.py``.
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


# Those who move the message, step by step: what each may do next. A step is one call of a script
# or one transaction, as in ``submission/moves.py`` and ``reservation/windows.py``; between any two
# of them everybody else may do theirs. A mover that stands still, or has died, is one whose next
# step is not chosen.

_ROUNDS = 2
"""How often a mover tries to take what it holds."""


class Row(NamedTuple):
    """The message in the store. ``is_reserved`` until a cancelled one is known to be released."""

    time: int = 0
    token: int = 0
    is_scheduled: bool = True
    is_reserved: bool = True


class Mover(NamedTuple):
    """One call of ``reschedule``: what it knows, and which step comes next.

    ``hold`` is the one that it is about to take, ``time`` the time of that; ``is_back`` once it
    goes back to the time that the row had ``before``.
    """

    name: str
    wish: int
    tries: int = 1
    step: str = "read"
    group: int = 0
    hold: str = ""
    time: int = 0
    before: int = 0
    token: int = 0
    read_at: int = 0
    since: int = 0
    is_taken: bool = True
    rounds: int = 0
    is_back: bool = False
    dropped: str = ""
    then: str = ""

    def ended(self) -> Mover:
        """Return the mover that does nothing more."""
        return Mover(self.name, self.wish, tries=0, step="end")

    def drops(self, hold: str, then: str) -> Mover:
        """Return the mover that gives a hold up next, and does ``then`` after that."""
        return self._replace(step="drop", group=0, dropped=hold, then=then)


class Side(NamedTuple):
    """What a mover's step changes: the row and the windows."""

    row: Row
    windows: Windows


Done = tuple[str, Side, Mover, Call | None]
"""What was done, what came of it, and the call of a script of which a copy may arrive late."""


class Moves:
    """The steps of movers, in one layout, by one protocol."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts
        self._groups = len(scripts.layout)
        self._protocol = scripts.protocol
        self._steps: dict[str, Callable[[Side, Mover], Done]] = {
            "read": self._read,
            "touch": self._touch,
            "hold": self._hold,
            "change": self._change,
            "have": self._have,
            "take": self._take,
            "hold again": self._hold_again,
            "look": self._look,
            "go back": self._go_back,
            "hold old": self._hold_old,
            "change back": self._change_back,
            "drop": self._drop,
            "kept": self._check,
            "check": self._check,
            "release": self._release,
        }

    @property
    def steps(self) -> frozenset[str]:
        """The names of the steps."""
        return frozenset(self._steps)

    def next(self, side: Side, mover: Mover) -> Done | None:
        """Return what a mover does next; None where it has ended."""
        step = self._steps.get(mover.step)
        return step(side, mover) if step is not None else None

    def _call(self, side: Side, call: Call) -> tuple[Side, Reply]:
        windows, reply = self._scripts.run(side.windows, call)
        return side._replace(windows=windows), reply

    def _after(self, mover: Mover, then: Mover) -> Mover:
        """Return the mover at its next group, or at what comes when all groups are done."""
        group = mover.group + 1
        return mover._replace(group=group) if group < self._groups else then

    def _changed(self, side: Side, mover: Mover, time: int) -> Side:
        """Change the row where the guard lets it be changed."""
        row = side.row
        is_ours = row.token == mover.token and side.windows.now <= mover.read_at + GRACE
        if not row.is_scheduled or not (is_ours or not self._protocol.change_is_guarded):
            return side
        return side._replace(row=row._replace(time=time, token=row.token + 1))

    def _taking(self, mover: Mover, token: int) -> Mover:
        waits = self._protocol.take_waits_for_all_shards and self._groups > 1
        step = "have" if waits else "take"
        return mover._replace(step=step, group=0, token=token, read_at=0, is_taken=True)

    def _again(self, mover: Mover) -> Mover:
        """Return the mover that was not let take: it holds once more, or leaves it to the sweep."""
        if mover.rounds == 1:
            return self._done_taking(mover)
        step = mover._replace(step="hold again", group=0, rounds=mover.rounds - 1, is_taken=True)
        return step._replace(since=0)

    def _done_taking(self, mover: Mover) -> Mover:
        if mover.is_back:
            return mover.drops(mover.name, "end")
        return Mover(mover.name, mover.wish, tries=0, step="check")

    def _anew(self, mover: Mover) -> Mover:
        """Return the mover that finds its row changed by somebody else."""
        if mover.tries == 1:
            return mover.ended()
        return Mover(mover.name + "'", mover.wish, tries=mover.tries - 1)

    def _read(self, side: Side, mover: Mover) -> Done:
        row = side.row
        told = f"reads the row: time {row.time}, token {row.token}"
        if not row.is_scheduled:
            return told, side, mover.ended(), None
        step = "touch" if row.time == mover.wish else "hold"
        found = mover._replace(
            step=step, before=row.time, token=row.token, read_at=side.windows.now
        )
        return told, side, found._replace(hold=mover.name, time=mover.wish, rounds=_ROUNDS), None

    def _touch(self, side: Side, mover: Mover) -> Done:
        """Change what hangs on the time, such as the expiry, and the time not."""
        side = self._changed(side, mover, mover.wish)
        then = mover.ended() if side.row.time == mover.wish else self._anew(mover)
        return f"changes the row: {_of(side.row)}", side, then, None

    def _hold(self, side: Side, mover: Mover) -> Done:
        call = Call("move", mover.group, mover.hold, mover.time)
        side, since = self._call(side, call)
        if since is None:
            then = mover.drops(mover.hold, "end") if mover.group else mover.ended()
            return f"{call}: blocked", side, then, None
        mover = mover if mover.group else mover._replace(since=since)
        then = self._after(mover, mover._replace(step="change", group=0))
        return f"{call}: held at time {mover.time}", side, then, call

    def _change(self, side: Side, mover: Mover) -> Done:
        side = self._changed(side, mover, mover.wish)
        if side.row.time == mover.wish:
            then = self._taking(mover, side.row.token)
        else:
            then = mover.drops(mover.hold, "anew")
        return f"changes the row: {_of(side.row)}", side, then, None

    def _have(self, side: Side, mover: Mover) -> Done:
        held = [window.hold(mover.hold) for window in side.windows.each]
        has = all(hold is not None and hold.time == mover.time for hold in held)
        then = mover._replace(step="take") if has else self._again(mover)
        return f"asks whether it has its hold everywhere: {has}", side, then, None

    def _take(self, side: Side, mover: Mover) -> Done:
        call = Call("take", mover.group, mover.hold, mover.time, mover.token, mover.since)
        side, reply = self._call(side, call)
        mover = mover._replace(is_taken=mover.is_taken and reply == 1)
        last = self._done_taking(mover) if mover.is_taken else self._again(mover)
        return f"{call}: {reply}", side, self._after(mover, last), call

    def _hold_again(self, side: Side, mover: Mover) -> Done:
        call = Call("move", mover.group, mover.hold, mover.time)
        side, since = self._call(side, call)
        if since is not None:
            oldest = min(since, mover.since) if mover.group else since
            mover = mover._replace(since=oldest)
            look = mover._replace(step="look", group=0)
            if not self._protocol.mover_looks_again:
                look = self._taking(mover, mover.token)
            return f"{call}: held again", side, self._after(mover, look), call
        if mover.is_back:
            return f"{call}: blocked", side, self._done_taking(mover), None
        return f"{call}: blocked", side, mover._replace(step="go back", group=0), None

    def _look(self, side: Side, mover: Mover) -> Done:
        if side.row.time == mover.time:
            then = self._taking(mover, side.row.token)
        elif mover.is_back:
            then = mover.drops(mover.hold, "drop wish")
        else:
            then = mover.drops(mover.hold, "check")
        return f"looks at the row: {_of(side.row)}", side, then, None

    def _go_back(self, side: Side, mover: Mover) -> Done:
        row = side.row
        told = f"wants to go back, reads the row: {_of(row)}"
        if row.time != mover.wish:
            then = "end" if row.time == mover.before else "check"
            return told, side, mover.drops(mover.name, then), None
        back = mover._replace(step="hold old", time=mover.before, hold=f"{mover.name}b{row.token}")
        return told, side, back._replace(token=row.token, read_at=side.windows.now), None

    def _hold_old(self, side: Side, mover: Mover) -> Done:
        call = Call("move", mover.group, mover.hold, mover.time, beside=mover.name)
        side, since = self._call(side, call)
        if since is None:
            then = mover.drops(mover.hold, "kept") if mover.group else _kept(mover)
            return f"{call}: blocked", side, then, None
        mover = mover if mover.group else mover._replace(since=since)
        then = self._after(mover, mover._replace(step="change back", group=0))
        return f"{call}: held at time {mover.time}", side, then, call

    def _change_back(self, side: Side, mover: Mover) -> Done:
        side = self._changed(side, mover, mover.before)
        if side.row.time == mover.before:
            back = mover._replace(is_back=True, rounds=_ROUNDS)
            then = self._taking(back, side.row.token)
        else:
            then = mover.drops(mover.hold, "go back")
        return f"changes the row back: {_of(side.row)}", side, then, None

    def _drop(self, side: Side, mover: Mover) -> Done:
        call = Call("drop", mover.group, mover.dropped)
        side, _ = self._call(side, call)
        return str(call), side, self._after(mover, self._then(mover)), call

    def _then(self, mover: Mover) -> Mover:
        """Return what a mover does after it has given a hold up."""
        if mover.then == "anew":
            return self._anew(mover)
        if mover.then == "kept":
            return _kept(mover)
        if mover.then == "drop wish":
            return mover.drops(mover.name, "end")
        if mover.then == "go back":
            return mover._replace(step="go back", group=0, dropped="", then="")
        return Mover(mover.name, mover.wish, tries=0, step=mover.then)

    def _check(self, side: Side, mover: Mover) -> Done:
        ended = mover._replace(step="left") if mover.step == "kept" else mover.ended()
        then = ended if side.row.is_scheduled else mover._replace(step="release", group=0)
        return f"looks whether it was cancelled: {_of(side.row)}", side, then, None

    def _release(self, side: Side, mover: Mover) -> Done:
        call = Call("release", mover.group, OWN)
        side, _ = self._call(side, call)
        return str(call), side, self._after(mover, mover.ended()), None


def _kept(mover: Mover) -> Mover:
    """Return the mover that cannot go back: the message stays at a time without a place.

    Another mover of it holds its old time. The step after that, ``left``, is an end.
    """
    return Mover(mover.name, mover.wish, tries=0, step="kept", before=mover.before)


def _of(row: Row) -> str:
    status = "" if row.is_scheduled else ", cancelled"
    return f"time {row.time}, token {row.token}{status}"

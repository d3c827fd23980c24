"""Those who move one message, step by step, in a model: what each may do next.

A step is one call of a script or one transaction, as in ``submission/changes.py`` and
``reservation/windows.py``; between any two of them everybody else may do theirs. A mover that
stands still, or has died, is one whose next step is not chosen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tests.support.moves_model import GRACE, OWN, Call, Reply, Scripts, Windows

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

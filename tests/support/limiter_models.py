"""Plain models of the limiters: every permit ever taken, and what each algorithm makes of them.

Times are whole ms. A model is told the time and never stores anything but permits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction

Bounds = Callable[[int], tuple[int, int]]


@dataclass
class Taken:
    at: int
    n: int
    given_back: bool = False


@dataclass
class Model:
    count: int
    length: int
    calls: dict[str, Taken] = field(default_factory=dict)
    past: list[Taken] = field(default_factory=list)
    """Calls whose id stands for a later one by now."""

    def room(self, now: int) -> int:
        raise NotImplementedError

    def take(self, permit: str, n: int, now: int) -> None:
        if permit in self.calls:
            self.past.append(self.calls.pop(permit))
        self.calls[permit] = Taken(now, n)

    def give_back(self, permit: str, now: int) -> int:
        call = self.calls.get(permit)
        if call is None or call.given_back or not self.counts(call, now):
            return 0
        call.given_back = True
        return call.n

    def counts(self, call: Taken, now: int) -> bool:
        """Whether a call still counts."""
        raise NotImplementedError

    def wait(self, n: int, now: int) -> int:
        """Return after how many ms there are ``n``, found by halving: room never shrinks."""
        low, high = now, now + 3 * self.length
        if self.room(now) >= n:
            return 0
        while high - low > 1:
            middle = (low + high) // 2
            if self.room(middle) >= n:
                high = middle
            else:
                low = middle
        return high - now

    def live(self) -> list[Taken]:
        return [call for call in self.ever() if not call.given_back]

    def ever(self) -> list[Taken]:
        return sorted([*self.past, *self.calls.values()], key=lambda call: call.at)


class LogModel(Model):
    """A permit counts for exactly one length."""

    def room(self, now: int) -> int:
        return self.count - sum(call.n for call in self.live() if self.counts(call, now))

    def counts(self, call: Taken, now: int) -> bool:
        return now < call.at + self.length


class WindowModel(Model):
    """Windows open with the first permit after the last one's end, or by given bounds."""

    bounds: Bounds | None = None

    def room(self, now: int) -> int:
        begin, end = self._window(now)
        return self.count - sum(call.n for call in self.live() if begin <= call.at < end)

    def counts(self, call: Taken, now: int) -> bool:
        begin, end = self._window(now)
        return begin <= call.at < end

    def _window(self, now: int) -> tuple[int, int]:
        if self.bounds is not None:
            return self.bounds(now)
        begin = now
        end = 0
        for call in self.ever():
            if call.at >= end:
                begin, end = call.at, call.at + self.length
        return (begin, end) if now < end else (now, now + self.length)


class CounterModel(Model):
    """Stretches from 1970 on; the previous one by the part that is still covered."""

    def room(self, now: int) -> int:
        stretch, passed = divmod(now, self.length)
        present = self._in(stretch)
        previous = Fraction(self._in(stretch - 1) * (self.length - passed), self.length)
        return self.count - present - -(-previous.numerator // previous.denominator)

    def counts(self, call: Taken, now: int) -> bool:
        return now // self.length - call.at // self.length <= 1

    def _in(self, stretch: int) -> int:
        return sum(call.n for call in self.live() if call.at // self.length == stretch)


@dataclass
class SpacingModel(Model):
    """A permit moves the time until which callers run ahead; ``count`` at once after a silence."""

    ahead_until: Fraction = Fraction(0)

    def room(self, now: int) -> int:
        ahead = max(Fraction(0), self.ahead_until - now)
        return int((self.count * self._spacing - ahead) // self._spacing)

    def take(self, permit: str, n: int, now: int) -> None:
        super().take(permit, n, now)
        self.ahead_until = max(self.ahead_until, Fraction(now)) + n * self._spacing

    def give_back(self, permit: str, now: int) -> int:
        given_back = super().give_back(permit, now)
        if given_back:
            call = self.calls[permit]
            self.ahead_until -= call.n * self._spacing - (now - call.at)
        return given_back

    def counts(self, call: Taken, now: int) -> bool:
        """Whether some of its time is certainly still ahead: what has passed may have been its."""
        return now < call.at + call.n * self._spacing and now < self.ahead_until

    @property
    def _spacing(self) -> Fraction:
        return Fraction(self.length, self.count)


MODELS: dict[str, type[Model]] = {
    "FixedWindow": WindowModel,
    "CounterPerKey": WindowModel,
    "SlidingLog": LogModel,
    "SlidingList": LogModel,
    "SlidingCounter": CounterModel,
    "GCRA": SpacingModel,
    "Concurrency": LogModel,
}
"""The model of each limit that counts and takes a length, by the name in ``COUNTED``."""

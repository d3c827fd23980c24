"""Those who wait for permits of one key do not all come at once."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from dispatcher.limiters import GCRA, Algorithm, FixedWindow, Limiter, SlidingList
from tests.support.clock import MovableClock
from tests.support.limiters import MS, Clocked

SPACING = 0.1
LIMITS: dict[str, Callable[[], Algorithm]] = {
    "GCRA": lambda: GCRA(10, "second"),
    "SlidingList": lambda: SlidingList(1, 100 * MS),
    "FixedWindow": lambda: FixedWindow(600, "minute", align="UTC"),
}


class Queue(MovableClock):
    """Sleeping lets the server's time pass; others are quicker as often as is said."""

    def __init__(self, moved: Clocked, quicker: int) -> None:
        super().__init__()
        self.moved, self.quicker = moved, quicker
        self.others: Limiter | None = None

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.moved.advance(timedelta(seconds=seconds) + 50 * MS)
        if self.others is not None and self.quicker > 0:
            self.quicker -= 1
            self.others.acquire_up_to("ada", 9_999)


def sleeps(name: str, moved: Clocked, quicker: int, timeout: float | None = None) -> list[float]:
    clock = Queue(moved, quicker)
    clock.others = LIMITS[name]().on(moved)
    clock.others.acquire_up_to("ada", 9_999)
    limiter = LIMITS[name]().on(moved, clock=clock)
    decision = limiter.acquire("ada", wait=True, timeout=timeout)
    assert decision.allowed == (timeout is None)
    moved.advance(timedelta(minutes=2))
    return clock.sleeps


@pytest.mark.parametrize("name", ["GCRA", "SlidingList"])
def test_a_caller_alone_waits_once_and_as_long_as_the_limiter_says(
    name: str, moved: Clocked
) -> None:
    assert sleeps(name, moved, 0) == [SPACING]


@pytest.mark.parametrize("name", ["GCRA", "SlidingList"])
def test_further_waits_spread_over_the_spacing_of_the_limit(name: str, moved: Clocked) -> None:
    waits = [wait for _ in range(8) for wait in sleeps(name, moved, 2)[1:]]
    assert len(waits) == 16
    assert all(SPACING <= wait <= 2 * SPACING for wait in waits)
    assert len(set(waits)) > 8
    assert max(waits) - min(waits) > SPACING / 4


def test_windows_of_a_calendar_spread_as_well(moved: Clocked) -> None:
    _, again = sleeps("FixedWindow", moved, 1)
    assert 60 - 0.1 <= again <= 60 + SPACING


def test_no_wait_exceeds_its_timeout(moved: Clocked) -> None:
    for _ in range(8):
        waits = sleeps("GCRA", moved, 99, timeout=0.35)
        assert sum(waits) <= 0.35 + 1e-5, "the clock of the test goes by microseconds"
        assert len(waits) >= 2

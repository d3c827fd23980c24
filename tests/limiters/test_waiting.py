"""Those who wait for permits of one key do not all come at once."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dispatcher.limiters import GCRA, Algorithm, FixedWindow, Limiter, SlidingList
from tests.support.clock import MovableClock
from tests.support.limiters import MS, Clocked

SPACING = 0.1
EVEN = [GCRA(10, "second"), SlidingList(1, 100 * MS)]


class Queue(MovableClock):
    """Sleeping lets the server's time pass; others are quicker as often as is said."""

    def __init__(self, moved: Clocked, others: Limiter, quicker: int) -> None:
        super().__init__()
        self.moved, self.others, self.quicker = moved, others, quicker

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.moved.advance(timedelta(seconds=seconds) + 50 * MS)
        if self.quicker > 0:
            self.quicker -= 1
            self.others.acquire_up_to("ada", 9_999)


def sleeps(
    limit: Algorithm, moved: Clocked, quicker: int, timeout: float | None = None
) -> list[float]:
    others = limit.on(moved)
    others.acquire_up_to("ada", 9_999)
    clock = Queue(moved, others, quicker)
    decision = limit.on(moved, clock=clock).acquire("ada", wait=True, timeout=timeout)
    assert decision.allowed == (timeout is None)
    moved.advance(timedelta(minutes=2))
    return clock.sleeps


@pytest.mark.parametrize("limit", EVEN, ids=str)
def test_the_first_wait_is_as_told_and_further_ones_spread_over_the_spacing(
    limit: Algorithm, moved: Clocked
) -> None:
    assert sleeps(limit, moved, quicker=0) == [SPACING]
    waits = [wait for _ in range(8) for wait in sleeps(limit, moved, quicker=2)[1:]]
    assert len(waits) == 16
    assert all(SPACING <= wait <= 2 * SPACING for wait in waits)
    assert len(set(waits)) > 8
    assert max(waits) - min(waits) > SPACING / 4


def test_windows_of_a_calendar_spread_as_well(moved: Clocked) -> None:
    _, again = sleeps(FixedWindow(600, "minute", align="UTC"), moved, quicker=1)
    assert 60 - 0.1 <= again <= 60 + SPACING


def test_no_wait_exceeds_its_timeout(moved: Clocked) -> None:
    for _ in range(8):
        waits = sleeps(EVEN[0], moved, quicker=99, timeout=0.35)
        assert sum(waits) <= 0.35 + 1e-5, "the clock of the test goes by microseconds"
        assert len(waits) >= 2

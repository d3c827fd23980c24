"""The picture in docs/reservation.md is what the windows really do."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from dispatcher.message import new_id
from dispatcher.quota import Quota
from dispatcher.reservation import Terms
from tests.support.reserving import Reserving

PAGE = Path(__file__).parents[2] / "docs" / "reservation.md"
NINE = datetime(2100, 1, 1, 9, tzinfo=UTC)
COLUMN = timedelta(minutes=5)
TERMS = Terms.plain("ann")


def rows(ending: str) -> list[str]:
    """Return the rows of the two pictures that end with that word."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    return [line.split()[0] for line in lines if line.endswith(f"    {ending}")]


def test_the_worked_picture_is_true(opened: Callable[..., Reserving]) -> None:
    real = opened(Quota(2, 3_600_000))
    booked, blocked = rows("booked"), rows("blocked")
    assert len(booked) == len(blocked) == 2
    there: set[int] = set()
    for taken, closed in zip(booked, blocked, strict=True):
        columns = {place for place, mark in enumerate(taken) if mark == "█"}
        for place in columns - there:
            real.windows.reserve(new_id(), terms=TERMS, send_at=NINE + place * COLUMN)
        there = columns
        times = [NINE + place * COLUMN for place in range(len(closed))]
        fits = [real.windows.next_slot(TERMS, time) == time for time in times]
        assert "".join("·" if fit else "░" for fit in fits) == closed
    assert real.windows.next_slot(TERMS, NINE + timedelta(minutes=30)) == NINE + 36 * COLUMN

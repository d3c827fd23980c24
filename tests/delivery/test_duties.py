"""Ticks of the sweep that come together are one; those that come in time are all run."""

from __future__ import annotations

import logging
from datetime import timedelta
from types import SimpleNamespace

import pytest

from dispatcher.celery import tasks
from dispatcher.delivery.sweep import Ticks
from dispatcher.errors import ReservationsUnavailable
from dispatcher.settings import Settings
from dispatcher.telemetry.journal import Journal
from dispatcher.times.clock import SystemClock
from tests.support.clock import MovableClock

SECOND = timedelta(seconds=1)


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


def test_a_pile_of_ticks_is_one(clock: MovableClock) -> None:
    done: list[int] = []
    pile = Ticks(clock)
    for number in range(10):
        is_done = pile.run("rescue", SECOND, lambda: done.append(number))  # noqa: B023 - called at once
        assert is_done is (number == 0)
        clock.advance(SECOND / 100)
    assert done == [0]


def test_each_tick_of_a_beat_is_run_though_they_are_not_quite_even(clock: MovableClock) -> None:
    done: list[str] = []
    steady = Ticks(clock)
    for late in (0.0, 0.3, -0.2, 0.4, -0.1):
        steady.run("rescue", SECOND, lambda: done.append("rescue"))
        clock.advance(SECOND * (1 + late))
    assert len(done) == 5


def test_a_duty_that_hangs_is_begun_once_more_and_not_again(clock: MovableClock) -> None:
    begun: list[str] = []
    hung = Ticks(clock)

    def hang(depth: int) -> None:
        begun.append("rescue")
        if depth:
            clock.advance(SECOND)
            assert hung.run("rescue", SECOND, lambda: hang(depth - 1)) is (depth == 3)

    assert hung.run("rescue", SECOND, lambda: hang(3))
    assert begun == ["rescue", "rescue"]
    clock.advance(SECOND)
    assert hung.run("rescue", SECOND, lambda: None), "those have ended"


def test_a_server_that_is_away_is_told_in_a_line_and_not_in_a_traceback(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def reconcile() -> None:
        raise ReservationsUnavailable("Redis is loading its data")

    parts = SimpleNamespace(
        settings=Settings(),
        reconciler=SimpleNamespace(reconcile=reconcile),
        journal=Journal(),
        clock=SystemClock(),
        ticks=Ticks(SystemClock()),
    )
    monkeypatch.setattr(tasks, "here", lambda: parts)
    monkeypatch.setattr(tasks, "_told_at", {})
    with caplog.at_level(logging.INFO):
        assert tasks.duties["reconcile"].apply().state == "FAILURE"
    (line,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "reconcile" in line.message
    assert "Redis is loading its data" in line.message
    assert not any(record.exc_info for record in caplog.records)

"""What Celery is told of a duty that could not be done."""

from __future__ import annotations

import logging
from datetime import timedelta
from types import SimpleNamespace

import pytest

from dispatcher.delivery.duties import Ticks
from dispatcher.errors import ReservationsUnavailable
from dispatcher.telemetry.journal import Journal
from dispatcher.times.clock import SystemClock
from dispatcher.worker import tasks


def test_a_server_that_is_away_is_told_in_a_line_and_not_in_a_traceback(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def reconcile() -> None:
        raise ReservationsUnavailable("Redis is loading its data")

    parts = SimpleNamespace(
        reconciler=SimpleNamespace(reconcile=reconcile),
        journal=Journal(),
        ticks=Ticks(SystemClock(), {"reconcile": timedelta(seconds=1)}),
    )
    monkeypatch.setattr(tasks, "here", lambda: parts)
    with caplog.at_level(logging.INFO):
        assert tasks.reconcile.apply().state == "FAILURE"
    (line,) = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert "reconcile" in line.message
    assert "Redis is loading its data" in line.message
    assert not any(each.exc_info for each in caplog.records)

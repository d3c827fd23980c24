"""Schedules of beat as rules: their instants are those of Celery itself."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.schedules import crontab, schedule

from dispatcher import InvalidValue
from dispatcher.celery.beat import beat_rules
from dispatcher.times.recurrence import Recurrence
from dispatcher.times.send_time import from_ms, to_ms

START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("timezone", ["UTC", "America/New_York"])
@pytest.mark.parametrize(
    "parts",
    [
        {"minute": "*/20"},
        {"minute": "0", "hour": "9"},
        {"minute": "5,35", "hour": "8-17/3", "day_of_week": "mon-fri"},
        {"minute": "0", "hour": "0", "day_of_month": "31"},
        {"minute": "0", "hour": "6", "day_of_month": "1-7", "day_of_week": "sun"},
        {"minute": "30", "hour": "12", "month_of_year": "*/3", "day_of_month": "2,15"},
    ],
)
def test_a_crontab_means_the_same_instants(parts: dict[str, Any], timezone: str) -> None:
    """Also where days of the month and of the week are given: Celery wants both to fit."""
    app = Celery(set_as_current=False, timezone=timezone)
    when = crontab(**parts, app=app)
    start = START.replace(tzinfo=ZoneInfo(timezone))
    times, at = list[datetime](), start - timedelta(minutes=1)
    while len(times) < 50:
        last, delta, _ = when.remaining_delta(at)
        times.append(at := last + delta)
    [(rule, zone)] = beat_rules({"task": {"schedule": when}}).values()
    assert zone == timezone
    read = Recurrence.parse(rule, start=START.replace(tzinfo=None))
    assert [from_ms(one.at_ms) for one in read.following(zone, to_ms(start), 50)] == times


def test_an_hourly_crontab_goes_by_elapsed_time() -> None:
    """Else the hour that clocks repeat would be skipped, as it is by beat."""
    [(rule, _)] = beat_rules({"task": {"schedule": crontab(minute="0")}}).values()
    assert rule == "FREQ=HOURLY;BYMINUTE=0;BYSECOND=0"


@pytest.mark.parametrize("when", [90, 90.0, timedelta(seconds=90), schedule(90)])
def test_an_interval(when: Any) -> None:
    row = SimpleNamespace(name="task", schedule=when)
    assert beat_rules([row]) == {"task": ("FREQ=SECONDLY;INTERVAL=90", "UTC")}


@pytest.mark.parametrize("when", [0.5, 90.5, "noon", None, SimpleNamespace()])
def test_what_no_rule_says_is_refused(when: Any) -> None:
    with pytest.raises(InvalidValue, match="schedule: task has"):
        beat_rules({"task": {"schedule": when}})

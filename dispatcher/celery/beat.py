"""The schedules of Celery's beat, as rules of series."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from celery.schedules import crontab, schedule

from dispatcher.errors import InvalidValue, kind_of

_DAYS = ("SU", "MO", "TU", "WE", "TH", "FR", "SA")
_PARTS = (
    ("BYMONTH", "month_of_year", 12), ("BYMONTHDAY", "day_of_month", 31),
    ("BYDAY", "day_of_week", 7), ("BYHOUR", "hour", 24),
)  # fmt: skip


def beat_rules(entries: Mapping[str, Any] | Iterable[Any]) -> dict[str, tuple[str, str]]:
    """Return rule and zone for ``series.add``, by the names of a ``beat_schedule``.

    Or by those of rows of django-celery-beat's ``PeriodicTask``. An interval counts from the start
    of the series. Raises InvalidValue for what no rule says: sunsets, single instants.
    """
    if isinstance(entries, Mapping):
        return {name: _rule(name, entry["schedule"]) for name, entry in entries.items()}
    rows: Iterable[Any] = iter(entries)
    return {row.name: _rule(row.name, row.schedule) for row in rows}


def _rule(name: str, when: Any) -> tuple[str, str]:
    is_crontab, is_interval = isinstance(when, crontab), type(when) is schedule
    if is_crontab:
        rule = f"BYMINUTE={','.join(map(str, sorted(when.minute)))};BYSECOND=0"
        for part, field, number in _PARTS:
            values = sorted(getattr(when, field))
            if len(values) < number:
                shown = [_DAYS[day] for day in values] if part == "BYDAY" else map(str, values)
                rule = f"{part}={','.join(shown)};{rule}"
        return f"FREQ={'DAILY' if 'BYHOUR' in rule else 'HOURLY'};{rule}", str(when.tz)
    every = when.run_every if is_interval else when
    seconds = every.total_seconds() if isinstance(every, timedelta) else every
    if not isinstance(seconds, int | float) or seconds < 1 or seconds % 1:
        accepted = "a crontab, or an interval of whole seconds"
        raise InvalidValue("schedule", f"{name} has {kind_of(when)}", accepted)
    return f"FREQ=SECONDLY;INTERVAL={int(seconds)}", "UTC"

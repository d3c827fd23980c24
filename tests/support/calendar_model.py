"""Calendar periods and hours of the week by brute force: what do the clocks show, step by step.

Nothing here knows of offsets, changes or bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from hypothesis import strategies as st

from dispatcher.times.periods import CalendarUnit
from dispatcher.times.send_time import to_ms

MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
FIRST, LAST = (to_ms(datetime(year, 1, 1, tzinfo=UTC)) for year in (1970, 2100))
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")

CHANGES: dict[str, list[str]] = {
    "UTC": [],
    "Europe/Berlin": ["2026-03-29T01:00Z", "2026-10-25T01:00Z", "2071-03-29T01:00Z"],
    "America/New_York": ["2026-03-08T07:00Z", "2026-11-01T06:00Z", "1974-01-06T07:00Z"],
    "America/Havana": ["2026-03-08T05:00Z", "2026-11-01T05:00Z"],
    "America/St_Johns": ["2010-03-14T03:31Z", "2009-11-01T02:31Z", "1988-04-03T03:31Z"],
    "America/Sao_Paulo": ["2017-10-15T03:00Z", "2018-02-18T02:00Z"],
    "Africa/Casablanca": ["2026-02-15T02:00Z", "2026-03-22T02:00Z"],
    "Antarctica/Troll": ["2026-03-29T01:00Z", "2026-10-25T01:00Z"],
    "Antarctica/Vostok": ["1994-01-31T17:00Z", "1994-11-01T00:00Z"],
    "Asia/Beirut": ["2026-03-28T22:00Z", "2026-10-24T21:00Z"],
    "Asia/Kathmandu": ["1985-12-31T18:30Z"],
    "Australia/Lord_Howe": ["2026-04-04T15:00Z", "2026-10-03T15:30Z"],
    "Pacific/Apia": ["2011-12-30T10:00Z", "2011-09-24T14:00Z"],
    "Pacific/Kwajalein": ["1993-08-21T12:00Z"],
}
STEPS_MS: dict[CalendarUnit, int] = {
    "minute": MINUTE_MS,
    "hour": MINUTE_MS,
    "day": 15 * MINUTE_MS,
    "week": 15 * MINUTE_MS,
    "month": 15 * MINUTE_MS,
}
"""Every bound of the zones above lies on such a step of UTC."""

LONGEST_MS: dict[CalendarUnit, int] = {
    "minute": 8 * HOUR_MS,
    "hour": 8 * HOUR_MS,
    "day": 31 * HOUR_MS,
    "week": 8 * DAY_MS,
    "month": 32 * DAY_MS,
}

Label = tuple[int, ...]

LABELS: dict[CalendarUnit, Callable[[datetime], Label]] = {
    "minute": lambda wall: wall.timetuple()[:5],
    "hour": lambda wall: wall.timetuple()[:4],
    "day": lambda wall: wall.timetuple()[:3],
    "week": lambda wall: tuple(wall.isocalendar())[:2],
    "month": lambda wall: wall.timetuple()[:2],
}


def begun_periods(unit: CalendarUnit, zone: str, start_ms: int, end_ms: int) -> list[int]:
    """Step from start to end; return the steps at which a later period than ever before begins."""
    label, rules, step = LABELS[unit], ZoneInfo(zone), STEPS_MS[unit]
    highest: Label = ()
    begun = []
    for instant in range(start_ms // step * step, end_ms, step):
        seen = label(datetime.fromtimestamp(instant // 1_000, rules))
        if seen > highest:
            highest = seen
            begun.append(instant)
    return begun


def instants_of(zone: str) -> st.SearchStrategy[int]:
    anywhere = st.integers(FIRST, LAST)
    if not CHANGES[zone]:
        return anywhere
    changes = [to_ms(datetime.fromisoformat(change)) for change in CHANGES[zone]]
    near = st.tuples(
        st.sampled_from(changes),
        st.one_of(
            st.sampled_from([-1, 0, 1]),
            st.integers(-3 * HOUR_MS, 3 * HOUR_MS),
            st.integers(-3 * DAY_MS, 3 * DAY_MS),
            st.integers(-150, 150).map(lambda minutes: minutes * MINUTE_MS),
        ),
    ).map(sum)
    return st.one_of(near, near, anywhere)


zoned = st.sampled_from(sorted(CHANGES)).flatmap(
    lambda zone: st.tuples(st.just(zone), instants_of(zone))
)


Item = tuple[frozenset[int], int, int]

minutes = st.one_of(
    st.integers(0, 24 * 4 - 1).map(lambda quarter: quarter * 15), st.integers(0, 24 * 60 - 1)
)
items = st.tuples(
    st.frozensets(st.integers(0, 6), min_size=1), minutes, st.one_of(minutes, st.just(24 * 60))
).filter(lambda item: item[1] != item[2])


def text_of(item: Item) -> str:
    days, start, end = item
    names = ",".join(DAYS[day] for day in sorted(days))
    return f"{names} {start // 60:02}:{start % 60:02}-{end // 60:02}:{end % 60:02}"


def shows_inside(wall: datetime, item: Item) -> bool:
    days, start, end = item
    minute = wall.hour * 60 + wall.minute
    today, yesterday = wall.weekday() in days, (wall.weekday() - 1) % 7 in days
    if start < end:
        return today and start <= minute < end
    return (today and minute >= start) or (yesterday and minute < end)

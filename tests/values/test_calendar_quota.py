"""Quotas per calendar period: where the periods of a zone begin and end."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import pairwise
from typing import cast
from zoneinfo import ZoneInfo, available_timezones

import pytest

from dispatcher.errors import InvalidValue
from dispatcher.quota import CalendarQuota
from dispatcher.times.periods import CalendarUnit
from dispatcher.times.send_time import from_ms, to_ms

BERLIN = "Europe/Berlin"
UNITS: list[CalendarUnit] = ["minute", "hour", "day", "week", "month"]


def ms(text: str) -> int:
    return to_ms(datetime.fromisoformat(text))


def bounds(unit: str, instant: str, zone: str, periods: int) -> list[str]:
    """The bounds as ISO texts, in UTC."""
    quota = CalendarQuota(1, cast(CalendarUnit, unit), zone)
    found = quota.bounds(ms(instant), periods)
    return [from_ms(each).isoformat().replace(":00+00:00", "Z") for each in found]


@pytest.mark.parametrize(
    ("unit", "instant", "zone", "expected"),
    [
        ("day", "1969-12-31T12:00Z", "UTC", ["1969-12-31T00:00Z", "1970-01-01T00:00Z"]),
        ("day", "1972-01-06T12:00Z", "Africa/Monrovia",
         ["1972-01-06T00:44:30+00:00", "1972-01-07T00:44:30+00:00"]),
        ("minute", "1972-01-06T12:00:40Z", "Africa/Monrovia",
         ["1972-01-06T12:00:30+00:00", "1972-01-06T12:01:30+00:00"]),
        ("month", "2028-02-29T12:00Z", "UTC", ["2028-02-01T00:00Z", "2028-03-01T00:00Z"]),
        ("month", "2026-12-31T23:30Z", BERLIN, ["2026-12-31T23:00Z", "2027-01-31T23:00Z"]),
    ],
)  # fmt: skip
def test_a_period_is_where_the_clocks_of_its_zone_say(
    unit: str, instant: str, zone: str, expected: list[str]
) -> None:
    """Around each change of many zones: ``tests/property/test_calendars.py``."""
    assert bounds(unit, instant, zone, len(expected) - 1) == expected


def test_the_caller_says_which_zone() -> None:
    quota = CalendarQuota(10, "day", None)
    noon = ms("2026-06-01T12:00Z")
    assert quota.bounds(noon, 1, BERLIN) != quota.bounds(noon, 1, "UTC")
    with pytest.raises(InvalidValue, match="no zone 'Mars/Olympus'"):
        quota.bounds(noon, 1, "Mars/Olympus")


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize(
    ("zone", "change"),
    [
        ("Antarctica/Vostok", "1994-01-31T17:00Z"),
        ("Antarctica/Casey", "2010-03-04T15:00Z"),
        ("Antarctica/Troll", "2026-10-25T01:00Z"),
        ("America/St_Johns", "1988-10-30T02:31Z"),
        ("America/Sao_Paulo", "2018-02-18T02:00Z"),
        ("Pacific/Apia", "2011-12-30T10:00Z"),
        ("Pacific/Apia", "1892-07-05T00:00Z"),
        ("America/Juneau", "1867-10-19T00:00Z"),
    ],
)
def test_no_period_is_longer_than_it_says(unit: CalendarUnit, zone: str, change: str) -> None:
    quota = CalendarQuota(1, unit, zone)
    chain = quota.bounds(ms(change) - 86_400_000, 1_500 if unit == "minute" else 60)
    assert max(ends - begins for begins, ends in pairwise(chain)) <= quota.longest_ms


def test_offsets_lie_where_the_longest_period_says() -> None:
    low, high = timedelta(0), timedelta(0)
    months = [datetime(year, month, 1) for year in range(1970, 2101) for month in (1, 4, 7, 10)]  # noqa: DTZ001 - the zone comes below
    for name in available_timezones():
        zone = ZoneInfo(name)
        offsets = {cast(timedelta, zone.utcoffset(each)) for each in months}
        low, high = min(low, *offsets), max(high, *offsets)
    spare = CalendarQuota(1, "day", None).longest_ms - 86_400_000
    assert high - low <= timedelta(milliseconds=spare)

"""Quotas per calendar period: their grammar, and where the periods of a zone begin and end."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import pairwise
from typing import cast
from zoneinfo import ZoneInfo, available_timezones

import pytest

from dispatcher.errors import InvalidValue
from dispatcher.quota import CalendarQuota, Quota, parse_quota
from dispatcher.times.periods import CalendarUnit
from dispatcher.times.send_time import from_ms, to_ms

BERLIN = "Europe/Berlin"
UNITS: list[CalendarUnit] = ["minute", "hour", "day", "week", "month"]


def ms(text: str) -> int:
    return to_ms(datetime.fromisoformat(text))


def bounds(unit: str, instant: str, zone: str, periods: int) -> list[str]:
    """The bounds as ISO texts, in UTC."""
    quota = CalendarQuota(1, cast(CalendarUnit, unit), zone)
    found = quota.bounds(ms(instant), zone, periods)
    return [from_ms(each).isoformat().replace(":00+00:00", "Z") for each in found]


@pytest.mark.parametrize(
    ("text", "quota"),
    [
        ("10/day", Quota(10, 86_400_000)),
        ("2/30 seconds", Quota(2, 30_000)),
        ("10/day in Europe/Berlin", CalendarQuota(10, "day", BERLIN)),
        ("10/days in Europe/Berlin", CalendarQuota(10, "day", BERLIN)),
        ("  1 /  minute   in   UTC ", CalendarQuota(1, "minute", "UTC")),
        (
            "5/hour\tin\tAmerica/Argentina/Ushuaia",
            CalendarQuota(5, "hour", "America/Argentina/Ushuaia"),
        ),
        ("7/1 week in Etc/GMT+5", CalendarQuota(7, "week", "Etc/GMT+5")),
        ("3000/month in local", CalendarQuota(3_000, "month", None)),
        ("10 per DAY in local", CalendarQuota(10, "day", None)),
        ("10000000/months in local", CalendarQuota(CalendarQuota.MOST, "month", None)),
    ],
)
def test_a_quota_is_rolling_or_of_a_calendar(text: str, quota: Quota | CalendarQuota) -> None:
    assert parse_quota(text) == parse_quota(str(quota)) == quota


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("10/month", "names no zone"),
        ("10/2 months", "names no zone"),
        ("2/2 day in Europe/Berlin", "periods of 2 days"),
        ("2/0 day in Europe/Berlin", "periods of 0 days"),
        ("1/second in UTC", "'second' is no calendar unit"),
        ("1/fortnight in UTC", "'fortnight' is no calendar unit"),
        ("10/day in Mars/Olympus", "no zone 'Mars/Olympus'"),
        ("10/day in europe/berlin/", "'europe/berlin/' is no name"),
        ("10/day in LOCAL", "no zone 'LOCAL'"),
        ("10/day in", "'' is no name"),
        ("10/day in ", "'' is no name"),
        ("10/day in UTC or so", "'UTC or so' is no name"),
        ("10/day in local in local", "'local in local' is no name"),
        ("0/day in local", "a count of 0"),
        ("10000001/day in local", "a count of 10000001"),
        ("in local", "cannot read"),
        (" in local", "cannot read"),
        ("10/dayin local", "cannot read"),
        ("10/day IN local", "cannot read"),
        ("10/day in\0local", "cannot read"),
        ("10/fortnight", "cannot read"),
        ("0/day", "a count of 0"),
        ("", "cannot read"),
    ],
)
def test_anything_else_is_refused_and_says_why(text: str, said: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        parse_quota(text)
    assert refused.value.field == "quota"
    assert said in refused.value.problem
    assert "in ZONE" in refused.value.accepted


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
    assert quota.bounds(noon, BERLIN, 1) != quota.bounds(noon, "UTC", 1)
    with pytest.raises(InvalidValue, match="no zone 'Mars/Olympus'"):
        quota.bounds(noon, "Mars/Olympus", 1)


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
    chain = quota.bounds(ms(change) - 86_400_000, zone, 1_500 if unit == "minute" else 60)
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

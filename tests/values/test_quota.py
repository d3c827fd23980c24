"""The grammar of quotas, limits and lengths, and the periods of calendars."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import cast
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.errors import InvalidValue
from dispatcher.quota import (
    MAX_LENGTH_MS,
    CalendarQuota,
    Limit,
    Quota,
    parse_length,
    parse_limit,
    parse_quota,
)
from dispatcher.times.periods import UNIT_MS, CalendarUnit
from dispatcher.times.send_time import to_ms

BERLIN = "Europe/Berlin"


@pytest.mark.parametrize(
    ("text", "count", "length_ms"),
    [
        ("1/minute", 1, 60_000), ("5/hour", 5, 3_600_000), ("10/day", 10, 86_400_000),
        ("3/week", 3, 604_800_000), ("100/year", 100, 31_536_000_000), ("3/min", 3, 60_000),
        ("2/30 second", 2, 30_000), ("2/30 seconds", 2, 30_000), ("2/30s", 2, 30_000),
        ("  1 / 15   minutes ", 1, 900_000), ("10 per second", 10, 1_000),
        ("10\tPER  2 Hours", 10, 7_200_000), (f"{Quota.MOST}/366 days", Quota.MOST, MAX_LENGTH_MS),
    ],
)  # fmt: skip
def test_a_count_per_length_is_read(text: str, count: int, length_ms: int) -> None:
    assert parse_quota(text) == Quota.parse(text) == Quota(count, length_ms)
    assert parse_limit(text) == Limit.parse(text) == Limit(count, length_ms)


@pytest.mark.parametrize(
    ("text", "quota"),
    [
        ("10/day in Europe/Berlin", CalendarQuota(10, "day", BERLIN)),
        ("10/days in Europe/Berlin", CalendarQuota(10, "day", BERLIN)),
        ("  1 /  minute   in   UTC ", CalendarQuota(1, "minute", "UTC")),
        ("5/hour\tin\tAmerica/Argentina/Ushuaia",
         CalendarQuota(5, "hour", "America/Argentina/Ushuaia")),
        ("7/1 week in Etc/GMT+5", CalendarQuota(7, "week", "Etc/GMT+5")),
        ("3000/month in local", CalendarQuota(3_000, "month", None)),
        ("10 per DAY in local", CalendarQuota(10, "day", None)),
        ("10000000/months in local", CalendarQuota(CalendarQuota.MOST, "month", None)),
    ],
)  # fmt: skip
def test_a_quota_of_a_calendar_is_read(text: str, quota: CalendarQuota) -> None:
    assert parse_quota(text) == parse_quota(str(quota)) == quota


NO_COUNT = [
    *("", " ", "/", "1", "minute", "1/", "/minute", "1/minute/hour", "1perminute", "1/m"),
    *("-1/minute", "1/-1 minute", "1.5/minute", "1/1.5 minute", "2/fortnight"),
    *("1/ms", "1/per minute", "1 per/minute", "1/minutess", "1/mins", "9999999999/minute"),
    *(f"{10**400}/day", "1/9999999999 second", "١/minute", "1/\u017f", "1/minute\0", "1,000/day"),
    *("1e2/day", "in UTC", " in UTC", "10/dayin UTC", "10/day IN UTC", "10/day in\0UTC"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *((text, "cannot read") for text in NO_COUNT),
        ("0/minute", "a count of 0"),
        ("10000001/minute", "a count of 10000001"),
        ("1/0 second", "a length of 0 ms"),
        ("1/2 years", "a length of"),
        ("1/367 day", "a length of"),
        ("1/53 week", "a length of"),
        ("1/month", "cannot read"),
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
        ("0/day in UTC", "a count of 0"),
        ("10000001/day in UTC", "a count of 10000001"),
    ],
)
@pytest.mark.parametrize(("parse", "field"), [(parse_quota, "quota"), (parse_limit, "limit")])
def test_anything_else_is_refused_and_says_why(
    parse: Callable[[str], object], field: str, text: str, said: str
) -> None:
    with pytest.raises(InvalidValue) as refused:
        parse(text)
    assert refused.value.field == field
    assert said in refused.value.problem
    assert "N/unit" in refused.value.accepted
    assert "in ZONE" in refused.value.accepted


@given(
    st.integers(1, Quota.MOST),
    st.sampled_from(sorted(UNIT_MS)).flatmap(
        lambda unit: st.integers(1, MAX_LENGTH_MS // UNIT_MS[unit]).map(
            lambda multiple: multiple * UNIT_MS[unit]
        )
    ),
)
def test_text_and_value_round_trip(count: int, length_ms: int) -> None:
    quota = Quota(count, length_ms)
    assert Quota.parse(str(quota)) == quota


def test_the_largest_unit_that_divides_is_written() -> None:
    assert str(Quota(1, 60_000)) == "1/minute"
    assert str(Quota(2, 90_000)) == "2/90 second"
    assert str(Limit(3, 14 * 86_400_000)) == "3/2 week"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90), ("1.5", 1.5), ("90s", 90), ("90 sec", 90), ("2 seconds", 2),
        ("1m", 60), ("10min", 600), ("10 minutes", 600), ("1h", 3600), ("1.5 hours", 5400),
        ("2d", 172_800), ("1 day", 86_400), ("1w", 604_800), ("2 weeks", 1_209_600),
        ("500ms", 0.5), (" 1 h ", 3600),
    ],
)  # fmt: skip
def test_lengths_are_read_as_people_write_them(text: str, seconds: float) -> None:
    assert parse_length(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text", ["", "h", "-1h", "1 hs", "1hh", "1mo", "1 month", "1y", "1e3", "1,5h", "1h30m", "1 M"]
)
def test_a_length_that_cannot_be_read_says_what_can(text: str) -> None:
    with pytest.raises(InvalidValue, match=r"later: cannot read .*; accepted: seconds, or"):
        parse_length(text, "later")


def ms(text: str) -> int:
    return to_ms(datetime.fromisoformat(text))


@pytest.mark.parametrize(
    ("unit", "instant", "zone", "bounds"),
    [
        ("day", "1969-12-31T12:00Z", "UTC", "1969-12-31T00:00Z 1970-01-01T00:00Z"),
        ("day", "1972-01-06T12:00Z", "Africa/Monrovia",
         "1972-01-06T00:44:30Z 1972-01-07T00:44:30Z"),
        ("minute", "1972-01-06T12:00:40Z", "Africa/Monrovia",
         "1972-01-06T12:00:30Z 1972-01-06T12:01:30Z"),
        ("month", "2028-02-29T12:00Z", "UTC", "2028-02-01T00:00Z 2028-03-01T00:00Z"),
        ("month", "2026-12-31T23:30Z", BERLIN, "2026-12-31T23:00Z 2027-01-31T23:00Z"),
    ],
)  # fmt: skip
def test_a_period_is_where_the_clocks_of_its_zone_say(
    unit: CalendarUnit, instant: str, zone: str, bounds: str
) -> None:
    """Around each change of many zones: ``tests/property/test_calendars.py``."""
    quota = CalendarQuota(1, unit, zone)
    assert [*quota.bounds(ms(instant), 1)] == [ms(bound) for bound in bounds.split()]


def test_the_caller_says_which_zone() -> None:
    quota = CalendarQuota(10, "day", None)
    noon = ms("2026-06-01T12:00Z")
    assert quota.bounds(noon, 1, BERLIN) != quota.bounds(noon, 1, "UTC")
    with pytest.raises(InvalidValue, match="no zone 'Mars/Olympus'"):
        quota.bounds(noon, 1, "Mars/Olympus")


def test_offsets_lie_where_the_longest_period_says() -> None:
    low, high = timedelta(0), timedelta(0)
    months = [datetime(year, month, 1) for year in range(1970, 2101) for month in (1, 4, 7, 10)]  # noqa: DTZ001 - the zone comes below
    for name in available_timezones():
        zone = ZoneInfo(name)
        offsets = {cast(timedelta, zone.utcoffset(month)) for month in months}
        low, high = min(low, *offsets), max(high, *offsets)
    spare = CalendarQuota(1, "day", None).longest_ms - 86_400_000
    assert high - low <= timedelta(milliseconds=spare)

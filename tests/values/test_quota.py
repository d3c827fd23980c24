"""The grammar of quotas, limits and lengths, and the periods of calendars."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import cast
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.errors import InvalidSettings, InvalidValue
from dispatcher.quota import (
    MAX_LENGTH_MS,
    CalendarQuota,
    Kept,
    Limit,
    Quota,
    Ramp,
    parse_length,
    parse_limit,
    parse_quota,
    places,
)
from dispatcher.settings import Settings
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


GROWING = "100/day growing 1.5 daily to 50000/day from 2027-01-01"
RAMP = Ramp(Decimal("1.5"), 50_000, date(2027, 1, 1))


@pytest.mark.parametrize(
    ("text", "quota"),
    [
        ("5/hour, 1 kept for priority >= 50", Quota(5, 3_600_000, Kept(1, 50))),
        (" 5 per hour ,4 kept  for priority>=-99 ", Quota(5, 3_600_000, Kept(4, -99))),
        ("3/2 day, 1 kept for priority >= 100", Quota(3, 172_800_000, Kept(1, 100))),
        ("9/week in local, 2 kept for priority >= 0",
         CalendarQuota(9, "week", None, None, Kept(2, 0))),
        (GROWING, CalendarQuota(100, "day", "UTC", RAMP)),
        (f"{GROWING} in UTC", CalendarQuota(100, "day", "UTC", RAMP)),
        (f" {GROWING}  in {BERLIN} ", CalendarQuota(100, "day", BERLIN, RAMP)),
        (f"{GROWING} in local, 99 kept for priority >= 1",
         CalendarQuota(100, "day", None, RAMP, Kept(99, 1))),
        ("1 per days growing 10 daily to 2 / day from 1970-01-01",
         CalendarQuota(1, "day", "UTC", Ramp(Decimal(10), 2, date(1970, 1, 1)))),
        ("1/day growing 1.010 daily to 10000000/day from 9999-12-31",
         CalendarQuota(1, "day", "UTC", Ramp(Decimal("1.01"), 10_000_000, date(9999, 12, 31)))),
    ],
)  # fmt: skip
def test_what_a_quota_keeps_and_how_it_grows_is_read(text: str, quota: Quota) -> None:
    assert parse_quota(text) == parse_quota(str(quota)) == quota
    [alone] = Settings(quotas=text).quotas
    assert Settings(quotas=f"1/minute,{text} , 7/hour").quotas[1:] == (quota, Quota(7, 3_600_000))
    assert Settings(quotas=[text]).quotas == Settings(quotas=json.dumps([text])).quotas == (alone,)


def changed(old: str, new: str) -> str:
    assert old in GROWING
    return GROWING.replace(old, new)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("5/hour, 5 kept for priority >= 50", "5 kept for priority >= 50 of 5"),
        ("5/hour, 6 kept for priority >= 50", "6 kept for priority >= 50 of 5"),
        ("5/hour, 0 kept for priority >= 50", "0 kept for priority >= 50 of 5"),
        ("1/hour, 1 kept for priority >= 50", "1 kept for priority >= 50 of 1"),
        ("5/hour, 1 kept for priority >= 101", "1 kept for priority >= 101 of 5"),
        ("5/hour, 1 kept for priority >= -100", "1 kept for priority >= -100 of 5"),
        ("5/hour, 1 kept", "cannot read"),
        ("5/hour, 1 kept for priority > 50", "cannot read"),
        ("5/hour, -1 kept for priority >= 50", "cannot read"),
        ("5/hour 1 kept for priority >= 50", "cannot read"),
        ("5/hour, 1 kept for priority >= high", "cannot read"),
        ("5/hour, 1 kept for priority >= 1, 1 kept for priority >= 50", "cannot read"),
        ("1 kept for priority >= 50", "cannot read"),
        (f"{GROWING}, 100 kept for priority >= 1", "100 kept for priority >= 1 of 100"),
        (changed("1.5", "1"), "100/day growing 1 daily"),
        (changed("1.5", "0.5"), "100/day growing 0.5 daily"),
        (changed("1.5", "1.009"), "100/day growing 1.009 daily"),
        (changed("1.5", "10.001"), "100/day growing 10.001 daily"),
        (changed("1.5", "1.2345"), "100/day growing 1.2345 daily"),
        (changed("1.5", "-2"), "cannot read"),
        (changed("1.5", "1,5"), "cannot read"),
        (changed("50000", "100"), "100/day growing 1.5 daily to 100/day"),
        (changed("50000", "10000001"), "100/day growing 1.5 daily to 10000001/day"),
        (changed("2027-01-01", "2027-02-29"), "'2027-02-29' is no day"),
        (changed("2027-01-01", "0000-01-01"), "'0000-01-01' is no day"),
        (changed("2027-01-01", "tomorrow"), "cannot read"),
        (changed("50000/day", "50000/week"), "cannot read"),
        (changed("daily", "weekly"), "cannot read"),
        (changed("100/day", "100/week"), "100/week growing"),
        (changed("100/day", "100/month"), "100/month growing"),
        (changed("100/day", "100/2 day"), "periods of 2 days"),
        (changed("100/day", "0/day"), "a count of 0"),
        (f"{GROWING} in Mars/Olympus", "no zone 'Mars/Olympus'"),
    ],
)
def test_what_no_quota_keeps_and_how_none_grows_is_refused(text: str, said: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        parse_quota(text)
    assert refused.value.field == "quota"
    assert said in refused.value.problem
    assert "K kept for priority >= P" in refused.value.accepted
    assert "growing F daily" in refused.value.accepted
    with pytest.raises(InvalidSettings, match="scopes"):
        Settings.load(scopes={"tenant": {"quotas": [text]}})


@pytest.mark.parametrize(
    "text", ["5/hour, 1 kept for priority >= 50", GROWING, f"{GROWING} in UTC"]
)
def test_a_limit_neither_keeps_nor_grows(text: str) -> None:
    with pytest.raises(InvalidValue, match=r"limit: cannot read .*(kept|growing)") as refused:
        parse_limit(text)
    assert "kept" not in refused.value.accepted
    with pytest.raises(InvalidSettings, match=r"channels.*cannot read"):
        Settings.load(channels={"sms": {"transport": "memory", "limits": text}})


@pytest.mark.parametrize(
    ("days", "number"),
    [(-400, 100), (0, 100), (1, 150), (3, 337), (15, 43_789), (16, 50_000), (10**6, 50_000)],
)
def test_a_quota_grows_by_the_day(days: int, number: int) -> None:
    quota = replace(parse_quota(GROWING), kept=Kept(7, 50))
    at = ms("2027-01-01T23:59:59Z") + days * 86_400_000
    assert (places(quota, 50, at), places(quota, 49, at)) == (number, number - 7)
    assert (places(quota, 50), places(quota, 0)) == (100, 93)


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

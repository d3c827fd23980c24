"""Calendar periods and hours of the week against models that step through instants."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.quota import CalendarQuota
from dispatcher.times.periods import CalendarUnit, bounds
from dispatcher.times.quiet_hours import Hours
from dispatcher.times.send_time import from_ms, to_ms
from tests.support.calendar_model import (
    CHANGES,
    DAY_MS,
    LONGEST_MS,
    MINUTE_MS,
    STEPS_MS,
    Item,
    begun_periods,
    items,
    shows_inside,
    text_of,
    zoned,
)
from tests.support.examples import a_third_of, examples


@pytest.mark.parametrize(
    ("unit", "count"), [("minute", 80), ("hour", 80), ("day", 150), ("week", 60), ("month", 30)]
)
def test_bounds_are_where_a_later_period_begins(unit: CalendarUnit, count: int) -> None:
    @settings(max_examples=examples(count), deadline=None, database=None)
    @given(zoned, st.integers(1, 3))
    def compare(zoned: tuple[str, int], periods: int) -> None:
        zone, instant = zoned
        found = CalendarQuota(1, unit, zone).bounds(instant, periods)
        # The model starts so early that what the clocks showed before is overtaken.
        begun = begun_periods(
            unit, zone, instant - LONGEST_MS[unit] - DAY_MS, found[-1] + STEPS_MS[unit]
        )
        first = max(n for n, each in enumerate(begun) if each <= instant)
        assert list(found) == begun[first : first + periods + 1]
        assert begun[-1] == found[-1]

    compare()


@pytest.mark.parametrize("zone", a_third_of(sorted(CHANGES)))
@pytest.mark.parametrize("unit", ["minute", "hour", "day"])
def test_bounds_around_each_change(unit: CalendarUnit, zone: str) -> None:
    quota = CalendarQuota(1, unit, zone)
    for text in CHANGES[zone]:
        change = to_ms(datetime.fromisoformat(text))
        reach = 2 * LONGEST_MS[unit]
        begun = begun_periods(unit, zone, change - reach - DAY_MS, change + reach)
        near = [each for each in begun if abs(each - change) < reach]
        assert list(quota.bounds(near[0], len(near) - 1)) == near
        for begins, ends in pairwise(near):
            assert quota.bounds(begins, 1) == (begins, ends)
            assert quota.bounds(ends - 1, 1) == (begins, ends)
            assert ends - begins <= quota.longest_ms


def begun_of_length(length_ms: int, zone: str, start: int, end: int, step: int) -> list[int]:
    """Return where windows of a length begin, found by what the clocks show at each step.

    A change of the clocks by a multiple of the length leaves them as they are.
    """
    rules, monday, ms = ZoneInfo(zone), datetime(1970, 1, 5, tzinfo=UTC), timedelta(milliseconds=1)
    found: list[int] = []
    latest, shift, before = -(10**12), 0, None
    for at in range(start, end, step):
        wall = from_ms(at).astimezone(rules)
        offset = (wall.utcoffset() or timedelta(0)) // ms
        change = 0 if before is None else offset - before
        if length_ms < abs(change) and change % length_ms == 0:
            shift += change // length_ms
        window = (wall.replace(tzinfo=UTC) - monday) // ms // length_ms - shift
        if window > latest:
            found.append(at)
            latest = window
        before = offset
    return found[1:]  # the first may have begun earlier


@pytest.mark.parametrize("zone", a_third_of(sorted(CHANGES)))
@pytest.mark.parametrize("seconds", [1, 7, 30, 60, 300, 660, 900, 1_800, 3_600, 5_400, 7_200])
def test_windows_of_a_length_are_cut_by_what_the_clocks_show(zone: str, seconds: int) -> None:
    for text in CHANGES[zone]:
        change, length = to_ms(datetime.fromisoformat(text)), 1_000 * seconds
        reach = max(5 * length, 90_000)
        step = 1_000 if seconds % 60 else MINUTE_MS
        begun = begun_of_length(length, zone, change - reach, change + reach, step)
        for begins, ends in pairwise(begun):
            assert bounds(length, zone, begins, 1) == (begins, ends)
            assert bounds(length, zone, ends - 1, 1) == (begins, ends)
        assert list(bounds(length, zone, begun[0], len(begun) - 1)) == begun


@pytest.mark.parametrize("days", [1, 2, 7, 10, 14])
@settings(max_examples=examples(30), deadline=None, database=None)
@given(zoned=zoned)
def test_windows_of_days_are_counted_from_a_monday(days: int, zoned: tuple[str, int]) -> None:
    zone, instant = zoned
    begins, ends = bounds(days * DAY_MS, zone, instant, 1)
    [day, _] = bounds("day", zone, instant, 1)
    counted = (from_ms(day).astimezone(ZoneInfo(zone)).date() - date(1970, 1, 5)).days % days
    if zone not in {"Pacific/Apia", "Pacific/Kwajalein"}:  # no day is skipped
        assert len(between("day", zone, begins, ends)) == days
        assert len(between("day", zone, begins, day)) == counted
    assert begins <= instant < ends
    if days == 7:
        assert (begins, ends) == bounds("week", zone, instant, 1)


def between(unit: CalendarUnit, zone: str, begins: int, ends: int) -> list[int]:
    found = []
    while begins < ends:
        [at, begins] = bounds(unit, zone, begins, 1)
        found.append(at)
    return found


@settings(max_examples=examples(40), deadline=None, database=None)
@given(zoned)
def test_a_year_is_twelve_months_of_the_calendar(zoned: tuple[str, int]) -> None:
    zone, instant = zoned
    begins, ends = bounds("year", zone, instant, 1)
    assert begins <= instant < ends
    months = between("month", zone, begins, ends)
    assert len(months) == 12
    assert from_ms(begins).astimezone(ZoneInfo(zone)).month == 1


@settings(max_examples=examples(150), deadline=None, database=None)
@given(zoned, st.lists(items, min_size=1, max_size=3), st.integers(1, 30 * 60))
def test_inside_is_when_the_clocks_show_a_time_in_the_spans(
    zoned: tuple[str, int], items: list[Item], length: int
) -> None:
    zone, instant = zoned
    hours = Hours.parse("; ".join(text_of(item) for item in items))
    rules = ZoneInfo(zone)
    start = instant // MINUTE_MS * MINUTE_MS
    end = start + length * MINUTE_MS
    expected: list[tuple[int, int]] = []
    for minute in range(start, end, MINUTE_MS):
        wall = datetime.fromtimestamp(minute // 1_000, rules)
        if any(shows_inside(wall, item) for item in items):
            begun = expected.pop()[0] if expected and expected[-1][1] == minute else minute
            expected.append((begun, minute + MINUTE_MS))
    assert hours.inside(zone, start, end) == expected
    rest = hours.complement
    both = sorted(expected + (rest.inside(zone, start, end) if rest else []))
    assert (both[0][0], both[-1][1]) == (start, end)
    assert all(earlier[1] == later[0] for earlier, later in pairwise(both))


@settings(max_examples=examples(100), deadline=None, database=None)
@given(zoned, st.lists(items, min_size=1, max_size=3), st.data())
def test_part_of_a_span_gives_part_of_the_intervals(
    zoned: tuple[str, int], items: list[Item], data: st.DataObject
) -> None:
    zone, start = zoned
    hours = Hours.parse("; ".join(text_of(item) for item in items))
    end = start + 3 * DAY_MS
    cut_from = data.draw(st.integers(start, end))
    cut_until = data.draw(st.integers(cut_from, end))
    whole = hours.inside(zone, start, end)
    clipped = [(max(since, cut_from), min(until, cut_until)) for since, until in whole]
    assert hours.inside(zone, cut_from, cut_until) == [
        (since, until) for since, until in clipped if since < until
    ]

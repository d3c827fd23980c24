"""Windows that follow the calendar of a zone, over a century and around clock changes."""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
import redis

from dispatcher.limiters import FixedWindow, State
from dispatcher.times.periods import CalendarUnit, bounds
from tests.support.clock import MovableClock
from tests.support.limiters import MS, Clocked, taken
from tests.support.soak import a_third_of

ZONES = [
    "Africa/Casablanca", "America/Havana", "America/New_York", "America/Santiago",
    "America/St_Johns", "Asia/Beirut", "Asia/Shanghai", "Australia/Lord_Howe", "Europe/Berlin",
    "Pacific/Apia",
]  # fmt: skip
DAY, DAY_MS = timedelta(days=1), 86_400_000
BEGIN = datetime(1970, 1, 10, tzinfo=UTC)
END = datetime(2070, 1, 10, tzinfo=UTC)


def ms(instant: datetime) -> int:
    return int(instant.timestamp() * 1_000)


def stretches(rules: ZoneInfo) -> list[tuple[datetime, datetime]]:
    """Return a month without changes, and the days around each change of a century's clocks."""
    days = [BEGIN + number * DAY for number in range((END - BEGIN).days)]
    offsets = [day.astimezone(rules).utcoffset() for day in days]
    found = [(BEGIN, BEGIN + 30 * DAY)]
    for (day, before), (_, after) in pairwise(zip(days, offsets, strict=True)):
        if before != after:
            found.append((day - 3 * DAY, day + 4 * DAY))
    return found


def begins(limit: FixedWindow, first: datetime, last: datetime) -> list[int]:
    """Return where the windows begin, one after the other."""
    found: list[int] = []
    at = ms(first)
    while at < ms(last):
        _, packed = limit.words(at)
        assert isinstance(packed, bytes)
        around = [int(each) for each in struct.unpack("<5d", packed)]
        assert around[1] <= at < around[2], "the present window and one before it"
        found += [each for each in around[1:] if not found or each > found[-1]]
        at = found[-2]
    return found


@pytest.mark.parametrize("zone", a_third_of([*ZONES]))
def test_a_window_is_a_day_of_the_zone_for_a_century(zone: str) -> None:
    limit, rules = FixedWindow(5, "day", align=zone), ZoneInfo(zone)
    skipped, lengths = 0, set[int]()
    for first, last in stretches(rules):
        found = begins(limit, first, last)
        shown = [datetime.fromtimestamp(each // 1_000, rules).date() for each in found]
        before = [datetime.fromtimestamp(each // 1_000 - 1, rules).date() for each in found]
        assert all(earlier < later for earlier, later in pairwise(shown))
        assert all(last < first for last, first in zip(before, shown, strict=True))
        skipped += sum((later - earlier).days - 1 for earlier, later in pairwise(shown))
        lengths |= {later - earlier for earlier, later in pairwise(found)}
    assert skipped == (1 if zone == "Pacific/Apia" else 0), "Samoa had no 30 December 2011"
    assert DAY_MS in lengths
    assert (zone == "Asia/Shanghai") or len(lengths) > 1, "some days are longer, some shorter"


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("unit", ["hour", "day", "week", "month"])
def test_a_window_ends_to_the_millisecond(unit: CalendarUnit, zone: str, moved: Clocked) -> None:
    limiter = FixedWindow(2, unit, align=zone).on(moved)
    for text in ("2024-03-31T00:30Z", "2024-11-03T05:30Z", "2024-09-08T12:00Z"):
        begins, ends, after = bounds(unit, zone, ms(datetime.fromisoformat(text)), 2)
        for begin, end in ((begins, ends), (ends, after)):
            limiter.reset("ada")
            moved.set_us(begin * 1_000)
            assert taken(limiter, "ada", 3) == 2
            moved.set_us((end - 1) * 1_000)
            refused = limiter.acquire("ada")
            assert (refused.allowed, refused.retry_after) == (False, MS)
            assert ms(refused.reset_at) == end
            moved.set_us(end * 1_000)
            assert limiter.acquire("ada").allowed


@pytest.mark.parametrize("years", [-30, 30])
def test_a_clock_that_is_years_off_costs_one_more_round_trip_once(
    years: int, redis_client: redis.Redis
) -> None:
    clock = MovableClock(datetime(2026 + years, 1, 1, tzinfo=UTC))
    limit = FixedWindow(3, "hour", align="Europe/Berlin")
    limiter, right = limit.on(redis_client, clock=clock), limit.on(redis_client)
    first = limiter.acquire("ada")
    assert first.reset_at == right.peek("ada").reset_at

    def calls() -> int:
        stats = redis_client.info("commandstats")
        return sum(int(stats[name]["calls"]) for name in stats if "evalsha" in name)

    before = calls()
    assert limiter.acquire("ada").state is State.ALLOWED
    assert calls() == before + 1

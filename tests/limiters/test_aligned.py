"""Windows that follow the calendar of a zone, over a century and around clock changes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
import redis

from dispatcher.limiters import FixedWindow, State
from dispatcher.times.periods import CalendarUnit, bounds
from tests.support.clock import MovableClock
from tests.support.limiters import MS, Clocked, taken

ZONES = [
    "Africa/Casablanca", "America/Havana", "America/New_York", "America/Santiago",
    "America/St_Johns", "Asia/Beirut", "Asia/Shanghai", "Australia/Lord_Howe", "Europe/Berlin",
    "Pacific/Apia",
]  # fmt: skip
DAY, DAY_MS = timedelta(days=1), 86_400_000


def ms(instant: datetime) -> int:
    return int(instant.timestamp() * 1_000)


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

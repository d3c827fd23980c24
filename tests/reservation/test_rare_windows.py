"""A search that leaps from one rare open time to the next computes what lies there and no more."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from dispatcher.errors import QuietHours
from dispatcher.message import new_id
from dispatcher.quota import CalendarQuota, parse_quota
from dispatcher.reservation import Terms
from dispatcher.scope import plain
from dispatcher.times.quiet_hours import Hours
from tests.support.reserving import Reserving, calls_of, ms

ZONE = "Europe/Berlin"
CLOSED = Hours.parse("sun 02:30-02:31").complement
TERMS = Terms((plain("ada"),), ZONE, CLOSED)
START = datetime(2030, 1, 1, tzinfo=UTC)
WEEKS = 262


def openings() -> list[datetime]:
    """Return the instants at which the clocks show half past two on a Sunday, both in autumn."""
    local = [datetime(2030, 1, 6, 2, 30) + timedelta(weeks=n) for n in range(WEEKS)]  # noqa: DTZ001
    instants = {
        each.replace(tzinfo=ZoneInfo(ZONE), fold=fold).astimezone(UTC)
        for each in local
        for fold in (0, 1)
    }
    shown = {each: each.astimezone(ZoneInfo(ZONE)) for each in instants}
    return sorted(each for each in instants if (shown[each].hour, shown[each].minute) == (2, 30))


@pytest.mark.parametrize("quota", ["1/minute in local", "1/minute"])
def test_a_shift_over_five_years_of_open_minutes_takes_few_calls(
    opened: Callable[..., Reserving], monkeypatch: pytest.MonkeyPatch, quota: str
) -> None:
    real = opened(parse_quota(quota))
    *taken, last = openings()
    assert last - START > timedelta(days=5 * 365)
    real.client.zadd(real.keys("ada").window("ada"), {new_id().bytes: ms(each) for each in taken})
    with pytest.raises(QuietHours) as refused:
        real.windows.reserve(new_id(), terms=TERMS, send_at=START)
    assert refused.value.next_slot == last
    computed = 0
    bounds = CalendarQuota.bounds

    def counted(*given: Any) -> tuple[int, ...]:
        nonlocal computed
        computed += 1
        return bounds(*given)

    monkeypatch.setattr(CalendarQuota, "bounds", counted)
    found: list[datetime] = []
    calls = calls_of(
        real.client,
        lambda: found.append(
            real.windows.reserve(
                new_id(), terms=TERMS, send_at=START, latest=START + timedelta(days=3_000)
            ).send_at
        ),
    )
    assert found == [last]
    assert calls <= 40
    assert computed <= 2 * WEEKS

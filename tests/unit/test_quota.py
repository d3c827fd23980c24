"""The grammar of quotas and limits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.errors import InvalidValue
from dispatcher.periods import UNIT_MS
from dispatcher.quota import MAX_LENGTH_MS, Limit, Quota


@pytest.mark.parametrize(
    ("text", "count", "length_ms"),
    [
        ("1/minute", 1, 60_000),
        ("5/hour", 5, 3_600_000),
        ("10/day", 10, 86_400_000),
        ("3/week", 3, 604_800_000),
        ("2/30 second", 2, 30_000),
        ("2/30 seconds", 2, 30_000),
        ("  1 / 15   minutes ", 1, 900_000),
        (f"{Quota.MOST}/366 days", Quota.MOST, MAX_LENGTH_MS),
    ],
)
@pytest.mark.parametrize("kind", [Quota, Limit])
def test_a_count_per_length_is_read(
    kind: type[Quota] | type[Limit], text: str, count: int, length_ms: int
) -> None:
    assert kind.parse(text) == kind(count, length_ms)


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "/", "1", "minute", "1/", "/minute", "1/minute/hour", "1 per minute", "1/m"),
        *("0/minute", "1/0 second", "-1/minute", "1/-1 minute", "1.5/minute", "1/1.5 minute"),
        *("2/fortnight", "1/month", "1/year", "1/ms", "1/MINUTE", "1/Minute", "1/minutess"),
        *("10000001/minute", "1/367 day", "1/53 week", "9999999999/minute", f"{10**400}/day"),
        *("1/9999999999 second", "1/30second", "١/minute", "1/minute\0", "1,000/day", "1e2/day"),
    ],
)
@pytest.mark.parametrize("kind", [Quota, Limit])
def test_anything_else_is_refused(kind: type[Quota] | type[Limit], text: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        kind.parse(text)
    assert refused.value.field == kind.__name__.lower()
    assert "N/unit" in refused.value.accepted


@pytest.mark.parametrize("value", [None, 1, True, b"1/minute", ["1/minute"], Quota(1, 1)])
def test_a_value_that_is_no_text_is_refused(value: Any) -> None:
    with pytest.raises(InvalidValue):
        Quota.parse(value)


@pytest.mark.parametrize(
    ("count", "length_ms"), [(0, 1), (-1, 1), (1, 0), (1, -1), (10_000_001, 1)]
)
def test_impossible_numbers_are_refused(count: int, length_ms: int) -> None:
    with pytest.raises(InvalidValue):
        Quota(count, length_ms)


@given(
    st.integers(1, Quota.MOST),
    st.sampled_from(sorted(UNIT_MS)).flatmap(
        lambda unit: st.integers(1, MAX_LENGTH_MS // UNIT_MS[unit]).map(
            lambda multiple: multiple * UNIT_MS[unit]
        )
    ),
)
def test_what_is_written_is_read_back_the_same(count: int, length_ms: int) -> None:
    quota = Quota(count, length_ms)
    assert Quota.parse(str(quota)) == quota


def test_the_largest_unit_that_divides_is_written() -> None:
    assert str(Quota(1, 60_000)) == "1/minute"
    assert str(Quota(2, 90_000)) == "2/90 second"
    assert str(Limit(3, 14 * 86_400_000)) == "3/2 week"


def test_a_quota_is_never_a_limit() -> None:
    assert len({Quota(1, 60_000), Limit(1, 60_000)}) == 2

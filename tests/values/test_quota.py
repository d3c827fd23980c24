"""The grammar of quotas and limits."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.errors import InvalidValue
from dispatcher.quota import MAX_LENGTH_MS, Limit, Quota, parse_length
from dispatcher.times.periods import UNIT_MS


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
        ("2/30s", 2, 30_000),
        ("10 per second", 10, 1_000),
        ("10\tPER  2 Hours", 10, 7_200_000),
        ("3/min", 3, 60_000),
        ("100/year", 100, 31_536_000_000),
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
        *("", " ", "/", "1", "minute", "1/", "/minute", "1/minute/hour", "1perminute", "1/m"),
        *("0/minute", "1/0 second", "-1/minute", "1/-1 minute", "1.5/minute", "1/1.5 minute"),
        *(
            "2/fortnight",
            "1/month",
            "1/2 years",
            "1/ms",
            "1/per minute",
            "1 per/minute",
            "1/minutess",
        ),
        *("10000001/minute", "1/367 day", "1/53 week", "9999999999/minute", f"{10**400}/day"),
        *(
            "1/9999999999 second",
            "1/mins",
            "١/minute",
            "1/\u017f",
            "1/minute\0",
            "1,000/day",
            "1e2/day",
        ),
    ],
)
@pytest.mark.parametrize("kind", [Quota, Limit])
def test_anything_else_is_refused(kind: type[Quota] | type[Limit], text: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        kind.parse(text)
    assert refused.value.field == kind.__name__.lower()
    assert "N/unit" in refused.value.accepted


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

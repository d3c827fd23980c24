"""Spans of the local week: their grammar, their normal form, and when the clocks are inside."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.errors import InvalidValue
from dispatcher.times.quiet_hours import Hours
from dispatcher.times.send_time import to_ms

BERLIN = "Europe/Berlin"
NIGHTS = "21:00-08:00"
DAY = 24 * 60


def ms(text: str) -> int:
    """Milliseconds of an instant in UTC, written without offset."""
    return to_ms(datetime.fromisoformat(text).replace(tzinfo=UTC))


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("mon 08:00-12:30", [(480, 750)]),
        ("  Mon   08:00 - 12:30  ", [(480, 750)]),
        ("mon,wed 08:00-09:00", [(480, 540), (2 * DAY + 480, 2 * DAY + 540)]),
        ("mon-wed 08:00-09:00", [(n * DAY + 480, n * DAY + 540) for n in range(3)]),
        ("mon,wed-fri 08:00-09:00", [(n * DAY + 480, n * DAY + 540) for n in (0, 2, 3, 4)]),
        ("sat-mon 08:00-09:00", [(n * DAY + 480, n * DAY + 540) for n in (0, 5, 6)]),
        ("08:00-09:00", [(n * DAY + 480, n * DAY + 540) for n in range(7)]),
        ("tue 21:00-08:00", [(DAY + 1260, 2 * DAY + 480)]),
        ("tue 21:00-24:00", [(DAY + 1260, 2 * DAY)]),
        ("sun 21:00-08:00", [(0, 480), (6 * DAY + 1260, 7 * DAY)]),
        ("mon 08:00-10:00; mon 09:00-11:00", [(480, 660)]),
        ("mon 09:00-11:00;mon 08:00-10:00", [(480, 660)]),
        ("mon 08:00-10:00; mon 10:00-11:00", [(480, 660)]),
        ("sat,sun 00:00-24:00", [(5 * DAY, 7 * DAY)]),
        ("mon-sun 00:00-24:00", [(0, 7 * DAY)]),
    ],
)
def test_spans_of_the_week_are_read(text: str, spans: list[tuple[int, int]]) -> None:
    assert Hours.parse(text).spans == tuple(spans)


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", ";", "21:00", "21:00-", "-08:00", "21-08", "9:00-10:00", "09:00-9:30"),
        *("21:00-08:00;", ";21:00-08:00", "21:00-08:00;;mon 10:00-11:00", "21:00-08:00, mon"),
        *("21:00-08:00 22:00-23:00", "21:00-08:00 mon", "mon", "mon-fri", "mon21:00-08:00"),
        *("25:00-26:00", "24:00-08:00", "21:00-24:01", "21:60-22:00", "21:00-21:99", "99:99-08:00"),
        *("21:00-21:00", "00:00-00:00", "mon 08:00-08:00", "24:00-24:00", "21:00–08:00"),
        *("monday 21:00-08:00", "mo 21:00-08:00", "xyz 21:00-08:00", "mon-mon 21:00-08:00"),
        *("mon-tue-wed 21:00-08:00", "mon- 21:00-08:00", ",mon 21:00-08:00"),
        *("mon,,tue 09:00-10:00", "mon,tue, 09:00-10:00", "-mon 09:00-10:00"),
        *("mon tue 21:00-08:00", "mon/tue 21:00-08:00", "21.00-08.00", "21:00:00-08:00:00"),
        *("２１:00-08:00", "٢١:00-08:00", "21:00-08:00\0", "9pm-8am", "x" * 10_000),
        *("mon," * 3_000 + "xyz 21:00-08:00", "mon," * 3_000 + "mon 21:00-21:00"),
    ],
)  # fmt: skip
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        Hours.parse(text)
    assert refused.value.field == "quiet_hours"
    assert refused.value.accepted
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    "spans",
    [(), ((1, 1),), ((2, 1),), ((-1, 5),), ((0, 10_081),), ((5, 6), (1, 2)), ((0, 10), (5, 20)),
     ((0, 10), (10, 20))],
)  # fmt: skip
def test_spans_that_are_not_in_order_are_refused(spans: Any) -> None:
    with pytest.raises(InvalidValue):
        Hours(spans)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        (NIGHTS, NIGHTS),
        ("MON - FRI 21:00 - 08:00", "mon-fri 21:00-08:00"),
        ("sun,mon,sat 12:00-13:00", "mon,sat,sun 12:00-13:00"),
        ("thu,mon-wed,sun 12:00-13:00", "mon-thu,sun 12:00-13:00"),
        ("tue 21:00-00:00", "tue 21:00-24:00"),
        ("sun 21:00-24:00; mon 00:00-08:00", "sun 21:00-08:00"),
        ("sat,sun 00:00-24:00", "sat,sun 00:00-24:00"),
        ("13:00-12:59; 12:59-13:00", "00:00-24:00"),
        ("fri 12:00-24:00; sat 00:00-12:00", "fri 12:00-24:00; sat 00:00-12:00"),
        ("wed 12:00-13:00; mon 09:00-10:00", "mon 09:00-10:00; wed 12:00-13:00"),
        (
            "mon-fri 21:00-08:00; sat,sun 00:00-24:00; mon 00:00-08:00",
            "mon 00:00-08:00; mon-thu 21:00-08:00; fri 21:00-24:00; sat,sun 00:00-24:00",
        ),
    ],
)
def test_the_same_spans_are_written_the_same(text: str, written: str) -> None:
    assert str(Hours.parse(text)) == written
    assert Hours.parse(written) == Hours.parse(text)
    assert hash(Hours.parse(written)) == hash(Hours.parse(text))


@given(st.lists(st.integers(0, 7 * DAY), min_size=2, max_size=16, unique=True))
def test_text_and_value_round_trip(edges: list[int]) -> None:
    edges = sorted(edges)[: len(edges) // 2 * 2]
    hours = Hours(tuple(zip(edges[::2], edges[1::2], strict=True)))
    assert Hours.parse(str(hours)) == hours


@pytest.mark.parametrize(
    ("text", "covers"),
    [
        (NIGHTS, False),
        ("00:00-24:00", True),
        ("mon-sat 00:00-24:00; sun 00:01-24:00", False),
        ("08:00-20:00; 20:00-08:00", True),
    ],
)
def test_whether_no_minute_is_left_outside(text: str, covers: bool) -> None:
    hours = Hours.parse(text)
    assert (hours.covers_week, hours.complement is None) == (covers, covers)


@pytest.mark.parametrize(
    ("text", "at", "ends"),
    [
        (NIGHTS, "2026-11-24T19:59:59.999", None),
        (NIGHTS, "2026-11-24T20:00", "2026-11-25T07:00"),
        (NIGHTS, "2026-11-25T06:59:59.999", "2026-11-25T07:00"),
        (NIGHTS, "2026-11-25T07:00", None),
        (NIGHTS, "2026-03-28T22:00", "2026-03-29T06:00"),
        (NIGHTS, "2026-10-24T22:00", "2026-10-25T07:00"),
        ("mon 09:00-24:00; tue-sun 00:00-24:00", "2026-11-23T08:00", "2026-11-29T23:00"),
        ("mon-sat 00:00-24:00; sun 00:00-02:00; sun 03:00-24:00", "2026-03-22T02:00",
         "2026-03-30T02:00"),
    ],
    ids=["before", "first", "last", "after", "skipped hour", "repeated hour", "days",
         "longer than eight days"],
)  # fmt: skip
def test_when_the_span_around_an_instant_ends(text: str, at: str, ends: str | None) -> None:
    end = Hours.parse(text).end(BERLIN, ms(at))
    assert end == (None if ends is None else ms(ends))


def test_a_list_that_never_ends_is_refused() -> None:
    with pytest.raises(InvalidValue, match="at most 32"):
        Hours.parse(";".join(["10:00-11:00"] * 33))

"""Times as people type them into the page, as it shows them, and as its calendar draws them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from dispatcher import InvalidSendTime
from dispatcher.reservation.timeline import Timeline, WindowTimeline
from dispatcher.web.pages import calendar
from dispatcher.web.pages.site import local_text, read_time

BERLIN = "Europe/Berlin"
NOW = datetime(2026, 12, 24, 8, 40, 12, tzinfo=UTC)  # 09:40:12 in Berlin


def read(text: str, zone: str = BERLIN) -> datetime:
    return read_time(text, zone, field="at", near=NOW)


@pytest.mark.parametrize(
    "form",
    ["", "%a %d %b %Y %H:%M:%S", "%a %d %b %Y %H:%M", "%a %d %b %H:%M:%S", "%a %d %b %H:%M",
     "%Y-%m-%d %H:%M:%S", "%d %b %Y, %H:%M", "%a, %d %b %H:%M"],
)  # fmt: skip
@pytest.mark.parametrize("zone", [BERLIN, "UTC", "Asia/Kathmandu"])
def test_what_the_page_shows_can_be_typed(form: str, zone: str) -> None:
    for at in (datetime(2026, 12, 24, 9, 5, tzinfo=UTC), datetime(2027, 2, 1, 0, 0, tzinfo=UTC)):
        assert read(f" {local_text(at, zone, form)} ", zone) == at
        assert read(local_text(at, zone, form).lower().replace(" 0", "  "), zone) == at
    at = datetime(2026, 12, 24, 9, 5, 1, 23_000, tzinfo=UTC)
    assert read(local_text(at, zone), zone) == at


@pytest.mark.parametrize(
    ("text", "day", "hour", "minute"),
    [
        ("10:30", 24, 9, 30),
        ("9:41", 24, 8, 41),
        ("9:40", 24, 8, 40),
        ("9:39", 25, 8, 39),
        ("09:30", 25, 8, 30),
        ("2026-12-28 9:30", 28, 8, 30),
        ("2026-12-28T09:30", 28, 8, 30),
        ("2026-12-28T09:30+02:00", 28, 7, 30),
        ("20261228T0930Z", 28, 9, 30),
        ("2026-12-28", 27, 23, 0),
    ],
)
def test_a_time_is_read(text: str, day: int, hour: int, minute: int) -> None:
    assert read(text) == datetime(2026, 12, day, hour, minute, tzinfo=UTC)


@pytest.mark.parametrize(
    "text",
    ["25:99", "Fri 41 Dec 2026 08:30", "24 Yes 2026 08:30", "soon", "at 9", "2026-02-30 9:30"],
)
def test_an_error_quotes_what_was_typed(text: str) -> None:
    with pytest.raises(InvalidSendTime) as refused:
        read(text)
    assert f"cannot read '{text}'" in str(refused.value)
    assert "Thu 24 Dec 2026 08:30:00" in str(refused.value)


def test_a_time_that_happens_twice_is_shown_and_read_with_its_offset() -> None:
    first = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    for at, offset in ((first, "+02:00"), (first + timedelta(hours=1), "+01:00")):
        for form in ("", "%Y-%m-%d %H:%M:%S", "%a %d %b %H:%M"):
            shown = local_text(at, BERLIN, form)
            assert shown.endswith(f" {offset}")
            assert read(shown) == at
        assert local_text(at, BERLIN, "%H:%M") == "02:30"
    assert local_text(first - timedelta(hours=1), BERLIN).endswith("01:30:00")


def test_a_time_in_a_filter_is_that_of_today() -> None:
    for text, hour in (("9:30", 8), ("23:00", 22)):
        found = read_time(text, BERLIN, field="from", near=NOW, of_day=True)
        assert found == datetime(2026, 12, 24, hour, 0 if hour == 22 else 30, tzinfo=UTC)


def test_a_time_that_happens_twice_needs_an_offset() -> None:
    with pytest.raises(InvalidSendTime, match=r"happens twice in Europe/Berlin.*with an offset"):
        read("Sun 25 Oct 2026 02:30:00")
    with pytest.raises(InvalidSendTime, match="skipped by a clock change"):
        read("Sun 28 Mar 2027 02:30")


def drawn(view: str, lines: list[tuple[datetime, str, str]]) -> calendar.Picture:
    shown = calendar.VIEWS[view]
    start, end = calendar.stretch_of(shown, NOW, "UTC")
    window = WindowTimeline("ada", booked=(), quotas=(), complete=True)
    timeline = Timeline(start, end, "UTC", windows=(window,), quiet=(), steps=(), slots=())
    return calendar.Picture(timeline, shown, NOW, lines)


@pytest.mark.parametrize("view", calendar.VIEWS)
def test_each_line_is_in_the_row_of_its_time_and_rows_have_room_for_their_texts(view: str) -> None:
    row = calendar.VIEWS[view].row
    start, end = calendar.stretch_of(calendar.VIEWS[view], NOW, "UTC")
    times = {"now": start, "asked for": start + row / 2, "next free slot": start + row, "-": end}
    picture = drawn(view, [(at, text, text) for text, at in times.items()])
    shown = [[line.text for line in each.lines] for each in picture.rows]
    assert shown[:2] == [["now", "asked for"], ["next free slot"]]
    assert not any(shown[2:])
    assert picture.rows[0].lines[0].x == calendar.LEFT
    tops = [each.y for each in picture.rows]
    assert tops[1] - tops[0] == tops[2] - tops[1] + calendar.LINE

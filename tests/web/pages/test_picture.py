"""Where the parts of a calendar lie in its picture."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import combinations

import pytest

from dispatcher.reservation import Timeline
from dispatcher.reservation.timeline import WindowTimeline
from dispatcher.web.pages import picture

NOW = datetime(2100, 1, 1, 11, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def drawn(view: str, lines: list[tuple[datetime, str, str]]) -> picture.Picture:
    shown = picture.VIEWS[view]
    start, end = picture.stretch_of(shown, NOW, "UTC")
    window = WindowTimeline("ada", booked=(), quotas=(), complete=True)
    timeline = Timeline(start, end, "UTC", windows=(window,), quiet=(), steps=(), slots=())
    return picture.Drawing(timeline, shown, NOW).picture(lines)


@pytest.mark.parametrize("view", picture.VIEWS)
def test_no_text_of_a_line_covers_another_or_leaves_the_picture(view: str) -> None:
    row = picture.VIEWS[view].row
    start, _ = picture.stretch_of(picture.VIEWS[view], NOW, "UTC")
    for part in (0, 0.001, 0.05, 0.5, 0.9, 0.95, 0.999):
        for apart in (0, 0.001, 0.02, 0.04, 0.1, 0.2):
            at = start + row * part
            lines = [
                (at, "now", "now"),
                (at + row * apart / 2, "asked for", "asked"),
                (at + row * apart, "next free slot", "slot"),
            ]
            found = drawn(view, lines)
            for each in found.rows:
                for line in each.lines:
                    first, last = line.stretch
                    assert first >= 0
                    assert last <= picture.WIDTH
                for one, other in combinations(each.lines, 2):
                    (a, b), (c, d) = one.stretch, other.stretch
                    assert one.level != other.level or b <= c or d <= a, (part, apart)

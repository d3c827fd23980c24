"""A message keeps the local time by which it was asked for, so that new rules can be told."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.times.send_time import from_ms, instant_of, local_wish, parse
from tests.support.house import FAR, House

BERLIN, HOUR = "Europe/Berlin", timedelta(hours=1)
TWICE = "2100-10-31T02:30"
ZONES = (BERLIN, "America/St_Johns", "Australia/Lord_Howe", "Pacific/Chatham", "UTC")


@given(
    instant=st.integers(1_420_000_000_000, 4_000_000_000_000).map(from_ms),
    zone=st.sampled_from(ZONES),
    is_text=st.booleans(),
)
def test_a_wish_names_the_instant_of_the_local_time_that_was_asked_for(
    instant: datetime, zone: str, is_text: bool
) -> None:
    local = instant.astimezone(ZoneInfo(zone))
    wall, fold = local.replace(tzinfo=None, fold=0), local.fold
    asked = wall.isoformat() if is_text else wall
    wish = local_wish(asked, parse(asked, zone=zone, fold=fold), zone)
    assert wish is not None
    assert instant_of(wish, zone) == instant
    assert local_wish(local.isoformat() if is_text else local, instant, zone) is None


def test_a_wish_that_new_rules_skip_or_show_once_has_an_instant() -> None:
    cases = {
        "2026-03-29T02:30:00.000": "2026-03-29T01:30+00:00",  # skipped: as much later
        "2026-03-29T02:30:00.000;fold=1": "2026-03-29T01:30+00:00",
        "2026-10-24T02:30:00.000;fold=1": "2026-10-24T00:30+00:00",  # shown once
        "2026-10-25T02:30:00.000": "2026-10-25T00:30+00:00",
        "2026-10-25T02:30:00.000;fold=1": "2026-10-25T01:30+00:00",
    }
    for wish, instant in cases.items():
        assert instant_of(wish, BERLIN) == datetime.fromisoformat(instant), wish


@pytest.mark.every_database
def test_local_times_are_kept_and_instants_are_not(house: House) -> None:
    cases: list[tuple[dict[str, Any], str | None]] = [
        ({"send_at": "2100-06-01T10:00", "zone": BERLIN}, "2100-06-01T10:00:00.000"),
        (
            {"send_at": datetime.fromisoformat("2100-06-02T10:00"), "zone": BERLIN},
            "2100-06-02T10:00:00.000",
        ),
        ({"send_at": TWICE, "zone": BERLIN, "fold": 0}, f"{TWICE}:00.000"),
        ({"send_at": TWICE, "zone": BERLIN, "fold": 1}, f"{TWICE}:00.000;fold=1"),
        ({"send_at": " 2100-06-03 10:00 ", "zone": BERLIN}, "2100-06-03T10:00:00.000"),
        ({"send_at": "2100-06-04T10:00z", "zone": BERLIN}, None),
        ({"send_at": "2100-06-05T10:00-03", "zone": BERLIN}, None),
        ({"send_at": FAR + HOUR, "zone": BERLIN}, None),
        ({"send_at": FAR + 2 * HOUR}, None),
        ({"send_in": HOUR, "zone": BERLIN}, None),
    ]
    for asked, wish in cases:
        message = house.submit(str(asked), **asked)
        assert (message.wish, house.again(message).wish) == (wish, wish), asked


def test_a_move_has_the_wish_of_its_own_time(house: House) -> None:
    """That of another zone than the message's would name another instant."""
    message = house.submit(send_at="2100-06-01T10:00", zone=BERLIN)
    at_noon, noon = "2100-06-01T12:00", "2100-06-01T12:00:00.000"
    moves: list[tuple[dict[str, Any], str | None]] = [
        ({"send_at": at_noon}, noon),
        ({"send_at": "2100-06-01T10:00Z", "expires_at": "2100-12-31T00:00"}, noon),
        ({"send_at": "2100-06-01T12:00", "zone": "Asia/Tokyo"}, None),
        ({"send_at": at_noon, "set_zone": "Asia/Tokyo"}, noon),
        ({"later": HOUR}, None),
        ({"send_at": at_noon, "zone": "Asia/Tokyo"}, noon),
        ({"send_in": timedelta(days=100)}, None),
    ]
    for asked, wish in moves:
        moved = house.dispatcher.reschedule(message.id, **asked)
        assert (moved.wish, house.again(message).wish) == (wish, wish), asked

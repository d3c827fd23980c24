"""The load to come and the refusals, as a person sees them."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta

import pytest
from fastapi.testclient import TestClient

from dispatcher import Draft, QuotaExceeded
from dispatcher.web import Right
from tests.support.browser import Tab
from tests.support.house import FAR, House
from tests.support.house_fixtures import Build
from tests.web.pages.conftest import Visit

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
CHANNELS = {
    "sms": {"transport": "memory", "limits": ["1/second"]},
    "mail": {"transport": "memory"},
}


@pytest.fixture
def busy(build: Build) -> House:
    """Give a house with 140 messages in a minute of a channel that may send one a second."""
    house = build(channels=CHANNELS)
    start = house.dispatcher.load().start
    house.moved.set_wall(start)
    at = start + HOUR
    drafts = [
        Draft(channel="sms", recipient=f"r{number}", body={}, send_at=at) for number in range(140)
    ]
    house.dispatcher.submit_many(drafts)
    house.dispatcher.submit(channel="mail", recipient="ada", body={}, send_at=at + 50 * HOUR)
    return house


def test_the_load_tells_when_the_last_leaves_and_marks_overbooked_minutes(
    busy: House, visit: Visit
) -> None:
    client = visit(of=busy)
    day = client.get("/load").text
    at = busy.dispatcher.load().channels[0].minutes[0].at
    assert re.search(r"<h2[^>]*>sms</h2>\s*<p>140 due; 1/second\.", day)
    assert "1 minute is overbooked" in day
    assert f"{at + timedelta(seconds=140):%a %d %b %H:%M:%S}" in day
    assert 'class="bar over"' in day
    assert ">mail</h2>" not in day
    week = client.get("/load", params={"within": "week"}).text
    assert ">mail</h2>" in week
    assert "no minute is overbooked" in week
    assert ">mail</h2>" not in client.get("/load?within=week&channel=sms").text


@pytest.fixture
def refused(house: House) -> House:
    house.submit(send_at=FAR + HOUR)
    for _ in range(3):
        with pytest.raises(QuotaExceeded):
            house.submit(send_at=FAR + HOUR)
    return house


def test_refusals_are_shown_by_rule_and_replayed(refused: House, visit: Visit) -> None:
    client = visit(of=refused)
    shown = client.get("/refusals").text
    assert re.search(r'<th scope="row">1/minute</th><td class="n">3</td>', shown)
    assert "Fri 01 Jan 2100 12:01:00" in shown
    asked = client.get("/refusals", params={"what_if": "3/minute", "quota": "1/minute"}).text
    assert "With 3/minute, 2 of 3 would have fitted" in asked
    assert "1 would have been refused still" in asked
    wrong = client.get("/refusals?what_if=often")
    assert (wrong.status_code, "cannot read" in wrong.text) == (200, True)


def test_load_and_refusals_need_a_key_without_bounds(refused: House, visit: Visit) -> None:
    bound: TestClient = visit(of=refused, channels=frozenset({"memory"}))
    assert [bound.get(each).status_code for each in ("/load", "/refusals")] == [403, 403]
    reader = visit(Right.MESSAGES_READ, of=refused)
    assert [reader.get(each).status_code for each in ("/load", "/refusals")] == [200, 403]
    assert "/refusals" not in reader.get("/").text


@pytest.mark.long
def test_a_what_if_replay_in_a_browser(refused: House, opened_tab: Callable[..., Tab]) -> None:
    tab = opened_tab()
    page = tab.go("/refusals")
    page.get_by_label("What if it were").fill("2/minute")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="With 2/minute, 1 of 3 would have fitted").wait_for()
    assert tab.violations() == []
    assert tab.errors == []

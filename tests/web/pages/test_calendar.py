"""The calendar of a scope: why a time is refused, and when there is room."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient

from dispatcher import Message, QuotaExceeded
from dispatcher.web.pages import calendar
from tests.support.house import FAR, House
from tests.support.house_fixtures import Build
from tests.web.pages.conftest import Visit

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)


@pytest.fixture
def booked(house: House) -> Message:
    """Book a message for ada, an hour from now."""
    return house.submit(send_at=FAR + HOUR)


def asked(client: TestClient, **query: Any) -> str:
    answer = client.get("/calendar", params={"channel": "memory", **query})
    assert answer.status_code == 200, answer.text
    return answer.text


def test_it_names_the_quota_that_refuses_the_messages_in_the_way_and_the_next_slot(
    house: House, visit: Visit, booked: Message
) -> None:
    at = FAR + HOUR + timedelta(seconds=10)
    with pytest.raises(QuotaExceeded) as refused:
        house.submit(send_at=at)
    before = house.snapshot()
    text = asked(visit(), recipient="ada", at=f"{at:%Y-%m-%dT%H:%M:%S}")
    assert "No: <time" in text
    assert "It would break the quota 1/minute of ada." in text
    assert f"/messages/{booked.id}" in text
    slot = refused.value.next_slot
    assert slot == FAR + HOUR + MINUTE
    assert f'It could go at <strong><time datetime="{slot.isoformat()}">' in text
    assert house.snapshot() == before, "the question left something behind"


def test_a_large_window_is_not_copied_for_a_question(
    house: House, visit: Visit, booked: Message, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calendar, "_MOST_COPIED", 0)
    monkeypatch.setattr(house.dispatcher, "plan", None)
    text = asked(visit(), recipient="ada", at="12:00")
    assert "It would break the quota 1/minute of ada." in text
    slot = booked.send_at + MINUTE
    assert f'It could go at <strong><time datetime="{slot.isoformat()}">' in text


def test_it_names_every_quota_that_refuses(build: Build, visit: Visit) -> None:
    house = build(quotas="1/minute, 1/hour")
    house.submit(send_at=FAR + HOUR)
    text = asked(visit(of=house), recipient="ada", at="12:00")
    named = {quota for quota in ("1/minute", "1/hour") if f"{quota} of ada, too." in text}
    assert len(named) == 1
    [other] = {"1/minute", "1/hour"} - named
    assert f"It would break the quota {other} of ada." in text


def test_a_time_that_fits_is_said_to_fit(visit: Visit, booked: Message) -> None:
    assert "Yes: <time" in asked(visit(), recipient="ada", at="12:01")
    assert "No: <time" in asked(visit(), recipient="ada", at="12:00")
    assert "12:00" in f"{booked.send_at:%H:%M}"


def test_the_table_has_what_the_picture_has(visit: Visit, booked: Message) -> None:
    text = asked(visit(), recipient="ada")
    picture, table = text.split("The same as a table")
    for part in (picture, table):
        assert f"/messages/{booked.id}" in part
        assert 'class="block q1"' in part
    assert f'<time datetime="{(FAR + HOUR - MINUTE).isoformat()}' in table.replace(".001000", "")
    assert "1/minute of ada" in table
    assert "free slot" in table


@pytest.mark.parametrize("view", ["hours", "day", "week", "weeks"])
def test_each_view_has_the_change_of_the_clocks(visit: Visit, view: str) -> None:
    text = asked(visit(), recipient="ada", view=view, zone="Europe/Berlin", start="2099-10-25")
    assert "clocks go back 1 h" in text
    assert "the clocks go back by 60 minutes" in text


def test_quiet_hours_are_shown_and_refuse(build: Build, visit: Visit) -> None:
    channels = {"memory": {"transport": "memory", "quiet_hours": "21:00-08:00"}}
    text = asked(visit(of=build(channels=channels)), recipient="ada", at="22:00")
    assert "It lies in quiet hours: 21:00-08:00 UTC." in text
    assert 'class="block quiet"' in text
    assert '<strong><time datetime="2100-01-02T08:00:00+00:00">' in text


def test_a_channel_and_a_tenant_have_calendars(build: Build, visit: Visit) -> None:
    house = build(
        scopes={"tenant": {"quotas": "1/hour"}},
        channels={"memory": {"transport": "memory", "quotas": "2/hour"}},
    )
    message = house.submit(send_at=FAR + HOUR, scopes={"tenant": "acme"})
    client = visit(of=house)
    of_tenant = client.get("/calendar", params={"count.tenant": "acme", "at": "12:30"}).text
    of_channel = client.get("/calendar", params={"channel": "memory"}).text
    assert f"/messages/{message.id}" in of_tenant
    assert "1/hour" in of_tenant
    assert "No: <time" in of_tenant
    assert "2/hour" in of_channel


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ({"at": "25:99"}, "at:"),
        ({"zone": "Mars/Olympus"}, "there is no zone"),
        ({"start": "soon"}, "start:"),
        ({"channel": "pigeon"}, "there is no channel"),
    ],
)
def test_bad_parameters_are_named(visit: Visit, query: dict[str, str], told: str) -> None:
    answer = visit().get("/calendar", params={"recipient": "ada", **query})
    assert answer.status_code == 422
    assert told in answer.text

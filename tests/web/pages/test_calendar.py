"""The calendar of a scope: why a time is refused, and when there is room."""

from __future__ import annotations

import re
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from fastapi.testclient import TestClient

from dispatcher import Message, QuietHours, QuotaExceeded
from dispatcher.web.pages import calendar
from tests.support.house import FAR, House
from tests.support.house_fixtures import Build
from tests.web.conftest import ON_SQLITE
from tests.web.pages.conftest import Visit

pytestmark = ON_SQLITE

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
    house: House, visit: Visit, booked: Message, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = FAR + HOUR + timedelta(seconds=10)
    with pytest.raises(QuotaExceeded) as refused:
        house.submit(send_at=at)
    before = house.snapshot()
    form = visit().get("/").text.split('action="/calendar"')[1].split("</form>")[0]
    assert {"recipient", "at"} <= {*re.findall(r'name="(\w+)"', form)}, "where it is asked"
    text = asked(visit(), recipient="ada", at=f"{at:%Y-%m-%dT%H:%M:%S}")
    assert "No: <time" in text
    assert "It would break the quota 1/minute of ada." in text
    assert f"/messages/{booked.id}" in text
    slot = refused.value.next_slot
    assert slot == FAR + HOUR + MINUTE
    assert f'It could go at <strong><time datetime="{slot.isoformat()}">' in text
    assert house.snapshot() == before, "the question left something behind"
    monkeypatch.setattr(calendar, "_MOST_COPIED", 0)
    monkeypatch.setattr(house.dispatcher, "plan", None)
    text = asked(visit(), recipient="ada", at="12:00")
    assert "It would break the quota 1/minute of ada." in text, "by the slots of a large window"
    assert f'It could go at <strong><time datetime="{slot.isoformat()}">' in text


def refuse(house: House, recipient: str = "ada", **asked: Any) -> QuotaExceeded:
    with pytest.raises(QuotaExceeded) as refused:
        house.submit(recipient, **asked)
    return refused.value


def test_a_refusal_of_a_past_time_is_explained_by_what_was_noted(
    house: House, visit: Visit
) -> None:
    house.submit(send_at=FAR + HOUR)
    house.submit("ben", send_at=FAR + HOUR)
    refuse(house, send_at=FAR + HOUR + timedelta(seconds=20))
    refuse(house, "ben", send_at=FAR + HOUR + timedelta(seconds=40))
    house.moved.set_wall(FAR + 3 * HOUR)
    client = visit()
    text = asked(client, recipient="ada", at="2100-01-01 12:00")
    assert "12:00:00</time> is past" in text
    verdict = text.split("</section>")[0]
    assert "12:00:20</time> was refused on" in verdict
    assert "by the quota 1/minute of ada. Its next free slot was" in verdict
    assert f'datetime="{(FAR + HOUR + MINUTE).isoformat()}"' in verdict
    assert "12:00:40" not in text, "of ben"
    assert "It could go <strong>at once</strong>" in verdict
    other = asked(client, recipient="ada", at="2100-01-01 12:00:19")
    assert "No refusal of a message for that time is among those that are kept" in other
    assert "Refused of late" in other


def test_the_next_slot_of_a_past_question_is_one_from_now_on(build: Build, visit: Visit) -> None:
    house = build(quotas="1/hour")
    house.submit(send_at=FAR + 3 * HOUR)
    house.moved.set_wall(FAR + 3 * HOUR)
    query = {"recipient": "ada", "at": "2100-01-01 12:00", "start": "2100-01-05"}
    text = asked(visit(of=house), **query)
    slot = FAR + 4 * HOUR
    assert f'It could go <strong>at <time datetime="{slot.isoformat()}">' in text


def test_last_refusals_of_all_scopes_that_are_shown_are_listed(build: Build, visit: Visit) -> None:
    house = build(scopes={"tenant": {"quotas": "1/hour"}}, quotas="1/minute")
    house.submit("ben", send_at=FAR + HOUR, scopes={"tenant": "acme"})
    refuse(house, send_at=FAR + HOUR, scopes={"tenant": "acme"})
    house.submit(send_at=FAR + 5 * HOUR)
    refuse(house, send_at=FAR + 5 * HOUR)
    client = visit(of=house)
    rows = r"<td>(the quota [^<]*|quiet hours)</td>"
    shown = re.findall(rows, asked(client, recipient="ada"))
    assert [text.strip() for text in shown] == [
        "the quota 1/minute of ada", "the quota 1/hour of each tenant",
    ]  # fmt: skip
    shown = re.findall(rows, asked(client, recipient="ada", **{"count.tenant": "acme"}))
    assert shown == ["the quota 1/hour of the tenant acme"]
    assert re.findall(rows, asked(client, recipient="ben")) == []


def test_the_table_has_what_the_picture_has(visit: Visit, booked: Message) -> None:
    text = asked(visit(), recipient="ada")
    picture, table = text.split("The same as a table")
    for part in (picture, table):
        assert f"/messages/{booked.id}" in part
        assert 'class="block q1"' in part
    assert f'<time datetime="{(FAR + HOUR - MINUTE).isoformat()}' in table.replace(".001000", "")
    assert "1/minute of ada" in table
    assert "free slot" in table


@pytest.mark.parametrize(
    ("zone", "start", "view"),
    [("Europe/Berlin", "2099-10-20", "weeks"), ("America/Santiago", "2100-09-01", "week")],
)
def test_each_day_is_there_once_when_the_clocks_change(
    visit: Visit, zone: str, start: str, view: str
) -> None:
    drawn, _ = asked(visit(), recipient="ada", view=view, zone=zone, start=start).split(
        "as a table"
    )
    days = re.findall(r">(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) (\d\d)(?: [A-Z][a-z]{2})?</text>", drawn)
    assert len(days) >= 7
    assert len(set(days)) == len(days)
    assert "01:00" not in "".join(re.findall(r"<text[^>]*>([^<]*)</text>", drawn))


@pytest.mark.parametrize(
    ("zone", "start", "view"),
    [
        ("Europe/Berlin", "2100-03-27T20:00", "hours"),  # 02:00 is skipped
        ("Europe/Berlin", "2100-10-30T20:00", "hours"),  # 02:00 comes twice
        ("America/Santiago", "2100-09-04", "day"),  # midnight is skipped
        ("Europe/Berlin", "2100-10-25", "week"),
    ],
)
def test_the_calendars_before_and_after_begin_and_end_with_this_one(
    visit: Visit, zone: str, start: str, view: str
) -> None:
    client, span = visit(), r'<time datetime="([^"]*)">'
    asks = {"recipient": "ada", "zone": zone, "start": start, "view": view}

    def shown(text: str) -> list[str]:
        pager = re.findall(r'<div class="pager">.*</div>', text)[0]
        return re.findall(span, pager)

    page = client.get("/calendar", params=asks)
    begin, end = shown(page.text)
    for direction, number, edge in (("next", 0, end), ("prev", 1, begin)):
        [link] = re.findall(rf'<a href="([^"]*)" rel="{direction}"', page.text)
        answer = client.get(unescape(link))
        assert answer.status_code == 200, direction
        assert shown(answer.text)[number] == edge


def test_calendar_and_story_name_scopes_in_words(build: Build, visit: Visit) -> None:
    house = build(
        scopes={"tenant": {"quotas": "1/hour"}},
        channels={
            "memory": {"transport": "memory", "quotas": "1/hour", "recipient_quotas": "1/hour"}
        },
        quotas="9/hour",
    )
    message = house.submit(send_at=FAR + HOUR, scopes={"tenant": "acme"})
    client = visit(of=house)
    query = {"recipient": "ada", "channel": "memory", "count.tenant": "acme", "at": "12:30"}
    text = client.get("/calendar", params=query).text
    verdict = text.split('id="verdict"')[1].split("</section>")[0]
    named = re.findall(r"It would break (?:the quota )?1/hour of ([^.,]*)[.,]", verdict)
    assert sorted(named) == ["ada on memory", "the channel memory", "the tenant acme"]
    story = client.get(f"/messages/{message.id}").text
    assert set(re.findall(r"<li>of ([^:<]*):", story)) == {"ada", *named}


def test_the_calendar_shows_what_is_kept_and_what_is_full(build: Build, visit: Visit) -> None:
    house = build(quotas="3/hour, 1 kept for priority >= 50, 9/day")
    client = visit(of=house)

    def shown() -> tuple[bool, bool, bool]:
        text = client.get("/calendar", params={"recipient": "ada"}).text
        kept = "<td>blocked below priority 50" in re.sub(r"<svg.*?</svg> ?", "", text)
        return kept, 'class="block q1 kept" x=' in text, 'class="block q1" x=' in text

    house.submit(send_at=FAR + HOUR)
    assert shown() == (False, False, False)
    house.submit(send_at=FAR + HOUR)
    assert shown() == (True, True, False)
    house.submit(send_at=FAR + HOUR, priority=50)
    assert shown() == (True, True, True)


def memory(**channel: Any) -> dict[str, Any]:
    return {"channels": {"memory": {"transport": "memory", **channel}}}


EMAIL, PHONE = memory(recipients="email"), memory(recipients="phone")
TYPED = memory(body="tests.web.test_openapi:Message")
QUIET, FULL = memory(quiet_hours="21:00-08:00"), memory(quotas="2/hour")
TENANTS = {"scopes": {"tenant": {"quotas": "1/hour"}}}
OPT_OUT, OF_FILE = ("suppress", "ada", None), ("suppress", "ada", "file")
NOON = "12:00"
NO_SLOT = "The recipient has opted out of {}: no message goes to it there"
TOLD: list[tuple[dict[str, Any], dict[str, Any] | None, Any, dict[str, str], str, str]] = [
    ({}, {"scope": "fam"}, None, {"recipient": "ben", "scope": "fam", "at": NOON},
     "It would break the quota 1/minute of fam.", "Yes:"),
    (EMAIL, None, None, {"recipient": "ada@example.com", "scope": "fam", "at": NOON},
     "Nothing is booked of fam, at any time; check its spelling", "No:"),
    (EMAIL, {"recipient": "ada@example.com"}, None, {"recipient": "ada@Example.COM", "at": NOON},
     "ada@Example.COM is read as <b>ada@example.com</b>", "Yes:"),
    (PHONE, {"recipient": "+49 151 2345678", "scope": "team 7"}, None, {"recipient": "team 7"},
     "The next free slot is", "no + before"),
    ({}, None, OPT_OUT, {"recipient": "ada"}, NO_SLOT.format("memory"), "free slot"),
    ({}, None, OPT_OUT, {"recipient": "ada", "channel": "", "at": NOON},
     NO_SLOT.format("every channel"), "accepted:"),
    ({}, None, OF_FILE, {"recipient": "ada"}, "ada has opted out of file.", NO_SLOT[:20]),
    ({}, None, ("pause", "recipient", "ada"), {"recipient": "ada", "at": NOON},
     "The recipient ada is paused", "No:"),
    ({}, None, ("pause", "recipient", "ada"), {"recipient": "ada", "scope": "trip"},
     "free slot", "is paused"),
    (TYPED, None, None, {"recipient": "ada", "at": NOON}, "Yes: <time", "No:"),
    (QUIET, None, None, {"recipient": "ada", "at": "22:00"},
     "It lies in quiet hours: 21:00-08:00 UTC.", "Yes:"),
    (QUIET, None, None, {"recipient": "ada", "at": "22:00"},
     '<strong><time datetime="2100-01-02T08:00:00+00:00">', "Yes:"),
    (FULL, {}, None, {}, "2/hour", "No:"),
    (TENANTS, {"scopes": {"tenant": "acme"}}, None,
     {"channel": "", "count.tenant": "acme", "at": "12:30"}, "No: <time", "Yes:"),
]  # fmt: skip
"""Settings, a message, a call before, and what the calendar of a query says and does not say."""


@pytest.mark.parametrize(("settings", "message", "before", "query", "said", "unsaid"), TOLD)
def test_the_calendar_tells_what_counts(  # noqa: PLR0917 - parameters of the cases
    build: Build, visit: Visit, settings: Any, message: Any, before: Any, query: Any, said: str,
    unsaid: str,
) -> None:  # fmt: skip
    house = build(**settings)
    if message is not None:
        house.submit(**{"recipient": "ada", "send_at": FAR + HOUR, **message})
    if before is not None:
        call, name, other = before
        fields = {"channel": other} if call == "suppress" else {"name": other}
        getattr(house.dispatcher, call)(name, **fields)
    text = asked(visit(of=house), **query)
    assert said in text
    assert unsaid not in text


def test_a_refusal_by_terms_of_the_message_is_told(house: House, visit: Visit) -> None:
    """The question has no quiet hours; the message had its own, by the clocks of its zone."""
    with pytest.raises(QuietHours):
        house.submit(send_at=FAR + HOUR, quiet_hours="06:30-09:00", zone="America/New_York")
    verdict = asked(visit(), recipient="ada", at="2100-01-01 12:00").split("</section>")[0]
    assert "Yes: <time" in verdict
    assert "by quiet hours 06:30-09:00 of America/New_York. Its next free slot was" in verdict
    assert f'datetime="{(FAR + 3 * HOUR).isoformat()}"' in verdict


def test_bad_parameters_are_named(build: Build, visit: Visit) -> None:
    client, of_phones = visit(), visit(of=build(**PHONE))
    for visitor, query, told in (
        (client, {"at": "25:99"}, "at: cannot read &#39;25:99&#39;"),
        (client, {"at": "9999-12-31T23:59:59+00:00", "zone": "Pacific/Auckland"}, "9999-12-31T23"),
        (client, {"at": "Fri 41 Jan 2100"}, "cannot read &#39;Fri 41 Jan 2100&#39;"),
        (client, {"start": "soon"}, "start:"),
        (client, {"start": "1969-12-31T12:00"}, "a time from 1970 on"),
        (client, {"channel": "pigeon"}, "there is no channel"),
        (client, {"view": "year"}, "view: cannot read &#39;year&#39;; accepted: one of hours, day"),
        (of_phones, {"channel": "memory"}, "recipient: no + before a country code"),
    ):
        answer = visitor.get("/calendar", params={"recipient": "0151", **query})
        assert (answer.status_code, told in answer.text) == (422, True), query
        assert "next free slot is" not in answer.text

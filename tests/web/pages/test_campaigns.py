"""A campaign from a file: planned exactly, booked once, and watched."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Any
from unittest.mock import patch

import pytest
from fastapi.testclient import TestClient

from dispatcher import Dispatcher, Draft, OutcomeUnknown, Rejection, StoreUnavailable
from dispatcher.web import Caller, Right, bounds
from dispatcher.web.pages import campaigns
from dispatcher.web.pages.campaigns import histogram
from tests.support.house import FAR, House
from tests.support.house_fixtures import Build
from tests.support.waiting import DEADLINE, wait_until
from tests.web.pages.conftest import Visit

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


def csv_of(*rows: tuple[str, Any]) -> bytes:
    lines = ["recipient,text,send_at", *(f"{name},hello,{at}" for name, at in rows)]
    return "\n".join(lines).encode()


def drop(client: TestClient, content: bytes, name: str = "sale.csv", **form: str) -> Any:
    fields = {"campaign": "summer", "channel": "memory"} | form
    return client.post("/campaigns", data=fields, files={"file": (name, content)})


def ended(client: TestClient, answer: Any) -> tuple[str, str]:
    """Return where a file is shown, and the page once its step has ended."""
    assert answer.status_code == 303, answer.text
    path = answer.headers["location"]
    wait_until(lambda: "data-live" not in client.get(path).text)
    return path, client.get(path).text


def test_a_file_is_planned_booked_and_watched(
    house: House, visit: Visit, actions: list[str]
) -> None:
    client = visit()
    at = (FAR + HOUR).isoformat()
    day = "2100-02-30T10:00:00+00:00"  # that there is not
    rows = [("ada", at), ("ben", at), ("ada", at), ("cyd", day), ("dan", FAR + 2 * HOUR)]
    path, planned = ended(client, drop(client, csv_of(*rows)))
    assert re.search(r'data-number="accepted">3</b> would be accepted', planned)
    assert re.search(r'data-number="refused">2</b> refused', planned)
    assert re.search(r"<td>quota exceeded 1/minute</td><td class=\"n\">1</td>", planned)
    assert re.search(r"<td>invalid send time</td><td class=\"n\">1</td>", planned)
    assert "line 4: Fri 01 Jan 2100 12:00:00 does not fit the quota 1/minute" in planned
    assert day in planned
    assert house.members() == {}
    assert house.dispatcher.count() == 0

    path, booked = ended(client, client.post(path))
    assert re.search(r'data-number="accepted">3</b> booked', booked)
    summer = [*house.dispatcher.select(campaign="summer", oldest_first=True)]
    assert [message.recipient for message in summer] == ["ada", "ben", "dan"]
    assert {message.channel for message in summer} == {"memory"}
    client.post(path)
    assert house.dispatcher.count() == 3, "booked once"
    token = path.rsplit("/", 1)[-1]
    assert actions == [f"page: {step} of upload {token} by ops" for step in ("plan", "booking")]

    house.dispatcher.cancel(summer[0].id)
    came = client.get("/campaigns?campaign=summer").text
    link = r'<a href="/messages\?campaign=summer&amp;channel=memory&amp;status={}">{}</a>'
    assert re.search(link.format("scheduled", 2), came)
    assert re.search(link.format("cancelled", 1), came)
    assert str(summer[2].id) in client.get("/messages?campaign=summer&status=scheduled").text
    assert "Cancel 2 messages?" in client.get("/messages/bulk?do=cancel&campaign=summer").text


def test_rows_of_a_file_get_the_priority_of_the_form_unless_they_name_one(
    house: House, visit: Visit
) -> None:
    client, at = visit(), (FAR + HOUR).isoformat()
    row = {"text": "hi", "send_at": at}
    rows = [{"recipient": "ada"} | row, {"recipient": "ben", "priority": -3} | row]
    content = "\n".join(map(json.dumps, rows)).encode()
    refused = drop(client, content, "sale.jsonl", priority="high")
    assert (refused.status_code, "priority: &#39;high&#39;" in refused.text) == (422, True)
    path, _ = ended(client, drop(client, content, "sale.jsonl", priority="40"))
    ended(client, client.post(path))
    booked = house.dispatcher.select(campaign="summer", oldest_first=True)
    assert [message.priority for message in booked] == [40, -3]


def test_full_times_take_the_next_slot_and_the_plan_is_exact(build: Build, visit: Visit) -> None:
    house = build(quotas="1/minute")
    client, at = visit(of=house), FAR + HOUR
    line = {"recipient": "ada", "text": "hi", "send_at": at.isoformat()}
    lines = [{**line, "idempotency_key": "k"}, *[line] * 9]
    content = "\n".join(map(json.dumps, lines)).encode()
    path, planned = ended(client, drop(client, content, "sale.jsonl", shift="on"))
    assert ">9</b> at a later time than asked for" in planned
    table = planned.split("</svg>")[-1]
    cells = re.findall(r'<td class="n">(\d+)</td><td class="n">(\d+)</td>', table)
    assert cells == [("10", "1"), *[("0", "1")] * 9]
    ended(client, client.post(path))
    assert sorted(house.members().values()) == [
        int((at + number * MINUTE).timestamp() * 1000) for number in range(10)
    ]
    again, _ = ended(client, drop(client, content, "sale.jsonl", shift="on"))
    assert "10 of them known before" in client.get(again).text, "the same file books nothing twice"
    other, _ = ended(client, drop(client, content + b"\n", "sale.jsonl", shift="on"))
    assert "1 of them known before" in client.get(other).text, "its own key is known"
    ops = Caller(name="ops")
    assert len([*house.dispatcher.select(idempotency_key=ops.own_key("k"))]) == 1


@pytest.mark.parametrize(
    ("content", "name", "said"),
    [
        (b"", "sale.csv", "is empty"),
        (b"\xff\xfe\xfa", "sale.csv", "UTF"),
        (b"a", "sale.xlsx", "its name shows no format"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(
    visit: Visit, content: bytes, name: str, said: str
) -> None:
    answer = drop(visit(), content, name)
    assert (answer.status_code, said in answer.text) == (422, True)


@pytest.mark.parametrize("said", ["it is away", "the line broke"])
def test_a_booking_that_broke_off_goes_on_and_books_nothing_twice(
    house: House, visit: Visit, said: str
) -> None:
    """The database goes in the middle, or what came of a row is unknown."""
    client = visit()
    path, _ = ended(client, drop(client, csv_of(("ada", FAR + HOUR), ("ben", FAR + HOUR))))
    real = house.dispatcher.submit_many

    def broken(drafts: Any, **more: Any) -> Any:
        [made] = real([next(iter(drafts))], **more)
        if said == "it is away":
            yield made
            raise StoreUnavailable(said)
        draft = Draft(channel="memory", recipient="ada", body={})
        yield Rejection(0, draft, OutcomeUnknown(said, made.id))

    with patch.object(house.dispatcher, "submit_many", broken):
        _, shown = ended(client, client.post(path))
    assert said in shown
    assert house.dispatcher.count() == 1
    _, booked = ended(client, client.post(path))
    assert "1 of them known before" in booked
    assert house.dispatcher.count() == 2


def test_only_those_with_the_right_and_their_own(house: House, visit: Visit) -> None:
    client = visit()
    path, _ = ended(client, drop(client, csv_of(("ada", FAR + HOUR))))
    reader = visit(Right.MESSAGES_READ)
    assert drop(reader, csv_of(("ada", FAR))).status_code == 403
    assert "Plan it" not in reader.get("/campaigns").text
    assert reader.get(path).status_code == 403
    assert visit().get(path).status_code == 404, "of another site"
    bound = visit(scope=None, channels=frozenset({"file"}))
    _, shown = ended(bound, drop(bound, csv_of(("ada", FAR + HOUR)), channel="memory"))
    assert "the key may only use the channels file" in shown
    assert "There is nothing to book." in shown
    assert house.dispatcher.count() == 0


class Visitors:
    """Visitors of one page, each by a name of its own."""

    def __init__(self, visit: Visit) -> None:
        self.name = "ann"
        self.client = visit(access=lambda _: Caller(name=self.name, rights=frozenset(Right)))

    def drop(self, name: str) -> Any:
        self.name = name
        return drop(self.client, csv_of(("ada", FAR + HOUR)))

    def planned(self, name: str) -> str:
        """Drop a file; return where it is shown once its plan has ended."""
        return ended(self.client, self.drop(name))[0]

    def status(self, name: str, path: str) -> int:
        """Return the status of a page as that visitor gets it."""
        self.name = name
        return int(self.client.get(path).status_code)


def test_a_visitor_keeps_a_few_files_and_is_told_of_the_others(
    visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaigns, "_MOST_OF_ONE", 2)
    visitors = Visitors(visit)
    bobs = visitors.planned("bob")
    assert visitors.status("ann", bobs) == 404, "of another person"
    assert visitors.client.post(bobs).status_code == 404
    assert "sale.csv" not in visitors.client.get("/campaigns").text
    first, second, third = (visitors.planned("ann") for _ in range(3))
    for path, status in ((first, 404), (second, 200), (third, 200)):
        assert visitors.status("ann", path) == status
    gone = visitors.client.post(first)
    assert gone.status_code == 404
    assert "the last 2 of a visitor are kept for 12 hours" in gone.text
    assert "drop it again, and nothing is booked twice" in gone.text
    assert visitors.status("bob", bobs) == 200


def test_so_many_files_of_all_visitors_are_kept(
    visit: Visit, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(campaigns, "_MOST_KEPT", 2)
    visitors = Visitors(visit)
    paths = {name: visitors.planned(name) for name in ("ann", "bob", "cyd")}
    assert [visitors.status(name, path) for name, path in paths.items()] == [404, 200, 200]
    assert len([*tmp_path.glob("dispatcher-page-*")]) == 2


def test_a_file_is_kept_for_half_a_day(house: House, visit: Visit) -> None:
    client = visit()
    path, _ = ended(client, drop(client, csv_of(("ada", FAR + HOUR))))
    house.moved.advance(11 * HOUR)
    assert client.get(path).status_code == 200
    house.moved.advance(2 * HOUR)
    assert (client.get(path).status_code, client.post(path).status_code) == (404, 404)
    assert "sale.csv" not in client.get("/campaigns").text


def test_one_file_is_planned_at_a_time(visit: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
    working, going_on, make_plan = list[str](), Event(), campaigns.Upload._make_plan

    def planned(upload: campaigns.Upload, dispatcher: Dispatcher) -> campaigns.UploadState:
        working.append(upload.caller.name)
        assert going_on.wait(DEADLINE)
        return make_plan(upload, dispatcher)

    monkeypatch.setattr(campaigns.Upload, "_make_plan", planned)
    visitors, names = Visitors(visit), ["ann", "ann", "bob"]
    answers = [visitors.drop(name) for name in names]
    wait_until(lambda: working)
    for name, answer in zip(names, answers, strict=True):
        path = answer.headers["location"]
        assert visitors.status(name, path) == 200
        assert "planning …" in visitors.client.get(path).text
    assert working == ["ann"]
    going_on.set()
    for name, answer in zip(names, answers, strict=True):
        visitors.name = name
        assert "the plan" in ended(visitors.client, answer)[1]
    assert sorted(working) == names


def test_files_that_are_sent_at_once_are_bounded(
    visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(bounds.MOST, "files", (0, 0, 5, "files"))
    client = visit()
    refused = drop(client, csv_of(("ada", FAR + HOUR)))
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "5")
    monkeypatch.setitem(bounds.MOST, "files", (1, 1, 5, "files"))
    for _ in range(2):
        ended(client, drop(client, csv_of(("ada", FAR + HOUR))))
    assert client.get("/campaigns").status_code == 200


def test_a_histogram_has_few_steps_and_all_times(house: House) -> None:
    times = [FAR + number * 7 * HOUR for number in range(1, 200)]
    drafts = [
        Draft(channel="memory", recipient=f"r{n}", body={}, send_at=at)
        for n, at in enumerate(times)
    ]
    drawn = histogram(house.dispatcher.plan(drafts))
    assert drawn is not None
    assert len(drawn.stretches) <= 40
    assert sum(stretch.asked for stretch in drawn.stretches) == 199
    assert sum(stretch.promised for stretch in drawn.stretches) == 199


def test_a_file_that_is_too_long_is_refused_with_what_is_accepted(
    visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = visit()
    assert "at most 64 MiB and 200,000 rows" in client.get("/campaigns").text
    monkeypatch.setattr(campaigns, "MOST_ROWS", 2)
    at = (FAR + HOUR).isoformat()
    path, refused = ended(client, drop(client, csv_of(("a", at), ("b", at), ("c", at))))
    assert "file: more than 2 rows; accepted: parts, or `dispatcher import`" in refused
    assert client.post(path).status_code == 409, "there is no plan to book"
    too_long = drop(client, b"x" * (campaigns.MOST_BYTES + 70_000))
    assert (too_long.status_code, "a form has at most" in too_long.text) == (413, True)


def rows_of(text: str) -> list[list[str]]:
    """Return the cells of the list of campaigns, without what lies around them."""
    [body] = re.findall(r'aria-label="Campaigns by status".*?<tbody>(.*?)</tbody>', text, re.DOTALL)
    cells = [re.findall(r"<t[hd].*?</t[hd]>", row) for row in body.split("<tr>")[1:]]
    return [[re.sub("<.*?>", "", cell) for cell in row] for row in cells]


def test_campaigns_are_listed_with_their_counts(house: House, visit: Visit) -> None:
    client = visit(Right.MESSAGES_READ)
    assert "No message has a campaign." in client.get("/campaigns").text
    for name in ("ada", "ben"):
        last = house.submit(name, send_at=FAR + HOUR, campaign="summer & sun")
    house.submit("cyd", send_at=FAR + HOUR, campaign="autumn")
    house.submit("dan", send_at=FAR + HOUR)
    house.dispatcher.cancel(last.id)
    text = client.get("/campaigns").text
    assert rows_of(text) == [
        ["autumn", "1", *"000000", "what came of it: autumn"],
        ["summer &amp; sun", "1", *"00000", "1", "what came of it: summer &amp; sun"],
    ]
    links = re.findall(r'href="(/messages\?campaign=summer[^"]*)"', text)
    assert [client.get(link.replace("&amp;", "&")).text.count("<code>") for link in links] == [
        2, 1, 1,
    ]  # fmt: skip
    assert "further campaigns" not in text


def test_campaigns_are_listed_in_pages(
    house: House, visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaigns, "_MOST_LISTED", 2)
    for name in ("a b", "c", "d", "e"):
        house.submit(name, send_at=FAR + HOUR, campaign=name)
    client, answers = visit(), []
    path: str | None = "/campaigns"
    while path is not None:
        text = client.get(path).text
        answers.append([row[0] for row in rows_of(text)])
        further = re.search(r'href="([^"]*)" rel="next"', text)
        path = further and further[1]
    assert answers == [["a b", "c"], ["d", "e"]]
    monkeypatch.setattr(campaigns, "_LIST_SECONDS", 0)
    text = client.get("/campaigns").text
    assert [row[0] for row in rows_of(text)] == ["a b"]
    assert '<a href="/campaigns?after=a+b" rel="next">' in text
    assert "There are no further campaigns." in client.get("/campaigns?after=e").text


def test_a_bound_visitor_sees_the_campaigns_of_its_own_messages(
    build: Build, visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    channels = {name: {"transport": "memory"} for name in ("memory", "sms", "file")}
    house = build(channels=channels, scopes={"tenant": {"quotas": "9/hour"}})
    for number, (campaign, channel, tenant) in enumerate(
        [("both", "memory", "acme"), ("both", "sms", "zeta"), ("secret", "file", "zeta"),
         ("spring", "memory", "zeta"), ("winter", "sms", "acme")]
    ):  # fmt: skip
        house.submit(f"r{number}", send_at=FAR + HOUR, campaign=campaign, channel=channel,
                     scopes={"tenant": tenant})  # fmt: skip
    acme = visit(of=house, scope=("tenant", "acme"))
    text = acme.get("/campaigns").text
    assert [row[:2] for row in rows_of(text)] == [["both", "1"], ["winter", "1"]]
    assert "it is listed if one of them is yours" in text
    assert "No message has this campaign." in acme.get("/campaigns?campaign=secret").text
    bound = visit(of=house, channels=frozenset({"memory", "sms"}))
    text = bound.get("/campaigns").text
    assert [row[:2] for row in rows_of(text)] == [["both", "2"], ["spring", "1"], ["winter", "1"]]
    both = bound.get("/campaigns?campaign=both").text
    assert (
        len(re.findall(r"campaign=both&amp;channel=(memory|sms)&amp;status=scheduled", both)) == 2
    )
    assert "No message has this campaign." in bound.get("/campaigns?campaign=secret").text

    monkeypatch.setattr(campaigns, "_LIST_SECONDS", 0)
    text = acme.get("/campaigns?after=both").text
    assert "secret" not in text, "not as the place where the list ended, either"
    assert "of messages that you do not see" in text

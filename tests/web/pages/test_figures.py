"""The overview, the load to come and the refusals, and what bounds the reading of a page."""

from __future__ import annotations

import re
from base64 import b64encode
from datetime import timedelta
from html import unescape
from math import inf
from threading import Event, Thread, current_thread
from unittest.mock import Mock
from uuid import UUID

import pytest
from fastapi.testclient import TestClient

from dispatcher import Draft, QuietHours, QuotaExceeded, Status
from dispatcher.client import app_of
from dispatcher.store import listing
from dispatcher.store.listing import Figures
from dispatcher.telemetry.liveness import LOST_AFTER, Kind
from dispatcher.web import Caller, Right, bounds, page
from dispatcher.web.bounds import CachedRead, Threads
from dispatcher.web.pages import site
from dispatcher.web.problems import Refused
from tests.support.house import FAR, House
from tests.support.house_fixtures import Build
from tests.web.pages.conftest import Visit, at_present, paths

SECRET = "whsec_" + b64encode(b"a key of some twenty-nine bytes").decode()
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
CHANNELS = {"sms": {"transport": "memory", "limits": ["1/second"]}, "mail": {"transport": "memory"}}


def test_the_overview_names_workers_beats_and_duties(house: House, visit: Visit) -> None:
    client = visit()
    text = client.get("/").text
    for what in ("worker", "beat"):
        assert f"<tr><td>{what}</td><td>none</td>" in text
        assert f'<span class="tag bad">no {what} is alive</span>' in text
    assert '<p class="fact bad"><b data-number="workers">0</b>' in text

    signs = house.parts.signs
    signs.note(Kind.WORKER, {"celery@one 7": 0 * MINUTE, "celery@two 8": LOST_AFTER + MINUTE})
    signs.note(Kind.BEAT, {"beat@one 9": 0 * MINUTE})
    signs.note(Kind.DUTY, {"reconcile": 2 * HOUR})
    text = visit().get("/").text
    rows = re.findall(r"<tr><td>(worker|beat|duty)</td><td>([^<]*)</td><td>([^<]*)</td>(.*)", text)
    states = {(what, name): state for what, name, _, state in rows}
    assert "alive" in states["worker", "celery@one 7"]
    assert "lost" in states["worker", "celery@two 8"]
    assert "alive" in states["beat", "beat@one 9"]
    assert [age for what, _, age, _ in rows if what == "duty"] == ["2 hours ago"]
    assert '<p class="fact"><b data-number="workers">1</b>' in text
    assert '<p class="fact"><b data-number="beats">1</b>' in text


def test_the_overview_has_the_last_day_by_the_hour(
    house: House, visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is shown where that takes too long."""
    with at_present(house):
        house.deliver(house.submit("ada"))
    text = visit().get("/").text
    assert 'aria-label="1 sent, of which 1 late; 0 failed"' in text
    rows = re.findall(r'<tr><th scope="row"><time .*?</time></th>(.*?)</tr>', text)
    numbers = [re.findall(">([0-9]+)<", row) for row in rows]
    assert (len(rows), [row for row in numbers if any(map(int, row))]) == (
        24,
        [["1", "1", "0", "0"]],
    )
    not_yet = Refused(503, "not-yet", "still counting")
    monkeypatch.setattr(Figures, "last_day", Mock(side_effect=not_yet))
    answer = visit().get("/")
    assert (answer.status_code, "is being counted" in answer.text) == (200, True)


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


def test_the_busiest_are_ranked_by_messages_or_by_quota(busy: House, visit: Visit) -> None:
    client = visit(of=busy)

    def names(query: str) -> list[str]:
        text = client.get(f"/top{query}").text
        links = re.findall(r'<th scope="row"><a href="([^"]*)">(.*?)</a>', text)
        assert all(f">{name}</" in client.get(unescape(link)).text for link, name in links[:2])
        return [name for _, name in links]

    assert names("?of=channel&within=week") == ["sms", "mail"]
    assert names("?of=channel") == ["sms"]
    assert names("?of=channel&by=fill") == ["sms"]
    assert len(names("")) == 20
    assert len(names("?of=recipient&by=fill&within=week")) == 20
    assert client.get("/top?of=campaign").status_code == 422
    assert visit(Right.MESSAGES_READ, of=busy).get("/top").status_code == 403
    assert visit(of=busy, channels=frozenset({"sms"})).get("/top").status_code == 403


@pytest.fixture
def refused(house: House) -> House:
    house.submit(send_at=FAR + HOUR)
    for _ in range(3):
        with pytest.raises(QuotaExceeded):
            house.submit(send_at=FAR + HOUR)
    return house


def test_refusals_are_shown_by_rule(refused: House, visit: Visit) -> None:
    client = visit(of=refused)
    shown = client.get("/refusals").text
    assert re.search(r'<th scope="row">1/minute</th><td class="n">3</td>', shown)
    assert len(re.findall(r"<td>6\d s</td>", shown)) == 2, "how far the next slot was"
    assert "Fri 01 Jan 2100 12:01:00" in shown
    with pytest.raises(QuietHours):
        refused.submit(send_at=FAR + HOUR, quiet_hours="12:00-14:00")
    shown = client.get("/refusals").text
    assert '<th scope="row">quiet hours</th><td class="n">1</td>' in shown
    assert "<td>quiet hours 12:00-14:00 of UTC</td>" in shown
    wrong = client.get("/refusals?quota=often")
    assert (wrong.status_code, "cannot read" in wrong.text) == (422, True)


def test_the_doctor_tells_what_it_finds(house: House, visit: Visit, actions: list[str]) -> None:
    client = visit()
    assert "Findings" not in client.get("/doctor").text
    assert actions == []
    text = client.post("/doctor").text
    [row] = re.findall(r"<tr>(?:(?!</tr>).)*<code>work\.processes</code>.*?</tr>", text)
    assert '<span class="tag warn">warning</span>' in row
    assert "no worker and no beat is alive: due messages are not sent<br>" in row
    assert "<strong>Remedy:</strong> start `dispatcher worker` and `dispatcher beat`" in row
    assert actions == ["page: doctor by ops"]


def test_refusals_name_digests_where_there_is_a_key_for_them(
    build: Build, refused: House, visit: Visit
) -> None:
    without = visit(of=refused).get("/refusals").text
    assert "Scope, as logs name it" not in without
    assert "With the setting <code>log_key</code> this table also has a digest" in without
    house = build(log_key="a secret of more than thirty-two letters")  # on the same windows
    with pytest.raises(QuotaExceeded):
        house.submit(send_at=FAR + HOUR)
    last = house.dispatcher.refusals().last[0]
    shown = visit(of=house).get("/refusals").text
    assert f"<td><code>{last.scope}</code></td>" in shown
    assert "log_key" not in shown


def test_every_page_is_shown_in_full_and_while_redis_is_away(build: Build, visit: Visit) -> None:
    settings = {
        "channels": {
            "memory": {"transport": "memory", "limits": ["5/second"]},
            "hooks": {"transport": "webhook", "options": {"payload": "body", "secrets": [SECRET]}},
        },
        "status_channel": "hooks",
    }
    house, seen = build(**settings), []
    client = visit(of=house)
    addresses = paths(house)
    full = {"idempotency_key": "order-1", "status_url": "https://shop.example/hook"}
    message = house.submit(send_at=FAR + HOUR, on_conflict="shift", **full)
    addresses["shifted"] = f"/messages/{message.id}"
    for text in (", and shifted to ", "<dd>order-1</dd>", "<dd>shop.example: nothing yet</dd>"):
        assert text in client.get(addresses["shifted"]).text
    with at_present(house):
        due = house.submit("fay")
        house.memory.before = lambda _: seen.append(client.get(f"/messages/{due.id}").text)
        house.deliver(due)
    assert "<b>attempt 1</b>: under way" in seen[0]
    assert '<meter min="0" max="5"' in client.get("/").text
    away = visit(of=build(**settings, redis_url="redis://127.0.0.1:9", opened=False))
    answers = {name: away.get(path) for name, path in addresses.items()}
    assert {answer.status_code for answer in answers.values()} <= {200, 503}
    assert "Redis does not answer" in answers["shifted"].text
    assert "Limits and processes are not known" in answers["/"].text


_FURTHER = re.compile(r'href="([^"]*)">(?:Look further back|Look further on|look further)<')
_ID = re.compile(r"<code>([0-9a-f-]{36})</code>")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a page end after its first statement, which reads three messages."""
    monkeypatch.setattr(site.Visit, "patience", timedelta(0))
    monkeypatch.setattr(listing, "_EXAMINED", 3)


@pytest.mark.parametrize(
    "path", ["/messages?", "/messages?order=oldest&", "/messages/bulk?do=cancel&"]
)
@pytest.mark.usefixtures("impatient")
def test_a_search_that_takes_too_long_goes_on_where_it_ended(
    house: House, visit: Visit, path: str
) -> None:
    expected = {house.submit("ada", send_at=FAR + n * HOUR).id for n in range(1, 3)}
    for number in range(7):
        house.submit(f"r{number}", send_at=FAR + 20 * HOUR)
    expected.add(house.submit("ben", send_at=FAR + HOUR).id)
    client = visit()
    at: str | None = f"{path}until=2100-01-01T14:00"
    listed: list[UUID] = []
    visits = 0
    while at is not None:
        answer = client.get(at)
        assert answer.status_code == 200
        listed += map(UUID, _ID.findall(answer.text))
        further = _FURTHER.search(answer.text)
        at = None if further is None else unescape(further[1])
        visits += 1
    assert visits > 3
    assert (sorted(listed), set(listed)) == (sorted(expected), expected)


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_statement_that_takes_too_long_asks_for_a_narrower_filter(
    house: House, visit: Visit
) -> None:
    """The program's own statements wait, and are not ended with those of the page."""
    message = house.submit(send_at=FAR + HOUR)
    client = visit()
    with house.parts.database.engine.connect() as other:
        other.exec_driver_sql("BEGIN")
        other.exec_driver_sql("LOCK TABLE dispatcher_messages IN ACCESS EXCLUSIVE MODE")
        listed = client.get("/messages")
        story = client.get(f"/messages/{message.id}")
        other.exec_driver_sql("ROLLBACK")
    assert (listed.status_code, story.status_code) == (503, 503)
    assert "narrow the filter" in listed.text
    assert 'name="campaign"' in listed.text, "the filters are there"
    assert "narrow the filter" in story.text
    assert client.get("/messages").status_code == 200
    bounds = [
        parts.database.run(lambda line: line.exec_driver_sql("SHOW statement_timeout").scalar())
        for parts in (house.parts, app_of(house.dispatcher).pages)
    ]
    assert bounds == ["10s", "1s"]


def test_visits_leave_a_program_its_threads(house: House) -> None:
    """They have threads that closing the dispatcher waits for, and none of those of anyio."""
    threads = set[Thread]()

    def access(_: object) -> Caller:
        threads.add(current_thread())
        return Caller(name="ops")

    with TestClient(page(house.dispatcher, access=access)) as client:
        assert client.get("/messages").status_code == 200
    lent = {thread for pool in house.dispatcher._lent for thread in pool._threads}
    assert threads
    assert threads <= lent


def test_a_figure_that_is_read_for_long_keeps_nobody(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first visit is told to come again; later ones see the figure from before."""
    monkeypatch.setattr(bounds, "_FIRST_WAIT_SECONDS", 0.01)
    monkeypatch.setattr(bounds, "SECONDS", 0.0)
    cached, may_end, ended = CachedRead[int](Threads(house.dispatcher, 1)), Event(), Event()
    numbers = iter(range(9))

    def read() -> int:
        may_end.wait(30)
        ended.set()
        return next(numbers)

    with pytest.raises(Refused) as refused:
        cached.of(read)
    assert refused.value.headers == {"Retry-After": "2"}
    may_end.set()
    ended.wait(30)
    monkeypatch.setattr(bounds, "_FIRST_WAIT_SECONDS", 30)
    assert cached.of(read) in (0, 1)
    cached._until = -inf
    may_end.clear()
    monkeypatch.setattr(bounds, "_WAIT_SECONDS", 0.01)
    assert cached.of(read) in (0, 1), "while another read is under way"
    may_end.set()


def test_an_error_of_a_figure_is_told_and_the_next_visit_reads_again(house: House) -> None:
    cached = CachedRead[Status](Threads(house.dispatcher, 1))
    fails = Mock(side_effect=ZeroDivisionError)
    with pytest.raises(ZeroDivisionError):
        cached.of(fails)
    assert cached.of(lambda: Status.SENT) is Status.SENT
    cached._until = -inf
    with pytest.raises(ZeroDivisionError):
        cached.of(fails)
    assert cached.of(fails) is Status.SENT, "no visit reads again before the pause is over"

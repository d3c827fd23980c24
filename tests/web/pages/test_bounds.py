"""However many messages are stored, a page takes a moment, and takes nothing from its program."""

from __future__ import annotations

import re
from datetime import timedelta
from html import unescape
from math import inf
from threading import Event, Thread, current_thread
from unittest.mock import Mock
from uuid import UUID

import pytest
from fastapi.testclient import TestClient

from dispatcher import Status
from dispatcher.client import app_of
from dispatcher.store import listing
from dispatcher.web import Caller, bounds, page
from dispatcher.web.bounds import CachedRead
from dispatcher.web.pages import site
from dispatcher.web.problems import Refused
from tests.support.house import FAR, House
from tests.web.pages.conftest import Visit

HOUR = timedelta(hours=1)
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
    wanted = {house.submit("ada", send_at=FAR + n * HOUR).id for n in range(1, 3)}
    for number in range(7):
        house.submit(f"r{number}", send_at=FAR + 20 * HOUR)
    wanted.add(house.submit("ben", send_at=FAR + HOUR).id)
    client = visit()
    at: str | None = f"{path}until=2100-01-01T14:00"
    found: list[UUID] = []
    visits = 0
    while at is not None:
        answer = client.get(at)
        assert answer.status_code == 200
        found += map(UUID, _ID.findall(answer.text))
        further = _FURTHER.search(answer.text)
        at = None if further is None else unescape(further[1])
        visits += 1
    assert visits > 3
    assert (sorted(found), set(found)) == (sorted(wanted), wanted)


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
        each.database.run(lambda line: line.exec_driver_sql("SHOW statement_timeout").scalar())
        for each in (house.parts, app_of(house.dispatcher).pages)
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
    lent = {thread for each in house.dispatcher._lent for thread in each._threads}
    assert threads
    assert threads <= lent


def test_a_figure_that_is_read_for_long_keeps_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first visit is told to come again; later ones see the figure from before."""
    monkeypatch.setattr(bounds, "_FIRST_WAIT_SECONDS", 0.01)
    monkeypatch.setattr(bounds, "SECONDS", 0.0)
    cached, may_end, ended = CachedRead[int](), Event(), Event()
    many = iter(range(9))

    def read() -> int:
        may_end.wait(30)
        ended.set()
        return next(many)

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


def test_an_error_of_a_figure_is_told_and_the_next_visit_reads_again() -> None:
    cached, fails = CachedRead[Status](), Mock(side_effect=ZeroDivisionError)
    with pytest.raises(ZeroDivisionError):
        cached.of(fails)
    assert cached.of(lambda: Status.SENT) is Status.SENT
    cached._until = -inf
    with pytest.raises(ZeroDivisionError):
        cached.of(fails)
    assert cached.of(fails) is Status.SENT, "no visit reads again before the pause is over"

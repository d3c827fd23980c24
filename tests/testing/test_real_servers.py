"""What a test has beside sends: all else of production, on real servers by the test's time."""

from __future__ import annotations

import asyncio
import hashlib
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.orm import Session

from dispatcher import Draft, Message, QuotaExceeded, Settings
from dispatcher.client import app_of
from dispatcher.limiters import AsyncLimiter, Decision, FixedWindow
from dispatcher.redis.scripts import script
from dispatcher.testing import MemoryDispatcher
from dispatcher.web import Caller, api, page
from dispatcher.web.keys import ApiKeys
from tests.support.house import House
from tests.support.processes import pytest_in, ran
from tests.support.waiting import wait_until

START = datetime(2026, 11, 23, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
SETTINGS: dict[str, Any] = {"quotas": "2/hour", "channels": {"sms": {"transport": "memory"}}}


@pytest.fixture(params=["sqlite", "postgresql"])
def memory(request: pytest.FixtureRequest) -> Iterator[MemoryDispatcher]:
    """Give a dispatcher of a test on each kind of database."""
    url = None
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres").url(request.getfixturevalue("postgres_name"))
    settings = Settings.load(**SETTINGS)
    with MemoryDispatcher(settings, start=START, database_url=url) as dispatcher:
        yield dispatcher


def submit(memory: MemoryDispatcher, **more: Any) -> Message:
    usual = {"channel": "sms", "recipient": "ada", "body": {}, "send_in": HOUR}
    return memory.submit(**usual | more)  # type: ignore[arg-type]  # passed on


def test_every_read_goes_by_the_time_of_the_test(memory: MemoryDispatcher) -> None:
    for _ in range(2):
        submit(memory)
    with pytest.raises(QuotaExceeded) as refused:
        submit(memory)
    assert refused.value.next_slot == START + 2 * HOUR
    draft = Draft(channel="sms", recipient="ada", body={}, send_in=HOUR, on_conflict="shift")
    assert memory.plan([draft]).accepted == 1
    assert memory.timeline("ada").slots
    assert memory.refusals().last
    memory.travel.until_idle()
    assert memory.travel.now == START + HOUR
    assert memory.counts()
    assert memory.verify_windows().differences == ()
    assert memory.top() is not None
    assert memory.status().counts.now == START + HOUR
    memory.erase("ada")
    assert not list(memory.list(recipient="ada"))


@pytest.mark.parametrize("commits", [True, False])
def test_a_message_joins_a_transaction_with_tables_of_the_program(
    memory: MemoryDispatcher, commits: bool
) -> None:
    engine = create_engine(memory.settings.database_url)
    with Session(engine) as session:
        session.execute(text("CREATE TABLE orders (id INTEGER)"))
        session.commit()
        session.execute(text("INSERT INTO orders VALUES (1)"))
        kept = submit(memory, session=session)
        savepoint = session.begin_nested()
        submit(memory, session=session, recipient="ben")
        savepoint.rollback()
        session.commit() if commits else session.rollback()
        assert session.execute(text("SELECT count(*) FROM orders")).scalar() == commits
        session.execute(text("DROP TABLE orders"))
        session.commit()
    engine.dispose()
    memory.travel.until_idle()
    assert [sent.message.id for sent in memory.outbox] == [kept.id] * commits
    assert memory.next_slot(recipient="ben") == memory.travel.now


def test_the_http_api_and_the_page_show_it(memory: MemoryDispatcher) -> None:
    _, token = ApiKeys(app_of(memory).database).add("shop")
    order = {"channel": "sms", "recipient": "ada", "body": {}, "send_in_seconds": 3600}
    with TestClient(api(memory), headers={"Authorization": f"Bearer {token}"}) as calls:
        made = calls.post("/v1/messages", json=order)
        assert made.status_code == 201, made.text
        memory.travel(hours=1)
        assert calls.get(f"/v1/messages/{made.json()['id']}").json()["status"] == "sent"
    with TestClient(page(memory, access=lambda _: Caller(name="ada"))) as visitor:
        assert "2026-11-23" in visitor.get("/messages").text


def test_a_limiter_goes_by_the_time_of_the_test(memory: MemoryDispatcher) -> None:
    limit, travel = FixedWindow(5, "minute"), memory.travel
    logins = limit.on(travel.redis(), clock=travel.clock)
    assert [logins.acquire("ada").allowed for _ in range(6)] == [True] * 5 + [False]

    async def look() -> Decision:
        async with travel.awaited_redis() as client:
            awaited: AsyncLimiter = limit.on(client)
            return await awaited.peek("ada")

    assert asyncio.run(look()).remaining == 0
    travel(minutes=1)
    assert logins.acquire("ada")
    day = FixedWindow(1, "day").on(travel.redis(), clock=travel.clock)
    assert [bool(day.acquire("ada", wait=True)) for _ in range(2)] == [True, True]
    assert travel.now == START + timedelta(days=1, minutes=1)


@pytest.mark.long
def test_a_run_chooses_its_database(tmp_path: Path, postgres: Any, postgres_name: str) -> None:
    url = postgres.url(postgres_name)
    (tmp_path / "test_it.py").write_text("""
import datetime, pytest
@pytest.mark.parametrize("_", range(2))
def test_it(_, dispatcher, outbox, travel):
    assert dispatcher.settings.database_url.startswith("postgresql")
    assert dispatcher.count() == 0
    days = datetime.timedelta(days=3)
    dispatcher.submit(channel="memory", recipient="ada", body={}, send_in=days)
    travel(days=3)
    assert len(outbox) == 1
""")
    done = pytest_in(tmp_path, f"--dispatcher-database-url={url}")
    assert "2 passed" in done.stdout, done.stdout


def test_nothing_but_the_present_differs_from_what_production_sends() -> None:
    """What SQLAlchemy compiles is what production sends."""
    written: list[str] = []
    sent: list[str] = []

    def write(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        written.append(statement)

    def send(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        sent.append(statement)

    event.listen(Engine, "before_cursor_execute", write)
    with MemoryDispatcher(Settings.load(**SETTINGS), start=START) as memory:
        event.listen(Engine, "after_cursor_execute", send)
        submit(memory)
        memory.travel.until_idle()
    event.remove(Engine, "before_cursor_execute", write)
    event.remove(Engine, "after_cursor_execute", send)
    present = "strftime('%Y-%m-%d %H:%M:%f', 'now')"
    by_machine = written[-len(sent) :]
    assert any(present in statement for statement in by_machine)
    assert by_machine == [re.sub(r"travel_now_\d+\(\)", present, text) for text in sent]


def test_a_dispatcher_of_production_is_untouched_beside_one_of_a_test(house: House) -> None:
    def sent_by_production() -> list[str]:
        statements: list[str] = []

        def note(connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
            if connection.engine is house.parts.database.engine:
                statements.append(statement)

        event.listen(Engine, "before_cursor_execute", note)
        house.submit(str(uuid4()))
        house.parts.sweep.enqueue_due()
        event.remove(Engine, "before_cursor_execute", note)
        return statements

    sent_by_production()  # the first sweep looks at all that is due
    alone = sent_by_production()
    with MemoryDispatcher(Settings.load(**SETTINGS), start=START) as memory:
        submit(memory)
        beside = sent_by_production()
    assert alone == beside
    reserve = script("reservation/reserve")
    assert reserve.sha == hashlib.sha1(reserve.text.encode(), usedforsecurity=False).hexdigest()
    assert house.redis.script_exists(reserve.sha) == [True]


@pytest.mark.long
def test_the_redis_of_tests_ends_with_its_process() -> None:
    program = """
import os, signal
from dispatcher.testing.app import servers
import redis
print(redis.Redis(unix_socket_path=str(servers().socket)).info("server")["process_id"], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    number = int(ran(sys.executable, "-c", program).stdout)
    wait_until(lambda: not _is_running(number))


def _is_running(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False

"""A rebuild asks each server once for many rows: what it takes does not grow by waiting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest
from redis.connection import AbstractConnection
from sqlalchemy import Engine, event

from dispatcher import Draft, Message
from dispatcher.delivery import reconciler
from dispatcher.message import new_id
from tests.support.house import BODY, FAR, House, hour_ago
from tests.support.house_fixtures import Build

MINUTE = timedelta(minutes=1)
KINDS: dict[str, Any] = {
    "quotas": "1000/day",
    "scopes": {"tenant": {"quotas": "1000000/day"}},
    "channels": {
        "memory": {
            "transport": "memory", "quotas": "1000000/day", "recipient_quotas": "1000/day",
        },
    },
}  # fmt: skip
PAGE = 100


@pytest.fixture
def pages_of_100(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_ROWS_AT_ONCE", "BATCH"):
        monkeypatch.setattr(reconciler, name, PAGE)


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Count how often somebody waits for an answer of SQL, and for one of Redis."""
    calls: Counter[str] = Counter()
    send: Callable[..., None] = AbstractConnection.send_packed_command

    def count(self: AbstractConnection, *words: Any, **more: Any) -> None:
        calls["Redis"] += 1
        send(self, *words, **more)

    def note(*_: object) -> None:
        calls["SQL"] += 1

    event.listen(Engine, "before_cursor_execute", note)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(AbstractConnection, "send_packed_command", count)
            yield calls
    finally:
        event.remove(Engine, "before_cursor_execute", note)


def calls_of_a_rebuild(house: House, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    rebuild_all(house)  # tells the server the scripts
    with counted(monkeypatch) as calls:
        rebuild_all(house)
    return calls


def rebuild_all(house: House) -> None:
    house.redis.flushall()
    rebuild = house.parts.upkeep.begin()
    assert rebuild is not None
    assert house.parts.reconciler._rebuild(rebuild, timedelta(0)) == len(rebuild.parts)


def submitted(house: House, many: int, *, first: int = 0, start: datetime = FAR) -> list[Message]:
    """Submit messages of twenty recipients: there are no more windows where there are more."""
    drafts = [
        Draft(
            channel="memory",
            recipient=f"name {n % 20}",
            body=BODY,
            send_at=start + n * MINUTE,
            scopes={"tenant": f"tenant {n % 5}"},
        )
        for n in range(first, first + many)
    ]
    results = house.dispatcher.submit_many(drafts)
    found = [each for each in results if isinstance(each, Message)]
    assert len(found) == many, results[:1]
    return found


@pytest.mark.usefixtures("pages_of_100")
def test_a_page_of_rows_takes_one_round_trip_to_each_server(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In pages of 100 rows, each with places in four windows, 1,000 rows took 50 round trips."""
    house = build(shards=16, **KINDS)
    submitted(house, PAGE)
    few = calls_of_a_rebuild(house, monkeypatch)
    submitted(house, 1_000, first=PAGE)
    many = calls_of_a_rebuild(house, monkeypatch)
    assert many - few == {"SQL": 10, "Redis": 10}
    assert house.dispatcher.verify_windows().equal
    assert house.dispatcher.verify_windows().reservations == 4 * 1_100


@pytest.mark.usefixtures("pages_of_100")
def test_a_page_of_permits_takes_one_round_trip_to_sql_and_two_to_redis(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = build(clock=hour_ago(), **KINDS)
    due = house.database_time() - MINUTE

    def deliver(many: int, *, first: int = 0) -> None:
        messages = submitted(house, many, first=first, start=house.database_time() + MINUTE)
        house.change(messages, send_at=due, next_attempt_at=due)
        assert house.deliver(*messages) == many

    deliver(PAGE // 2)
    few = calls_of_a_rebuild(house, monkeypatch)
    deliver(2 * PAGE, first=PAGE)
    many = calls_of_a_rebuild(house, monkeypatch)
    # Two pages of places and two of permits.
    assert many - few == {"SQL": 4, "Redis": 2 + 2 * 2}
    assert sum(len(house.permits(f"name {n}")) for n in range(20)) == PAGE // 2 + 2 * PAGE


def test_deleting_what_is_left_takes_few_round_trips(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2,000 windows took 17 of them."""
    house = build(shards=16, **KINDS)
    rebuild_all(house)

    def calls_of_a_wipe() -> int:
        rebuild = house.parts.upkeep.close(range(16))
        assert rebuild is not None
        with counted(monkeypatch) as calls:
            house.parts.upkeep.wipe(rebuild)
        house.parts.upkeep.open(rebuild)
        return calls["Redis"]

    calls_of_a_wipe()
    few = calls_of_a_wipe()
    for n in range(2_000):
        name = f"name {n}"
        house.redis.zadd(house.keys(name).window(name), {new_id().bytes: 1})
    assert calls_of_a_wipe() <= few + 2
    assert house.all_members() == {}

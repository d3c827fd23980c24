"""Windows are rebuilt from rows, by one process at a time, and only when complete opened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from redis.connection import AbstractConnection
from sqlalchemy import Engine

from dispatcher import Draft, Message, StoreUnavailable
from dispatcher.delivery import reconciler
from dispatcher.errors import ReservationsUnavailable
from dispatcher.message import new_id
from dispatcher.reservation.upkeep import Rebuild, Reserved
from dispatcher.scope import own_scope
from tests.store.plans import asked_of
from tests.support.doubles import raising
from tests.support.house import BODY, FAR, House
from tests.support.house_fixtures import Build
from tests.support.reserving import SHARDS, Reserving, ms, reserving
from tests.support.servers import RedisServer

NOON = datetime(2100, 1, 1, 12, tzinfo=UTC)
Opened = Callable[..., Reserving]


def begun(real: Reserving) -> Rebuild:
    rebuild = real.upkeep.begin()
    assert rebuild is not None
    return rebuild


def test_a_late_copy_of_a_wipe_deletes_nothing_that_was_filled_in_since(opened: Opened) -> None:
    real = opened()
    real.client.flushall()
    rebuild = begun(real)
    real.upkeep.wipe(rebuild)
    present = Reserved(new_id(), (own_scope("ann"),), NOON)
    real.upkeep.restore(rebuild, [present])
    real.upkeep.wipe(rebuild)
    assert real.upkeep.open(rebuild) == len(rebuild.parts)
    assert set(real.members("ann")) == {present.message_id}
    assert real.unconfirmed()


def test_opening_that_is_repeated_has_the_same_answer(opened: Opened) -> None:
    """The client repeats it when the reply is lost; what follows a rebuild depends on it."""
    real = opened()
    real.client.flushall()
    rebuild = begun(real)
    assert [real.upkeep.open(rebuild) for _ in range(2)] == [len(rebuild.parts)] * 2
    real.fence.close(real.client, real.fence.parts)
    begun(real)
    assert real.upkeep.open(rebuild) == 0, "closed since"


@pytest.mark.parametrize("overtaken_by", [None, "another rebuilder"])
def test_an_overtaken_rebuilder_writes_nothing_and_cannot_open(
    redis_server: RedisServer, overtaken_by: str | None
) -> None:
    with reserving(redis_server.url) as slow, reserving(redis_server.url) as quick:
        rebuild = begun(slow)
        for keys in slow.fence.parts:  # as the marker's expiry does
            slow.client.delete(keys.rebuild)
        other = begun(quick) if overtaken_by else None
        present = Reserved(new_id(), (own_scope("ann"),), NOON)
        if other is not None:
            quick.upkeep.restore(other, [present])
        before = slow.dump()

        slow.upkeep.wipe(rebuild)
        slow.upkeep.restore(rebuild, [Reserved(new_id(), (own_scope("ann"),), NOON)])
        assert slow.upkeep.open(rebuild) == 0

        assert slow.dump() == before
        with pytest.raises(ReservationsUnavailable):
            slow.book(NOON)
        if other is not None:
            assert quick.upkeep.open(other) > 0
            assert set(quick.members("ann")) == {present.message_id}


def test_stragglers_of_each_rebuild_are_looked_for_once(opened: Opened) -> None:
    real = opened()
    assert real.upkeep.unchecked(older_than=timedelta(minutes=1)) == {}
    for keys in real.fence.keys:
        real.client.hincrby(keys.epoch, "opened_at_ms", -60_000)
    due = real.upkeep.unchecked(older_than=timedelta(0))
    assert len(due) == SHARDS
    again = real.fence.keys[0]
    rebuild = real.upkeep.close([again.shard])
    assert rebuild is not None
    real.upkeep.open(rebuild)
    real.upkeep.mark_checked(due)
    assert set(real.upkeep.unchecked(older_than=timedelta(0))) == {again}


def test_reservations_put_back_during_a_rebuild_are_there_after_it(opened: Opened) -> None:
    """A message that was committed after the store was read, and found its windows closed."""
    real, message_id = opened(), new_id()
    rebuild = real.upkeep.close([real.keys("ada").shard])
    assert rebuild is not None
    real.upkeep.wipe(rebuild)
    assert real.upkeep.restore_missing([Reserved(message_id, (own_scope("ada"),), NOON)]) == 1
    real.upkeep.open(rebuild)
    assert real.members("ada") == {message_id: ms(NOON)}
    assert real.unconfirmed() == {(message_id.bytes, real.keys("ada").window("ada"))}


# What a rebuild does before what: submits do not wait for deliveries, nor these for submits.


MINUTE = timedelta(minutes=1)


def test_submits_are_accepted_where_the_permits_cannot_be_read(slow: House) -> None:
    kept = [slow.submit(f"name {n}") for n in range(12)]
    slow.redis.flushall()
    down = {"permits": raising(StoreUnavailable("down"))}
    slow.between("reconciler", "store", before=down)
    with suppress(StoreUnavailable):
        slow.open()
    for n in range(12):
        slow.submit(f"name {n}", send_in=MINUTE)
    assert slow.reservations() == slow.all_members()

    assert slow.deliver(*kept) == 0, "the permit logs are not complete"
    assert slow.sent == []
    slow.redis.delete(
        *(keys.rebuild for keys in slow.permit_shards())
    )  # as the marker's expiry does
    slow.open()
    slow.change(kept, next_attempt_at=slow.database_time() - timedelta(milliseconds=1))
    assert slow.deliver(*kept) == 12
    assert slow.reservations() == slow.all_members()


def test_permits_alone_are_read_without_the_settle_time(slow: House) -> None:
    """A claim is in the store before it asks for a permit; only submits commit after they book."""
    slow.deliver(slow.submit())
    sleeps = slow.moved.sleeps
    sleeps.clear()
    slow.redis.delete(slow.permit_keys("ada").epoch)
    slow.reconciled()
    assert sleeps == []
    assert len(slow.permits()) == 1

    slow.redis.delete(slow.keys("ada").epoch)
    slow.reconciled()
    assert sleeps == [slow.settings.settle.total_seconds()]


# A rebuild asks each server once for many rows: what it takes does not grow by waiting.


KINDS: dict[str, Any] = {
    "quotas": "1000/day",
    "scopes": {"tenant": {"quotas": "1000000/day"}},
    "channels": {
        "memory": {
            "transport": "memory", "quotas": "1000000/day", "recipient_quotas": "1000/day",
        },
    },
}  # fmt: skip
PAGE = 20


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_ROWS_AT_ONCE", "BATCH"):
        monkeypatch.setattr(reconciler, name, PAGE)


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Count the round trips to SQL and to Redis."""
    calls: Counter[str] = Counter()
    send: Callable[..., None] = AbstractConnection.send_packed_command

    def count(self: AbstractConnection, *words: Any, **more: Any) -> None:
        calls["Redis"] += 1
        send(self, *words, **more)

    with asked_of(Engine) as asked, monkeypatch.context() as patch:
        patch.setattr(AbstractConnection, "send_packed_command", count)
        yield calls
    calls["SQL"] = len(asked)


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


def submitted(house: House, count: int, *, first: int = 0) -> list[Message]:
    """Submit messages of twenty recipients: there are no more windows where there are more."""
    drafts = [
        Draft(
            channel="memory",
            recipient=f"name {n % 20}",
            body=BODY,
            send_at=FAR + n * MINUTE,
            scopes={"tenant": f"tenant {n % 5}"},
        )
        for n in range(first, first + count)
    ]
    results = house.dispatcher.submit_many(drafts)
    messages = [result for result in results if isinstance(result, Message)]
    assert len(messages) == count, results[:1]
    return messages


@pytest.mark.usefixtures("small_pages")
def test_a_page_of_rows_takes_one_round_trip_to_each_server(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row has places in four windows."""
    house = build(shards=16, **KINDS)
    submitted(house, PAGE)
    few = calls_of_a_rebuild(house, monkeypatch)
    submitted(house, 10 * PAGE, first=PAGE)
    calls = calls_of_a_rebuild(house, monkeypatch)
    assert calls - few == {"SQL": 10, "Redis": 10}
    assert house.dispatcher.verify_windows().equal
    assert house.dispatcher.verify_windows().reservations == 4 * 11 * PAGE

"""Windows are rebuilt from rows, by one process at a time, and only when complete opened."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest

from dispatcher.errors import QuotaExceeded, ReservationsUnavailable
from dispatcher.message import new_id
from dispatcher.quota import Quota
from dispatcher.reservation import Terms
from dispatcher.reservation.upkeep import Rebuild, Reserved
from dispatcher.scope import plain
from dispatcher.times.send_time import from_ms
from tests.support.reserving import SHARDS, Reserving, ms, reserving, stored
from tests.support.servers import RedisServer

NOON = datetime(2100, 1, 1, 12, tzinfo=UTC)
Opened = Callable[..., Reserving]


def begun(real: Reserving) -> Rebuild:
    rebuild = real.upkeep.begin()
    assert rebuild is not None
    return rebuild


def book_many(real: Reserving, scopes: int, each: int) -> list[Reserved]:
    roll = random.Random(1)  # noqa: S311 - not for secrets
    rows = []
    for n in range(scopes):
        for _ in range(each):
            asked = from_ms(ms(NOON) + roll.randrange(3_600_000))
            try:
                booking = real.windows.reserve(
                    new_id(), terms=Terms.plain(f"scope {n}"), send_at=asked
                )
            except QuotaExceeded:
                continue
            rows.append(Reserved(booking.message_id, booking.terms.scopes, booking.send_at))
    return rows


def windows(real: Reserving) -> dict[bytes, object]:
    names = cast(list[bytes], real.client.keys("*:window:*"))
    return {name: real.client.zrange(name, 0, -1, withscores=True) for name in names}


def test_a_rebuild_from_rows_gives_exactly_the_same_windows(opened: Opened) -> None:
    real = opened(Quota(2, 60_000))
    rows = book_many(real, scopes=20, each=30)
    before = windows(real)
    assert len(before) == 20
    real.client.flushall()

    rebuild = begun(real)
    assert len(rebuild.shards) == SHARDS
    real.upkeep.wipe(rebuild)
    random.Random(2).shuffle(rows)  # noqa: S311 - not for secrets
    for start in range(0, len(rows), 50):
        real.upkeep.restore(rebuild, rows[start : start + 50])
        with pytest.raises(ReservationsUnavailable):
            real.windows.reserve(new_id(), terms=Terms.plain("scope 1"), send_at=NOON)
    real.upkeep.open(rebuild)

    assert windows(real) == before
    ids = {row.message_id for row in rows}
    found = real.upkeep.unconfirmed(older_than=timedelta(0), at_most=10_000)
    assert {each.message_id for each in found} == ids, "one that is cancelled meanwhile is found"
    assert real.client.keys("*:rebuild") == []
    full = next(
        scope.name for row in rows for scope in row.scopes if len(real.members(scope.name)) > 1
    )
    taken = [row.send_at for row in rows if row.scopes == (plain(full),)]
    assert any(real.windows.next_slot(Terms.plain(full), instant) != instant for instant in taken)


def test_a_rebuild_drops_what_the_rows_do_not_know(opened: Opened) -> None:
    real = opened()
    book_many(real, scopes=600, each=1)
    kept = real.windows.reserve(new_id(), terms=Terms.plain("ann"), send_at=NOON)
    real.fence.close(real.client)
    rebuild = begun(real)
    real.upkeep.wipe(rebuild)
    real.upkeep.restore(rebuild, [Reserved(kept.message_id, (plain("ann"),), NOON)])
    real.upkeep.open(rebuild)
    assert len(windows(real)) == 1
    assert set(real.members("ann")) == {kept.message_id}


def test_restoring_the_same_rows_twice_changes_nothing(opened: Opened) -> None:
    real = opened()
    real.client.flushall()
    rebuild = begun(real)
    rows = [
        Reserved(new_id(), (plain("ann"),), NOON),
        Reserved(new_id(), (plain("ann"),), NOON + timedelta(1)),
    ]
    real.upkeep.restore(rebuild, rows)
    once = windows(real)
    real.upkeep.restore(rebuild, rows)
    assert windows(real) == once


def test_only_one_of_two_rebuilders_may(redis_server: RedisServer) -> None:
    with reserving(redis_server.url) as one, reserving(redis_server.url) as two:
        rebuild = begun(one)
        assert two.upkeep.begin() is None
        one.upkeep.open(rebuild)
        assert two.upkeep.begin() is None
        assert one.upkeep.begin() is None


@pytest.mark.parametrize("overtaken_by", [None, "another rebuilder"])
def test_an_overtaken_rebuilder_writes_nothing_and_cannot_open(
    redis_server: RedisServer, overtaken_by: str | None
) -> None:
    with reserving(redis_server.url) as slow, reserving(redis_server.url) as quick:
        rebuild = begun(slow)
        for keys in slow.fence.parts:  # as the marker's expiry does
            slow.client.delete(keys.rebuild)
        other = begun(quick) if overtaken_by else None
        present = Reserved(new_id(), (plain("ann"),), NOON)
        if other is not None:
            quick.upkeep.restore(other, [present])
        before = {key: slow.client.dump(key) for key in slow.client.keys("*")}

        slow.upkeep.wipe(rebuild)
        slow.upkeep.restore(rebuild, [Reserved(new_id(), (plain("ann"),), NOON)])
        assert slow.upkeep.open(rebuild) == 0

        assert {key: slow.client.dump(key) for key in slow.client.keys("*")} == before
        with pytest.raises(ReservationsUnavailable):
            slow.windows.reserve(new_id(), terms=Terms.plain("ann"), send_at=NOON)
        if other is not None:
            assert quick.upkeep.open(other) > 0
            assert set(quick.members("ann")) == {present.message_id}


def test_a_rebuilder_that_dies_is_replaced_when_its_marker_expires(
    redis_server: RedisServer,
) -> None:
    with reserving(redis_server.url) as real:
        begun(real)
        for keys in real.fence.parts:
            assert 0 < real.client.pttl(keys.rebuild) <= 60_000


def test_what_the_store_has_not_confirmed_is_found_by_age(opened: Opened) -> None:
    real = opened()
    booking = real.windows.reserve(new_id(), terms=Terms.plain("ann"), send_at=NOON)
    assert real.upkeep.unconfirmed(older_than=timedelta(minutes=1), at_most=10) == []
    found = real.upkeep.unconfirmed(older_than=timedelta(0), at_most=10)
    assert [each.message_id for each in found] == [booking.message_id]


def test_unconfirmed_reservations_come_in_bounded_batches(opened: Opened) -> None:
    real = opened()
    for n in range(20):
        real.windows.reserve(new_id(), terms=Terms.plain(f"scope {n}"), send_at=NOON)
    assert len(real.upkeep.unconfirmed(older_than=timedelta(0), at_most=7)) == 7


def test_confirmed_reservations_stay_and_orphans_go(opened: Opened) -> None:
    real = opened()
    known = real.windows.reserve(new_id(), terms=Terms.plain("ann"), send_at=NOON)
    orphan = real.windows.reserve(new_id(), terms=Terms.plain("bob"), send_at=NOON)
    found = real.upkeep.unconfirmed(older_than=timedelta(0), at_most=10)
    assert {each.message_id for each in found} == {known.message_id, orphan.message_id}
    for _ in range(2):  # two sweeps do the same
        assert real.upkeep.confirm(found, stored({known.message_id: NOON})) == 0
    assert set(real.members("ann")) == {known.message_id}
    assert real.members("bob") == {}
    assert real.upkeep.unconfirmed(older_than=timedelta(0), at_most=10) == []


def test_places_of_messages_that_need_none_are_given_back(opened: Opened) -> None:
    real = opened()
    booking = real.windows.reserve(new_id(), terms=Terms.plain("ann"), send_at=NOON)
    for _ in range(2):
        real.upkeep.release([Reserved(booking.message_id, (plain("ann"),), NOON)])
    assert real.members("ann") == {}


def test_places_that_got_lost_are_put_back_once(opened: Opened) -> None:
    real = opened()
    row = Reserved(new_id(), (plain("ann"),), NOON)
    assert [real.upkeep.put_back([row]) for _ in range(2)] == [1, 0]
    assert real.members("ann") == {row.message_id: ms(NOON)}
    with pytest.raises(QuotaExceeded):
        real.windows.reserve(new_id(), terms=Terms.plain("ann"), send_at=NOON)


def test_stragglers_of_a_rebuild_are_looked_for_once(opened: Opened) -> None:
    real = opened()
    assert real.upkeep.unchecked(older_than=timedelta(minutes=1)) == {}
    due = real.upkeep.unchecked(older_than=timedelta(0))
    assert len(due) == SHARDS
    first = next(iter(due))
    real.upkeep.mark_checked({first: due[first]})
    left = real.upkeep.unchecked(older_than=timedelta(0))
    assert set(due) - set(left) == {first}


def test_stragglers_of_another_rebuild_since_are_still_to_be_looked_for(opened: Opened) -> None:
    real = opened()
    for keys in real.fence.keys:
        real.client.hincrby(keys.epoch, "opened_at_ms", -60_000)
    due = real.upkeep.unchecked(older_than=timedelta(0))
    again = real.fence.keys[0]
    rebuild = real.upkeep.close([again.shard])
    assert rebuild is not None
    real.upkeep.open(rebuild)
    real.upkeep.mark_checked(due)
    assert set(real.upkeep.unchecked(older_than=timedelta(0))) == {again}


def test_what_is_put_back_while_a_shard_is_rebuilt_is_there_once_it_is_open(opened: Opened) -> None:
    """A message that was committed after the store was read, and found its windows closed."""
    real, message_id = opened(), new_id()
    rebuild = real.upkeep.close([real.keys("ada").shard])
    assert rebuild is not None
    real.upkeep.wipe(rebuild)
    assert real.upkeep.put_back([Reserved(message_id, (plain("ada"),), NOON)]) == 1
    real.upkeep.open(rebuild)
    assert real.members("ada") == {message_id: ms(NOON)}
    assert real.unconfirmed() == {(message_id.bytes, real.keys("ada").window("ada"))}


def test_a_closed_shard_cannot_be_marked_as_checked(opened: Opened) -> None:
    real = opened()
    due = real.upkeep.unchecked(older_than=timedelta(0))
    real.client.flushall()
    real.upkeep.mark_checked(due)
    assert real.client.keys("*") == []

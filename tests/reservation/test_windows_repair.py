"""Redis is compared with the store window by window, and rebuilt from it shard by shard."""

from __future__ import annotations

from datetime import timedelta
from itertools import count
from typing import Any, cast

import pytest

from dispatcher import Difference, Fault, InvalidValue, Message, ReservationsUnavailable, Verified
from dispatcher.message import new_id
from dispatcher.operations import verification
from dispatcher.redis.keys import shard_of
from dispatcher.store.schema import Addition
from dispatcher.times.clock import SystemClock
from dispatcher.times.send_time import to_ms
from tests.support.doubles import Between, once
from tests.support.house import FAR, House, let_graces_pass
from tests.support.house_fixtures import Build
from tests.support.reserving import move, own_terms, reserve

MINUTE = timedelta(minutes=1)
LATER = FAR + timedelta(hours=1)
KINDS: dict[str, Any] = {
    "quotas": "9/minute",
    "scopes": {"tenant": {"quotas": "90/minute"}},
    "channels": {
        "memory": {"transport": "memory", "quotas": "900/day", "recipient_quotas": "9/hour"},
        "file": {"transport": "file"},
    },
}


@pytest.fixture
def kinds(build: Build) -> House:
    """Give a house in which most messages count against scopes of several kinds."""
    return build(**KINDS)


def filled(house: House, count: int = 12) -> list[Message]:
    further = [{}, {"tenant": "acme"}] if house.settings.scopes else [{}]
    return [
        house.submit(
            f"name {n}",
            send_at=LATER + n * MINUTE,
            scopes=further[n % len(further)],
            channel="file" if n % 5 == 4 else "memory",
        )
        for n in range(count)
    ]


def found(verified: Verified) -> set[tuple[Fault, str, Message | Any]]:
    return {(entry.fault, entry.scope, entry.message_id) for entry in verified.differences}


def shard_for(house: House, scope: str) -> int:
    return shard_of(scope, house.settings.shards)


def other_name(house: House, scope: str) -> str:
    """Return a name that lies in another shard."""
    return next(
        name
        for name in (f"other {n}" for n in range(99))
        if shard_for(house, name) != shard_for(house, scope)
    )


@pytest.mark.every_database
def test_exactly_what_was_put_wrong_is_told(kinds: House) -> None:
    gone, moved, wrong_kind, cancelled, *_ = filled(kinds)
    kinds.dispatcher.cancel(cancelled.id)
    kinds.parts.reconciler.reconcile()
    keys, stranger = kinds.keys, new_id()

    def window(scope: str, kind: str = "") -> str:
        return keys(scope).window(scope, kind)

    kinds.redis.zrem(window(gone.scope), gone.id.bytes)
    kinds.redis.zadd(window(moved.scope), {moved.id.bytes: to_ms(moved.send_at) + 1})
    kinds.redis.zadd(window("acme", "tenant"), {wrong_kind.id.bytes: to_ms(wrong_kind.send_at)})
    kinds.redis.zadd(window(cancelled.scope), {cancelled.id.bytes: to_ms(cancelled.send_at)})
    kinds.redis.zadd(window("nobody"), {stranger.bytes: to_ms(LATER)})
    elsewhere = keys(other_name(kinds, gone.scope)).window(gone.scope)
    kinds.redis.zadd(elsewhere, {gone.id.bytes: to_ms(gone.send_at)})
    strange = "{house:77}:window:ada"
    kinds.redis.zadd(strange, {moved.id.bytes: to_ms(moved.send_at)})

    verified = kinds.dispatcher.verify_windows()
    assert found(verified) == {
        (Fault.MISSING, gone.scope, gone.id),
        (Fault.ORPHAN, gone.scope, gone.id),
        (Fault.MOVED, moved.scope, moved.id),
        (Fault.ORPHAN, "ada", moved.id),
        (Fault.ORPHAN, "tenant:acme", wrong_kind.id),
        (Fault.ORPHAN, cancelled.scope, cancelled.id),
        (Fault.ORPHAN, "nobody", stranger),
    }
    assert not verified.equal
    assert verified.counts == {
        Fault.MISSING: 1, Fault.MOVED: 1, Fault.ORPHAN: 5, Fault.UNDER_WAY: 0,
        Fault.FOREIGN: 0,
    }  # fmt: skip
    [at_another_time] = [entry for entry in verified.differences if entry.fault is Fault.MOVED]
    assert at_another_time == Difference(
        Fault.MOVED, moved.scope, moved.id, moved.send_at,
        moved.send_at + timedelta(milliseconds=1),
    )  # fmt: skip

    kinds.dispatcher.rebuild_windows()
    assert kinds.dispatcher.verify_windows().equal


def test_verification_leaves_out_submits_under_way(house: House) -> None:
    pending, frees = new_id(), house.submit(send_at=LATER)
    reserve(house.parts.windows, pending, terms=own_terms("ben"), send_at=LATER)
    move(house.parts.windows, frees.id, terms=own_terms("ada"), send_at=LATER + 9 * MINUTE)
    expired = house.submit("cleo", send_at=LATER)
    house.redis.delete(house.keys("cleo").pending)
    house.change([expired], status="expired", finished_at=house.database_time())
    verified = house.dispatcher.verify_windows()
    assert found(verified) == {
        (Fault.UNDER_WAY, "ben", pending),
        (Fault.UNDER_WAY, "ada", frees.id),
        (Fault.UNDER_WAY, "cleo", expired.id),
    }
    assert verified.equal

    let_graces_pass(house)
    house.change([expired], finished_at=house.database_time() - timedelta(minutes=2))
    verified = house.dispatcher.verify_windows()
    assert {difference.fault for difference in verified.differences} == {Fault.ORPHAN}
    assert len(verified.differences) == 3
    house.parts.reconciler.reconcile()
    assert house.dispatcher.verify_windows().differences == ()


def test_times_that_no_quota_counts_any_more_are_left_out(build: Build) -> None:
    house = build(clock=SystemClock(), quotas="1/minute")
    message = house.submit(send_at=SystemClock().now() + MINUTE)
    long_ago = house.database_time() - timedelta(minutes=2)
    house.change([message], send_at=long_ago)
    house.redis.zrem(house.keys("ada").window("ada"), message.id.bytes)
    house.redis.zadd(house.keys("ben").window("ben"), {new_id().bytes: to_ms(long_ago)})
    assert house.dispatcher.verify_windows().equal


def test_large_windows_and_many_pages_are_compared(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "_BATCH", 7)
    monkeypatch.setattr(verification, "_MOST_NAMED", 3)
    house = build(quotas="1000/day")
    for n in range(30):
        house.submit(send_at=LATER + n % 3 * MINUTE)
    assert house.dispatcher.verify_windows().equal
    window = house.keys("ada").window("ada")
    members = cast("list[bytes]", house.redis.zrange(window, 0, -1))
    house.redis.zrem(window, *members[::5])
    house.redis.zadd(window, {new_id().bytes: to_ms(LATER) for _ in range(4)})
    verified = house.dispatcher.verify_windows()
    assert verified.counts[Fault.MISSING] == 6
    assert verified.counts[Fault.ORPHAN] == 4
    assert len(verified.differences) == 3


def test_closed_shards_are_named_and_not_judged(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.submit(send_at=LATER)
    open_one = house.submit(other_name(house, "ada"), send_at=LATER)
    closed = house.keys("ada")
    house.redis.delete(closed.epoch, closed.window("ada"))
    house.redis.zrem(house.keys(open_one.scope).window(open_one.scope), open_one.id.bytes)
    verified = house.dispatcher.verify_windows()
    assert verified.closed == (closed.shard,)
    assert not verified.equal
    assert found(verified) == {(Fault.MISSING, open_one.scope, open_one.id)}
    monkeypatch.setattr(verification, "_MOST_NAMED", 0)
    assert house.dispatcher.verify_windows().counts == verified.counts


def test_a_shard_that_is_rebuilt_meanwhile_is_not_judged(house: House) -> None:
    house.submit(send_at=LATER)
    shard = house.keys("ada")
    house.redis.zrem(shard.window("ada"), *house.redis.zrange(shard.window("ada"), 0, -1))
    house.moved.meanwhile = once(lambda: house.dispatcher.rebuild_windows({shard.shard}))
    verified = house.dispatcher.verify_windows()
    assert (verified.closed, verified.differences) == ((shard.shard,), ())


def test_a_difference_that_is_gone_at_another_look_is_none(house: House) -> None:
    message, window = house.submit(send_at=LATER), house.keys("ada").window("ada")
    house.redis.zrem(window, message.id.bytes)
    mend = once(lambda: house.redis.zadd(window, {message.id.bytes: to_ms(LATER)}))
    house.moved.meanwhile = mend
    assert house.dispatcher.verify_windows().differences == ()


@pytest.mark.parametrize("when", ["before", "after"])
def test_verification_leaves_out_changes_made_during_it(
    house: House, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    monkeypatch.setattr(verification, "_LOOKS", 0)
    gone, moved = house.submit(send_at=LATER), house.submit("ben", send_at=LATER)
    house.redis.zrem(house.keys("ada").window("ada"), gone.id.bytes)
    ben = house.keys("ben").window("ben")
    house.redis.zadd(ben, {moved.id.bytes: to_ms(LATER) + 1})
    looks = count(1)

    def change_during_the_second() -> None:
        if next(looks) == 2:
            house.change([gone], status="cancelled", finished_at=house.database_time())
            house.change([moved], send_at=LATER + MINUTE)
            house.redis.zadd(ben, {moved.id.bytes: to_ms(LATER + MINUTE)})

    house.between("verification", "contents", **{when: {"look": change_during_the_second}})
    assert house.dispatcher.verify_windows().differences == ()
    assert next(looks) == 3


def test_a_shard_is_rebuilt_while_the_others_serve(house: House) -> None:
    kept = house.submit(send_at=LATER)
    shard = house.keys("ada").shard
    other = other_name(house, "ada")
    refusals: list[ReservationsUnavailable] = []
    served: list[Message] = []

    def submit_to_both() -> None:
        served.append(house.submit(other, send_at=LATER + len(served) * MINUTE))
        with pytest.raises(ReservationsUnavailable) as refusal:
            house.submit(send_at=LATER + 99 * MINUTE)
        refusals.append(refusal.value)

    told: list[tuple[int, int]] = []

    def progress(read: int, total: int) -> None:
        told.append((read, total))
        if read:
            submit_to_both()

    house.moved.meanwhile = submit_to_both
    assert house.dispatcher.rebuild_windows([shard], progress=progress) == (shard,)
    house.moved.meanwhile = None
    assert house.moved.sleeps == [house.settings.settle.total_seconds()]
    assert [refusal.retry_after for refusal in refusals] == [timedelta(seconds=1)] * 2
    assert len(served) == 2
    assert told[0] == (0, 1)
    assert told[-1] == (2, 2), "one was submitted while it waited"
    house.submit(send_at=LATER + 99 * MINUTE)
    assert house.members()[kept.id] == to_ms(LATER)
    assert house.reservations() == house.all_members()
    assert house.dispatcher.verify_windows().equal


@pytest.mark.parametrize(("few", "expected"), [(5, [4, 4, 2]), (10_000, [10])])
def test_all_shards_are_rebuilt_a_few_at_a_time_or_at_once_where_there_is_little_to_read(
    build: Build, monkeypatch: pytest.MonkeyPatch, few: int, expected: list[int]
) -> None:
    """Each group waits for the settle time: an almost empty rebuild of 16 took four of them."""
    monkeypatch.setattr("dispatcher.delivery.reconciler._FEW_ROWS", few)
    house = build(shards=10)
    accepted = filled(house, count=20)
    lost, *_ = accepted
    house.redis.zrem(house.keys(lost.scope).window(lost.scope), lost.id.bytes)
    house.redis.zadd(house.keys("nobody").window("nobody"), {new_id().bytes: to_ms(LATER)})
    closed: list[int] = []

    def count() -> None:
        closed.append(sum(not house.redis.exists(keys.epoch) for keys in house.parts.fence.keys))

    house.moved.meanwhile = count
    assert house.dispatcher.rebuild_windows() == tuple(range(10))
    assert closed == expected
    assert house.moved.sleeps == [house.settings.settle.total_seconds()] * len(expected)
    assert house.reservations() == house.all_members()


def test_a_message_stored_while_the_rebuild_waits_is_restored(build: Build) -> None:
    house, other = build(), build()
    real = house.parts.messages

    def slow(addition: Addition, **more: Any) -> Message:
        other.moved.meanwhile = once(lambda: real.add(addition, **more))
        other.dispatcher.rebuild_windows()
        return real.get(addition.message.id)

    house.swap("messages", Between(real, instead={"add": slow}))
    message = house.submit(send_at=LATER)
    assert house.members() == {message.id: to_ms(LATER)}


def test_a_shard_that_another_rebuilds_is_left_to_it(house: House) -> None:
    filled(house)
    taken = house.parts.upkeep.close([1])
    assert taken is not None
    assert house.dispatcher.rebuild_windows([1]) == ()
    assert house.dispatcher.rebuild_windows() == (0, 2, 3)
    assert house.dispatcher.verify_windows().closed == (1,)
    house.parts.upkeep.wipe(taken)
    assert house.parts.upkeep.open(taken) == 1, "its marker was not touched"


@pytest.mark.parametrize("shards", [[4], [-1], [0, 99]])
def test_a_shard_that_does_not_exist_is_refused(house: House, shards: list[int]) -> None:
    before = house.snapshot()
    with pytest.raises(InvalidValue) as refusal:
        house.dispatcher.rebuild_windows(shards)
    assert refusal.value.field == "shards"
    assert house.snapshot() == before

"""Rescue, prune and reconcile; and any number of sweeps side by side."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from dispatcher import Message, Outcome, Status
from dispatcher.delivery import sweep as sweep_module
from dispatcher.delivery.reconciler import ReconcileResult
from dispatcher.message import new_id
from dispatcher.reservation import Terms
from dispatcher.times.send_time import to_ms
from tests.support.doubles import at_once
from tests.support.house import FAR, House, hour_ago
from tests.support.house_fixtures import Build
from tests.support.reserving import reserve
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

MINUTE = timedelta(minutes=1)
QUICK = {"settle": 0.001, "reconcile_grace": 0.002}


class WorkerDied(BaseException):
    """Ends a send like the death of its process."""


def die(_: Message) -> None:
    raise WorkerDied


def orphan(house: House, scope: str = "ada") -> UUID:
    """Make a reservation that no message will ever confirm."""
    message_id = new_id()
    reserve(house.parts.windows, message_id, terms=Terms.own(scope), send_at=FAR + MINUTE)
    return message_id


def left_sending(house: House, count: int) -> list[Message]:
    messages = [house.submit(f"name {n}") for n in range(count)]
    house.memory.before = die
    for message in messages:
        with pytest.raises(WorkerDied):
            house.deliver(message)
    house.memory.before = None
    house.end_claims(*messages)
    return messages


@pytest.mark.every_database
def test_two_sweeps_side_by_side_rescue_each_message_once(build: Build) -> None:
    sweeps = [build(clock=hour_ago()) for _ in range(2)]
    messages = left_sending(sweeps[0], 10)
    counts = at_once([each.parts.sweep.rescue for each in sweeps])
    assert sum(each for each in counts if isinstance(each, int)) == 10
    for message in messages:
        now = sweeps[0].again(message)
        assert (now.status, now.attempt_count) == (Status.SCHEDULED, 1)
        [attempt] = sweeps[0].dispatcher.attempts(message.id)
        assert attempt.outcome is Outcome.UNKNOWN


def test_messages_long_due_are_found_within_a_minute(slow: House) -> None:
    """The runs between look at what became due lately, and not at what the indexes keep of more."""
    sweep, clock = slow.parts.sweep, slow.moved
    assert (sweep.rescue(), sweep.enqueue_due()) == (0, 0)
    [claimed] = left_sending(slow, 1)
    waiting = slow.submit("waiting")
    long_ago = slow.database_time() - 5 * MINUTE
    slow.change([claimed], claim_expires_at=long_ago)
    slow.change([waiting], enqueue_at=long_ago)
    assert (sweep.rescue(), sweep.enqueue_due()) == (0, 0)
    clock.advance(MINUTE)
    assert (sweep.rescue(), sweep.enqueue_due()) == (1, 2)


def test_messages_lately_due_are_found_by_every_run(slow: House) -> None:
    sweep = slow.parts.sweep
    assert (sweep.rescue(), sweep.enqueue_due()) == (0, 0)
    [claimed] = left_sending(slow, 1)
    slow.change([claimed], claim_expires_at=slow.database_time() - timedelta(seconds=5))
    assert (sweep.rescue(), sweep.enqueue_due()) == (1, 1)


def test_no_run_looks_less_far_back_than_to_the_last_one(slow: House) -> None:
    """Its own last run, however long ago: others may have run meanwhile, or none."""
    sweep, clock = slow.parts.sweep, slow.moved
    assert sweep.enqueue_due() == 0
    clock.advance(MINUTE / 2)
    waiting = slow.submit("waiting")
    slow.change([waiting], enqueue_at=slow.database_time() - MINUTE / 2)
    assert sweep.enqueue_due() == 1


def test_a_run_that_leaves_something_is_followed_by_one_that_looks_as_far_back(
    slow: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_module, "_MOST_AT_ONCE", 2)
    sweep, clock = slow.parts.sweep, slow.moved
    some = [slow.submit(f"number {number}") for number in range(5)]
    slow.change(some, enqueue_at=slow.database_time() - MINUTE)
    counts = []
    for _ in range(3):
        counts.append(sweep.enqueue_due())
        clock.advance(timedelta(seconds=1))
    assert counts == [2, 2, 1]


@pytest.mark.every_database
def test_old_messages_are_pruned_with_their_attempts(slow: House) -> None:
    old, recent, waiting = slow.submit("old"), slow.submit("recent"), slow.submit("waiting")
    slow.deliver(old, recent)
    now = slow.database_time()
    retention = slow.settings.retention
    slow.change([old], finished_at=now - retention - timedelta(days=2, seconds=1))
    slow.change([recent], finished_at=now - retention + MINUTE)
    assert slow.parts.sweep.prune() == 1
    assert {row[0] for row in slow.rows()} == {recent.id, waiting.id}
    assert [row[0] for row in slow.attempt_rows()] == [recent.id]
    assert slow.parts.sweep.prune() == 0


def test_a_cancelled_message_whose_reservation_is_not_released_yet_is_not_pruned(
    slow: House,
) -> None:
    message = slow.submit()
    ended = slow.database_time() - 2 * slow.settings.retention
    slow.change([message], status="cancelled", finished_at=ended)
    assert slow.parts.sweep.prune() == 0
    assert slow.parts.reconciler.reconcile().released == 1
    assert slow.parts.sweep.prune() == 1


@pytest.mark.every_database
def test_two_sweeps_side_by_side_prune_each_message_once(build: Build) -> None:
    sweeps = [build(clock=hour_ago()) for _ in range(2)]
    house = sweeps[0]
    first = house.submit()
    house.store_copy(first, rows=2_499)
    ended = house.database_time() - 2 * house.settings.retention
    house.change([*house.dispatcher.select()], status="sent", finished_at=ended)
    counts = at_once([each.parts.sweep.prune for each in sweeps])
    assert [each for each in counts if isinstance(each, Exception)] == []
    # What one of them reads may be locked for the other; then it goes with the next tick.
    counts.append(house.parts.sweep.prune())
    assert sum(each for each in counts if isinstance(each, int)) == 2_500
    assert house.rows() == []


def test_a_run_of_prune_deletes_what_ends_in_a_minute_at_1000_a_second(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    scale = 100  # a hundredth of the messages, in batches a hundredth as large
    monkeypatch.setattr("dispatcher.delivery.sweep.BATCH", 1_000 // scale)
    house = build(clock=hour_ago())
    many = 60 * 1_000 // scale
    house.store_copy(house.submit(), rows=many - 1)
    ended = house.database_time() - 2 * house.settings.retention
    house.change([*house.dispatcher.select()], status="sent", finished_at=ended)
    assert house.parts.sweep.prune() == many


def test_an_orphan_keeps_its_reservation_within_the_grace_and_loses_it_after(build: Build) -> None:
    house = build()
    message_id = orphan(house)
    assert house.parts.reconciler.reconcile() == ReconcileResult()
    assert set(house.members()) == house.pending() == {message_id}
    quick = build(opened=False, **QUICK)
    assert wait_until(lambda: quick.parts.reconciler.reconcile().released) == 1
    assert house.members() == {}
    assert house.pending() == set()


def test_a_stored_message_is_confirmed_and_keeps_its_reservation(build: Build) -> None:
    house = build(**QUICK)
    message = house.submit(send_at=FAR + MINUTE)
    assert house.pending() == {message.id}
    assert wait_until(lambda: house.parts.reconciler.reconcile().confirmed) == 1
    assert house.pending() == set()
    assert house.members() == {message.id: to_ms(message.send_at)}
    assert house.parts.reconciler.reconcile() == ReconcileResult()


def test_a_reservation_whose_cancel_found_redis_down_is_released_by_the_sweep(
    build: Build, own_redis: RedisServer
) -> None:
    house = build(server=own_redis)
    message = house.submit(send_at=FAR + MINUTE)
    kept = house.submit("ben", send_at=FAR + MINUTE)
    away = build(server=own_redis, redis_url="unix:///nowhere/redis.sock", opened=False)
    assert away.dispatcher.cancel(message.id).status is Status.CANCELLED
    assert set(house.members()) == {message.id}
    assert house.parts.reconciler.reconcile().released == 1
    assert house.all_members() == house.reservations() == {"ben": {kept.id: to_ms(kept.send_at)}}
    assert house.parts.reconciler.reconcile().released == 0


def fill(house: House) -> None:
    for scope in range(12):
        for n in range(3):
            message = house.submit(f"scope {scope}", send_at=FAR + n * MINUTE)
            if n == scope % 4:
                house.dispatcher.cancel(message.id)


@pytest.mark.every_database
def test_after_a_flush_the_windows_are_exactly_what_the_store_says(house: House) -> None:
    fill(house)
    before = house.all_members()
    assert before == house.reservations()
    house.redis.flushall()
    reconciled = house.parts.reconciler.reconcile()
    assert reconciled.rebuilt == 2 * house.settings.shards, "windows and permit logs"
    assert house.all_members() == before
    assert house.parts.reconciler.reconcile() == ReconcileResult(), "once is enough"
    assert house.all_members() == before


def test_reservations_of_a_stale_redis_are_dropped(house: House) -> None:
    fill(house)
    before = house.all_members()
    orphan(house, "stale")
    house.redis.zadd(house.keys("scope 1").window("scope 1"), {new_id().bytes: to_ms(FAR)})
    for shard in house.parts.fence.keys:
        house.redis.delete(shard.epoch)
    assert house.parts.reconciler.reconcile().rebuilt == house.settings.shards
    assert house.all_members() == before


@pytest.mark.parametrize("flush", [True, False])
def test_two_sweeps_side_by_side_reconcile_once(build: Build, flush: bool) -> None:
    sweeps = [build() for _ in range(3)]
    house = sweeps[0]
    fill(house)
    before = house.all_members()
    if flush:
        house.redis.flushall()
    answers = at_once([each.parts.reconciler.reconcile for each in sweeps])
    done = [each for each in answers if isinstance(each, ReconcileResult)]
    assert len(done) == 3
    assert sum(each.rebuilt for each in done) == (2 * house.settings.shards if flush else 0)
    assert house.all_members() == before == house.reservations()


def test_submits_beside_a_rebuild_are_refused_or_kept(build: Build) -> None:
    house, other = build(), build()
    fill(house)
    house.redis.flushall()

    def submit(n: int) -> Callable[[], Any]:
        return lambda: other.submit(f"new {n}", send_at=FAR + MINUTE)

    answers = at_once([house.open, *(submit(n) for n in range(15))])
    accepted = {each.id for each in answers if isinstance(each, Message)}
    assert house.all_members() == house.reservations()
    assert accepted <= {row[0] for row in house.rows()}

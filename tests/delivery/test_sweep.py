"""Rescue, prune and reconcile; and any number of sweeps side by side."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dispatcher import Message, Outcome, Status
from dispatcher.delivery import sweep as sweep_module
from dispatcher.delivery.reconciler import ReconcileResult
from tests.support.doubles import at_once
from tests.support.house import FAR, House, hour_ago
from tests.support.house_fixtures import Build

MINUTE = timedelta(minutes=1)


def left_sending(house: House, count: int) -> list[Message]:
    messages = [house.submit(f"name {n}") for n in range(count)]
    house.lose(*messages)
    return messages


@pytest.mark.every_database
def test_two_sweeps_side_by_side_rescue_each_message_once(build: Build) -> None:
    sweeps = [build(clock=hour_ago()) for _ in range(2)]
    messages = left_sending(sweeps[0], 10)
    counts = at_once([sweep.parts.sweep.rescue for sweep in sweeps])
    assert sum(count for count in counts if isinstance(count, int)) == 10
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


def fill(house: House) -> None:
    for scope in range(12):
        for n in range(3):
            message = house.submit(f"scope {scope}", send_at=FAR + n * MINUTE)
            if n == scope % 4:
                house.dispatcher.cancel(message.id)


@pytest.mark.parametrize("flush", [True, False])
def test_two_sweeps_side_by_side_reconcile_once(build: Build, flush: bool) -> None:
    sweeps = [build() for _ in range(3)]
    house = sweeps[0]
    fill(house)
    before = house.all_members()
    if flush:
        house.redis.flushall()
    answers = at_once([sweep.parts.reconciler.reconcile for sweep in sweeps])
    done = [answer for answer in answers if isinstance(answer, ReconcileResult)]
    assert len(done) == 3
    assert sum(result.rebuilt for result in done) == (2 * house.settings.shards if flush else 0)
    assert house.all_members() == before == house.reservations()

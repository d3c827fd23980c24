"""The duties of the sweep, any number of sweeps side by side, and ticks that come together."""

from __future__ import annotations

import logging
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from dispatcher import Message, Outcome, Status
from dispatcher.celery import tasks
from dispatcher.delivery import sweep as sweep_module
from dispatcher.delivery.reconciler import ReconcileResult
from dispatcher.delivery.sweep import Ticks
from dispatcher.errors import ReservationsUnavailable
from dispatcher.settings import Settings
from dispatcher.telemetry.journal import Journal
from dispatcher.times.clock import SystemClock
from tests.support.clock import MovableClock
from tests.support.doubles import at_once
from tests.support.house import FAR, House, hour_ago
from tests.support.house_fixtures import Build

SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)


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
    messages = [slow.submit(f"number {number}") for number in range(5)]
    slow.change(messages, enqueue_at=slow.database_time() - MINUTE)
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


CHANNELS: dict[str, Any] = {
    "send": {"transport": "memory"},
    "expire": {"transport": "memory", "catch_up": "expire"},
}


@pytest.fixture
def back(build: Build) -> House:
    """Give a house an hour after an outage began: what is submitted by its clock is overdue."""
    return build(clock=hour_ago(), channels=CHANNELS)


def catch_up(house: House) -> int:
    return house.parts.sweep.catch_up()


@pytest.mark.every_database
def test_only_who_catches_up_takes_what_is_overdue_and_its_quota_is_free(back: House) -> None:
    overdue, other = back.submit("ada", channel="expire"), back.submit("ben", channel="send")
    assert back.parts.sweep.enqueue_due() == 1, "that of the other channel"
    assert back.deliver(overdue, other) == 1, "also where its task has waited in the broker"
    assert back.again(overdue) == overdue
    assert back.again(other).status is Status.SENT
    assert catch_up(back) == 1
    ended = back.again(overdue)
    assert (ended.status, (ended.last_error or "")[:7]) == (Status.EXPIRED, "overdue")
    assert back.parts.reconciler.reconcile().released == 1
    assert back.members() == {}
    assert catch_up(back) == 0


@pytest.mark.every_database
def test_catch_up_changes_overdue_messages_alone(back: House) -> None:
    near = back.submit("near", channel="expire", send_at=back.database_time() - 4 * MINUTE)
    tried = back.submit("tried", channel="expire")
    back.change([tried], attempt_count=1)
    snoozed = back.submit("snoozed", channel="expire")
    back.change([snoozed], next_attempt_at=back.database_time() - MINUTE)
    limited = back.submit("limited", channel="expire")
    back.change([limited], next_attempt_at=back.database_time() + HOUR)
    cancelled = back.submit("cancelled", channel="expire")
    back.dispatcher.cancel(cancelled.id)
    before = back.rows()
    assert catch_up(back) == 0
    assert back.rows() == before
    assert back.deliver(near, tried, snoozed) == 3


@pytest.mark.every_database
def test_sweeps_side_by_side_catch_up_with_each_message_once(build: Build) -> None:
    houses = [build(clock=hour_ago(), channels=CHANNELS) for _ in range(3)]
    house = houses[0]
    start = house.clock.now()
    messages = [
        house.submit(f"name {n % 4}", channel="expire", send_at=start + n // 4 * MINUTE)
        for n in range(20)
    ]
    answers = at_once([house.parts.sweep.catch_up for house in houses])
    done = [answer for answer in answers if isinstance(answer, int)]
    assert len(done) == 3
    # Each of two that meet may leave the rest of its batch to the other: the next turn takes it.
    done.append(catch_up(house))
    assert sum(done) >= 20
    assert {house.again(message).status for message in messages} == {Status.EXPIRED}
    assert house.reconciled().all_members() == house.reservations()


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.mark.parametrize(
    ("pauses", "begun"),
    [([0.01] * 10, 1), ([1.0, 1.3, 0.8, 1.4, 0.9], 5)],
    ids=["a pile", "those of a beat, not quite even"],
)
def test_a_pile_of_ticks_is_one_and_each_of_a_beat_is_run(
    clock: MovableClock, pauses: list[float], begun: int
) -> None:
    ticks, work, are_run = Ticks(clock), Mock(), list[bool]()
    for pause in pauses:
        are_run.append(ticks.run("rescue", SECOND, work))
        clock.advance(SECOND * pause)
    assert are_run == [True] * begun + [False] * (len(pauses) - begun)
    assert work.call_count == begun


def test_a_duty_that_hangs_is_begun_once_more_and_not_again(clock: MovableClock) -> None:
    begun: list[str] = []
    hung = Ticks(clock)

    def hang(depth: int) -> None:
        begun.append("rescue")
        if depth:
            clock.advance(SECOND)
            assert hung.run("rescue", SECOND, lambda: hang(depth - 1)) is (depth == 3)

    assert hung.run("rescue", SECOND, lambda: hang(3))
    assert begun == ["rescue", "rescue"]
    clock.advance(SECOND)
    assert hung.run("rescue", SECOND, lambda: None), "those have ended"


def test_a_server_that_is_away_is_told_in_a_line_and_not_in_a_traceback(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reconcile = Mock(side_effect=ReservationsUnavailable("Redis is loading its data"))
    parts = SimpleNamespace(
        settings=Settings(),
        reconciler=SimpleNamespace(reconcile=reconcile),
        journal=Journal(),
        clock=SystemClock(),
        ticks=Ticks(SystemClock()),
    )
    monkeypatch.setattr(tasks, "here", lambda: parts)
    monkeypatch.setattr(tasks, "_told_at", {})
    with caplog.at_level(logging.INFO):
        assert tasks.duties["reconcile"].apply().state == "FAILURE"
    (line,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "reconcile" in line.message
    assert "Redis is loading its data" in line.message
    assert not any(record.exc_info for record in caplog.records)

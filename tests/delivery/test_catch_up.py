"""What becomes of messages that nobody took while everything was down."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from dispatcher import Status
from tests.support.doubles import at_once
from tests.support.house import House, hour_ago
from tests.support.house_fixtures import Build

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
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
    answers = at_once([each.parts.sweep.catch_up for each in houses])
    done = [answer for answer in answers if isinstance(answer, int)]
    assert len(done) == 3
    # Each of two that meet may leave the rest of its batch to the other: the next turn takes it.
    done.append(catch_up(house))
    assert sum(done) >= 20
    assert {house.again(message).status for message in messages} == {Status.EXPIRED}
    assert house.reconciled().all_members() == house.reservations()

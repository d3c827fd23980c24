"""Claim, permit, send, record: what is due goes out once, and what is not stays."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import pytest

from dispatcher import Outcome, Status
from tests.support.doubles import Between, at_once
from tests.support.house import House, hour_ago
from tests.support.house_fixtures import Build

HOUR = timedelta(hours=1)


@pytest.mark.every_database
def test_due_messages_are_sent_once_and_recorded(slow: House) -> None:
    messages = [slow.submit(name) for name in ("ada", "ben", "cleo")]
    before = slow.database_time()
    assert slow.deliver(*messages) == 3
    assert sorted(slow.sent) == sorted(message.id for message in messages)
    for message in messages:
        now = slow.again(message)
        assert (now.status, now.attempt_count, now.last_error) == (Status.SENT, 1, None)
        assert now.finished_at is not None
        assert before <= now.finished_at <= slow.database_time()
        [attempt] = slow.dispatcher.attempts(message.id)
        assert (attempt.token, attempt.outcome, attempt.error) == (1, Outcome.SENT, None)
        assert attempt.receipt is not None
        assert attempt.receipt.startswith("memory-")
        assert attempt.finished_at is not None
        assert before <= attempt.started_at <= attempt.finished_at
    assert slow.deliver(*messages) == 0, "a repeated task does nothing"
    assert len(slow.sent) == 3
    assert slow.reservations() == slow.all_members(), "what was sent keeps its reservation"


@pytest.mark.every_database
def test_a_message_whose_task_came_far_too_early_is_left_to_the_sweep(slow: House) -> None:
    due = slow.submit("ben")
    early = slow.submit(send_in=HOUR + timedelta(minutes=10))
    slow.change([early], enqueue_at=early.send_at + slow.settings.enqueue_grace)
    assert slow.deliver(due, early) == 1
    assert slow.sent == [due.id]
    assert slow.moved.sleeps == []
    assert slow.again(early) == early
    assert slow.columns(early, "enqueue_at", "claim_token") == (early.send_at, 0)
    assert slow.dispatcher.attempts(early.id) == []


@pytest.mark.every_database
def test_a_message_past_its_expiry_is_never_sent_and_gives_its_quota_back(slow: House) -> None:
    message = slow.submit(expires_at=slow.clock.now() + timedelta(seconds=1))
    other = slow.submit("ben")
    assert slow.deliver(message, other) == 1
    assert slow.sent == [other.id]
    now = slow.again(message)
    assert (now.status, now.attempt_count) == (Status.EXPIRED, 0)
    assert slow.dispatcher.attempts(message.id) == []
    assert slow.permits() == {}
    assert set(slow.members()) == {message.id}
    assert slow.parts.reconciler.reconcile().released == 1
    assert slow.members() == {}
    slow.submit()


def test_a_message_that_expires_while_its_worker_holds_it_is_not_sent(build: Build) -> None:
    house = build(clock=hour_ago(), claim_ttl="2 hours")
    message = house.submit(expires_at=house.clock.now() + HOUR + timedelta(minutes=30))
    other = house.submit("ben")

    def wait() -> None:
        house.moved.advance(timedelta(minutes=31))

    house.swap("permits", Between(house.parts.permits, after={"acquire": wait}))
    assert house.deliver(message, other) == 1
    assert house.sent == [other.id]
    assert house.dispatcher.attempts(message.id) == []


@pytest.mark.every_database
def test_tasks_for_the_same_messages_in_many_threads_send_each_once(slow: House) -> None:
    messages = [slow.submit(f"name {n}") for n in range(20)]
    ids: list[UUID] = [message.id for message in messages]
    counts = at_once([lambda: slow.parts.delivery.deliver(ids)] * 8)
    assert sum(count for count in counts if isinstance(count, int)) == 20
    assert sorted(slow.sent) == sorted(ids)
    assert len(slow.attempt_rows()) == 20

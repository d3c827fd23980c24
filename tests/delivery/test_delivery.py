"""What is due goes out once, what is not stays; what follows where a transport fails or dies."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher import Message, Outcome, PerhapsSent, PermanentFailure, Status, TemporaryFailure
from dispatcher.delivery.group import backoff
from dispatcher.delivery.send_log import ClaimLog
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


def test_a_worker_that_waited_for_its_disk_past_its_claim_does_not_send(
    slow: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = slow.submit()

    def slowly(*_: object) -> bool:
        slow.moved.advance(slow.settings.claim_ttl)
        return True

    monkeypatch.setattr(ClaimLog, "begin", slowly)
    assert slow.deliver(message) == 0
    assert slow.sent == []
    assert slow.again(message).status is Status.SCHEDULED
    assert slow.permits(message.scope) == {}, "an unused permit is given back"


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


ROOMY = "100/minute"


@pytest.fixture
def roomy(build: Build) -> House:
    """Give a house with room for many tries of one scope, three of one message."""
    channels = {"memory": {"transport": "memory", "max_attempts": 3}}
    return build(clock=hour_ago(), quotas=ROOMY, channels=channels)


@pytest.mark.every_database
def test_a_permanent_failure_ends_the_message(roomy: House) -> None:
    message = roomy.submit()
    roomy.fail_sends(PermanentFailure("no such number"))
    assert roomy.deliver(message) == 0
    now = roomy.again(message)
    assert (now.status, now.attempt_count) == (Status.FAILED, 1)
    assert now.last_error == "PermanentFailure: no such number"
    assert now.finished_at is not None
    [attempt] = roomy.dispatcher.attempts(message.id)
    assert (attempt.outcome, attempt.error) == (Outcome.PERMANENT, now.last_error)
    assert roomy.reservations() == roomy.all_members()


@pytest.mark.every_database
@pytest.mark.parametrize(
    ("error", "text", "least"),
    [
        (TemporaryFailure("busy"), "TemporaryFailure: busy", 0),
        (TemporaryFailure("busy", timedelta(minutes=10)), "TemporaryFailure: busy", 600),
        (KeyError("name"), "KeyError: 'name'", 0),
        (PerhapsSent("no answer"), "PerhapsSent: no answer", 0),
        (ValueError("x" * 1_000), "ValueError: " + "x" * 488, 0),
    ],
    ids=["plain", "retry after", "unknown", "without an answer", "long"],
)
def test_a_temporary_or_unknown_failure_is_tried_again_later(
    roomy: House, error: Exception, text: str, least: int
) -> None:
    message = roomy.submit()
    roomy.fail_sends(error)
    before = roomy.database_time()
    assert roomy.deliver(message) == 0
    now = roomy.again(message)
    assert (now.status, now.attempt_count, now.last_error) == (Status.SCHEDULED, 1, text)
    wait = now.next_attempt_at - before
    assert timedelta(seconds=least) <= wait < timedelta(seconds=least + 5 + 5)
    assert now.send_at == message.send_at
    outcome = Outcome.TEMPORARY if isinstance(error, TemporaryFailure) else Outcome.UNKNOWN
    assert roomy.outcomes(message) == [outcome]
    assert len(roomy.permits()) == 1, "a failed send counts against the limits"

    roomy.make_due(message)
    assert roomy.deliver(message) == 1
    assert roomy.outcomes(message) == [outcome, Outcome.SENT]
    assert roomy.again(message).last_error is None


@pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt])
def test_an_exit_during_a_send_leaves_the_messages_after_it_unchanged(
    roomy: House, end: type[BaseException]
) -> None:
    messages = [roomy.submit(name) for name in ("ada", "ben", "odd", "cleo", "dora")]
    sent, [odd], unsent = messages[:2], messages[2:3], messages[3:]

    def exit_at_odd(message: Message) -> None:
        if message.id == odd.id:
            raise end

    roomy.memory.before = exit_at_odd
    with pytest.raises(end):
        roomy.deliver(*messages)
    assert roomy.sent == [message.id for message in sent]
    assert [roomy.again(message).status for message in sent] == [Status.SENT] * 2
    now = roomy.again(odd)
    assert (now.status, now.attempt_count) == (Status.SENDING, 1), "its outcome is unknown"
    assert len(roomy.permits("odd")) == 1
    for message in unsent:
        now = roomy.again(message)
        assert (now.status, now.attempt_count, now.last_error) == (Status.SCHEDULED, 0, None)
        assert roomy.dispatcher.attempts(message.id) == []
        assert roomy.permits(message.scope) == {}
    roomy.make_due(*unsent)
    assert roomy.deliver(*messages) == 2


@given(attempt=st.integers(1, 10_000), roll=st.floats(0, 1))
def test_the_wait_lies_between_nothing_and_the_doubled_base(attempt: int, roll: float) -> None:
    base, longest = timedelta(seconds=5), timedelta(minutes=10)
    wait = backoff(attempt, base=base, longest=longest, jitter=roll)
    assert wait == min(longest, base * 2 ** min(attempt - 1, 20)) * roll

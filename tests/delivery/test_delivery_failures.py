"""What becomes of a message when its transport fails, dies, or answers late; how long it waits."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher import Message, Outcome, PerhapsSent, PermanentFailure, Status, TemporaryFailure
from dispatcher.delivery.group import backoff
from tests.support.house import House, hour_ago
from tests.support.house_fixtures import Build

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
    assert roomy.sent == [each.id for each in sent]
    assert [roomy.again(each).status for each in sent] == [Status.SENT] * 2
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

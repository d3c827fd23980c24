"""What becomes of a message when its transport fails, dies, or answers late; how long it waits."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher import Message, Outcome, PerhapsSent, PermanentFailure, Status, TemporaryFailure
from dispatcher.delivery.sender import backoff
from tests.support.doubles import raising
from tests.support.house import House, hour_ago
from tests.support.house_fixtures import Build

ROOMY = "100/minute"


class WorkerDied(BaseException):
    """Ends a send the way the death of its process does: nothing is recorded."""


@pytest.fixture
def roomy(build: Build) -> House:
    """Give a house with room for many tries of one scope, three of one message."""
    channels = {"memory": {"transport": "memory", "max_attempts": 3}}
    return build(clock=hour_ago(), quotas=ROOMY, channels=channels)


def fails(house: House, *errors: BaseException) -> None:
    act = raising(*errors)
    house.memory.before = lambda _: act()


def make_due(house: House, message: Message) -> None:
    now = house.database_time() - timedelta(milliseconds=1)
    house.change([message], next_attempt_at=now)


def outcomes(house: House, message: Message) -> list[Outcome | None]:
    return [attempt.outcome for attempt in house.dispatcher.attempts(message.id)]


@pytest.mark.every_database
def test_a_permanent_failure_ends_the_message(roomy: House) -> None:
    message = roomy.submit()
    fails(roomy, PermanentFailure("no such number"))
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
    fails(roomy, error)
    before = roomy.database_time()
    assert roomy.deliver(message) == 0
    now = roomy.again(message)
    assert (now.status, now.attempt_count, now.last_error) == (Status.SCHEDULED, 1, text)
    wait = now.next_attempt_at - before
    assert timedelta(seconds=least) <= wait < timedelta(seconds=least + 5 + 5)
    assert now.send_at == message.send_at
    outcome = Outcome.TEMPORARY if isinstance(error, TemporaryFailure) else Outcome.UNKNOWN
    assert outcomes(roomy, message) == [outcome]
    assert len(roomy.permits()) == 1, "a failed send counts against the limits"

    make_due(roomy, message)
    assert roomy.deliver(message) == 1
    assert outcomes(roomy, message) == [outcome, Outcome.SENT]
    assert roomy.again(message).last_error is None


def test_tries_end_at_the_most_the_channel_allows(roomy: House) -> None:
    message = roomy.submit()
    fails(roomy, *[TemporaryFailure(f"busy {n}") for n in range(10)])
    for n in range(3):
        make_due(roomy, message)
        assert roomy.again(message).status is Status.SCHEDULED
        assert roomy.deliver(message) == 0
        assert roomy.again(message).attempt_count == n + 1
    now = roomy.again(message)
    assert (now.status, now.last_error) == (Status.FAILED, "TemporaryFailure: busy 2")
    assert outcomes(roomy, message) == [Outcome.TEMPORARY] * 3
    assert roomy.deliver(message) == 0


def test_a_message_of_a_channel_this_worker_does_not_know_waits_for_another_worker(
    roomy: House, build: Build
) -> None:
    message = roomy.submit()
    other = build(clock=hour_ago(), quotas=ROOMY, channels={"file": {"transport": "file"}})
    assert other.deliver(message) == 0
    now = other.again(message)
    assert (now.status, now.attempt_count, now.last_error) == (Status.SCHEDULED, 0, None)
    assert outcomes(other, message) == []


@pytest.mark.every_database
def test_a_worker_that_dies_leaves_sending_and_the_rescue_frees_it(roomy: House) -> None:
    message = roomy.submit()
    fails(roomy, WorkerDied())
    with pytest.raises(WorkerDied):
        roomy.deliver(message)
    now = roomy.again(message)
    assert (now.status, now.attempt_count) == (Status.SENDING, 1)
    assert outcomes(roomy, message) == [None]
    assert roomy.parts.sweep.rescue() == 0, "its claim has not run out"

    roomy.end_claims(message)
    assert roomy.parts.sweep.rescue() == 1
    now = roomy.again(message)
    assert (now.status, now.attempt_count) == (Status.SCHEDULED, 1)
    assert now.last_error is not None
    assert "unknown" in now.last_error
    assert outcomes(roomy, message) == [Outcome.UNKNOWN]
    assert roomy.deliver(message) == 1
    assert outcomes(roomy, message) == [Outcome.UNKNOWN, Outcome.SENT]


@pytest.mark.every_database
@pytest.mark.parametrize("second", ["none", "sent", "failed", "held"])
def test_a_late_success_ends_the_message_whatever_came_of_the_next_try(
    roomy: House, build: Build, second: str
) -> None:
    message = roomy.submit()
    other = build(clock=hour_ago(), quotas=ROOMY, channels=roomy.settings.channels)
    die: dict[str, Callable[[], None]] = {
        "failed": raising(TemporaryFailure("busy")),
        "held": raising(WorkerDied()),
    }
    other.memory.before = lambda _: die.get(second, raising())()

    def meanwhile(_: Message) -> None:
        roomy.end_claims(message)
        assert other.parts.sweep.rescue() == 1
        if second == "held":
            with pytest.raises(WorkerDied):
                other.deliver(message)
        elif second != "none":
            other.deliver(message)

    roomy.memory.before = meanwhile
    roomy.deliver(message)
    assert roomy.sent == [message.id]
    assert roomy.again(message).status is Status.SENT
    assert roomy.parts.sweep.rescue() == roomy.parts.sweep.enqueue_due() == 0
    assert outcomes(roomy, message)[0] is Outcome.SENT, "what the first try did is known after all"


@given(attempt=st.integers(1, 10_000), roll=st.floats(0, 1))
def test_the_wait_lies_between_nothing_and_the_doubled_base(attempt: int, roll: float) -> None:
    base, longest = timedelta(seconds=5), timedelta(minutes=10)
    wait = backoff(attempt, base=base, longest=longest, jitter=roll)
    assert wait == min(longest, base * 2 ** min(attempt - 1, 20)) * roll

"""What follows a try of unknown outcome: another one, or a person's decision; and a failed one."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from dispatcher import (
    InvalidValue,
    Message,
    Outcome,
    PerhapsSent,
    PermanentFailure,
    Status,
    TemporaryFailure,
    TooLate,
)
from dispatcher.times.send_time import to_ms
from tests.support.doubles import at_once, once
from tests.support.house import House, hour_ago, house_on
from tests.support.house_fixtures import Build, on_sqlite
from tests.support.proxy import FarDatabase
from tests.support.servers import RedisServer

HOUR = timedelta(hours=1)
CHANNELS: dict[str, Any] = {
    "memory": {"transport": "memory"},
    "careful": {"transport": "memory", "on_unknown": "hold", "max_attempts": 1},
}
DECISIONS = ["release", "drop"]


def left_open(house: House, *recipients: str, **asked: Any) -> list[Message]:
    """Leave messages that a worker took and never recorded, and let the sweep find them."""
    messages = [
        house.submit(recipient, **{"on_unknown": "hold"} | asked) for recipient in recipients
    ]
    house.lose(*messages)
    assert house.parts.sweep.rescue() == len(messages)
    return [house.again(message) for message in messages]


def held(house: House, recipient: str = "ada", **asked: Any) -> Message:
    [message] = left_open(house, recipient, **asked)
    assert message.status is Status.HELD
    return message


def deliver_again(house: House, message: Message) -> int:
    """Deliver what is due by now, past the limits of its recipient."""
    house.redis.delete(*house.redis.scan_iter(match="*:log:*"), "nothing")
    return house.deliver(message)


def test_a_held_message_is_sent_by_nobody_and_keeps_its_reservation(slow: House) -> None:
    message = held(slow)
    assert (message.attempt_count, message.finished_at) == (1, None)
    assert "unknown" in (message.last_error or "")
    assert slow.outcomes(message) == [Outcome.UNKNOWN]
    assert slow.deliver(message) == slow.parts.sweep.enqueue_due() == slow.parts.sweep.rescue() == 0
    assert slow.parts.sweep.prune() == slow.parts.reconciler.reconcile().released == 0
    assert slow.members() == {message.id: to_ms(message.send_at)}
    assert slow.sent == []


def test_a_message_wins_over_its_channel_whose_word_stays_with_it(build: Build) -> None:
    house = build(clock=hour_ago(), channels=CHANNELS)
    assert house.submit("ada", channel="careful").on_unknown == "hold"
    assert house.submit("ben", channel="careful", on_unknown="retry").on_unknown == "retry"
    assert house.submit("cyd").on_unknown == "retry"
    other = build(clock=hour_ago(), channels={"careful": {"transport": "memory"}}, opened=False)
    assert [message.on_unknown for message in other.dispatcher.select(channel="careful")] == [
        "retry", "hold",
    ]  # fmt: skip


@pytest.mark.every_database
@pytest.mark.parametrize("expires", [False, True])
def test_an_unknown_outcome_of_the_last_attempt_is_held(slow: House, expires: bool) -> None:
    message = slow.submit(on_unknown="hold")
    slow.parts.delivery.claims.claim([message.id])
    past = slow.database_time() - timedelta(seconds=2)
    slow.change([message], **({"expires_at": past} if expires else {"max_attempts": 1}))
    slow.end_claims(message)
    assert slow.parts.sweep.rescue() == 1
    assert slow.again(message).status is Status.HELD


def test_released_it_is_due_at_once_and_sent_once_more(slow: House) -> None:
    message = held(slow)
    released = slow.dispatcher.release(message.id)
    assert (released.status, released.attempt_count, released.max_attempts) == (
        Status.SCHEDULED, 1, message.max_attempts,
    )  # fmt: skip
    assert released.send_at == message.send_at
    assert slow.parts.sweep.enqueue_due() == 1
    assert deliver_again(slow, message) == 1
    assert slow.again(message).status is Status.SENT
    assert slow.sent == [message.id]
    assert slow.outcomes(message) == [
        Outcome.UNKNOWN, Outcome.SENT,
    ]  # fmt: skip


@pytest.mark.every_database
def test_released_past_its_expiry_it_ends_and_its_reservation_is_released(slow: House) -> None:
    message = held(slow, expires_at=slow.clock.now() + 2 * HOUR)
    past = slow.database_time() - timedelta(seconds=1)
    slow.change([message], expires_at=past)
    released = slow.dispatcher.release(message.id)
    assert released.status is Status.EXPIRED
    assert released.finished_at is not None
    assert slow.parts.reconciler.reconcile().released == 1
    assert slow.members() == {}


@pytest.mark.every_database
def test_of_a_release_and_a_drop_at_once_one_is_too_late(build: Build) -> None:
    houses = [build(clock=hour_ago()) for _ in range(2)]
    for message in left_open(houses[0], *(f"name {n}" for n in range(5))):
        both = [houses[0].dispatcher.release, houses[1].dispatcher.drop]
        answers = at_once([lambda act=act, id_=message.id: act(id_) for act in both])  # type: ignore[misc]  # default arguments
        status = houses[0].again(message).status
        assert [answer.status for answer in answers if isinstance(answer, Message)] == [status]
        [late] = [answer for answer in answers if isinstance(answer, TooLate)]
        assert late.status == status


@pytest.mark.every_database
@pytest.mark.parametrize("decide", DECISIONS)
def test_a_lost_reply_of_a_decision_decides_once(
    redis_server: RedisServer, far: FarDatabase, decide: str
) -> None:
    with house_on(redis_server, far.direct, database_url=far.through, clock=hour_ago()) as through:
        message = held(through)
        assert through.dispatcher.held() == [message]
        far.proxy.drop_reply(b"UPDATE dispatcher_messages")
        decided = getattr(through.dispatcher, decide)(message.id)
        assert far.proxy.dropped == 1
        assert decided == through.again(message)
        assert decided.status is (Status.SCHEDULED if decide == "release" else Status.FAILED)


@pytest.mark.every_database
@pytest.mark.parametrize(
    ("error", "status", "outcome"),
    [
        (TemporaryFailure("busy"), Status.SCHEDULED, Outcome.TEMPORARY),
        (PermanentFailure("no such number"), Status.FAILED, Outcome.PERMANENT),
    ],
    ids=["temporary", "permanent"],
)
def test_a_late_failure_of_a_held_message_is_taken(
    slow: House, error: Exception, status: Status, outcome: Outcome
) -> None:
    """Its worker froze inside the send until its message was held, then went on."""
    message = slow.submit(on_unknown="hold")

    def freeze(_: Message) -> None:
        slow.end_claims(message)
        assert slow.parts.sweep.rescue() == 1
        assert slow.again(message).status is Status.HELD
        raise error

    slow.memory.before = freeze
    slow.deliver(message)
    message = slow.again(message)
    assert message.status is status
    assert str(error) in (message.last_error or "")
    assert slow.outcomes(message) == [outcome]


@pytest.mark.every_database
@pytest.mark.parametrize("late", [False, True])
def test_a_held_message_that_was_never_sent_is_scheduled_again(slow: House, late: bool) -> None:
    """It froze before the send; when it resumes, its claim is too short for one."""
    message, other = slow.submit(on_unknown="hold"), slow.submit("ben")

    def freeze() -> None:
        slow.moved.advance(slow.settings.claim_ttl)
        if late:
            slow.end_claims(message, other)
            assert slow.parts.sweep.rescue() == 2
            assert slow.again(message).status is Status.HELD

    slow.between("delivery", "permits", after={"acquire": once(freeze)})
    assert slow.deliver(message, other) == 0
    now = slow.again(message)
    assert (now.status, now.attempt_count) == (Status.SCHEDULED, 0)
    assert slow.dispatcher.attempts(message.id) == []
    assert len(slow.dispatcher.attempts(other.id)) == slow.again(other).attempt_count == late
    assert slow.sent == []


@pytest.mark.every_database
@pytest.mark.parametrize("error", [TimeoutError("no answer"), PerhapsSent("no answer")], ids=repr)
def test_an_unnamed_failure_is_held(slow: House, error: Exception) -> None:
    """A failure that has no name may be a line that broke after the provider took the message."""
    messages = [slow.submit(name, on_unknown="hold") for name in ("ada", "ben")]
    other = slow.submit("cyd")
    slow.fail_sends(error, error, error)
    assert slow.deliver(*messages, other) == 0
    for message in messages:
        now = slow.again(message)
        assert (now.status, now.attempt_count) == (Status.HELD, 1)
        assert now.last_error == f"{type(error).__name__}: no answer"
        [attempt] = slow.dispatcher.attempts(message.id)
        assert (attempt.outcome, attempt.error) == (Outcome.UNKNOWN, now.last_error)
        assert len(slow.permits(message.scope)) == 1, "it counts as a send"
    assert slow.again(other).status is Status.SCHEDULED
    assert slow.outcomes(other) == [Outcome.UNKNOWN]
    slow.dispatcher.release(messages[0].id)
    assert deliver_again(slow, messages[0]) == 1
    assert slow.deliver(messages[1]) == 0


@pytest.fixture
def tried(build: Build) -> House:
    """Give a house in which what is submitted is due at once, and is tried twice."""
    channels = {"memory": {"transport": "memory", "max_attempts": 2}}
    return build(clock=hour_ago(), channels=channels)


def failed(house: House, **asked: Any) -> Message:
    """Submit a message, and let its first try fail for good."""
    message = house.submit(**asked)
    house.fail_sends(PermanentFailure("no such number"))
    house.deliver(message)
    ended = house.again(message)
    assert ended.status is Status.FAILED
    return ended


@pytest.mark.every_database
def test_a_failed_message_is_due_at_once_with_all_its_tries(tried: House) -> None:
    message = failed(tried)
    again = tried.dispatcher.retry(message.id)
    with pytest.raises(TooLate, match="already scheduled"):
        tried.dispatcher.retry(message.id)
    assert again == tried.again(message)
    assert (again.status, again.finished_at) == (Status.SCHEDULED, None)
    assert (again.attempt_count, again.max_attempts) == (1, 3)
    assert again.send_at == message.send_at
    assert abs(again.next_attempt_at - tried.database_time()) < HOUR / 60
    assert tried.members() == {message.id: to_ms(message.send_at)}
    assert tried.parts.sweep.enqueue_due() == 1
    assert deliver_again(tried, message) == 1
    assert tried.again(message).status is Status.SENT
    assert tried.outcomes(message) == ["permanent", "sent"]


@on_sqlite
def test_a_failed_message_fails_again_after_its_round(tried: House) -> None:
    message = failed(tried)
    tried.dispatcher.retry(message.id)
    for _ in range(2):
        tried.make_due(message)
        tried.fail_sends(TemporaryFailure("busy", retry_after=timedelta(0)))
        deliver_again(tried, message)
    assert tried.again(message).status is Status.FAILED
    assert len(tried.dispatcher.attempts(message.id)) == 3
    assert tried.dispatcher.retry(message.id).max_attempts == 5


@pytest.mark.every_database
def test_retry_of_an_unknown_outcome_must_be_confirmed(tried: House) -> None:
    message = held(tried)
    tried.dispatcher.drop(message.id)
    with pytest.raises(InvalidValue, match="may have been sent") as refused:
        tried.dispatcher.retry(message.id)
    assert refused.value.field == "perhaps_sent"
    assert tried.again(message).status is Status.FAILED
    again = tried.dispatcher.retry(message.id, perhaps_sent=True)
    assert again.status is Status.SCHEDULED

"""A long delay by a limit is told once, by a transition and by a status message."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from dispatcher import Dispatcher, Message, Status, TemporaryFailure
from dispatcher.delivery.group import Group
from dispatcher.limiters.permits import CLOSED_BY_PROVIDER
from dispatcher.message import Outcome
from dispatcher.telemetry.journal import Event, Journal, Transition
from dispatcher.times.send_time import as_text
from tests.delivery.test_status_webhooks import channels, tell, told
from tests.support.crashes import How, die, each_how
from tests.support.doubles import at_once
from tests.support.house import House, hour_ago
from tests.support.house_fixtures import Build
from tests.support.http_receiver import Receiver

URL = "https://shop.example/hooks"
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
LIMIT = "channel memory: 1/hour"


class Delays(list[Event]):
    """The transitions of delays that a house has told."""

    def __call__(self, event: Event) -> None:
        if event.kind is Transition.DELAYED:
            self.append(event)

    @property
    def limits(self) -> dict[UUID, str]:
        return {event.message_id: str(event.details["limit"]) for event in self}


def heard(house: House) -> Delays:
    delays = Delays()
    house.swap("journal", Journal(listeners=[delays]))
    return delays


def told_to(house: House) -> list[dict[str, Any]]:
    """Return the bodies of all status messages, the oldest first."""
    page = house.dispatcher.list(channel="status").messages
    return [dict(message.body) for message in reversed(page)]


def delay_reports(house: House) -> Counter[str]:
    return Counter(
        body["data"]["id"] for body in told_to(house) if body["type"] == "message.delayed"
    )


@pytest.fixture
def made(build: Build) -> Callable[..., House]:
    """Give a maker of houses that tell delays of more than ten minutes."""

    def make(limit: str = "1/hour", **settings: Any) -> House:
        memory = {
            "transport": "memory", "limits": [limit], "backoff_base": 7_200,
            "backoff_longest": 7_200,
        }  # fmt: skip
        status = {"transport": "webhook", "options": {"payload": "body"}}
        values: dict[str, Any] = {
            "quotas": "1000/second", "tell_delay_after": "10 minutes",
            "status_channel": "status", "channels": {"memory": memory, "status": status},
        }  # fmt: skip
        return build(clock=hour_ago(), **values | settings)

    return make


def asked(house: House, number: int, **more: Any) -> list[Message]:
    """Submit messages that are due, whose caller wants to be told."""
    return [house.submit(f"to {n}", status_url=URL, **more) for n in range(number)]


@pytest.mark.every_database
def test_a_delay_is_told_once_however_often_the_message_is_snoozed(
    made: Callable[..., House],
) -> None:
    house = made()
    delays = heard(house)
    first, *waiting = asked(house, 3)
    before = house.database_time()
    house.deliver(first, *waiting)
    ids = {message.id for message in waiting}
    assert delays.limits == dict.fromkeys(ids, LIMIT)
    for message, event in zip(waiting, delays, strict=True):
        now = house.again(message)
        assert (now.status, now.attempt_count, now.delayed_by) == (Status.SCHEDULED, 0, LIMIT)
        due_at = event.details["due_at"]
        assert isinstance(due_at, datetime)
        assert abs(due_at - house.clock.now() - (now.next_attempt_at - before)) < MINUTE
    for _ in range(3):
        house.make_due(*waiting)
        assert house.deliver(*waiting) == 0
    assert len(delays) == len(waiting)
    assert delay_reports(house) == Counter(map(str, ids))
    assert house.again(first).delayed_by is None


def test_a_report_of_a_delay_names_the_limit_and_the_estimate(made: Callable[..., House]) -> None:
    house = made()
    first, waiting = asked(house, 2)
    house.deliver(first, waiting)
    now = house.again(waiting)
    [body] = told_to(house)
    assert body.pop("timestamp") < as_text(now.next_attempt_at)
    assert body == {
        "type": "message.delayed",
        "data": {
            "id": str(waiting.id),
            "channel": "memory",
            "status": "scheduled",
            "attempt_count": 0,
            "send_at": as_text(waiting.send_at),
            "finished_at": None,
            "outcome": None,
            "reason": None,
            "limit": LIMIT,
            "expected_at": as_text(now.next_attempt_at),
        },
    }
    assert house.parts.sweep.notify() == 1, "of the first, which was sent"
    house.parts.sweep.prune()
    assert house.parts.sweep.notify() == 0


@pytest.mark.parametrize(
    ("waited", "limit", "is_told"),
    [
        (timedelta(0), "1/8 minute", False),
        (timedelta(minutes=1), "1/8 minute", False),
        (timedelta(minutes=3), "1/8 minute", True),
        (timedelta(0), "1/11 minute", True),
    ],
)
def test_all_that_limits_have_held_it_for_counts(
    made: Callable[..., House], waited: timedelta, limit: str, is_told: bool
) -> None:
    house = made(limit)
    delays = heard(house)
    first, second = asked(house, 2)
    house.deliver(first)
    house.change([second], next_attempt_at=second.send_at + waited)
    house.deliver(second)
    assert house.again(second).next_attempt_at > house.database_time() + 7 * MINUTE
    assert (second.id in delays.limits) is is_told
    assert (house.again(second).delayed_by is not None) is is_told
    assert len(delay_reports(house)) == is_told


def closed(house: House, message: Message) -> None:
    """Let the provider close the channel while another message is sent."""
    house.fail_sends(TemporaryFailure("429", HOUR, closes_channel=True))
    house.deliver(house.submit("first"))
    house.deliver(message)


def closed_in_hand(house: House, message: Message) -> None:
    """Let another sender of the group learn of it while the message has a permit."""
    send = Group._try_send

    def try_send(group: Group, claim: Any, transport: Any) -> Any:
        group._closed_until["memory"] = house.clock.monotonic() + 3_600
        return send(group, claim, transport)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Group, "_try_send", try_send)
        house.deliver(message)


@pytest.mark.parametrize("close", [closed, closed_in_hand])
def test_a_channel_that_its_provider_closed_is_told_too(
    made: Callable[..., House], close: Callable[[House, Message], None]
) -> None:
    house = made("1000/second")
    delays = heard(house)
    [message] = asked(house, 1)
    close(house, message)
    assert house.sent == []
    assert delays.limits == {message.id: CLOSED_BY_PROVIDER}
    assert house.again(message).delayed_by == CLOSED_BY_PROVIDER
    assert delay_reports(house) == {str(message.id): 1}


def without_the_setting(made: Callable[..., House]) -> tuple[House, Message]:
    house = made(tell_delay_after=None)
    first, message = asked(house, 2)
    house.deliver(first, message)
    return house, message


def in_quiet_hours(made: Callable[..., House]) -> tuple[House, Message]:
    house = made()
    [message] = asked(house, 1)
    begin, end = (house.database_time() + by for by in (-2 * HOUR, 2 * HOUR))
    house.change([message], quiet_hours=f"{begin:%H:%M}-{end:%H:%M}", zone="UTC")
    house.deliver(message)
    return house, message


def paused(made: Callable[..., House]) -> tuple[House, Message]:
    """An hour of pause is no limit's, the seconds that follow are no long delay."""
    house = made("1/30 second")
    first, message = asked(house, 2)
    house.dispatcher.pause("recipient", message.scope)
    house.deliver(first, message)
    house.dispatcher.resume("recipient", message.scope)
    house.deliver(message)
    return house, message


def failed_before(made: Callable[..., House]) -> tuple[House, Message]:
    """Two hours of backoff are no limit's."""
    house = made("1/30 second")
    [message] = asked(house, 1)
    house.fail_sends(TemporaryFailure("try later"))
    house.deliver(message)
    house.change([message], next_attempt_at=message.send_at + HOUR / 2)
    house.deliver(message)
    assert house.outcomes(message) == [Outcome.TEMPORARY], "the limit refused it"
    return house, message


def without_redis(made: Callable[..., House]) -> tuple[House, Message]:
    house = made()
    [message] = asked(house, 1)
    house.redis.flushdb()
    house.deliver(message)
    return house, message


@pytest.mark.parametrize(
    "story", [without_the_setting, in_quiet_hours, paused, failed_before, without_redis]
)
def test_what_no_limit_has_delayed_for_long_is_not_told(
    made: Callable[..., House], story: Callable[[Callable[..., House]], tuple[House, Message]]
) -> None:
    house, message = story(made)
    now = house.again(message)
    assert (now.status, now.delayed_by) == (Status.SCHEDULED, None)
    assert now.next_attempt_at > message.send_at
    assert delay_reports(house) == {}


@pytest.mark.every_database
def test_of_two_workers_one_tells_it(made: Callable[..., House]) -> None:
    house = made()
    delays = heard(house)
    first, *waiting = asked(house, 12)
    house.deliver(first)
    ids = [message.id for message in waiting]
    with Dispatcher(house.settings, clock=house.clock) as other:
        vars(other._app)["journal"] = house.parts.journal
        for _ in range(3):
            at_once([lambda: house.deliver(*ids), lambda: other._app.delivery.deliver(ids)])
            house.make_due(*waiting)
    assert len(delays) == len(delays.limits) == len(waiting)
    assert delay_reports(house) == {str(message.id): 1 for message in waiting}


def test_a_moved_message_may_be_delayed_anew(made: Callable[..., House]) -> None:
    house = made()
    delays = heard(house)
    first, message = asked(house, 2)
    house.deliver(first, message)
    moved = house.dispatcher.reschedule(message.id, send_in=timedelta(seconds=1))
    assert moved.delayed_by is None
    house.deliver(message)
    assert [event.message_id for event in delays] == [message.id] * 2
    assert delay_reports(house) == {str(message.id): 2}


@pytest.mark.every_database
def test_a_report_that_was_not_posted_is_cancelled_by_that_of_the_end(
    build: Build, receiver: Receiver
) -> None:
    """So whoever was down does not read of a delay after the end."""
    there = channels(receiver)
    there["memory"] |= {"limits": ["2/hour"]}
    house = build(
        clock=hour_ago(), quotas="1000/second", tell_delay_after=600, status_channel="status",
        channels=there,
    )  # fmt: skip
    first = [house.submit(f"to {n}") for n in range(2)]
    late, later = (house.submit(person, status_url=receiver.url) for person in ("ada", "ben"))
    house.deliver(*first, late, later)
    house.dispatcher.cancel(late.id)
    tell(house)
    house.dispatcher.cancel(later.id)
    tell(house)
    assert Counter(told(receiver)) == {
        ("message.cancelled", str(late.id)): 1,
        ("message.delayed", str(later.id)): 1,
        ("message.cancelled", str(later.id)): 1,
    }
    assert delay_reports(house) == {str(late.id): 1, str(later.id): 1}


def delivers(dispatcher: Dispatcher, messages: list[Message]) -> None:
    dispatcher._app.delivery.deliver([message.id for message in messages])


@each_how
@pytest.mark.parametrize(
    "point",
    ["deliver.after_claim", "deliver.after_permits", "tell.in_transaction", "put_back.after_row"],
)
def test_whoever_dies_a_delay_is_reported_once(
    made: Callable[..., House], tmp_path: Path, point: str, how: How
) -> None:
    house = made(data_dir=tmp_path)
    first, *waiting = asked(house, 4)
    house.deliver(first)
    die(point, delivers, house.settings, waiting, how=how)
    reported = delay_reports(house)
    stored = {str(m.id) for m in waiting if house.again(m).delayed_by is not None}
    assert set(reported) == stored, "both or neither"
    house.end_claims(*(m for m in waiting if house.again(m).status is Status.SENDING))
    house.parts.sweep.rescue()
    for _ in range(2):
        house.make_due(*waiting)
        assert house.deliver(*waiting) == 0
    assert delay_reports(house) == {str(message.id): 1 for message in waiting}
    assert {house.again(message).delayed_by for message in waiting} == {LIMIT}

"""The priority of messages: given, else the channel's; stored, shown, kept and changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy.orm import Session

from dispatcher import (
    InvalidDraft,
    InvalidSettings,
    Message,
    MessageNotFound,
    QuotaExceeded,
    Settings,
    TemporaryFailure,
    TooLate,
)
from dispatcher.message import new_id
from tests.support.callers import callers_engine
from tests.support.house import FAR, House, draft, hour_ago
from tests.support.house_fixtures import Build

HOUR, NOTHING = timedelta(hours=1), timedelta(0)
CHANNELS = {"memory": {"transport": "memory", "priority": -40}, "file": {"transport": "memory"}}
GIVEN: list[tuple[dict[str, Any], int]] = [
    ({}, -40),
    ({"priority": 0}, 0),
    ({"priority": 100}, 100),
    ({"priority": -100}, -100),
    ({"channel": "file"}, 0),
    ({"channel": "file", "priority": 7}, 7),
]
"""What a draft asks for, and the priority of its message."""


def in_a_session(house: House, asked: dict[str, Any]) -> Message:
    with callers_engine(house.database, table=False) as engine, Session(engine) as session:
        message = house.submit(session=session, **asked)
        session.commit()
        return message


def of_many(house: House, asked: dict[str, Any], *, atomic: bool = False) -> Message:
    [message] = house.dispatcher.submit_many([draft(**asked)], atomic=atomic)
    assert isinstance(message, Message)
    return message


WAYS: dict[str, Callable[[House, dict[str, Any]], Message]] = {
    "submit": lambda house, asked: house.submit(**asked),
    "keyed": lambda house, asked: house.submit(idempotency_key="k", **asked),
    "many": of_many,
    "atomic": lambda house, asked: of_many(house, asked, atomic=True),
    "session": in_a_session,
}


@pytest.mark.every_database
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_message_has_the_priority_of_its_draft_else_that_of_its_channel(
    build: Build, way: Callable[[House, dict[str, Any]], Message]
) -> None:
    house = build(channels=CHANNELS)
    for asked, priority in GIVEN:
        made = way(house, {"send_at": FAR + HOUR} | asked)
        assert made.priority == house.again(made).priority == priority, asked
        moved = house.dispatcher.reschedule(made.id, send_in=HOUR)
        assert moved.priority == priority, asked
        house.dispatcher.cancel(made.id)


@pytest.mark.parametrize("priority", ["101", "-101", "high", "1.5", ""])
def test_a_priority_that_no_channel_can_have_is_refused(priority: str) -> None:
    with pytest.raises(InvalidSettings, match=r"channels\.memory\.priority"):
        Settings.load(channels={"memory": {"transport": "memory", "priority": priority}})


@pytest.mark.every_database
def test_scheduled_messages_get_another_priority_and_keep_what_they_booked(house: House) -> None:
    messages = [house.submit(f"r{n}", send_at=FAR + HOUR, priority=-5) for n in range(4)]
    house.dispatcher.cancel(messages[1].id)
    house.change([messages[2]], status="sent", finished_at=house.database_time())
    booked, nobody = house.all_members(), new_id()
    tokens = [house.columns(message, "move_token") for message in messages]
    first = str(messages[0].id)
    ids: list[UUID | str] = [*(message.id for message in messages), nobody, first]
    for priority in (100, 100, -100):
        answers = house.dispatcher.update_many(ids, priority=priority)
        assert [
            answer.priority if isinstance(answer, Message) else type(answer) for answer in answers
        ] == [priority, TooLate, TooLate, priority, MessageNotFound, priority]
        assert [house.again(message).priority for message in messages] == [
            priority, -5, -5, priority,
        ]  # fmt: skip
        assert [answers[n] for n in (0, 3)] == [house.again(messages[n]) for n in (0, 3)]
    now = [house.columns(message, "move_token") for message in messages]
    assert [token == before for token, before in zip(now, tokens, strict=True)] == [
        False, True, True, False,
    ]  # fmt: skip
    assert house.all_members() == booked
    assert not house.dispatcher.verify_windows().differences
    assert house.dispatcher.update_many([], priority=0) == []
    with pytest.raises(InvalidDraft):
        house.dispatcher.update_many([messages[0].id, "4711"], priority=0)


@pytest.mark.every_database
def test_one_message_gets_another_priority_or_another_body(house: House) -> None:
    message = house.submit(send_at=FAR + HOUR)
    update = house.dispatcher.update
    changed = update(str(message.id), priority=7)
    assert changed == replace(message, priority=7) == house.again(message)
    edited: dict[str, Any] = {"body": {"text": "edited"}}
    wrongs: list[tuple[dict[str, Any], str]] = [
        ({}, "body"), ({"priority": 1.5}, "priority"), ({"priority": 101} | edited, "priority"),
        ({"priority": 8, "body": "x"}, "body"), ({"priority": 8, "template": "t"}, "template"),
        ({"priority": 8, "data": {}}, "data"),
    ]  # fmt: skip
    for wrong, field in wrongs:
        with pytest.raises(InvalidDraft) as refused:
            update(message.id, **wrong)
        assert refused.value.field == field
    nothing: Any = None
    with pytest.raises(InvalidDraft, match="priority"):
        house.dispatcher.update_many([message.id], priority=nothing)
    assert house.again(message) == changed
    assert update(message.id, **edited) == replace(changed, **edited)
    both: dict[str, Any] = {"body": {"text": "urgent"}, "priority": 9}
    assert update(message.id, **both) == replace(changed, **both) == house.again(message)
    house.dispatcher.cancel(message.id)
    for priority in (7, -7):
        with pytest.raises(TooLate):
            update(message.id, priority=priority)
    with pytest.raises(MessageNotFound):
        update(new_id(), priority=7)


@pytest.mark.every_database
def test_a_message_that_waits_for_a_limit_asks_again_once_it_has_a_larger_priority(
    build: Build,
) -> None:
    """Its turn was that of its old priority; a retry waits on, and what is not due."""
    limited = {"memory": {"transport": "memory", "limits": "1/hour"}}
    house = build(clock=hour_ago(), channels=limited, quotas="9/minute")
    retried = house.submit("r0")
    house.fail_sends(TemporaryFailure("busy"))
    house.deliver(retried)
    house.change([retried], next_attempt_at=house.database_time() + HOUR)  # however slow this runs
    raised, lowered, same = (house.submit(f"r{n}") for n in range(1, 4))
    to_come = house.submit("r4", send_in=3 * HOUR)
    others = [retried, lowered, same, to_come]
    for message in (lowered, same, raised):
        house.deliver(message)
    now, before = house.database_time(), [house.again(message) for message in others]
    assert all(message.next_attempt_at > now for message in before)
    assert house.again(raised).next_attempt_at > now + 2.5 * HOUR

    house.dispatcher.update_many([raised.id, retried.id, to_come.id], priority=50)
    house.dispatcher.update_many([lowered.id], priority=-50)
    house.dispatcher.update_many([same.id], priority=0)
    after = [house.again(message).next_attempt_at for message in others]
    assert after == [message.next_attempt_at for message in before]
    assert house.again(raised).next_attempt_at <= house.database_time()
    [enqueue_at] = house.columns(raised, "enqueue_at")
    assert enqueue_at <= house.database_time()
    house.deliver(raised)  # it waits again, before the others
    turn = house.again(raised).next_attempt_at
    assert house.database_time() < turn < house.again(same).next_attempt_at - HOUR / 2


def test_a_kept_place_stays_taken_whatever_the_priority_becomes(build: Build) -> None:
    """The quota is 2 an hour, for a priority below 50 only 1; what is booked is judged no more."""
    channels = {"memory": {"transport": "memory"}, "codes": {"transport": "memory", "priority": 60}}
    house = build(channels=channels, quotas=["2/hour, 1 kept for priority >= 50"])
    dispatcher, at = house.dispatcher, FAR + 5 * HOUR
    slots: list[tuple[dict[str, Any], timedelta]] = [
        ({}, HOUR), ({"priority": 49}, HOUR), ({"priority": 50}, NOTHING),
        ({"channel": "codes"}, NOTHING), ({"channel": "codes", "priority": 0}, HOUR),
    ]  # fmt: skip
    low = house.submit(send_at=at)
    for asked, later in slots:
        assert dispatcher.next_slot(recipient="ada", after=at, **asked) == at + later, asked
        if later:
            with pytest.raises(QuotaExceeded):
                house.submit(send_at=at, **asked)
    high = house.submit(send_at=at, priority=50)
    booked = house.members()
    for first, second in ((0, 0), (100, 100), (-100, 50)):
        dispatcher.update(low.id, priority=first)
        dispatcher.update(high.id, priority=second)
        assert house.members() == booked
        assert not dispatcher.verify_windows().differences
    house.redis.flushall()
    house.open()
    assert house.members() == booked

    soon = at + HOUR / 2
    dispatcher.update(high.id, priority=49)
    with pytest.raises(QuotaExceeded):
        dispatcher.reschedule(high.id, send_at=soon)
    assert house.members() == booked
    dispatcher.update(high.id, priority=50)
    assert dispatcher.reschedule(high.id, send_at=soon).send_at == soon


def test_a_status_message_has_the_priority_of_its_channel(build: Build) -> None:
    channels = CHANNELS | {
        "status": {"transport": "webhook", "options": {"payload": "body"}, "priority": 30}
    }
    house = build(channels=channels, status_channel="status")
    told = house.submit(send_at=FAR + HOUR, status_url="https://shop.example/")
    house.dispatcher.cancel(told.id)
    house.parts.sweep.notify()
    [status] = house.dispatcher.select(channel="status")
    assert status.priority == 30

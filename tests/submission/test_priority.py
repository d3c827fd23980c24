"""The priority of messages: given, else the channel's; stored, shown, kept and changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.orm import Session

from dispatcher import InvalidSettings, Message, Settings
from dispatcher.reservation.booking import BookingRequest
from tests.support.callers import callers_engine
from tests.support.house import FAR, House, draft
from tests.support.house_fixtures import Build

HOUR = timedelta(hours=1)
CHANNELS = {
    "memory": {"transport": "memory", "priority": -40},
    "file": {"transport": "memory"},
}
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


def test_what_is_booked_and_moved_is_judged_by_the_priority(build: Build) -> None:
    house = build(channels=CHANNELS)
    judged: list[int] = []

    def noting(call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(requests: Sequence[BookingRequest], **more: Any) -> Any:
            judged.extend(request.terms.priority for request in requests)
            return call(requests, **more)

        return noted

    parts = house.parts
    house.between(
        "own_transaction", "reservations", instead={"reserve": noting(parts.reserver.reserve)}
    )
    house.between("moves", "windows", instead={"move_many": noting(parts.windows.move_many)})
    for recipient, priority in (("ada", None), ("ben", 60)):
        message = house.submit(recipient, send_at=FAR + HOUR, priority=priority)
        house.dispatcher.reschedule(message.id, send_in=2 * HOUR)
    assert judged == [-40, -40, 60, 60]


@pytest.mark.parametrize("priority", ["101", "-101", "high", "1.5", ""])
def test_a_priority_that_no_channel_can_have_is_refused(priority: str) -> None:
    with pytest.raises(InvalidSettings, match=r"channels\.memory\.priority"):
        Settings.load(channels={"memory": {"transport": "memory", "priority": priority}})

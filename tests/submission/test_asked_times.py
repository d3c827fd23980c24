"""A message that was shifted remembers the time that was asked for, whichever way it came."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from dispatcher import Draft, Message
from dispatcher.submission import submitter
from tests.support.house import BODY, FAR, House

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
LATER = FAR + HOUR

pytestmark = pytest.mark.every_database


def shifted_by(house: House, way: str) -> Message:
    """Ask for a time that is taken, and return what is booked a minute later."""
    if way == "reschedule":
        other = house.submit(send_at=LATER + HOUR)
        return house.dispatcher.reschedule(other.id, send_at=LATER, on_conflict="shift")
    draft = Draft(channel="memory", recipient="ada", body=BODY, send_at=LATER, on_conflict="shift")
    if way == "submit_many":
        [found] = house.dispatcher.submit_many([draft])
        assert isinstance(found, Message)
        return found
    if way == "session":
        with house.database.engine.connect().execution_options(
            isolation_level="SERIALIZABLE"
        ) as connection:
            message = house.submit(send_at=LATER, on_conflict="shift", session=connection)
            connection.commit()
        return message
    return house.submit(send_at=LATER, on_conflict="shift")


@pytest.mark.parametrize("way", ["submit", "submit_many", "session", "reschedule"])
def test_a_shift_remembers_what_was_asked_for(house: House, way: str) -> None:
    first = house.submit(send_at=LATER)
    shifted = shifted_by(house, way)
    assert house.again(first).asked_at is None
    stored = house.again(shifted)
    assert (stored.send_at, stored.asked_at) == (LATER + MINUTE, LATER)
    assert shifted == stored


def test_a_repeat_by_a_length_was_not_shifted(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its length counts from the repeat, and the reservation is that of the first submit."""

    def interrupted(name: str) -> None:
        if name == "submit.after_reserve":
            raise KeyboardInterrupt

    asked: dict[str, Any] = {"send_in": HOUR, "send_at": None, "idempotency_key": "k"}
    with monkeypatch.context() as patched, suppress(KeyboardInterrupt):
        patched.setattr(submitter, "fault", interrupted)
        house.submit(**asked)
    [members] = house.all_members().values()
    house.moved.set_wall(house.moved.now() + MINUTE)
    message = house.submit(**asked)
    assert message.id in members
    assert (message.asked_at, house.again(message).asked_at) == (None, None)


def test_a_move_to_a_time_that_fits_forgets_it(house: House) -> None:
    house.submit(send_at=LATER)
    shifted = house.submit(send_at=LATER, on_conflict="shift")
    moved = house.dispatcher.reschedule(shifted.id, send_at=LATER + HOUR)
    assert (moved.asked_at, house.again(moved).asked_at) == (None, None)

"""A message that names how long after its time it is still of use, also where it was shifted."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from dispatcher import InvalidSendTime, Message
from tests.submission.test_idempotency import WAYS
from tests.support.house import FAR, House
from tests.support.house_fixtures import Build

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
LATER = FAR + 10 * MINUTE
CHANNELS: dict[str, Any] = {
    "memory": {"transport": "memory"},
    "codes": {"transport": "memory", "expire_after": "10 minutes"},
}


@pytest.mark.every_database
@pytest.mark.parametrize("way", WAYS)
def test_it_counts_from_the_time_that_was_booked(house: House, way: str) -> None:
    first = house.submit(send_at=LATER)
    asked = {"send_at": LATER, "on_conflict": "shift", "expire_after": MINUTE / 2}
    shifted = WAYS[way](house, asked)
    assert isinstance(shifted, Message)
    assert shifted.send_at == LATER + MINUTE, "a shift does not have to end before it"
    assert shifted.expires_at == LATER + MINUTE * 1.5
    assert house.again(shifted) == shifted
    assert (shifted.expire_after, shifted.asked_at) == (MINUTE / 2, LATER)
    assert house.again(first).asked_at is None


def test_the_channel_has_a_length_for_messages_without_an_expiry(build: Build) -> None:
    house = build(channels=CHANNELS)
    coded = {"channel": "codes", "send_at": LATER}
    assert house.submit("ada", **coded).expires_at == LATER + 10 * MINUTE
    assert house.submit("ben", **coded, expire_after=HOUR).expires_at == LATER + HOUR
    fixed = house.submit("cyd", **coded, expires_at=LATER + DAY)
    assert (fixed.expires_at, fixed.expire_after) == (LATER + DAY, None)
    assert house.submit("dan", send_at=LATER).expires_at is None


@pytest.mark.every_database
def test_a_reschedule_moves_it_along(house: House) -> None:
    message = house.submit(send_at=LATER, expire_after=HOUR)
    house.submit(send_at=LATER + DAY)
    moved = house.dispatcher.reschedule(message.id, send_at=LATER + DAY, on_conflict="shift")
    assert (moved.send_at, moved.asked_at) == (LATER + DAY + MINUTE, LATER + DAY)
    assert moved.expires_at == moved.send_at + HOUR
    longer = house.dispatcher.reschedule(message.id, send_at=LATER, expire_after=2 * HOUR)
    assert (longer.expires_at, longer.expire_after) == (LATER + 2 * HOUR, 2 * HOUR)
    assert (longer.asked_at, house.again(longer).asked_at) == (None, None)


def test_a_reschedule_may_fix_an_expiry_or_a_length(house: House) -> None:
    message = house.submit(send_at=LATER, expire_after=HOUR)
    fixed = house.dispatcher.reschedule(message.id, send_at=LATER, expires_at=LATER + DAY)
    assert (fixed.expires_at, fixed.expire_after) == (LATER + DAY, None)
    stays = house.dispatcher.reschedule(message.id, send_at=LATER + HOUR)
    assert stays.expires_at == LATER + DAY
    again = house.dispatcher.reschedule(message.id, send_at=LATER, expire_after=HOUR)
    assert (again.expires_at, again.expire_after) == (LATER + HOUR, HOUR)
    with pytest.raises(InvalidSendTime, match="expire_after"):
        house.dispatcher.reschedule(
            message.id, send_at=LATER, expires_at=LATER + DAY, expire_after=HOUR
        )
    assert house.again(message) == again


def test_a_message_of_before_the_channel_had_a_length_keeps_none(build: Build) -> None:
    before = build(channels={"codes": {"transport": "memory"}})
    message = before.submit(channel="codes", send_at=LATER)
    house = build(channels=CHANNELS, opened=False)
    assert house.dispatcher.reschedule(message.id, send_at=LATER + HOUR).expires_at is None


def test_settings_of_the_channel_are_no_part_of_the_fingerprint(build: Build) -> None:
    before = build(channels={"codes": {"transport": "memory"}})
    asked: dict[str, Any] = {"channel": "codes", "send_at": LATER, "idempotency_key": "key"}
    first = before.submit(**asked)
    careful = {"codes": CHANNELS["codes"] | {"on_unknown": "hold"}}
    assert build(channels=careful, opened=False).submit(**asked) == first

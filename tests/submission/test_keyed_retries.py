"""The same keyed call again gets its message, also when the times it names have passed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from dispatcher import IdempotencyConflict, InvalidSendTime, Message
from tests.support.doubles import Between, once
from tests.support.house import FAR, House
from tests.support.house_fixtures import Build

MINUTE = timedelta(minutes=1)
WISHES: dict[str, dict[str, Any]] = {
    "expires_at": {"expires_at": FAR + 10 * MINUTE},
    "expires_at as text": {"expires_at": (FAR + 10 * MINUTE).isoformat()},
    "latest": {"on_conflict": "shift", "latest": FAR + 10 * MINUTE},
    "both": {
        "on_conflict": "shift",
        "latest": FAR + 9 * MINUTE,
        "expires_at": FAR + 10 * MINUTE,
    },
}
of_each_kind = pytest.mark.parametrize("wish", WISHES.values(), ids=WISHES)


def keyed(house: House, wish: dict[str, Any], **more: Any) -> Message:
    asked: dict[str, Any] = {"send_in": 5 * MINUTE, "idempotency_key": "key"}
    return house.submit(**asked | wish | more)


@of_each_kind
@pytest.mark.parametrize("minutes", [1, 7, 60 * 24 * 20])
def test_the_same_call_returns_the_stored_message_whenever_it_comes(
    house: House, wish: dict[str, Any], minutes: int
) -> None:
    first = keyed(house, wish)
    before = house.snapshot()
    house.moved.advance(minutes * MINUTE)
    assert keyed(house, wish) == first
    assert house.snapshot() == before


@of_each_kind
def test_other_content_is_a_conflict_also_when_the_time_has_passed(
    house: House, wish: dict[str, Any]
) -> None:
    first = keyed(house, wish)
    before = house.snapshot()
    house.moved.advance(60 * MINUTE)
    for more in (
        {"body": {"text": "other"}},
        {"recipient": "ben"},
        {"send_in": 6 * MINUTE},
        {"expires_at": FAR + 11 * MINUTE},
    ):
        with pytest.raises(IdempotencyConflict) as caught:
            keyed(house, wish, **more)
        assert caught.value.message_id == first.id
    assert house.snapshot() == before


@of_each_kind
@pytest.mark.parametrize("key", [None, "other key"])
def test_without_a_stored_message_a_time_that_has_passed_is_refused(
    house: House, wish: dict[str, Any], key: str | None
) -> None:
    keyed(house, wish)
    before = house.snapshot()
    house.moved.advance(60 * MINUTE)
    with pytest.raises(InvalidSendTime) as caught:
        keyed(house, wish, recipient="ben", idempotency_key=key)
    assert caught.value.field in ("expires_at", "latest")
    assert house.snapshot() == before


def test_times_that_never_fitted_together_are_refused_before_anything_is_asked(
    house: House,
) -> None:
    before = house.snapshot()
    for wish in (
        {"expires_at": FAR + MINUTE},
        {"on_conflict": "shift", "latest": FAR + MINUTE},
        {"latest": FAR + 10 * MINUTE},
        {"on_conflict": "later"},
    ):
        with pytest.raises(ValueError, match="accepted"):
            keyed(house, wish)
    assert house.snapshot() == before


def test_a_repeat_that_overtakes_the_first_call_still_gets_one_message(build: Build) -> None:
    house, other = build(), build()
    wish = WISHES["expires_at"]
    won: list[Message] = []
    race = once(lambda: won.append(keyed(other, wish)))
    house.swap("messages", Between(house.parts.messages, before={"add": race}))
    first = keyed(house, wish)
    assert won == [first]
    assert house.reservations() == house.all_members()

"""One key, one message: repeated, changed, cancelled, and raced in the middle of a submit."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.orm import Session

from dispatcher import Draft, IdempotencyConflict, Message, QuotaExceeded, StoreUnavailable
from dispatcher.times.send_time import to_ms
from tests.support.callers import callers_engine
from tests.support.doubles import Between, once, raising
from tests.support.house import BODY, FAR, House
from tests.support.house_fixtures import Build

SOON = FAR + timedelta(minutes=1)
HOUR = timedelta(hours=1)


def keyed(house: House, **asked: Any) -> Message:
    wish: dict[str, Any] = {"send_at": SOON, "idempotency_key": "key"}
    return house.submit(**wish | asked)


@pytest.mark.every_database
def test_the_same_submit_again_returns_the_first_message(house: House) -> None:
    first = keyed(house, expires_at=SOON + HOUR, scope="s", body={"a": 1, "b": [2]})
    before = house.snapshot()
    again = keyed(
        house,
        send_at="2100-01-01T12:01:00+01:00",
        expires_at=(SOON + HOUR).isoformat(),
        scope="s",
        body={"b": (2,), "a": 1},
    )
    assert again == first
    assert house.snapshot() == before
    assert house.members("s") == {first.id: to_ms(SOON)}


@pytest.mark.parametrize(
    "other",
    [
        {"recipient": "ben"},
        {"channel": "file"},
        {"body": {"text": "other"}},
        {"body": {}},
        {"scope": "family"},
        {"send_at": SOON + HOUR},
        {"send_at": None, "send_in": timedelta(minutes=1)},
        {"expires_at": SOON + HOUR},
        {"zone": "Europe/Berlin"},
        {"quiet_hours": "21:00-08:00"},
        {"quiet_hours": "none"},
        {"send_window": "09:00-17:00"},
    ],
    ids=str,
)
def test_the_key_with_other_content_is_a_conflict_and_leaves_nothing(
    house: House, other: dict[str, Any]
) -> None:
    first = keyed(house)
    before = house.snapshot()
    with pytest.raises(IdempotencyConflict) as caught:
        keyed(house, **other)
    assert (caught.value.key, caught.value.message_id) == ("key", first.id)
    assert "key" in str(caught.value)
    assert str(first.id) in str(caught.value)
    assert house.snapshot() == before


WAYS: dict[str, Callable[[House, dict[str, Any]], object]] = {
    "submit": lambda house, asked: keyed(house, **asked),
    "many": lambda house, asked: one_of_many(house, **asked),
    "atomic": lambda house, asked: one_of_many(house, atomic=True, **asked),
    "session": lambda house, asked: in_a_session(house, **asked),
}


def one_of_many(house: House, *, atomic: bool = False, **asked: Any) -> Message:
    wish: dict[str, Any] = {"send_at": SOON, "idempotency_key": "key"}
    draft = Draft(**{"channel": "memory", "recipient": "ada", "body": BODY} | wish | asked)
    [result] = house.dispatcher.submit_many([draft], atomic=atomic)
    if isinstance(result, Message):
        return result
    raise result.error


def in_a_session(house: House, **asked: Any) -> Message:
    with callers_engine(house.database, table=False) as engine, Session(engine) as session:
        message = keyed(house, session=session, **asked)
        session.commit()
        return message


@pytest.mark.parametrize("way", WAYS)
def test_zone_and_hours_are_content_whichever_way_it_is_submitted(house: House, way: str) -> None:
    zoned = {"zone": "Asia/Tokyo", "quiet_hours": "21:00-08:00"}
    first = WAYS[way](house, zoned)
    before = house.snapshot()
    alike = [
        zoned,
        {"zone": "Asia/Tokyo", "send_window": "08:00-21:00"},
        {"zone": "Asia/Tokyo", "quiet_hours": "mon-sun 21:00-08:00"},
    ]
    for asked in alike:
        assert WAYS[way](house, asked) == first
    for asked in ({}, zoned | {"zone": "Asia/Seoul"}, zoned | {"quiet_hours": "22:00-08:00"}):
        with pytest.raises(IdempotencyConflict):
            WAYS[way](house, asked)
    assert house.snapshot() == before


def test_a_length_from_now_asked_for_twice_is_one_wish(house: House) -> None:
    wish: dict[str, Any] = {"send_at": None, "send_in": timedelta(minutes=5)}
    first = keyed(house, **wish)
    house.moved.advance(timedelta(minutes=3))
    assert keyed(house, **wish) == first
    assert first.send_at == FAR + timedelta(minutes=5)
    with pytest.raises(IdempotencyConflict):
        keyed(house, send_at=None, send_in=timedelta(minutes=4))


def test_a_shifted_message_comes_back_at_the_time_it_was_shifted_to(house: House) -> None:
    house.submit(send_at=SOON)
    first = keyed(house, on_conflict="shift")
    assert first.send_at == SOON + timedelta(minutes=1)
    assert keyed(house, on_conflict="shift") == first
    assert len(house.members()) == 2


def test_the_key_still_answers_when_its_time_has_passed(house: House) -> None:
    first = keyed(house)
    house.moved.advance(timedelta(minutes=2))
    assert keyed(house) == first


def test_a_refused_submit_does_not_use_its_key_up(house: House) -> None:
    house.submit(send_at=SOON)
    before = house.snapshot()
    with pytest.raises(QuotaExceeded):
        keyed(house)
    assert house.snapshot() == before
    assert keyed(house, send_at=SOON + HOUR).send_at == SOON + HOUR


def test_other_content_under_way_in_the_same_scope_is_a_conflict(build: Build) -> None:
    house, other = build(), build()
    conflict = pytest.raises(IdempotencyConflict)

    def race() -> None:
        with conflict:
            keyed(other, body={"text": "other"})

    house.swap("messages", Between(house.parts.messages, before={"add": once(race)}))
    first = keyed(house)
    assert house.reservations() == house.all_members() == {"ada": {first.id: to_ms(SOON)}}


@pytest.mark.every_database
@pytest.mark.parametrize("same_shard", [True, False])
def test_the_same_key_for_another_scope_in_the_middle_of_a_submit_has_one_winner(
    build: Build, same_shard: bool
) -> None:
    house, other = build(), build()
    scopes = (f"scope {n}" for n in range(100))
    scope = next(each for each in scopes if (house.keys(each) == house.keys("ada")) == same_shard)
    answers: list[Message | IdempotencyConflict] = []

    def race() -> None:
        try:
            answers.append(keyed(other, scope=scope))
        except IdempotencyConflict as conflict:
            answers.append(conflict)

    house.swap("messages", Between(house.parts.messages, before={"add": once(race)}))
    try:
        answers.append(keyed(house))
    except IdempotencyConflict as conflict:
        answers.append(conflict)
    won = next(each for each in answers if isinstance(each, Message))
    lost = next(each for each in answers if isinstance(each, IdempotencyConflict))
    assert lost.message_id == won.id
    assert house.reservations() == house.all_members() == {won.scope: {won.id: to_ms(SOON)}}


@pytest.mark.parametrize("first_fails", [True, False])
def test_a_failing_duplicate_does_not_take_the_place_of_a_succeeding_one(
    build: Build, first_fails: bool
) -> None:
    house, duplicate = build(), build()
    failure = raising(StoreUnavailable("an SQL error"))
    won: list[Message] = []

    def succeed() -> None:
        won.append(keyed(duplicate))

    def fail() -> None:
        with pytest.raises(StoreUnavailable):
            keyed(duplicate)

    if first_fails:

        def race_and_fail() -> None:
            succeed()
            failure()

        house.swap("messages", Between(house.parts.messages, before={"add": race_and_fail}))
        with pytest.raises(StoreUnavailable):
            keyed(house)
    else:
        duplicate.swap("messages", Between(duplicate.parts.messages, before={"add": failure}))
        house.swap("messages", Between(house.parts.messages, before={"add": once(fail)}))
        won.append(keyed(house))
    assert house.reservations() == house.all_members() == {"ada": {won[0].id: to_ms(SOON)}}
    with pytest.raises(QuotaExceeded):
        house.submit(send_at=SOON)


def test_when_all_duplicates_fail_nothing_is_left(build: Build) -> None:
    house, duplicate = build(), build()
    before = house.snapshot()
    duplicate.swap(
        "messages",
        Between(duplicate.parts.messages, before={"add": raising(StoreUnavailable("x"))}),
    )

    def both_fail() -> None:
        with pytest.raises(StoreUnavailable):
            keyed(duplicate)
        raise StoreUnavailable("an SQL error")

    house.swap("messages", Between(house.parts.messages, before={"add": once(both_fail)}))
    with pytest.raises(StoreUnavailable):
        keyed(house)
    assert house.snapshot() == before

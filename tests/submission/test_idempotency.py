"""One key, one message: repeated, changed, cancelled, and raced in the middle of a submit."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.orm import Session

from dispatcher import Draft, IdempotencyConflict, InvalidSendTime, Message, QuotaExceeded, Settings
from dispatcher.submission.validation import validate_fields
from dispatcher.times.send_time import to_ms
from tests.support.callers import callers_engine
from tests.support.doubles import Between, once
from tests.support.house import FAR, House, draft, let_graces_pass
from tests.support.house_fixtures import Build

SOON = FAR + timedelta(minutes=1)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


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


COMPARED: dict[str, Any] = {
    "channel": "file", "recipient": "ben", "body": {}, "scope": "family", "send_at": SOON + HOUR,
    "send_in": MINUTE, "expires_at": SOON + HOUR, "expire_after": HOUR, "zone": "Europe/Berlin",
    "quiet_hours": "none", "send_window": "09:00-17:00", "on_unknown": "hold", "campaign": "summer",
    "template": "code", "data": {"code": 1}, "scopes": {"tenant": "acme"}, "quotas": "none",
    "status_url": "https://shop.example/", "priority": 0, "event": "a", "offset": "-1 day",
}  # fmt: skip
NOT_COMPARED = {"idempotency_key", "fold", "on_conflict", "latest", "event_at"}
"""They say under which key, or which time is meant, which is compared itself."""


def test_two_drafts_of_one_key_must_agree_in_each_field() -> None:
    assert COMPARED.keys() | NOT_COMPARED == Draft.__dataclass_fields__.keys(), (
        "a new field: add it to `further` in validate_fields(), and here a value unlike its default"
    )
    settings = Settings.load(
        channels={
            "memory": {"transport": "memory", "without_quotas": "allowed"},
            "status": {"transport": "webhook", "options": {"payload": "body"}},
        },
        scopes={"tenant": {"quotas": "9/hour"}},
        status_channel="status",
    )

    def fingerprint_of(**asked: Any) -> str | None:
        has_time = asked.keys().isdisjoint({"send_in", "event"})
        usual = {"send_at": SOON if has_time else None, "scope": "s"}
        asked = usual | {"idempotency_key": "key"} | asked
        return validate_fields(draft(**asked), settings=settings, now=FAR).fingerprint

    for name, other in COMPARED.items():
        usual = {"template": "greeting"} if name == "template" else {}
        usual = {"event": "a"} if name == "offset" else usual
        assert fingerprint_of(**usual) != fingerprint_of(**usual | {name: other}), name


def test_the_key_with_other_content_is_a_conflict_and_leaves_nothing(house: House) -> None:
    first = keyed(house)
    before = house.snapshot()
    for other in ({"recipient": "ben"}, {"send_at": None, "send_in": MINUTE}):
        with pytest.raises(IdempotencyConflict) as caught:
            keyed(house, **other)
        assert (caught.value.key, caught.value.message_id) == ("key", first.id), other
        assert house.snapshot() == before


WAYS: dict[str, Callable[[House, dict[str, Any]], object]] = {
    "submit": lambda house, asked: keyed(house, **asked),
    "many": lambda house, asked: one_of_many(house, **asked),
    "atomic": lambda house, asked: one_of_many(house, atomic=True, **asked),
    "session": lambda house, asked: in_a_session(house, **asked),
}


def one_of_many(house: House, *, atomic: bool = False, **asked: Any) -> Message:
    wish: dict[str, Any] = {"send_at": SOON, "idempotency_key": "key"}
    [result] = house.dispatcher.submit_many([draft(**wish | asked)], atomic=atomic)
    if isinstance(result, Message):
        return result
    raise result.error


def in_a_session(house: House, **asked: Any) -> Message:
    with callers_engine(house.database, table=False) as engine, Session(engine) as session:
        message = keyed(house, session=session, **asked)
        session.commit()
        return message


def test_a_refused_submit_does_not_use_its_key_up(house: House) -> None:
    house.submit(send_at=SOON)
    before = house.snapshot()
    with pytest.raises(QuotaExceeded):
        keyed(house)
    assert house.snapshot() == before
    assert keyed(house, send_at=SOON + HOUR).send_at == SOON + HOUR


def test_a_duplicate_that_redis_forgot_is_told_of_the_message(build: Build) -> None:
    house, other = (build(quotas="9/minute") for _ in range(2))
    told: list[Message] = []

    def race() -> None:
        house.redis.delete(house.keys("ada").duplicates("key"))
        told.append(keyed(other))

    house.swap("messages", Between(house.parts.messages, before={"add": once(race)}))
    assert keyed(house) == told[0]
    let_graces_pass(house)
    assert house.reservations() == house.reconciled().all_members()


@pytest.mark.every_database
@pytest.mark.parametrize("same_shard", [True, False])
def test_the_same_key_for_another_scope_in_the_middle_of_a_submit_has_one_winner(
    build: Build, same_shard: bool
) -> None:
    house, other = build(), build()
    scopes = (f"scope {n}" for n in range(100))
    scope = next(name for name in scopes if (house.keys(name) == house.keys("ada")) == same_shard)
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
    won = next(answer for answer in answers if isinstance(answer, Message))
    lost = next(answer for answer in answers if isinstance(answer, IdempotencyConflict))
    assert lost.message_id == won.id
    assert house.reservations() == house.all_members() == {won.scope: {won.id: to_ms(SOON)}}


RELATIVE: dict[str, Any] = {"send_at": None, "send_in": 5 * MINUTE}
WISHES: dict[str, dict[str, Any]] = {
    "expires_at": {"expires_at": FAR + 10 * MINUTE},
    "expires_at as text": {"expires_at": (FAR + 10 * MINUTE).isoformat()},
    "latest": {"on_conflict": "shift", "latest": FAR + 10 * MINUTE},
    "both": {"on_conflict": "shift", "latest": FAR + 9 * MINUTE, "expires_at": FAR + 10 * MINUTE},
}
of_each_kind = pytest.mark.parametrize("wish", WISHES.values(), ids=WISHES)


@of_each_kind
@pytest.mark.parametrize("minutes", [7, 60 * 24 * 20])
def test_the_same_call_returns_the_stored_message_whenever_it_comes(
    house: House, wish: dict[str, Any], minutes: int
) -> None:
    first = keyed(house, **RELATIVE, **wish)
    before = house.snapshot()
    house.moved.advance(minutes * MINUTE)
    assert keyed(house, **RELATIVE, **wish) == first
    assert house.snapshot() == before


@of_each_kind
@pytest.mark.parametrize("key", [None, "other key"])
def test_without_a_stored_message_a_time_that_has_passed_is_refused(
    house: House, wish: dict[str, Any], key: str | None
) -> None:
    keyed(house, **RELATIVE, **wish)
    before = house.snapshot()
    house.moved.advance(60 * MINUTE)
    with pytest.raises(InvalidSendTime) as caught:
        keyed(house, **RELATIVE, **wish, recipient="ben", idempotency_key=key)
    assert caught.value.field in ("expires_at", "latest")
    assert house.snapshot() == before

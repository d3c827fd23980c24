"""Many cancels in a few round trips: what one cancel promises, for each of them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event

from dispatcher import InvalidDraft, Message, MessageNotFound, Status, StoreUnavailable, TooLate
from dispatcher.message import new_id
from tests.support.doubles import Between, raising
from tests.support.house import FAR, House, hour_ago
from tests.support.house_fixtures import Build

LATER = FAR + timedelta(hours=1)
TENANTS = {"tenant": {"quotas": ["1/hour"]}}


@pytest.mark.every_database
def test_each_is_answered_in_order_and_gives_its_quota_back(house: House) -> None:
    messages = [house.submit(f"r{n}", send_at=LATER) for n in range(5)]
    house.dispatcher.cancel(messages[1].id)
    house.change([messages[2]], status="sent", finished_at=house.database_time())
    nobody = new_id()
    ids = [*(each.id for each in messages), nobody, messages[0].id]
    answers = house.dispatcher.cancel_many(ids)
    kinds = [each.status if isinstance(each, Message) else type(each) for each in answers]
    gone = Status.CANCELLED
    assert kinds == [gone, gone, TooLate, gone, gone, MessageNotFound, gone]
    assert house.all_members() == {"r2": house.members("r2")}
    for number in (0, 1, 3, 4):
        assert house.submit(f"r{number}", send_at=LATER).send_at == LATER


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("call", ["cancel", "cancel_many"])
def test_a_message_that_is_put_back_meanwhile_is_cancelled(build: Build, call: str) -> None:
    """A worker has claimed it, and puts it back after the UPDATE that found it claimed."""
    house = build(clock=hour_ago())
    message = house.submit()
    claims, engine = house.parts.delivery.shared.claims, house.parts.database.engine
    claimed = claims.claim([message.id])

    def put_back(*given: Any) -> None:
        if claimed and given[2].startswith("UPDATE"):
            claims.put_back([(claimed.pop(), timedelta(0))], enqueue_in=timedelta(0))

    event.listen(engine, "after_cursor_execute", put_back)
    if call == "cancel":
        house.dispatcher.cancel(message.id)
    else:
        house.dispatcher.cancel_many([message.id])
    assert house.again(message).status is Status.CANCELLED


def test_every_scope_gets_its_place_back(build: Build) -> None:
    house = build(scopes=TENANTS)
    asked: dict[str, Any] = {"send_at": LATER, "scopes": {"tenant": "acme"}}
    message = house.submit(**asked)
    house.dispatcher.cancel_many([message.id])
    assert house.submit("ben", **asked).send_at == LATER


def test_it_stands_though_redis_is_away_and_reconcile_frees_the_places(build: Build) -> None:
    house = build()
    messages = [house.submit(f"r{n}", send_at=LATER) for n in range(3)]
    away = build(redis_url="redis://127.0.0.1:1", opened=False)
    answers = away.dispatcher.cancel_many([each.id for each in messages])
    assert all(isinstance(each, Message) for each in answers)
    assert len(house.all_members()) == 3
    house.parts.reconciler.reconcile()
    assert house.all_members() == {}


def test_messages_cancelled_before_the_store_failed_are_released(house: House) -> None:
    """Messages of another move token are cancelled by a statement of their own."""
    one, other = house.submit("ada", send_at=LATER), house.submit("ben", send_at=LATER)
    house.dispatcher.update(other.id, body={"text": "edited"})
    found = house.parts.messages.movables([one.id, other.id])
    tokens = {each.id: found[each.id].token for each in (one, other)}
    assert len({*tokens.values()}) == 2
    parts = vars(house.parts.cancellation)
    failing = Between(house.parts.messages, before={"cancel": raising(StoreUnavailable("away"))})
    fail_from_now = {"cancel": lambda: parts.update(_messages=failing)}
    parts["_messages"] = Between(house.parts.messages, after=fail_from_now)
    with pytest.raises(StoreUnavailable):
        house.parts.cancellation.cancel_many([*tokens], tokens=tokens)
    assert house.again(one).status is Status.CANCELLED
    assert house.all_members() == {"ben": house.members("ben")}


def test_a_store_that_is_away_says_so_and_cancels_nothing(house: House, build: Build) -> None:
    message = house.submit(send_at=LATER)
    away = build(url="sqlite:////nowhere/store.db", opened=False)
    with pytest.raises(StoreUnavailable):
        away.dispatcher.cancel_many([message.id])
    assert house.again(message).status is Status.SCHEDULED
    with pytest.raises(InvalidDraft):
        house.dispatcher.cancel_many([message.id, "4711"])
    assert house.again(message).status is Status.SCHEDULED

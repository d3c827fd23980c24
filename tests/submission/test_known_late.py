"""A duplicate submit that a batch learns of only when its draft has no slot."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from dispatcher import Draft, Message, StoreUnavailable
from dispatcher.reservation import Copies
from tests.support.doubles import Between, once
from tests.support.house import BODY, FAR
from tests.support.house_fixtures import Build

SOON = FAR + timedelta(minutes=1)
DRAFTS = [
    Draft(channel="memory", recipient="bob", body=BODY, send_at=SOON),
    Draft(channel="memory", recipient="ada", body=BODY, send_at=SOON, idempotency_key="key"),
]


@pytest.mark.parametrize("atomic", [False, True])
def test_its_message_is_the_answer_of_its_draft(build: Build, atomic: bool) -> None:
    house, other = build(), build()
    told: list[Message] = []

    def duplicate() -> None:
        told.append(other.submit("ada", send_at=SOON, idempotency_key="key"))
        house.redis.delete(house.keys("ada").duplicates("key"))

    house.swap("reserver", Between(house.parts.reserver, before={"reserve": once(duplicate)}))
    results = house.dispatcher.submit_many(DRAFTS, atomic=atomic)
    assert results[1] == told[0]
    assert len(house.rows()) == 2
    assert house.reservations() == house.all_members()


def test_a_plan_counts_it_as_known(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    house, other = build(), build()

    def duplicate() -> None:
        other.submit("ada", send_at=SOON, idempotency_key="key")
        house.redis.delete(house.keys("ada").duplicates("key"))

    real, act = Copies.reserve, once(duplicate)

    def reserve(self: Copies, *given: Any, **more: Any) -> Any:
        act()
        return real(self, *given, **more)

    monkeypatch.setattr(Copies, "reserve", reserve)
    plan = house.dispatcher.plan(DRAFTS)
    assert (plan.accepted, plan.known) == (2, 1)


@pytest.mark.parametrize("atomic", [False, True])
def test_a_store_that_cannot_be_asked_about_it_leaves_no_reservation(
    build: Build, atomic: bool
) -> None:
    house, other = build(), build()
    other.submit("ada", send_at=SOON)
    calls: list[int] = []

    def fail_the_second_time() -> None:
        calls.append(1)
        if len(calls) > 1:
            raise StoreUnavailable("away")

    own = vars(house.parts.own_transaction)
    own["_messages"] = Between(own["_messages"], before={"with_key": fail_the_second_time})
    with pytest.raises(StoreUnavailable):
        house.dispatcher.submit_many(DRAFTS, atomic=atomic)
    assert house.reservations() == house.all_members()

"""A rebuild opens the windows before it reads the permits: submits do not wait for deliveries."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta

from dispatcher import StoreUnavailable
from dispatcher.redis.keys import PermitKeys
from tests.support.doubles import Between, once, raising
from tests.support.house import House

MINUTE = timedelta(minutes=1)


def meddle(house: House, part: Between) -> None:
    vars(house.parts.reconciler)["_store"] = part


def test_submits_are_accepted_where_the_permits_cannot_be_read(slow: House) -> None:
    kept = [slow.submit(f"name {n}") for n in range(12)]
    slow.redis.flushall()
    store = vars(slow.parts.reconciler)["_store"]
    meddle(slow, Between(store, before={"permits": raising(StoreUnavailable("down"))}))
    with suppress(StoreUnavailable):
        slow.open()
    for n in range(12):
        slow.submit(f"name {n}", send_in=MINUTE)
    assert slow.places() == slow.all_members()

    assert slow.deliver(*kept) == 0, "the permit logs are not complete"
    assert slow.sent == []
    slow.redis.delete(PermitKeys(slow.settings.namespace).rebuild)  # as the marker's expiry does
    slow.open()
    slow.change(kept, next_attempt_at=slow.database_time() - timedelta(milliseconds=1))
    assert slow.deliver(*kept) == 12
    assert slow.places() == slow.all_members()


def test_submits_are_accepted_while_the_permits_are_read(slow: House) -> None:
    slow.deliver(slow.submit())
    slow.redis.flushall()
    store = vars(slow.parts.reconciler)["_store"]
    submit = once(lambda: slow.submit("ben", send_in=MINUTE))
    meddle(slow, Between(store, before={"permits": submit}))
    slow.open()
    assert len(slow.rows()) == 2
    assert slow.places() == slow.all_members()
    assert len(slow.permits()) == 1

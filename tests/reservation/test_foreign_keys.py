"""The doctor names a key of reservations that another program wrote; a rebuild deletes it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from dispatcher import Fault, ReservationsUnavailable
from dispatcher.errors import SlotRefused
from dispatcher.operations.checks import Finding, Level
from tests.support.examining import doctor_for
from tests.support.house import FAR, House, promised, windows_of
from tests.support.house_fixtures import Build, on_sqlite

pytestmark = on_sqlite
LATER = FAR + timedelta(hours=1)
TYPES: dict[str, Callable[[Any, str], object]] = {
    "string": lambda redis, key: redis.set(key, "x"),
    "list": lambda redis, key: redis.rpush(key, "x"),
    "set": lambda redis, key: redis.sadd(key, "x"),
    "hash": lambda redis, key: redis.hset(key, "x", "x"),
    "stream": lambda redis, key: redis.xadd(key, {"x": "x"}),
}


@pytest.fixture
def house(build: Build) -> House:
    """Give a house in which one message of olga is stored, and 1 a minute may be."""
    house = build(quotas="1/minute")
    house.submit("olga", send_at=LATER)
    return house


def finding(house: House) -> Finding:
    with doctor_for(house.settings, clock=house.clock) as doctor:
        return next(
            finding for finding in doctor.examine().findings if finding.check == "redis.foreign"
        )


def key_of(house: House, place: str) -> str:
    keys = house.keys("olga")
    return keys.window("olga") if place == "window" else keys.pending


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        ("string", "window"),
        ("hash", "window"),
        ("stream", "window"),
        ("list", "pending"),
        ("set", "pending"),
    ],
)
def test_a_call_fails_the_doctor_names_the_key_and_a_rebuild_deletes_it(
    house: House, kind: str, place: str
) -> None:
    assert finding(house).level is Level.OK
    key = key_of(house, place)
    house.redis.delete(key)
    TYPES[kind](house.redis, key)
    with pytest.raises(ReservationsUnavailable, match="windows rebuild") as caught:
        house.submit("olga", send_at=LATER + timedelta(hours=1))
    before = house.snapshot()
    assert "olga" not in str(caught.value)
    foreign = finding(house)
    assert foreign.level is Level.ERROR
    assert key in foreign.found
    assert "windows rebuild" in str(foreign.remedy)
    assert house.snapshot() == before
    house.dispatcher.rebuild_windows()
    assert windows_of(house) == promised(house)
    assert finding(house).level is Level.OK
    with pytest.raises(SlotRefused):
        house.submit("olga", send_at=LATER)


@pytest.mark.parametrize("what", ["type", "member"])
def test_a_verification_names_the_window(house: House, what: str) -> None:
    key = key_of(house, "window")
    if what == "type":
        house.redis.set(key, "x")
    else:
        house.redis.zadd(key, {"x": 1.0})
    differences = house.dispatcher.verify_windows().differences
    assert {(entry.fault, entry.scope) for entry in differences} == {(Fault.FOREIGN, "olga")}
    house.dispatcher.rebuild_windows()
    assert house.dispatcher.verify_windows().equal


@pytest.mark.parametrize("member", [b"x", b"x" * 20])
def test_an_entry_of_pending_that_names_no_window_is_told(house: House, member: bytes) -> None:
    pending = key_of(house, "pending")
    house.redis.zadd(pending, {member: 1.0})
    with pytest.raises(ReservationsUnavailable, match=f"{pending}; .* windows rebuild"):
        house.parts.reconciler.reconcile()
    house.dispatcher.rebuild_windows()
    house.parts.reconciler.reconcile()
    assert windows_of(house) == promised(house)

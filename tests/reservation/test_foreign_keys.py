"""A key under a window's name that the dispatcher did not write stops nothing for long."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pytest

from dispatcher import Fault, ReservationsUnavailable
from dispatcher.errors import SlotRefused
from dispatcher.operations.findings import Level
from dispatcher.reservation import foreign_keys
from dispatcher.submission import terms_for
from tests.support.all_windows import promised, windows_of
from tests.support.examining import doctor_for
from tests.support.house import FAR, House
from tests.support.house_fixtures import Build

LATER = FAR + timedelta(hours=1)
Spoil = Callable[[Any, str], object]
WINDOWS: dict[str, Spoil] = {
    "string": lambda redis, key: redis.set(key, "x"),
    "list": lambda redis, key: redis.rpush(key, "x"),
    "set": lambda redis, key: redis.sadd(key, "x"),
    "hash": lambda redis, key: redis.hset(key, "x", "x"),
    "member that is no id": lambda redis, key: redis.zadd(key, {"x": 1.0}),
}
PENDING: dict[str, Spoil] = {
    "pending of another type": lambda redis, key: redis.set(key, "x"),
    "pending that is no id": lambda redis, key: redis.zadd(key, {"x": 1.0}),
    "pending without a window": lambda redis, key: redis.zadd(key, {b"x" * 20: 1.0}),
}


@pytest.fixture
def database_url(sqlite_template: Path, tmp_path: Path) -> str:
    """Give the URL of a migrated SQLite database."""
    path = tmp_path / "store.db"
    shutil.copy(sqlite_template, path)
    return f"sqlite:///{path}"


@pytest.fixture
def house(build: Build) -> House:
    """Give a house in which one message of olga is stored, and 1 a minute may be."""
    house = build(quotas="1/minute")
    house.submit("olga", send_at=LATER)
    return house


def found_by_doctor(house: House) -> Level:
    with doctor_for(house.settings, clock=house.clock) as doctor:
        return next(
            each.level for each in doctor.examine().findings if each.check == "redis.foreign"
        )


def turns(house: House) -> int:
    """Let the sweep turn until it succeeds, and once more; return how often it failed."""
    failed = 0
    for _ in range(4):
        try:
            house.parts.reconciler.reconcile(settle=timedelta(0))
        except ReservationsUnavailable:
            failed += 1
    return failed


def aside(house: House) -> list[bytes]:
    return cast("list[bytes]", house.redis.keys("*}:foreign:*"))


@pytest.mark.parametrize("what", [*WINDOWS, *PENDING])
def test_it_is_set_aside_and_the_windows_are_rebuilt(
    house: House, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert found_by_doctor(house) is Level.OK
    keys = house.keys("olga")
    name = keys.window("olga") if what in WINDOWS else keys.pending
    if "no id" not in what and "without" not in what:
        house.redis.delete(name)
    (WINDOWS | PENDING)[what](house.redis, name)
    with pytest.raises((SlotRefused, ReservationsUnavailable)):
        house.submit("olga", send_at=LATER)
    if what in WINDOWS:
        differences = house.dispatcher.verify_windows().differences
        assert (Fault.FOREIGN, "olga") in {(each.fault, each.scope) for each in differences}
    before = house.snapshot()
    assert found_by_doctor(house) is Level.ERROR
    assert house.snapshot() == before, "looking changes nothing"
    assert turns(house) <= 2
    assert [each.split(b":", 4)[-1] for each in aside(house)] == [name.split(":", 2)[-1].encode()]
    assert windows_of(house) == promised(house)
    assert house.dispatcher.verify_windows().equal
    assert found_by_doctor(house) is Level.WARNING
    assert "not ours" in caplog.text
    assert "olga" not in caplog.text
    with pytest.raises(SlotRefused):
        house.submit("olga", send_at=LATER)


def test_the_doctor_looks_at_a_bounded_number_of_windows(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep looks at all of them, some in each turn."""
    for name in ("olga", "ben"):
        house.redis.zadd(house.keys(name).window(name), {"x": 1.0})
    for most, seen in ((2, 2), (1, 1), (0, 0)):
        monkeypatch.setattr(foreign_keys, "_MOST_WINDOWS", most)
        assert foreign_keys.ForeignKeys(house.redis, house.parts.fence).there() == seen


def test_nothing_is_accepted_between_setting_aside_and_the_rebuild(house: House) -> None:
    key = house.keys("olga").window("ada")
    house.redis.delete(key)
    house.redis.set(key, "x")
    assert house.parts.upkeep.set_aside() == 1
    with pytest.raises(ReservationsUnavailable, match="not complete"):
        house.submit("olga", send_at=LATER)
    house.parts.reconciler.reconcile(settle=timedelta(0))
    with pytest.raises(SlotRefused):
        house.submit("olga", send_at=LATER)


def test_keys_of_the_dispatcher_are_not_set_aside(house: House) -> None:
    message = house.submit("ben", send_at=LATER)
    terms = terms_for(house.settings, scope="ben", channel="memory")
    house.parts.windows.move(message.id, terms=terms, send_at=LATER + timedelta(hours=1))
    before = house.snapshot()
    assert house.parts.upkeep.set_aside() == 0
    assert house.snapshot() == before


def test_a_foreign_entry_in_the_midst_of_much_that_is_pending_is_set_aside(house: House) -> None:
    keys = house.keys("ada")
    window = keys.window("ada").encode()
    there = {uuid4().bytes + window: float(n) for n in range(1_400)}
    house.redis.zadd(keys.pending, {**there, b"x" * 20: 700.0})
    assert turns(house) <= 2
    assert windows_of(house) == promised(house)

"""``dispatcher windows``: what it tells of differences, and how it rebuilds."""

from __future__ import annotations

import pytest

from dispatcher.message import new_id
from dispatcher.operations import verification
from dispatcher.times.send_time import to_ms
from tests.cli.conftest import Run
from tests.support.house import House

AT = "2028-01-01T11:11:11Z"


@pytest.fixture
def wrong(house: House) -> House:
    """Give a house in which ada's place is gone and somebody unknown has one."""
    message = house.submit(send_at=AT)
    house.submit("ben", send_at=AT)
    house.redis.zrem(house.keys("ada").window("ada"), message.id.bytes)
    unknown = {new_id().bytes: to_ms(message.send_at)}
    house.redis.zadd(house.keys("[red]x").window("[red]x"), unknown)
    return house


def test_equal_ends_with_0(house: House, run: Run) -> None:
    house.submit(send_at=AT)
    ran = run("windows", "verify")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.split("\n")[0] == "1 messages and 1 reservations compared: equal"
    assert run("windows", "verify", "--json").data == {
        "equal": True,
        "messages": 1,
        "reservations": 1,
        "counts": {"missing": 0, "at another time": 0, "orphan": 0, "under way": 0, "foreign": 0},
        "closed_shards": [],
        "differences": [],
    }


def test_differences_end_with_1_and_are_named(
    wrong: House, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "_BETWEEN_LOOKS_SECONDS", 0.01)
    before = wrong.snapshot()
    ran = run("windows", "verify")
    assert ran.code == 1
    for part in ("not equal", "1 missing", "1 orphan", "ada", "[red]x"):
        assert part in ran.out
    as_json = run("windows", "verify", "--json")
    assert as_json.code == 1
    faults = {(each["fault"], each["scope"]) for each in as_json.data["differences"]}
    assert faults == {("missing", "ada"), ("orphan", "[red]x")}
    [missing] = [each for each in as_json.data["differences"] if each["fault"] == "missing"]
    assert (missing["send_at"], missing["booked_at"]) == ("2028-01-01T11:11:11.000Z", None)
    assert wrong.snapshot() == before, "looking changes nothing"


def test_a_closed_shard_is_not_equal(house: House, run: Run) -> None:
    house.redis.delete(house.keys("ada").epoch)
    ran = run("windows", "verify")
    assert ran.code == 1
    assert f"not complete, so not judged: shards {house.keys('ada').shard}" in ran.out


def test_rebuild_puts_everything_right(
    wrong: House, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISPATCHER_SETTLE", "0.05")
    ran = run("windows", "rebuild", "--yes")
    assert (ran.code, ran.err) == (0, "")
    assert "4 of 4 shards rebuilt" in ran.out
    assert run("windows", "verify").code == 0
    assert wrong.reservations() == wrong.all_members()


def test_rebuild_exits_with_1_where_another_process_rebuilds_a_shard(
    house: House, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISPATCHER_SETTLE", "0.05")
    assert house.parts.upkeep.close([2]) is not None
    ran = run("windows", "rebuild", "--yes")
    assert ran.code == 1
    assert "3 of 4 shards rebuilt" in ran.out
    assert "another process" in ran.out
    again = run("windows", "rebuild", "--yes", "--shard", "1", "--json")
    assert (again.code, again.data) == (0, {"wanted": 1, "rebuilt": [1]})

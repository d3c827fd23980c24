"""``dispatcher zones``: what new rules of a zone make wrong, for people and programs."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.cli.conftest import Run
from tests.support.house import House
from tests.support.zone_rules import change_rules

BERLIN, HOUR = "Europe/Berlin", timedelta(hours=1)


def test_what_is_wrong_is_listed_and_moved_as_far_as_quotas_let_it(
    house: House, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = house.submit("ada", send_at="2028-07-03T09:00", zone=BERLIN)
    event = house.dispatcher.events.set("a:17", "2028-07-03T09:00", BERLIN)
    assert run("zones", "check").out == "every local time that was asked for is met\n"
    change_rules(monkeypatch, {BERLIN: "Africa/Lagos"})
    in_the_way = house.submit("ada", send_at=first.send_at + HOUR)

    listed = run("zones", "check")
    for part in (str(first.id), "a:17", "2028-07-03T09:00:00.000 Europe/Berlin", "T08:00:00.000Z"):
        assert part in listed.out
    assert listed.out.endswith("1 messages and 1 events would miss their local time\n")
    assert listed.code == 1
    lines = run("zones", "check", "--json").lines
    assert [line["event"] for line in lines] == ["a:17", None]
    assert lines[1] == {
        "id": str(first.id), "event": None, "zone": BERLIN, "wish": "2028-07-03T09:00:00.000",
        "at": "2028-07-03T07:00:00.000Z", "means": "2028-07-03T08:00:00.000Z",
        "now": None, "refused": None,
    }  # fmt: skip

    repaired = run("zones", "repair")
    assert "does not fit the quota" in repaired.out
    assert repaired.out.endswith(
        "0 messages and 1 events were moved\n1 messages and 0 events were refused, and stay\n"
    )
    assert repaired.code == 1
    assert house.dispatcher.events.get("a:17").at == event.at + HOUR
    [refused] = run("zones", "repair", "--json").lines
    assert "does not fit the quota" in refused["refused"]
    shifted = run("zones", "repair", "--on-conflict", "shift", "--json")
    assert (shifted.data["now"], shifted.code) == ("2028-07-03T08:01:00.000Z", 0)
    assert run("zones", "check").code == 0
    assert house.again(in_the_way).send_at == in_the_way.send_at

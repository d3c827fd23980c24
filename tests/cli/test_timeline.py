"""The table of a timeline: what it tells, and without colour."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest

from dispatcher.times.send_time import as_text
from tests.cli.conftest import Run, house_with
from tests.support.house import House

BERLIN = "Europe/Berlin"
DAY = datetime(2028, 3, 25, 8, tzinfo=UTC)
"""The day before the clocks of Berlin go forward."""
ADA = ("timeline", "ada", "--start", DAY.isoformat())


def rows(lines: list[str]) -> dict[str, list[str]]:
    """Return the words behind each local time of the first day."""
    cells: dict[str, list[str]] = {}
    for line in lines:
        if match := re.match(r"\w{3} \d\d \w{3} (\d\d:\d\d) +(.*)", line):
            cells.setdefault(match[1], match[2].split())
    return cells


@pytest.fixture
def busy(house: House) -> House:
    """Give a house in which ada is booked at 10:00 and 10:30, five times at 12, and at 15:00."""
    for minutes in (0, 30, 120, 125, 130, 135, 140, 300):
        house.submit(send_at=DAY + timedelta(hours=2, minutes=minutes))
    return house


def test_a_row_an_hour_with_counts_and_what_blocks(busy: House, run: Run) -> None:
    lines = run(*ADA, columns=80).out.splitlines()
    shown = rows(lines)
    assert max(map(len, lines)) <= 80
    assert shown["10:00"] == ["2", "1/1-", "2/5", "2/10"]
    assert shown["11:00"] == ["0/1-", "1/5-", "2/10"]
    assert shown["12:00"] == ["5", "1/1-", "5/5x", "7/10"], "5/hour is full until an hour after"
    assert "16:00" not in shown or "x" not in "".join(shown["16:00"])
    heading = next(line for line in lines if "1/minute" in line)
    assert heading.split() == ["from", "booked", "1/minute", "5/hour", "10/day"]
    short = run(*ADA, "--zone", BERLIN, "--hours", "12").out.splitlines()
    assert short[0] == f"ada  Sat 25 Mar 2028 09:00 to Sat 25 Mar 2028 21:00  {BERLIN}"
    assert [rows(short)[at][0] for at in ("11:00", "11:30")] == ["1", "1"], "each half an hour"


def test_the_next_free_slots_follow(busy: House, run: Run) -> None:
    start = (DAY + timedelta(hours=2)).isoformat()
    lines = run("timeline", "ada", "--start", start).out.splitlines()
    assert not any("nothing is booked" in line for line in lines)
    assert "ben: nothing is booked, at any time" in run("timeline", "ben", "--start", start).out
    slots = lines[lines.index("next free slots") + 1 :]
    assert slots[0] == "  Sat 25 Mar 10:01:00  free until Sat 25 Mar 10:29:00.001"
    assert [line[13:21] for line in slots] == ["10:01:00", "10:31:00", "13:00:00", "15:01:00"]


SMS = {"transport": "memory", "quotas": "40/hour", "recipient_quotas": "3/day in Europe/Berlin",
       "quiet_hours": "21:00-08:00"}  # fmt: skip


@house_with(channels={"sms": SMS})
def test_quiet_hours_and_the_quotas_of_a_channel_are_shown(house: House, run: Run) -> None:
    house.submit(channel="sms", send_at=DAY)
    lines = run(*ADA, "--channel", "sms", "--zone", BERLIN).out.splitlines()
    assert rows(lines)["22:00"][-2:] == ["quiet", "hours"]
    assert "40/hour of channel.sms" in " ".join(" ".join(lines).split())
    for count in ("1/3", "1/40", "1/10"):
        assert count in rows(lines)["09:00"]


def test_as_json_it_tells_everything(busy: House, run: Run) -> None:
    ran = run("timeline", "ada", "--start", DAY.isoformat(), "--days", "1", "--json")
    data = ran.data
    assert set(data) == {
        "start", "end", "zone", "priority", "complete", "windows", "quiet", "blocked", "next_slots",
    }  # fmt: skip
    [window] = data["windows"]
    assert (window["scope"], window["complete"], len(window["booked"])) == ("ada", True, 8)
    assert {booked["id"] for booked in window["booked"]} == set(map(str, busy.members()))
    assert [quota["quota"] for quota in window["quotas"]] == ["1/minute", "5/hour", "10/day"]
    minute = window["quotas"][0]
    first = DAY + timedelta(hours=2)
    assert minute["blocked"][0] == {
        "from": as_text(first - timedelta(seconds=59.999)),
        "until": as_text(first + timedelta(minutes=1)),
    }
    assert max(fill["booked"] for fill in window["quotas"][1]["fills"]) == 5
    assert data["next_slots"][0] == as_text(DAY)


def test_slots_without_a_channel_say_whose_rules_they_leave_out(
    house: House, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "without --channel the quotas and quiet hours of channels are not considered"
    commands = (["timeline", "ada"], ["next-slot", "--recipient", "ada"])
    for command in commands:
        assert said not in run(*command).out + run(*command).err
    sms = '{"sms": {"transport": "memory", "quiet_hours": "21:00-08:00"}}'
    monkeypatch.setenv("DISPATCHER_CHANNELS", sms)
    for command in commands:
        ran = run(*command)
        assert (ran.code, said in ran.out + ran.err) == (0, True)
        for ran in (run(*command, "--channel", "sms"), run(*command, "--json")):
            assert (ran.code, said in ran.out + ran.err) == (0, False)
    assert len(run("next-slot", "--recipient", "ada").out.splitlines()) == 1


@house_with(
    channels={"sms": {"transport": "memory", "recipients": "phone"}}, default_channels=False
)
def test_a_recipient_is_spelt_or_refused_as_by_a_submit(house: House, run: Run) -> None:
    ada = "+49 151 2345678"
    booked = {
        scope: house.submit(ada, channel="sms", scope=own, send_at=DAY).id
        for scope, own in ((ada, None), ("team 7", "team 7"), ("0049 7", "0049 7"))
    }
    for channel in ([], ["--channel", "sms"]):
        for scope, message_id in booked.items():
            shown = run("timeline", scope, *channel, "--start", DAY.isoformat(), "--json").data
            assert str(message_id) in str(shown["windows"]), scope
        run("timeline", "0151", *channel).is_refused(2, "recipient: no + before a country code")

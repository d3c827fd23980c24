"""When the rules of a zone change, what they make wrong is found and moved, and nothing else."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest

from dispatcher import Message, MessageChanged, ReservationsUnavailable
from dispatcher.store import wishes
from dispatcher.store.wishes import WrongTime
from dispatcher.submission.changes import NewTime
from tests.support.house import FAR, House, promised, windows_of
from tests.support.house_fixtures import Build
from tests.support.zone_rules import change_rules

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
BERLIN, TOKYO, INDIA, APIA = "Europe/Berlin", "Asia/Tokyo", "Asia/Kolkata", "Pacific/Apia"
CHANGED: dict[str, str | None] = {
    BERLIN: "Africa/Lagos",  # winter time all year: summer times are an hour later
    TOKYO: "Asia/Shanghai",  # an hour later
    INDIA: "Asia/Tokyo",  # 3.5 hours earlier
    APIA: None,  # this host lacks it
}


def local(house: House, recipient: str, at: str, zone: str = BERLIN, **more: Any) -> Message:
    return house.submit(recipient, send_at=at, zone=zone, **more)


def key(house: House, row: WrongTime) -> str:
    """A message by its recipient and wish, an event by its name."""
    if row.id is None:
        return row.event or ""
    return f"{house.dispatcher.get(row.id).recipient} {row.wish[:16]}"


def checked(house: House) -> dict[str, timedelta | None]:
    """How much later what the check lists should be."""
    rows = [*house.parts.zone_repair.check()]
    listed = {key(house, row): None if row.means is None else row.means - row.at for row in rows}
    assert len(listed) == len(rows), "nothing is listed twice"
    return listed


def repaired(house: House, **how: Any) -> dict[str, str | None]:
    rows = [*house.parts.zone_repair.repair(**{"on_conflict": "reject"} | how)]
    told = {key(house, row): row.refused for row in rows}
    assert len(told) == len(rows), "nothing is told twice"
    assert all(row.now == (row.at if row.refused else row.means) for row in rows)
    return told


def times(house: House) -> dict[tuple[UUID, str, str | None], datetime]:
    rows = house.dispatcher.select(status="scheduled")
    return {(row.id, row.recipient, row.wish): row.send_at for row in rows}


def book_wishes(house: House) -> tuple[dict[str, timedelta | None], Message]:
    """Book messages and events; return what new rules make wrong, and one that is in the way."""
    first = local(house, "summer", "2100-07-01T09:00")
    local(house, "winter", "2100-12-01T09:00")
    local(house, "twice", "2100-10-31T02:30", fold=0)
    local(house, "second", "2100-10-31T02:30", fold=1)
    house.dispatcher.cancel(local(house, "cancelled", "2100-07-01T09:00").id)
    by_hand = local(house, "by hand", "2100-07-01T09:00")
    house.dispatcher.reschedule(by_hand.id, send_at=by_hand.send_at + DAY)
    house.submit("instant", send_at=first.send_at, zone=BERLIN)
    house.submit("shifted", send_at=first.send_at)
    shifted = local(house, "shifted", "2100-07-01T09:00", on_conflict="shift")
    assert (shifted.asked_at, shifted.send_at) == (first.send_at, first.send_at + HOUR)
    for hour in (9, 10, 11):  # each moves to where the next one is
        local(house, "chain", f"2100-07-01T{hour:02}:00")
    for at in ("15:00", "18:30"):
        local(house, "earlier", f"2100-07-01T{at}", INDIA)
    local(house, "full", "2100-07-01T09:00")
    in_the_way = house.submit("full", send_at=first.send_at + 1.5 * HOUR)
    local(house, "lacking", "2100-07-01T09:00", APIA)
    near = {"soon": TOKYO, "gone": INDIA}  # within the horizon
    soon = {name: house.clock.now() + 2 * MINUTE for name in near}
    for name, zone in near.items():
        wall = soon[name].astimezone(ZoneInfo(zone)).replace(tzinfo=None).isoformat()
        local(house, name, wall, zone)
        near[name] = wall[:16]
    return {
        "summer 2100-07-01T09:00": HOUR,
        "twice 2100-10-31T02:30": HOUR,
        "shifted 2100-07-01T09:00": HOUR,
        **{f"chain 2100-07-01T{hour:02}:00": HOUR for hour in (9, 10, 11)},
        **{f"earlier 2100-07-01T{at}": -3.5 * HOUR for at in ("15:00", "18:30")},
        "full 2100-07-01T09:00": HOUR,
        "lacking 2100-07-01T09:00": None,
        f"soon {near['soon']}": HOUR,
        f"gone {near['gone']}": -3.5 * HOUR,
    }, in_the_way


def book_events(house: House) -> dict[str, timedelta | None]:
    """Book events with reminders, and a series; return what new rules make wrong."""
    events = house.dispatcher.events
    for name, at in (("july", "2100-07-05T09:00"), ("november", "2100-11-02T09:00")):
        for offset in ("-7 days", "-2 hours"):
            of = {"event": name, "event_at": at, "zone": BERLIN, "offset": offset}
            house.submit(f"{name} {offset[1]}", send_at=None, **of)
    own = house.submit("own", event="july", offset="-3 hours", send_at=None)
    house.dispatcher.reschedule(own.id, send_at="2100-12-01T12:00", set_zone=BERLIN)
    assert house.again(own).wish == "2100-12-01T12:00:00.000", "no move of its event changes it"
    events.set("cancelled", "2100-07-05T09:00", BERLIN)
    events.cancel("cancelled")
    events.set("at an instant", "2100-07-05T07:00Z", BERLIN)
    of_series = {"rule": "FREQ=DAILY;BYHOUR=9", "channel": "memory", "body": {}, "zone": TOKYO}
    house.parts.series_list.add("daily", {**of_series, "recipients": ["ada", "bob"]})
    assert house.parts.series_list.book_ahead() == 70
    occurrences = house.dispatcher.select(event="series:daily")
    return {
        "july": HOUR,
        "july 7 -7 days": HOUR,
        "july 2 -2 hours": HOUR,
        "november 7 -7 days": HOUR,  # it lies before clocks change, its event after that
        **{f"{one.recipient} {(one.wish or '')[:16]}": HOUR for one in occurrences},
    }


@pytest.mark.every_database
def test_what_new_rules_make_wrong_is_listed_moved_and_right_again(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = build(quotas="1/hour", zone=BERLIN)
    monkeypatch.setattr(wishes, "_EXAMINED", 3)
    expected, in_the_way = book_wishes(house)
    expected |= book_events(house)
    before = times(house)
    assert checked(house) == {}
    change_rules(monkeypatch, CHANGED)
    assert checked(house) == expected
    assert times(house) == before, "a check changes nothing"

    told = repaired(house)
    assert told.keys() == expected.keys() - {"july 7 -7 days", "july 2 -2 hours"}
    refused = {name: why for name, why in told.items() if why}
    says = {"full": "the quota 1/hour", "lacking": "there is no zone", "gone": "is past"}
    assert {name.split()[0] for name in refused} == says.keys()
    assert all(says[name.split()[0]] in why for name, why in refused.items()), refused
    after = times(house)
    assert after.keys() == before.keys(), "each keeps its wish"
    for message_id, name, wish in before:
        by = expected.get(f"{name} {(wish or '')[:16]}") or 0 * HOUR
        if name in says or name == "shifted":  # which stands there already
            by = 0 * HOUR
        assert after[message_id, name, wish] - before[message_id, name, wish] == by, name
    assert not any(row.asked_at for row in house.dispatcher.select(recipient="shifted"))
    assert house.dispatcher.events.get("july").wish == "2100-07-05T09:00:00.000"
    assert windows_of(house) == promised(house)
    assert house.dispatcher.verify_windows().equal
    assert house.parts.series_list.book_ahead() == 0, "occurrences keep their keys"

    assert checked(house).keys() == refused.keys()
    house.dispatcher.cancel(in_the_way.id)
    assert repaired(house)["full 2100-07-01T09:00"] is None
    assert checked(house).keys() == refused.keys() - {"full 2100-07-01T09:00"}
    change_rules(monkeypatch, {})
    refused = {name: why for name, why in repaired(house).items() if why}
    assert checked(house).keys() == refused.keys() == {"shifted 2100-07-01T09:00"}
    before.pop((in_the_way.id, "full", None))
    assert times(house) == before, "it stands where it was shifted to"


def test_a_refused_event_stays_with_its_reminders_or_is_shifted(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = build(quotas="1/hour")
    at = {"event": "e", "event_at": "2100-07-05T09:00", "zone": BERLIN, "send_at": None}
    first, second = (house.submit(f"r{n}", offset=f"-{n} hours", **at) for n in (1, 2))
    own = house.submit("own", offset="-3 hours", **at)
    house.dispatcher.reschedule(own.id, send_at="2100-12-01T12:00", set_zone=BERLIN)
    house.submit("r1", send_at=first.send_at + 1.5 * HOUR)
    change_rules(monkeypatch, CHANGED)
    told = repaired(house)
    assert told.keys() == {"e", "r1 -1 hour", "r2 -2 hours"}
    assert all("quota 1/hour" in (why or "") for why in told.values())
    assert (house.again(first).send_at, house.again(second).send_at) == (
        first.send_at, second.send_at
    )  # fmt: skip
    rows = [*house.parts.zone_repair.repair("shift")]
    assert [(row.id, row.refused) for row in rows] == [(None, None)]
    assert house.again(first).send_at == first.send_at + 2.5 * HOUR
    assert house.again(second).send_at == second.send_at + HOUR
    assert checked(house) == {}


def test_a_message_that_was_moved_meanwhile_keeps_its_new_time(house: House) -> None:
    message = local(house, "ada", "2100-07-01T09:00")
    moved = house.dispatcher.reschedule(message.id, send_at=FAR + DAY)
    [answer] = house.parts.changes.reschedule_many([message.id], NewTime(as_wished=True))
    assert isinstance(answer, MessageChanged)
    assert house.again(message).send_at == moved.send_at


def test_a_repair_ends_where_redis_does_not_answer(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is told as refused that would be moved by the next one."""
    local(house, "ada", "2100-07-01T09:00")
    change_rules(monkeypatch, CHANGED)
    house.redis.delete(*(keys.epoch for keys in house.parts.fence.keys))
    with pytest.raises(ReservationsUnavailable):
        repaired(house)
    house.open()
    assert repaired(house) == {"ada 2100-07-01T09:00": None}


def test_what_is_due_is_left_alone(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that a limit keeps back, and an event that is past."""
    message = local(house, "ada", "2100-07-01T09:00")
    house.change([message], send_at=house.database_time() - MINUTE)
    house.dispatcher.events.set("e", "2026-07-01T09:00", BERLIN)
    change_rules(monkeypatch, CHANGED)
    assert checked(house) == {}


def test_an_event_that_was_moved_to_an_instant_meanwhile_stays(house: House) -> None:
    house.dispatcher.events.set("e", "2100-07-05T09:00", BERLIN)
    house.dispatcher.events.move("e", "2100-07-06T09:00Z")
    event = house.parts.event_list.move("e", None, None, "reject", "refuse")
    assert event.at == datetime(2100, 7, 6, 9, tzinfo=UTC)

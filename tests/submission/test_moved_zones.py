"""Reschedule: ``zone`` reads local times, ``set_zone`` gives the message another zone."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from dispatcher import InvalidSendTime, QuietHours, QuotaExceeded, Status
from dispatcher.cli.output import outcome_text
from dispatcher.times.zones import known_zone
from tests.support.house import FAR, House, hour_ago
from tests.support.house_fixtures import Build

HOUR = timedelta(hours=1)
LATER = FAR + HOUR
BERLIN = "Europe/Berlin"


def settled(house: House) -> bool:
    """Whether nothing is held, and the windows are what the store says."""
    return house.reservations() == house.all_members()


def test_a_zone_that_is_set_is_what_times_are_read_and_judged_by(build: Build) -> None:
    house = build(quotas="1/day in local")
    hours = {"send_window": "09:00-17:00", "zone": "Asia/Tokyo"}
    message = house.submit(send_at="2100-01-02T10:00", **hours)
    moved = house.dispatcher.reschedule(message.id, send_at="2100-01-03T10:00", set_zone=BERLIN)
    assert moved == house.again(message)
    assert (moved.zone, moved.send_at.isoformat()) == (BERLIN, "2100-01-03T09:00:00+00:00")
    with pytest.raises(QuietHours) as refused:
        house.dispatcher.reschedule(message.id, send_at="2100-01-04T18:00")
    assert refused.value.zone == BERLIN
    again = house.dispatcher.reschedule(message.id, send_at="2100-01-04T16:00")
    assert (again.zone, again.send_at.isoformat()) == (BERLIN, "2100-01-04T15:00:00+00:00")
    assert settled(house)


@pytest.mark.parametrize("zone", ["Europe/Kyyiv", "europe/berlin", "Mars/Olympus"])
def test_a_message_whose_zone_this_host_lacks_is_listed_moved_cancelled_and_sent(
    build: Build, caplog: pytest.LogCaptureFixture, zone: str
) -> None:
    """Another host has validated it, one whose tz database is newer or ignores case."""
    known_zone.cache_clear()  # a process says it once for each zone
    house = build(quotas="1/day in local", zone="Asia/Tokyo")
    stored = [house.submit(name, send_at=FAR, zone=BERLIN) for name in ("ada", "ben")]
    with build(clock=hour_ago()) as before:
        stored.append(before.submit("eve", zone=BERLIN))
    house.change(stored, zone=zone)
    ada, ben, eve = (house.again(message) for message in stored)
    assert {message.zone for message in house.dispatcher.list()} == {zone}
    assert ada.send_at.isoformat(timespec="milliseconds")[:-6] in outcome_text(ada, with_time=True)
    moved = house.dispatcher.reschedule(ada.id, send_at=LATER, expires_at="2101-01-01T00:00Z")
    assert (moved.zone, moved.send_at) == (zone, LATER)
    assert house.dispatcher.reschedule(ada.id, later=HOUR).send_at == LATER + HOUR
    with pytest.raises(InvalidSendTime, match="neither an offset nor a zone"):
        house.dispatcher.reschedule(ada.id, send_at="2100-01-01T10:00")
    with pytest.raises(QuotaExceeded):  # the day of the settings' zone
        house.submit(send_at=LATER + HOUR, zone="Asia/Seoul")
    assert house.dispatcher.cancel(ben.id).status is Status.CANCELLED
    assert house.deliver(eve) == 1
    assert house.again(eve).status is Status.SENT
    assert settled(house)
    [told] = [record for record in caplog.records if zone in record.message]
    assert "judged by the zone of the settings" in told.message


def test_the_same_time_is_judged_anew_by_another_zone(house: House) -> None:
    message = house.submit(send_at="2100-01-02T10:00", zone="Asia/Tokyo", send_window="09:00-17:00")
    before = house.snapshot()
    with pytest.raises(QuietHours) as refused:
        house.dispatcher.reschedule(message.id, send_at=message.send_at, set_zone=BERLIN)
    assert refused.value.zone == BERLIN
    assert house.snapshot() == before
    moved = house.dispatcher.reschedule(message.id, send_at=message.send_at, set_zone="Asia/Seoul")
    assert (moved.zone, moved.send_at) == ("Asia/Seoul", message.send_at)
    assert settled(house)


def test_a_zone_that_only_reads_local_times_changes_no_message(house: House) -> None:
    hours = {"send_window": "09:00-17:00", "zone": "Asia/Tokyo"}
    message = house.submit(send_at="2100-01-02T10:00", **hours)
    moved = house.dispatcher.reschedule(message.id, send_at="2100-01-03T04:00", zone=BERLIN)
    assert (moved.zone, moved.send_at.isoformat()) == ("Asia/Tokyo", "2100-01-03T03:00:00+00:00")
    with pytest.raises(QuietHours) as refused:
        house.dispatcher.reschedule(message.id, send_at="2100-01-04T10:00", zone=BERLIN)
    assert refused.value.zone == "Asia/Tokyo"
    both = house.dispatcher.reschedule(
        message.id, send_at="2100-01-04T04:00", zone=BERLIN, set_zone="Asia/Seoul"
    )
    assert (both.zone, both.send_at.isoformat()) == ("Asia/Seoul", "2100-01-04T03:00:00+00:00")
    wrongs: list[dict[str, Any]] = [{"zone": ""}, {"set_zone": "Mars"}]
    for wrong in wrongs:
        with pytest.raises(InvalidSendTime):
            house.dispatcher.reschedule(message.id, send_in=HOUR, **wrong)
    assert settled(house)

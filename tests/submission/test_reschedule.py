"""Reschedule and update: message and reservation move together, and the row settles every race."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from threading import Event
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Connection, update

from dispatcher import (
    InvalidDraft,
    InvalidSendTime,
    Message,
    QuietHours,
    QuotaExceeded,
    Status,
    TooLate,
)
from dispatcher.cli.output import outcome_text
from dispatcher.faults import InjectedFault, arm
from dispatcher.store.messages import NewSlot
from dispatcher.store.schema import Movable
from dispatcher.times.send_time import to_ms
from dispatcher.times.zones import known_zone
from tests.support.doubles import at_once, once, raising
from tests.support.house import FAR, House, hour_ago, let_graces_pass, promised, windows_of
from tests.support.house_fixtures import Build
from tests.support.reserving import move, own_terms
from tests.support.tables import messages

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
LATER = FAR + HOUR
BERLIN = "Europe/Berlin"


@pytest.fixture
def message(house: House) -> Message:
    return house.submit(send_at=LATER)


@pytest.mark.every_database
def test_message_and_reservation_move(house: House, message: Message) -> None:
    moved = house.dispatcher.reschedule(message.id, send_at=LATER + HOUR)
    assert moved == house.again(message)
    assert (moved.send_at, moved.next_attempt_at) == (LATER + HOUR, LATER + HOUR)
    assert house.columns(moved, "enqueue_at")[0] == moved.send_at - house.settings.horizon
    assert house.members() == {message.id: to_ms(LATER + HOUR)}
    assert house.submit(send_at=LATER).send_at == LATER, "the old place is free at once"


def test_a_refused_move_changes_nothing(house: House, message: Message) -> None:
    other = house.submit(send_at=LATER + HOUR)
    before = house.snapshot()
    refusals: list[tuple[type[Exception], dict[str, Any]]] = [
        (QuotaExceeded, {"send_at": LATER + HOUR + MINUTE / 2}),
        (InvalidSendTime, {"send_at": FAR - HOUR}),
        (InvalidSendTime, {"send_at": "2099"}),
        (InvalidSendTime, {}),
        (InvalidSendTime, {"send_at": LATER, "expires_at": LATER}),
        (InvalidDraft, {"send_at": LATER, "on_conflict": "ask"}),
        (InvalidSendTime, {"send_at": "2100-06-01T10:00", "zone": "Europe/Nowhere"}),
        (InvalidSendTime, {"send_at": LATER + MINUTE, "zone": ""}),
    ]
    for kind, asked in refusals:
        with pytest.raises(kind) as refused:
            house.dispatcher.reschedule(message.id, **asked)
        if isinstance(refused.value, QuotaExceeded):
            assert refused.value.conflicting == (other.id,)
        assert house.snapshot() == before


def test_a_message_moved_within_the_horizon_is_enqueued(slow: House) -> None:
    now = slow.clock.now()
    message = slow.submit(send_at=now + 5 * HOUR)
    slow.dispatcher.reschedule(message.id, send_at=now + MINUTE / 6)
    assert slow.broker.llen("dispatcher.memory") == 1


def test_update_changes_the_body_alone(house: House, message: Message) -> None:
    updated = house.dispatcher.update(message.id, body={"text": "half past nine"})
    assert updated == house.again(message)
    assert updated.body == {"text": "half past nine"}
    assert house.reservations() == house.all_members()
    with pytest.raises(InvalidDraft):
        house.dispatcher.update(message.id, body={"n": float("inf")})


def test_an_update_asked_for_again_after_the_end_finds_its_change(house: House) -> None:
    message = house.submit()
    updated = house.dispatcher.update(message.id, body={"text": "edited"}, priority=5)
    house.dispatcher.cancel(message.id)
    again = house.dispatcher.update(message.id, body={"text": "edited"}, priority=5)
    assert (again.status, again.body) == ("cancelled", updated.body)
    for change in ({"body": {"text": "other"}}, {"priority": 6}):
        with pytest.raises(TooLate):
            house.dispatcher.update(message.id, **change)


@pytest.mark.every_database
def test_moves_of_one_message_at_once_leave_it_one_place(build: Build) -> None:
    house = build()
    message = house.submit(send_at=LATER)

    def to(hours: int) -> Callable[[], Message]:
        return lambda: house.dispatcher.reschedule(message.id, send_at=LATER + hours * HOUR)

    answers = at_once([to(hours) for hours in range(1, 9)])
    assert all(isinstance(answer, Message) for answer in answers)
    assert house.reservations() == house.all_members()


@pytest.mark.every_database
def test_a_move_waits_for_another_one_of_the_message_that_holds_the_time(
    house: House, message: Message
) -> None:
    """One that died holds it until reconcile: then the refusal names the message itself."""
    waits, is_moved = Event(), Event()
    twins: list[Future[Message]] = []

    def move() -> Message:
        return house.dispatcher.reschedule(message.id, send_at=LATER + HOUR)

    def wait() -> None:
        waits.set()
        is_moved.wait(60)

    house.between("changes", "clock", before={"sleep": wait})
    with ThreadPoolExecutor(1) as pool:

        def meet() -> None:
            twins.append(pool.submit(move))
            assert waits.wait(60)

        house.between("moves", "windows", after={"move_many": once(meet)})
        try:
            moved = move()
        finally:
            is_moved.set()
        assert twins[0].result(60) == moved
    assert house.reservations() == house.all_members()
    arm("reschedule.after_booking=raise")
    with pytest.raises(InjectedFault):
        house.dispatcher.reschedule(message.id, send_at=LATER + 2 * HOUR)
    arm(None)
    with pytest.raises(QuotaExceeded) as refused:
        house.dispatcher.reschedule(message.id, send_at=LATER + 2 * HOUR)
    assert refused.value.conflicting == (message.id,)
    assert house.again(message) == moved


def stand_still(house: House, happens: Callable[[], object]) -> None:
    """Let the next move be late when it changes the row, and this happen before."""

    def late(slots: Sequence[NewSlot]) -> dict[UUID, Movable]:
        happens()
        vars(house.parts.moves)["messages"] = store
        long_ago = [slot._replace(until=slot.before.read_at - MINUTE) for slot in slots]
        return house.parts.messages.move(long_ago)

    store = house.between("moves", "messages", instead={"move": late})


@pytest.mark.every_database
@pytest.mark.parametrize("is_rebuilt", [True, False], ids=["rebuilt", "reconciled"])
@pytest.mark.parametrize("dies", [True, False], ids=["dies", "is made again"])
def test_a_move_that_stands_still_for_too_long_takes_no_effect(
    house: House, message: Message, is_rebuilt: bool, dies: bool
) -> None:
    """Its new place is gone by the time at which it changes the row: another may have it."""
    taken: list[Message] = []

    def happens() -> None:
        if is_rebuilt:
            house.redis.flushall()
            house.open()
        else:
            past_the_grace(house)
        taken.append(house.submit(send_at=LATER + HOUR))

    stand_still(house, happens)
    if dies:
        dying = {"withdraw": raising(KeyboardInterrupt())}
        house.between("reserver", "windows", before=dying)
    error = KeyboardInterrupt if dies else QuotaExceeded
    with pytest.raises(error) as refused:
        house.dispatcher.reschedule(message.id, send_at=LATER + HOUR)
    if isinstance(refused.value, QuotaExceeded):
        assert refused.value.conflicting == (taken[0].id,)
    assert house.again(message).send_at == LATER
    past_the_grace(house)
    assert house.reservations() == house.all_members()


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
def test_both_places_stay_while_the_move_is_under_way_in_the_store(
    house: House, message: Message
) -> None:
    """Its statement has changed the row, and its transaction has not ended yet."""
    movable = house.parts.messages.movable(message.id)
    terms = own_terms(message.scope)
    moving = move(house.parts.windows, message.id, terms=terms, send_at=LATER + HOUR)
    window = house.keys(message.scope).window(message.scope)

    def work(connection: Connection) -> None:
        connection.execute(
            update(messages)
            .where(messages.c.id == message.id, messages.c.move_token == movable.token)
            .values(
                send_at=LATER + HOUR,
                next_attempt_at=LATER + HOUR,
                move_token=messages.c.move_token + 1,
                tail=moving.tail,
            )
        )
        past_the_grace(house)
        assert house.redis.zcard(window) == 2

    house.database.transact(work)
    past_the_grace(house)
    assert house.again(message).send_at == LATER + HOUR
    assert house.reservations() == house.all_members()


@pytest.mark.parametrize("lost", [0, 1, 2], ids=["first", "second", "third"])
def test_a_place_that_a_slow_move_has_lost_in_one_shard_is_restored(
    build: Build, lost: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A rebuild of that shard has read the row before its change was committed."""
    house = build(
        shards=16,
        channels={"memory": {"transport": "memory", "quotas": ["1/minute"]}},
        scopes={"tenant": {"quotas": ["1/minute"]}},
    )
    message = house.submit(send_at=LATER, scopes={"tenant": "acme"})
    windows = [*windows_of(house)]
    assert len(windows) == 3

    def lose() -> None:
        house.redis.delete(windows[lost])
        house.moved.advance(house.settings.settle + timedelta(milliseconds=1))

    def look() -> None:
        kept = [house.redis.zcard(window) for window in windows]
        assert sum(kept) == 4, "the old places stay until the new ones are surely there"

    house.between("moves", "messages", after={"move": once(lose)})
    house.between("moves", "reserver", before={"restore": look})
    moved = house.dispatcher.reschedule(message.id, send_at=LATER + HOUR)
    assert moved.send_at == LATER + HOUR
    assert "reservations that were lost while their messages moved" in caplog.text
    assert windows_of(house) == promised(house)


def past_the_grace(house: House) -> None:
    """Reconcile as if the grace were over."""
    let_graces_pass(house)
    house.open()


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
    assert house.reservations() == house.all_members()


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
    assert house.reservations() == house.all_members()
    [told] = [record for record in caplog.records if zone in record.message]
    assert "judged by the zone of the settings" in told.message


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
    assert house.reservations() == house.all_members()

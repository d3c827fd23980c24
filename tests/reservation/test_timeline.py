"""A timeline tells of every instant what the scripts would say of it."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from dispatcher import InvalidDraft, InvalidValue, ReservationsUnavailable, Timeline
from dispatcher.errors import SlotRefused
from dispatcher.message import new_id
from dispatcher.redis.keys import ShardKeys
from dispatcher.reservation import contents, timeline
from dispatcher.reservation.booking import Terms
from dispatcher.submission.validation import terms_for
from dispatcher.times.send_time import from_ms, to_ms
from tests.support.house import FAR, House
from tests.support.house_fixtures import Build, on_sqlite
from tests.support.reserving import cancel, move, own_terms, reserve

pytestmark = on_sqlite
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
HOUR_MS, DAY_MS, NEAR_MS = 3_600_000, 86_400_000, 47 * 3_600_000
BERLIN = "Europe/Berlin"
SPRING = datetime(2100, 3, 27, 12, tzinfo=UTC)
"""The day before the clocks of Berlin go forward."""

SMS = {"transport": "memory", "quotas": "6/hour, 40/day in Europe/Berlin",
       "recipient_quotas": "2/20 minute", "quiet_hours": "21:00-08:00"}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "rolling": {"quotas": "1/10 minute, 3/hour, 5/6 hour"},
    "as long as it gets in a walk": {"quotas": "40/12 hour"},
    "calendar": {"quotas": "3/hour in local, 30/day in local, 1/minute"},
    "kept": {"quotas": "1/10 minute, 4/hour, 2 kept for priority >= 5, 9/6 hour"},
    "kept and growing": {
        "quotas": "2/day growing 1.5 daily to 9/day from 2100-03-27 in local, "
        "1 kept for priority >= 5"
    },
    "a channel": {"quotas": "1/minute, 30/day", "channels": {"sms": SMS}},
}


def filled(house: House, terms: Terms, start: datetime, *, count: int, seed: int) -> None:
    """Book places at random, a third of them close together."""
    roll = random.Random(seed)  # noqa: S311 - not for secrets
    for n in range(count):
        stretch = (-DAY_MS, 3 * DAY_MS) if n % 3 else (NEAR_MS, NEAR_MS + 2 * HOUR_MS)
        at = start + timedelta(milliseconds=roll.randrange(*stretch))
        try:
            reserve(house.parts.windows, new_id(), terms=terms, send_at=at)
        except SlotRefused:
            continue


def sampled(timeline: Timeline, *, count: int, seed: int) -> set[datetime]:
    """Return instants at random, and those next to every edge."""
    roll = random.Random(seed)  # noqa: S311 - not for secrets
    length = (timeline.end - timeline.start) // timedelta(milliseconds=1)
    instants = {
        timeline.start + timedelta(milliseconds=roll.randrange(length)) for _ in range(count)
    }
    spans = [
        *timeline.quiet,
        *(span for window in timeline.windows for quota in window.quotas for span in quota.blocked),
    ]
    for edge in (edge for span in spans for edge in span):
        instants |= {edge + timedelta(milliseconds=shift) for shift in (-1, 0, 1)}
    return {instant for instant in instants if timeline.start <= instant < timeline.end}


def refused(house: House, terms: Terms, instant: datetime) -> bool:
    message_id = new_id()
    try:
        reserve(house.parts.windows, message_id, terms=terms, send_at=instant)
    except SlotRefused:
        return True
    cancel(house.parts.windows, message_id, terms)
    return False


@pytest.mark.parametrize(
    ("shape", "start"),
    [
        ("rolling", FAR),
        ("as long as it gets in a walk", FAR),
        ("calendar", SPRING),
        ("kept", FAR),
        ("kept and growing", SPRING),
        ("a channel", SPRING),
    ],
)
@pytest.mark.parametrize("priority", [0, 5])
def test_an_instant_is_blocked_exactly_when_reserve_refuses_it(
    build: Build, shape: str, start: datetime, priority: int
) -> None:
    house = build(**SHAPES[shape])
    channel = "sms" if shape == "a channel" else None
    few = 8 if shape == "kept and growing" else 0
    terms = terms_for(house.settings, scope="ada", channel=channel, zone=BERLIN, priority=priority)
    filled(house, terms._replace(priority=0), start, count=few or 90, seed=1)
    filled(house, terms._replace(priority=100), start, count=few and 2, seed=5)
    if channel:  # others take places of the channel
        others = terms_for(house.settings, scope="ben", channel=channel, zone=BERLIN)
        filled(house, others, start, count=90, seed=2)
    timeline = house.dispatcher.timeline(
        "ada", channel=channel, zone=BERLIN, start=start, priority=priority
    )
    assert timeline.complete
    assert timeline.priority == priority
    kept = [quota for window in timeline.windows for quota in window.quotas if quota.quota.kept]
    assert any(quota.full != quota.blocked for quota in kept) == (bool(kept) and priority < 5)
    instants = sampled(timeline, count=50, seed=3)
    answers = {instant: refused(house, terms, instant) for instant in instants}
    assert {True, False} <= set(answers.values())
    assert {instant: timeline.refuses(instant) for instant in instants} == answers


@pytest.mark.parametrize("shape", ["rolling", "calendar"])
def test_fills_are_what_counting_gives(build: Build, shape: str) -> None:
    house = build(**SHAPES[shape])
    terms = terms_for(house.settings, scope="ada", channel=None, zone=BERLIN)
    filled(house, terms, FAR, count=150, seed=4)
    timeline = house.dispatcher.timeline("ada", zone=BERLIN, start=FAR)
    [window] = timeline.windows
    times = sorted(house.members().values())
    for quota in window.quotas:
        length_ms = getattr(quota.quota, "length_ms", None)
        for fill in quota.fills:
            start, end = to_ms(fill.begins_at), to_ms(fill.ends_at)
            if length_ms is None:
                assert fill.booked == sum(start <= time < end for time in times) > 0
                continue
            ends = [start, *(time for time in times if start <= time < end)]
            assert fill.booked == max(
                sum(end - length_ms < time <= end for time in times) for end in ends
            )
        if length_ms is not None:
            assert [fill[:2] for fill in quota.fills] == list(timeline.steps)
    assert max(fill.booked for quota in window.quotas for fill in quota.fills) > 1


def test_the_timeline_lists_bookings_in_order_within_its_stretch(house: House) -> None:
    before = house.submit(send_at=FAR + HOUR)
    inside = [house.submit(send_at=FAR + n * HOUR) for n in (4, 2, 3)]
    after = house.submit(send_at=FAR + 5 * HOUR)
    timeline = house.dispatcher.timeline("ada", start=FAR + 2 * HOUR, length=3 * HOUR)
    [window] = timeline.windows
    assert [(booking.message_id, booking.at) for booking in window.booked] == [
        (message.id, message.send_at) for message in (inside[1], inside[2], inside[0])
    ]
    assert not {before.id, after.id} & {booking.message_id for booking in window.booked}
    assert not any(booking.held for booking in window.booked)


def test_a_place_that_is_held_counts_and_says_so(house: House) -> None:
    message = house.submit(send_at=FAR + HOUR)
    terms = own_terms("ada")
    move(house.parts.windows, message.id, terms=terms, send_at=FAR + 2 * HOUR)
    [window] = house.dispatcher.timeline("ada").windows
    assert [(booking.message_id, booking.held) for booking in window.booked] == [
        (message.id, True),
        (message.id, True),
    ]
    assert house.dispatcher.timeline("ada").refuses(FAR + 2 * HOUR)


def test_slots_begin_the_next_free_stretches(house: House) -> None:
    for minutes in (0, 10, 20, 30):
        house.submit(send_at=FAR + timedelta(minutes=minutes))
    timeline = house.dispatcher.timeline("ada", start=FAR, length=HOUR)
    assert [(slot - FAR) // timedelta(minutes=1) for slot in timeline.slots] == [1, 11, 21, 31]
    assert timeline.slots[0] == house.dispatcher.next_slot(recipient="ada", after=FAR)
    for instant in (FAR - timedelta(milliseconds=1), FAR + HOUR):
        with pytest.raises(InvalidValue, match="instant"):
            timeline.refuses(instant)
    begun = house.dispatcher.timeline("ada", start=FAR - HOUR, length=HOUR)
    assert begun.slots == timeline.slots[:1], "still to come"
    for slot in timeline.slots:
        assert not timeline.refuses(slot)
        assert timeline.refuses(slot - timedelta(milliseconds=1))


def test_a_further_kind_is_looked_at_alone(build: Build) -> None:
    house = build(scopes={"tenant": {"quotas": "2/hour"}}, quotas="1/minute")
    for n in range(2):
        house.submit(f"name {n}", send_at=FAR + HOUR, scopes={"tenant": "acme"})
    tenant = house.dispatcher.timeline("acme", kind="tenant")
    assert [window.scope for window in tenant.windows] == ["tenant:acme"]
    assert tenant.refuses(FAR + HOUR)
    person = house.dispatcher.timeline("ben", scopes={"tenant": "acme"})
    assert [window.scope for window in person.windows] == ["ben", "tenant:acme"]
    assert [len(window.booked) for window in person.windows] == [0, 2]
    assert person.refuses(FAR + HOUR)
    assert not house.dispatcher.timeline("ben").refuses(FAR + HOUR)


def test_a_timeline_of_too_many_bookings_tells_slots_and_fills(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = build(quotas="100/day, 40/day in UTC")
    filled(house, own_terms("ada"), FAR, count=400, seed=5)
    asked: dict[str, Any] = {"start": FAR + DAY, "length": DAY}
    whole = house.dispatcher.timeline("ada", **asked)
    monkeypatch.setattr(timeline, "MOST_READ", 10)
    part = house.dispatcher.timeline("ada", **asked)
    assert (whole.complete, part.complete) == (True, False)
    [window] = part.windows
    assert (window.booked, window.many) == ((), len(house.members()))
    assert part.slots[0] == whole.slots[0]
    rolling, calendar = (quota.fills for quota in window.quotas)
    times = [from_ms(at_ms) for at_ms in house.members().values()]
    for fills in (rolling, calendar):
        [fill] = fills
        assert fill.booked == sum(fill.begins_at <= at < fill.ends_at for at in times)
    assert calendar[0].begins_at <= FAR + DAY == rolling[0].begins_at
    with pytest.raises(InvalidValue, match="too much is booked"):
        part.refuses(FAR + DAY)


def test_many_at_one_instant_are_read_once_each_over_all_pages(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "_PAGE", 10)
    house = build(quotas="100000/day")
    keys = house.keys("ada")
    times = [to_ms(FAR) + (0 if n < 35 else n // 2) for n in range(70)]
    placed = {new_id(): at_ms for at_ms in times}
    house.redis.zadd(keys.window("ada"), {id_.bytes: at for id_, at in placed.items()})
    forward = house.dispatcher.timeline("ada", start=FAR, length=DAY)
    [window] = forward.windows
    assert {booking.message_id: to_ms(booking.at) for booking in window.booked} == placed
    assert len(window.booked) == 70
    backward = house.dispatcher.timeline("ada", start=FAR + HOUR, length=DAY)
    assert backward.windows[0].quotas[0].fills[0].booked == 70


def test_nothing_is_told_of_windows_that_are_not_complete(house: House) -> None:
    house.submit(send_at=FAR + HOUR)
    shard = house.keys("ada")
    house.redis.delete(ShardKeys(shard.namespace, shard.shard).epoch)
    for look in (
        lambda: house.dispatcher.timeline("ada"),
        lambda: house.parts.contents.members(shard.window("ada").encode(), 0, 1),
    ):
        with pytest.raises(ReservationsUnavailable) as refusal:
            look()
        assert refusal.value.retry_after == timedelta(seconds=1)


BAD_INPUT: list[tuple[dict[str, Any], str]] = [
    ({"scope": ""}, "scope"),
    ({"channel": "fax"}, "channel"),
    ({"scopes": {"tenant": "acme"}}, "scopes"),
    ({"kind": "tenant"}, "scopes"),
    ({"kind": "tenant", "channel": "memory"}, "kind"),
    ({"zone": "Mars/Base"}, "zone"),
    ({"start": "soon"}, "start"),
    ({"start": FAR + timedelta(days=366_000)}, "start"),
    ({"length": timedelta(0)}, "length"),
    ({"length": timedelta(days=367)}, "length"),
    ({"length": 3}, "length"),
]


def test_bad_input_names_its_field(house: House) -> None:
    for asked, field in BAD_INPUT:
        with pytest.raises(InvalidDraft) as refusal:
            house.dispatcher.timeline(**({"scope": "ada"} | asked))
        assert refusal.value.field == field


STEPS: list[tuple[timedelta, str, Callable[[datetime], bool]]] = [
    (HOUR, BERLIN, lambda local: local.minute % 2 == 0),
    (2 * HOUR, "Asia/Kathmandu", lambda local: local.minute % 5 == 0),
    (2 * DAY, BERLIN, lambda local: local.minute == 0),
    (2 * DAY, "Asia/Kathmandu", lambda local: local.minute == 0),
    (7 * DAY, BERLIN, lambda local: (local.minute, local.hour % 4) == (0, 0)),
    (40 * DAY, BERLIN, lambda local: (local.hour, local.minute) == (0, 0)),
    (366 * DAY, BERLIN, lambda local: (local.weekday(), local.hour) == (0, 0)),
]


@pytest.mark.parametrize(("length", "zone", "round_time"), STEPS)
def test_steps_go_by_the_local_clock(
    house: House, length: timedelta, zone: str, round_time: Callable[[datetime], bool]
) -> None:
    start = SPRING + timedelta(minutes=13)
    timeline = house.dispatcher.timeline("ada", zone=zone, start=start, length=length)
    steps = timeline.steps
    assert (steps[0].begins_at, steps[-1].ends_at) == (start, start + length)
    assert all(one.ends_at == two.begins_at for one, two in pairwise(steps))
    assert 24 <= len(steps) <= 55
    for step in steps[1:]:
        assert round_time(step.begins_at.astimezone(ZoneInfo(zone))), step

"""Places of a quota that are kept for messages of high priority."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dispatcher import Draft, InvalidDraft, Message, QuotaExceeded
from tests.support.house import FAR, House
from tests.support.house_fixtures import Build, on_sqlite

pytestmark = on_sqlite
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
TEXT = "5/hour, 1 kept for priority >= 50"
AT = FAR + 2 * HOUR


@pytest.fixture
def house(build: Build) -> House:
    return build(quotas=TEXT)


def full_but_one(house: House) -> list[Message]:
    return [house.submit(send_at=AT + n * MINUTE) for n in range(4)]


@pytest.mark.parametrize("priority", [None, 0, 49, -100])
def test_a_lower_priority_is_refused_the_last_place(house: House, priority: int | None) -> None:
    full_but_one(house)
    with pytest.raises(QuotaExceeded) as refusal:
        house.submit(send_at=AT + 9 * MINUTE, priority=priority)
    assert (refusal.value.quota, refusal.value.most) == (TEXT, 4)
    assert "which has 4 places for it then" in str(refusal.value)
    assert len(refusal.value.conflicting) == 4
    assert refusal.value.next_slot == AT + HOUR
    assert house.dispatcher.refusals(quota=TEXT).rules[0].quota == TEXT


def test_a_high_priority_may_use_all_and_then_is_refused(house: House) -> None:
    full_but_one(house)
    house.submit(send_at=AT + 9 * MINUTE, priority=50)
    with pytest.raises(QuotaExceeded) as refusal:
        house.submit(send_at=AT + 10 * MINUTE, priority=100)
    assert refusal.value.most is None
    assert len(refusal.value.conflicting) == 5


def test_the_next_slot_of_a_priority_may_be_a_kept_place(house: House) -> None:
    full_but_one(house)
    slots = {
        priority: house.dispatcher.next_slot(recipient="ada", after=AT, priority=priority)
        for priority in (None, 49, 50)
    }
    assert slots == {None: AT + HOUR, 49: AT + HOUR, 50: AT}
    for priority, slot in ((0, AT + HOUR), (50, AT)):
        timeline = house.dispatcher.timeline("ada", start=AT, priority=priority)
        assert timeline.slots[0] == slot
    with pytest.raises(InvalidDraft, match="priority"):
        house.dispatcher.timeline("ada", priority=101)


def test_a_plan_and_a_batch_answer_alike(house: House) -> None:
    priorities = [0, 50, 0, 0, 0, 60, 0]
    drafts = [
        Draft(
            channel="memory", recipient="ada", body={}, send_at=AT + n * MINUTE, priority=priority
        )
        for n, priority in enumerate(priorities)
    ]
    planned = [
        drafts.index(rejected.draft) for rejected in house.dispatcher.plan(drafts).rejections
    ]
    results = house.dispatcher.submit_many(drafts)
    booked = [isinstance(result, Message) for result in results]
    assert booked == [True, True, True, True, False, True, False]
    assert planned == [n for n, is_booked in enumerate(booked) if not is_booked]


def test_a_move_is_judged_by_the_priority_of_its_message(house: House) -> None:
    full_but_one(house)
    low = house.submit(send_at=AT + 5 * HOUR)
    high = house.submit(send_at=AT + 5 * HOUR, priority=50)
    with pytest.raises(QuotaExceeded):
        house.dispatcher.reschedule(low.id, send_at=AT + 9 * MINUTE)
    assert house.dispatcher.reschedule(high.id, send_at=AT + 9 * MINUTE).send_at == AT + 9 * MINUTE
    shifted = house.dispatcher.reschedule(low.id, send_at=AT, on_conflict="shift")
    assert shifted.send_at == AT + HOUR + MINUTE

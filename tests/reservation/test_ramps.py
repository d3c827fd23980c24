"""A quota that grows gives each day of sixty its own number, whoever counts it and however."""

from __future__ import annotations

from collections import Counter
from datetime import date, timedelta
from operator import itemgetter
from random import Random

import pytest

from dispatcher import Draft, QuotaExceeded
from dispatcher.message import new_id
from dispatcher.quota import CalendarQuota, parse_quota, places
from dispatcher.reservation.booking import BookingRequest, Slot
from dispatcher.scope import OWN_SCOPE, own_scope
from tests.support.examples import a_third_of
from tests.support.house import FAR
from tests.support.house_fixtures import Build, on_sqlite
from tests.support.model import Wish, most_of, period
from tests.support.servers import RedisServer
from tests.support.stories import Step, Story

DAYS, HOUR, DAY_MS = 60, timedelta(hours=1), 86_400_000
ADA = (own_scope("ada"),)
RAMPS = [
    ("2/day growing 1.05 daily to 8/day from 2100-03-01 in Europe/Berlin", "UTC"),
    ("1/day growing 1.2 daily to 9/day from 2100-03-20 in local", "America/New_York"),
    ("3/day growing 2 daily to 7/day from 2100-04-01, 1 kept for priority >= 5", "UTC"),
    ("1/day growing 10 daily to 4/day from 2100-03-15", "Asia/Kathmandu"),
]
MARCH = 4_107_542_400_000
"""2100-03-01, in ms: four weeks before the clocks of Berlin go forward."""


@pytest.fixture(scope="module")
def url(redis_session: RedisServer) -> str:
    return redis_session.url


@pytest.mark.parametrize("ramp", a_third_of(RAMPS), ids=itemgetter(0))
def test_every_day_of_sixty_takes_its_own_number(url: str, ramp: tuple[str, str]) -> None:
    """Searches from random times fill all days, and what is booked in between is freed again."""
    text, zone = ramp
    quota, random = parse_quota(text), Random(7)  # noqa: S311 - not for secrets
    assert isinstance(quota, CalendarQuota)
    wishes = [Wish(ADA, zone), Wish(ADA, zone, priority=5)]
    with Story(url, {OWN_SCOPE: [quota]}, wishes, base=MARCH) as story:
        verbs = ["shift"] * 6 + ["many", "free", "push", "book", "slot", "move"]
        for _ in range(60):
            offset, room = random.randrange(DAYS * DAY_MS), random.randrange(20 * DAY_MS)
            story.play([Step(random.choice(verbs), offset, room, random.randrange(100))])
        end = MARCH + DAYS * DAY_MS
        rest = [
            BookingRequest(new_id(), wish.terms, MARCH, end)
            for wish, many in zip(wishes, (400, 70), strict=True)
            for _ in range(many)
        ]
        for request, slot in zip(rest, story.real.windows.book(rest), strict=True):
            if isinstance(slot, Slot):
                story.ledger.book(ADA, request.message_id, slot.at_ms)
        assert all(story.ledger.slot(wish, MARCH) > end for wish in wishes)
        booked = Counter(
            period("day", quota.zone or zone, at) for at in story.ledger.places[ADA[0]].values()
        )
    inside = [days for days in booked if days[0] >= MARCH and days[1] <= MARCH + DAYS * DAY_MS]
    assert len(inside) >= DAYS - 2
    numbers = [most_of(quota, 5, begins, quota.zone or zone) for begins, _ in inside]
    assert [booked[days] for days in inside] == numbers
    assert len(set(numbers)) > 1


def test_the_numbers_are_those_that_the_text_says() -> None:
    quota = parse_quota("100/day growing 1.5 daily to 50000/day from 2027-01-01 in Europe/Berlin")
    days = [date(2026, 12, 25) + timedelta(days=day) for day in range(DAYS)]
    numbers = [places(quota, 0, noon_ms(day)) for day in days]
    assert numbers[:8] == [100] * 8
    assert numbers[8:24] == [
        150, 225, 337, 506, 759, 1139, 1708, 2562, 3844, 5766, 8649, 12974, 19461, 29192, 43789,
        50000,
    ]  # fmt: skip
    assert set(numbers[24:]) == {50_000}


def noon_ms(day: date) -> int:
    return int((day - date(1970, 1, 1)).total_seconds() + 43_200) * 1_000


@on_sqlite
def test_a_refusal_names_the_number_of_the_day(build: Build) -> None:
    text = "1/day growing 2 daily to 4/day from 2100-01-02 in UTC"
    house = build(quotas=text)
    plan = house.dispatcher.plan
    for day, number in ((0, 1), (1, 2), (2, 4), (3, 4)):
        begins = FAR.replace(year=2100, month=1, day=2 + day, hour=0, minute=0)
        drafts = [
            Draft(channel="memory", recipient="ada", body={}, send_at=begins + n * HOUR)
            for n in range(5)
        ]
        rejected = [rejection.error for rejection in plan(drafts).rejections]
        for draft in drafts[:number]:
            house.submit(send_at=draft.send_at)
        with pytest.raises(QuotaExceeded) as refusal:
            house.submit(send_at=begins + 5 * HOUR)
        assert refusal.value.quota == text
        assert len(rejected) == 5 - number
        assert refusal.value.most == (number if number > 1 else None)
        assert number == 1 or f"which has {number} places" in str(refusal.value)
        assert len(refusal.value.conflicting) == number
        assert refusal.value.next_slot == begins + timedelta(days=1)
    timeline = house.dispatcher.timeline("ada", start=begins - timedelta(days=3))
    assert [fill.most for fill in timeline.windows[0].quotas[0].fills] == [1, 2]

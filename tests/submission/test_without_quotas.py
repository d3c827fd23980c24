"""A message without quotas is never refused by one, and never in the way of another."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from dispatcher import Draft, InvalidDraft, Message, QuietHours
from tests.support.house import FAR, House, draft
from tests.support.house_fixtures import Build

pytestmark = pytest.mark.every_database
HOUR = timedelta(hours=1)
CHANNELS: dict[str, Any] = {
    "memory": {
        "transport": "memory",
        "quotas": ["2/hour"],
        "recipient_quotas": ["1/hour"],
        "quiet_hours": "14:00-15:00",
        "without_quotas": "allowed",
    },
    "codes": {"transport": "memory", "quotas": []},
    "strict": {"transport": "memory"},
}


@pytest.fixture
def house(build: Build) -> House:
    return build(channels=CHANNELS, scopes={"tenant": {"quotas": ["1/day"]}})


def free(*, tenant: str | None = None) -> list[Draft]:
    """Drafts for one instant that no quota counts."""
    scopes = None if tenant is None else {"tenant": tenant}
    return [
        draft(send_at=FAR, quotas="none", scopes=scopes),
        draft(send_at=FAR, channel="codes", scopes=scopes),
    ] * 3


def test_it_is_booked_beside_full_quotas_and_fills_none(house: House) -> None:
    drafts = free(tenant="acme")
    assert house.dispatcher.plan(drafts).accepted == len(drafts)
    results = house.dispatcher.submit_many(drafts)
    messages = [message for message in results if isinstance(message, Message)]
    assert {message.send_at for message in messages} == {FAR}
    counted = house.submit("ada", send_at=FAR, scopes={"tenant": "acme"})
    assert counted.send_at == FAR, "nothing was in the way of the message that quotas count"
    assert len(house.dispatcher.submit_many(drafts)) == len(drafts)
    moved = [house.dispatcher.reschedule(message.id, later=HOUR) for message in messages]
    assert {message.send_at for message in moved} == {FAR + HOUR}
    assert house.dispatcher.verify_windows().equal
    for message in moved:
        house.dispatcher.cancel(message.id)
    assert house.dispatcher.verify_windows().equal


def test_a_rebuild_counts_it_no_more_than_its_submit(house: House) -> None:
    results = house.dispatcher.submit_many([*free(), draft(send_at=FAR)])
    assert all(isinstance(message, Message) for message in results)
    house.redis.flushdb()
    house.open()
    verified = house.dispatcher.verify_windows()
    assert verified.equal
    assert verified.reservations == len(free()) + 3, "one in a window of each scope that counts it"


def test_quiet_hours_judge_it(house: House) -> None:
    with pytest.raises(QuietHours):
        house.submit("ada", send_at=FAR.replace(hour=14, minute=30), quotas="none")


def test_it_is_told_where_it_is_not_allowed(house: House) -> None:
    for channel, quotas in (("strict", "none"), ("memory", "all"), ("memory", ["none"])):
        with pytest.raises(InvalidDraft) as refused:
            house.submit("ada", channel=channel, send_at=FAR, quotas=quotas)
        assert refused.value.field == "quotas"
    assert not house.all_members()

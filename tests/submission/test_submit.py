"""The front door: what is accepted, refused, shifted, read back and found."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dispatcher import InvalidSendTime, Message, QuotaExceeded, SlotRefused, Status
from dispatcher.times.send_time import to_ms
from tests.support.house import BODY, FAR, House, draft
from tests.support.house_fixtures import Build

SEED = datetime(2100, 1, 1, 11, 11, 11, tzinfo=UTC)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)


@pytest.mark.every_database
def test_a_message_is_accepted_stored_and_reserved(house: House) -> None:
    message = house.submit(send_at=SEED, expires_at=SEED + MINUTE, idempotency_key="k")
    assert message == house.dispatcher.get(message.id) == house.dispatcher.get(str(message.id))
    assert (message.status, message.attempt_count, message.max_attempts) == ("scheduled", 0, 10)
    assert (message.channel, message.recipient, message.scope) == ("memory", "ada", "ada")
    assert message.body == BODY
    assert message.send_at == message.next_attempt_at == SEED
    assert message.expires_at == SEED + MINUTE
    assert message.idempotency_key == "k"
    assert message.created_at == FAR
    assert (message.finished_at, message.last_error) == (None, None)
    assert message.id.version == 7
    assert house.members() == {message.id: to_ms(SEED)}
    assert house.dispatcher.attempts(message.id) == []


def test_the_seed_case(house: House) -> None:
    first = house.submit(send_at=SEED)
    with pytest.raises(QuotaExceeded) as caught:
        house.submit(send_at=SEED + SECOND)
    refusal = caught.value
    assert (refusal.quota, refusal.scope) == ("1/minute", "ada")
    assert refusal.send_at == SEED + SECOND
    assert refusal.conflicting == (first.id,)
    assert refusal.next_slot == datetime(2100, 1, 1, 11, 12, 11, tzinfo=UTC)
    assert str(refusal) == (
        "2100-01-01T11:11:12+00:00 does not fit the quota 1/minute of 'ada': "
        f"in the way: {first.id}; the next free slot is 2100-01-01T11:12:11+00:00"
    )
    assert house.members() == {first.id: to_ms(SEED)}
    second = house.submit(send_at=refusal.next_slot)
    assert second.send_at - first.send_at == MINUTE
    assert house.reservations() == house.all_members()


def test_a_scope_of_its_own_is_counted_instead_of_the_recipient(house: House) -> None:
    house.submit("ada", send_at=SEED, scope="family")
    with pytest.raises(QuotaExceeded) as caught:
        house.submit("ben", send_at=SEED, scope="family")
    assert caught.value.scope == "family"
    house.submit("ada", send_at=SEED)
    house.submit("ben", send_at=SEED)
    assert set(house.all_members()) == {"family", "ada", "ben"}


def test_every_way_to_shift_names_its_latest(build: Build) -> None:
    """Also where quiet hours refuse, where scopes lie in several shards, and in a move."""
    house = build(shards=64, scopes={"tenant": {"quotas": "1/hour"}})
    house.submit(send_at=SEED, scopes={"tenant": "acme"})
    other = house.submit("ben", send_at=SEED + 3 * MINUTE)
    shift: dict[str, Any] = {"on_conflict": "shift", "latest": SEED + MINUTE}
    draft: dict[str, Any] = {"recipient": "cyd", "send_at": SEED, **shift}
    ways: list[Callable[[], object]] = [
        lambda: house.submit(**draft, scopes={"tenant": "acme"}),
        lambda: house.submit(**draft, quiet_hours="11:00-12:00"),
        lambda: house.dispatcher.reschedule(other.id, send_at=SEED + MINUTE, **move),
    ]
    house.submit("ben", send_at=SEED + MINUTE)
    move: dict[str, Any] = {"on_conflict": "shift", "latest": SEED + 90 * SECOND}
    for way, latest in zip(ways, [SEED + MINUTE] * 2 + [SEED + 90 * SECOND], strict=True):
        with pytest.raises(SlotRefused) as caught:
            way()
        assert caught.value.latest == latest < caught.value.next_slot
        assert f"later than latest ({latest.isoformat()})" in str(caught.value)
    with pytest.raises(SlotRefused) as caught:
        house.submit("ben", send_at=SEED + MINUTE)
    assert (caught.value.latest, "latest" in str(caught.value)) == (None, False)


def test_a_shift_stays_before_the_expiry(house: House) -> None:
    house.submit(send_at=SEED)
    before = house.snapshot()
    for late in (SEED + MINUTE, "2100-01-01T11:12:11Z"):
        with pytest.raises(QuotaExceeded):
            house.submit(send_at=SEED, on_conflict="shift", expires_at=late)
    assert house.snapshot() == before
    millisecond = timedelta(milliseconds=1)
    just = house.submit(send_at=SEED, on_conflict="shift", expires_at=SEED + MINUTE + millisecond)
    assert just.send_at == SEED + MINUTE


def test_a_shift_never_goes_beyond_the_farthest_time_allowed(build: Build) -> None:
    house = build(quotas="1/7 day", max_horizon="10 days", retention="60 days")
    first = house.submit(send_in=timedelta(days=9))
    latest = first.send_at + timedelta(days=90)
    with pytest.raises((QuotaExceeded, InvalidSendTime)):
        house.submit(send_at=first.send_at, on_conflict="shift", latest=latest)


def test_the_next_slot_books_nothing(house: House) -> None:
    dispatcher = house.dispatcher
    assert dispatcher.next_slot(recipient="ada") == FAR
    house.submit(send_at=SEED)
    before = house.snapshot()
    assert dispatcher.next_slot(recipient="ada", after=SEED + SECOND) == SEED + MINUTE
    assert dispatcher.next_slot(scope="ada", after="2100-01-01T11:11:12Z") == SEED + MINUTE
    local = dispatcher.next_slot(recipient="ada", after="2100-01-01T12:11:12", zone="Europe/Berlin")
    assert local == SEED + MINUTE
    assert dispatcher.next_slot(recipient="ada", after=SEED - MINUTE) == SEED - MINUTE
    assert dispatcher.next_slot(recipient="ben", after=SEED) == SEED
    assert dispatcher.next_slot(recipient="ben", scope="ada", after=SEED) == SEED + MINUTE
    house.moved.set_wall(SEED + SECOND)
    assert dispatcher.next_slot(recipient="ada") == SEED + MINUTE
    assert house.snapshot() == before


def test_messages_of_a_campaign_are_found_together(house: House) -> None:
    ada = house.submit("ada", campaign="summer")
    house.submit("ben", campaign="w" * 64)
    house.submit("cyd")
    drafts = [draft(f"r{number}", campaign="summer") for number in range(3)]
    assert house.dispatcher.plan(drafts).accepted == 3
    messages = [
        result for result in house.dispatcher.submit_many(drafts) if isinstance(result, Message)
    ]
    assert [message.campaign for message in messages] == ["summer"] * 3
    assert house.dispatcher.get(ada.id).campaign == "summer"
    house.dispatcher.cancel(ada.id)
    assert house.dispatcher.counts(campaign="summer") == {
        "memory": {Status.SCHEDULED: 3, Status.CANCELLED: 1}
    }

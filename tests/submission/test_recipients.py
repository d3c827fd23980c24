"""Quotas, opt-outs, keys and filters see one text of a recipient."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dispatcher import InvalidDraft, QuotaExceeded, Status, Suppressed
from tests.support.house import FAR, House
from tests.support.house_fixtures import Build

HOUR = timedelta(hours=1)
SPELLINGS = ("Ada@EXAMPLE.org", "Ada@example.org", "Ada@Example.Org")
SPELT = "Ada@example.org"


@pytest.fixture
def house(build: Build) -> House:
    return build(
        quotas="1/hour",
        channels={
            "memory": {"transport": "memory", "recipients": "email"},
            "sms": {"transport": "memory", "recipients": "phone"},
        },
    )


def test_a_quota_counts_every_text(house: House) -> None:
    message = house.submit(SPELLINGS[0], send_in=HOUR)
    assert (message.recipient, message.scope) == (SPELT, SPELT)
    for text in SPELLINGS:
        with pytest.raises(QuotaExceeded):
            house.submit(text, send_in=HOUR)
        slot = house.dispatcher.next_slot(recipient=text, channel="memory", after=message.send_at)
        assert slot == message.send_at + HOUR


def test_a_key_means_the_same_in_every_text(house: House) -> None:
    first, *others = (
        house.submit(text, send_at="2100-01-02T12:00Z", idempotency_key="k") for text in SPELLINGS
    )
    assert {other.id for other in others} == {first.id}


def test_a_suppression_holds_for_every_text(house: House) -> None:
    message = house.submit(SPELLINGS[0], send_in=HOUR)
    assert house.dispatcher.suppress(SPELLINGS[2]) == 1
    assert house.again(message).status is Status.CANCELLED
    for text in SPELLINGS:
        with pytest.raises(Suppressed):
            house.submit(text, send_in=HOUR)
        assert [one.recipient for one in house.dispatcher.suppressed(text)] == [SPELT]
    assert house.dispatcher.unsuppress(SPELLINGS[0], channel=None) == ()
    house.submit(SPELLINGS[1], send_in=HOUR)


def test_filters_find_every_text(house: House) -> None:
    message = house.submit(SPELLINGS[0], send_in=HOUR)
    for text in SPELLINGS:
        assert [one.id for one in house.dispatcher.select(recipient=text)] == [message.id]
        assert house.dispatcher.count(recipient=text, channel="memory") == 1


def test_many_at_once_and_moves_are_spelt_as_well(house: House) -> None:
    house.submit("+49 151 2345678", channel="sms", send_in=HOUR)
    with pytest.raises(QuotaExceeded):
        house.submit("+49-151-2345678", channel="sms", send_in=HOUR)
    with pytest.raises(InvalidDraft, match="no \\+ before a country code"):
        house.submit("491512345678", channel="sms", send_in=HOUR)
    [message] = [*house.dispatcher.select(recipient="+49 (151) 2345678")]
    moved = house.dispatcher.reschedule(message.id, send_in=3 * HOUR)
    assert moved.recipient == "+491512345678"


@pytest.mark.every_database
def test_a_recipient_may_be_a_long_url_everywhere(build: Build) -> None:
    """Presigned URLs, and those of workflow services, have 300 characters and more."""
    house = build(quotas="1/hour", status_channel="hook", channels={
        "memory": {"transport": "memory"},
        "hook": {"transport": "webhook", "options": {"payload": "body"}},
    })  # fmt: skip
    start = "https://shop.example/?signature="
    longest, other = (start + letter * (2_048 - len(start)) for letter in "ab")
    message = house.submit(longest, send_at=FAR, status_url=other)
    house.submit(other, send_at=FAR)
    assert house.again(message).recipient == longest
    assert message.scope.startswith(start)
    assert len(message.scope) == 255
    with pytest.raises(QuotaExceeded) as full:
        house.submit(longest, send_at=FAR)
    slot = house.dispatcher.next_slot(recipient=longest, channel="memory", after=FAR)
    assert slot == full.value.next_slot == FAR + HOUR
    assert [message.id for message in house.dispatcher.list(recipient=longest)] == [message.id]
    [window, *_] = house.dispatcher.timeline(longest, start=FAR, length=HOUR).windows
    assert [booking.at for booking in window.booked] == [FAR]
    assert house.dispatcher.verify_windows().differences == ()
    assert [pause.name for pause in house.dispatcher.pause("recipient", longest)] == [message.scope]
    house.dispatcher.resume("recipient", longest)
    with pytest.raises(InvalidDraft, match="recipient: 2048 characters; accepted: 1 to 255"):
        house.dispatcher.suppress(longest)
    house.dispatcher.erase(longest)
    assert house.members(message.scope) == {}
    assert not any(longest in str(value) or message.scope in str(value)
                   for row in house.rows() for value in row)  # fmt: skip


@pytest.mark.parametrize("recipient", [
    "https://shop.example/" + "a" * 2_028, "https://shop.example/" + "ä" * 300, "a" * 256,
])  # fmt: skip
def test_a_longer_one_is_refused(house: House, recipient: str) -> None:
    for channel in ("memory", "sms"):
        with pytest.raises(InvalidDraft, match="recipient: "):
            house.submit(recipient, channel=channel, send_at=FAR)

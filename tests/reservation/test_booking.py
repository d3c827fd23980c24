"""One scope: what is booked, searched, kept, tidied, and shared by duplicate submits."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dispatcher.message import new_id
from dispatcher.quota import Quota
from dispatcher.reservation.booking import BookingRequest, Submit
from dispatcher.reservation.upkeep import KEEP_MS
from tests.support.reserving import (
    Booking,
    Reserving,
    calls_of,
    ms,
    own_terms,
    release_for_everyone,
)

NOON = datetime(2100, 1, 1, 12, tzinfo=UTC)
Opened = Callable[..., Reserving]


def test_a_full_stretch_is_left_without_a_step_for_each_message_in_it(opened: Opened) -> None:
    """The messages of a campaign that one quota spreads would else take longer and longer."""
    real = opened(Quota(2, 1_000))
    full = {n.to_bytes(16, "big"): ms(NOON) + n // 2 * 1_000 for n in range(2_000)}
    real.client.zadd(real.keys("ann").window("ann"), full)
    bookings: list[Booking] = []

    def book() -> None:
        bookings.append(real.book(NOON, latest=NOON + timedelta(hours=1)))

    assert calls_of(real.client, book, "zcount", "zrangebyscore") < 50
    assert [booking.send_at for booking in bookings] == [NOON + timedelta(seconds=1_000)]


def test_messages_of_a_campaign_do_not_search_the_same_stretch_again(opened: Opened) -> None:
    """A script ends when it has read much, so a search for each would take a call for each."""
    real = opened(Quota(1, 1_000))
    full = {n.to_bytes(16, "big"): ms(NOON) + n * 1_000 for n in range(1_000)}
    real.client.zadd(real.keys("ann").window("ann"), full)
    latest = ms(NOON + timedelta(hours=1))
    campaign = [BookingRequest(new_id(), own_terms("ann"), ms(NOON), latest) for _ in range(200)]
    slots: list[Any] = []
    assert calls_of(real.client, lambda: slots.extend(real.windows.book(campaign))) < 20
    assert [slot.at_ms for slot in slots] == [ms(NOON) + n * 1_000 for n in range(1_000, 1_200)]


def test_what_no_quota_counts_any_more_is_tidied_in_turn(opened: Opened) -> None:
    """Also in windows that nobody books in; what any may count stays, and no window expires."""
    real = opened()
    seconds, _ = real.client.time()
    counted = seconds * 1_000 - 60_000 - KEEP_MS
    for number in range(50):
        window = real.keys(f"old {number}").window(f"old {number}")
        real.client.zadd(window, {new_id().bytes: counted - 5_000})
    kept = real.book(NOON)
    window, recent = real.keys("ann").window("ann"), new_id()
    real.client.zadd(window, {new_id().bytes: counted - 5_000, recent.bytes: counted + 60_000})
    assert sum(real.upkeep.tidy(keys_at_once=10) for _ in range(30)) == 51
    assert [*real.client.scan_iter(match="*:window:*")] == [window.encode()]
    assert set(real.members("ann")) == {recent, kept.message_id}
    assert real.client.pttl(window) == -1


def test_a_window_with_much_to_forget_is_trimmed_in_bounded_steps(opened: Opened) -> None:
    real = opened()
    window = real.keys("ann").window("ann")
    real.client.zadd(window, {new_id().bytes: number for number in range(1_500)})
    assert real.upkeep.tidy(keys_at_once=1_000) == 1_000
    assert real.upkeep.tidy(keys_at_once=1_000) == 500
    assert not real.client.exists(window)


# Names and keys of any characters are booked as they are.


LATER = datetime(2100, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize("name", ["änn", "{ann}", "ann:*", "a\r\n$1\r\nb", "\0", "🦊" * 9])
@pytest.mark.parametrize("submit", [None, Submit("kéy\r\n", "fingerprint")])
def test_a_message_is_booked_whatever_its_scope_and_key(
    opened: Opened, name: str, submit: Submit | None
) -> None:
    real = opened()
    first = real.book(NOON, name, submit=submit)
    assert real.members(name) == {first.message_id: ms(NOON)}
    second = real.book(NOON, name, submit=submit, latest=LATER)
    is_same = second.message_id == first.message_id
    assert is_same is (submit is not None), "its key is the same to both"
    assert set(real.members(name)) == {first.message_id, second.message_id}


# Submits that share an idempotency key share one booking until the last of them gives up.


def test_a_duplicate_submit_that_gives_up_leaves_the_other_its_booking(opened: Opened) -> None:
    real = opened()
    first, second = (real.book(NOON, submit=Submit("key", "print")) for _ in range(2))
    real.windows.withdraw([first.request])
    assert list(real.members("ann")) == [second.message_id]
    real.windows.withdraw([first.request])  # a repeated call counts once
    assert list(real.members("ann")) == [second.message_id]
    real.windows.withdraw([second.request])
    assert real.members("ann") == {}
    keys = real.keys("ann")
    assert not real.client.exists(keys.duplicates("key"), keys.pending)


def test_duplicates_are_forgotten_in_time_and_then_only_the_store_decides(opened: Opened) -> None:
    real = opened()
    booking = real.book(NOON, submit=Submit("key", "print"))
    duplicates = real.keys("ann").duplicates("key")
    assert 0 < real.client.pttl(duplicates) <= 60_000
    real.client.delete(duplicates)  # as its expiry does
    real.windows.withdraw([booking.request])
    assert list(real.members("ann")) == [booking.message_id]


def test_a_duplicate_does_not_shorten_the_life_that_another_gave(opened: Opened) -> None:
    real = opened()
    real.book(NOON, submit=Submit("key", "print"), grace=timedelta(minutes=10))
    real.book(NOON, submit=Submit("key", "print"))
    assert real.client.pttl(real.keys("ann").duplicates("key")) > 600_000


def test_a_key_is_free_for_other_content_once_its_message_is_released(opened: Opened) -> None:
    """Though a duplicate still counts as under way: what it relied on is not stored any more."""
    real = opened()
    first, _ = (real.book(NOON, submit=Submit("key", "print")) for _ in range(2))
    release_for_everyone(real.windows, first)
    assert real.members("ann") == {}
    other = real.book(NOON, submit=Submit("key", "other"))
    release_for_everyone(real.windows, first)  # a late copy
    assert list(real.members("ann")) == [other.message_id]
    assert real.client.exists(real.keys("ann").duplicates("key"))

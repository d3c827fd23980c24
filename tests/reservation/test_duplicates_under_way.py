"""Submits that share an idempotency key share one booking until the last of them gives up."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from dispatcher.reservation.booking import Submit
from tests.support.reserving import Reserving, release_for_everyone

NOON = datetime(2100, 1, 1, 12, tzinfo=UTC)
Opened = Callable[..., Reserving]


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


def test_a_repeated_call_of_one_submit_counts_once(opened: Opened) -> None:
    real = opened()
    submit = Submit("key", "print")
    booking = real.book(NOON, submit=submit)
    assert real.book(NOON, submit=submit).message_id == booking.message_id
    real.windows.withdraw([booking.request])
    assert real.members("ann") == {}


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

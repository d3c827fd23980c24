"""Submits that share an idempotency key share one booking until the last of them gives up."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from dispatcher.errors import IdempotencyConflict, QuotaExceeded
from dispatcher.message import new_id
from dispatcher.reservation import Submit, Terms
from tests.support.reserving import Booking, Reserving, release_for_everyone, reserve

NOON = datetime(2100, 1, 1, 12, tzinfo=UTC)
Opened = Callable[..., Reserving]


def book(real: Reserving, submit: Submit, send_at: datetime = NOON) -> Booking:
    return reserve(real.windows, new_id(), terms=Terms.own("ann"), send_at=send_at, submit=submit)


def test_other_content_is_a_conflict_and_leaves_no_trace(opened: Opened) -> None:
    real = opened()
    first = book(real, Submit("key", "print"))
    before = real.dump()
    with pytest.raises(IdempotencyConflict) as conflict:
        book(real, Submit("key", "other"))
    assert conflict.value.key == "key"
    assert conflict.value.message_id == first.message_id
    assert real.dump() == before


def test_a_duplicate_submit_that_gives_up_leaves_the_other_its_booking(opened: Opened) -> None:
    real = opened()
    first, second = book(real, Submit("key", "print")), book(real, Submit("key", "print"))
    real.windows.withdraw([first.request])
    assert list(real.members("ann")) == [second.message_id]
    real.windows.withdraw([first.request])  # a repeated call counts once
    assert list(real.members("ann")) == [second.message_id]
    real.windows.withdraw([second.request])
    assert real.members("ann") == {}
    keys = real.keys("ann")
    assert not real.client.exists(keys.duplicates("key"), keys.pending)


def test_a_refused_submit_leaves_its_key_free(opened: Opened) -> None:
    real = opened()
    reserve(real.windows, new_id(), terms=Terms.own("ann"), send_at=NOON)
    with pytest.raises(QuotaExceeded):
        book(real, Submit("key", "print"))
    assert not real.client.exists(real.keys("ann").duplicates("key"))
    book(real, Submit("key", "other"), NOON + timedelta(minutes=1))


def test_a_repeated_call_of_one_submit_counts_once(opened: Opened) -> None:
    real = opened()
    submit = Submit("key", "print")
    booking = book(real, submit)
    assert book(real, submit).message_id == booking.message_id
    real.windows.withdraw([booking.request])
    assert real.members("ann") == {}


def test_duplicates_are_forgotten_in_time_and_then_only_the_store_decides(opened: Opened) -> None:
    real = opened()
    booking = book(real, Submit("key", "print"))
    duplicates = real.keys("ann").duplicates("key")
    assert 0 < real.client.pttl(duplicates) <= 60_000
    real.client.delete(duplicates)  # as its expiry does
    real.windows.withdraw([booking.request])
    assert list(real.members("ann")) == [booking.message_id]


def test_a_duplicate_does_not_shorten_the_life_that_another_gave(opened: Opened) -> None:
    real = opened()
    reserve(real.windows,
        new_id(), terms=Terms.own("ann"), send_at=NOON, submit=Submit("key", "print"),
        grace=timedelta(minutes=10),
    )  # fmt: skip
    book(real, Submit("key", "print"))
    assert real.client.pttl(real.keys("ann").duplicates("key")) > 600_000


def test_a_key_is_free_for_other_content_once_its_message_is_released(opened: Opened) -> None:
    """Though a duplicate still counts as under way: what it relied on is not stored any more."""
    real = opened()
    first, _ = book(real, Submit("key", "print")), book(real, Submit("key", "print"))
    release_for_everyone(real.windows, first)
    assert real.members("ann") == {}
    other = book(real, Submit("key", "other"))
    release_for_everyone(real.windows, first)  # a late copy
    assert list(real.members("ann")) == [other.message_id]
    assert real.client.exists(real.keys("ann").duplicates("key"))

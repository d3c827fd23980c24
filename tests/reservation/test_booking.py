"""One scope, one client: what is booked, kept, refused and given back."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from dispatcher.errors import QuotaExceeded
from dispatcher.message import new_id
from dispatcher.reservation import Terms
from dispatcher.reservation.upkeep import KEEP_MS
from tests.support.reserving import Reserving, pending, stored, times_of

NOON = datetime(2100, 1, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
Opened = Callable[..., Reserving]


def test_times_exactly_one_length_apart_fit(opened: Opened) -> None:
    real = opened()
    first = datetime(2100, 1, 1, 11, 11, 11, tzinfo=UTC)
    booked = real.windows.reserve(new_id(), terms=Terms.plain("ann"), send_at=first)
    asked = first + timedelta(seconds=1)
    with pytest.raises(QuotaExceeded) as refused:
        real.windows.reserve(new_id(), terms=Terms.plain("ann"), send_at=asked)
    assert refused.value.quota == "1/minute"
    assert refused.value.scope == "ann"
    assert refused.value.send_at == asked
    assert refused.value.conflicting == (booked.message_id,)
    assert refused.value.next_slot == first + MINUTE
    real.windows.reserve(new_id(), terms=Terms.plain("ann"), send_at=refused.value.next_slot)
    real.windows.reserve(new_id(), terms=Terms.plain("ann"), send_at=first - MINUTE)


def test_a_refusal_leaves_no_trace(opened: Opened) -> None:
    real = opened()
    real.windows.reserve(new_id(), terms=Terms.plain("ann"), send_at=NOON)
    before = {key: real.client.dump(key) for key in real.client.keys("*")}
    with pytest.raises(QuotaExceeded):
        real.windows.reserve(new_id(), terms=Terms.plain("ann"), send_at=NOON)
    with pytest.raises(QuotaExceeded):
        real.windows.reserve(
            new_id(), terms=Terms.plain("ann"), send_at=NOON, latest=NOON + timedelta(seconds=59)
        )
    assert {key: real.client.dump(key) for key in real.client.keys("*")} == before


def test_scopes_do_not_touch_each_other(opened: Opened) -> None:
    real = opened()
    for scope in ("ann", "bob", "利用者", "{ann}", "ann:*", "a b"):
        real.windows.reserve(new_id(), terms=Terms.plain(scope), send_at=NOON)
        assert len(real.members(scope)) == 1


def test_a_cancelled_place_is_free_at_once(opened: Opened) -> None:
    real = opened()
    first = real.windows.reserve(new_id(), terms=Terms.plain("ann"), send_at=NOON)
    real.windows.release(first.message_id, Terms.plain("ann"))
    assert pending(real.client, real.keys("ann")) == set()
    real.windows.reserve(new_id(), terms=Terms.plain("ann"), send_at=NOON)


def test_a_latest_time_before_the_one_asked_for_means_no_shift(opened: Opened) -> None:
    real = opened()
    earlier = NOON - timedelta(hours=1)
    booking = real.windows.reserve(new_id(), terms=Terms.plain("ann"), send_at=NOON, latest=earlier)
    assert booking.send_at == NOON
    with pytest.raises(QuotaExceeded):
        real.windows.reserve(new_id(), terms=Terms.plain("ann"), send_at=NOON, latest=earlier)


def test_a_next_slot_books_nothing(opened: Opened) -> None:
    real = opened()
    real.windows.reserve(new_id(), terms=Terms.plain("ann"), send_at=NOON)
    assert real.windows.next_slot(Terms.plain("ann"), NOON) == NOON + MINUTE
    assert len(real.members("ann")) == 1
    assert real.windows.next_slot(Terms.plain("nobody"), NOON) == NOON


def test_a_reservation_waits_for_the_store_to_confirm_it(opened: Opened) -> None:
    real = opened()
    booking = real.windows.reserve(new_id(), terms=Terms.plain("ann"), send_at=NOON)
    assert pending(real.client, real.keys("ann")) == {booking.message_id}


def confirm(real: Reserving) -> None:
    """Do what the sweep does when the store knows everything."""
    found = real.upkeep.unconfirmed(older_than=timedelta(0), at_most=100)
    assert real.upkeep.confirm(found, stored(times_of(real, found))) == 0


def test_a_window_never_expires_by_itself(opened: Opened) -> None:
    real = opened()
    for confirmed in (True, False):
        real.windows.reserve(new_id(), terms=Terms.plain("ann"), send_at=NOON + confirmed * MINUTE)
        if confirmed:
            confirm(real)
        assert real.client.pttl(real.keys("ann").window("ann")) == -1


def test_a_repeated_booking_waits_for_its_confirmation_again(opened: Opened) -> None:
    real = opened()
    booking = real.windows.reserve(new_id(), terms=Terms.plain("ann"), send_at=NOON)
    confirm(real)
    real.windows.reserve(booking.message_id, terms=Terms.plain("ann"), send_at=NOON)
    assert pending(real.client, real.keys("ann")) == {booking.message_id}


def test_windows_that_nobody_books_in_are_tidied_in_turn(opened: Opened) -> None:
    real = opened()
    seconds, _ = real.client.time()
    old = seconds * 1_000 - 60_000 - KEEP_MS - 5_000
    for number in range(50):
        keys = real.keys(f"old {number}")
        real.client.zadd(keys.window(f"old {number}"), {new_id().bytes: old})
    kept = real.windows.reserve(new_id(), terms=Terms.plain("ann"), send_at=NOON)
    forgotten = sum(real.upkeep.tidy(keys_at_once=10) for _ in range(30))
    assert forgotten == 50
    assert [*real.client.scan_iter(match="*:window:*")] == [real.keys("ann").window("ann").encode()]
    assert set(real.members("ann")) == {kept.message_id}


def test_a_window_with_much_to_forget_is_trimmed_in_bounded_steps(opened: Opened) -> None:
    real = opened()
    window = real.keys("ann").window("ann")
    real.client.zadd(window, {new_id().bytes: number for number in range(1_500)})
    assert real.upkeep.tidy(keys_at_once=1_000) == 1_000
    assert real.upkeep.tidy(keys_at_once=1_000) == 500
    assert not real.client.exists(window)


def test_members_that_count_no_more_are_trimmed(opened: Opened) -> None:
    real = opened()
    window = real.keys("ann").window("ann")
    seconds, _ = real.client.time()
    keep = 60_000 + KEEP_MS
    old, recent = new_id(), new_id()
    real.client.zadd(
        window,
        {old.bytes: seconds * 1_000 - keep - 5_000, recent.bytes: seconds * 1_000 - keep + 60_000},
    )
    booking = real.windows.reserve(new_id(), terms=Terms.plain("ann"), send_at=NOON)
    confirm(real)
    assert set(real.members("ann")) == {recent, booking.message_id}

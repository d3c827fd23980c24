"""One scope, one client: what is booked, kept, refused and given back."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from dispatcher.errors import QuotaExceeded
from dispatcher.message import new_id
from dispatcher.quota import Quota
from dispatcher.reservation import Terms
from dispatcher.reservation.upkeep import Reserved
from dispatcher.reservation.windows import KEEP_MS
from dispatcher.scope import plain
from tests.support.reserving import Reserving, ms, pending, times_of

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


def expiry(real: Reserving, scope: str) -> int | None:
    """Return when a window expires, ms since 1970, None for never (Redis 6 has no PEXPIRETIME)."""
    seconds, micros = real.client.time()
    left = real.client.pttl(real.keys(scope).window(scope))
    return seconds * 1_000 + micros // 1_000 + left if left >= 0 else None


def confirm(real: Reserving) -> None:
    """Do what the sweep does when the store knows everything."""
    found = real.upkeep.unconfirmed(older_than=timedelta(0), at_most=100)
    assert real.upkeep.confirm(found, times_of(real, found)) == 0


def test_a_window_expires_only_after_its_last_member_counts_no_more(opened: Opened) -> None:
    real = opened(Quota(1, 1_000), Quota(5, 60_000))
    keep = 60_000 + KEEP_MS
    last = NOON + timedelta(days=300)
    for instant in (NOON, last, NOON + MINUTE):
        real.windows.reserve(new_id(), terms=Terms.plain("ann"), send_at=instant)
        assert expiry(real, "ann") is None, "the store has not confirmed it"
    confirm(real)
    assert expiry(real, "ann") == pytest.approx(ms(last) + keep, abs=50)
    real.windows.reserve(new_id(), terms=Terms.plain("ann"), send_at=last + MINUTE)
    assert expiry(real, "ann") is None


def test_a_place_put_back_later_than_all_others_keeps_its_window(opened: Opened) -> None:
    real = opened()
    real.windows.reserve(new_id(), terms=Terms.plain("ann"), send_at=NOON)
    confirm(real)
    late = NOON + timedelta(days=300)
    assert real.upkeep.put_back([Reserved(new_id(), (plain("ann"),), late)]) == 1
    assert expiry(real, "ann") is None
    confirm(real)
    assert expiry(real, "ann") == pytest.approx(ms(late) + 60_000 + KEEP_MS, abs=50)


def test_a_repeated_booking_waits_for_its_confirmation_again_and_keeps_the_expiry(
    opened: Opened,
) -> None:
    real = opened()
    booking = real.windows.reserve(new_id(), terms=Terms.plain("ann"), send_at=NOON)
    confirm(real)
    real.windows.reserve(booking.message_id, terms=Terms.plain("ann"), send_at=NOON)
    assert expiry(real, "ann") is not None
    assert pending(real.client, real.keys("ann")) == {booking.message_id}


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

"""Redis loses replies or does not answer: one reservation, or an error in bounded time.

What clients are told of a Redis that is away, full or evicting is in
``tests/submission/test_reservation_faults.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from dispatcher.errors import ReservationsUnavailable
from dispatcher.message import new_id
from dispatcher.reservation.booking import BookingRequest, Slot, Terms
from dispatcher.times.send_time import to_ms
from tests.support.proxy import Proxy
from tests.support.reserving import Reserving, pending, reserving
from tests.support.servers import RedisServer

NOON = datetime(2100, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def through(proxy: Proxy) -> Iterator[Reserving]:
    """Windows whose every connection goes through the proxy."""
    with reserving(f"redis://127.0.0.1:{proxy.port}", retries=3, timeout=1.0) as real:
        real.open()
        yield real


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_lost_reply_of_a_booking_leaves_exactly_one_member(
    through: Reserving, proxy: Proxy, lost: int
) -> None:
    message_id = new_id()
    proxy.drop_reply(message_id.bytes, times=lost)
    booking = through.book(NOON, message_id=message_id)
    assert proxy.dropped == lost
    assert booking.message_id == message_id
    assert through.members("ann") == {message_id: to_ms(NOON)}
    assert pending(through.client, through.keys("ann")) == {message_id}


def test_a_lost_reply_of_many_is_asked_for_again(through: Reserving, proxy: Proxy) -> None:
    at = to_ms(NOON)
    requests = [BookingRequest(new_id(), Terms.own(f"to {n}"), at, at) for n in range(40)]
    through.book(NOON)  # knows the script
    proxy.drop_reply(requests[17].message_id.bytes)
    slots = through.windows.book(requests)
    assert [slot.at_ms for slot in slots if isinstance(slot, Slot)] == [at] * len(requests)
    assert proxy.dropped == 1


def test_a_silent_line_is_reported_in_bounded_time(proxy: Proxy, redis_server: RedisServer) -> None:
    with reserving(f"redis://127.0.0.1:{proxy.port}", retries=1, timeout=0.2) as real:
        real.open()
        proxy.blackhole()
        with pytest.raises(ReservationsUnavailable, match="did not answer in time"):
            real.book(NOON)
        proxy.pass_all()

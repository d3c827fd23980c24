"""Redis loses replies or does not answer: one reservation, or an error in bounded time.

What clients are told of a Redis that is away, full or evicting is in
``tests/submission/test_reservation_faults.py``.
"""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from dispatcher.errors import ReservationsUnavailable
from dispatcher.message import new_id
from dispatcher.reservation.booking import BookingRequest, Slot, Terms
from dispatcher.times.send_time import to_ms
from tests.support.proxy import Proxy
from tests.support.reserving import reserving
from tests.support.servers import RedisServer

NOON = datetime(2100, 1, 1, 12, tzinfo=UTC)


def test_a_lost_reply_of_many_is_asked_for_again(proxy: Proxy) -> None:
    at = to_ms(NOON)
    requests = [BookingRequest(new_id(), Terms.own(f"to {n}"), at, at) for n in range(40)]
    with reserving(f"redis://127.0.0.1:{proxy.port}", retries=1) as real:
        real.open()
        real.book(NOON)  # knows the script
        proxy.drop_reply(requests[17].message_id.bytes)
        slots = real.windows.book(requests)
        assert [slot.at_ms for slot in slots if isinstance(slot, Slot)] == [at] * len(requests)
        assert proxy.dropped == 1


def test_a_silent_line_is_reported_in_bounded_time(proxy: Proxy, redis_server: RedisServer) -> None:
    with reserving(f"redis://127.0.0.1:{proxy.port}", retries=1, timeout=0.2) as real:
        real.open()
        proxy.blackhole()
        with pytest.raises(ReservationsUnavailable, match="did not answer in time"):
            real.book(NOON)
        proxy.pass_all()

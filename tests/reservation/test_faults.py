"""Redis is away, full, forgetful or loses its replies: refused, and nothing is left behind."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import cast

import pytest

from dispatcher.errors import ReservationsUnavailable
from dispatcher.message import new_id
from dispatcher.reservation import BookingRequest, Slot, Submit, Terms
from dispatcher.times.send_time import to_ms
from tests.support.proxy import Proxy
from tests.support.reserving import Reserving, cancel, pending, reserve, reserving, value_of
from tests.support.servers import RedisServer

NOON = datetime(2100, 1, 1, 12, tzinfo=UTC)
EVICTING = ["allkeys-lru", "volatile-ttl"]


def refuses(real: Reserving) -> ReservationsUnavailable:
    """Check that every call is refused; return the refusal of a booking."""
    for call in (
        lambda: real.windows.next_slot(Terms.own("ann"), NOON),
        lambda: reserve(
            real.windows,
            new_id(),
            terms=Terms.own("ann"),
            send_at=NOON,
            submit=Submit("key", "print"),
        ),
    ):
        with pytest.raises(ReservationsUnavailable):
            call()
    with pytest.raises(ReservationsUnavailable) as refused:
        reserve(real.windows, new_id(), terms=Terms.own("ann"), send_at=NOON)
    return refused.value


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_lost_reply_of_a_booking_leaves_exactly_one_member(
    through: Reserving, proxy: Proxy, lost: int
) -> None:
    message_id = new_id()
    proxy.drop_reply(message_id.bytes, times=lost)
    booking = reserve(through.windows, message_id, terms=Terms.own("ann"), send_at=NOON)
    assert proxy.dropped == lost
    assert booking.message_id == message_id
    assert through.members("ann") == {message_id: int(NOON.timestamp() * 1_000)}
    assert pending(through.client, through.keys("ann")) == {message_id}


def test_a_lost_reply_of_many_is_asked_for_again(through: Reserving, proxy: Proxy) -> None:
    at = to_ms(NOON)
    requests = [BookingRequest(new_id(), Terms.own(f"to {n}"), at, at) for n in range(40)]
    reserve(through.windows, new_id(), terms=Terms.own("ann"), send_at=NOON)  # knows the script
    proxy.drop_reply(requests[17].message_id.bytes)
    slots = through.windows.book(requests)
    assert [slot.at_ms for slot in slots if isinstance(slot, Slot)] == [at] * len(requests)
    assert proxy.dropped == 1


def test_a_lost_reply_of_a_shift_does_not_shift_twice(through: Reserving, proxy: Proxy) -> None:
    reserve(through.windows, new_id(), terms=Terms.own("ann"), send_at=NOON)
    message_id = new_id()
    proxy.drop_reply(message_id.bytes)
    latest = NOON + timedelta(hours=1)
    booking = reserve(
        through.windows, message_id, terms=Terms.own("ann"), send_at=NOON, latest=latest
    )
    assert proxy.dropped == 1
    assert booking.send_at == NOON + timedelta(minutes=1)
    assert len(through.members("ann")) == 2


def test_a_lost_reply_of_a_keyed_booking_counts_its_submit_once(
    through: Reserving, proxy: Proxy
) -> None:
    submit = Submit("key", "print")
    proxy.drop_reply(submit.token.encode(), times=2)
    booking = reserve(
        through.windows, new_id(), terms=Terms.own("ann"), send_at=NOON, submit=submit
    )
    assert proxy.dropped == 2
    proxy.drop_reply(submit.token.encode())
    through.windows.withdraw([booking.request])
    assert proxy.dropped == 1
    assert through.members("ann") == {}


def test_more_lost_replies_than_tries_are_an_error_that_keeps_at_most_one_member(
    through: Reserving, proxy: Proxy
) -> None:
    message_id = new_id()
    proxy.drop_reply(message_id.bytes, times=100)
    with pytest.raises(ReservationsUnavailable):
        reserve(through.windows, message_id, terms=Terms.own("ann"), send_at=NOON)
    proxy.pass_all()
    assert set(through.members("ann")) <= {message_id}
    cancel(through.windows, message_id, Terms.own("ann"))
    assert through.members("ann") == {}


def test_a_refusing_line_is_reported_and_forgotten_when_it_is_back(
    through: Reserving, proxy: Proxy
) -> None:
    proxy.refuse()
    proxy.cut_all()
    assert "reached" in refuses(through).reason
    proxy.pass_all()
    assert through.members("ann") == {}
    reserve(through.windows, new_id(), terms=Terms.own("ann"), send_at=NOON)


def test_a_silent_line_is_reported_in_bounded_time(proxy: Proxy, redis_server: RedisServer) -> None:
    url = f"redis://127.0.0.1:{proxy.port}"
    with reserving(url, retries=1, timeout=0.2) as real:
        real.open()
        proxy.blackhole()
        with pytest.raises(ReservationsUnavailable, match="did not answer in time"):
            reserve(real.windows, new_id(), terms=Terms.own("ann"), send_at=NOON)
        proxy.pass_all()


def test_a_redis_that_is_down_is_reported(own_redis: RedisServer) -> None:
    with reserving(own_redis.url, retries=1) as real:
        real.open()
        own_redis.stop()
        refuses(real)
        with pytest.raises(ReservationsUnavailable):
            real.upkeep.begin()
        with pytest.raises(ReservationsUnavailable):
            cancel(real.windows, new_id(), Terms.own("ann"))
    with reserving(own_redis.url, retries=1) as fresh:
        refuses(fresh)


def test_a_full_redis_is_reported_and_keeps_no_trace(own_redis: RedisServer) -> None:
    with reserving(own_redis.url) as real, own_redis.client() as plain:
        real.open()
        kept = reserve(real.windows, new_id(), terms=Terms.own("ann"), send_at=NOON)
        before = {key: value_of(plain, key) for key in cast("list[bytes]", plain.keys("*"))}
        plain.config_set("maxmemory", 1)
        later = NOON + timedelta(hours=1)
        for submit in (None, Submit("key", "print")):
            with pytest.raises(ReservationsUnavailable, match="out of memory"):
                reserve(
                    real.windows, new_id(), terms=Terms.own("ann"), send_at=later, submit=submit
                )
        assert {key: value_of(plain, key) for key in cast("list[bytes]", plain.keys("*"))} == before
        cancel(
            real.windows, kept.message_id, Terms.own("ann")
        )  # giving back works, else it never recovers
        plain.config_set("maxmemory", 0)
        assert real.members("ann") == {}


@pytest.mark.parametrize("policy", EVICTING)
def test_an_evicting_redis_is_refused_by_every_new_connection(
    own_redis: RedisServer, policy: str
) -> None:
    with reserving(own_redis.url) as real, own_redis.client() as plain:
        real.open()
        plain.config_set("maxmemory-policy", policy)
        with reserving(own_redis.url) as fresh:
            reason = refuses(fresh).reason
        assert policy in reason
        assert "noeviction" in reason
        assert real.members("ann") == {}

        with pytest.raises(ReservationsUnavailable, match=policy):
            real.upkeep.begin()
        assert plain.keys("*:epoch") == [], "existing epochs are taken back"
        refuses(real)

        plain.config_set("maxmemory-policy", "noeviction")
        real.open()
        reserve(real.windows, new_id(), terms=Terms.own("ann"), send_at=NOON)


def test_a_replica_is_refused(own_redis: RedisServer) -> None:
    with reserving(own_redis.url, retries=1) as real, own_redis.client() as plain:
        real.open()
        plain.replicaof("127.0.0.1", 1)
        with pytest.raises(ReservationsUnavailable, match="read-only replica"):
            reserve(real.windows, new_id(), terms=Terms.own("ann"), send_at=NOON)

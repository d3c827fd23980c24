"""Messages take the windows that they share in one order, so that two cannot refuse each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import combinations, product
from threading import Event
from typing import Any

import pytest

from dispatcher.errors import QuotaExceeded
from dispatcher.message import new_id
from dispatcher.quota import Quota
from dispatcher.redis.keys import shard_of
from dispatcher.reservation import Terms
from dispatcher.reservation.booking import Leg, LegRequest
from dispatcher.scope import OWN_SCOPE, Scope, counted
from tests.support.reserving import SHARDS, Booking, Reserving, named, reserve, reserving
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

NOON = datetime(2100, 1, 1, 12, tzinfo=UTC)
ONE = [Quota.parse("1/minute")]
KINDS = {"channel.sms": ONE, "tenant": ONE}
CHANNEL = shard_of("@channel.sms", SHARDS)


def terms(person: int, tenant: int) -> Terms:
    """Return what a message counts against: person and tenant in those shards, and a channel."""
    scopes = {"tenant": named(tenant, "@tenant:{}")}
    return Terms(counted([OWN_SCOPE, *KINDS], scope=named(person), channel="sms", scopes=scopes))


@pytest.fixture
def real(opened: Callable[..., Reserving]) -> Reserving:
    return opened(*ONE, further=KINDS)


def test_windows_that_two_messages_share_are_booked_in_the_same_order(real: Reserving) -> None:
    def places(each: Terms) -> dict[Scope, int]:
        legs = enumerate(real.windows.legs(each))
        return {scope: place for place, leg in legs for scope in leg.scopes}

    every = [terms(*shards) for shards in product(range(SHARDS), repeat=2)]
    for one, other in combinations(map(places, every), 2):
        for first, second in combinations(one.keys() & other.keys(), 2):
            assert (one[first] - one[second]) * (other[first] - other[second]) >= 0


Step = Callable[[Leg], None]
LATE = SHARDS - 1
A, B = terms(0, LATE), terms(LATE, LATE)
WHOLE, TENANT = A.scopes[1], A.scopes[2]


def nothing(_: Leg) -> None:
    pass


def book_slowly(real: Reserving, of: Terms, before: Step, after: Step) -> Booking | None:
    """Book shard by shard, with something to do before and after each; None when refused."""
    book = real.windows.shards.book

    def call(requests: Sequence[LegRequest], **named: Any) -> Any:
        before(requests[0].leg)
        found = book(requests, **named)
        after(requests[0].leg)
        return found

    real.windows.shards.book = call  # type: ignore[method-assign]  # this one, to wait in it
    try:
        return reserve(real.windows, new_id(), terms=of, send_at=NOON)
    except QuotaExceeded:
        return None


def test_of_two_that_want_the_same_last_places_one_gets_them(
    real: Reserving, redis_server: RedisServer
) -> None:
    """The first stops where it has the channel, the other one where it has the tenant, if it can.

    Both go on when each has asked for what the other has.
    """
    assert 0 < CHANNEL < LATE
    has_channel, has_tenant, asked_tenant, is_done = Event(), Event(), Event(), Event()

    def after_one(leg: Leg) -> None:
        if WHOLE in leg.scopes:
            has_channel.set()
            wait_until(lambda: has_tenant.is_set() or is_done.is_set())
        if TENANT in leg.scopes:
            asked_tenant.set()
            is_done.wait(60)

    def before_other(leg: Leg) -> None:
        if WHOLE in leg.scopes and has_tenant.is_set():
            asked_tenant.wait(60)

    def after_other(leg: Leg) -> None:
        if TENANT in leg.scopes:
            has_tenant.set()

    def submit_other(other: Reserving) -> Booking | None:
        has_channel.wait(60)
        try:
            return book_slowly(other, B, before_other, after_other)
        finally:
            is_done.set()

    with reserving(redis_server.url, ONE, further=KINDS) as other, ThreadPoolExecutor(2) as pool:
        first = pool.submit(book_slowly, real, A, nothing, after_one)
        second = pool.submit(submit_other, other)
        assert first.result(60) is not None
        assert second.result(60) is None

"""Many messages are booked in one pipeline; lines break, replies are lost, scripts forgotten."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from dispatcher.errors import ReservationsUnavailable
from dispatcher.message import new_id
from dispatcher.reservation import Bulk, Request, Terms
from dispatcher.times.send_time import to_ms
from tests.support.proxy import Proxy
from tests.support.reserving import Reserving, reserving
from tests.support.servers import RedisServer

NOON = to_ms(datetime(2100, 1, 1, 12, tzinfo=UTC))
PEOPLE = [f"to {number}" for number in range(40)]


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[Proxy]:
    with Proxy(redis_server.socket) as line:
        yield line


@pytest.fixture
def through(proxy: Proxy) -> Iterator[Reserving]:
    with reserving(f"redis://127.0.0.1:{proxy.port}", retries=3, timeout=1.0) as real:
        real.open()
        yield real


def requests(at_ms: int = NOON) -> list[Request]:
    return [Request(new_id(), Terms.plain(name), at_ms, at_ms) for name in PEOPLE]


def booked(real: Reserving, wanted: list[Request]) -> bool:
    """Whether these are booked, each where it belongs and nothing else there."""
    return all(
        real.members(name) == {each.message_id: each.asked_ms}
        for name, each in zip(PEOPLE, wanted, strict=True)
    )


def test_a_line_that_broke_before_is_replaced(through: Reserving, proxy: Proxy) -> None:
    bulk, wanted = Bulk(through.windows), requests()
    through.client.ping()
    proxy.cut_all()
    assert bulk.reserve(wanted) == [NOON] * len(PEOPLE)
    assert booked(through, wanted)


@pytest.mark.parametrize("place", [0, 17, 39])
def test_a_lost_reply_is_asked_for_again(through: Reserving, proxy: Proxy, place: int) -> None:
    bulk, wanted = Bulk(through.windows), requests()
    bulk.reserve(requests(NOON + 86_400_000))  # the line stands and knows the script
    proxy.drop_reply(wanted[place].message_id.bytes)
    assert bulk.reserve(wanted) == [NOON] * len(PEOPLE)
    assert proxy.dropped == 1


def test_a_server_that_forgot_the_script_is_given_it_again(through: Reserving) -> None:
    bulk, wanted = Bulk(through.windows), requests()
    bulk.reserve(requests(NOON + 86_400_000))
    through.client.script_flush()
    assert bulk.reserve(wanted) == [NOON] * len(PEOPLE)


def test_a_server_that_is_away_is_reported(through: Reserving, proxy: Proxy) -> None:
    bulk = Bulk(through.windows)
    proxy.refuse()
    proxy.cut_all()
    with pytest.raises(ReservationsUnavailable):
        bulk.reserve(requests())
    proxy.pass_all()


def test_closed_windows_are_reported(through: Reserving) -> None:
    for shard in range(through.shards):
        through.client.delete(through.fence.keys[shard].epoch)
    with pytest.raises(ReservationsUnavailable, match="rebuild"):
        Bulk(through.windows).reserve(requests())


def test_what_is_withdrawn_leaves_nothing(through: Reserving) -> None:
    bulk = Bulk(through.windows)
    abandoned, wanted = requests(NOON + 1), requests()
    bulk.reserve(abandoned)
    bulk.withdraw(abandoned)
    assert not any(through.members(name) for name in PEOPLE)
    assert bulk.reserve(wanted) == [NOON] * len(PEOPLE)


def test_no_messages_need_no_answer(through: Reserving) -> None:
    assert Bulk(through.windows).reserve([]) == []


def test_no_connection_is_lost_whatever_happens_to_the_replies(
    through: Reserving, proxy: Proxy
) -> None:
    bulk = Bulk(through.windows)
    bulk.reserve(requests())
    before = proxy.accepted
    for _ in range(10):
        bulk.reserve(requests())
    assert proxy.accepted == before
    for _ in range(10):
        through.client.script_flush()
        bulk.reserve(requests())
    pool = cast(Any, through.client.connection_pool)
    assert not pool._in_use_connections

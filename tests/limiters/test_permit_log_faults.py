"""Replies to a permit log's calls are lost, and its scripts are run again under the same words."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from dispatcher import LimitersUnavailable
from dispatcher.limiters import PermitLog, PermitRequest
from dispatcher.times.clock import SystemClock
from tests.support.permits import EPOCH, HOLD, ROOM, Logs, logs_on
from tests.support.proxy import Proxy
from tests.support.servers import RedisServer

TRIES = 3
ONE, TWO, THREE = (PermitRequest(name, ("wide", "log")) for name in (b"one", b"two", b"three"))


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[Proxy]:
    with Proxy(redis_server.socket) as line:
        yield line


@pytest.fixture
def logs(redis_server: RedisServer) -> Iterator[Logs]:
    with logs_on(redis_server, "2/hour") as found:
        yield found


@pytest.fixture
def through(proxy: Proxy) -> Iterator[PermitLog]:
    retry = Retry(NoBackoff(), TRIES)
    with redis.Redis(port=proxy.port, retry=retry, socket_timeout=5) as client:
        yield PermitLog(client, epoch_key=EPOCH, room_key=ROOM, clock=SystemClock())


@pytest.mark.parametrize("lost", [1, TRIES])
def test_permits_are_granted_once_however_often_their_reply_is_lost(
    logs: Logs, through: PermitLog, proxy: Proxy, lost: int
) -> None:
    limits = {"wide": logs.limits, "log": logs.limits}
    through.acquire([ONE], limits, hold=HOLD)
    proxy.drop_reply(b"two", times=lost)
    answers = through.acquire([TWO, THREE], limits, hold=HOLD)
    assert proxy.dropped == lost
    assert [each.allowed for each in answers] == [True, False]
    assert set(logs.members("wide")) == set(logs.members()) == {b"one", b"two"}


def test_without_any_reply_a_permit_may_count_and_is_not_given(
    logs: Logs, through: PermitLog, proxy: Proxy
) -> None:
    proxy.drop_reply(b"one", times=99)
    with pytest.raises(LimitersUnavailable):
        through.acquire([ONE], {"wide": logs.limits, "log": logs.limits}, hold=HOLD)
    assert proxy.dropped == 1 + TRIES
    assert set(logs.members()) == {b"one"}
    proxy.pass_all()
    through.give_back([ONE])
    assert logs.members() == {}


@pytest.mark.parametrize("since_ms", [0, 40, -60_000], ids=["now", "a while ago", "to come"])
@pytest.mark.parametrize("lost", [1, TRIES])
def test_a_permit_that_is_settled_again_never_counts_from_earlier(
    logs: Logs, through: PermitLog, proxy: Proxy, since_ms: int, lost: int
) -> None:
    logs.acquire(b"one", b"two", logs=["wide", "log"])
    before = logs.members()[b"two"]
    proxy.drop_reply(b"one", times=lost)
    asked = logs.now()
    through.settle([(ONE, timedelta(milliseconds=since_ms))])
    answered = logs.now()
    assert proxy.dropped == lost
    for log in ("wide", "log"):
        found = logs.members(log)
        assert asked < found[b"one"] + since_ms <= answered + 1
        assert found[b"two"] == before

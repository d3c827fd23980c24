"""What every limiter does where Redis answers late, not at all, or has lost everything."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry

from dispatcher import LimitersUnavailable
from dispatcher.limiters import Algorithm, FixedWindow, State
from dispatcher.limiters.limit_set import OnError
from dispatcher.redis.client import repeated
from tests.support.limiters import ALL, Ways, taken
from tests.support.proxy import Proxy
from tests.support.servers import RedisServer

every = pytest.mark.parametrize("make", ALL.values(), ids=ALL)
Make = Callable[[int], Algorithm]


@every
def test_a_call_whose_reply_was_lost_takes_one_permit(
    make: Make, redis_server: RedisServer
) -> None:
    with (
        Proxy(redis_server.socket) as proxy,
        redis.Redis(port=proxy.port, **repeated(Retry(NoBackoff(), 3))) as client,
        redis_server.client() as direct,
    ):
        limiter = make(5).on(client)
        limiter.acquire("warm")
        proxy.drop_reply(b"{limits:ada}", times=3)
        assert limiter.acquire("ada").allowed
        assert proxy.dropped == 3
        assert make(5).on(direct).peek("ada").remaining == 4


@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_redis_that_does_not_answer_is_an_error_or_unknown(
    way: str, own_redis: RedisServer
) -> None:
    limiter = Ways(FixedWindow(2, "minute"), way, {"unix_socket_path": str(own_redis.socket)})
    lenient = replace(limiter, options={"on_error": "unknown"})
    assert lenient.acquire("ada").state is State.ALLOWED
    own_redis.stop()
    with pytest.raises(LimitersUnavailable):
        limiter.acquire("ada")
    decision = lenient.acquire("ada")
    assert (decision.state, decision.allowed) == (State.UNKNOWN, False)
    assert lenient.peek("ada").state is State.UNKNOWN
    allowing = replace(limiter, options={"on_error": "allow"})
    decision = allowing.acquire("ada")
    assert (decision.state, decision.allowed, decision.granted) == (State.UNKNOWN, True, 0)
    own_redis.start()
    assert limiter.acquire("ada").allowed


@pytest.mark.parametrize("on_error", ["raise", "unknown", "allow"])
def test_a_full_pool_is_no_outage(redis_server: RedisServer, on_error: OnError) -> None:
    limit = FixedWindow(5, "minute")
    path = str(redis_server.socket)
    full = partial(pytest.raises, LimitersUnavailable, match="its pool is full")
    with (
        redis.Redis(unix_socket_path=path, max_connections=1) as client,
        client.pubsub() as listener,
    ):
        listener.subscribe("the only connection")
        with full():
            limit.on(client, on_error=on_error).acquire("ada")

    async def acquire() -> None:
        only = redis.asyncio.Redis(unix_socket_path=path, max_connections=1)
        async with only as client, client.pubsub() as listener:
            await listener.subscribe("the only connection")
            with full():
                await limit.on(client, on_error=on_error).acquire("ada")

    asyncio.run(acquire())


def test_a_block_runs_without_redis_only_where_all_is_allowed(own_redis: RedisServer) -> None:
    again = Retry(NoBackoff(), 0)
    with redis.Redis(unix_socket_path=str(own_redis.socket), retry=again) as client:
        own_redis.stop()
        with FixedWindow(2, "minute").on(client, on_error="allow").permit("ada") as decision:
            assert (decision.state, decision.granted) == (State.UNKNOWN, 0)
        blocked = FixedWindow(2, "minute").on(client, on_error="unknown").permit("ada")
        with pytest.raises(LimitersUnavailable), blocked:
            pass


@every
def test_a_redis_that_may_not_write_takes_nothing(make: Make, own_redis: RedisServer) -> None:
    with own_redis.client() as client:
        limiter = make(2).on(client)
        client.config_set("maxmemory", 1)
        with pytest.raises(LimitersUnavailable, match="out of memory"):
            limiter.acquire("ada")
        assert client.keys("*") == []
        client.config_set("maxmemory", 0)
        client.replicaof("127.0.0.1", "1")
        with pytest.raises(LimitersUnavailable, match="read-only replica"):
            limiter.acquire("ada")
        client.replicaof("NO", "ONE")
        assert taken(limiter, "ada", 3) == 2

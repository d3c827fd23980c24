"""What every limiter does where Redis answers late, not at all, or has lost everything."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from dispatcher import InvalidValue, LimitersUnavailable
from dispatcher.limiters import Algorithm, Concurrency, CoolDown, FixedWindow, State
from dispatcher.limiters.limit_set import OnError
from dispatcher.redis.client import repeated
from tests.support.clock import MovableClock
from tests.support.limiters import ALL, Ways, taken
from tests.support.proxy import Proxy
from tests.support.servers import RedisServer

every = pytest.mark.parametrize("make", ALL.values(), ids=ALL)
Make = Callable[[int], Algorithm]


class OneLimiter:
    """One limiter that decides alone without Redis, called the same way through either client."""

    def __init__(
        self, limit: Algorithm, path: str, way: str, *, share: float, clock: MovableClock
    ) -> None:
        client: Any = redis.Redis(unix_socket_path=path, retry=Retry(NoBackoff(), 0))
        if way == "async":
            again = AsyncRetry(NoBackoff(), 0)
            client = redis.asyncio.Redis(unix_socket_path=path, retry=again)
        self._client = client
        self._limiter: Any = limit.on(client, on_error="local", share=share, clock=clock)

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._limiter, name)
        if isinstance(self._client, redis.Redis):
            return call

        async def run(*args: Any, **named: Any) -> Any:
            try:
                return await call(*args, **named)
            finally:
                await self._client.aclose()  # its connections belong to this loop

        return lambda *args, **named: asyncio.run(run(*args, **named))


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


@every
def test_after_a_flush_counting_begins_anew(make: Make, redis_client: redis.Redis) -> None:
    limiter = make(2).on(redis_client)
    assert taken(limiter, "ada", 3) == 2
    redis_client.flushall()
    redis_client.script_flush()
    assert taken(limiter, "ada", 3) == 2


@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_redis_that_does_not_answer_is_an_error_or_unknown(
    way: str, own_redis: RedisServer
) -> None:
    limiter = Ways(FixedWindow(2, "minute"), str(own_redis.socket), way)
    lenient = Ways(limiter.limit, limiter.path, way, {"on_error": "unknown"})
    assert lenient.acquire("ada").state is State.ALLOWED
    own_redis.stop()
    with pytest.raises(LimitersUnavailable):
        limiter.acquire("ada")
    decision = lenient.acquire("ada")
    assert (decision.state, decision.allowed) == (State.UNKNOWN, False)
    assert lenient.peek("ada").state is State.UNKNOWN
    own_redis.start()
    assert limiter.acquire("ada").allowed


@every
@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_process_gives_its_share_while_redis_is_away(
    make: Make, way: str, own_redis: RedisServer
) -> None:
    """The promise: no more than the share, whatever the algorithm, and Redis decides again."""
    clock = MovableClock()
    limiter = OneLimiter(make(10), str(own_redis.socket), way, share=0.35, clock=clock)
    before = limiter.acquire("ada", permit="on redis")
    assert (before.is_local, before.remaining) == (False, 9)
    own_redis.stop()
    alone = [limiter.acquire("ada", permit=str(number)) for number in range(6)]
    assert [each.allowed for each in alone] == [True] * 3 + [False] * 3
    assert all(each.is_local for each in alone)
    assert {each.limit for each in alone} == {3}
    assert alone[-1].refused_by == str(make(10))
    assert limiter.acquire("ada", permit="1").allowed, "asked for again: counted once"
    assert limiter.give_back("ada", "0") == 1
    assert limiter.acquire("ada").allowed
    with pytest.raises(LimitersUnavailable):
        limiter.give_back("ada", "on redis")

    own_redis.start()
    assert limiter.acquire("ada").is_local, "Redis is asked once a second"
    clock.advance(timedelta(seconds=1))
    again = limiter.acquire("ada")
    assert (again.is_local, again.allowed, again.limit) == (False, True, 10)
    assert limiter.give_back("ada", "1") == 1, "the share knows its permits"


@pytest.mark.parametrize("on_error", ["raise", "unknown", "local"])
@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_full_pool_is_no_outage(redis_server: RedisServer, way: str, on_error: OnError) -> None:
    """Redis is up: a local share would come on top of the limit."""
    named: Any = {"share": 0.5} if on_error == "local" else {}
    path = str(redis_server.socket)
    if way == "sync":
        client = redis.Redis(unix_socket_path=path, max_connections=1)
        limiter = FixedWindow(5, "minute").on(client, on_error=on_error, **named)
        with client.pubsub() as listener:
            listener.subscribe("the only connection")
            with pytest.raises(LimitersUnavailable, match="its pool is full"):
                limiter.acquire("ada")
        return

    async def acquire() -> None:
        client = redis.asyncio.Redis(unix_socket_path=path, max_connections=1)
        limiter = FixedWindow(5, "minute").on(client, on_error=on_error, **named)
        async with client.pubsub() as listener:
            await listener.subscribe("the only connection")
            with pytest.raises(LimitersUnavailable, match="its pool is full"):
                await limiter.acquire("ada")
        await client.aclose()

    asyncio.run(acquire())


def test_a_wait_that_redis_does_not_outlive_has_one_timeout(own_redis: RedisServer) -> None:
    """The share goes on with what is left of the timeout, not with a new one."""

    class RedisStops(MovableClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            own_redis.stop()
            other = limiter.acquire("ada")  # takes the share
            assert other.is_local

    clock, window = RedisStops(), timedelta(minutes=10)
    limiter = OneLimiter(FixedWindow(2, window), str(own_redis.socket), "sync", share=0.5,
                         clock=clock)  # fmt: skip
    limiter.acquire("ada", 2)
    began = clock.monotonic()
    decision = limiter.acquire("ada", wait=True, timeout=window * 1.5)
    assert (decision.is_local, decision.allowed) == (True, False)
    assert clock.monotonic() - began <= 1.5 * window.total_seconds()


@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_hold_of_the_share_lasts_and_ends_whether_redis_is_back_or_not(
    way: str, own_redis: RedisServer
) -> None:
    clock = MovableClock()
    limiter = OneLimiter(Concurrency(4), str(own_redis.socket), way, share=0.25, clock=clock)
    own_redis.stop()
    assert limiter.acquire("ada", permit="mine").allowed
    clock.advance(timedelta(seconds=20))
    assert limiter.renew("ada", "mine")
    own_redis.start()
    clock.advance(timedelta(seconds=20))
    assert limiter.renew("ada", "mine")
    assert limiter.end_holds("ada", "mine") == 1
    assert not limiter.renew("ada", "mine")


def test_a_cool_down_holds_also_without_redis(own_redis: RedisServer) -> None:
    limiter = OneLimiter(CoolDown(), str(own_redis.socket), "sync", share=1, clock=MovableClock())
    limiter.close("provider", timedelta(minutes=1))
    own_redis.stop()
    assert not limiter.acquire("provider")


@pytest.mark.parametrize("share", [None, 0, -1, 1.5, True, "half", float("nan")])
def test_a_share_is_a_part_of_the_limit(share: Any) -> None:
    with pytest.raises(InvalidValue, match="share"):
        FixedWindow(5, "day").on(redis.Redis(), on_error="local", share=share)


def test_a_share_is_for_a_limiter_that_uses_it() -> None:
    with pytest.raises(InvalidValue, match="share"):
        FixedWindow(5, "day").on(redis.Redis(), share=0.5)


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

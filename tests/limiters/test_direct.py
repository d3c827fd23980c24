"""Calls that go past redis-py's own way: what is sent, and what happens when a line breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial, wraps
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.exceptions import ReadOnlyError
from redis.retry import Retry

from dispatcher import LimitersUnavailable
from dispatcher.limiters import FixedWindow, Limits, SlidingLog
from dispatcher.limiters.direct_calls import DirectCalls, PooledCalls
from tests.support.limiters import ALL, Ways
from tests.support.proxy import Proxy
from tests.support.servers import RedisServer

pytest.importorskip("redis.observability", reason="with an older redis-py no call goes this way")

FIVE = FixedWindow(5, "minute")
SEVERAL = Limits([FIVE, SlidingLog(9, "hour")])
TRIES = 3
both_ways = pytest.mark.parametrize("way", ["sync", "async"])


@pytest.fixture
def past(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Give the keys of calls that go past redis-py's way."""
    keys: list[str] = []
    real = PooledCalls.command

    def command(self: PooledCalls, key: str, request: Any) -> bytes:
        keys.append(key)
        return real(self, key, request)

    monkeypatch.setattr(PooledCalls, "command", command)
    return keys


@pytest.fixture
def through(proxy: Proxy) -> Iterator[redis.Redis]:
    again = Retry(NoBackoff(), TRIES)
    with redis.Redis(port=proxy.port, retry=again, retry_on_error=[ReadOnlyError]) as client:
        FIVE.on(client).acquire("ada")
        yield client


def once(monkeypatch: pytest.MonkeyPatch, name: str, error: BaseException) -> None:
    """Let a connection raise an error right after it next does what is named."""
    real = getattr(redis.Connection, name)

    def call(*positional: Any, **named: Any) -> Any:
        monkeypatch.setattr(redis.Connection, name, real)
        real(*positional, **named)
        raise error

    monkeypatch.setattr(redis.Connection, name, call)


def in_use(client: redis.Redis) -> int:
    pool: Any = client.connection_pool
    return len(pool._in_use_connections)


@both_ways
@pytest.mark.parametrize(("lost", "granted"), [(1, True), (TRIES, True), (99, False)])
def test_a_call_is_made_as_often_as_redis_py_would_make_it(
    lost: int, granted: bool, way: str, proxy: Proxy
) -> None:
    limiter = Ways(SEVERAL, way, {"port": proxy.port}, {"on_error": "unknown"})
    limiter.acquire("warm")
    proxy.drop_reply(b"{limits:ada}", times=lost)
    assert limiter.acquire("ada").allowed is granted
    assert proxy.dropped == min(lost, 1 + TRIES)
    proxy.pass_all()
    assert limiter.acquire("ada", n=0).remaining == 4


@both_ways
@pytest.mark.parametrize(
    ("option", "goes_past"),
    [({}, True), ({"single_connection_client": True}, False), ({"decode_responses": True}, True),
     ({"protocol": 3}, True)],
)  # fmt: skip
def test_clients_of_any_kind_are_answered_alike(
    option: dict[str, Any],
    goes_past: bool,
    way: str,
    *,
    past: list[str],
    redis_server: RedisServer,
    redis_client: redis.Redis,
) -> None:
    limiter = Ways(SEVERAL, way, {"unix_socket_path": str(redis_server.socket), **option})
    assert [limiter.acquire("ada").remaining for _ in range(4)] == [4, 3, 2, 1]
    redis_client.script_flush()
    assert [limiter.acquire("ada").remaining for _ in range(2)] == [0, 0]
    assert bool(past) is goes_past


@pytest.mark.parametrize("moment", ["send_packed_command", "read_response"])
def test_no_reply_is_taken_for_that_of_another_call(
    through: redis.Redis, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    once(monkeypatch, moment, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        FIVE.on(through).acquire("ben")
    assert in_use(through) == 0
    assert through.echo("mine") == b"mine"
    assert FIVE.on(through).peek("ben").remaining == 4


def test_an_error_reply_is_raised_and_keeps_the_connection(
    through: redis.Redis, proxy: Proxy
) -> None:
    lines, state = proxy.accepted, "{limits:ada}:fixed_window-5-60000"
    assert through.delete(state) == 1
    through.rpush(state, "no text")
    with pytest.raises(LimitersUnavailable, match="WRONGTYPE"):
        FIVE.on(through).acquire("ada")
    assert in_use(through) == 0
    assert FIVE.on(through).acquire("ben").allowed
    assert proxy.accepted == lines


def test_errors_of_retry_on_error_are_repeated_on_a_new_connection(
    through: redis.Redis, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = proxy.accepted
    once(monkeypatch, "read_response", ReadOnlyError("a read only replica"))
    assert FIVE.on(through).acquire("ada").remaining == 3
    assert proxy.accepted == lines + 1, "the name may lead to another server by now"
    assert in_use(through) == 0


def test_a_cancelled_call_leaves_no_reply_to_another(proxy: Proxy) -> None:
    async def story() -> None:
        async with redis.asyncio.Redis(port=proxy.port, max_connections=1) as client:
            limiter = SEVERAL.on(client)
            await limiter.acquire("warm")
            for steps in range(12):
                call = asyncio.create_task(limiter.acquire(f"ada {steps}", permit="x"))
                for _ in range(steps):
                    await asyncio.sleep(0)
                call.cancel()
                await asyncio.wait([call])
                assert await client.echo("mine") == b"mine"
                assert (await limiter.acquire(f"ada {steps}", permit="x")).remaining == 4

    asyncio.run(story())


class Instrumented:
    """What tracers put in the place of a method: it looks like the method, and calls it."""

    def __init__(self, method: Any) -> None:
        self._method = method

    def __getattr__(self, name: str) -> Any:
        return getattr(self._method, name)

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._method(*args, **options)


class Traced(redis.Redis):
    """A subclass may see commands in any way."""


class AsyncTraced(redis.asyncio.Redis):
    """As above."""


def wrapped(method: Any) -> Any:
    @wraps(method)
    def call(*args: Any, **options: Any) -> Any:
        return method(*args, **options)

    return call


METRICS = "redis.observability.ObservabilityInstance.is_enabled"
Watch = Callable[[pytest.MonkeyPatch, Any], object]
WATCHED: dict[str, Watch] = {
    "replaced": lambda patch, client: patch.setattr(
        client, "execute_command", partial(client.execute_command)
    ),
    "instrumented": lambda patch, client: patch.setattr(
        client, "execute_command", Instrumented(client.execute_command)
    ),
    "wrapped": lambda patch, client: patch.setattr(
        type(client), "execute_command", wrapped(type(client).execute_command)
    ),
    "measured": lambda patch, _: patch.setattr(METRICS, lambda _: True),
    "a subclass": lambda *_: None,
}


@both_ways
@pytest.mark.parametrize("how", WATCHED)
def test_a_client_that_is_watched_makes_every_call(
    how: str, way: str, past: list[str], redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    traced: tuple[Any, Any] = (Traced, AsyncTraced)
    kinds = traced if how == "a subclass" else (redis.Redis, redis.asyncio.Redis)
    client: Any = kinds[way == "async"](unix_socket_path=str(redis_server.socket))

    async def awaited() -> Any:
        async with client:
            return await FIVE.on(client).acquire("ada")

    with monkeypatch.context() as patch:
        WATCHED[how](patch, client)
        asked: Any = asyncio.run(awaited()) if way == "async" else FIVE.on(client).acquire("ada")
    assert (asked.remaining, past) == (4, [])


@pytest.mark.parametrize("tag", [None, "t"])
def test_commands_are_packed_as_by_redis_py(tag: str | None, redis_client: redis.Redis) -> None:
    connection: Any = redis_client.connection_pool.get_connection()
    limit_set = Limits([make(7) for make in ALL.values()]).on(redis_client, tag=tag)._limit_set
    calls = DirectCalls(redis_client, limit_set, "5" * 40)
    for key in ("a", "ada", "\0", "a\0b", "$1\r\n", "x" * 1_024):
        for request in (("p" * 20, 1, 1), ("order 17 é", 12, 1)):
            names = limit_set.key_names(key)
            words = (limit_set.span, *limit_set.words(limit_set.server_ms()), *request)
            expected = connection.pack_command("EVALSHA", "5" * 40, len(names), *names, *words)
            assert calls.command(key, request) == b"".join(expected)
    redis_client.connection_pool.release(connection)

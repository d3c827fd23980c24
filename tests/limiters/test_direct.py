"""Calls that go past redis-py's own way: what is sent, and what happens when a line breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.exceptions import ReadOnlyError
from redis.retry import Retry

from dispatcher import LimitersUnavailable
from dispatcher.limiters import (
    FixedWindow,
    Limits,
    SlidingLog,
)
from dispatcher.limiters.direct_calls import AsyncDirectCalls, DirectCalls
from tests.support.limiters import ALL, Ways
from tests.support.proxy import Proxy
from tests.support.servers import RedisServer

pytest.importorskip("redis.observability", reason="with an older redis-py no call goes this way")

FIVE = FixedWindow(5, "minute")
SEVERAL = Limits([FIVE, SlidingLog(9, "hour")])
TRIES = 3


@pytest.fixture
def through(proxy: Proxy) -> Iterator[redis.Redis]:
    with redis.Redis(port=proxy.port, retry=Retry(NoBackoff(), TRIES), socket_timeout=5) as client:
        FIVE.on(client).acquire("warm")
        yield client


def once(monkeypatch: pytest.MonkeyPatch, name: str, act: Callable[[], object]) -> None:
    """Let something happen right after a connection next does what is named."""
    real, left = getattr(redis.Connection, name), [act]

    def call(*positional: Any, **named: Any) -> Any:
        answer = real(*positional, **named)
        if left:
            left.pop()()
        return answer

    monkeypatch.setattr(redis.Connection, name, call)


def calls(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Write down what goes past redis-py's way."""
    found: list[object] = []

    def noted(of: type) -> None:
        real = of.__dict__["call"]

        def call(self: Any, command: Any, *more: Any) -> Any:
            found.append(command)
            return real(self, command, *more)

        monkeypatch.setattr(of, "call", call)

    noted(DirectCalls)
    noted(AsyncDirectCalls)
    return found


def in_use(client: redis.Redis) -> int:
    pool: Any = client.connection_pool
    return len(pool._in_use_connections)


def interrupt() -> None:
    raise KeyboardInterrupt


both_ways = pytest.mark.parametrize("way", ["sync", "async"])


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
    ("kwargs", "directly"),
    [
        ({}, True),
        ({"single_connection_client": True}, False),
        ({"decode_responses": True}, True),
        ({"protocol": 3}, True),
    ],
)
def test_clients_of_any_kind_are_answered_alike(
    kwargs: dict[str, Any],
    directly: bool,
    way: str,
    *,
    proxy: Proxy,
    redis_client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    past = calls(monkeypatch)
    limiter = Ways(SEVERAL, way, {"port": proxy.port, **kwargs})
    assert [limiter.acquire("ada").remaining for _ in range(4)] == [4, 3, 2, 1]
    redis_client.script_flush()
    assert [limiter.acquire("ada").remaining for _ in range(2)] == [0, 0]
    assert bool(past) is directly


@pytest.mark.parametrize("moment", ["send_packed_command", "read_response"])
def test_no_reply_is_taken_for_that_of_another_call(
    through: redis.Redis, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limiter = FIVE.on(through)
    once(monkeypatch, moment, interrupt)
    with pytest.raises(KeyboardInterrupt):
        limiter.acquire("ada")
    assert in_use(through) == 0
    assert through.echo("mine") == b"mine"
    assert limiter.acquire("ben").remaining == 4
    assert limiter.peek("ada").remaining == 4


def test_an_error_reply_is_raised_and_keeps_the_connection(
    through: redis.Redis, proxy: Proxy
) -> None:
    limiter = FIVE.on(through)
    limiter.acquire("ada")
    lines, state = proxy.accepted, "{limits:ada}:fixed_window-5-60000"
    assert through.delete(state) == 1
    through.rpush(state, "no text")
    with pytest.raises(LimitersUnavailable, match="WRONGTYPE"):
        limiter.acquire("ada")
    assert in_use(through) == 0
    assert limiter.acquire("ben").allowed
    assert proxy.accepted == lines


def test_errors_of_retry_on_error_are_repeated_on_a_new_connection(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_over() -> None:
        raise ReadOnlyError("You can't write against a read only replica.")

    retry = Retry(NoBackoff(), TRIES)
    with redis.Redis(port=proxy.port, retry=retry, retry_on_error=[ReadOnlyError]) as client:
        limiter = FIVE.on(client)
        limiter.acquire("ada")
        lines = proxy.accepted
        once(monkeypatch, "read_response", fail_over)
        assert limiter.acquire("ada").remaining == 3
        assert proxy.accepted == lines + 1, "the name may lead to another server by now"
        assert in_use(client) == 0


class Instrumented:
    """What tracers put in the place of a method: it looks like the method, and calls it."""

    def __init__(self, method: Any, seen: list[object]) -> None:
        self._method = method
        self._seen = seen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._method, name)

    def __call__(self, *args: Any, **options: Any) -> Any:
        self._seen.append(args[0])
        return self._method(*args, **options)


def replaced(method: Any, seen: list[object]) -> Any:
    def call(*args: Any, **options: Any) -> Any:
        seen.extend(args)  # a method of the class is given the client first
        return method(*args, **options)

    return call


def wrapped(method: Any, seen: list[object]) -> Any:
    return wraps(method)(replaced(method, seen))


@pytest.mark.parametrize(
    ("of_class", "replace"), [(False, replaced), (False, Instrumented), (True, wrapped)]
)
def test_a_client_whose_method_is_replaced_sees_every_call(
    of_class: bool, replace: Any, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    limiter, seen = FIVE.on(redis_client), list[object]()
    limiter.acquire("ada")
    past = calls(monkeypatch)
    target: Any = redis.Redis if of_class else redis_client
    monkeypatch.setattr(target, "execute_command", replace(target.execute_command, seen))
    limiter.acquire("ada")
    assert ("EVALSHA" in seen, past) == (True, [])


class Traced(redis.Redis):
    """A subclass may see commands in any way."""


class AsyncTraced(redis.asyncio.Redis):
    """As above."""


def test_a_subclass_of_the_client_sees_every_call(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    past, path = calls(monkeypatch), str(redis_server.socket)

    async def story() -> None:
        async with AsyncTraced(unix_socket_path=path) as client:
            assert (await FIVE.on(client).acquire("ada")).remaining == 4

    asyncio.run(story())
    with Traced(unix_socket_path=path) as client:
        assert FIVE.on(client).acquire("ada").remaining == 3
    assert past == []


@both_ways
def test_the_metrics_of_redis_py_count_every_call(
    way: str, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    past = calls(monkeypatch)
    limiter = Ways(FIVE, way, {"unix_socket_path": str(redis_server.socket)})
    with monkeypatch.context() as measured:
        measured.setattr("redis.observability.ObservabilityInstance.is_enabled", lambda _: True)
        assert limiter.acquire("ada").remaining == 4
    assert past == []
    assert limiter.acquire("ada").remaining == 3
    assert len(past) == 1


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


@pytest.mark.parametrize("tag", [None, "t"])
@pytest.mark.parametrize("key", ["a", "ada", "\0", "a\0b", "$1\r\n", "x" * 1_024])
def test_commands_are_packed_as_by_redis_py(
    key: str, tag: str | None, redis_client: redis.Redis
) -> None:
    connection: Any = redis_client.connection_pool.get_connection()
    limiter = Limits([make(7) for make in ALL.values()]).on(redis_client, tag=tag)
    limit_set = limiter._limit_set
    names, sha = limit_set.key_names(key), "5" * 40
    calls = DirectCalls(redis_client, limit_set, sha)
    for request in (("p" * 20, 1, 1), ("order 17 é", 12, 1)):
        words = (limit_set.span, *limit_set.words(limit_set.server_ms()), *request)
        expected = connection.pack_command("EVALSHA", sha, len(names), *names, *words)
        assert calls.command(key, request) == b"".join(expected)
    redis_client.connection_pool.release(connection)

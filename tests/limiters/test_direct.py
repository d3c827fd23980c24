"""Calls that go past redis-py's own way: what is sent, and what happens when a line breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, ClassVar, cast

import pytest
import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import ReadOnlyError
from redis.retry import Retry

from dispatcher import LimitersUnavailable
from dispatcher.limiters import (
    AsyncLimiter,
    Decision,
    FixedWindow,
    Limiter,
    Limits,
    SlidingLog,
    State,
)
from dispatcher.limiters.direct_calls import AsyncDirectCalls, Commands, DirectCalls
from tests.support.limiters import ALL
from tests.support.proxy import Proxy
from tests.support.servers import RedisServer

pytest.importorskip("redis.observability", reason="with an older redis-py no call goes this way")

FIVE = FixedWindow(5, "minute")
SEVERAL = Limits([FIVE, SlidingLog(9, "hour")])
TRIES = 3


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[Proxy]:
    with Proxy(redis_server.socket) as line:
        yield line


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


@pytest.mark.parametrize("permit", [None, "order 17"])
def test_a_line_that_breaks_before_the_reply_is_read_takes_one_permit(
    through: redis.Redis, proxy: Proxy, permit: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    limiter = SEVERAL.on(through)
    once(monkeypatch, "send_packed_command", proxy.cut_all)
    assert limiter.acquire("ada", permit=permit).allowed
    assert limiter.peek("ada").remaining == 4
    assert in_use(through) == 0


@pytest.mark.parametrize(("lost", "granted"), [(1, True), (TRIES, True), (99, False)])
def test_a_call_is_made_as_often_as_redis_py_would_make_it(
    lost: int, granted: bool, through: redis.Redis, proxy: Proxy
) -> None:
    limiter = SEVERAL.on(through, on_error="unknown")
    proxy.drop_reply(b"{limits:ada}", times=lost)
    assert limiter.acquire("ada").allowed is granted
    assert proxy.dropped == min(lost, 1 + TRIES)
    proxy.pass_all()
    assert limiter.peek("ada").remaining == 4


class Backoff(NoBackoff):
    """Writes down for how many failures it was asked."""

    asked: ClassVar[list[int]] = []

    def compute(self, failures: int) -> float:
        """Return no time to wait."""
        self.asked.append(failures)
        return 0


def test_a_call_is_repeated_after_the_pauses_of_the_client(proxy: Proxy) -> None:
    with redis.Redis(port=proxy.port, retry=Retry(Backoff(), TRIES)) as client:
        FIVE.on(client).acquire("ada")
        Backoff.asked.clear()
        proxy.drop_reply(b"{limits:ada}", times=2)
        assert FIVE.on(client).acquire("ada").remaining == 3
    assert Backoff.asked == [1, 2]


def test_a_client_that_repeats_nothing_is_told_at_once(proxy: Proxy) -> None:
    with redis.Redis(port=proxy.port, retry=Retry(NoBackoff(), 0)) as client:
        limiter = FIVE.on(client)
        limiter.acquire("ada")
        proxy.drop_reply(b"{limits:ada}", times=9)
        with pytest.raises(LimitersUnavailable):
            limiter.acquire("ada")
        assert proxy.dropped == 1
        assert FIVE.on(client, on_error="unknown").acquire("ada").state is State.UNKNOWN
        proxy.pass_all()
        assert limiter.acquire("ada").remaining == 1


def test_a_server_that_forgot_the_script_is_given_it_again(
    through: redis.Redis, proxy: Proxy
) -> None:
    limiter = FIVE.on(through)
    limiter.acquire("ada")
    lines = proxy.accepted
    for left in (3, 2):
        through.script_flush()
        assert limiter.acquire("ada").remaining == left
    assert proxy.accepted == lines, "an answer is no reason to leave the line"


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


def test_a_pool_without_a_free_connection_is_reported(redis_server: RedisServer) -> None:
    with redis.Redis(unix_socket_path=str(redis_server.socket), max_connections=1) as client:
        limiter, lenient = FIVE.on(client), FIVE.on(client, on_error="unknown")
        taken = client.connection_pool.get_connection()
        for each in (limiter, lenient):
            with pytest.raises(LimitersUnavailable, match="its pool is full"):
                each.acquire("ada")
        client.connection_pool.release(taken)
        assert [limiter.acquire("ada").remaining for _ in range(3)] == [4, 3, 2]


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


def test_a_call_that_is_repeated_keeps_its_connection(proxy: Proxy) -> None:
    with redis.Redis(port=proxy.port, retry=Retry(NoBackoff(), TRIES), max_connections=1) as client:
        limiter = FIVE.on(client)
        limiter.acquire("ada")
        found: list[object] = []

        class Meanwhile(NoBackoff):
            def compute(self, failures: int) -> float:
                with pytest.raises(redis.ConnectionError):
                    client.connection_pool.get_connection()
                found.append(failures)
                return 0

        connection: Any = client.connection_pool.get_connection()
        connection.retry = Retry(Meanwhile(), TRIES)
        client.connection_pool.release(connection)
        proxy.drop_reply(b"{limits:ada}", times=1)
        assert limiter.acquire("ada").remaining == 3
    assert found == [1]


class Traced(redis.Redis):
    """A client of the caller's own."""

    seen = 0

    def execute_command(self, *args: Any, **options: Any) -> Any:
        self.seen += args[0] == "EVALSHA"
        real: Any = super().execute_command
        return real(*args, **options)


def test_a_subclass_of_the_client_sees_every_call(
    redis_server: RedisServer, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    past = calls(monkeypatch)
    with Traced(unix_socket_path=str(redis_server.socket)) as traced:
        limiter = FIVE.on(traced)
        limiter.acquire("ada")
        limiter.peek("ada")
        assert (traced.seen >= 2, past) == (True, [])
    limiter, seen = FIVE.on(redis_client), list[object]()
    real: Any = redis_client.execute_command

    def patched(*args: Any, **options: Any) -> Any:
        seen.append(args[0])
        return real(*args, **options)

    monkeypatch.setattr(redis_client, "execute_command", patched)
    limiter.acquire("ada")
    assert ("EVALSHA" in seen, past) == (True, [])


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


def test_an_instrumented_client_sees_every_call(
    redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []
    limiter = FIVE.on(redis_client)
    limiter.acquire("ada")
    past = calls(monkeypatch)
    instrumented = Instrumented(redis_client.execute_command, seen)
    monkeypatch.setattr(redis_client, "execute_command", instrumented)
    limiter.acquire("ada")
    assert ("EVALSHA" in seen, past) == (True, [])


def test_a_class_that_is_wrapped_sees_every_call(
    redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    past, seen = calls(monkeypatch), list[object]()
    real: Any = redis.Redis.execute_command

    @wraps(real)
    def traced(self: redis.Redis, *args: Any, **options: Any) -> Any:
        seen.append(args[0])
        return real(self, *args, **options)

    monkeypatch.setattr(redis.Redis, "execute_command", traced)
    FIVE.on(redis_client).acquire("ada")
    assert ("EVALSHA" in seen, past) == (True, [])


def test_the_metrics_of_redis_py_count_every_call(
    redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    past, limiter = calls(monkeypatch), FIVE.on(redis_client)
    monkeypatch.setattr("redis.observability.ObservabilityInstance.is_enabled", lambda _: True)
    assert limiter.acquire("ada").remaining == 4
    assert past == []
    monkeypatch.undo()
    past = calls(monkeypatch)
    assert limiter.acquire("ada").remaining == 3
    assert len(past) == 1


@pytest.mark.parametrize(
    ("kwargs", "directly"),
    [
        ({"single_connection_client": True}, False),
        ({"decode_responses": True}, True),
        ({"protocol": 3}, True),
    ],
)
def test_clients_of_any_kind_are_answered_alike(
    kwargs: dict[str, Any],
    directly: bool,
    redis_server: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    past = calls(monkeypatch)
    with redis.Redis(unix_socket_path=str(redis_server.socket), **kwargs) as client:
        limiter = SEVERAL.on(client)
        assert [limiter.acquire("ada").remaining for _ in range(6)] == [4, 3, 2, 1, 0, 0]
    assert bool(past) is directly


@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_call_that_is_not_remembered_goes_the_same_way(
    way: str, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    past = calls(monkeypatch)
    with Proxy(redis_server.socket) as proxy:
        limiter = Awaited(proxy, way, FIVE, remember=None)
        limiter.acquire("ada")
        assert len(past) == 1
        proxy.drop_reply(b"{limits:ada}", times=1)
        assert limiter.acquire("ada").remaining == 2, "it counts twice, as redis-py repeats it"
        assert proxy.dropped == 1


class Awaited:
    """A limiter whose calls are made in an event loop of their own where that is the way."""

    def __init__(self, proxy: Proxy, way: str, limit: FixedWindow, **more: Any) -> None:
        self.proxy, self.way, self.limit, self.more = proxy, way, limit, more

    def acquire(self, key: str, **asked: Any) -> Decision:
        if self.way == "sync":
            retry = Retry(NoBackoff(), TRIES)
            with redis.Redis(port=self.proxy.port, retry=retry) as client:
                limiter: Limiter = self.limit.on(client, **self.more)
                return limiter.acquire(key, **asked)
        return asyncio.run(self._acquire(key, **asked))

    async def _acquire(self, key: str, **asked: Any) -> Decision:
        async with client_of(self.proxy) as client:
            limiter: AsyncLimiter = self.limit.on(client, **self.more)
            return await limiter.acquire(key, **asked)


def client_of(proxy: Proxy, **more: Any) -> redis.asyncio.Redis:
    retry = AsyncRetry(NoBackoff(), TRIES)
    return redis.asyncio.Redis(port=proxy.port, retry=retry, socket_timeout=5, **more)


@pytest.mark.parametrize(("lost", "granted"), [(1, True), (TRIES, True), (99, False)])
def test_an_awaited_call_is_made_as_often_as_redis_py_would_make_it(
    lost: int, granted: bool, proxy: Proxy
) -> None:
    async def story() -> None:
        async with client_of(proxy) as client:
            limiter = SEVERAL.on(client, on_error="unknown")
            await limiter.acquire("warm")
            proxy.drop_reply(b"{limits:ada}", times=lost)
            assert (await limiter.acquire("ada")).allowed is granted
            assert proxy.dropped == min(lost, 1 + TRIES)
            proxy.pass_all()
            assert (await limiter.peek("ada")).remaining == 4
            assert not cast(Any, client.connection_pool)._in_use_connections

    asyncio.run(story())


def test_a_cancelled_call_leaves_no_reply_to_another(proxy: Proxy) -> None:
    async def story() -> None:
        async with client_of(proxy, max_connections=1) as client:
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


@pytest.mark.parametrize(
    ("kwargs", "directly"),
    [
        ({}, True),
        ({"single_connection_client": True}, False),
        ({"decode_responses": True}, True),
        ({"protocol": 3}, True),
    ],
)
def test_awaited_clients_of_any_kind_are_answered_alike(
    kwargs: dict[str, Any], directly: bool, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    past = calls(monkeypatch)

    async def story() -> None:
        async with client_of(proxy, **kwargs) as client:
            limiter = SEVERAL.on(client)
            assert [(await limiter.acquire("ada")).remaining for _ in range(4)] == [4, 3, 2, 1]
            await client.script_flush()
            assert [(await limiter.acquire("ada")).remaining for _ in range(2)] == [0, 0]

    asyncio.run(story())
    assert bool(past) is directly


def test_a_subclass_of_the_awaited_client_sees_every_call(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    past, seen = calls(monkeypatch), list[object]()

    class AsyncTraced(redis.asyncio.Redis):
        async def execute_command(self, *args: Any, **options: Any) -> Any:
            seen.append(args[0])
            real: Any = super().execute_command
            return await real(*args, **options)

    async def story() -> None:
        async with AsyncTraced(unix_socket_path=str(redis_server.socket)) as client:
            limiter = FIVE.on(client)
            await limiter.acquire("ada")
            await limiter.peek("ada")

    asyncio.run(story())
    assert (seen.count("EVALSHA") >= 2, past) == (True, [])


@pytest.mark.parametrize("tag", [None, "t"])
@pytest.mark.parametrize("key", ["a", "ada", "\0", "a\0b", "$1\r\n", "x" * 1_024])
def test_commands_are_packed_as_by_redis_py(
    key: str, tag: str | None, redis_client: redis.Redis
) -> None:
    connection: Any = redis_client.connection_pool.get_connection()
    limiter = Limits([make(7) for make in ALL.values()]).on(redis_client, tag=tag)
    limit_set = limiter._limit_set
    names, sha = limit_set.key_names.whole(key), "5" * 40
    commands = Commands(limit_set, sha)
    for n, permit, new in ((1, "p" * 20, True), (12, "order 17", False)):
        words = (limit_set.span, *limit_set.words(limit_set.server_ms()), permit, int(new), n, n)
        expected = connection.pack_command("EVALSHA", sha, len(names), *names, *words)
        assert commands.command(key, n, permit, new) == b"".join(expected)
    redis_client.connection_pool.release(connection)


def test_an_id_made_for_the_call_is_not_looked_up(redis_client: redis.Redis) -> None:
    limiter = SEVERAL.on(redis_client)
    limiter.acquire("ada")
    for permit, looked_up in ((None, False), ("order 17", True)):
        redis_client.config_resetstat()
        limiter.acquire("ada", permit=permit)
        stats: Any = redis_client.info("commandstats")
        assert ("cmdstat_hget" in stats) is looked_up

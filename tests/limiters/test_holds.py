"""Concurrency: places that come back; CoolDown: closed for everybody at once."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial, wraps
from typing import Any, cast

import pytest
import redis
import redis.asyncio

from dispatcher import InvalidValue, LimitReached
from dispatcher.limiters import (
    Concurrency,
    CoolDown,
    FixedWindow,
    Limits,
    Request,
    SlidingList,
    SlidingLog,
    State,
)
from tests.support.clock import MovableClock
from tests.support.limiters import MS, Clocked
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

SECOND = timedelta(seconds=1)


def test_a_hold_that_is_renewed_goes_on(moved: Clocked) -> None:
    limiter = Concurrency(2, hold=30 * SECOND).on(moved)
    held = limiter.acquire("provider", 2)
    for _ in range(5):
        moved.advance(20 * SECOND)
        assert limiter.renew("provider", held.permit)
    assert not limiter.acquire("provider").allowed
    moved.advance(30 * SECOND)
    assert not limiter.renew("provider", held.permit), "it has ended"
    again = limiter.acquire("provider", 2)
    assert limiter.give_back("provider", again.permit) == 2
    assert not limiter.renew("provider", again.permit)
    assert not limiter.renew("provider", "never taken")


@pytest.mark.parametrize("order", [(60 * SECOND, SECOND), (SECOND, 60 * SECOND)])
def test_a_short_hold_does_not_end_a_longer_one_of_the_same_name(
    redis_client: redis.Redis, order: tuple[timedelta, timedelta]
) -> None:
    for hold in order:
        assert Concurrency(2, hold=hold, name="shared").on(redis_client).acquire("provider").allowed
    [key] = cast("list[bytes]", redis_client.keys("*"))
    assert redis_client.pttl(key) > 59_000


def test_holds_that_have_ended_do_not_pile_up(moved: Clocked) -> None:
    limiter = Concurrency(1_000, hold=10 * MS).on(moved)
    for _ in range(9):
        limiter.acquire("provider", 100)
        moved.advance(10 * MS)
    assert limiter.acquire("provider").allowed
    [key] = cast("list[bytes]", moved.keys("*"))
    assert moved.zcard(key) == 1


def test_a_block_renews_its_hold_and_gives_it_back_whatever_it_raises(
    redis_client: redis.Redis,
) -> None:
    held, counted = Concurrency(2, hold=3 * SECOND), SlidingList(5, "hour")
    limiter = Limits([held, counted]).on(redis_client)
    places, kept = held.on(redis_client), counted.on(redis_client)

    @limiter.limited("provider", 2)
    def fail() -> None:
        first = places.peek("provider").reset_at
        wait_until(lambda: places.peek("provider").reset_at > first)
        assert not places.acquire("provider").allowed
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert (places.peek("provider").remaining, kept.peek("provider").remaining) == (2, 3)


def test_a_block_that_needs_nothing_holds_nothing(
    redis_client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    limiter = Concurrency(1, hold=30 * MS).on(redis_client)
    for _ in range(2):
        with limiter.permit("provider", 0) as decision:
            assert decision.granted == 0
            assert not any("_keep_renewing" in thread.name for thread in threading.enumerate())
        limiter.acquire("provider")
    assert caplog.records == []


def test_a_refusal_says_whether_its_wait_is_an_upper_bound(moved: Clocked) -> None:
    held, window = Concurrency(1, hold=30 * SECOND), FixedWindow(2, "minute")
    limiter = Limits([window, held]).on(moved)
    limiter.acquire("ada")
    for wait in ("at most 30 s", "60 s; also refused by 1 at once"):
        with pytest.raises(LimitReached) as refused, limiter.permit("ada"):
            pytest.fail("it ran")
        assert str(refused.value).endswith(f"is reached; try again in {wait}")
        window.on(moved).acquire("ada")


def test_a_hold_that_has_ended_is_not_granted_again_for_nothing(moved: Clocked) -> None:
    limits = [FixedWindow(2, "hour"), SlidingLog(5, "hour"), Concurrency(1, hold=30 * SECOND)]
    limiter = Limits(limits).on(moved)
    limiter.acquire("sms", permit="x")
    moved.advance(30 * SECOND)
    assert limiter.acquire("sms", permit="y").allowed, "its place is free"
    moved.advance(10 * SECOND)
    refused = limiter.acquire("sms", permit="x")
    assert ([refusal.limit for refusal in refused.refusals], refused.retry_after) == (
        ["1 at once"], 20 * SECOND,
    )  # fmt: skip
    limiter.end_holds("sms", "y")
    assert limiter.acquire("sms", permit="x").state is State.REACHED
    assert limiter.acquire("sms", permit="x").allowed, "it holds again"
    assert limits[2].on(moved).peek("sms").refused_by == "1 at once"
    limiter.end_holds("sms", "x")
    left = [limit.on(moved).peek("sms").remaining for limit in limits]
    assert left == [0, 3, 1], "windows and logs counted each once"


def test_a_hold_taken_anew_counts_for_the_rest_of_its_group(moved: Clocked) -> None:
    limiter = Limits([Concurrency(1, hold=30 * SECOND), FixedWindow(10, "hour")]).on(moved)
    limiter.acquire("sms", permit="x")
    moved.advance(30 * SECOND)
    group = [Request("sms", permit=permit) for permit in ("x", "y")]
    assert [bool(decision) for decision in limiter.acquire_each(group)] == [True, False]


def test_a_wait_for_a_hold_lasts_until_its_timeout(redis_client: redis.Redis) -> None:
    clock = MovableClock()
    limits = [Concurrency(1), FixedWindow(2, "hour")]
    limiter = Limits(limits).on(redis_client, clock=clock)
    limiter.acquire("sms")
    began = clock.monotonic()
    assert not limiter.acquire("sms", wait=True, timeout=0.25)
    assert clock.monotonic() - began == pytest.approx(0.25)
    assert len(clock.sleeps) == 3
    clock.sleeps.clear()
    FixedWindow(2, "hour").on(redis_client).acquire("sms")
    assert not limiter.acquire("sms", wait=True, timeout=60)
    assert clock.sleeps == [], "no hold that ends makes the hour shorter"


class Slow(redis.asyncio.Redis):
    """Gives no answer, once it has one, until it may."""

    may_answer: asyncio.Event
    has_answer: asyncio.Event

    async def evalsha(self, *args: Any) -> Any:
        answer = await cast("Any", super()).evalsha(*args)
        self.has_answer.set()
        await self.may_answer.wait()
        return answer


def test_a_cancelled_call_gives_its_permit_back(redis_server: RedisServer) -> None:
    limits = Limits([Concurrency(1), FixedWindow(5, "hour")])

    async def story() -> None:
        async with Slow(unix_socket_path=str(redis_server.socket)) as client:
            client.may_answer, client.has_answer = asyncio.Event(), asyncio.Event()
            limiter = limits.on(client)

            async def block() -> None:
                async with limiter.permit("sms"):
                    pytest.fail("it ran")

            task = asyncio.create_task(block())
            await asyncio.wait_for(client.has_answer.wait(), 20)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            client.may_answer.set()
            async with asyncio.timeout(20):
                while (await limiter.peek("sms", 1)).remaining == 0:  # noqa: ASYNC110 - in Redis
                    await asyncio.sleep(0.01)

    asyncio.run(story())
    with redis_server.client() as client:
        assert FixedWindow(5, "hour").on(client).peek("sms").remaining == 5


def test_a_block_that_is_cancelled_at_its_end_stays_cancelled(redis_server: RedisServer) -> None:
    async def story() -> None:
        async with redis.asyncio.Redis(unix_socket_path=str(redis_server.socket)) as client:
            limiter = Concurrency(1).on(client)

            async def block() -> None:
                async with limiter.permit("sms"):
                    task = cast("asyncio.Task[None]", asyncio.current_task())
                    asyncio.get_running_loop().call_soon(task.cancel)

            with pytest.raises(asyncio.CancelledError):
                await asyncio.create_task(block())
            async with asyncio.timeout(20):
                while not (await limiter.peek("sms")).allowed:  # noqa: ASYNC110 - in Redis
                    await asyncio.sleep(0.01)

    asyncio.run(story())


def test_a_decorated_function_needs_a_permit_for_its_key(redis_client: redis.Redis) -> None:
    limiter = FixedWindow(2, "hour").on(redis_client)

    @limiter.limited(lambda customer, text: f"{text[:0]}customer {customer}")
    def send(customer: int, text: str) -> str:
        """Send."""
        return f"{text} to {customer}"

    assert [send(1, "a"), send(1, text="b"), send(2, "c")] == ["a to 1", "b to 1", "c to 2"]
    with pytest.raises(LimitReached):
        send(1, "d")
    assert send.__doc__ == "Send."


def free(client: redis.Redis) -> int:
    """Return how many of two places are free."""
    return Concurrency(2).on(client).peek("provider").remaining


def test_a_decorated_generator_holds_its_place_until_its_end(redis_client: redis.Redis) -> None:
    limiter = Concurrency(2).on(redis_client)

    @limiter.limited("provider")
    def echo() -> Generator[object, object, str]:
        got = yield free(redis_client)
        try:
            got = yield got
        except ValueError:
            got = yield "caught"
        return f"over: {got}"

    told = echo()
    assert free(redis_client) == 2, "it has not begun"
    assert (next(told), told.send("a"), told.throw(ValueError)) == (1, "a", "caught")
    assert free(redis_client) == 1
    with pytest.raises(StopIteration) as ended:
        told.send("end")
    assert (ended.value.value, free(redis_client)) == ("over: end", 2)
    left = echo()
    next(left)
    del left
    assert free(redis_client) == 2, "it was dropped"


def test_a_decorated_asynchronous_generator_holds_its_place_until_its_end(
    redis_server: RedisServer, redis_client: redis.Redis
) -> None:
    async def story() -> None:
        async with redis.asyncio.Redis(unix_socket_path=str(redis_server.socket)) as client:
            limiter = Concurrency(2).on(client)

            @limiter.limited("provider")
            async def echo() -> AsyncIterator[object]:
                got = yield free(redis_client)
                try:
                    got = yield got
                except ValueError:
                    yield "caught"

            told = cast("AsyncGenerator[object, object]", echo())
            assert free(redis_client) == 2, "it has not begun"
            assert [await anext(told), await told.asend("a")] == [1, "a"]
            assert await told.athrow(ValueError) == "caught"
            assert free(redis_client) == 1
            with pytest.raises(StopAsyncIteration):
                await told.asend("end")
            assert free(redis_client) == 2
            left = cast("AsyncGenerator[object, object]", echo())
            await anext(left)
            await left.aclose()
            assert free(redis_client) == 2
            async for number in echo():
                assert number == 1
                break

    asyncio.run(story())


class Called:
    """Is called as what it has is."""

    async def __call__(self) -> None: ...


async def coroutine() -> None: ...


async def asynchronous_generator() -> AsyncIterator[int]:
    yield 1


def generator() -> Iterator[int]:
    yield 1


def plain() -> None: ...


@wraps(coroutine)
def told() -> object:
    return coroutine()


def test_what_is_awaited_needs_a_limiter_that_is_and_nothing_else_does() -> None:
    awaited = [coroutine, asynchronous_generator, Called(), partial(coroutine)]
    others = [generator, plain, partial(plain), print]
    for client, functions, says in (
        (redis.Redis(), awaited, r"redis\.asyncio"),
        (redis.asyncio.Redis(), others, r"not an async function; accepted: .* a client of redis"),
    ):
        limited: Any = Concurrency(2).on(client).limited("provider")
        for function in functions:
            with pytest.raises(InvalidValue, match=says):
                limited(function)
    for function in (coroutine, Called(), partial(coroutine), limited(coroutine), told):
        assert inspect.iscoroutinefunction(limited(function)), "however it is defined"


def test_coroutines_hold_and_are_decorated_alike(redis_server: RedisServer) -> None:
    async def story() -> None:
        async with redis.asyncio.Redis(unix_socket_path=str(redis_server.socket)) as client:
            limiter = Concurrency(1, hold=3 * SECOND).on(client)

            @limiter.limited("provider")
            async def work() -> None:
                first = (await limiter.peek("provider")).reset_at
                while (await limiter.peek("provider")).reset_at <= first:  # noqa: ASYNC110 - renewed in Redis
                    await asyncio.sleep(0.01)
                with pytest.raises(LimitReached):
                    async with limiter.permit("provider"):
                        pytest.fail("it ran")

            await asyncio.wait_for(work(), 20)
            assert (await limiter.peek("provider")).remaining == 1

    asyncio.run(story())


def test_closing_until_a_time_that_is_past_closes_nothing(redis_client: redis.Redis) -> None:
    limiter = CoolDown().on(redis_client)
    limiter.close("sms", until=datetime(2001, 1, 1, tzinfo=UTC))
    assert redis_client.keys("*") == []
    limiter.close("sms", timedelta(hours=1))
    assert not limiter.acquire("sms").allowed
    limiter.reset("sms")
    assert limiter.acquire("sms").allowed


def test_renew_and_close_name_the_limit_that_they_need(redis_client: redis.Redis) -> None:
    limiter = FixedWindow(1, "hour").on(redis_client)
    with pytest.raises(InvalidValue, match="a Concurrency"):
        limiter.renew("ada", "x")
    with pytest.raises(InvalidValue, match="a CoolDown"):
        limiter.close("ada", SECOND)

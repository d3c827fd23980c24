"""A message that joins an AsyncSession is stored if and when that commits, and blocks no loop."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, TypeAlias, cast

import pytest
from sqlalchemy import Engine, insert
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session

from dispatcher import InvalidDraft, Message, QuotaExceeded
from tests.store.plans import waiting
from tests.support.callers import SOON, metadata, ordered, orders, queued
from tests.support.environment import frozen
from tests.support.house import BODY, House
from tests.support.house_fixtures import Build, on_postgresql, on_sqlite
from tests.support.servers import RedisServer
from tests.support.waiting import DEADLINE, wait_until

Caller: TypeAlias = AsyncSession | AsyncConnection

FROST_SECONDS = 2.0
DRIVERS = {"sqlite": "aiosqlite", "postgresql": "psycopg", "mysql": "asyncmy"}


@pytest.fixture(autouse=True)
def quiet_driver() -> Iterator[None]:
    """At DEBUG the caller's driver writes the values of each statement, as the page says."""
    log, level = logging.getLogger("aiosqlite"), logging.getLogger("aiosqlite").level
    log.setLevel(logging.INFO)
    yield
    log.setLevel(level)


@asynccontextmanager
async def callers(house: House, **pool: Any) -> AsyncIterator[AsyncEngine]:
    """Give the caller's engine, on a driver that is awaited."""
    url = house.database.url
    driver = DRIVERS[url.get_backend_name()]
    pytest.importorskip(driver, reason="the extra test has no driver of MariaDB that is awaited")
    engine = create_async_engine(url.set(drivername=f"{url.get_backend_name()}+{driver}"), **pool)
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
    yield engine
    await engine.dispose()


@asynccontextmanager
async def calling(engine: AsyncEngine, kind: type[Caller]) -> AsyncIterator[Caller]:
    async with AsyncSession(engine) if kind is AsyncSession else engine.connect() as caller:
        yield caller


async def order(caller: Caller, number: int = 1) -> None:
    await caller.execute(insert(orders).values(number=number))


async def remind(house: House, caller: Any, recipient: str = "ada", **asked: Any) -> Message:
    usual: dict[str, Any] = {"channel": "memory", "recipient": recipient, "body": BODY}
    return await house.dispatcher.asubmit(**usual | {"send_at": SOON} | asked, session=caller)


def numbers(house: House) -> list[int]:
    """Return the caller's rows that are committed."""
    return ordered(house.database.engine)


@pytest.mark.every_database
@pytest.mark.parametrize("kind", [AsyncSession, AsyncConnection])
def test_the_message_commits_or_rolls_back_with_the_callers_rows(
    slow: House, kind: type[Caller]
) -> None:
    house, now = slow, cast("dict[str, Any]", {"send_at": None, "send_in": SOON - SOON})

    async def story() -> None:
        async with callers(house) as engine:
            async with calling(engine, kind) as caller:
                await order(caller)
                message = await remind(house, caller, idempotency_key="key", **now)
                assert await remind(house, caller, idempotency_key="key", **now) == message
                assert house.rows() == [], "nobody else sees it yet"
                with pytest.raises(QuotaExceeded):
                    await remind(house, caller, **now)
                await caller.commit()
                assert await house.dispatcher.aget(message.id) == message
            assert queued(house) == 1, "it is enqueued when its connection is back"
            async with calling(engine, kind) as caller:
                await order(caller, 2)
                with suppress(ZeroDivisionError):
                    async with caller.begin_nested():
                        await remind(house, caller, "ben", **now)
                        raise ZeroDivisionError
                await remind(house, caller, "cyd", **now)
                assert set(house.all_members()) == {"ada", "cyd"}, "the savepoint gave it back"
                await caller.rollback()
                await remind(house, caller, "cyd", **now)
                await caller.rollback()
            assert set(house.all_members()) == {"ada"}, "released when the rollback returns"

    asyncio.run(story())
    assert numbers(house) == [1]
    assert house.reservations() == house.all_members()


async def longest_stall(work: Coroutine[Any, Any, object]) -> tuple[float, float]:
    """Return how long work took, and the longest time in which the loop did not come round."""
    start = last = time.monotonic()
    longest, task = 0.0, asyncio.ensure_future(work)
    while not task.done():
        await asyncio.sleep(0.001)
        now = time.monotonic()
        longest, last = max(longest, now - last), now
    await task
    return time.monotonic() - start, longest


async def thawed_after(pid: int, seconds: float) -> None:
    with frozen(pid):
        await asyncio.sleep(seconds)


@on_postgresql
def test_neither_the_submit_nor_the_end_of_the_transaction_holds_the_loop(
    build: Build, own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dispatcher.redis.client._SECONDS", 60.0)
    house = build(server=own_redis)

    async def story() -> None:
        async with callers(house) as engine, AsyncSession(engine) as caller:
            await remind(house, caller, "somebody first")  # everything is loaded and connected
            await caller.rollback()
            for work in (partial(remind, house, caller), caller.rollback):
                frost = asyncio.create_task(thawed_after(own_redis.pid, FROST_SECONDS))
                await asyncio.sleep(0)
                took, stall = await longest_stall(work())
                await frost
                assert took > FROST_SECONDS / 2
                assert stall < FROST_SECONDS / 2

    asyncio.run(story())
    assert house.rows() == []
    assert not house.all_members()


@on_postgresql
def test_a_cancelled_call_leaves_the_session_to_its_caller(
    build: Build, own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = build(server=own_redis)
    reserving, reserve = threading.Event(), house.parts.reserver.reserve

    def seen(*words: Any, **more: Any) -> Any:
        reserving.set()
        return reserve(*words, **more)

    async def story() -> None:
        async with callers(house) as engine, AsyncSession(engine) as caller:
            await remind(house, caller, "somebody first")
            await caller.rollback()
            await order(caller)
            monkeypatch.setattr(house.parts.reserver, "reserve", seen)
            with frozen(own_redis.pid):
                task = asyncio.create_task(remind(house, caller, idempotency_key="key"))
                await asyncio.to_thread(reserving.wait)
                for _ in range(3):
                    task.cancel()
                    await asyncio.sleep(0.01)
                assert not task.done(), "the call may use the session still"
            with pytest.raises(asyncio.CancelledError):
                await task
            await order(caller, 2)
            await caller.commit()

    asyncio.run(story())
    assert numbers(house) == [1, 2]
    assert house.rows() == []
    assert not house.all_members()


@on_postgresql
def test_a_commit_that_is_cancelled_gives_its_connection_back(
    build: Build, own_redis: RedisServer
) -> None:
    house = build(server=own_redis)

    async def story() -> None:
        async def rolled_back() -> None:
            await caller.rollback()
            await asyncio.sleep(60)

        async with callers(house) as engine, AsyncSession(engine) as caller:
            await remind(house, caller)
            with frozen(own_redis.pid):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(rolled_back(), 0.5)
                assert "Connections in pool: 1" in engine.pool.status()

    asyncio.run(story())
    assert house.rows() == []
    wait_until(lambda: not house.all_members())


@on_sqlite
def test_more_transactions_than_connections_wait_for_each_other_and_all_commit(
    house: House,
) -> None:
    """Calls that had a turn and no connection blocked those that had a connection and no turn."""

    async def story() -> None:
        async def ordering(number: int) -> None:
            async with AsyncSession(engine) as caller:
                await remind(house, caller, f"first {number}")
                await remind(house, caller, f"second {number}")
                await caller.commit()

        async with callers(house, pool_size=5, max_overflow=0, pool_timeout=20) as engine:
            await asyncio.gather(*map(ordering, range(20)))

    asyncio.run(story())
    assert len(house.rows()) == len(house.all_members()) == 40


@on_sqlite
def test_each_call_takes_the_session_of_its_kind(house: House) -> None:
    async def refused(caller: object, problem: str, accepted: str) -> None:
        with pytest.raises(InvalidDraft) as caught:
            await remind(house, caller)
        assert (caught.value.field, caught.value.problem) == ("session", problem)
        assert accepted in caught.value.accepted

    async def story() -> None:
        sync: Engine = house.database.engine
        either = "an AsyncSession or an AsyncConnection"
        async with callers(house) as engine:
            with Session(sync) as session, sync.connect() as connection:
                await refused(session, "a Session", f"{either} of SQLAlchemy; with a Session")
                await refused(connection, "a Connection", "call submit")
            await refused(engine, "an AsyncEngine", either)
            scoped = async_scoped_session(async_sessionmaker(engine), asyncio.current_task)
            await refused(scoped, "an async_scoped_session", either)
            async with scoped() as caller:
                with pytest.raises(InvalidDraft, match=r"await dispatcher\.asubmit\("):
                    house.submit(session=caller)
                await remind(house, caller)
                await caller.commit()

    asyncio.run(story())
    assert house.reservations() == house.all_members() != {}


@on_postgresql
def test_calls_of_other_transactions_that_wait_for_its_lock_leave_a_thread_to_a_transaction(
    house: House,
) -> None:
    """They had all threads, and the transaction which had the lock waited for one."""
    others = 20

    async def story() -> None:
        async def repeating() -> Message:
            async with AsyncSession(engine) as caller:
                message = await remind(house, caller, idempotency_key="key")
                await caller.commit()
                return message

        async with callers(house, pool_size=others + 1) as engine, AsyncSession(engine) as caller:
            first = await remind(house, caller, idempotency_key="key")
            every = [asyncio.create_task(repeating()) for _ in range(others)]
            await asyncio.to_thread(wait_until, lambda: waiting(house.database) == others)
            await asyncio.wait_for(remind(house, caller, "ben"), DEADLINE)
            await caller.commit()
            assert {message.id for message in await asyncio.gather(*every)} == {first.id}

    asyncio.run(story())
    assert len(house.rows()) == len(house.all_members()) == 2

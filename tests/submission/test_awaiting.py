"""Calls that are awaited: the loop goes on, and a call that is cancelled loses nothing."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from contextvars import ContextVar
from datetime import timedelta
from functools import partial
from itertools import islice
from threading import Event
from typing import Any

import pytest

from dispatcher import (
    Dispatcher,
    Draft,
    InvalidDraft,
    Message,
    QuotaExceeded,
    Rejection,
    Settings,
    Status,
)
from dispatcher.client import awaited
from tests.support.environment import frozen
from tests.support.house import BODY, FAR, House
from tests.support.house_fixtures import Build, on_sqlite
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

STREAMED = {"select", "suppressed"}
pytestmark = pytest.mark.usefixtures("small_batches")
MINUTE = timedelta(minutes=1)


def asked(name: str, **more: Any) -> dict[str, Any]:
    """Return what a submit takes, with an idempotency key."""
    common = {"channel": "memory", "body": BODY, "send_at": FAR + MINUTE}
    return {**common, "recipient": name, "idempotency_key": f"key of {name}", **more}


@on_sqlite
def test_a_cancelled_asubmit_goes_on_or_never_began(build: Build, own_redis: RedisServer) -> None:
    house = build(server=own_redis)
    names = [f"name {number}" for number in range(5)]

    async def story() -> None:
        with frozen(own_redis.pid):
            tasks = [asyncio.create_task(house.dispatcher.asubmit(**asked(name))) for name in names]
            await asyncio.to_thread(wait_until, partial(waiting, house))
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(answer, asyncio.CancelledError) for answer in ended)
        await house.dispatcher.aclose()

    asyncio.run(story())
    with Dispatcher(house.settings, clock=house.clock) as ours:
        stored = {message.recipient: message.id for message in ours.select()}
        assert set(stored) == set(names[:4])
        assert house.all_members() == house.reservations()
        again = {name: ours.submit(**asked(name)).id for name in names}
    assert again == stored | {names[4]: again[names[4]]}


def waiting(house: House) -> bool:
    """Whether one call waits because all threads are at work."""
    pool = house.dispatcher._threads
    return len(pool._threads) == 4 and pool._work_queue.qsize() == 1


def test_every_call_has_an_awaited_twin_with_its_parameters() -> None:
    calls = {
        name: call
        for name, call in inspect.getmembers(Dispatcher, inspect.isfunction)
        if not name.startswith("_") and not hasattr(call, "__wrapped__")
    }
    del calls["close"], calls["aclose"]
    assert len(calls) > 30
    for name, call in calls.items():
        twin = getattr(Dispatcher, f"a{name}")
        assert inspect.signature(twin).parameters == inspect.signature(call).parameters
        waits = inspect.isasyncgenfunction if name in STREAMED else inspect.iscoroutinefunction
        assert waits(twin), name


@on_sqlite
def test_every_awaited_call_answers_and_refuses_like_the_one_it_is_named_for(house: House) -> None:
    async def story() -> None:
        ours = house.dispatcher
        first = await ours.asubmit(**asked("ada"))
        with pytest.raises(QuotaExceeded) as refused:
            await ours.asubmit(**asked("ada", idempotency_key="other"))
        assert refused.value.next_slot == first.send_at + MINUTE
        moved = await ours.areschedule(first.id, send_at=FAR + 2 * MINUTE)
        assert await ours.aget(first.id) == moved
        assert (await ours.acancel(first.id)).status is Status.CANCELLED

        def drafts() -> Iterator[Draft]:
            yield from (Draft(**asked(name, idempotency_key=None)) for name in ("ben", "ben"))

        accepted, rejected = await ours.asubmit_many(drafts())
        assert isinstance(accepted, Message)
        assert isinstance(rejected, Rejection)
        everything = [message.id async for message in ours.aselect(oldest_first=True)]
        assert everything == [first.id, accepted.id]
        await ours.asuppress("cyd")
        assert [suppression.recipient async for suppression in ours.asuppressed()] == ["cyd"]
        with pytest.raises(InvalidDraft):
            await anext(ours.aselect(channel=""))

    asyncio.run(story())


@on_sqlite
def test_every_call_of_a_closed_dispatcher_is_refused(house: House) -> None:
    """Hooks and events would miss what it did."""
    message = house.submit()

    async def story() -> None:
        async with Dispatcher(house.settings, clock=house.clock) as ours:
            assert await ours.aget(message.id) == message
        for _ in range(2):
            calls: dict[str, partial[Any]] = {
                "submit": partial(ours.submit, **asked("ada")),
                "submit_many": partial(ours.submit_many, []),
                "get": partial(ours.get, message.id),
                "list": partial(ours.list),
                "next_slot": partial(ours.next_slot, recipient="ada"),
            }
            for name, call in calls.items():
                with pytest.raises(RuntimeError, match="the dispatcher is closed"):
                    call()
                with pytest.raises(RuntimeError, match="the dispatcher is closed"):
                    await getattr(ours, f"a{name}")(*call.args, **call.keywords)
            ours.close()
            await ours.aclose()

    asyncio.run(story())
    assert len(house.rows()) == 1


@on_sqlite
def test_a_result_of_a_closed_dispatcher_that_is_read_on_is_refused(house: House) -> None:
    """A read would open connections that stay open, and its messages would reach no hook."""
    with Dispatcher(house.settings, clock=house.clock) as ours:
        ours.suppress("eve")
        answers = iter(ours.submit_many(Draft(**asked(str(number))) for number in range(250)))
        next(answers)
        messages = ours.select()
        next(messages)
        opted_out = ours.suppressed()
        never_begun = ours.select()
    assert len([*islice(answers, 99)]) == 99, "the answers of the batch before are not lost"
    for rest in (answers, messages, opted_out, never_begun):
        with pytest.raises(RuntimeError, match="the dispatcher is closed"):
            next(rest)
    assert len(house.rows()) == 100


@on_sqlite
def test_closing_waits_for_a_generator_that_is_submitted(house: House) -> None:
    ours = Dispatcher(house.settings, clock=house.clock)
    closing = Event()

    def drafts() -> Iterator[Draft]:
        for number in range(200):
            if number == 150:
                closing.set()
                wait_until(lambda: ours._is_closed)
            yield Draft(**asked(str(number)))

    async def story() -> None:
        submitted = asyncio.create_task(ours.asubmit_many(drafts()))
        await asyncio.to_thread(closing.wait)
        await ours.aclose()
        assert len(await submitted) == len(house.rows()) == 200

    asyncio.run(story())


def test_a_call_sees_the_context_of_its_caller() -> None:
    name = ContextVar[str]("name")
    ask = awaited(lambda _: name.get())
    dispatcher = Dispatcher(Settings())

    async def story() -> list[str]:
        heard = []
        for caller in ("ada", "ben"):
            name.set(caller)
            heard.append(await ask(dispatcher))
        await dispatcher.aclose()
        return heard

    assert asyncio.run(story()) == ["ada", "ben"]

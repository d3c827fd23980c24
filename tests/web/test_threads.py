"""Calls of the API run in few threads, in the context of their callers."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from threading import Event

from dispatcher.web.threads import Threads
from tests.support.waiting import wait_until

trace = ContextVar("trace", default="none")


def test_a_call_has_the_context_of_its_caller() -> None:
    async def called() -> str:
        trace.set("of the caller")
        return await Threads(1).run(trace.get)

    assert asyncio.run(called()) == "of the caller"


def test_further_calls_wait_for_a_thread() -> None:
    begun, most, gate = list[int](), 0, Event()

    def act(number: int) -> int:
        nonlocal most
        begun.append(number)
        most = max(most, len(begun))
        assert gate.wait(60)
        begun.remove(number)
        return number

    async def called() -> list[int]:
        threads = Threads(2)
        calls = [asyncio.create_task(threads.run(act, number)) for number in range(5)]
        await asyncio.to_thread(wait_until, lambda: len(begun) >= 2)
        gate.set()
        return await asyncio.gather(*calls)

    assert asyncio.run(called()) == [0, 1, 2, 3, 4]
    assert most == 2

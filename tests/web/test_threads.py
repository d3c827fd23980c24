"""Threads of the API and the page: few, with the context of the task that waits for them."""

from __future__ import annotations

import asyncio
import gc
import threading
from contextvars import ContextVar
from threading import Event

import pytest
from fastapi.testclient import TestClient

from dispatcher.web import Caller, api
from dispatcher.web.threads import Threads
from tests.support.house import House
from tests.support.waiting import wait_until

trace = ContextVar("trace", default="none")


def test_what_runs_has_the_context_of_the_task(house: House) -> None:
    async def called() -> str:
        trace.set("of the task")
        return await Threads(house.dispatcher, 1).run(trace.get)

    assert asyncio.run(called()) == "of the task"


def test_further_calls_wait_for_a_thread(house: House) -> None:
    running, most, gate = list[int](), 0, Event()

    def act(number: int) -> int:
        nonlocal most
        running.append(number)
        most = max(most, len(running))
        assert gate.wait(60)
        running.remove(number)
        return number

    async def called() -> list[int]:
        threads = Threads(house.dispatcher, 2)
        calls = [asyncio.create_task(threads.run(act, number)) for number in range(5)]
        await asyncio.to_thread(wait_until, lambda: len(running) >= 2)
        gate.set()
        return await asyncio.gather(*calls)

    assert asyncio.run(called()) == [0, 1, 2, 3, 4]
    assert most == 2


def test_a_cancelled_task_leaves_what_runs_and_calls_nothing_more(house: House) -> None:
    ended, began, gate = list[str](), Event(), Event()
    threads = Threads(house.dispatcher, 1)  # held, as by an application, until the end

    def act(name: str) -> None:
        if name == "running":
            began.set()
            assert gate.wait(60)
        ended.append(name)

    async def called() -> None:
        calls = [asyncio.create_task(threads.run(act, name)) for name in ("running", "waiting")]
        assert await asyncio.to_thread(began.wait, 60)
        for each in calls:
            each.cancel()
        for each in calls:
            with pytest.raises(asyncio.CancelledError):
                await each
        gate.set()

    asyncio.run(called())
    house.dispatcher.close()
    assert ended == ["running"]


def test_an_application_that_is_dropped_leaves_no_threads(house: House) -> None:
    def served() -> None:
        client = TestClient(api(house.dispatcher, auth=lambda _: Caller(name="shop")))
        assert client.get("/v1/counts").status_code == 200

    served()
    gc.collect()
    before = threading.active_count()
    for _ in range(5):
        served()

    def are_gone() -> bool:
        gc.collect()  # again: a thread may have had its last call still when it was asked first
        return threading.active_count() <= before

    wait_until(are_gone, every=0.1)


def test_stop_iteration_in_a_thread_is_an_error(house: House) -> None:
    """A future cannot hold it: the call would never be answered."""

    def auth(_: object) -> Caller:
        return next(iter(()))

    client = TestClient(api(house.dispatcher, auth=auth), raise_server_exceptions=False)
    assert client.get("/v1/counts").status_code == 500

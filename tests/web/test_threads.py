"""Threads of the API and the page: few, with the context of the task that waits for them."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections import Counter
from contextvars import ContextVar
from threading import Event

import pytest
from fastapi.testclient import TestClient

from dispatcher.web import Caller, api
from dispatcher.web.bounds import SharedThreads, Threads
from tests.support.house import House
from tests.support.waiting import wait_until
from tests.web.conftest import ON_SQLITE

pytestmark = ON_SQLITE

trace = ContextVar("trace", default="none")


def test_what_runs_has_the_context_of_the_task(house: House) -> None:
    async def called() -> str:
        trace.set("of the task")
        return await Threads(house.dispatcher, 1).run(trace.get)

    assert asyncio.run(called()) == "of the task"


def test_names_that_share_threads_take_turns(house: House) -> None:
    running, most = Counter[str](), Counter[str]()
    lock = threading.Lock()

    def act(name: str, may_end: Event) -> str:
        with lock:
            running[name] += 1
            most[name] = max(most[name], running[name])
            most["all"] = max(most["all"], running.total())
        assert may_end.wait(60)
        with lock:
            running[name] -= 1
        return name

    async def called() -> None:
        threads, gate, ended = SharedThreads(house.dispatcher, 3, most_of_one=2), Event(), Event()
        ended.set()
        held = [asyncio.create_task(threads.run_for("a", act, "a", gate)) for _ in range(5)]
        await asyncio.to_thread(wait_until, lambda: running["a"] == 2)
        assert await threads.run_for("b", act, "b", ended) == "b", "a has not all threads"
        held += [asyncio.create_task(threads.run_for("b", act, "b", gate))]
        await asyncio.to_thread(wait_until, lambda: running.total() == 3)
        for name in "bbccdd":
            held.append(asyncio.create_task(threads.run_for(name, act, name, gate)))
            await asyncio.sleep(0)
        held.pop().cancel()
        for _ in range(3):  # until the call that waits knows of it
            await asyncio.sleep(0)
        gate.set()
        assert Counter(await asyncio.gather(*held)) == Counter("aaaaabbbccd")

    asyncio.run(called())
    assert (most["a"], most["all"]) == (2, 3)


def test_a_name_with_many_calls_has_one_turn_as_each_other(house: House) -> None:
    order, gate = list[str](), Event()

    def act(name: str) -> None:
        order.append(name)
        assert gate.wait(60)

    async def called() -> None:
        threads = SharedThreads(house.dispatcher, 1, most_of_one=1)
        calls = [asyncio.create_task(threads.run_for(name, act, name)) for name in "aaaabbc"]
        await asyncio.to_thread(wait_until, lambda: order == ["a"])
        gate.set()
        await asyncio.gather(*calls)

    asyncio.run(called())
    assert "".join(order) in ("aabcaba", "abcabaa")  # as soon as a waits again, or at once


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
    for _ in range(2):
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

"""What calls, also those of a greedy caller, may take of the event loop, the threads and memory."""

from __future__ import annotations

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Event
from typing import Any

import pytest
from fastapi.testclient import TestClient

from dispatcher.store import listing
from dispatcher.web import Caller, Right, api, bounds
from dispatcher.web import calls as api_calls
from dispatcher.web.bounds import Threads
from tests.support.house import House
from tests.support.waiting import wait_until
from tests.web.conftest import ON_SQLITE, Calls, kind
from tests.web.test_messages import AT, new
from tests.web.test_wrong_calls import JSON, told

pytestmark = ON_SQLITE

READ = [Right.MESSAGES_READ]
LONG = "x" * 1_500


def taken_places(client: TestClient) -> Counter[str]:
    app: Any = client.app
    places: Counter[str] = app.streams._under_way["calls"]
    return places


def test_a_plan_may_be_long_and_books_nothing(house: House, shop: TestClient) -> None:
    messages = [new(recipient=f"r{number // 2}", body={"text": LONG}) for number in range(1_000)]
    plan = shop.post("/v1/plans", json={"messages": messages}).json()
    assert (plan["accepted"], plan["by_reason"]) == (500, {"QuotaExceeded 1/minute": 500})
    assert [rejection["number"] for rejection in plan["rejections"]] == [*range(1, 1_000, 2)]
    assert (list(plan["asked"].values()), list(plan["promised"].values())) == ([1_000], [500])
    assert house.members() == {}
    messages[700] |= {"fold": 2, "n0": 0}
    named = told(shop.post("/v1/plans", json={"messages": messages}))[:2]
    assert named == (422, "messages.700.n0")
    too_long = shop.post("/v1/plans", content=b" " * 2_000_001, headers=JSON)
    assert kind(too_long) == (413, "too-large")


@pytest.mark.parametrize(("bodies", "seconds"), [(True, 60), (False, 60), (False, 0)])
def test_a_list_ends_where_it_is_long_enough_or_takes_too_long(
    house: House, calls: Calls, monkeypatch: pytest.MonkeyPatch, bodies: bool, seconds: int
) -> None:
    monkeypatch.setattr(api_calls, "_LIST_PATIENCE", timedelta(seconds=seconds))
    monkeypatch.setattr(api_calls, "_MOST_BYTES", 10_000)
    monkeypatch.setattr(api_calls, "_READ_AT_ONCE", 2)
    made = [house.submit(f"r{n}", send_at=AT, body={"text": LONG * (n % 4)}) for n in range(12)]
    caller = calls(rights=[*READ, Right.BODIES_READ] if bodies else READ)
    path, ids, pages = "/v1/messages?limit=7", list[str](), 0
    while path:
        answer = caller.get(path)
        listed = answer.json()["messages"]
        assert 1 <= len(listed) <= 7
        assert len(answer.content) < 10_100 or len(listed) == 1
        assert list(answer.json()) == ["messages", "cursor"]
        assert (answer.json()["cursor"] is None) == ("next" not in answer.links)
        ids += [message["id"] for message in listed]
        path, pages = answer.links.get("next", {}).get("url", ""), pages + 1
    assert ids == [str(message.id) for message in reversed(made)]
    assert pages > 2 if bodies or not seconds else pages == 2


def test_a_count_ends_where_it_is_high_enough(
    house: House, shop: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(8):
        house.submit(f"r{number}", send_at=AT)
    whole = {"counts": {"memory": {"scheduled": 8}}, "complete": True}
    assert shop.get("/v1/counts").json() == whole
    monkeypatch.setattr(listing, "_EXAMINED", 3)
    assert shop.get("/v1/counts").json() == whole
    monkeypatch.setattr(api_calls, "_MOST_COUNTED", 6)
    answer = shop.get("/v1/counts").json()
    assert answer == {"counts": {"memory": {"scheduled": 6}}, "complete": False}


def test_long_calls_of_one_key_leave_the_others_their_threads(
    house: House, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = house.submit("ada", send_at=AT)
    greedy, other = calls("greedy"), calls("other")
    most, _, seconds, _ = bounds.MOST["calls"]
    gate, running = Event(), list[int]()
    count = listing.Listing.counted

    def counted(*arguments: Any, **named: Any) -> Any:
        running.append(1)
        assert gate.wait(60)
        return count(*arguments, **named)

    monkeypatch.setattr(listing.Listing, "counted", counted)
    with greedy, other, ThreadPoolExecutor(most) as pool:  # each with a loop of its own
        held = [pool.submit(greedy.get, "/v1/counts") for _ in range(most)]
        wait_until(lambda: taken_places(greedy)["greedy"] == most)
        try:
            refused = greedy.get("/v1/counts")
            answers = [other.get(f"/v1/messages{path}") for path in ("", f"/{message.id}")]
            answers.append(greedy.get(f"/v1/messages/{message.id}"))
        finally:
            gate.set()
        assert len(running) == 1
        assert {call.result().status_code for call in held} == {200}
    assert kind(refused) == (429, "too-many-calls")
    assert refused.headers["Retry-After"] == f"{seconds}"
    assert [answer.status_code for answer in answers] == [200, 200, 200]
    assert not taken_places(greedy).total()


def test_a_caller_that_does_not_read_loses_its_place(
    house: House, shop: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "_CALL_SECONDS", 0.5)
    for number in range(4):
        house.submit(f"r{number}", send_at=AT, body={"text": "x" * 50_000})
    sent = list[int]()
    taken = taken_places(shop)

    async def send(message: Any) -> None:
        sent.append(len(message.get("body", b"")))
        if sum(sent):  # the second piece waits for the reader
            assert taken["shop"] == 1
            await asyncio.Event().wait()

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    key = shop.headers["Authorization"].encode()
    call: Any = {
        "type": "http", "method": "GET", "path": "/v1/messages", "query_string": b"",
        "headers": [(b"authorization", key)], "root_path": "",
    }  # fmt: skip
    asyncio.run(asyncio.wait_for(shop.app(call, receive, send), 30))
    assert sent == [0, 65_536]
    assert not taken.total()


def test_a_name_with_many_calls_has_one_turn_as_each_other(house: House) -> None:
    order, gate = list[str](), Event()

    def act(name: str) -> None:
        order.append(name)
        assert gate.wait(60)

    async def called() -> None:
        threads = Threads(house.dispatcher, 1, most_of_one=1)
        calls = [asyncio.create_task(threads.run_for(name, act, name)) for name in "aaaabbc"]
        await asyncio.to_thread(wait_until, lambda: order == ["a"])
        gate.set()
        await asyncio.gather(*calls)

    asyncio.run(called())
    assert "".join(order) in ("aabcaba", "abcabaa")  # as soon as a waits again, or at once


def test_what_waits_for_its_turn_is_told_that_the_dispatcher_was_closed(house: House) -> None:
    threads, began, gate = Threads(house.dispatcher, 1, most_of_one=1), Event(), Event()

    def act() -> str:
        began.set()
        assert gate.wait(60)
        return "ended"

    async def called() -> list[object]:
        calls = [asyncio.create_task(threads.run_for("a", act)) for _ in range(3)]
        assert await asyncio.to_thread(began.wait, 60)
        closing = asyncio.create_task(asyncio.to_thread(house.dispatcher.close))
        await asyncio.to_thread(wait_until, lambda: house.dispatcher._is_closed)
        gate.set()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        await closing
        return [*answers]

    first, *rest = asyncio.run(called())
    assert first == "ended"
    assert [type(answer) for answer in rest] == 2 * [RuntimeError]


def test_stop_iteration_in_a_thread_is_an_error(house: House) -> None:
    """A future cannot hold it: the call would never be answered."""

    def auth(_: object) -> Caller:
        return next(iter(()))

    client = TestClient(api(house.dispatcher, auth=auth), raise_server_exceptions=False)
    assert client.get("/v1/counts").status_code == 500

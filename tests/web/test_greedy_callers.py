"""A greedy caller: what its calls may take of the event loop, the threads and the memory."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest
from fastapi.exceptions import RequestValidationError
from fastapi.testclient import TestClient
from starlette.types import Receive, Scope, Send

from dispatcher.store import listing
from dispatcher.web import Right, context, streams
from dispatcher.web.calls import messages
from dispatcher.web.endpoints import ENDPOINTS
from tests.support.house import House
from tests.support.waiting import wait_until
from tests.web.conftest import Calls, all_but
from tests.web.test_keys import kind
from tests.web.test_messages import AT, NDJSON, new
from tests.web.test_wrong_calls import JSON, headers_of, operations, told

READ = [Right.MESSAGES_READ]
LONG = "x" * 1_500


def test_a_call_without_its_right_is_refused_unread(house: House, calls: Calls) -> None:
    message = house.submit("ada", send_at=AT)
    rights = {each.name: each.rights for each in ENDPOINTS}

    def unread() -> Iterator[bytes]:
        pytest.fail("the body was read")
        yield b""

    whole = calls()
    for method, path, name in operations(whole, message, bodies=True):
        caller = calls(name, rights=all_but(*rights[name]))
        answer = caller.request(method, path, content=unread(), headers=headers_of(name))
        detail = f"the key has no right {rights[name][0]}"
        assert (answer.status_code, answer.json()["detail"]) == (403, detail)
        assert "RateLimit" in answer.headers, "it is counted"


def test_every_endpoint_names_its_rights() -> None:
    assert not [each.name for each in ENDPOINTS if not each.rights]


def test_bodies_are_validated_beside_the_event_loop(
    house: House, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    validate, places = context.validated, list[tuple[str, threading.Thread]]()
    loops = set[threading.Thread]()

    def noted(model: Any, given: Any, *where: str | int) -> Any:
        places.append((model.__name__, threading.current_thread()))
        return validate(model, given, *where)

    monkeypatch.setattr(context, "validated", noted)
    client = calls()
    app = client.app

    async def seen(scope: Scope, receive: Receive, send: Send) -> None:
        loops.add(threading.current_thread())
        await app(scope, receive, send)

    message = house.submit("ada", send_at=AT)
    caller = TestClient(seen, headers=dict(client.headers))
    for method, path, name in operations(client, message, bodies=True):
        if name != "submit_batch":  # its lines are submitted in a thread, too
            caller.request(method, path, json={}, headers=JSON)
    models = {each.body[1].__name__ for each in ENDPOINTS if each.body is not None}
    assert {name for name, _ in places} == models - {"NewMessageLine"}
    assert loops.isdisjoint(thread for _, thread in places)


def test_of_unknown_names_one_is_told_however_many_there_are(
    shop: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors_at_once = list[int]()

    def noted(errors: Any) -> Exception:
        errors_at_once.append(len(errors))
        return RequestValidationError(errors)

    monkeypatch.setattr(context, "RequestValidationError", noted)
    wrong = new() | {f"n{number}": 0 for number in range(5_000)}
    long = [new(body={"text": LONG})] * 900
    for path, body, field in (
        ("/v1/messages", wrong, "n0"),
        ("/v1/plans", {"messages": [new(), wrong]}, "messages.1.n0"),
        ("/v1/plans", {"messages": [new(), wrong, *long]}, "messages.1.n0"),
    ):
        assert told(shop.post(path, json=body))[:3] == (422, field, "there is no such field")
    answer = shop.post("/v1/messages/batch", content=json.dumps(wrong), headers=NDJSON)
    assert answer.json()["problem"]["field"] == "n0"
    assert errors_at_once == [1, 1, 1, 1]


def test_a_long_plan_is_read_message_by_message(shop: TestClient) -> None:
    some = [new(recipient=f"r{number}", body={"text": LONG}) for number in range(1_000)]

    def planned(text: str) -> Any:
        assert len(text) > 1_000_000
        return shop.post("/v1/plans", content=text.encode(), headers=JSON)

    answer = planned(json.dumps({"messages": some}, indent=1) + "\n")
    assert (answer.status_code, answer.json()["accepted"]) == (200, 1_000)
    wrong = [*some[:700], {**some[700], "fold": 2}, *some[701:]]
    assert told(planned(json.dumps({"messages": wrong})))[:2] == (422, "messages.700.fold")
    many = told(planned(json.dumps({"messages": [*some, new()]})))
    assert many[:3] == (422, "messages", "has too many entries")
    whole = json.dumps({"messages": some[1:]})
    for text in (
        whole[:-1],
        whole[:-2],
        f"{whole}x",
        f"{whole[:-2]},]}}",
        f'{whole[:-1]},"further":1}}',
        json.dumps({"further": some}),
        json.dumps(some),
        json.dumps({"messages": [new(body={"text": "x" * 1_500_000})]}),
        json.dumps({"messages": [*some, new()]}).replace(f'"{LONG}"', "[" * 3_000, 1),
    ):
        detail = "the body is no object of one list messages, of entries up to 131072 bytes"
        answer = planned(text)
        assert (answer.status_code, answer.json()["detail"]) == (400, detail)


@pytest.mark.parametrize("bodies", [True, False])
def test_a_list_ends_where_it_is_long_enough(
    house: House, calls: Calls, monkeypatch: pytest.MonkeyPatch, bodies: bool
) -> None:
    monkeypatch.setattr(messages, "_MOST_BYTES", 10_000)
    monkeypatch.setattr(messages, "_READ_AT_ONCE", 2)
    made = [house.submit(f"r{n}", send_at=AT, body={"text": LONG * (n % 4)}) for n in range(12)]
    caller = calls(rights=[*READ, Right.BODIES_READ] if bodies else READ)
    path, found, pages = "/v1/messages?limit=7", list[str](), 0
    while path:
        answer = caller.get(path)
        listed = answer.json()["messages"]
        assert 1 <= len(listed) <= 7
        assert len(answer.content) < 10_100 or len(listed) == 1
        assert list(answer.json()) == ["messages", "cursor"]
        assert (answer.json()["cursor"] is None) == ("next" not in answer.links)
        found += [each["id"] for each in listed]
        path, pages = answer.links.get("next", {}).get("url", ""), pages + 1
    assert found == [str(each.id) for each in reversed(made)]
    assert pages > 2 if bodies else pages == 2


def test_a_count_ends_where_it_is_high_enough(
    house: House, shop: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(8):
        house.submit(f"r{number}", send_at=AT)
    whole = {"counts": {"memory": {"scheduled": 8}}, "complete": True}
    assert shop.get("/v1/counts").json() == whole
    monkeypatch.setattr(listing, "_EXAMINED", 3)
    assert shop.get("/v1/counts").json() == whole
    monkeypatch.setattr(messages, "_MOST_COUNTED", 6)
    answer = shop.get("/v1/counts").json()
    assert answer == {"counts": {"memory": {"scheduled": 6}}, "complete": False}


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_list_and_a_count_end_with_their_statement(house: House, shop: TestClient) -> None:
    house.submit("ada", send_at=AT)
    with house.parts.database.engine.connect() as other:
        other.exec_driver_sql("BEGIN")
        other.exec_driver_sql("LOCK TABLE dispatcher_messages IN ACCESS EXCLUSIVE MODE")
        answers = [shop.get(path) for path in ("/v1/messages", "/v1/counts")]
        other.exec_driver_sql("ROLLBACK")
    assert [each.status_code for each in answers] == [503, 503]
    assert [shop.get(path).status_code for path in ("/v1/messages", "/v1/counts")] == [200, 200]


def test_long_calls_of_one_key_leave_the_others_their_threads(
    house: House, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = house.submit("ada", send_at=AT)
    greedy, other = calls("greedy"), calls("other")
    many, _, seconds = streams.MOST["calls"]
    gate, running = Event(), list[int]()
    count = listing.Listing.counted

    def counted(*given: Any, **named: Any) -> Any:
        running.append(1)
        assert gate.wait(60)
        return count(*given, **named)

    monkeypatch.setattr(listing.Listing, "counted", counted)
    with ThreadPoolExecutor(many) as pool:
        held = [pool.submit(greedy.get, "/v1/counts") for _ in range(many)]
        wait_until(lambda: context_of(greedy).streams._under_way["calls"]["greedy"] == many)
        try:
            refused = greedy.get("/v1/counts")
            answers = [other.get(f"/v1/messages{path}") for path in ("", f"/{message.id}")]
            answers.append(greedy.get(f"/v1/messages/{message.id}"))
        finally:
            gate.set()
        assert len(running) == 1
        assert {each.result().status_code for each in held} == {200}
    assert kind(refused) == (429, "too-many-calls")
    assert refused.headers["Retry-After"] == f"{seconds}"
    assert [each.status_code for each in answers] == [200, 200, 200]
    assert not context_of(greedy).streams._under_way["calls"]


def context_of(client: TestClient) -> context.Service:
    app: Any = client.app
    service: context.Service = app.state.service
    return service


def test_a_caller_that_does_not_read_loses_its_place(
    house: House, shop: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "_CALL_SECONDS", 0.5)
    for number in range(4):
        house.submit(f"r{number}", send_at=AT, body={"text": "x" * 50_000})
    sent = list[int]()
    taken = context_of(shop).streams._under_way["calls"]

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
    assert not taken

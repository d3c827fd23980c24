"""A greedy caller: what its calls may take of the event loop, the threads and the memory."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.exceptions import RequestValidationError
from fastapi.testclient import TestClient
from starlette.types import Receive, Scope, Send

from dispatcher.web import Right, context
from dispatcher.web.endpoints import ENDPOINTS
from tests.support.house import House
from tests.web.conftest import Calls, all_but
from tests.web.test_messages import AT, NDJSON, new
from tests.web.test_wrong_calls import JSON, headers_of, operations, told

READ = [Right.MESSAGES_READ]
LONG = "x" * 3_000


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
        assert (answer.status_code, answer.json()["detail"]) == (
            403,
            f"the key has no right {rights[name][0]}",
        )
        assert "RateLimit" in answer.headers, "it is counted"


def test_every_endpoint_names_its_rights() -> None:
    assert not [each.name for each in ENDPOINTS if not each.rights]


def test_bodies_are_validated_beside_the_event_loop(
    house: House, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    validate, places = context.validated, list[tuple[str, int]]()
    loops = set[int]()

    def noted(model: Any, given: Any, *where: str | int) -> Any:
        places.append((model.__name__, threading.get_ident()))
        return validate(model, given, *where)

    monkeypatch.setattr(context, "validated", noted)
    client = calls()
    app = client.app

    async def seen(scope: Scope, receive: Receive, send: Send) -> None:
        loops.add(threading.get_ident())
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

    for indent in (None, 1):
        answer = planned(json.dumps({"messages": some}, indent=indent) + "\n")
        assert (answer.status_code, answer.json()["accepted"]) == (200, 1_000)
    wrong = [*some[:700], {**some[700], "fold": 2}, *some[701:]]
    assert told(planned(json.dumps({"messages": wrong})))[:2] == (422, "messages.700.fold")
    assert told(planned(json.dumps({"messages": [*some, new()]})))[:3] == (
        422,
        "messages",
        "has too many entries",
    )
    whole = json.dumps({"messages": some[1:]})
    for text in (
        whole[:-1],
        whole[:-2],
        f"{whole}x",
        f"{whole[:-2]},]}}",
        f'{whole[:-1]},"further":1}}',
        json.dumps({"further": some}),
        json.dumps(some),
        json.dumps({"messages": [new(body={"text": "x" * 1_000_000})]}),
        json.dumps({"messages": [*some, new()]}).replace(f'"{LONG}"', "[" * 3_000, 1),
    ):
        answer = planned(text)
        assert (answer.status_code, answer.json()["detail"]) == (
            400,
            "the body is no object of one list messages, of entries up to 131072 bytes",
        )

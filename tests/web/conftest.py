"""The HTTP API on a house, and callers with keys."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal
from fastapi import FastAPI
from fastapi.testclient import TestClient

from dispatcher.web import Right, api
from dispatcher.web.api import CallRoute
from dispatcher.web.keys import ApiKeys
from tests.support.house import House

Calls = Callable[..., TestClient]
ON_SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
"""For what no database does differently."""

_ROUTES: dict[str, CallRoute] = {}


def _route(path: str, **named: Any) -> CallRoute:
    """Make a route once for all APIs: it holds nothing of theirs, but this provider.

    What its call takes FastAPI reads for 20 ms: longer than most tests of the API.
    """
    name = named["operation_id"]
    if name not in _ROUTES:
        _ROUTES[name] = CallRoute(path, **named | {"dependency_overrides_provider": None})
    return _ROUTES[name]


vars(sys.modules["dispatcher.web.api"])["CallRoute"] = _route


@pytest.fixture(scope="session", autouse=True)
def one_loop() -> Iterator[None]:
    """Let clients share a loop; else each of their calls starts a thread with one of its own."""
    with start_blocking_portal() as portal, pytest.MonkeyPatch.context() as patch:
        patch.setattr(TestClient, "portal", portal)
        yield


def bearer(house: House, name: str = "shop", **fields: Any) -> dict[str, str]:
    """Return the header by which a new key calls."""
    _, token = ApiKeys(house.parts.database).add(name, **fields)
    return {"Authorization": f"Bearer {token}"}


def caller(house: House, name: str = "shop", *, app: FastAPI | None = None, **fields: Any) -> Any:
    """Return a client with a key of its own, of an API of its own; takes what adds a key."""
    app = app or api(house.dispatcher, rate="100000/second")
    return TestClient(app, headers=bearer(house, name, **fields))


@pytest.fixture
def calls(house: House) -> Iterator[Calls]:
    """Give a maker of clients of one API, each with a key of its own."""
    app = api(house.dispatcher, rate="100000/second")
    clients: list[TestClient] = []

    def make(name: str = "shop", **fields: Any) -> TestClient:
        clients.append(caller(house, name, app=app, **fields))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def shop(calls: Calls) -> TestClient:
    """Give a client that has all rights."""
    return calls()


def all_but(*rights: Right) -> list[Right]:
    return [right for right in Right if right not in rights]


def verdicts(client: TestClient, *lines: Mapping[str, object] | bytes) -> list[Any]:
    """Submit lines as a batch; return what it answers to each."""
    content = b"\n".join(
        line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines
    )
    headers = {"Content-Type": "Application/X-NDJSON; charset=utf-8"}
    answer = client.post("/v1/messages/batch", content=content, headers=headers)
    assert answer.headers["Content-Type"] == "application/x-ndjson", answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


def kind(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["type"].rpartition(":")[2]


def by_hand(
    app: Any, method: str, path: str, headers: dict[str, str], *messages: dict[str, Any]
) -> list[Any]:
    """Call an application, which receives these messages; return what it sends."""
    left, sent = [*messages], list[Any]()

    async def receive() -> Any:
        assert left, "the body was read"
        return left.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "asgi": {"spec_version": "2.4"}, "http_version": "1.1", "method": method,
        "path": path, "query_string": b"",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
    }  # fmt: skip
    asyncio.run(app(scope, receive, send))
    return sent

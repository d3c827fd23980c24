"""The HTTP API on a house, and callers with keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from dispatcher.web import Right, api
from dispatcher.web.access import add_key
from tests.support.house import House

Calls = Callable[..., TestClient]


@pytest.fixture
def calls(house: House) -> Iterator[Calls]:
    """Give a maker of clients, each with a key of its own; takes what ``add_key`` takes."""
    app = api(house.dispatcher, rate="100000/second")
    clients: list[TestClient] = []

    def make(name: str = "shop", **given: Any) -> TestClient:
        _, token = add_key(house.parts.api_keys, name, **given)
        client = TestClient(app, headers={"Authorization": f"Bearer {token}"})
        clients.append(client)
        return client

    yield make
    for each in clients:
        each.close()


@pytest.fixture
def shop(calls: Calls) -> TestClient:
    """Give a client that has all rights."""
    return calls()


def all_but(*rights: Right) -> list[Right]:
    """Return the rights without these."""
    return [each for each in Right if each not in rights]

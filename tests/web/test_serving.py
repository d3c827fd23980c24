"""The API in a server of its own, and mounted in programs of others."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from starlette.applications import Starlette
from starlette.routing import Mount

from dispatcher import InvalidValue, MissingExtra
from dispatcher.web import api
from dispatcher.web.access import add_key
from tests.support.house import House
from tests.web.test_messages import new


@pytest.mark.parametrize("host", ["FastAPI", "Starlette"])
def test_it_answers_where_a_program_mounts_it(house: House, host: str) -> None:
    ours = api(house.dispatcher)
    app: Any = FastAPI() if host == "FastAPI" else Starlette(routes=[Mount("/later", ours)])
    if isinstance(app, FastAPI):
        app.mount("/later", ours)
    _, token = add_key(house.parts.api_keys, "shop")
    with TestClient(app, headers={"Authorization": f"Bearer {token}"}) as client:
        made = client.post("/later/v1/messages", json=new())
        assert made.status_code == 201
        assert client.get(made.headers["Location"]).json() == made.json()
        client.post("/later/v1/messages", json=new("eve"))
        page = client.get("/later/v1/messages?limit=1")
        following = client.get(page.links["next"]["url"])
        assert [each["id"] for each in following.json()["messages"]] == [made.json()["id"]]


def test_a_rate_that_cannot_be_read_is_refused_at_once(house: House) -> None:
    with pytest.raises(InvalidValue):
        api(house.dispatcher, rate="fast")


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in sys.modules if each.startswith(("dispatcher.web", "fastapi"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    with pytest.raises(MissingExtra, match="needs fastapi") as caught:
        importlib.import_module("dispatcher.web")
    assert caught.value.accepted == "pip install 'quota-dispatcher[web]'"

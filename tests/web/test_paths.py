"""Names in paths and queries: any recipient is reached, and no misspelt parameter is ignored."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient

from tests.support.house import House
from tests.web.test_messages import new

HOOK = "https://hooks.example.com/a"
SCOPE = f"/v1/scopes/recipient/{quote(HOOK, safe='')}"


@pytest.mark.parametrize("name", [HOOK, "ada/"])
def test_a_name_with_slashes_is_reached(house: House, shop: TestClient, name: str) -> None:
    quoted = quote(name, safe="")
    house.submit(name)
    timeline = shop.get(f"/v1/scopes/recipient/{quoted}/timeline").json()
    assert [each["scope"] for each in timeline["windows"]] == [name]
    assert shop.get(f"/v1/scopes/recipient/{quoted}/next-slot").status_code == 200
    for kind, path in (("suppressions", "suppressions"), ("pauses", "pauses/recipient")):
        found = shop.put(f"/v1/{path}/{quoted}")
        assert found.status_code == 200, found.text
        if kind == "pauses":
            assert [each["name"] for each in found.json()["pauses"]] == [name]
        assert shop.delete(f"/v1/{path}/{quoted}").json() == {kind: []}


@pytest.mark.parametrize("name", ["zoe\n", "two\nlines"])
def test_a_name_with_a_line_end_is_refused_and_not_cut(shop: TestClient, name: str) -> None:
    for path in ("suppressions", "pauses/recipient"):
        answer = shop.put(f"/v1/{path}/{quote(name)}")
        assert answer.status_code == 422, answer.text


CALLS: list[tuple[str, str, Any]] = [
    ("POST", "/v1/messages", new("ben")),
    ("POST", "/v1/messages/batch", None),
    ("POST", "/v1/plans", {"messages": [new("ben")]}),
    ("GET", "/v1/messages", None),
    ("GET", "/v1/messages/{id}", None),
    ("PATCH", "/v1/messages/{id}", {"body": {"n": 1}}),
    ("DELETE", "/v1/messages/{id}", None),
    ("GET", f"{SCOPE}/timeline", None),
    ("GET", f"{SCOPE}/next-slot", None),
    ("PUT", "/v1/suppressions/ada", None),
    ("DELETE", "/v1/suppressions/zoe", None),
    ("PUT", "/v1/pauses/recipient/ada", None),
    ("GET", "/v1/status", None),
    ("GET", "/v1/load", None),
    ("GET", "/v1/refusals", None),
    ("GET", "/v1/events", None),
]


@pytest.mark.parametrize(("method", "path", "body"), CALLS, ids=[f"{m} {p}" for m, p, _ in CALLS])
def test_an_unknown_parameter_is_refused_and_nothing_is_done(
    house: House, shop: TestClient, method: str, path: str, body: Any
) -> None:
    """``DELETE …/suppressions/zoe?chanel=sms`` would revoke the opt-out of all channels."""
    message = house.submit("ada")
    house.dispatcher.suppress("zoe")
    before = house.rows()
    answer = shop.request(method, path.format(id=message.id), params={"chanel": "sms"}, json=body)
    assert (answer.status_code, answer.json().get("field")) == (422, "chanel"), answer.text
    assert house.rows() == before
    assert [each.recipient for each in house.dispatcher.suppressed()] == ["zoe"]
    assert not house.parts.pause_list.in_force()

"""Names in paths and queries: any recipient is reached, and no misspelt parameter is ignored."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient

from tests.support.house import House
from tests.web.test_wrong_calls import operations

HOOK = "https://hooks.example.com/a"


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


def test_an_unknown_parameter_is_refused_and_nothing_is_done(
    house: House, shop: TestClient
) -> None:
    """``DELETE …/suppressions/ada?chanel=sms`` would revoke the opt-out of all channels."""
    message = house.submit("ada")
    house.dispatcher.suppress("zoe")
    before = house.rows()
    for bodies in (True, False):
        for method, path, name in operations(shop, message, bodies=bodies):
            body: Any = {} if bodies else None
            answer = shop.request(method, path, params={"chanel": "sms"}, json=body)
            assert (answer.status_code, answer.json().get("field")) == (422, "chanel"), name
    assert house.rows() == before
    assert [each.recipient for each in house.dispatcher.suppressed()] == ["zoe"]
    assert not house.parts.pause_list.in_force()

"""A submit that is repeated with its ``Idempotency-Key`` has one effect.

Changes need no key: repeated, they end in the same state.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient

from dispatcher.web import Caller, Right, api
from dispatcher.web.access import revoke_key
from tests.support.house import FAR, House
from tests.web.conftest import caller
from tests.web.test_messages import NDJSON, new

LATER = (FAR + timedelta(hours=2)).isoformat()


def key(text: str = "k-1") -> dict[str, str]:
    return {"Idempotency-Key": text}


def replayed(answer: Any) -> bool:
    return bool(answer.headers.get("Idempotency-Replayed"))


def test_a_repeated_submit_is_answered_by_its_message_as_it_is_now(
    house: House, shop: TestClient
) -> None:
    first = shop.post("/v1/messages", json=new(), headers=key())
    house.dispatcher.update(first.json()["id"], body={"text": "changed since"})
    for header in ("k-1", '"k-1"'):
        again = shop.post("/v1/messages", json=new(), headers=key(header))
        assert again.status_code == 201
        assert again.json() == first.json() | {"body": {"text": "changed since"}}
        assert (replayed(again), again.headers["Location"]) == (True, first.headers["Location"])
    assert not replayed(first)
    other = shop.post("/v1/messages", json=new("eve"), headers=key())
    assert other.json()["type"].endswith(":idempotency-conflict")
    assert len(house.rows()) == 1


def test_a_key_that_cannot_be_kept_is_refused(house: House, shop: TestClient) -> None:
    """Also one whose characters clients send in different encodings."""
    odd = ["bestätigung".encode(), "bestätigung".encode("latin-1")]
    for keys in ([b""], [b'""'], [b"x" * 191], [b"a\tb"], *([each] for each in odd), [b"1", b"2"]):
        headers = [(b"Idempotency-Key", each) for each in keys]
        answer = shop.post("/v1/messages", json=new(), headers=headers)
        assert (answer.status_code, answer.json()["field"]) == (422, "Idempotency-Key"), keys
    assert house.rows() == []


CHANGES = {
    "cancel": ("DELETE", "", None),
    "update": ("PATCH", "", {"body": {"n": 1}}),
    "reschedule": ("POST", "/reschedule", {"send_at": LATER}),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_repeated_change_ends_in_the_same_state(
    house: House, shop: TestClient, name: str
) -> None:
    """Its answer was lost: also with a key, which a client may send with every call."""
    path = shop.post("/v1/messages", json=new()).headers["Location"]
    method, end, change = CHANGES[name]
    answers = [
        shop.request(method, path + end, json=change, headers=headers)
        for headers in ({}, key("change"), key("change"))
    ]
    assert [answer.status_code for answer in answers] == [200] * 3
    fields = ("status", "body", "send_at")
    assert len({str([answer.json()[name] for name in fields]) for answer in answers}) == 1
    assert len(house.members()) == (0 if name == "cancel" else 1)


def test_neither_a_batch_nor_a_move_by_a_length_takes_a_key(house: House, shop: TestClient) -> None:
    """The promise: no repeat submits a line or moves a message twice in silence."""
    made = shop.post("/v1/messages", json=new())
    move, batch = f"{made.headers['Location']}/reschedule", "/v1/messages/batch"
    in_two_hours = {"send_in_seconds": 7_200}
    for path, headers, body, accepted in (
        (batch, NDJSON, new("eve"), "idempotency_key in lines"),
        (move, {}, in_two_hours, "no key, or a move to send_at"),
    ):
        refused = shop.post(path, json=body, headers={**headers, **key()})
        assert (refused.status_code, refused.json()["field"]) == (422, "Idempotency-Key")
        assert refused.json()["accepted"] == accepted
    assert shop.get(made.headers["Location"]).json() == made.json()
    assert len(house.rows()) == 1
    assert shop.post(move, json=in_two_hours).status_code == 200


def test_an_answer_is_for_a_caller_with_the_same_rights(build: Callable[..., House]) -> None:
    house = build(scopes={"tenant": {"quotas": ["100/minute"]}})

    def of_header(request: Any) -> Caller:
        tenant = ("tenant", request.headers["Tenant"])
        return Caller(name="web", rights=frozenset(Right), scope=tenant)

    client = TestClient(api(house.dispatcher, auth=of_header))
    answers = [
        client.post("/v1/messages", json=new(), headers={"Tenant": each, **key()})
        for each in ("acme", "umbrella", "acme")
    ]
    assert [each.status_code for each in answers] == [201, 409, 201]
    assert answers[2].content == answers[0].content
    call: dict[str, Any] = {"json": new("eve"), "headers": key()}
    made = caller(house).post("/v1/messages", **call)
    revoke_key(house.parts.api_keys, "shop")
    again = caller(house, rights=[Right.MESSAGES_WRITE]).post("/v1/messages", **call)
    assert again.json()["id"] == made.json()["id"]
    assert "recipient" not in again.json()

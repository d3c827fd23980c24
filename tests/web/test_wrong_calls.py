"""Calls of the wrong shape: nothing is ignored, and the error says what is accepted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from dispatcher import Message, Status
from tests.support.house import House
from tests.web.test_messages import AT, NDJSON, new

JSON = {"Content-Type": "application/json"}
NAMES = {"kind": "recipient", "scope": "ada", "recipient": "ada", "name": "ada"}


def operations(shop: TestClient, message: Message, *, bodies: bool) -> Iterator[tuple[str, ...]]:
    """Yield method, path and id of the operations of the document with, or without, a body."""
    for path, some in shop.get("/v1/openapi.json").json()["paths"].items():
        for method, each in some.items():
            if ("requestBody" in each) == bodies:
                where = path.format(message_id=message.id, **NAMES)
                yield method.upper(), where, each["operationId"]


def told(answer: Any) -> tuple[int, str, str, str]:
    problem = answer.json()
    return (answer.status_code, *(problem.get(name) for name in ("field", "problem", "accepted")))


def test_a_body_that_a_call_does_not_take_is_refused(house: House, shop: TestClient) -> None:
    """``DELETE …/suppressions/ada`` with a channel in a body would revoke all opt-outs."""
    message = house.submit("ada", send_at=AT)
    house.dispatcher.suppress("zoe")
    before = house.rows()
    calls = [*operations(shop, message, bodies=False)]
    assert len(calls) >= 14
    for method, path, name in calls:
        for content in (b'{"channel": "memory"}', iter([b"", b'{"channel": ', b'"memory"}'])):
            answer = shop.request(method, path, content=content, headers=JSON)
            assert told(answer)[:3] == (422, "the call", "has a body"), (name, answer.text)
            assert "RateLimit" in answer.headers
    assert house.rows() == before
    assert [each.recipient for each in house.dispatcher.suppressed()] == ["zoe"]
    assert not house.parts.pause_list.in_force()
    refused = shop.request("DELETE", "/v1/suppressions/zoe", content=b"{}")
    assert refused.json()["accepted"] == "a call without a body; it has the parameters channel"


def test_a_call_without_a_body_may_say_that_it_has_none(house: House, shop: TestClient) -> None:
    house.dispatcher.suppress("zoe")
    answer = shop.delete("/v1/suppressions/zoe", headers={"Content-Length": "0", **JSON})
    assert (answer.status_code, answer.json()) == (200, {"suppressions": []})
    assert shop.put("/v1/suppressions/zoe", content=iter([b""])).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "field"),
    [
        ("GET", "/v1/messages?status=sent&status=scheduled", "status"),
        ("GET", "/v1/counts?channel=memory&channel=file", "channel"),
        ("GET", "/v1/scopes/recipient/ada/next-slot?zone=UTC&zone=Asia/Tokyo", "zone"),
        ("GET", "/v1/load?hours=2&hours=3", "hours"),
        ("DELETE", "/v1/suppressions/zoe?channel=memory&channel=file", "channel"),
    ],
)
def test_a_parameter_that_is_given_twice_is_refused(
    house: House, shop: TestClient, method: str, path: str, field: str
) -> None:
    house.dispatcher.suppress("zoe", channel="file")
    answer = shop.request(method, path)
    assert told(answer)[:3] == (422, field, "is given more than once"), answer.text
    assert answer.json()["accepted"].endswith(", once")
    assert len([*house.dispatcher.suppressed("zoe")]) == 1


def test_a_scope_is_counted_once_of_each_kind(house: House, shop: TestClient) -> None:
    house.submit("ada", send_at=AT)
    both = "count=recipient.memory%3Dada&count=channel.memory%3Dmemory"
    assert len(shop.get(f"/v1/messages?{both}").json()["messages"]) == 1
    twice = "count=channel.memory%3Dmemory&count=channel.memory%3Dfile"
    refused = shop.get(f"/v1/messages?{twice}")
    assert told(refused)[:3] == (422, "count", "'channel.memory' is given more than once")


def test_a_body_that_is_not_sent_as_json_is_named_by_every_call(
    house: House, shop: TestClient
) -> None:
    message = house.submit("ada", send_at=AT)
    before = house.rows()
    for method, path, name in operations(shop, message, bodies=True):
        for media_type in ("text/plain", "application/x-www-form-urlencoded", ""):
            headers = {"Content-Type": media_type}
            answer = shop.request(method, path, content=b"{}", headers=headers)
            if name == "submit_batch":
                assert answer.status_code == 415
                continue
            assert told(answer) == (
                422,
                "the call",
                "its body is not sent as JSON",
                "send it as application/json",
            ), name
    assert house.rows() == before


def test_a_misspelt_field_is_named_by_every_call(house: House, shop: TestClient) -> None:
    message = house.submit("ada", send_at=AT)
    document = shop.get("/v1/openapi.json").json()
    for method, path, name in operations(shop, message, bodies=True):
        for field in fields_of(document, name):
            body: Any = {f"{field}x": "x"}
            answer = shop.request(method, path, json=body, headers=headers_of(name))
            assert told_of(name, answer)[:2] == (f"{field}x", "there is no such field")
            assert told_of(name, answer)[2] in fields_of(document, name), field
    nested = shop.post("/v1/plans", json={"messages": [new(), new(send_in=1)]})
    assert told(nested)[1:] == ("messages.1.send_in", "there is no such field", "send_in_seconds")
    query = shop.get("/v1/messages?recipent=ada")
    assert told(query)[1:] == ("recipent", "there is no such parameter", "recipient")
    assert told(shop.get("/v1/status?x=1"))[1:] == ("x", "there is no such parameter", "none")


def headers_of(name: str) -> dict[str, str]:
    return NDJSON if name == "submit_batch" else JSON


def told_of(name: str, answer: Any) -> tuple[str, str, str]:
    problem = json.loads(answer.text)
    problem = problem["problem"] if name == "submit_batch" else problem
    return problem["field"], problem["problem"], problem["accepted"]


MODELS = {
    "submit": "NewMessage", "submit_batch": "NewMessageLine", "plan": "Plans",
    "update": "MessageChange", "reschedule": "NewTime", "retry": "Retry", "drop": "Drop",
    "suppress": "SuppressionIn",
}  # fmt: skip


def fields_of(document: Any, name: str) -> list[str]:
    return [*document["components"]["schemas"][MODELS[name]]["properties"]]


def test_a_value_of_the_wrong_type_is_told_in_words(house: House, shop: TestClient) -> None:
    """Each field of each body; no error has words of pydantic, or sends its reader elsewhere."""
    message = house.submit("ada", send_at=AT)
    document = shop.get("/v1/openapi.json").json()
    wrong: list[Any] = [[1], {"a": 1}, "x", 0.5, True, 1e300, [], "\ud800"]
    seen = 0
    for method, path, name in operations(shop, message, bodies=True):
        for field in fields_of(document, name):
            for value in wrong:
                body = new() if name.startswith("submit") else {}
                content = json.dumps({**body, field: value})
                answer = shop.request(method, path, content=content, headers=headers_of(name))
                if answer.status_code != 422 and name != "submit_batch":
                    continue
                if "problem" not in json.loads(answer.text):
                    continue
                seen += 1
                assert "Input should" not in answer.text
                assert "OpenAPI" not in answer.text, (name, field, value, answer.text)
        for whole in (b"[]", b"1", b'"x"', b"null"):
            answer = shop.request(method, path, content=whole, headers=headers_of(name))
            if answer.status_code == 422:
                field, problem, accepted = told_of(name, answer)
                assert (field, problem) == ("the call", "its body is no object")
                assert accepted == "an object"
    assert seen > 100


@pytest.mark.parametrize(
    ("path", "body", "field", "problem", "accepted"),
    [
        ("", new() | {"recipient": 5}, "recipient", "is no text", "a text"),
        ("", new(body=5), "body", "is no object", "an object"),
        ("", {"channel": "memory"}, "recipient", "is missing", "a text"),
        ("", new(fold=3), "fold", "is not an accepted value", "one of 0, 1"),
        ("", new(on_conflict="x"), "on_conflict", "is not an accepted value",
         "one of reject, shift"),
        ("", new(scopes={"tenant": 5}), "scopes.tenant", "is no text", "a text"),
        ("", new(send_in_seconds="5"), "send_in_seconds", "is no number",
         "a number of at least -3,162,240,000 and at most 3,162,240,000"),
        ("/../plans", {"messages": [new(), new(body=5)]}, "messages.1.body", "is no object",
         "an object"),
        ("/../plans", {"messages": [{}] * 1_001}, "messages", "has too many entries",
         "a list of at most 1,000"),
        ("/../plans", None, "the call", "its body is missing", "an object"),
        ("", None, "the call", "its body is missing", "an object"),
    ],
)  # fmt: skip
def test_what_is_accepted_is_said(  # noqa: PLR0917 - parameters of the cases
    shop: TestClient, path: str, body: Any, field: str, problem: str, accepted: str
) -> None:
    answer = shop.post(f"/v1/messages{path}".replace("messages/../", ""), json=body)
    assert told(answer) == (422, field, problem, accepted)


@pytest.mark.parametrize(
    ("query", "accepted"),
    [
        ("messages?limit=0", "a whole number of at least 1 and at most 1,000"),
        ("messages?limit=x", "a whole number of at least 1 and at most 1,000"),
        ("messages?status=x", f"one of {', '.join(Status)}"),
        ("messages?overdue=x", "true or false"),
        ("refusals?hours=0", "a number of more than 0 and at most 168"),
    ],
)
def test_what_a_parameter_accepts_is_said(shop: TestClient, query: str, accepted: str) -> None:
    assert told(shop.get(f"/v1/{query}"))[3] == accepted


def test_a_line_of_a_batch_that_is_no_message_is_told(shop: TestClient) -> None:
    answer = shop.post("/v1/messages/batch", content=b"{\n[]\n", headers=NDJSON)
    found = [json.loads(each)["problem"] for each in answer.text.splitlines()]
    assert [(each["field"], each["problem"], each["accepted"]) for each in found] == [
        ("the line", "is not JSON", "an object"),
        ("the line", "is no object", "an object"),
    ]

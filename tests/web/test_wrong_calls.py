"""Calls of the wrong shape, and names that are hard to write: nothing is ignored, any recipient is
reached, and the error says what is accepted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import nan
from typing import Any
from urllib.parse import quote

import httpx2
import pytest
from fastapi.testclient import TestClient

from dispatcher import Message
from dispatcher.message import new_id
from tests.support.house import House
from tests.support.house_fixtures import Build
from tests.web.conftest import ON_SQLITE, caller, kind
from tests.web.test_messages import AT, NDJSON, new

pytestmark = ON_SQLITE

JSON = {"Content-Type": "application/json"}
ONE_OF = (
    "one of channel, recipient, send_at, send_in_seconds, zone, fold, on_conflict, latest, "
    "expires_at, expire_after_seconds, body, template, data, priority, scope, scopes, "
    "quiet_hours, send_window, on_unknown, campaign, quotas, status_url, event, offset, event_at"
)
NAMES = {"kind": "recipient", "scope": "ada", "recipient": "ada", "name": "ada"}


def operations(shop: TestClient, message: Message) -> Iterator[tuple[str, str, str, bool]]:
    """Yield method, path, id of each operation of the document, and whether it has a body."""
    for path, methods in shop.get("/v1/openapi.json").json()["paths"].items():
        for method, operation in methods.items():
            where = path.format(message_id=message.id, **NAMES)
            yield method.upper(), where, operation["operationId"], "requestBody" in operation


def told(answer: Any) -> tuple[int, str, str, str]:
    problem = answer.json()
    return (answer.status_code, *(problem.get(name) for name in ("field", "problem", "accepted")))


def told_of(line: Any) -> tuple[int, str, str, str]:
    """Return the same of the verdict on a single line."""
    problem = json.loads(line.text)["problem"]
    return tuple(problem[name] for name in ("status", "field", "problem", "accepted"))


def test_no_call_ignores_a_part_that_it_does_not_have(house: House, shop: TestClient) -> None:
    """``DELETE …/suppressions/ada`` with a channel in a body would revoke all opt-outs."""
    message = house.submit("ada", send_at=AT)
    house.dispatcher.suppress("zoe")
    before = house.rows()
    for method, path, name, has_body in operations(shop, message):
        headers = NDJSON if name == "submit_batch" else JSON
        body = b'{"channelx": "memory"}'
        answer = shop.request(method, f"{path}?chanel=sms", content=body, headers=headers)
        assert told(answer)[:3] == (422, "chanel", "there is no such parameter"), name
        for content in (body, iter([b"", b'{"channelx": ', b'"memory"}'])):
            answer = shop.request(method, path, content=content, headers=headers)
            if not has_body:
                assert told(answer)[:3] == (422, "the call", "has a body"), (name, answer.text)
                assert "RateLimit" in answer.headers
                continue
            misspelt = told_of(answer) if name == "submit_batch" else told(answer)
            assert misspelt[:3] == (422, "channelx", "there is no such field"), name
        if has_body:
            answer = shop.request(
                method, path, content=b"{}", headers={"Content-Type": "text/plain"}
            )
            if name == "submit_batch":
                assert answer.status_code == 415
            else:
                problem, accepted = "its body is not sent as JSON", "send it as application/json"
                assert told(answer) == (422, "the call", problem, accepted), name
    assert house.rows() == before
    assert [opt_out.recipient for opt_out in house.dispatcher.suppressed()] == ["zoe"]
    assert not house.parts.pauses.in_force()
    none = shop.delete("/v1/suppressions/zoe", headers={"Content-Length": "0", **JSON})
    assert none.json() == {"suppressions": []}, "a call may say that it has no body"


def test_a_parameter_that_is_given_twice_is_refused(house: House, shop: TestClient) -> None:
    house.dispatcher.suppress("zoe", channel="file")
    for method, path, field in (
        ("GET", "messages?status=sent&status=scheduled", "status"),
        ("GET", "counts?channel=memory&channel=file", "channel"),
        ("GET", "scopes/recipient/ada/next-slot?zone=UTC&zone=Asia/Tokyo", "zone"),
        ("GET", "load?hours=2&hours=3", "hours"),
        ("DELETE", "suppressions/zoe?channel=memory&channel=file", "channel"),
    ):
        answer = shop.request(method, f"/v1/{path}")
        assert told(answer)[:3] == (422, field, "is given more than once"), answer.text
    assert len([*house.dispatcher.suppressed("zoe")]) == 1
    house.submit("ada", send_at=AT)
    count = "/v1/messages?count=channel.memory%3Dmemory&count="
    assert len(shop.get(f"{count}recipient.memory%3Dada").json()["messages"]) == 1
    twice = told(shop.get(f"{count}channel.memory%3Dfile"))
    assert twice[:3] == (422, "count", "'channel.memory' is given more than once")


ACCEPTED: list[tuple[str, Any, str, str, str]] = [
    ("messages", new() | {"recipient": 5}, "recipient", "is no text", "a text"),
    ("messages", new(body=5), "body", "is no object", "an object"),
    ("messages", {"channel": "memory"}, "recipient", "is missing", "a value: it has no default"),
    ("messages", new(channelx="memory"), "channelx", "there is no such field", "channel"),
    ("messages", new(tenant="acme"), "tenant", "there is no such field", ONE_OF),
    ("plans", {"messages": [new(), new(send_in=1)]}, "messages.1.send_in", "there is no such field",
     "send_in_seconds"),
    ("messages", new(fold=False), "fold", "is not an accepted value", "0 or 1"),
    ("messages", new(on_conflict="x"), "on_conflict", "is not an accepted value",
     "'reject' or 'shift'"),
    ("messages", new(scopes={"tenant": 5}), "scopes.tenant", "is no text", "a text"),
    *(("messages", new(priority=value), "priority", "is no whole number", "a whole number")
      for value in (True, "high", "50", 1.5)),
    ("messages", new(priority=101), "priority", "101", "a whole number from -100 to 100"),
    ("messages", new(send_in_seconds="5"), "send_in_seconds", "is no number", "a number"),
    ("messages", new(send_in_seconds=1e300), "send_in_seconds", "is out of range",
     "at most 3162240000.0"),
    ("messages", new(send_in_seconds=nan), "send_in_seconds", "is no finite number",
     "a finite number"),
    ("messages", [], "the call", "its body is no object", "an object"),
    ("messages", None, "the call", "its body is missing", "an object"),
    ("plans", {"messages": [{}] * 1_001}, "messages", "has too many entries", "at most 1000"),
    ("plans", {"messages": {}}, "messages", "is no list", "a list"),
    *((f"messages/{new_id()}/retry", {"perhaps_sent": value}, "perhaps_sent",
       "is neither true nor false", "true or false") for value in ("on", "true", 1)),
    ("messages?recipent=ada", ..., "recipent", "there is no such parameter", "recipient"),
    ("status?x=1", ..., "x", "there is no such parameter", "none"),
    ("messages?limit=0", ..., "limit", "is out of range", "at least 1"),
    ("messages?limit=" + "9" * 5_000, ..., "limit", "is out of range", "a number of fewer digits"),
    ("messages?overdue=x", ..., "overdue", "is neither true nor false", "true or false"),
]  # fmt: skip
"""A path, its body if it takes one, and what the answer says of a field."""


def test_what_is_accepted_is_said(shop: TestClient) -> None:
    for path, body, *expected in ACCEPTED:
        content = None if body in (None, ...) else json.dumps(body)
        method = "GET" if body is ... else "POST"
        answer = shop.request(method, f"/v1/{path}", content=content, headers=JSON)
        assert told(answer) == (422, *expected), (path, body)


def test_what_is_wrong_with_json_that_cannot_be_read_is_said(shop: TestClient) -> None:
    for body, problem in (
        (b"[" * 100_000, "is nested too deeply"),
        (b"9" * 5_000, "has a number that is too long"),
        (b"-" + b"9" * 5_000, "has a number that is too long"),
        (b'"', "is not JSON"),
        (b'"\xff"', "is not JSON"),
    ):
        content = b'{"body": {"a": ' + body + b"}}"
        for path in ("/v1/messages", "/v1/plans"):
            answer = shop.post(path, content=content, headers=JSON)
            assert "RateLimit" in answer.headers
            detail = f"the body {problem}"
            assert (*kind(answer), answer.json()["detail"]) == (400, "unreadable", detail)
        line = shop.post("/v1/messages/batch", content=content, headers=NDJSON)
        assert told_of(line) == (422, "the line", problem, "an object")
    long = shop.post("/v1/messages", json=new(body={"text": "x" * 2_000_000}))
    assert kind(long) == (413, "too-large")
    line = shop.post("/v1/messages/batch", content=b"[]", headers=NDJSON)
    assert told_of(line) == (422, "the line", "is no object", "an object")


def test_an_address_that_is_not_utf_8_names_no_other_recipient(shop: TestClient) -> None:
    for name in ("J%F6rg", "%ff", "ada?channel=%ff", "J%EF%BF%BDrg"):
        url = httpx2.URL("http://testserver", raw_path=f"/v1/suppressions/{name}".encode())
        for method in ("PUT", "DELETE", "GET"):
            answer = shop.request(method, url)
            assert kind(answer) == (400, "unreadable"), name
    assert shop.put("/v1/suppressions/Jörg").status_code == 200


SLOT = "/v1/scopes/tenant/acme/next-slot"
TWICE = "2026-10-25T02:30&zone=Europe/Berlin"
OFFSETS = "2026-10-25T02:30:00+02:00 (first) or 2026-10-25T02:30:00+01:00 (second)"
NAMED: list[tuple[str, str, str, str]] = [
    (f"{SLOT}?quiet_hours=21:00-08:00", "quiet_hours", "of the kind 'tenant'", "'recipient'"),
    (f"{SLOT}?channel=memory", "channel", "of the kind 'tenant'", "'recipient'"),
    (f"{SLOT}?after=2001-01-01T00:00Z", "after", "is past", "a time from now on"),
    (f"{SLOT}?after=9998-01-01T00:00Z", "after", "too far ahead", "days ahead"),
    (f"{SLOT}?after={TWICE}", "after", "happens twice", OFFSETS),
    ("/v1/scopes/recipient/ada/next-slot?after=x", "after", "cannot read", "a time with an offset"),
    ("/v1/scopes/recipient/a%0A/next-slot", "scope", "", "characters"),
    ("/v1/scopes/fax/ada/next-slot", "kind", "no kind 'fax'", "one of recipient, channel, tenant"),
    ("/v1/scopes/tenant/acme/timeline?channel=memory", "channel", "of the kind", "'recipient'"),
    (f"/v1/scopes/tenant/acme/timeline?start={TWICE}", "start", "happens twice", OFFSETS),
    ("/v1/scopes/tenant/acme/timeline?days=1e-12", "days", "0:00:00", "a length of more than 0"),
    ("/v1/refusals?hours=1e-12", "hours", "0:00:00", "a length of more than 0"),
    ("/v1/messages?count=nope=x", "count", "there is no kind 'nope'", "the settings have tenant"),
    ("/v1/messages/x", "message_id", "is no message id", "a UUID"),
    (f"/v1/messages?from={TWICE}", "from", "happens twice", OFFSETS),
    ("/v1/messages?from=2030-01-02&until=2030-01-01", "until", "not later than from", "later time"),
    ("/v1/messages?zone=Mars", "zone", "there is no zone 'Mars'", "Europe/Berlin"),
]


def check_names(answer: Any, field: str, problem: str, accepted: str) -> None:
    """The detail says the same as the fields, and none has a name or a word of Python."""
    error = answer.json()
    assert (answer.status_code, error["field"]) == (422, field), answer.text
    assert (problem in error["problem"], accepted in error["accepted"]) == (True, True), error
    text = f"{field}: {error['problem']}; accepted: {error['accepted']}"
    assert error["detail"] == text
    for word in ("from_at", "until_at", "timedelta", "datetime", "True", "send_in ", "-1 day"):
        assert word not in f"{text} "


def test_an_error_names_the_parameter_of_the_call(build: Build) -> None:
    shop = caller(build(scopes={"tenant": {"quotas": ["100/minute"]}}))
    for path, field, problem, accepted in NAMED:
        check_names(shop.get(path), field, problem, accepted)


WRONG_TIMES: list[tuple[Any, str, str, str]] = [
    ({"send_in_seconds": -5}, "send_in_seconds", "-0:00:05 lies in the past", "0 or more"),
    ({}, "send_at", "neither of send_at and send_in_seconds given", "one of them"),
    ({"send_at": AT, "send_in_seconds": 5}, "send_at", "both of", "one of them"),
    ({"send_at": AT, "expire_after_seconds": 5, "expires_at": AT}, "expire_after_seconds",
     "given together with expires_at", "one of them"),
    ({"send_in_seconds": 100, "fold": 1}, "fold", "given with send_in_seconds",
     "send_at, or no fold"),
]  # fmt: skip


def test_a_submit_a_plan_a_line_and_a_move_refuse_the_same_times_by_their_names(
    house: House, shop: TestClient
) -> None:
    path = f"/v1/messages/{house.submit('ada', send_at=AT).id}"
    before = house.rows()
    for asked, field, problem, accepted in WRONG_TIMES:
        draft = {"channel": "memory", "recipient": "eve", "body": {}, **asked}
        single = shop.post("/v1/messages", json=draft)
        check_names(single, field, problem, accepted)
        told = single.json()
        assert shop.post(f"{path}/reschedule", json=asked).json() == told
        [planned] = shop.post("/v1/plans", json={"messages": [draft]}).json()["rejections"]
        assert planned["problem"] == told
        line = shop.post("/v1/messages/batch", content=json.dumps(draft), headers=NDJSON)
        assert json.loads(line.text)["problem"] == told
        assert house.rows() == before


def test_a_type_of_bodies_that_cannot_be_used_stops_no_call_on_another_channel(
    build: Build,
) -> None:
    channel = {"transport": "memory"}
    house = build(channels={"plain": channel, "typed": channel | {"body": "nowhere:Body"}})
    shop = caller(house)
    made = shop.post("/v1/messages", json=new(channel="plain"))
    assert made.status_code == 201, made.text
    assert shop.get("/v1/messages?channel=plain").status_code == 200
    path = f"{made.headers['Location']}/reschedule"
    assert shop.post(path, json={"send_in_seconds": 60}).status_code == 200


def test_quotas_and_limits_of_a_scope_are_set_together_or_one_by_one(build: Build) -> None:
    house = build(scopes={"tenant": {"quotas": "100/hour"}})
    shop, path = caller(house), "/v1/scopes/tenant/acme/quotas"

    def put(**given: list[str]) -> tuple[list[str], list[str]]:
        now = shop.put(path, json=given).json()
        return now["quotas"], now["limits"]

    assert put(quotas=["7/day"], limits=["2/second"]) == (["7/day"], ["2/second"])
    assert put(limits=["3/second"]) == (["7/day"], ["3/second"])
    assert put(quotas=["8/day"]) == (["8/day"], ["3/second"])
    assert put(limits=[]) == (["8/day"], [])
    assert put(limits=["3/second"]) == (["8/day"], ["3/second"])
    ended = shop.delete(path).json()
    assert (ended["quotas"], ended["own"], ended["limits"]) == (["100/hour"], False, [])
    for wrong, field in (({}, "quotas"), ({"limits": ["3/fortnight"]}, "limits")):
        refused = shop.put(path, json=wrong)
        assert (refused.status_code, refused.json()["field"]) == (422, field)


@pytest.mark.parametrize("name", ["https://hooks.example.com/a", "ada/", "zoe\n", "two\nlines"])
def test_a_name_with_slashes_is_reached_and_one_with_a_line_end_is_not_cut(
    house: House, shop: TestClient, name: str
) -> None:
    quoted = quote(name, safe="")
    if "\n" in name:
        for path in ("suppressions", "pauses/recipient"):
            assert shop.put(f"/v1/{path}/{quoted}").status_code == 422
        return
    house.submit(name)
    timeline = shop.get(f"/v1/scopes/recipient/{quoted}/timeline").json()
    assert [window["scope"] for window in timeline["windows"]] == [name]
    assert shop.get(f"/v1/scopes/recipient/{quoted}/next-slot").status_code == 200
    quotas = shop.put(f"/v1/scopes/recipient/{quoted}/quotas", json={"quotas": ["7/day"]}).json()
    assert (quotas["quotas"], quotas["own"], quotas["over"]) == (["7/day"], True, 0)
    assert shop.get("/v1/quotas?kind=recipient").json()["scopes"] == [quotas]
    assert not shop.delete(f"/v1/scopes/recipient/{quoted}/quotas").json()["own"]
    assert shop.get(f"/v1/scopes/recipient/{quoted}/quotas").json()["quotas"] != ["7/day"]
    for listed, path in (("suppressions", "suppressions"), ("pauses", "pauses/recipient")):
        put = shop.put(f"/v1/{path}/{quoted}").json()
        assert put == {"cancelled": 1} or [pause["name"] for pause in put["pauses"]] == [name]
        assert shop.delete(f"/v1/{path}/{quoted}").json() == {listed: []}


SERIES = {"rule": "0 9 * * *", "channel": "memory", "recipient": "ada", "body": {}}


WRONG: list[tuple[str, Any, str, str]] = [
    ("PUT daily", SERIES | {"rule": 5}, "rule", "is no text"),
    ("PUT daily", SERIES | {"rule": "FREQ=NEVER"}, "rule", "FREQ"),
    ("PUT daily", SERIES | {"spread_seconds": "1"}, "spread_seconds", "is no number"),
    ("PUT daily", SERIES | {"window_seconds": -1}, "window_seconds", ""),
    ("PUT daily", SERIES | {"count": True}, "count", "is no whole number"),
    ("PUT daily", SERIES | {"until": "soon"}, "until", "cannot read"),
    ("PUT daily", SERIES | {"recipients": ["ben"]}, "recipients", "together"),
    ("PUT daily", SERIES | {"recipient": None, "recipients": [5]}, "recipients", ""),
    ("PUT daily", SERIES | {"recipient": None}, "recipients", "is missing"),
    ("PUT weekly", SERIES, "name", "there is a series"),
    ("PATCH daily", {}, "name", "there is no series"),
    ("PATCH weekly", {"since": "soon"}, "since", "cannot read"),
    ("PATCH weekly", {"sinc": "soon"}, "sinc", "there is no such field"),
    ("DELETE daily", None, "name", "there is no series"),
    ("POST daily/pause", None, "name", "there is no series"),
    ("GET daily/preview", None, "name", "there is no series"),
    ("GET weekly/preview?count=0", None, "count", ""),
    ("GET weekly/preview?zone=Nowhere", None, "zone", "no zone"),
    ("GET ?limit=1001", None, "limit", ""),
]


def test_wrong_calls_of_series(house: House, shop: TestClient) -> None:
    house.dispatcher.series.add("weekly", "0 9 * * mon", zone="local", channel="memory",
                                recipient="ada", body={})  # fmt: skip
    for call, body, field, says in WRONG:
        method, _, path = call.partition(" ")
        separator = "" if path.startswith("?") else "/"
        answer = shop.request(method, f"/v1/series{separator}{path}", json=body)
        assert told(answer)[0] == 422, (call, answer.text)
        assert told(answer)[1].split(".")[0] == field
        assert says in told(answer)[2]
        assert [one.name for one in house.dispatcher.series.list()] == ["weekly"]

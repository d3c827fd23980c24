"""The filters of messages are the same on the command line, on the page and in the API."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo

from fastapi.testclient import TestClient

from dispatcher import Message
from dispatcher.cli import lists as of_commands
from dispatcher.selection import Wanted
from dispatcher.web import Caller, Right, models, page
from dispatcher.web.pages.messages import FILTERS
from tests.support.house import FAR, House, hour_ago
from tests.support.house_fixtures import Build
from tests.web.conftest import Calls, all_but, caller, kind
from tests.web.test_keys import SCOPES
from tests.web.test_messages import new

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
OF_COMMANDS = {
    "count": "scopes", "from": "from_at", "until": "until_at", "key": "idempotency_key",
}  # fmt: skip
"""Filters that have another name as an attribute of a command's options."""


def ids(listed: Any) -> list[str]:
    return [message["id"] for message in listed.json()["messages"]]


def by_command(house: House, query: dict[str, str]) -> list[str]:
    options: dict[str, Any] = {OF_COMMANDS.get(name, name): text for name, text in query.items()}
    options["scopes"] = [options["scopes"]] if "scopes" in options else None
    options["overdue"] = "overdue" in options
    if "priority_from" in options:
        options["priority_from"] = int(options["priority_from"])
    messages = house.dispatcher.list(**of_commands.FilterOptions(**options).wanted)
    return [str(message.id) for message in messages]


def by_page(visitor: TestClient, query: dict[str, str]) -> list[str]:
    pairs = [(name, *text.partition("=")) for name, text in query.items()]
    asked = {f"{name}.{start}" if sign else name: end if sign else start
             for name, start, sign, end in pairs}  # fmt: skip
    listed = visitor.get("/messages", params=asked)
    assert listed.status_code == 200, listed.text
    return re.findall(r"<code>([0-9a-f-]{36})</code>", listed.text)


def test_commands_page_and_api_have_the_same_filters(build: Build) -> None:
    """Each finds one of three messages. A new filter needs its line here, and all three."""
    house = build(clock=hour_ago(), scopes=SCOPES)
    house.open()
    shop = caller(house)
    visitor = TestClient(
        page(house.dispatcher, access=lambda _: Caller(name="shop")), base_url="http://localhost"
    )
    for minutes in (0, 20):
        other = house.submit("eve", channel="file", send_in=minutes * MINUTE)
        house.dispatcher.cancel(other.id)
    asked = {
        "scope": "of ada", "scopes": {"tenant": "acme"}, "campaign": "summer", "priority": 50,
    }  # fmt: skip
    body = {"channel": "memory", "recipient": "ada", "body": {}, "send_in_seconds": 600}
    made = shop.post("/v1/messages", json=body | asked, headers={"Idempotency-Key": "k"})
    assert made.status_code == 201, made.text
    message: Message = house.dispatcher.get(made.json()["id"])
    house.sql("UPDATE dispatcher_messages SET event = 'a' WHERE campaign = 'summer'")
    bounds = {"from": message.send_at - MINUTE, "until": message.send_at + MINUTE}
    between = {name: instant.isoformat() for name, instant in bounds.items()}
    tokyo = {name: instant.astimezone(ZoneInfo("Asia/Tokyo")) for name, instant in bounds.items()}
    in_tokyo = {name: instant.replace(tzinfo=None).isoformat() for name, instant in tokyo.items()}
    cases: dict[str, dict[str, str]] = {
        "status": {"status": "scheduled"},
        "channel": {"channel": "memory"},
        "recipient": {"recipient": "ada"},
        "scope": {"scope": "of ada"},
        "scopes": {"count": "tenant=acme"},
        "campaign": {"campaign": "summer"},
        "event": {"event": "a"},
        "priority_from": {"priority_from": "50"},
        "idempotency_key": {"key": "k"},
        "key_prefix": {"key_prefix": "k"},
        "from_at": between,
        "until_at": between,
        "zone": in_tokyo | {"zone": "Asia/Tokyo"},
        "overdue": {"overdue": "true"},
        "made_after": {"made_after": str(other.id)},
    }
    assert cases.keys() == Wanted.__annotations__.keys(), "a new filter: give it a case"
    named = {name for query in cases.values() for name in query}
    assert named == {*FILTERS, "count"}
    assert named == {field.alias or name for name, field in models.Filters.model_fields.items()}
    stored = str(message.idempotency_key)
    story = visitor.get(f"/messages/{message.id}").text
    assert stored in story, "the page finds the key that it shows"
    for query in cases.values():
        elsewhere = query | {name: stored for name in query if name.startswith("key")}
        assert ids(shop.get("/v1/messages", params=query)) == [str(message.id)], query
        counted = shop.get("/v1/counts", params=query).json()["counts"]
        assert counted == {"memory": {"scheduled": 1}}, query
        assert by_page(visitor, elsewhere) == [str(message.id)], query
        assert by_command(house, elsewhere) == [str(message.id)], query


def test_a_caller_finds_its_own_idempotency_keys_alone(house: House, calls: Calls) -> None:
    """Also one that is bound, or may see no recipients: others' keys may be addresses."""
    of_python = house.submit("bob", send_at=FAR, idempotency_key="order-1")
    one, few = calls("one"), calls("few", rights=all_but(Right.RECIPIENTS_READ))
    bound = calls("bound", channels=["memory"])
    for number, client in enumerate((one, few, bound)):
        key = {"Idempotency-Key": "order-1"}
        made = client.post("/v1/messages", json=new(f"r{number}"), headers=key).json()
        assert made["idempotency_key"] == "order-1"
        for query in ({"key": "order-1"}, {"key_prefix": "order"}):
            assert ids(client.get("/v1/messages", params=query)) == [made["id"]]
        assert ids(client.get("/v1/messages", params={"key": "order"})) == []
        listed = client.get("/v1/messages").json()["messages"]
        shown = {message["id"]: message["idempotency_key"] for message in listed}
        assert shown[made["id"]] == "order-1"
        assert shown[str(of_python.id)] == ("order-1" if client is one else None)
    [of_few] = one.get("/v1/messages", params={"recipient": "r1"}).json()["messages"]
    assert of_few["idempotency_key"].endswith("/order-1")
    for name in ("key", "key_prefix"):
        refused = one.get("/v1/messages", params={name: ""})
        assert (kind(refused), refused.json()["field"]) == ((422, "invalid-draft"), name)
    refused = one.get("/v1/messages", params={"made_after": "yesterday"})
    assert refused.json()["field"] == "made_after"


def test_no_filter_tells_a_recipient_to_a_caller_that_may_not_see_recipients(build: Build) -> None:
    """Whether there are messages would tell it. A tenant is no recipient."""
    house = build(scopes=SCOPES)
    house.submit("ada", send_at=FAR, scopes={"tenant": "acme"})
    few, whole = caller(house, "few", rights=all_but(Right.RECIPIENTS_READ)), caller(house)
    for path in ("/v1/messages", "/v1/counts"):
        for query in (
            {"recipient": "ada"},
            {"scope": "ada"},
            {"count": "recipient.memory=ada"},
            {"count": ["tenant=acme", "recipient.memory=nobody"]},
        ):
            refused = few.get(path, params=query)
            assert kind(refused) == (403, "forbidden"), query
            assert "recipients:read" in refused.json()["detail"]
            assert whole.get(path, params=query).status_code == 200
        for query in ({"count": "tenant=acme"}, {"count": "channel.memory=memory"}):
            assert few.get(path, params=query).status_code == 200

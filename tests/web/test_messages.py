"""The calls on messages: what Python does, by HTTP; a submit that is repeated has one effect."""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta
from inspect import signature
from typing import Any

import pytest
from fastapi.testclient import TestClient

from dispatcher import Dispatcher, Draft, Message, Status, StoreUnavailable
from dispatcher.cli import messages as of_commands
from dispatcher.message import new_id
from dispatcher.telemetry.liveness import Kind
from dispatcher.times.send_time import to_ms
from dispatcher.web import Caller, Right, api
from dispatcher.web.keys import ApiKeys
from dispatcher.web.models import MessageOut, NewMessageLine
from tests.support.house import FAR, House
from tests.support.house_fixtures import Build
from tests.web.conftest import Calls, by_hand, caller, kind, verdicts

HOUR = timedelta(hours=1)
NDJSON = {"Content-Type": "application/x-ndjson"}
AT = (FAR + HOUR).isoformat()


def new(recipient: str = "ada", **more: object) -> dict[str, object]:
    body = {"text": "hello"}
    return {"channel": "memory", "recipient": recipient, "body": body, "send_at": AT, **more}


def test_each_field_of_a_draft_can_be_given_in_python_by_http_and_by_command() -> None:
    options = [*fields(of_commands._DraftOptions), *fields(of_commands.Content)]
    by_command = {option.name for option in options} - {"text"}
    ways = {
        "Dispatcher.submit": signature(Dispatcher.submit).parameters.keys() - {"self", "session"},
        "NewMessage": {name.removesuffix("_seconds") for name in NewMessageLine.model_fields},
        "dispatcher submit": by_command | {"channel", "recipient"},
    }
    for way, names in ways.items():
        assert names == Draft.__dataclass_fields__.keys(), way


def test_each_field_of_a_message_is_answered_but_those_of_the_workings() -> None:
    answered = {name.removesuffix("_seconds") for name in MessageOut.model_fields}
    assert Message.__dataclass_fields__.keys() - answered == {"trace", "enqueued_at"}


def test_what_delays_a_message_is_answered(house: House, shop: TestClient) -> None:
    made = shop.post("/v1/messages", json=new()).json()
    message = house.dispatcher.get(made["id"])
    house.change([message], delayed_by="channel memory: 1/hour", next_attempt_at=FAR + 2 * HOUR)
    read = shop.get(f"/v1/messages/{message.id}").json()
    assert (made["delayed_by"], read["delayed_by"]) == (None, "channel memory: 1/hour")
    assert read["next_attempt_at"] == (FAR + 2 * HOUR).isoformat().replace("+00:00", "Z")


def test_a_message_is_accepted_read_moved_changed_and_cancelled(
    house: House, shop: TestClient
) -> None:
    made = shop.post("/v1/messages", json=new())
    assert made.status_code == 201, made.text
    path = made.headers["Location"]
    message = house.dispatcher.get(made.json()["id"])
    assert house.members() == {message.id: to_ms(FAR + HOUR)}

    read = shop.get(path)
    assert (read.status_code, read.json()) == (200, made.json())
    tag = read.headers["ETag"]
    for known in (tag, f'"0-0", W/{tag}', "*"):
        assert shop.get(path, headers={"If-None-Match": known}).status_code == 304
    assert shop.get(path, headers={"If-None-Match": '"0-0"'}).status_code == 200

    later = (FAR + 2 * HOUR).isoformat()
    moved = shop.post(f"{path}/reschedule", json={"send_at": later}, headers={"If-Match": tag})
    assert moved.status_code == 200, moved.text
    assert house.members() == {message.id: to_ms(FAR + 2 * HOUR)}
    lost = shop.patch(path, json={"body": {"text": "bye"}}, headers={"If-Match": tag})
    assert kind(lost) == (412, "message-changed")
    tag = moved.headers["ETag"]
    changed = shop.patch(path, json={"body": {"text": "bye"}}, headers={"If-Match": tag})
    assert changed.json()["body"] == {"text": "bye"}
    gone = shop.delete(path)
    assert (gone.status_code, gone.json()["status"]) == (200, "cancelled")
    assert house.members() == {}
    assert house.again(message).status is Status.CANCELLED


def test_a_batch_answers_each_line_in_order(house: House, shop: TestClient) -> None:
    keyed = new("eve", idempotency_key="order-1")
    other, unknown = new("cyd", idempotency_key="order-1"), new("bob", channel="fax")
    keyless = new("dan", idempotency_key="")
    told = verdicts(shop, new("ada"), new("ada"), b"{", keyed, b"", keyed, unknown, other, keyless)
    assert [verdict["number"] for verdict in told] == list(range(8)), "but of the empty line"
    assert [verdict["status"] for verdict in told] == [201, 409, 422, 201, 201, 422, 422, 422]
    assert told[3]["message"] == told[4]["message"]
    conflict = told[6]["problem"]
    assert (conflict["key"], "'order-1'" in conflict["detail"]) == ("order-1", True)
    assert "api-" not in str(conflict), "the key is named as it was given"
    assert len(house.all_members()) == 2
    told = verdicts(shop, new("zoe"), b"x" * 300_000)
    assert [(verdict["number"], verdict["status"]) for verdict in told] == [(0, 201), (1, 413)]


def test_the_next_slot_of_a_recipient_says_whether_it_has_opted_out(build: Build) -> None:
    channels = {name: {"transport": "memory"} for name in ("memory", "sms")}
    house = build(channels=channels, scopes={"tenant": {"quotas": "9/hour"}})
    house.dispatcher.suppress("ada", channel="sms")
    house.dispatcher.suppress("ben")
    wide = {Right.MESSAGES_READ, Right.MESSAGES_WRITE}

    def asked(client: TestClient, name: str, kind: str = "recipient", **words: str) -> Any:
        path = f"/v1/scopes/{kind}/{name}/next-slot"
        return client.get(path, params={"after": AT, **words}).json()

    def told(client: TestClient, name: str, kind: str = "recipient", **words: str) -> object:
        slot = asked(client, name, kind, **words)
        assert slot["next_slot"] == AT.replace("+00:00", "Z")
        return slot.get("suppressed", "not told")

    client = caller(house, rights=wide)
    assert told(client, "ada", channel="sms") is True
    assert told(client, "ada", channel="memory") is False
    assert told(client, "ada") is False, "not of all channels"
    assert told(client, "ben", channel="memory") is True
    assert told(client, "ben") is True
    assert told(client, "cyd") is False
    assert told(client, "acme", kind="tenant") == "not told"
    for words in ({"quiet_hours": "11:00-13:00"}, {"send_window": "13:00-15:00"}):
        assert asked(client, "cyd", **words)["next_slot"] == "2100-01-01T13:00:00Z"
    rights = {Right.MESSAGES_READ, Right.RECIPIENTS_READ}
    for name, options, told_them in (
        ("reader", {"rights": rights}, True),
        ("bound", {"rights": rights, "scope": ("tenant", "acme")}, "not told"),
        ("blind", {"rights": {Right.MESSAGES_READ}}, "not told"),
        ("writer", {"rights": wide, "scope": ("tenant", "acme")}, True),
    ):
        assert told(caller(house, name, **options), "ben") == told_them, name


def test_a_channel_as_a_whole_shows_what_is_booked_and_the_next_slot(build: Build) -> None:
    house = build(channels={"sms": {"transport": "memory", "quotas": "1/hour"}})
    made = house.submit("ada", channel="sms", send_at=AT)
    shop, path = caller(house), "/v1/scopes/channel/sms"
    timeline = shop.get(f"{path}/timeline", params={"start": AT}).json()
    booked = [booking["message_id"] for booking in timeline["windows"][0]["booked"]]
    assert booked == [str(made.id)]
    slot = shop.get(f"{path}/next-slot", params={"after": AT}).json()
    assert slot == {"next_slot": "2100-01-01T13:00:00Z"}
    for where in (f"{path}/timeline?channel=memory", "/v1/scopes/channel/fax/timeline"):
        refused = shop.get(where)
        assert (refused.status_code, refused.json()["field"]) == (422, "channel")
    bound = caller(house, "bound", channels=["sms"])
    assert bound.get(f"{path}/timeline").status_code == 403


def test_an_opt_out_cancels_and_refuses_and_an_erasure_blanks(
    house: House, shop: TestClient
) -> None:
    def again() -> dict[str, Any]:
        return dict(shop.get(f"/v1/messages/{made['id']}").json())

    made = shop.post("/v1/messages", json=new()).json()
    assert shop.put("/v1/suppressions/ada").json() == {"cancelled": 1}
    assert (again()["status"], again()["last_error"]) == (
        "cancelled", "its recipient is suppressed",
    )  # fmt: skip
    assert kind(shop.post("/v1/messages", json=new())) == (409, "suppressed")
    [opt_out] = shop.get("/v1/suppressions/ada").json()["suppressions"]
    assert (opt_out["recipient"], opt_out["channel"]) == ("ada", None)
    assert shop.delete("/v1/suppressions/ada").json() == {"suppressions": []}
    assert shop.post("/v1/messages", json=new()).status_code == 201
    house.dispatcher.suppress("ada", channel="file")
    asked = {"recipient": "ada", "keep_opt_out": True}
    done = shop.post("/v1/erasures", json=asked).json()
    assert done == {"cancelled": 1, "blanked": 2, "under_way": 0}
    assert (again()["recipient"], again()["body"]) == ("", {})
    assert [opt_out.channel for opt_out in house.dispatcher.suppressed("ada")] == ["file"]


def test_a_change_between_the_reading_and_the_writing_of_an_editor_is_not_lost(
    house: House, shop: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = shop.post("/v1/messages", json=new()).headers["Location"]
    read, look = shop.get(path), Caller.movable

    def then_another_writes(self: Caller, *words: Any) -> Any:
        row = look(self, *words)
        house.dispatcher.update(row.message.id, body={"text": "theirs"})
        return row

    monkeypatch.setattr(Caller, "movable", then_another_writes)
    match = {"If-Match": read.headers["ETag"]}
    assert shop.patch(path, json={"body": {"text": "ours"}}, headers=match).status_code == 412
    assert shop.get(path).json()["body"] == {"text": "theirs"}


def test_operators_see_the_state_and_decide(house: House, shop: TestClient) -> None:
    made = shop.post("/v1/messages", json=new()).json()
    assert shop.get("/v1/status").json()["counts"]["memory"]["scheduled"] == 1
    path = f"/v1/messages/{made['id']}"
    for act in ("retry", "release", "drop"):
        refused = shop.post(f"{path}/{act}")
        assert (refused.status_code, refused.json()["status"]) == (409, 409), refused.text
        needs = "failed" if act == "retry" else "held"
        assert refused.json()["detail"].endswith(
            f"is already scheduled; this call needs a {needs} message"
        )
        missing = shop.post(f"/v1/messages/{new_id()}/{act}")
        assert kind(missing) == (404, "message-not-found")
    assert kind(shop.get(f"/v1/messages/{new_id()}")) == (404, "message-not-found")
    assert shop.get("/v1/messages?cursor=abc").json()["field"] == "cursor"
    assert shop.get("/v1/nothing").json()["type"].endswith("no-such-path")
    other = shop.put(path)
    assert (other.status_code, other.headers["Allow"]) == (405, "DELETE, GET, PATCH")
    assert shop.put("/v1/messages/batch").headers["Allow"] == "POST"


def test_a_duty_is_alive_while_it_is_done_at_its_interval(house: House, shop: TestClient) -> None:
    """``prune`` is done once a minute, the others once a second."""
    ages = {"prune": 90, "rescue": 90, "enqueue_due": 5, "unknown": 90}
    house.parts.signs.note(Kind.DUTY, {name: timedelta(seconds=n) for name, n in ages.items()})
    duties = shop.get("/v1/status").json()["duties"]
    alive = {duty["name"]: duty["is_alive"] for duty in duties}
    assert alive == {"prune": True, "rescue": False, "enqueue_due": True, "unknown": False}
    house.redis.flushall()
    house.parts.signs.note(Kind.DUTY, {"prune": timedelta(seconds=601)})
    [prune] = shop.get("/v1/status").json()["duties"]
    assert prune["is_alive"] is False


def test_changes_are_logged_with_their_caller_and_without_names(
    shop: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "dispatcher.web.api"):
        shop.put("/v1/suppressions/ada.lovelace")
        shop.get("/v1/suppressions/ada.lovelace")
    lines = [line.getMessage() for line in caplog.records if line.name == "dispatcher.web.api"]
    assert lines == ["PUT /v1/suppressions/{recipient} by shop: 200"]


def test_refusals_are_told_by_rule_and_to_a_key_without_bounds(
    house: House, shop: TestClient, calls: Calls
) -> None:
    assert shop.post("/v1/messages", json=new()).status_code == 201
    assert shop.post("/v1/messages", json=new()).status_code == 409
    [rule] = shop.get("/v1/refusals").json()["rules"]
    assert (rule["quota"], rule["refused"]) == ("1/minute", 1)
    assert 60 <= rule["wait_p50_seconds"] <= 66
    assert shop.get("/v1/refusals", params={"quota": "many"}).status_code == 422
    bound = calls("bound", channels=["memory"])
    assert [bound.get(f"/v1/{path}").status_code for path in ("load", "refusals")] == [403, 403]


def test_a_line_without_a_key_is_not_called_repeatable_where_it_may_be_stored(
    house: House, shop: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit_many = house.dispatcher.submit_many

    def broken(drafts: Any) -> Any:
        submit_many(drafts[:1])
        raise StoreUnavailable("the connection to the database broke")

    monkeypatch.setattr(house.dispatcher, "submit_many", broken)
    told = verdicts(shop, new("ada"), new("eve", idempotency_key="k"))
    assert [verdict["status"] for verdict in told] == [500, 503]
    assert told[0]["problem"]["type"].endswith(":outcome-unknown")


def test_a_call_whose_caller_goes_in_the_middle_of_its_body_is_no_fault_of_the_server(
    shop: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    headers = {**shop.headers, "Content-Type": "application/json"}
    part = {"type": "http.request", "body": b'{"channel": "mem', "more_body": True}
    gone = {"type": "http.disconnect"}
    answers = by_hand(shop.app, "POST", "/v1/messages", headers, part, gone)
    assert answers[0]["status"] == 400
    assert "Traceback" not in caplog.text


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
    for keys in ([b""], [b'""'], [b"x" * 191], [b"a\tb"], *([key] for key in odd), [b"1", b"2"]):
        headers = [(b"Idempotency-Key", key) for key in keys]
        answer = shop.post("/v1/messages", json=new(), headers=headers)
        assert (answer.status_code, answer.json()["field"]) == (422, "Idempotency-Key"), keys
    assert house.rows() == []


CHANGES = {
    "cancel": ("DELETE", "", None),
    "update": ("PATCH", "", {"body": {"n": 1}}),
    "priority": ("PATCH", "", {"priority": 50}),
    "reschedule": ("POST", "/reschedule", {"send_at": (FAR + 2 * HOUR).isoformat()}),
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
    fields = ("status", "body", "send_at", "priority")
    assert len({str([answer.json()[name] for name in fields]) for answer in answers}) == 1
    assert answers[0].json()["priority"] == (50 if name == "priority" else 0)
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


def test_an_answer_is_for_a_caller_with_the_same_rights(build: Build) -> None:
    house = build(scopes={"tenant": {"quotas": ["100/minute"]}})

    def of_header(request: Any) -> Caller:
        tenant = ("tenant", request.headers["Tenant"])
        return Caller(name="web", rights=frozenset(Right), scope=tenant)

    client = TestClient(api(house.dispatcher, auth=of_header))
    answers = [
        client.post("/v1/messages", json=new(), headers={"Tenant": name, **key()})
        for name in ("acme", "umbrella", "acme")
    ]
    assert [answer.status_code for answer in answers] == [201, 409, 201]
    assert answers[2].content == answers[0].content
    call: dict[str, Any] = {"json": new("eve"), "headers": key()}
    made = caller(house).post("/v1/messages", **call)
    ApiKeys(house.parts.database).revoke("shop")
    again = caller(house, rights=[Right.MESSAGES_WRITE]).post("/v1/messages", **call)
    assert again.json()["id"] == made.json()["id"]
    assert "recipient" not in again.json()

"""Keys: what they allow, whose messages they see, and when they end."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import count
from typing import Any
from unittest.mock import Mock, patch

import pytest
import redis
from fastapi.testclient import TestClient

from dispatcher import InvalidValue, StoreUnavailable
from dispatcher.message import Message
from dispatcher.times.clock import SystemClock
from dispatcher.web import Caller, Right, api
from dispatcher.web import calls as api_calls
from dispatcher.web import keys as web_keys
from dispatcher.web.api import ENDPOINTS
from dispatcher.web.keys import ApiKeys
from dispatcher.web.problems import Refused, unauthorized
from tests.support.doubles import at_once
from tests.support.house import FAR, House
from tests.support.house_fixtures import Build
from tests.web.conftest import Calls, all_but, bearer, by_hand, caller, kind, verdicts
from tests.web.test_messages import AT, HOUR, new

MINUTE = timedelta(minutes=1)
SCOPES = {"tenant": {"quotas": ["100/minute"]}}


def crawl(
    client: TestClient,
    places: Callable[[str], Iterable[Mapping[str, str]]],
    bodies: Sequence[Mapping[str, Any] | None],
    headers: Mapping[str, str],
) -> Iterator[tuple[str, Any]]:
    """Call each operation of the document, so also a new one; yield its name and the answers.

    ``places`` gets its path and returns what the names in it stand for. One with a body is called
    with each of these, another one without.
    """
    document = client.get("/v1/openapi.json").json()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            [media_type] = operation.get("requestBody", {}).get("content") or [None]
            typed = {} if media_type is None else {"Content-Type": media_type}
            for names in places(path):
                for body in bodies if media_type else (None,):
                    content = None if body is None else json.dumps(body)
                    answer = client.request(
                        method, path.format(**names), content=content, headers={**headers, **typed}
                    )
                    yield operation["operationId"], answer


def test_a_stranger_is_refused(calls: Calls) -> None:
    shop = calls()
    for header in ("", "Basic abc", "Bearer", "Bearer abc", "Bearer dsp_000000000000_abc"):
        answer = shop.get("/v1/messages", headers={"Authorization": header})
        assert kind(answer) == (401, "unauthorized")
        assert answer.headers["WWW-Authenticate"] == "Bearer"
    for method, path in (("POST", "/v1/messages"), ("PATCH", "/v1/messages/batch")):
        sent = by_hand(shop.app, method, path, {"Content-Type": "application/json"})
        assert sent[0]["status"] == 401, "its body is not read"


def test_each_call_needs_its_right(house: House, calls: Calls) -> None:
    """It is looked at before the body is read."""
    message = house.submit(send_at=AT)

    def unread() -> Iterator[bytes]:
        pytest.fail("the body was read")
        yield b""

    whole = calls("all")
    scope, pause = "scopes/recipient/ada", "pauses/channel/memory"
    one = f"messages/{message.id}"
    needed = {
        Right.MESSAGES_READ: ["GET messages", "GET counts", f"GET {one}", f"GET {scope}/next-slot",
                              "GET events", "GET events/ada", "GET series", "GET series/ada",
                              "GET series/ada/preview"],
        Right.MESSAGES_WRITE: ["POST messages", "POST messages/batch", "POST plans",
                               f"PATCH {one}", f"POST {one}/reschedule",
                               "PUT events/ada", "POST events/ada/move", "PUT series/ada",
                               "PATCH series/ada"],
        Right.MESSAGES_CANCEL: [f"DELETE {one}", "POST events/ada/cancel", "DELETE series/ada",
                                "POST series/ada/pause", "POST series/ada/resume"],
        Right.RECIPIENTS_READ: [f"GET {scope}/timeline", "GET suppressions/ada"],
        Right.SUPPRESSIONS_WRITE: ["PUT suppressions/ada", "DELETE suppressions/ada"],
        Right.OPERATE: [f"POST {one}/retry", f"POST {one}/drop", f"POST {one}/release",
                        "POST erasures", "GET status", "GET load", "GET refusals", "GET pauses",
                        f"PUT {pause}", f"DELETE {pause}", "GET quotas", f"GET {scope}/quotas",
                        f"PUT {scope}/quotas", f"DELETE {scope}/quotas"],
    }  # fmt: skip
    assert sum(map(len, needed.values())) == len(ENDPOINTS)
    made = [(right, call) for right, calls_of_right in needed.items() for call in calls_of_right]
    for number, (right, call) in enumerate(made):
        method, path = call.split()
        few = calls(f"few {number}", rights=all_but(right))
        before = house.again(message)
        content = None if method in ("GET", "DELETE") else unread()
        refused = few.request(method, f"/v1/{path}", content=content)
        assert kind(refused) == (403, "forbidden"), path
        assert refused.json()["detail"] == f"the key has no right {right}"
        assert "RateLimit" in refused.headers, "it is counted"
        assert house.again(message) == before
        assert whole.request(method, f"/v1/{path}").status_code != 403


ADA, TEXT = "ada.lovelace", "the secret text"
NEED_RECIPIENTS = {"timeline", "suppressions"}
"""Operations that a key without ``recipients:read`` may not call."""


def test_bodies_and_recipients_leave_with_their_rights_alone(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every answer of every operation. A digest names the recipient."""
    house = build(quotas=["1/minute"], log_key="a log key of the test", events_kept=1_000)
    house.open()
    house.dispatcher.suppress(ADA, channel="file")
    house.dispatcher.pause("recipient", ADA)
    _hear_once(monkeypatch)
    times = (FAR + number * MINUTE for number in count(100))

    def places(path: str) -> Iterator[dict[str, str]]:
        """Yield a message of each status where one is asked for, and the recipient's names."""
        is_shared = path.startswith(("/v1/events", "/v1/series"))  # all keys share these names
        name = "a:17" if is_shared else ADA
        same = {"kind": "recipient", "scope": ADA, "recipient": ADA, "name": name}
        if "{message_id}" not in path:
            yield same
            return
        for status in ("scheduled", "failed", "held"):
            message = house.submit(ADA, send_at=next(times), body={"text": TEXT})
            ended = house.database_time() if status == "failed" else None
            house.change([message], status=status, finished_at=ended, last_error=f"no {ADA}")
            yield {**same, "message_id": str(message.id)}

    asked = new(ADA, body={"text": TEXT})
    series: Any = {"rule": "0 9 * * *", "channel": "memory", "recipients": [ADA, "ben"],
                   "body": {"text": TEXT}, "scope": ADA}  # fmt: skip
    bodies: list[dict[str, Any] | None] = [
        None,
        {},
        asked,
        {"messages": [asked]},
        {"send_at": (FAR + 3 * HOUR).isoformat(), "on_conflict": "shift"},
        {"body": {"text": f"{TEXT}, again"}},
        {"recipient": "nobody"},
        {"quotas": ["9/hour"]},
        {"at": (FAR + 3 * HOUR).isoformat()},
        series,
    ]
    house.dispatcher.series.add("a:17", **series)
    house.dispatcher.events.set("a:17", FAR + 3 * HOUR)
    statuses: dict[str, set[int]] = defaultdict(set)
    with TestClient(api(house.dispatcher, rate="100000/second")) as client:
        few = bearer(house, "few", rights=all_but(Right.BODIES_READ, Right.RECIPIENTS_READ))
        for name, answer in crawl(client, places, bodies, {**few, "Last-Event-ID": "0-0"}):
            statuses[name].add(answer.status_code)
            assert ADA not in answer.text, (name, answer.text)
            assert TEXT not in answer.text, (name, answer.text)
        refused = {name for name, answers in statuses.items() if answers == {403}}
        assert refused == NEED_RECIPIENTS
        silent = {name for name, answers in statuses.items() if answers.isdisjoint((200, 201))}
        assert silent == NEED_RECIPIENTS, "bodies has nothing that these operations accept"

        paths = [f"/v1/messages/{house.submit(ADA, send_at=next(times), body=asked).id}"]
        told = client.get(paths[0], headers=few).json()
        [opt_out] = client.delete(f"/v1/suppressions/{ADA}", headers=few).json()["suppressions"]
        assert len(told["recipient_digest"]) == 16
        assert opt_out["recipient_digest"] == told["recipient_digest"]
        all_rights = bearer(house, "whole")
        whole = client.get(paths[0], headers=all_rights).json()
        assert (whole["recipient"], whole["body"]) == (ADA, asked)
        for method in ("GET", "DELETE"):
            answer = client.request(method, f"/v1/suppressions/{ADA}", headers=all_rights)
            [opt_out] = answer.json()["suppressions"]
            assert (opt_out["recipient"], "recipient_digest" in opt_out) == (ADA, False)


def _hear_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a listener hear the events from the first on, and end then: its answer is read whole."""
    real = api_calls._events_after

    def first(context: Any, last: str | None) -> Any:
        if last != "0-0":
            raise unauthorized("the key has ended")
        return real(context, last)

    monkeypatch.setattr(api_calls, "_events_after", first)
    monkeypatch.setattr(api_calls, "_LOOK_SECONDS", 0.0)


def test_a_tenant_sees_and_changes_its_own_messages_only(build: Build) -> None:
    """A crawl of every call: no answer has an id, a name or a recipient of another tenant."""
    house = build(scopes=SCOPES)
    house.open()
    theirs: list[Message] = [
        house.submit("ada", send_at=AT, scopes={"tenant": "umbrella"}),
        house.submit("umbrella-only", send_at=AT),
    ]
    client = caller(house, "acme", scope=("tenant", "acme"))
    own = client.post("/v1/messages", json=new("bob"))
    assert own.status_code == 201, own.text
    assert own.json()["scopes"] == {"tenant": "acme"}
    before = [house.again(message) for message in theirs]
    ada = {"kind": "recipient", "scope": "ada", "recipient": "ada", "name": "ada"}
    umbrella = {"kind": "tenant", "scope": "umbrella", "recipient": "ada", "name": "umbrella"}
    names = [ada | {"message_id": str(message.id)} for message in theirs]
    names.append(umbrella | {"message_id": str(theirs[0].id)})
    bodies: list[Any] = [new("ada"), {}, {"send_at": AT}, {"body": {"x": 1}}, None]
    answers = [answer for _, answer in crawl(client, lambda _: names, bodies, {})]
    answers += [
        client.get("/v1/messages", params=params)
        for params in ({}, {"count": "tenant=umbrella"}, {"recipient": "ada"}, {"status": "sent"})
    ]
    lines = json.dumps(new("ada", scopes={"tenant": "umbrella"}))
    ndjson = {"Content-Type": "application/x-ndjson"}
    answers.append(client.post("/v1/messages/batch", content=lines, headers=ndjson))
    told = ("umbrella", *(str(message.id) for message in theirs))
    for answer in answers:
        text = answer.text
        for asked in theirs:  # an answer may repeat what the call named
            if str(asked.id) in str(answer.request.url):
                text = text.replace(str(asked.id), "")
        if "umbrella" in str(answer.request.url) or answer.request.url.path.endswith("batch"):
            text = text.replace("'umbrella'", "")
        assert not any(word in text for word in told), (answer.request.url, answer.text)
    assert [house.again(message) for message in theirs] == before
    mine = client.get("/v1/messages").json()["messages"]
    assert own.json()["id"] in {message["id"] for message in mine}
    assert {message["scopes"]["tenant"] for message in mine} == {"acme"}
    counted = client.get("/v1/counts").json()["counts"]
    assert counted == {"memory": dict(Counter(message["status"] for message in mine))}


def test_a_key_of_one_channel_uses_no_other_and_learns_nothing_of_it(
    house: House, calls: Calls
) -> None:
    message = house.submit("eve", channel="file", send_at=AT)
    client = calls(channels=["memory"])
    assert kind(client.post("/v1/messages", json=new(channel="file"))) == (403, "forbidden")
    assert kind(client.get(f"/v1/messages/{message.id}")) == (404, "message-not-found")
    assert kind(client.get("/v1/messages", params={"channel": "file"})) == (403, "forbidden")
    assert client.get("/v1/messages").json()["messages"] == []
    assert client.post("/v1/messages", json=new()).status_code == 201
    refused = client.post("/v1/messages", json=new("eve"))
    assert kind(refused) == (409, "quota-exceeded")
    assert str(message.id) not in refused.text


def test_two_keys_of_a_name_are_valid_while_one_replaces_the_other(house: House) -> None:
    keys = ApiKeys(house.parts.database)
    first, old = keys.add("shop")

    def status(token: str) -> int:
        try:
            keys.of_token(token)
        except Refused as refused:
            return refused.status
        return 200

    with pytest.raises(InvalidValue, match="has a key"):
        keys.add("shop")
    _, second = keys.rotate("shop", overlap=timedelta(hours=1))
    assert (status(old), status(second)) == (200, 200)
    with pytest.raises(InvalidValue, match="two valid keys"):
        keys.rotate("shop", overlap=timedelta(hours=1))
    keys.revoke(first.id)
    assert (status(old), status(second)) == (401, 200)
    _, third = keys.rotate("shop", overlap=timedelta(0))
    assert (status(second), status(third)) == (401, 200)
    keys.revoke("shop")
    assert status(third) == 401
    assert all(key.last_used_at for key in keys.named("shop"))
    with pytest.raises(InvalidValue, match="no key"):
        keys.revoke("nobody")


def test_a_rotation_lengthens_no_key(house: House) -> None:
    """Its overlap may be longer than what is left of the key; the next one lasts as long."""
    keys, ends_at = ApiKeys(house.parts.database), SystemClock().now() + timedelta(hours=1)
    before, _ = keys.add("shop", expires_at=ends_at)
    after, _ = keys.rotate("shop", overlap=timedelta(days=1))
    [stored] = [key for key in keys.named("shop") if key.id == before.id]
    assert stored.expires_at == before.expires_at
    assert after.expires_at is not None
    assert after.expires_at - after.created_at < timedelta(hours=2)


def test_a_key_has_its_own_limit_and_is_told_of_it(house: House, calls: Calls) -> None:
    few, often = calls("few", rate="2/minute"), calls("many")
    answers = [few.get("/v1/messages") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[0].headers["RateLimit-Policy"] == '"key";q=2;w=60'
    assert answers[0].headers["RateLimit"].startswith('"key";r=1')
    assert 0 < int(answers[2].headers["Retry-After"]) <= 60
    assert kind(answers[2]) == (429, "limit-reached")
    assert few.get("/v1/messages?nope=1").status_code == 429, "a wrong call is counted, too"
    assert often.get("/v1/messages").status_code == 200


def test_an_outage_of_redis_is_logged_once_and_calls_go_on(
    house: House, calls: Calls, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where some calls still reach it."""
    refused = redis.ConnectionError("Connection refused")
    shop, pool = calls("few", rate="1/day"), house.parts.plain_redis.connection_pool
    for _ in range(2):
        with patch.object(pool, "get_connection", side_effect=refused):
            answers = [shop.get("/v1/messages") for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 200]
        shop.get("/v1/messages")
    [said] = [record.getMessage() for record in caplog.records if record.name.endswith("access")]
    assert said.startswith("calls are not limited while Redis does not answer: ")


def test_a_host_that_gives_no_rights_lets_its_callers_read(house: House) -> None:
    """They see no bodies and do nothing."""
    message = house.submit(send_at=AT)
    with TestClient(api(house.dispatcher, auth=lambda _: Caller(name="x"))) as client:
        shown = client.get(f"/v1/messages/{message.id}").json()
        assert (shown["recipient"], "body" in shown) == ("ada", False)
    nothing = Caller(name="x", channels=frozenset())
    with TestClient(api(house.dispatcher, auth=lambda _: nothing)) as client:
        assert kind(client.get("/v1/messages")) == (403, "forbidden")
        assert kind(client.post("/v1/messages", json=new())) == (403, "forbidden")


def test_an_entity_tag_tells_nothing_that_the_key_may_not_see(house: House, calls: Calls) -> None:
    few = calls("few", rights=all_but(Right.RECIPIENTS_READ, Right.BODIES_READ))
    message = house.submit("ada", send_at=AT)
    path = f"/v1/messages/{message.id}"
    tag = few.get(path).headers["ETag"]
    house.change([message], recipient="eve", scope="eve", body={"code": 4711}, last_error="eve")
    assert few.get(path).headers["ETag"] == tag


def test_a_batch_is_answered_to_its_end_when_its_key_ends_or_is_not_found(
    house: House, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each line has a verdict: those that were not submitted are told from those that were."""
    monkeypatch.setattr(api_calls, "_LINES_AT_ONCE", 2)
    numbers = count()

    def statuses(client: TestClient) -> list[int]:
        told = verdicts(client, *(new(f"number {next(numbers)}") for _ in range(5)))
        assert [verdict["number"] for verdict in told] == [0, 1, 2, 3, 4]
        return [verdict["status"] for verdict in told]

    assert statuses(calls("few", rate="1/day")) == [201, 201, 429, 429, 429]
    submit_many = house.dispatcher.submit_many

    def then_revoked(drafts: Any) -> Any:
        ApiKeys(house.parts.database).revoke("short")
        return submit_many(drafts)

    def then_gone(drafts: Any) -> Any:
        gone = StoreUnavailable("the server is gone")
        monkeypatch.setattr(ApiKeys, "find", Mock(side_effect=gone))
        return submit_many(drafts)

    monkeypatch.setattr(web_keys, "_TTL_SECONDS", -1.0)
    for name, act, status in (("short", then_revoked, 401), ("shop", then_gone, 503)):
        client = calls(name)
        monkeypatch.setattr(house.dispatcher, "submit_many", act)
        assert statuses(client) == [201, 201, status, status, status]
    assert house.sql("SELECT count(*) FROM dispatcher_messages")[0][0] == 6


def test_keys_follow_one_another_also_when_the_clock_goes_back(house: House) -> None:
    """A name whose newest key is not its last one can be used again."""
    keys = ApiKeys(house.parts.database)
    first, _ = keys.add("shop")
    second, _ = keys.rotate("shop", overlap=timedelta(hours=1))
    house.sql("UPDATE dispatcher_api_keys SET created_at = '2001-01-01' WHERE follows <> ''")
    assert [key.id for key in keys.named("shop")] == [second.id, first.id]
    keys.revoke("shop")
    third, _ = keys.add("shop")
    assert (second.follows, third.follows) == (first.id, second.id)


@pytest.mark.every_database
def test_keys_of_one_name_that_are_made_at_the_same_time_are_one(house: House) -> None:
    """Also a rotation is made once: no two callers get a key each."""
    keys = ApiKeys(house.parts.database)

    for act in (lambda: keys.add("shop"), lambda: keys.rotate("shop", overlap=timedelta(hours=1))):
        before = len(keys.named("shop"))
        lost = [error.field for error in at_once([act] * 8) if isinstance(error, InvalidValue)]
        assert lost == ["name"] * 7
        assert len(keys.named("shop")) == before + 1
    keys.revoke("shop")
    made = at_once([lambda: keys.add("shop")] * 8)
    assert sum(isinstance(result, tuple) for result in made) == 1

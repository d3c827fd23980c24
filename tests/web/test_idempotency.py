"""A call that is repeated with its ``Idempotency-Key`` has one effect and one answer.

Whatever process dies between: before the call acted, after it, and before its answer was stored.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, NoReturn

import httpx2
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import update

from dispatcher import Status, StoreUnavailable
from dispatcher.faults import arm
from dispatcher.store import GivenUp, StoreMaintenance
from dispatcher.web import Caller, Right, api, models
from dispatcher.web.access import add_key, revoke_key
from tests.support.all_windows import let_graces_pass
from tests.support.doubles import Between, once, raising
from tests.support.house import FAR, House
from tests.web.test_messages import AT, NDJSON, new

HOUR = timedelta(hours=1)
LATER = (FAR + 2 * HOUR).isoformat()
OF_API = ("api.after_act", "api.after_finish")
AFTER_COMMIT = ("submit.after_commit", "submit.after_enqueue", "api.after_finish")
OF_SUBMIT = ("api.before_act", "submit.before_reserve", "submit.after_reserve", *AFTER_COMMIT)

Change = Callable[[TestClient, str, dict[str, str]], Any]
CHANGES: dict[str, tuple[Change, tuple[str, ...]]] = {
    "cancel": (lambda client, path, key: client.delete(path, headers=key), ("cancel.after_rows",)),
    "update": (
        lambda client, path, key: client.patch(path, json={"body": {"n": 1}}, headers=key),
        (),
    ),
    "reschedule": (
        lambda client, path, key: client.post(
            f"{path}/reschedule", json={"send_at": LATER}, headers=key
        ),
        # Not after_hold: until reconcile ends the hold, the new time is refused.
        ("reschedule.after_row", "reschedule.after_take"),
    ),
}


def key(text: str = "k-1") -> dict[str, str]:
    return {"Idempotency-Key": text}


@pytest.fixture
def falling(shop: TestClient) -> Iterator[TestClient]:
    """Give a client that gets an answer where its call falls over, and disarm the faults."""
    yield TestClient(shop.app, raise_server_exceptions=False, headers=dict(shop.headers))
    arm(None)


def test_a_repeated_call_is_answered_with_the_same_bytes(house: House, shop: TestClient) -> None:
    first = shop.post("/v1/messages", json=new(), headers=key())
    house.dispatcher.update(first.json()["id"], body={"text": "changed since"})
    for header in ("k-1", '"k-1"'):
        again = shop.post("/v1/messages", json=new(), headers=key(header))
        assert (again.status_code, again.content) == (201, first.content)
        assert again.headers["Idempotency-Replayed"] == "true"
        assert again.headers["Location"] == first.headers["Location"]
    assert "Idempotency-Replayed" not in first.headers
    other = shop.post("/v1/messages", json=new("eve"), headers=key())
    assert (other.status_code, other.json()["type"].rpartition(":")[2]) == (
        422,
        "idempotency-conflict",
    )
    path = first.headers["Location"]
    assert shop.delete(path, headers=key()).status_code == 422
    assert len(house.rows()) == 1


def test_a_call_with_the_key_of_a_cancelled_message_books_anew(
    house: House, shop: TestClient
) -> None:
    first = shop.post("/v1/messages", json=new(), headers=key())
    house.dispatcher.cancel(first.json()["id"])
    second = shop.post("/v1/messages", json=new(body={"text": "anew"}), headers=key())
    assert (second.status_code, second.json()["id"] != first.json()["id"]) == (201, True)
    assert "Idempotency-Replayed" not in second.headers
    again = shop.post("/v1/messages", json=new(body={"text": "anew"}), headers=key())
    assert (again.content, again.headers["Idempotency-Replayed"]) == (second.content, "true")


@pytest.mark.parametrize("text", ["", '""', "x" * 191, "a\tb"])
def test_a_key_that_cannot_be_kept_is_refused(house: House, shop: TestClient, text: str) -> None:
    answer = shop.post("/v1/messages", json=new(), headers=key(text))
    assert (answer.status_code, answer.json()["field"]) == (422, "Idempotency-Key")
    assert house.rows() == []


def test_a_refused_call_leaves_its_key_free(shop: TestClient) -> None:
    shop.post("/v1/messages", json=new())
    refused = shop.post("/v1/messages", json=new(), headers=key())
    assert refused.status_code == 409
    slot = refused.json()["next_slot"]
    assert shop.post("/v1/messages", json=new(at=slot), headers=key()).status_code == 201


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
@pytest.mark.parametrize("path", ["/v1/suppressions/ada", "/v1/pauses/recipient/ada"])
def test_an_opt_out_or_a_pause_that_is_repeated_is_answered_with_the_same_bytes(
    house: House, shop: TestClient, method: str, path: str
) -> None:
    """Also where the state has changed since: without its key the call has another answer."""
    house.submit("ada", send_at=AT)
    first = shop.request(method, path, headers=key())
    house.dispatcher.suppress("ada", channel="file")
    house.dispatcher.pause("campaign", "summer")
    again = shop.request(method, path, headers=key())
    assert (first.status_code, again.status_code) == (200, 200)
    assert again.content == first.content
    assert "Idempotency-Replayed" not in first.headers
    assert again.headers["Idempotency-Replayed"] == "true"
    assert shop.request(method, path).content != first.content
    other = shop.request(method, path.replace("ada", "eve"), headers=key())
    assert other.json()["type"].endswith(":idempotency-conflict")


def test_a_batch_has_no_key_of_its_own(house: House, shop: TestClient) -> None:
    headers = {**NDJSON, **key()}
    answer = shop.post("/v1/messages/batch", content=json.dumps(new()), headers=headers)
    assert (answer.status_code, answer.json()["field"]) == (422, "Idempotency-Key")
    assert answer.json()["accepted"] == "idempotency_key in lines"
    assert house.rows() == []


def test_keys_of_two_callers_are_two_keys(house: House, calls: Callable[..., TestClient]) -> None:
    one, other = calls("one"), calls("other")
    made = [each.post("/v1/messages", json=new(to), headers=key())
            for each, to in ((one, "ada"), (other, "eve"))]  # fmt: skip
    assert [each.status_code for each in made] == [201, 201]
    assert made[0].json()["idempotency_key"] == "k-1"
    assert len(house.rows()) == 2


@pytest.mark.parametrize("point", OF_SUBMIT)
def test_a_submit_that_falls_over_is_repeated_as_one_message(
    house: House, shop: TestClient, falling: TestClient, point: str
) -> None:
    arm(f"{point}=raise")
    assert falling.post("/v1/messages", json=new(), headers=key()).status_code == 500
    arm(None)
    again = shop.post("/v1/messages", json=new(), headers=key())
    assert again.status_code == 201, again.text
    assert ("Idempotency-Replayed" in again.headers) == (point in AFTER_COMMIT)
    third = shop.post("/v1/messages", json=new(), headers=key())
    assert (third.content, third.headers["Idempotency-Replayed"]) == (again.content, "true")
    [row] = house.rows()
    assert str(row[0]) == again.json()["id"]
    assert len(house.members()) == 1


@pytest.mark.parametrize(
    ("name", "point"),
    [
        (name, point)
        for name, (_, own) in CHANGES.items()
        for point in ("api.after_begin", *OF_API, *own)
    ],
)
def test_a_change_that_falls_over_is_repeated_once(
    house: House, shop: TestClient, falling: TestClient, name: str, point: str
) -> None:
    path = shop.post("/v1/messages", json=new()).headers["Location"]
    change = CHANGES[name][0]
    arm(f"{point}=raise")
    assert change(falling, path, key()).status_code == 500
    arm(None)
    again = change(shop, path, key())
    assert again.status_code == 200, again.text
    now = shop.get(path).json()
    assert again.json() == now
    assert (now["status"], now["body"].get("n"), now["send_at"]) == (
        "cancelled" if name == "cancel" else "scheduled",
        1 if name == "update" else None,
        LATER.replace("+00:00", "Z") if name == "reschedule" else AT.replace("+00:00", "Z"),
    )
    assert change(shop, path, key()).content == again.content


@pytest.mark.parametrize("max_attempts", [1, 90])
def test_a_retry_whose_answer_was_lost_is_not_made_twice(
    house: House, shop: TestClient, falling: TestClient, max_attempts: int
) -> None:
    """It failed again meanwhile: a second retry would give it attempts nobody asked for.

    Also where its channel has fewer attempts by now than the message had.
    """
    message = house.submit(send_at=FAR + HOUR)
    failed = {"status": Status.FAILED.value, "finished_at": house.database_time()}
    house.change([message], **failed, attempt_count=1, max_attempts=max_attempts)
    path = f"/v1/messages/{message.id}/retry"
    arm("api.after_act=raise")
    assert falling.post(path, headers=key()).status_code == 500
    arm(None)
    retried = house.again(message)
    assert retried.status is Status.SCHEDULED
    house.change([message], **failed, attempt_count=2)
    before = house.again(message)
    assert shop.post(path, headers=key()).json()["status"] == "failed"
    assert house.again(message) == before


@pytest.mark.parametrize("act", ["retry", "release"])
def test_a_decision_that_was_asked_for_too_early_is_made_when_it_is_repeated(
    house: House, shop: TestClient, falling: TestClient, act: str
) -> None:
    """The server of the first call died; the message had not failed, or was not held, yet."""
    message = house.submit(send_at=FAR + HOUR)
    path = f"/v1/messages/{message.id}/{act}"
    begun(falling, lambda client: client.post(path, headers=key()))
    ended = house.database_time() if act == "retry" else None
    status = "failed" if act == "retry" else "held"
    house.change([message], status=status, finished_at=ended, attempt_count=1, max_attempts=1)
    assert shop.post(path, headers=key()).json()["status"] == "scheduled"


def begun(falling: TestClient, call: Callable[[TestClient], Any]) -> None:
    """Make a call whose server falls over before it acts."""
    arm("api.after_begin=raise")
    assert call(falling).status_code == 500
    arm(None)


def age_notes(house: House) -> None:
    """Let the calls that were noted have begun more than a minute ago."""
    before = house.database_time() - timedelta(minutes=2)
    with house.parts.database.engine.begin() as connection:
        connection.execute(
            update(house.parts.database.tables.api_replies).values(created_at=before)
        )


def test_a_refused_twin_leaves_the_note_of_the_call_that_is_under_way(
    house: House, shop: TestClient, falling: TestClient
) -> None:
    """Else a third twin would move the message again, and a fourth would be answered by 412."""
    path = shop.post("/v1/messages", json=new()).headers["Location"]
    count = "SELECT count(*) FROM dispatcher_api_replies"

    def move(client: TestClient) -> Any:
        return client.post(f"{path}/reschedule", json={"send_at": LATER}, headers=key("move"))

    begun(falling, move)
    house.submit("ada", send_at=LATER)
    assert move(shop).status_code == 409
    assert house.sql(count) == [(1,)]
    age_notes(house)
    assert move(shop).status_code == 409
    assert house.sql(count) == [(0,)]


def cancel(client: TestClient, path: str, text: str = "k-1") -> Any:
    return client.delete(path, headers=key(text))


def patch(client: TestClient, path: str, **more: str) -> Any:
    return client.patch(path, json={"body": {"n": 1}}, headers={**key(), **more})


TEMPLATED = {"memory": {"transport": "memory", "templates": {"hello": {"text": "Hi {{ name }}"}}}}
UNSEEN: dict[str, tuple[str, dict[str, Any]]] = {
    "to another expiry": ("POST", {"send_at": AT, "expires_at": LATER}),
    "by a length": ("POST", {"send_in_seconds": 86_400}),
    "to another zone": ("POST", {"send_at": AT, "set_zone": "Asia/Tokyo"}),
    "by a template": ("PATCH", {"template": "hello", "data": {"name": "Ada"}}),
}
"""Changes that do not name a time or a body that the message has then, and has not before."""


@pytest.mark.parametrize("name", UNSEEN)
@pytest.mark.parametrize("was_made", [False, True])
def test_a_repeated_change_is_answered_as_made_only_when_the_message_shows_it(
    build: Callable[..., House], name: str, was_made: bool
) -> None:
    house = build(channels=TEMPLATED)
    _, token = add_key(house.parts.api_keys, "shop")
    headers = {"Authorization": f"Bearer {token}"}
    client = TestClient(api(house.dispatcher), raise_server_exceptions=False, headers=headers)
    path = client.post("/v1/messages", json=new()).headers["Location"]
    method, change = UNSEEN[name]

    def call() -> Any:
        where = f"{path}/reschedule" if method == "POST" else path
        return client.request(method, where, json=change, headers=key())

    arm(f"api.{'after_act' if was_made else 'after_begin'}=raise")
    try:
        assert call().status_code == 500
    finally:
        arm(None)
    if not was_made:
        client.patch(path, json={"body": {"n": 2}}).raise_for_status()
    before = client.get(path).json()
    house.moved.advance(timedelta(seconds=5))
    again = call()
    assert again.status_code == (200 if was_made else 412), again.text
    assert client.get(path).json() == before
    assert again.json() == before or not was_made


@pytest.mark.parametrize("meanwhile", ["enqueued", "edited"])
def test_a_repeated_cancel_is_answered_as_made_only_when_it_is(
    house: House, shop: TestClient, falling: TestClient, meanwhile: str
) -> None:
    path = shop.post("/v1/messages", json=new()).headers["Location"]
    message = house.dispatcher.get(path.rpartition("/")[2])
    begun(falling, lambda client: cancel(client, path))
    if meanwhile == "enqueued":
        house.change([message], enqueued_at=house.database_time())
    else:
        house.dispatcher.update(message.id, body={"n": 2})
    again = cancel(shop, path)
    assert (again.status_code, again.json()["status"]) == (200, "cancelled")
    assert house.again(message).status is Status.CANCELLED


def test_a_repeated_change_is_refused_like_a_new_one(
    house: House, shop: TestClient, falling: TestClient
) -> None:
    path = shop.post("/v1/messages", json=new()).headers["Location"]
    message = house.dispatcher.get(path.rpartition("/")[2])
    stale = {"If-Match": '"stale"'}
    begun(falling, lambda client: patch(client, path, **stale))
    assert patch(shop, path, **stale).status_code == 412
    assert patch(shop, path).status_code == 200, "a refused call leaves its key free"
    house.change([message], status="sent", finished_at=house.database_time())
    begun(falling, lambda client: cancel(client, path, "k-2"))
    assert cancel(shop, path, "k-2").status_code == 409


def test_a_change_is_not_repeated_over_that_of_another_caller(
    house: House, shop: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first call was made and answered 503; another caller came before it was repeated."""
    path = shop.post("/v1/messages", json=new()).headers["Location"]
    real = house.dispatcher.reschedule

    def broken(*given: Any, **named: Any) -> Any:
        real(*given, **named)
        raise StoreUnavailable("the connection to the database broke")

    with monkeypatch.context() as patched:
        patched.setattr(house.dispatcher, "reschedule", broken)
        first = shop.post(f"{path}/reschedule", json={"send_at": LATER}, headers=key())
    assert first.status_code == 503
    other = (FAR + 3 * HOUR).isoformat()
    assert shop.post(f"{path}/reschedule", json={"send_at": other}).status_code == 200
    again = shop.post(f"{path}/reschedule", json={"send_at": LATER}, headers=key())
    assert again.status_code == 412
    assert shop.get(path).json()["send_at"] == other.replace("+00:00", "Z")


def test_a_call_that_was_overtaken_leaves_the_note_by_which_its_twins_are_answered(
    house: House, shop: TestClient, falling: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A twin made the change and died, and another caller undid it, before the first went on."""
    path = shop.post("/v1/messages", json=new()).headers["Location"]
    other = (FAR + 3 * HOUR).isoformat()
    real = house.dispatcher.reschedule

    def move(client: TestClient) -> int:
        moved = client.post(f"{path}/reschedule", json={"send_at": LATER}, headers=key())
        return moved.status_code

    def overtaken_by_a_twin_and_another(*given: Any, **named: Any) -> Any:
        monkeypatch.setattr(house.dispatcher, "reschedule", real)
        arm("api.after_act=raise")
        assert move(falling) == 500
        arm(None)
        assert shop.post(f"{path}/reschedule", json={"send_at": other}).status_code == 200
        return real(*given, **named)

    monkeypatch.setattr(house.dispatcher, "reschedule", overtaken_by_a_twin_and_another)
    assert move(shop) == 412
    assert move(shop) == 412, "the repeat does not undo the other caller's move"
    assert shop.get(path).json()["send_at"] == other.replace("+00:00", "Z")


@pytest.mark.parametrize("act", ["retry", "release", "drop"])
def test_a_decision_is_made_once_by_twins(
    house: House, shop: TestClient, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    """One twin is slow; after the other one the message is where it was, by a further attempt."""
    message = house.submit(send_at=FAR + HOUR)
    status = "failed" if act == "retry" else "held"
    ended = house.database_time() if act == "retry" else None
    stands = {"status": status, "finished_at": ended}
    house.change([message], **stands, attempt_count=1, max_attempts=1, on_unknown="hold")
    path = f"/v1/messages/{message.id}/{act}"
    real = getattr(house.dispatcher, act)
    answers = []

    def slow(*given: Any, **named: Any) -> Any:
        monkeypatch.setattr(house.dispatcher, act, real)
        answers.append(shop.post(path, headers=key()))
        if act != "drop":
            house.change([message], **stands, attempt_count=2)
        return real(*given, **named)

    monkeypatch.setattr(house.dispatcher, act, slow)
    answers.append(shop.post(path, headers=key()))
    assert [each.status_code for each in answers] == [200, 200]
    assert answers[0].content == answers[1].content
    assert house.again(message).status.value == ("failed" if act == "drop" else status)


def test_an_answer_is_not_stored_for_another_call_that_took_the_key(house: House) -> None:
    replies, name = house.parts.replies, "x" * 64
    mine, other = "b" * 64, "c" * 64
    replies.begin(name, fingerprint=mine, seen=None)
    replies.forget(name, fingerprint=mine)  # by a twin that was refused
    replies.begin(name, fingerprint=other, seen=None)
    given: dict[str, Any] = {"status": 200, "headers": {}, "message_id": None}
    assert replies.finish(name, fingerprint=mine, body="mine", **given).body == "mine"
    assert replies.finish(name, fingerprint=other, body="other", **given).body == "other"


def test_an_answer_is_whole_also_where_a_twin_begins_while_it_is_stored(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    replies, name, mine = house.parts.replies, "n" * 64, "m" * 64
    find = replies.find

    def begin_then_find(reply_id: str) -> Any:
        monkeypatch.setattr(replies, "find", find)
        replies.begin(reply_id, fingerprint=mine, seen=None)
        return find(reply_id)

    monkeypatch.setattr(replies, "find", begin_then_find)
    stored = replies.finish(
        name, fingerprint=mine, status=200, headers={}, body="mine", message_id=None
    )
    assert (stored.status, stored.body) == (200, "mine")


def test_a_call_that_was_repeated_and_refused_leaves_its_key_free(
    shop: TestClient, falling: TestClient
) -> None:
    shop.post("/v1/messages", json=new())
    arm("api.before_act=raise")
    assert falling.post("/v1/messages", json=new(), headers=key()).status_code == 500
    arm(None)
    refused = shop.post("/v1/messages", json=new(), headers=key())
    assert refused.status_code == 409
    slot = refused.json()["next_slot"]
    assert shop.post("/v1/messages", json=new(at=slot), headers=key()).status_code == 201


def test_a_body_that_cannot_be_stored_is_refused_with_a_key_as_without(
    falling: TestClient,
) -> None:
    content = json.dumps(new(body={"text": "\ud800"}))
    typed = {"Content-Type": "application/json"}
    for headers in (typed, {**typed, **key()}):
        answer = falling.post("/v1/messages", content=content, headers=headers)
        assert answer.status_code == 422


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
    keys = house.parts.api_keys
    all_rights = add_key(keys, "shop")[1]
    call: dict[str, Any] = {"json": new("eve"), "headers": key()}
    app = api(house.dispatcher)
    first = TestClient(app, headers={"Authorization": f"Bearer {all_rights}"})
    made = first.post("/v1/messages", **call)
    revoke_key(keys, "shop")
    few = add_key(keys, "shop", rights=[Right.MESSAGES_WRITE])[1]
    second = TestClient(app, headers={"Authorization": f"Bearer {few}"})
    again = second.post("/v1/messages", **call)
    assert again.json()["id"] == made.json()["id"]
    assert "recipient" not in again.json()


def replayed(answer: Any) -> bool:
    return bool(answer.headers.get("Idempotency-Replayed"))


def test_of_two_opt_outs_at_once_the_one_whose_answer_is_not_stored_is_marked(
    house: House, shop: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both act. The one that ends first has stored the answer of both."""
    house.submit("ada", send_at=AT)
    answers, real = [], house.dispatcher.suppress

    def slow(*given: Any, **named: Any) -> int:
        monkeypatch.setattr(house.dispatcher, "suppress", real)
        answers.append(shop.put("/v1/suppressions/ada", headers=key()))
        return real(*given, **named)

    monkeypatch.setattr(house.dispatcher, "suppress", slow)
    answers.append(shop.put("/v1/suppressions/ada", headers=key()))
    assert [each.json() for each in answers] == [{"cancelled": 1}] * 2
    assert [replayed(each) for each in answers] == [False, True]


@pytest.mark.every_database
def test_twins_have_one_effect_and_one_answer(house: House, shop: TestClient) -> None:
    with ThreadPoolExecutor(8) as threads:
        answers = list(
            threads.map(lambda _: shop.post("/v1/messages", json=new(), headers=key()), range(8))
        )
        done = [each for each in answers if each.status_code == 201]
        assert {each.status_code for each in answers} <= {201, 409}
        assert {each.status_code for each in answers if each not in done} <= {409}
        assert len({each.content for each in done}) == 1
        assert [replayed(each) for each in done].count(False) == 1
        [row] = house.rows()
        path = f"/v1/messages/{row[0]}"
        moved = list(
            threads.map(
                lambda _: shop.post(
                    f"{path}/reschedule", json={"send_at": LATER}, headers=key("move")
                ),
                range(8),
            )
        )
    assert {each.status_code for each in moved} <= {200, 409}
    assert len({each.content for each in moved if each.status_code == 200}) == 1
    assert [replayed(each) for each in moved if each.status_code == 200].count(False) == 1
    assert len(house.members()) == 1


def test_a_key_knows_names_apart_that_differ_in_an_escape(house: House, shop: TestClient) -> None:
    """TestClient decodes a path twice, so that it would not show them apart."""

    async def put(*paths: str) -> list[int]:
        transport = httpx2.ASGITransport(app=shop.app)
        async with httpx2.AsyncClient(
            transport=transport, base_url="http://shop", headers=dict(shop.headers)
        ) as client:
            return [(await client.put(each, headers=key())).status_code for each in paths]

    paths = ("/v1/suppressions/a%3Fb", "/v1/suppressions/a%253Fb")
    assert asyncio.run(put(*paths)) == [200, 422]
    assert [each.recipient for each in house.dispatcher.suppressed()] == ["a?b"]


@pytest.mark.every_database
def test_a_move_that_died_holding_its_time_is_no_full_quota_to_its_repeat(
    house: House, falling: TestClient
) -> None:
    """Reconcile ends the hold, and changes the version of the message, so that it is read anew."""
    made = falling.post("/v1/messages", json=new(), headers=key()).json()
    path = f"/v1/messages/{made['id']}/reschedule"

    def move(text: str) -> Any:
        return falling.post(path, json={"send_at": LATER}, headers=key(text))

    arm("reschedule.after_hold=raise")
    assert move("died").status_code == 500
    arm(None)
    early = move("died")
    assert (early.status_code, early.headers["Retry-After"]) == (503, "1")
    for _ in range(2):
        let_graces_pass(house)
        house.reconciled()
    assert move("died").status_code == 412
    assert house.dispatcher.get(made["id"]).send_at == FAR + HOUR
    moved = move("anew")
    assert (moved.status_code, replayed(moved)) == (200, False)
    assert house.dispatcher.get(made["id"]).send_at == FAR + 2 * HOUR


def test_the_answer_of_a_message_that_is_taken_back_goes_with_it(
    build: Callable[..., House],
) -> None:
    """Storing took so long that another message booked the time."""
    house, other = build(), build()
    _, token = add_key(house.parts.api_keys, "shop")

    def slow() -> None:
        house.moved.advance(house.settings.settle + timedelta(milliseconds=1))
        house.redis.flushall()
        other.open()
        other.submit(send_at=FAR + HOUR)

    house.swap("messages", Between(house.parts.messages, before={"add": once(slow)}))
    with TestClient(api(house.dispatcher), headers={"Authorization": f"Bearer {token}"}) as shop:
        for _ in range(2):
            refused = shop.post("/v1/messages", json=new(), headers=key())
            assert refused.status_code == 409
            assert "Idempotency-Replayed" not in refused.headers


def test_the_answer_of_a_message_that_is_stored_at_the_second_try_names_it(
    build: Callable[..., House],
) -> None:
    """Its first reservation was released before it was stored."""
    house = build()
    _, token = add_key(house.parts.api_keys, "shop")

    def given_up() -> None:
        raise GivenUp

    house.swap("messages", Between(house.parts.messages, before={"add": once(given_up)}))
    with TestClient(api(house.dispatcher), headers={"Authorization": f"Bearer {token}"}) as shop:
        made, again = (shop.post("/v1/messages", json=new(), headers=key()) for _ in range(2))
    assert (made.status_code, made.content) == (201, again.content)
    assert again.headers["Idempotency-Replayed"] == "true"
    assert [str(row[0]) for row in house.rows()] == [made.json()["id"]]


def test_a_message_whose_second_reservation_is_released_as_well_may_be_submitted_again(
    build: Callable[..., House],
) -> None:
    """Nothing is wrong with its values: 503 with the time to wait, and nothing is left of it."""
    house = build()
    _, token = add_key(house.parts.api_keys, "shop")
    store = house.parts.messages
    house.swap("messages", Between(store, before={"add": raising(GivenUp(), GivenUp())}))
    with TestClient(api(house.dispatcher), headers={"Authorization": f"Bearer {token}"}) as shop:
        refused, again = (shop.post("/v1/messages", json=new(), headers=key()) for _ in range(2))
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
    assert refused.json()["type"].endswith(":store-unavailable")
    assert again.status_code == 201
    assert [str(row[0]) for row in house.rows()] == [again.json()["id"]]
    assert len(house.members()) == 1


def test_a_message_whose_answer_cannot_be_made_leaves_nothing(
    house: House, shop: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> NoReturn:
        raise ValueError("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(models.MessageOut, "of", broken)
        with pytest.raises(ValueError, match="no answer"):
            shop.post("/v1/messages", json=new(), headers=key())
    assert (house.rows(), house.members()) == ([], {})
    assert shop.post("/v1/messages", json=new(), headers=key()).status_code == 201


def test_a_note_without_an_answer_does_not_stop_the_same_call(
    house: House, shop: TestClient
) -> None:
    """Its server died between the note and the answer, and the message is gone."""
    shop.post("/v1/messages", json=new(), headers=key())
    house.sql("UPDATE dispatcher_api_replies SET status = NULL, body = NULL")
    house.sql("DELETE FROM dispatcher_idempotency_keys")
    house.sql("DELETE FROM dispatcher_messages")
    house.redis.flushall()
    house.open()
    made = shop.post("/v1/messages", json=new(), headers=key())
    assert made.status_code == 201, made.text
    assert shop.post("/v1/messages", json=new(), headers=key()).content == made.content


def test_an_answer_is_kept_as_long_as_its_message(house: House, shop: TestClient) -> None:
    shop.post("/v1/messages", json=new(), headers=key())
    shop.put("/v1/suppressions/eve", headers=key("s-1"))
    prune = house.parts.sweep.prune
    prune()
    count = "SELECT count(*) FROM dispatcher_api_replies"
    assert house.sql(count) == [(2,)]
    house.sql("UPDATE dispatcher_api_replies SET keep_until = created_at")
    prune()
    assert house.sql(count) == [(1,)], "the message is still stored"
    again = shop.post("/v1/messages", json=new(), headers=key())
    assert again.headers["Idempotency-Replayed"] == "true"
    [row] = house.rows()
    ended = house.database_time() - 2 * house.settings.retention
    house.sql("UPDATE dispatcher_api_replies SET keep_until = created_at")
    house.change([house.dispatcher.get(row[0])], status="sent", finished_at=ended)
    assert StoreMaintenance(house.database).prune(older_than=house.settings.retention, limit=9) == 1
    prune()
    assert house.sql(count) == [(0,)]

"""Who is let in, who may do what, and calls that come from other sites."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select, update

from dispatcher.errors import InvalidValue
from dispatcher.store.engines.types import database_now
from dispatcher.web import Caller, Loopback, Right, page, page_and_api
from dispatcher.web.keys import ApiKeys
from tests.support import canaries
from tests.support.house import House
from tests.support.waiting import wait_until
from tests.web.conftest import by_hand
from tests.web.pages.conftest import PATHS, Visit, hold, paths


def local(app: Any, *, host: str = "localhost", client: str = "127.0.0.1") -> TestClient:
    return TestClient(
        app, base_url=f"http://{host}", client=(client, 50_000), follow_redirects=False
    )


def test_this_machine_reads_and_does_nothing(house: House) -> None:
    message = house.submit()
    app = page(house.dispatcher, access=Loopback())
    for host in ("127.0.0.1:8000", "[::1]"):
        assert local(app, host=host).get("/messages").status_code == 200
    with local(app) as client:
        assert "read-only" in client.get("/").text
        text = client.get(f"/messages/{message.id}").text
        assert "ada" in text
        assert canaries.BODY not in text
        own = {"Sec-Fetch-Site": "same-origin"}
        assert client.post("/doctor", headers=own).status_code == 403


def test_loopback_lets_in_nobody_else(house: House) -> None:
    app = page(house.dispatcher, access=Loopback())
    assert {local(app, client="192.0.2.7").get(path).status_code for path in PATHS} == {403}
    for host, address, headers in (
        ("evil.example", "127.0.0.1", {}),
        ("localhost.evil.example", "127.0.0.1", {}),
        ("localhost", "127.0.0.1", {"X-Forwarded-For": "192.0.2.7"}),
        ("localhost", "127.0.0.1", {"Forwarded": "for=192.0.2.7"}),
    ):
        answer = local(app, host=host, client=address).get("/messages", headers=headers)
        assert answer.status_code == 403, (host, headers)


@pytest.fixture
def served(house: House) -> Iterator[TestClient]:
    with local(page_and_api(house.dispatcher)) as client:
        client.headers["Sec-Fetch-Site"] = "same-origin"
        yield client


def test_a_key_signs_in_until_it_is_revoked(
    house: House, served: TestClient, actions: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    first = served.get("/messages?channel=memory")
    assert first.status_code == 303
    assert first.headers["location"] == "/sign-in?to=%2Fmessages%3Fchannel%3Dmemory"
    _, token = ApiKeys(house.parts.database).add("shop", rights=[Right.MESSAGES_READ])

    wrong = served.post("/sign-in", data={"key": f"{token}x"})
    assert (wrong.status_code, "set-cookie" in wrong.headers) == (401, False)
    entered = served.post("/sign-in", data={"key": token, "to": "/messages?channel=memory"})
    assert (entered.status_code, entered.headers["location"]) == (303, "/messages?channel=memory")
    cookie = entered.headers["set-cookie"].lower()
    assert {"httponly", "samesite=strict", "path=/"} <= set(cookie.split("; "))
    assert "shop" in served.get("/messages").text
    assert token not in caplog.text
    assert actions == [
        "page: sign-in refused by nobody", "page: sign-in by shop",
    ]  # fmt: skip

    secret = served.cookies["dispatcher_session"]
    assert secret not in token, "the cookie is no key"
    assert served.get("/v1/messages", headers={"Authorization": f"Bearer {secret}"}).is_error
    ApiKeys(house.parts.database).revoke("shop")
    wait_until(lambda: served.get("/messages").status_code == 303)
    assert served.get("/v1/messages").status_code == 401, "the cookie is no key of the API"


def test_the_cookie_is_secure_under_https(house: House) -> None:
    _, token = ApiKeys(house.parts.database).add("shop")
    with TestClient(page_and_api(house.dispatcher), base_url="https://x.example") as client:
        answer = client.post(
            "/sign-in", data={"key": token}, headers={"Origin": "https://x.example"},
            follow_redirects=False,
        )  # fmt: skip
    assert "; secure" in answer.headers["set-cookie"].lower()


def test_signing_in_leads_to_no_other_site(house: House, served: TestClient) -> None:
    _, token = ApiKeys(house.parts.database).add("shop")
    for to in ("//evil.example", "https://evil.example", "/\\evil.example", "x"):
        answer = served.post("/sign-in", data={"key": token, "to": to})
        assert answer.headers["location"] == "/", to


def test_each_sign_in_has_a_session_of_its_own_which_ends(house: House, served: TestClient) -> None:
    """A cookie that was planted or stolen before a sign-in is worth nothing after it."""
    _, token = ApiKeys(house.parts.database).add("shop")
    secrets = [signed_in(served, token) for _ in range(2)]
    assert served.get("/").status_code == 200
    tables = house.parts.database.tables
    [stored] = house.parts.database.read(select(tables.sessions))
    assert not {*secrets, token} & {*map(str, stored)}, "the store has a digest"
    first, second = secrets
    assert with_cookie(served, first).status_code == 303
    assert with_cookie(served, second).status_code == 200
    third = signed_in(served, token)
    assert served.post("/sign-out").status_code == 303
    assert with_cookie(served, third).status_code == 303, "for whoever has the cookie"
    second = signed_in(served, token)
    house.parts.database.execute(update(tables.sessions).values(expires_at=database_now()))
    wait_until(lambda: with_cookie(served, second).status_code == 303, 10)


def signed_in(client: TestClient, token: str) -> str:
    client.post("/sign-in", data={"key": token})
    return str(client.cookies["dispatcher_session"])


def with_cookie(client: TestClient, secret: str) -> Any:
    """Visit the page with that cookie alone."""
    client.cookies.clear()
    return client.get("/", headers={"Cookie": f"dispatcher_session={secret}"})


def test_a_page_that_says_of_nobody_who_may_see_it_is_not_made(house: House) -> None:
    with pytest.raises(InvalidValue, match=r"access: not given.*Loopback\(\)") as refused:
        page(house.dispatcher)
    assert refused.value.field == "access"


def test_visits_are_limited_by_caller(house: House) -> None:
    app = page(house.dispatcher, access=Loopback(), rate="3/hour")
    with local(app) as client:
        answers = [client.get("/suppressions") for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert "may call 3/hour; try again in" in answers[-1].text
    assert int(answers[-1].headers["Retry-After"]) > 0


def test_a_form_that_is_cut_off_is_no_fault_of_the_page(house: House) -> None:
    form = "application/x-www-form-urlencoded"
    headers = {"Sec-Fetch-Site": "same-origin", "Content-Type": form}
    app = page(house.dispatcher, access=lambda _: Caller(name="ops", rights=frozenset(Right)))
    answer = by_hand(app, "POST", "/pauses", headers, {"type": "http.disconnect"})
    assert answer[0]["status"] == 400


def test_an_action_of_another_site_is_refused(house: House) -> None:
    client = local(page(house.dispatcher, access=Loopback(rights=Right)))
    cross = {"Sec-Fetch-Site": "cross-site"}
    own: list[dict[str, str]] = [
        {"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"},
        {"Origin": "http://localhost"},
    ]  # fmt: skip
    others: list[dict[str, str]] = [
        cross, {"Sec-Fetch-Site": "same-site"}, {**cross, "Origin": "http://localhost"}, {},
        *({"Origin": origin} for origin in ("http://evil.example", "null", "http://[")),
    ]  # fmt: skip
    for status, headers in ((422, own), (403, others)):
        for origin in headers:
            assert client.post("/pauses", headers=origin).status_code == status, origin


def test_a_visit_of_a_page_changes_nothing(house: House, visit: Visit) -> None:
    addresses = paths(house)
    client = visit()
    dropped = {"file": ("sale.csv", b"recipient,text,send_at\nben,hello,2100-01-02T12:00")}
    form = {"campaign": "summer", "channel": "memory"}
    upload = client.post("/campaigns", data=form, files=dropped).headers["location"]
    before = everything(house)
    for path in (*addresses.values(), upload):
        assert client.get(path).status_code == 200, path
        assert everything(house) == before, path


def everything(house: House) -> tuple[Any, ...]:
    """Return what Redis and all tables hold."""
    tables = house.tables.metadata.sorted_tables
    rows = {table.name: house.parts.database.read(select(table)) for table in tables}
    return house.snapshot(), rows


def test_each_answer_has_the_headers_that_protect_it(visit: Visit) -> None:
    client = visit()
    for path in {*PATHS, "/no-such-page", "/static/page.css"}:
        headers = client.get(path).headers
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy, path
        assert "frame-ancestors 'none'" in policy, path
        assert "unsafe" not in policy, path
        assert headers["X-Content-Type-Options"] == "nosniff", path
        assert headers["Referrer-Policy"] == "same-origin", path
    assert client.get("/").headers["Content-Encoding"] == "gzip"


def test_without_the_rights_no_recipient_and_no_body_is_shown(house: House, visit: Visit) -> None:
    addresses = paths(house)
    held = hold(house, "fay")
    house.dispatcher.pause("recipient", "fay")
    addresses["held"] = f"/messages/{held.id}"
    named = re.compile(r"\b(ada|cyd|dan|eve|fay)\b")
    hidden = {Right.RECIPIENTS_READ, Right.BODIES_READ}
    refused = set()
    for rights in ({Right.MESSAGES_READ}, set(Right) - hidden):
        client = visit(*rights)
        answers = {name: client.get(path) for name, path in addresses.items()}
        if Right.OPERATE in rights:
            answers["examined"] = client.post("/doctor")
        for name, answer in answers.items():
            assert not named.search(answer.text), name
            assert canaries.BODY not in answer.text, name
        refused = {name for name, answer in answers.items() if answer.status_code != 200}
        for query in ("recipient=ada", "count.recipient.memory=ada"):
            assert client.get(f"/messages?{query}").status_code == 403
    assert refused == {"/calendar", "/suppressions", "/top"}
    client = visit()
    shown = {name: client.get(path).text for name, path in addresses.items()}
    assert {name for name, text in shown.items() if named.search(text)} >= {
        "/calendar", "/messages", "/messages/bulk", "/messages/{message_id}", "/held", "held",
        "/suppressions", "/pauses", "/quotas",
    }  # fmt: skip
    assert canaries.BODY in shown["held"]


def test_a_tenant_sees_its_own(build: Any, visit: Visit) -> None:
    house = build(scopes={"tenant": {"quotas": "9/hour"}})
    own = house.submit(scopes={"tenant": "acme"})
    other = house.submit("eve", scopes={"tenant": "zeta"})
    client = visit(of=house, scope=("tenant", "acme"))
    listed = client.get("/messages").text
    assert str(own.id) in listed
    assert str(other.id) not in listed
    assert client.get(f"/messages/{other.id}").status_code == 404
    assert client.get("/messages?count.tenant=zeta").status_code == 403
    assert client.get("/calendar?count.tenant=acme").status_code == 200
    for path in ("/calendar?count.tenant=zeta", "/calendar?recipient=eve", "/suppressions",
                 "/calendar?recipient=acme&count.tenant=acme", "/doctor", "/load",
                 "/refusals", "/top", "/pauses", "/quotas"):  # fmt: skip
        assert client.get(path).status_code == 403, path

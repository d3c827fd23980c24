"""Keys of the HTTP API on the command line."""

from __future__ import annotations

from fastapi.testclient import TestClient

from dispatcher.web import api
from tests.cli.conftest import Run
from tests.support.house import House


def test_a_key_is_made_listed_rotated_and_revoked(house: House, run: Run) -> None:
    made = run("keys", "add", "shop", "--right", "messages:read", "--channel", "memory")
    assert made.code == 0
    token, told = made.out.splitlines()
    assert token.startswith("dsp_")
    key_id = token.split("_")[1]
    assert key_id in told
    [listed] = run("keys", "list", "--json").lines
    assert (listed["id"], listed["rights"], listed["channels"]) == (
        key_id,
        ["messages:read"],
        ["memory"],
    )
    assert "secret" not in str(listed)
    assert run("keys", "add", "shop").code == 2
    second = run("keys", "rotate", "shop", "--overlap", "1 hour", "--json").data
    assert second["rights"] == ["messages:read"]
    assert second["key"] != token
    assert run("keys", "revoke", key_id, "--json").data == [key_id]
    first, other = run("keys", "list", "--json").lines
    assert [bool(each["revoked_at"]) for each in (first, other)] == [True, False]
    table = run("keys", "list").out
    assert key_id in table
    assert run("keys", "revoke", "nobody").code == 2


def test_a_key_that_would_allow_something_else_is_refused(house: House, run: Run) -> None:
    for wrong, accepted in (
        (("--right", "everything"), "messages:read"),
        (("--channel", "fax"), "memory"),
        (("--count", "tenant=acme"), "none"),
        (("--count", "acme"), "KIND=NAME"),
        (("--rate", "fast"), "N/unit"),
        (("--expires-in", "soon"), ""),
        (("--expires-in", "0 days"), "90 days"),
    ):
        ran = run("keys", "add", "shop", *wrong)
        assert (ran.code, ran.out) == (2, ""), ran.err
        assert accepted in ran.err
    assert house.sql("SELECT * FROM dispatcher_api_keys") == []


def test_a_key_is_refused_after_its_end(house: House, run: Run) -> None:
    tokens = {
        name: run("keys", "add", name, "--expires-in", "1 hour").out.splitlines()[0]
        for name in ("lasting", "ended")
    }

    def asked(name: str) -> tuple[int, str]:
        caller = TestClient(api(house.dispatcher))  # a server that has not seen the key before
        answer = caller.get("/v1/messages", headers={"Authorization": f"Bearer {tokens[name]}"})
        return answer.status_code, answer.json().get("detail", "")

    assert [asked(name)[0] for name in tokens] == [200, 200]
    house.sql("UPDATE dispatcher_api_keys SET expires_at = created_at WHERE name = 'ended'")
    assert asked("ended") == (401, "the key has expired")
    assert asked("lasting")[0] == 200
    [state] = [each for each in run("keys", "list", "--json").lines if each["name"] == "ended"]
    assert state["expires_at"] == state["created_at"]

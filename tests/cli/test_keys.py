"""Keys of the HTTP API on the command line."""

from __future__ import annotations

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
    assert (listed["id"], listed["rights"]) == (key_id, ["messages:read"])
    assert listed["channels"] == ["memory"]
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

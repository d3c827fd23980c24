"""Lists on the command line: opt-outs, and keys of the HTTP API."""

from __future__ import annotations

import re

from tests.cli.conftest import Run
from tests.support.house import House

TO = ("--channel", "memory", "--recipient", "ada", "--text", "hello")


def test_a_suppressed_recipient_gets_nothing_until_unsuppressed(house: House, run: Run) -> None:
    message = run("submit", *TO, "--send-in", "10 minutes", "--json").data
    ran = run("suppress", "ada", "--json")
    assert (ran.code, ran.data) == (0, {"recipient": "ada", "channel": None, "cancelled": 1})
    assert run("show", message["id"], "--json").data["status"] == "cancelled"
    refused = run("submit", *TO, "--send-in", "10 minutes")
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.startswith("error: --recipient: has opted out of 'memory'")
    assert "cancelled: 0" in run("suppress", "ada", "--channel", "memory").out
    table = run("suppressed").out
    assert re.findall(r"^(ada) +(\w+)", table, re.MULTILINE) == [("ada", "all"), ("ada", "memory")]
    channels = [each["channel"] for each in run("suppressed", "ada", "--json").lines]
    assert channels == [None, "memory"]
    assert run("suppressed", "ben", "--json").lines == []
    assert "still gets nothing on channel memory" in run("unsuppress", "ada").out
    assert run("unsuppress", "ada", "--channel", "memory").out == "ada is not suppressed\n"
    assert run("submit", *TO, "--send-in", "10 minutes").code == 0
    assert len(house.members()) == 1


def test_an_erasure_says_what_it_did(house: House, run: Run) -> None:
    message = run("submit", *TO, "--send-in", "10 minutes", "--json").data
    erased = run("erase", "ada", "--yes", "--json").data
    assert erased == {"cancelled": 1, "blanked": 1, "under_way": 0}
    shown = run("show", message["id"], "--json").data
    assert (shown["recipient"], shown["body"], shown["status"]) == ("", {}, "cancelled")
    assert "blanked: 0" in run("erase", "ada", "--yes").out
    assert house.members() == {}


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

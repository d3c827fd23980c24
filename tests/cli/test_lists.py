"""Opting out on the command line."""

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

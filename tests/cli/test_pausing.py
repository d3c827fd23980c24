"""``dispatcher pause`` and ``resume``, and the pages that show pauses."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Run
from tests.support.house import House


@pytest.mark.parametrize(
    ("kind", "name", "typed"),
    [("channel", "memory", "memory"), ("campaign", "summer sale", "'summer sale'")],
)
def test_a_pause_is_shown_until_it_is_resumed(
    kind: str, name: str, typed: str, house: House, run: Run
) -> None:
    message = house.submit("ada", campaign="summer sale")
    ran = run("pause", kind, name)
    assert (ran.code, ran.err) == (0, "")
    assert kind in ran.out
    assert name in ran.out
    assert f"{kind} {name}: dispatcher resume" in run("status").out
    assert f"it is paused: dispatcher resume {kind} {typed}" in run("show", str(message.id)).out
    [pause] = run("status", "--json").data["pauses"]
    assert (pause["kind"], pause["name"]) == (kind, name)
    assert run("resume", kind, name).out == "nothing is paused\n"
    assert run("show", str(message.id), "--json").data["pauses"] == []


def test_an_unknown_kind_or_channel_is_refused(house: House, run: Run) -> None:
    assert run("pause", "customer", "acme").code == 2
    assert run("pause", "channel", "fax").code == 2
    assert house.dispatcher.status().pauses == ()

"""Commands that change what was accepted, and what a submit may count against."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.support.house import House

TO = ("--channel", "memory", "--recipient", "ada", "--text", "hello")


@pytest.fixture
def submitted(house: House, run: Run) -> dict[str, Any]:
    """Give a message that is due in ten minutes."""
    data: dict[str, Any] = run("submit", *TO, "--send-in", "10 minutes", "--json").data
    return data


def test_reschedule_moves_a_message(house: House, run: Run, submitted: dict[str, Any]) -> None:
    ran = run("reschedule", submitted["id"], "--send-in", "2 hours", "--json")
    assert ran.code == 0
    moved = datetime.fromisoformat(ran.data["send_at"])
    assert moved - datetime.fromisoformat(submitted["send_at"]) > timedelta(minutes=100)
    assert len(house.members()) == 1
    assert str(house.dispatcher.get(submitted["id"]).send_at) == str(moved)


def test_a_refused_reschedule_changes_nothing(
    house: House, run: Run, submitted: dict[str, Any]
) -> None:
    other = run("submit", *TO, "--send-in", "30 minutes", "--json").data
    before = house.snapshot()
    ran = run("reschedule", other["id"], "--send-at", submitted["send_at"])
    assert (ran.code, ran.out) == (3, "")
    assert "1/minute" in ran.err
    assert house.snapshot() == before
    shifted = run(
        "reschedule", other["id"], "--send-at", submitted["send_at"], "--on-conflict", "shift",
        "--json",
    ).data  # fmt: skip
    wait = datetime.fromisoformat(shifted["send_at"]) - datetime.fromisoformat(submitted["send_at"])
    assert wait == timedelta(minutes=1)


def test_update_gives_another_body(house: House, run: Run, submitted: dict[str, Any]) -> None:
    ran = run("update", submitted["id"], "--text", "good evening")
    assert ran.code == 0
    assert house.dispatcher.get(submitted["id"]).body == {"text": "good evening"}


@pytest.mark.parametrize(
    "command", [("reschedule", "--send-in", "1 hour"), ("update", "--text", "too late")]
)
def test_an_ended_message_cannot_be_changed(
    run: Run, submitted: dict[str, Any], command: tuple[str, ...]
) -> None:
    run("cancel", submitted["id"])
    name, *more = command
    ran = run(name, submitted["id"], *more)
    assert ran.code == 5
    assert "already cancelled" in ran.err


def test_quiet_hours_refuse_with_the_next_slot(house: House, run: Run) -> None:
    asked = ("--send-at", "2030-01-07T23:00", "--zone", "Europe/Berlin")
    ran = run("submit", *TO, *asked, "--send-window", "mon-fri 09:00-17:00")
    assert ran.code == 3
    assert "quiet hours" in ran.err
    slot = run("next-slot", "--recipient", "ada", "--after", "2030-01-07T23:00", "--zone",
               "Europe/Berlin", "--send-window", "mon-fri 09:00-17:00", "--json").data  # fmt: skip
    assert slot == {"next_slot": "2030-01-08T08:00:00.000Z", "suppressed": False}


def test_a_kind_of_scope_that_nobody_knows_is_refused(house: House, run: Run) -> None:
    before = house.snapshot()
    for count in ("tenant=acme", "tenant", "=acme", "tenant="):
        ran = run("submit", *TO, "--send-in", "1 hour", "--count", count)
        assert ran.code == 2
        assert "count" in ran.err or "kind" in ran.err
    assert house.snapshot() == before

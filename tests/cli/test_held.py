"""Commands for those who decide about unknown outcomes."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dispatcher import Message, Status
from dispatcher.message import new_id
from tests.cli.conftest import Run
from tests.support.house import House

HOUR = timedelta(hours=1)


@pytest.fixture
def held(house: House) -> list[Message]:
    """Give three messages that are held."""
    messages = [house.submit(name, on_unknown="hold") for name in ("ada", "ben", "cyd")]
    house.parts.delivery.shared.claims.claim([each.id for each in messages])
    house.end_claims(*messages)
    assert house.parts.sweep.rescue() == 3
    return [house.again(each) for each in messages]


def test_held_messages_are_listed_oldest_first(run: Run, held: list[Message]) -> None:
    ran = run("held", "--json")
    assert [each["id"] for each in ran.lines] == [str(each.id) for each in held]
    assert {each["status"] for each in ran.lines} == {"held"}
    listed = run("list", "--status", "held", "--json").lines
    assert [*reversed(ran.lines)] == listed, "a line each, as list prints them"
    shown = run("held", "--limit", "2")
    assert shown.code == 0
    assert [str(each.id) in shown.out for each in held] == [True, True, False]
    assert "1 of 10" in shown.out


@pytest.mark.parametrize(
    ("command", "status"), [("release", Status.SCHEDULED), ("drop", Status.FAILED)]
)
def test_several_are_decided_at_once(
    house: House, run: Run, held: list[Message], command: str, status: Status
) -> None:
    ran = run(command, str(held[0].id), str(held[1].id))
    assert ran.code == 0
    assert ran.out.splitlines() == [f"{each.id} is {status}" for each in held[:2]]
    last = run(command, str(held[2].id), "--json")
    assert (last.data["id"], last.data["status"]) == (str(held[2].id), status)
    assert [house.again(each).status for each in held] == [status] * 3


@pytest.mark.parametrize("command", ["release", "drop", "cancel"])
def test_a_refused_message_does_not_stop_the_others(
    house: House, run: Run, held: list[Message], command: str
) -> None:
    right, wrong = [str(each.id) for each in held], house.submit("dan")
    if command == "cancel":
        house.deliver(wrong)
        right = [str(house.submit(name, send_in=HOUR).id) for name in ("eve", "fay")]
    ran = run(command, right[0], str(wrong.id), str(new_id()), "nonsense", right[1], "--json")
    assert ran.code == 5, "that of the first refusal"
    assert f"already {house.again(wrong).status}" in ran.err
    assert "there is no message" in ran.err
    assert "no message id" in ran.err
    assert [each["id"] for each in ran.data] == right[:2]
    strange = run(command, str(new_id()), "--json")
    assert (strange.code, strange.data["error"]) == (4, "MessageNotFound")
    assert run(command, "nonsense").code == 2
    assert run(command, right[0]).code == (0 if command == "cancel" else 5)


def test_a_store_that_is_away_ends_it_with_what_was_decided(
    run: Run, held: list[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISPATCHER_DATABASE_URL", "sqlite:////nowhere/store.db")
    ran = run("release", str(held[0].id), str(held[1].id), "--json")
    assert (ran.code, ran.data) == (6, [])
    assert "store unavailable" in ran.err

"""Changes to all messages that match: counted, asked for, done in batches, told by reason."""

from __future__ import annotations

from datetime import timedelta
from io import StringIO
from typing import Any

import pytest

from dispatcher import Dispatcher, Message, PermanentFailure, Status, StoreUnavailable
from dispatcher.cli import work
from tests.integration.cli.conftest import Run
from tests.support.house import House

HOUR = timedelta(hours=1)


@pytest.fixture
def many(house: House, monkeypatch: pytest.MonkeyPatch) -> list[Message]:
    """Give seven messages on two channels; a batch is of two."""
    monkeypatch.setattr(work, "_AT_ONCE", 2)
    return [
        house.submit(f"r{n}", channel=("memory", "file")[n % 2], send_in=(n + 1) * HOUR)
        for n in range(7)
    ]


def statuses(house: House, some: list[Message]) -> list[str]:
    return [house.again(each).status.value for each in some]


def test_what_matches_is_cancelled_and_its_quota_given_back(
    house: House, run: Run, many: list[Message]
) -> None:
    ran = run("cancel", "--channel", "memory", "--yes")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == "cancel: 4 of 4 messages done\n"
    assert statuses(house, many) == ["cancelled", "scheduled"] * 3 + ["cancelled"]
    assert set(house.all_members()) == {"r1", "r3", "r5"}
    again = run("cancel", "--channel", "memory", "--yes", "--json")
    assert again.data == {
        "matched": 0, "done": 0, "refused": {}, "refusals": [], "complete": True,
    }  # fmt: skip


def test_without_yes_it_asks_and_tells_how_many(
    house: House, run: Run, many: list[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", StringIO("n\n"))
    refused = run("cancel", "--recipient", "r0")
    assert refused.code == 1
    assert "cancel 1 message?" in refused.err
    assert house.again(many[0]).status is Status.SCHEDULED
    monkeypatch.setattr("sys.stdin", StringIO("y\n"))
    assert run("cancel", "--recipient", "r0", "--json").data["done"] == 1
    monkeypatch.setattr("sys.stdin", StringIO(""))
    assert run("cancel", "--all").code == 1, "nobody is there to answer"
    assert house.again(many[1]).status is Status.SCHEDULED
    assert run("cancel", "--all", "--yes").out == "cancel: 6 of 6 messages done\n"


def test_times_choose_by_the_promise(house: House, run: Run, many: list[Message]) -> None:
    until = many[2].send_at.isoformat()
    assert run("cancel", "--to", until, "--yes", "--json").data["done"] == 2
    assert statuses(house, many)[:3] == ["cancelled", "cancelled", "scheduled"]


def test_reasons_are_told_and_the_first_gives_the_exit_code(
    house: House, run: Run, many: list[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some are taken between the look and the change."""
    select = Dispatcher.select

    def taken_meanwhile(self: Dispatcher, **asked: Any) -> Any:
        found = list(select(self, **asked))
        house.change(found[:3], status="sent", finished_at=house.database_time())
        return iter(found)

    monkeypatch.setattr(Dispatcher, "select", taken_meanwhile)
    ran = run("cancel", "--all", "--yes")
    assert ran.code == 5
    assert ran.out.splitlines() == [
        "cancel: 4 of 7 messages done", "  not done 3: already sent",
    ]  # fmt: skip
    assert statuses(house, many).count("cancelled") == 4


def test_an_outage_on_the_way_tells_how_to_go_on(
    house: House, run: Run, many: list[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    cancel_many = Dispatcher.cancel_many
    left = [2]

    def failing(self: Dispatcher, ids: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise StoreUnavailable("the database cannot be reached")
        return cancel_many(self, ids)

    monkeypatch.setattr(Dispatcher, "cancel_many", failing)
    ran = run("cancel", "--all", "--yes", "--json")
    assert ran.code == 6
    assert "Run it again" in ran.err
    assert (ran.data["done"], ran.data["complete"]) == (4, False)
    left[0] = 99
    assert run("cancel", "--all", "--yes", "--json").data["matched"] == 3
    assert statuses(house, many) == ["cancelled"] * 7


def test_what_was_moved_is_not_moved_twice_after_an_outage(
    house: House, run: Run, many: list[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was moved is scheduled still, so the same command would move it once more."""
    reschedule = Dispatcher.reschedule
    left = [3]

    def failing(self: Dispatcher, *args: Any, **more: Any) -> Message:
        left[0] -= 1
        if left[0] < 0:
            raise StoreUnavailable("the database cannot be reached")
        return reschedule(self, *args, **more)

    monkeypatch.setattr(Dispatcher, "reschedule", failing)
    later = ("reschedule", "--all", "--later", "30 minutes", "--yes")
    ran = run(*later)
    assert ran.code == 6
    told, doubtful = (f"--made-after {many[number].id}" for number in (2, 3))
    assert f"Look at {many[3].id}: if it was changed, go on with {doubtful}, else" in ran.err
    assert ran.err.rstrip().endswith(f"go on with {told}.")
    left[0] = 99
    rest = run(*later, "--made-after", str(many[2].id))
    assert rest.out == "reschedule: 4 of 4 messages done\n"
    assert [house.again(each).send_at - each.send_at for each in many] == [HOUR / 2] * 7


def test_before_anything_was_moved_the_command_is_run_again(
    house: House, run: Run, many: list[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(self: Dispatcher, *args: Any, **more: Any) -> Message:
        raise StoreUnavailable("the database cannot be reached")

    monkeypatch.setattr(Dispatcher, "reschedule", failing)
    ran = run("reschedule", "--all", "--later", "30 minutes", "--yes")
    assert ran.err.rstrip().endswith(f"--made-after {many[0].id}, else run it again.")


def test_reschedule_moves_all_by_a_length(house: House, run: Run, many: list[Message]) -> None:
    ran = run("reschedule", "--channel", "file", "--later", "30 minutes", "--yes")
    assert (ran.code, ran.out) == (0, "reschedule: 3 of 3 messages done\n")
    moved = [house.again(each).send_at - each.send_at for each in many]
    assert moved == [0 * HOUR, HOUR / 2] * 3 + [0 * HOUR]
    far = run("reschedule", "--all", "--later", "3000 days", "--yes")
    assert far.code == 2
    assert "not done 7: InvalidSendTime" in far.out
    one = run("reschedule", str(many[0].id), "--later", "1 hour")
    assert one.out.startswith(f"{many[0].id} is scheduled for ")


def test_release_drop_and_retry_take_filters(house: House, run: Run) -> None:
    messages = [house.submit(name, on_unknown="hold") for name in ("ada", "ben", "cyd")]
    house.parts.delivery._claims.claim([each.id for each in messages])
    house.end_claims(*messages)
    house.parts.sweep.rescue()
    assert run("release", "--recipient", "ada", "--yes").out == "release: 1 of 1 message done\n"
    assert run("drop", "--all", "--yes").out == "drop: 2 of 2 messages done\n"
    assert statuses(house, messages) == ["scheduled", "failed", "failed"]
    refused = run("retry", "--recipient", "ben", "--yes")
    assert refused.code == 2
    assert "not done 1: InvalidValue" in refused.out
    assert run("retry", "--all", "--perhaps-sent", "--yes", "--json").data["done"] == 2
    assert statuses(house, messages) == ["scheduled"] * 3


def test_retry_by_id(house: House, run: Run) -> None:
    def refuse(_: Message) -> None:
        raise PermanentFailure("no such number")

    house.memory.before = refuse
    message = house.submit()
    house.deliver(message)
    ran = run("retry", str(message.id))
    assert (ran.code, ran.out) == (0, f"{message.id} is scheduled\n")
    assert run("retry", str(message.id)).code == 5


def test_several_ids_are_cancelled_at_once(house: House, run: Run, many: list[Message]) -> None:
    ran = run("cancel", *(str(each.id) for each in many[:2]), "--json")
    assert [each["status"] for each in ran.data] == ["cancelled"] * 2

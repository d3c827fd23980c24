"""Changes to messages: by ids, and to all that match; asked for, in batches, told by reason."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from io import StringIO
from itertools import islice
from typing import Any

import pytest

from dispatcher import (
    Dispatcher,
    Message,
    ReservationsUnavailable,
    Status,
    StoreUnavailable,
    Unavailable,
)
from dispatcher.cli import messages as commands
from dispatcher.message import new_id
from tests.cli.conftest import Run
from tests.support.house import House

HOUR = timedelta(hours=1)


@pytest.fixture
def seven(house: House, monkeypatch: pytest.MonkeyPatch) -> list[Message]:
    """Give seven messages on two channels; a batch is of two."""
    monkeypatch.setattr(commands, "_BATCH", 2)
    return [
        house.submit(f"r{n}", channel=("memory", "file")[n % 2], send_in=(n + 1) * HOUR)
        for n in range(7)
    ]


@pytest.fixture
def held(house: House) -> list[Message]:
    messages = [house.submit(name, on_unknown="hold") for name in ("ada", "ben", "cyd")]
    house.parts.delivery.claims.claim([message.id for message in messages])
    house.end_claims(*messages)
    assert house.parts.sweep.rescue() == 3
    return [house.again(message) for message in messages]


def statuses(house: House, messages: list[Message]) -> list[str]:
    return [house.again(message).status.value for message in messages]


def test_matching_messages_are_cancelled_and_their_quota_given_back(
    house: House, run: Run, seven: list[Message]
) -> None:
    ran = run("cancel", "--channel", "memory", "--yes")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == "cancel: 4 of 4 messages done\n"
    assert statuses(house, seven) == ["cancelled", "scheduled"] * 3 + ["cancelled"]
    assert set(house.all_members()) == {"r1", "r3", "r5"}
    again = run("cancel", "--channel", "memory", "--yes", "--json")
    assert again.data == {
        "matched": 0, "done": 0, "refused": {}, "refusals": [], "complete": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("line", "question"),
    [
        ("cancel --recipient ada", "cancel 1 message?"),
        (
            "reschedule --all --set-zone Europe/Berlin --later 2h",
            "reschedule 2 messages and set the zone to Europe/Berlin?",
        ),
        ("update --all --priority -50", "update 2 messages to priority -50?"),
        ("erase ada", "Erase ada for good?"),
        ("windows rebuild", "Rebuild 4 of 4 shards?"),
    ],
)
def test_without_yes_it_asks_and_does_nothing_unless_told(
    house: House, run: Run, monkeypatch: pytest.MonkeyPatch, line: str, question: str
) -> None:
    for name in ("ada", "ben"):
        house.submit(name, send_in=HOUR)
    before = house.snapshot()
    for answer, code in (("n\n", 1), ("", 2)):
        monkeypatch.setattr("sys.stdin", StringIO(answer))
        ran = run(*line.split())
        assert (ran.code, question in ran.err) == (code, True)
        assert ("\nerror: --yes: " in ran.err) is (not answer), "nobody is there to answer"
    assert house.snapshot() == before
    monkeypatch.setattr("sys.stdin", StringIO("y\n"))
    assert run(*line.split()).code == 0


def test_reasons_are_told_and_the_first_gives_the_exit_code(
    house: House, run: Run, seven: list[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some are taken between the look and the change."""
    select = Dispatcher.select

    def taken_meanwhile(self: Dispatcher, **asked: Any) -> Any:
        matching = list(select(self, **asked))
        house.change(matching[:3], status="sent", finished_at=house.database_time())
        return iter(matching)

    monkeypatch.setattr(Dispatcher, "select", taken_meanwhile)
    ran = run("cancel", "--all", "--yes")
    assert ran.code == 5
    assert ran.out.splitlines() == [
        "cancel: 4 of 7 messages done", "  3 not done: already sent",
    ]  # fmt: skip
    assert statuses(house, seven).count("cancelled") == 4


def break_after(monkeypatch: pytest.MonkeyPatch, name: str, calls: int, error: Any) -> list[int]:
    """Let calls for many end with this error, or answer with it; return how many still work."""
    work, left = getattr(Dispatcher, name), [calls]

    def call(self: Dispatcher, ids: Any, **more: Any) -> Any:
        left[0] -= 1
        if left[0] >= 0:
            return work(self, ids, **more)
        if isinstance(error, Exception):
            raise error
        return [error("it cannot be reached")] * len(ids)

    monkeypatch.setattr(Dispatcher, name, call)
    return left


def test_an_outage_on_the_way_tells_how_to_go_on(
    house: House, run: Run, seven: list[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    left = break_after(monkeypatch, "cancel_many", 2, StoreUnavailable("it cannot be reached"))
    ran = run("cancel", "--all", "--yes", "--json")
    assert ran.code == 6
    assert "Run it again" in ran.err
    assert (ran.data["done"], ran.data["complete"]) == (4, False)
    left[0] = 99
    assert run("cancel", "--all", "--yes", "--json").data["matched"] == 3
    assert statuses(house, seven) == ["cancelled"] * 7


ON = "go on with --made-after"


@pytest.mark.parametrize(
    ("error", "done", "says"),
    [
        (StoreUnavailable, 0, f"if all up to {{1}} were changed, {ON} {{1}}, else run it again"),
        (ReservationsUnavailable, 4, f"{{5}} were changed, {ON} {{5}}, else {ON} {{3}}."),
    ],
)  # fmt: skip
def test_a_repeated_reschedule_after_an_outage_moves_no_message_twice(  # noqa: PLR0917 - one table
    house: House,
    run: Run,
    seven: list[Message],
    monkeypatch: pytest.MonkeyPatch,
    error: type[Unavailable],
    done: int,
    says: str,
) -> None:
    """What was moved is scheduled still, so the same command would move it once more."""
    left = break_after(monkeypatch, "reschedule_many", done // 2, error)
    later = ("reschedule", "--all", "--later", "30 minutes", "--yes")
    ran = run(*later)
    assert ran.code == 6
    ids = [message.id for message in seven]
    assert says.format(*ids) in ran.err
    assert f"Look at {ids[done]}: " in ran.err
    assert ran.out.startswith(f"reschedule: {done} of 7 messages done")
    left[0] = 99
    rest = run(*later, *(["--made-after", str(seven[done - 1].id)] if done else []))
    assert rest.out == f"reschedule: {7 - done} of {7 - done} messages done\n"
    assert [house.again(message).send_at - message.send_at for message in seven] == [HOUR / 2] * 7


def test_an_outage_between_batches_tells_the_last_that_was_changed(
    run: Run, seven: list[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    select = Dispatcher.select

    def broken(self: Dispatcher, **asked: Any) -> Iterator[Message]:
        yield from islice(select(self, **asked), 4)
        raise StoreUnavailable("it cannot be reached")

    monkeypatch.setattr(Dispatcher, "select", broken)
    ran = run("reschedule", "--all", "--later", "30 minutes", "--yes")
    assert ran.out.startswith("reschedule: 4 of 7 messages done")
    assert f"do not change them twice: {ON} {seven[3].id}." in ran.err


def test_no_more_is_changed_than_was_confirmed(
    run: Run, seven: list[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Dispatcher, "count", lambda *_, **__: 3)
    assert run("cancel", "--all", "--yes").out == "cancel: 3 of 3 messages done\n"


def test_reschedule_moves_all_by_a_length(house: House, run: Run, seven: list[Message]) -> None:
    ran = run("reschedule", "--channel", "file", "--later", "30 minutes", "--yes")
    assert (ran.code, ran.out) == (0, "reschedule: 3 of 3 messages done\n")
    moved = [house.again(message).send_at - message.send_at for message in seven]
    assert moved == [0 * HOUR, HOUR / 2] * 3 + [0 * HOUR]
    far = run("reschedule", "--all", "--later", "3000 days", "--yes")
    assert far.code == 2
    assert "7 not done: InvalidSendTime" in far.out
    one = run("reschedule", str(seven[0].id), "--later", "1 hour")
    assert one.out.startswith(f"{seven[0].id} is scheduled for ")


def test_a_zone_that_reads_the_filters_moves_no_message_to_it(house: House, run: Run) -> None:
    """Recipients in other zones had the quiet hours of Berlin from then on."""
    zones = ["Europe/London", "America/New_York", None]
    messages = [
        house.submit(f"r{n}", zone=zone, send_at="2030-01-07T12:00:00+00:00")
        for n, zone in enumerate(zones)
    ]
    span = ("--from", "2030-01-07T13:00", "--to", "2030-01-07T13:01")
    command = ("reschedule", *span, "--yes", "--json")
    by_zone = run(*command, "--zone", "Europe/Berlin", "--later", "1 hour")
    assert by_zone.data["done"] == 3
    again = [house.again(message) for message in messages]
    assert [message.zone for message in again] == zones
    assert {message.send_at.hour for message in again} == {13}
    span = ("--from", "2030-01-07T14:00", "--to", "2030-01-07T14:01")
    at = ("--send-at", "2030-01-08T09:00", "--channel", "memory")
    own = run("reschedule", *span, *at, "--filter-zone", "Europe/Berlin", "--json", "--yes")
    assert own.data["done"] == 2, "one has no zone by which the time could be read"
    assert [house.again(message).send_at.hour for message in messages[:2]] == [9, 14]
    for zone, code in (("Europe/Berlin", 0), ("Mars", 2)):
        assert run("reschedule", "--all", "--set-zone", zone, "--later", "1h", "--yes").code == code
        assert {house.again(message).zone for message in messages} == {"Europe/Berlin"}


def test_release_drop_and_retry_take_filters(house: House, run: Run, held: list[Message]) -> None:
    assert run("release", "--recipient", "ada", "--yes").out == "release: 1 of 1 message done\n"
    assert run("drop", "--all", "--yes").out == "drop: 2 of 2 messages done\n"
    assert statuses(house, held) == ["scheduled", "failed", "failed"]
    refused = run("retry", "--recipient", "ben", "--yes")
    assert refused.code == 2
    assert "1 not done: InvalidValue" in refused.out
    assert run("retry", "--all", "--perhaps-sent", "--yes", "--json").data["done"] == 2
    assert statuses(house, held) == ["scheduled"] * 3


def test_an_update_gives_a_campaign_another_priority(house: House, run: Run) -> None:
    one, two, other = (
        house.submit(f"r{n}", campaign=name, send_in=HOUR, priority=-50)
        for n, name in enumerate(("summer", "summer", "winter"))
    )
    update = ("update", "--campaign", "summer", "--priority", "50")
    assert run(*update, "--yes").out == "update: 2 of 2 messages done\n"
    ran = run("update", str(other.id), "--priority", "-7", "--json")
    assert ran.data["priority"] == house.again(other).priority == -7
    assert [house.again(message).priority for message in (one, two)] == [50, 50]
    urgent = run("list", "--priority-from", "50", "--json").lines
    assert [line["id"] for line in urgent] == [str(two.id), str(one.id)]


def test_held_messages_are_listed_oldest_first(run: Run, held: list[Message]) -> None:
    ran = run("held", "--json")
    assert [line["id"] for line in ran.lines] == [str(message.id) for message in held]
    assert {line["status"] for line in ran.lines} == {"held"}
    listed = run("list", "--status", "held", "--json").lines
    assert [*reversed(ran.lines)] == listed, "a line each, as list prints them"
    shown = run("held", "--limit", "2")
    assert shown.code == 0
    assert [str(message.id) in shown.out for message in held] == [True, True, False]
    assert "1 of 10" in shown.out


@pytest.mark.parametrize(
    ("command", "status"),
    [("release", Status.SCHEDULED), ("drop", Status.FAILED), ("cancel", Status.CANCELLED)],
)
def test_several_are_decided_at_once_and_a_refused_one_does_not_stop_the_others(
    house: House, run: Run, held: list[Message], command: str, status: Status
) -> None:
    right, wrong = held, house.submit("dan")
    if command == "cancel":
        house.deliver(wrong)
        right = [house.submit(name, send_in=HOUR) for name in ("eve", "fay", "guy")]
    first, second, third = (str(message.id) for message in right)
    ran = run(command, first, str(wrong.id), str(new_id()), "nonsense", second)
    assert ran.code == 5, "that of the first refusal"
    assert f"already {house.again(wrong).status}" in ran.err
    assert "there is no message" in ran.err
    assert "no message id" in ran.err
    assert ran.out.splitlines() == [f"{message_id} is {status}" for message_id in (first, second)]
    last = run(command, third, "--json")
    assert (last.data["id"], last.data["status"]) == (third, status)
    assert statuses(house, right) == [status] * 3
    strange = run(command, str(new_id()), "--json")
    assert (strange.code, strange.data["error"]) == (4, "MessageNotFound")
    assert run(command, "nonsense").code == 2
    again = run(command, first, second, "--json")
    assert (again.code, len(again.data)) == ((0, 2) if command == "cancel" else (5, 0))


def test_a_store_that_is_away_ends_it_with_what_was_decided(
    run: Run, held: list[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISPATCHER_DATABASE_URL", "sqlite:////nowhere/store.db")
    ran = run("release", str(held[0].id), str(held[1].id), "--json")
    assert (ran.code, ran.data) == (6, [])
    assert "store unavailable" in ran.err

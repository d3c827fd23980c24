"""A submit, a cancel, a reschedule dies at a named line: nothing is lost, doubled or leaked."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import Session

from dispatcher import Dispatcher, Draft, Message, QuotaExceeded, Status
from dispatcher.faults import VARIABLE
from dispatcher.times.clock import SystemClock
from tests.support.all_windows import promised, windows_of
from tests.support.callers import callers_engine
from tests.support.crashes import CHANNEL, ROOMY, How, die, heal, judge, lines, published, reconcile
from tests.support.environment import child_environment, dispatcher_command
from tests.support.house import BODY, House
from tests.support.house_fixtures import Build

LATER = timedelta(hours=2)
PEOPLE = ("ada", "ben", "cyd")
each_how = pytest.mark.parametrize(
    ("database_url", "how"), [("postgresql", "kill"), ("sqlite", "raise")],
    indirect=["database_url"],
)  # fmt: skip


@pytest.fixture
def house(build: Build, tmp_path: Path) -> House:
    """Give a house whose channel writes to a ledger; its time is the machine's."""
    return ledger_house(build, tmp_path)


def ledger_house(build: Build, folder: Path, **settings: Any) -> House:
    channel = {
        "transport": "tests.support.ledger:Ledger",
        "options": {"path": str(folder / "ledger")},
        "max_attempts": 10,
    }
    return build(clock=SystemClock(), channels={CHANNEL: channel}, **ROOMY | settings)


def wish(recipient: str, **more: Any) -> dict[str, Any]:
    asked = {"channel": CHANNEL, "recipient": recipient, "body": BODY, "idempotency_key": recipient}
    return asked | {"send_in": timedelta(0)} | more


def submits(dispatcher: Dispatcher, **more: Any) -> None:
    dispatcher.submit(**wish("ada", **more))


def joins(dispatcher: Dispatcher) -> None:
    engine = callers_engine(dispatcher._app.database)
    with engine as own, Session(own) as session, session.begin():
        dispatcher.submit(**wish("ada"), session=session)


def submits_many(dispatcher: Dispatcher) -> None:
    dispatcher.submit_many([Draft(**wish(each)) for each in PEOPLE])


def submits_all(dispatcher: Dispatcher) -> None:
    dispatcher.submit_many([Draft(**wish(each)) for each in PEOPLE], atomic=True)


def submits_in_two_shards(dispatcher: Dispatcher) -> None:
    submits(dispatcher, scopes={"tenant": "acme"})


def cancels(dispatcher: Dispatcher, message: Message) -> None:
    dispatcher.cancel(message.id)


def cancels_many(dispatcher: Dispatcher, message: Message) -> None:
    dispatcher.cancel_many([message.id])


def opts_out(dispatcher: Dispatcher, recipient: str) -> None:
    dispatcher.suppress(recipient)


def reschedules(dispatcher: Dispatcher, message: Message) -> None:
    dispatcher.reschedule(message.id, send_in=timedelta(0))


WAYS: tuple[tuple[str, Callable[..., None], int, bool], ...] = (
    ("submit.after_reserve", submits, 0, False),
    ("submit.after_commit", submits, 1, False),
    ("submit.after_enqueue", submits, 1, True),
    ("submit.after_reserve", joins, 0, False),
    ("joined.after_add", joins, 0, False),
    ("joined.after_commit", joins, 1, False),
    ("submit.after_enqueue", joins, 1, True),
    ("submit.after_reserve", submits_many, 0, False),
    ("submit.after_commit", submits_many, 3, False),
    ("submit.after_enqueue", submits_many, 3, True),
)
"""The point, who dies there, how many messages are stored then, whether they are published."""


@each_how
@pytest.mark.parametrize("way", WAYS, ids=[f"{work.__name__} {point}" for point, work, *_ in WAYS])
def test_a_submit_that_dies_leaves_its_message_or_nothing_and_can_be_repeated(
    house: House, how: How, way: tuple[str, Callable[..., None], int, bool]
) -> None:
    point, work, stored, is_published = way
    die(point, work, house.settings, how=how)
    rows = house.rows()
    assert len(rows) == stored
    assert {each for ids in published(house) for each in ids} == (
        {row[0] for row in rows} if is_published else set()
    )
    people = PEOPLE if work is submits_many else PEOPLE[:1]
    if not stored and how == "kill":
        reconcile(house)
        assert windows_of(house) == {}, "a reservation without a message"
    before = {each.recipient: each for each in house.dispatcher.select()}
    messages = [house.dispatcher.submit(**wish(each)) for each in people]
    for each in messages:
        assert before.get(each.recipient, each) == each, "the same message, not another one"
    heal(house)
    judge(house, [each.id for each in messages])
    assert len(lines(house)) == 2 * len(people), "each begins once and ends once"


def test_a_submit_killed_before_it_reserves_leaves_no_trace(house: House) -> None:
    house.submit("warm", channel=CHANNEL)
    before = house.snapshot()
    die("submit.before_reserve", submits, house.settings)
    assert house.snapshot() == before


@each_how
def test_an_atomic_batch_that_dies_is_accepted_when_it_is_repeated_at_once(
    house: House, how: How
) -> None:
    """Not only once reconcile has released what the dead one reserved: each repeat renews that."""
    die("submit.after_reserve", submits_all, house.settings, how=how)
    results = house.dispatcher.submit_many([Draft(**wish(each)) for each in PEOPLE], atomic=True)
    accepted = [each for each in results if isinstance(each, Message)]
    assert [each.recipient for each in accepted] == [*PEOPLE]
    heal(house)
    judge(house, [each.id for each in accepted])


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_submit_killed_between_two_shards_leaves_no_place_in_either(
    build: Build, tmp_path: Path
) -> None:
    house = ledger_house(build, tmp_path, shards=64, scopes={"tenant": {"quotas": ["5/minute"]}})
    die("reserve.between_shards", submits_in_two_shards, house.settings)
    assert sum(map(len, windows_of(house).values())) == 1, "booked in the first shard"
    reconcile(house)
    assert windows_of(house) == {}
    submits_in_two_shards(house.dispatcher)
    heal(house)
    judge(house, [each.id for each in house.dispatcher.select()])


@each_how
@pytest.mark.parametrize("cancel", [cancels, cancels_many])
def test_a_cancel_that_dies_before_the_release_is_final_and_its_place_is_freed(
    house: House, how: How, cancel: Callable[[Dispatcher, Message], None]
) -> None:
    message = house.dispatcher.submit(**wish("ada", send_in=timedelta(minutes=5)))
    reconcile(house)  # what is confirmed is not pending any more: only the row tells
    die("cancel.after_rows", cancel, house.settings, message, how=how)
    assert house.again(message).status is Status.CANCELLED
    assert house.members() != {}
    heal(house)
    assert house.members() == {}
    judge(house, [message.id], cancelled=[message.id])
    assert house.dispatcher.cancel(message.id).status is Status.CANCELLED, "told again"


@each_how
def test_an_opting_out_that_dies_holds_and_cancels_what_is_due(house: House, how: How) -> None:
    message = house.dispatcher.submit(**wish("ada"))
    die("suppress.after_row", opts_out, house.settings, "ada", how=how)
    assert house.again(message).status is Status.SCHEDULED
    assert house.deliver(message) == 0
    assert house.again(message).status is Status.CANCELLED
    heal(house)
    assert house.members() == {}
    judge(house, [message.id], cancelled=[message.id])


@each_how
@pytest.mark.parametrize(
    ("point", "is_moved"),
    [
        ("reschedule.after_hold", False),
        ("reschedule.after_row", True),
        ("reschedule.after_release", True),
    ],
)
def test_a_reschedule_that_dies_leaves_one_place_where_the_row_says(
    house: House, how: How, point: str, is_moved: bool
) -> None:
    message = house.dispatcher.submit(**wish("ada", send_in=LATER))
    die(point, reschedules, house.settings, message, how=how)
    now = house.again(message)
    assert (now.send_at != message.send_at) == is_moved
    assert published(house) == []
    reschedules(house.dispatcher, message)
    reconcile(house)
    assert windows_of(house) == promised(house)
    heal(house)
    judge(house, [message.id])


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("point", ["submit.after_reserve", "submit.after_commit"])
def test_a_reservation_of_a_killed_submit_counts_until_it_is_found_to_be_an_orphan(
    build: Build, tmp_path: Path, point: str
) -> None:
    house = ledger_house(build, tmp_path, quotas=["1/minute"])
    at = house.clock.now() + LATER
    die(point, submits_at, house.settings, at)
    with pytest.raises(QuotaExceeded):
        submits_at(house.dispatcher, at, idempotency_key="another")
    reconcile(house)
    if house.rows():
        with pytest.raises(QuotaExceeded):
            submits_at(house.dispatcher, at, idempotency_key="another")
    else:
        submits_at(house.dispatcher, at, idempotency_key="another")
    assert len(house.rows()) == 1
    assert windows_of(house) == promised(house)


def submits_at(dispatcher: Dispatcher, at: datetime, **more: Any) -> None:
    dispatcher.submit(**wish("ada", send_in=None, send_at=at, **more))


@pytest.mark.long
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_command_that_is_armed_says_so_and_dies_and_a_wrong_spec_stops_it(house: House) -> None:
    asked = ["submit", "--channel", CHANNEL, "--recipient", "ada", "--text", "x", "--send-in", "1"]

    def run(spec: str) -> subprocess.CompletedProcess[str]:
        env = {**child_environment(house.settings), VARIABLE: spec}
        command = dispatcher_command(*asked)
        return subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=60, check=False
        )

    before = house.snapshot()
    wrong = run("submit.after_reserve=explode")
    assert wrong.returncode == 2
    assert wrong.stderr.startswith(f"error: {VARIABLE}: 'submit.after_reserve=explode'")
    assert house.snapshot() == before
    killed = run("submit.after_reserve=kill")
    assert killed.returncode == -signal.SIGKILL
    assert f"{VARIABLE} IS SET" in killed.stderr
    assert house.members() != {}
    reconcile(house)
    assert house.members() == {}

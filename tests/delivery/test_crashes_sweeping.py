"""A sweep dies at a named line: the next one does what is left, and nothing twice."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from dispatcher import Dispatcher, Message, ReservationsUnavailable, Status
from dispatcher.message import Outcome, new_id
from dispatcher.store import Due
from dispatcher.times.clock import SystemClock
from tests.support.all_windows import let_graces_pass, pending_entries, promised, windows_of
from tests.support.crashes import (
    CHANNEL,
    ROOMY,
    How,
    die,
    heal,
    judge,
    lines,
    outcomes,
    published,
    reconcile,
)
from tests.support.house import BODY, House
from tests.support.house_fixtures import Build

LATER = timedelta(hours=2)
PEOPLE = ("ada", "ben", "cyd", "dan")
each_how = pytest.mark.parametrize(
    ("database_url", "how"), [("postgresql", "kill"), ("sqlite", "raise")],
    indirect=["database_url"],
)  # fmt: skip


@pytest.fixture
def house(build: Build, tmp_path: Path) -> House:
    """Give a house whose channel writes to a ledger; its time is the machine's."""
    channel = {
        "transport": "tests.support.ledger:Ledger",
        "options": {"path": str(tmp_path / "ledger")},
        "max_attempts": 10,
    }
    return build(clock=SystemClock(), channels={CHANNEL: channel}, **ROOMY)


def submitted(house: House, send_in: timedelta = timedelta(0)) -> list[Message]:
    """Submit to everybody, and take away the tasks."""
    messages = [
        house.dispatcher.submit(channel=CHANNEL, recipient=each, body=BODY, send_in=send_in)
        for each in PEOPLE
    ]
    published(house)
    return messages


def sweeps(dispatcher: Dispatcher, duty: str) -> None:
    app = dispatcher._app
    getattr(app.reconciler if duty == "reconcile" else app.sweep, duty)()


def begins(house: House) -> int:
    return sum(line.event == "begin" for line in lines(house))


@each_how
def test_a_message_taken_but_not_published_is_taken_again_after_its_grace(
    house: House, how: How
) -> None:
    messages = submitted(house)
    house.change(messages, enqueue_at=house.database_time() - timedelta(seconds=1))
    die("enqueue_due.after_take", sweeps, house.settings, "enqueue_due", how=how)
    assert published(house) == []
    assert house.parts.sweep.enqueue_due() == 0, "they have their grace"
    heal(house)
    judge(house, [each.id for each in messages])
    assert begins(house) == len(PEOPLE)


@pytest.mark.parametrize(
    ("database_url", "how"),
    [("postgresql", "kill"), ("sqlite", "kill"), ("postgresql", "raise"), ("sqlite", "raise")],
    indirect=["database_url"],
)
def test_a_rescue_that_dies_in_its_transaction_changed_nothing(house: House, how: How) -> None:
    messages = submitted(house)
    house.parts.delivery.shared.claims.claim([each.id for each in messages])
    house.end_claims(*messages)
    before = house.rows(), house.attempt_rows()
    die("rescue.in_transaction", sweeps, house.settings, "rescue", how=how)
    assert (house.rows(), house.attempt_rows()) == before
    assert house.parts.sweep.rescue() == len(PEOPLE)
    heal(house)
    judge(house, [each.id for each in messages])
    expected = [Outcome.UNKNOWN, Outcome.SENT]
    assert outcomes(house) == {each.id: expected for each in messages}
    assert begins(house) == len(PEOPLE)


@each_how
@pytest.mark.parametrize("point", ["reconcile.after_look_up", "reconcile.after_giving_up"])
def test_a_reconcile_that_dies_after_it_looked_loses_no_reservation_and_keeps_no_orphan(
    house: House, how: How, point: str
) -> None:
    messages = submitted(house, LATER)
    die("submit.after_reserve", submits_more, house.settings)
    let_graces_pass(house)
    before = windows_of(house)
    die(point, sweeps, house.settings, "reconcile", how=how)
    assert windows_of(house) == before
    reconcile(house)
    assert windows_of(house) == promised(house)
    assert pending_entries(house) == []
    assert {each.status for each in map(house.again, messages)} == {Status.SCHEDULED}


def moves(dispatcher: Dispatcher, message: Message) -> None:
    dispatcher.reschedule(message.id, send_in=2 * LATER)


@each_how
def test_a_reconcile_that_dies_after_it_barred_a_move_keeps_the_old_time(
    house: House, how: How
) -> None:
    messages = submitted(house, LATER)
    die("reschedule.after_hold", moves, house.settings, messages[0])
    let_graces_pass(house)
    die("reconcile.after_barring", sweeps, house.settings, "reconcile", how=how)
    reconcile(house)
    assert house.again(messages[0]).send_at == messages[0].send_at
    assert windows_of(house) == promised(house)
    assert pending_entries(house) == []


def submits_more(dispatcher: Dispatcher) -> None:
    dispatcher.submit(channel=CHANNEL, recipient="eve", body=BODY, send_in=LATER)


def cancels(dispatcher: Dispatcher, message: Message) -> None:
    dispatcher.cancel(message.id)


@each_how
@pytest.mark.parametrize(
    ("point", "is_free"), [("reconcile.before_release", False), ("reconcile.after_release", True)]
)
def test_a_reconcile_that_dies_while_it_releases_a_reservation_releases_that_one_and_no_other(
    house: House, how: How, point: str, is_free: bool
) -> None:
    messages = submitted(house, LATER)
    die("cancel.after_rows", cancels, house.settings, messages[0], how="raise")
    die(point, sweeps, house.settings, "reconcile", how=how)
    assert (house.members("ada") == {}) == is_free
    again = submitted(house, LATER)
    reconcile(house)
    assert windows_of(house) == promised(house)
    assert set(house.members("ada")) == {again[0].id}
    assert house.columns(messages[0], "reserved") == (False,)


@each_how
@pytest.mark.parametrize("point", ["rebuild.after_wipe", "rebuild.after_restore"])
def test_while_a_rebuild_that_died_is_not_taken_over_submits_are_refused(
    house: House, how: How, point: str
) -> None:
    messages = submitted(house)
    house.redis.flushdb()
    die(point, sweeps, house.settings, "reconcile", how=how)
    assert house.parts.reconciler.reconcile().rebuilt == 0, "its marker still stands"
    with pytest.raises(ReservationsUnavailable):
        submits_more(house.dispatcher)
    house.deliver(*messages)
    assert begins(house) == 0
    reconcile(house)
    let_waits_pass(house, messages)
    heal(house)
    judge(house, [each.id for each in messages])


@each_how
def test_a_rebuild_that_dies_before_the_permits_takes_submits_and_sends_nothing(
    house: House, how: How
) -> None:
    first = submitted(house)
    house.deliver(*first)
    house.redis.flushdb()
    die("rebuild.after_windows", sweeps, house.settings, "reconcile", how=how)
    second = submitted(house)
    house.deliver(*second)
    assert begins(house) == len(first), "no permit is given by an empty log"
    reconcile(house)
    let_waits_pass(house, second)
    heal(house)
    judge(house, [each.id for each in (*first, *second)])


def let_waits_pass(house: House, messages: list[Message]) -> None:
    house.change(messages, next_attempt_at=house.database_time())


@each_how
def test_a_prune_that_dies_deleted_whole_messages_and_what_is_young_stays(
    house: House, how: How
) -> None:
    old = submitted(house)
    heal(house)
    long_ago = house.database_time() - house.settings.retention * 2
    house.change(old, finished_at=long_ago, send_at=long_ago)
    young = submitted(house)
    die("prune.after_batch", sweeps, house.settings, "prune", how=how)
    assert {each.id for each in house.dispatcher.select()} == {each.id for each in young}
    assert house.attempt_rows() == []
    assert house.parts.sweep.prune() == 0


@pytest.mark.parametrize("database_url", ["postgresql", "sqlite"], indirect=True)
def test_rescued_messages_are_enqueued_alone_and_new_ones_in_groups(
    house: House,
) -> None:
    rescued, fresh = submitted(house), submitted(house)
    house.parts.delivery.shared.claims.claim([each.id for each in rescued])
    house.end_claims(*rescued)
    house.parts.sweep.rescue()
    house.change(fresh, enqueue_at=house.database_time() - timedelta(seconds=1))
    house.parts.sweep.enqueue_due()
    tasks = published(house)
    assert {len(ids) for ids in tasks if {*ids} & {each.id for each in rescued}} == {1}
    assert len(tasks) < len(rescued) + len(fresh)
    heal(house)
    judge(house, [each.id for each in (*rescued, *fresh)])


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("many", [1, 7, 1_000])
def test_rescued_messages_are_spread_over_a_second(house: House, many: int) -> None:
    now = house.clock.now()
    due = [Due(new_id(), CHANNEL, now, is_suspect=True, is_first=False) for _ in range(many)]
    calm = Due(new_id(), CHANNEL, now, is_suspect=False, is_first=True)
    tickets = house.parts.sweep._tickets([*due, calm])
    assert {each.message_id for each in tickets if each.alone} == {each.message_id for each in due}
    assert [each.due_at for each in tickets if not each.alone] == [now]
    times = sorted(each.due_at for each in tickets if each.alone)
    apart = [later - sooner for sooner, later in pairwise(times)]
    assert all(timedelta(0) < each <= timedelta(milliseconds=20) for each in apart)
    assert times[-1] - now < timedelta(seconds=2)

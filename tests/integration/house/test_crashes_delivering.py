"""A worker dies, freezes or is stopped at a named line of a delivery: nothing is lost or doubled.

Doubled may be what was handed over and not recorded: its outcome is unknown.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dispatcher import Dispatcher, Message, Status
from dispatcher.clock import SystemClock
from dispatcher.message import Outcome
from tests.integration.house.conftest import Build
from tests.support.crashes import (
    CHANNEL,
    ROOMY,
    How,
    die,
    heal,
    in_a_process,
    judge,
    lines,
    outcomes,
    published,
)
from tests.support.dying import stop_at_first_hand_over
from tests.support.house import BODY, House
from tests.support.waiting import wait_until

SENT, UNKNOWN = Outcome.SENT, Outcome.UNKNOWN
PEOPLE = ("ada", "ben", "cyd", "dan")
on_postgresql = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
each_how = pytest.mark.parametrize(
    ("database_url", "how"), [("postgresql", "kill"), ("sqlite", "raise")],
    indirect=["database_url"],
)  # fmt: skip


@pytest.fixture
def make(build: Build, tmp_path: Path) -> Callable[..., House]:
    """Give a maker of houses whose channel writes to a ledger; their time is the machine's."""

    def made(transport: str = "tests.support.ledger:Ledger", **settings: Any) -> House:
        channel = {
            "transport": transport,
            "options": {"path": str(tmp_path / "ledger")},
            "max_attempts": settings.pop("max_attempts", 10),
        }
        return build(clock=SystemClock(), channels={CHANNEL: channel}, **ROOMY | settings)

    return made


def due(house: House, *people: str, **body: Any) -> list[Message]:
    """Submit for now, and take away the tasks: the test says who delivers."""
    messages = [house.submit(each, channel=CHANNEL, body=BODY | body) for each in people]
    published(house)
    return messages


def delivers(dispatcher: Dispatcher, messages: list[Message]) -> None:
    dispatcher._parts.delivery.deliver([each.id for each in messages])


def is_stopped_half_way(dispatcher: Dispatcher, messages: list[Message]) -> None:
    stop_at_first_hand_over(dispatcher, CHANNEL)
    delivers(dispatcher, messages)


def begun(house: House) -> list[str]:
    """Return the scopes whose hand-over began, in order, each as often as it did."""
    return [line.scope for line in lines(house) if line.event == "begin"]


KILLED: dict[str, tuple[int, int]] = {
    "deliver.after_claim": (0, 4),
    "deliver.after_permits": (0, 4),
    "deliver.before_hand_over": (0, 4),
    "deliver.before_hand_over@3": (2, 4),
    "deliver.after_hand_over@2": (2, 4),
    "deliver.after_record": (4, 0),
}
"""By point: how many of four are handed over by then, and of how many the outcome is unknown."""


@on_postgresql
@pytest.mark.parametrize("point", KILLED)
def test_what_a_killed_worker_held_is_sent_and_twice_only_if_the_outcome_is_unknown(
    make: Callable[..., House], point: str
) -> None:
    handed_over, unknown = KILLED[point]
    house = make()
    messages = due(house, *PEOPLE)
    die(point, delivers, house.settings, messages)
    assert begun(house) == list(PEOPLE[:handed_over])
    heal(house)
    judge(house, [each.id for each in messages])
    # What was rescued comes in any order.
    assert sorted(begun(house)[handed_over:]) == list(PEOPLE if unknown else ())
    found = [each for tries in outcomes(house).values() for each in tries]
    assert (found.count(UNKNOWN), found.count(SENT)) == (unknown, len(PEOPLE))


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("point", KILLED)
def test_an_error_nobody_expects_costs_at_most_the_outcome_of_one_message(
    make: Callable[..., House], point: str
) -> None:
    house = make()
    messages = due(house, *PEOPLE)
    die(point, delivers, house.settings, messages, how="raise")
    heal(house)
    judge(house, [each.id for each in messages])
    found = [each for tries in outcomes(house).values() for each in tries]
    if point.startswith(("deliver.before", "deliver.after_hand")):
        assert found.count(UNKNOWN) == 1, "the others were put back, or recorded"
    assert found.count(SENT) == len(PEOPLE)


@each_how
def test_what_dies_between_row_and_permit_of_a_put_back_sends_once_and_counts_too_much_at_most(
    make: Callable[..., House], how: How
) -> None:
    house = make()
    messages = due(house, *PEOPLE, seconds=0.3)
    die("put_back.after_row", is_stopped_half_way, house.settings, messages, how=how)
    put_back = [each for each in messages if house.again(each).status is Status.SCHEDULED]
    assert put_back
    assert begun(house) == [each.scope for each in messages if each not in put_back]
    heal(house)
    judge(house, [each.id for each in messages], extra_permits=len(put_back))


@on_postgresql
@pytest.mark.parametrize("point", ["renew.after_permits", "renew.after_claims"])
def test_a_worker_killed_while_it_renews_a_claim_leaves_one_message_of_unknown_outcome(
    make: Callable[..., House], point: str
) -> None:
    house = make(claim_ttl=2.1, transport_timeout=0.1)
    messages = due(house, "ada", seconds=1.5)
    die(point, delivers, house.settings, messages)
    assert begun(house) == ["ada"]
    heal(house)
    judge(house, [each.id for each in messages])
    assert outcomes(house) == {messages[0].id: [UNKNOWN, SENT]}


@on_postgresql
@pytest.mark.parametrize("point", ["after_permits", "before_hand_over", "after_hand_over"])
def test_what_a_killed_worker_may_have_sent_counts_against_the_limit_of_its_next_try(
    make: Callable[..., House], point: str
) -> None:
    house = make(quotas=["1/minute"])
    [message] = due(house, "ada")
    die(f"deliver.{point}", delivers, house.settings, [message])
    house.end_claims(message)
    assert house.parts.sweep.rescue() == 1
    before = begun(house)
    assert house.deliver(message) == 0
    assert begun(house) == before
    wait = house.again(message).next_attempt_at - house.database_time()
    assert wait > timedelta(seconds=30), "the minute is counted from the latest it can have been"


@contextmanager
def frozen_at(point: str, house: House, messages: list[Message]) -> Iterator[Any]:
    """Give a worker in a process of its own that froze at a point; end it in any case."""
    process = in_a_process(f"{point}=stop", delivers, house.settings, messages)
    stat = Path(f"/proc/{process.pid}/stat")
    try:
        wait_until(lambda: stat.read_text().rsplit(") ", 1)[1].startswith("T"), 20)
        yield process
    finally:
        process.kill()
        process.join(20)


@on_postgresql
@pytest.mark.parametrize("is_rescued", [False, True])
def test_a_worker_frozen_past_its_claim_does_not_send_when_it_goes_on(
    make: Callable[..., House], is_rescued: bool
) -> None:
    house = make(claim_ttl=2.1, transport_timeout=0.1)
    messages = due(house, *PEOPLE)
    with frozen_at("deliver.before_hand_over", house, messages) as worker:
        ended = house.database_time() + timedelta(seconds=2.1)
        wait_until(lambda: house.database_time() > ended, every=0.05)
        if is_rescued:
            heal(house)
            assert sorted(begun(house)) == list(PEOPLE)
        os.kill(worker.pid, signal.SIGCONT)
        worker.join(20)
        assert worker.exitcode == 0
    assert len(begun(house)) == (len(PEOPLE) if is_rescued else 0), "it sent nothing"
    heal(house)
    judge(house, [each.id for each in messages])
    assert sorted(begun(house)) == list(PEOPLE)


@on_postgresql
@pytest.mark.parametrize("first", ["poison", "neighbours"])
def test_a_poison_message_fails_after_its_tries_and_its_neighbours_are_sent(
    make: Callable[..., House], first: str
) -> None:
    house = make("tests.support.dying:Poisoned", max_attempts=3)
    [poison] = due(house, "poison", poison=True)
    neighbours = due(house, *PEOPLE)
    tasks = [[poison, *neighbours]] if first == "poison" else [[*neighbours, poison]]
    killed = 0
    while tasks:
        for group in tasks:
            worker = in_a_process("", delivers, house.settings, group)
            worker.join(20)
            killed += worker.exitcode == -signal.SIGKILL
        house.end_claims(*(m for m in [poison, *neighbours]
                           if house.again(m).status is Status.SENDING))  # fmt: skip
        house.parts.sweep.rescue()
        house.parts.sweep.enqueue_due()
        tasks = [[house.dispatcher.get(each) for each in ids] for ids in published(house)]
    assert killed == 3, "as often as it may be tried"
    assert house.again(poison).status is Status.FAILED
    assert [house.again(each).status for each in neighbours] == [Status.SENT] * len(neighbours)
    for message in neighbours:
        assert outcomes(house)[message.id].count(SENT) == 1

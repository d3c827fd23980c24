"""A worker dies, freezes or is stopped at a named line of a delivery: nothing is lost or doubled.

Doubled may be what was sent and not recorded: its outcome is unknown.
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
from dispatcher.message import OnUnknown, Outcome
from dispatcher.times.clock import SystemClock
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
from tests.support.dying import stop_at_first_send
from tests.support.house import BODY, House
from tests.support.house_fixtures import Build
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
        given = ROOMY | {"data_dir": tmp_path / "data"} | settings
        return build(clock=SystemClock(), channels={CHANNEL: channel}, **given)

    return made


def due(
    house: House, *people: str, on_unknown: OnUnknown | None = None, **body: Any
) -> list[Message]:
    """Submit for now, and take away the tasks: the test says who delivers."""
    messages = [
        house.submit(each, channel=CHANNEL, body=BODY | body, on_unknown=on_unknown)
        for each in people
    ]
    published(house)
    return messages


def delivers(dispatcher: Dispatcher, messages: list[Message]) -> None:
    dispatcher._app.delivery.deliver([each.id for each in messages])


def rescues(dispatcher: Dispatcher) -> None:
    dispatcher._app.sweep.rescue()


def is_stopped_half_way(dispatcher: Dispatcher, messages: list[Message]) -> None:
    stop_at_first_send(dispatcher, CHANNEL)
    delivers(dispatcher, messages)


def begun(house: House) -> list[str]:
    """Return the scopes whose send began, in order, each as often as it did."""
    return [line.scope for line in lines(house) if line.event == "begin"]


KILLED: dict[str, tuple[int, int]] = {
    "deliver.after_claim": (0, 0),
    "deliver.after_permits": (0, 0),
    "deliver.before_send": (0, 0),
    "deliver.before_send@3": (2, 2),
    "deliver.after_begin@3": (2, 3),
    "deliver.after_send@2": (2, 2),
    "deliver.after_record": (4, 4),
}
"""By point: how many of four are with the transport by then, and of how many the send had begun.

Of those that are not recorded the outcome is unknown. The others go back and count no attempt.
"""


@on_postgresql
@pytest.mark.parametrize("point", KILLED)
def test_messages_of_a_killed_worker_are_sent_and_twice_only_if_the_outcome_is_unknown(
    make: Callable[..., House], point: str
) -> None:
    attempted, started = KILLED[point]
    house = make()
    messages = due(house, *PEOPLE)
    die(point, delivers, house.settings, messages)
    recorded = [each.scope for each in messages if house.again(each).status is Status.SENT]
    perhaps_noted = 0
    if point == "deliver.after_record":
        # A slow worker records some before it has sent all, and may just have noted another send.
        assert recorded
        attempted = started = len(begun(house))
        perhaps_noted = len(PEOPLE) - started
    assert begun(house) == list(PEOPLE[:attempted])
    heal(house)
    judge(house, [each.id for each in messages])
    # What was rescued comes in any order.
    assert sorted(begun(house)[attempted:] + recorded) == list(PEOPLE)
    found = [each for tries in outcomes(house).values() for each in tries]
    assert 0 <= found.count(UNKNOWN) - (started - len(recorded)) <= min(1, perhaps_noted)
    assert found.count(SENT) == len(PEOPLE)


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
    begins = point.startswith(("deliver.after_begin", "deliver.after_send"))
    assert found.count(UNKNOWN) == begins, "the others were put back, or recorded"
    assert found.count(SENT) == len(PEOPLE)


@each_how
def test_a_put_back_killed_between_row_and_permit_sends_once_and_never_counts_too_little(
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


@contextmanager
def frozen_at(point: str, house: House, messages: list[Message]) -> Iterator[Any]:
    """Give a worker in a process of its own that froze at a point; end it in any case."""
    process = in_a_process(f"{point}=stop", delivers, house.settings, messages)
    stat = Path(f"/proc/{process.pid}/stat")
    try:
        wait_until(lambda: stat.read_text().rsplit(") ", 1)[1].startswith("T"))
        yield process
    finally:
        process.kill()
        process.join(60)


@on_postgresql
@pytest.mark.parametrize("is_rescued", [False, True])
def test_a_worker_frozen_past_its_claim_does_not_send_when_it_goes_on(
    make: Callable[..., House], is_rescued: bool
) -> None:
    house = make(claim_ttl=2.1, transport_timeout=0.1)
    messages = due(house, *PEOPLE)
    with frozen_at("deliver.before_send", house, messages) as worker:
        ended = house.database_time() + timedelta(seconds=2.1)
        wait_until(lambda: house.database_time() > ended, every=0.05)
        if is_rescued:
            heal(house)
            assert sorted(begun(house)) == list(PEOPLE)
        os.kill(worker.pid, signal.SIGCONT)
        worker.join(60)
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
            worker.join(60)
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


@on_postgresql
@pytest.mark.parametrize("point", ["after_claim", "after_permits", "before_send"])
def test_a_message_that_a_killed_worker_did_not_begin_is_due_at_once_and_its_permit_is_free(
    make: Callable[..., House], point: str
) -> None:
    """Long before its claim ends, also where its outcome would have to be held."""
    house = make(quotas=["1/minute"])
    [message] = due(house, "ada", on_unknown="hold")
    die(f"deliver.{point}", delivers, house.settings, [message])
    assert house.again(message).status is Status.SENDING
    assert house.parts.sweep.rescue() == 1
    now = house.again(message)
    assert (now.status, now.attempt_count) == (Status.SCHEDULED, 0)
    assert now.next_attempt_at == message.next_attempt_at, "it is due as it was"
    assert (house.dispatcher.attempts(message.id), house.permits()) == ([], {})
    assert house.parts.sweep.enqueue_due() == 1
    assert house.deliver(message) == 1
    assert house.parts.sweep.rescue() == 0


@on_postgresql
def test_no_claim_ends_as_unknown_before_the_logs_that_are_left_have_been_read(
    make: Callable[..., House], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """After a long outage there are more of them than one turn reads, and all claims ran out."""
    monkeypatch.setattr("dispatcher.delivery.sweep._LOGS_AT_ONCE", 2)
    house = make()
    messages = due(house, *PEOPLE[:3])
    for each in messages:
        die("deliver.before_send", delivers, house.settings, [each])
    house.end_claims(*messages)
    assert [house.parts.sweep.rescue() for _ in range(3)] == [2, 1, 0]
    assert {house.again(each).status for each in messages} == {Status.SCHEDULED}
    assert outcomes(house) == {each.id: [] for each in messages}
    assert "their worker had not begun to send them, and died or could not" in caplog.text


@each_how
def test_a_rescue_that_dies_before_it_puts_back_is_done_again(
    make: Callable[..., House], how: How
) -> None:
    house = make()
    messages = due(house, *PEOPLE)
    die("deliver.before_send@3", delivers, house.settings, messages)
    die("rescue.before_put_back", rescues, house.settings, how=how)
    heal(house)
    judge(house, [each.id for each in messages])
    found = [each for tries in outcomes(house).values() for each in tries]
    assert found.count(UNKNOWN) <= 2, "the two whose send had begun"


@on_postgresql
def test_without_the_log_of_its_sends_all_that_a_killed_worker_held_is_of_unknown_outcome(
    make: Callable[..., House],
) -> None:
    """The machine was started again, or is another one: what is not noted may have begun."""
    house = make()
    messages = due(house, *PEOPLE)
    die("deliver.before_send", delivers, house.settings, messages)
    [lock] = house.settings.data_dir.glob("sends.*/*/lock")
    lock.write_text("the id of another boot\n")
    assert house.parts.sweep.rescue() == 0
    heal(house)
    judge(house, [each.id for each in messages])
    found = [each for tries in outcomes(house).values() for each in tries]
    assert found.count(UNKNOWN) == len(PEOPLE)


@on_postgresql
def test_a_message_that_kills_its_worker_before_the_send_fails_after_its_attempts(
    make: Callable[..., House],
) -> None:
    """Put back for ever it would kill every worker there is."""
    house = make(max_attempts=3)
    [poison] = due(house, "poison", on_unknown="hold")
    killed = 0
    while house.again(poison).status is Status.SCHEDULED:
        house.change([poison], next_attempt_at=poison.send_at)
        die("deliver.before_send", delivers, house.settings, [poison])
        killed += 1
        assert house.parts.sweep.rescue() == 1
    assert killed == 1 + 3, "the first time it is not what it died of"
    assert house.again(poison).status is Status.FAILED
    assert outcomes(house)[poison.id] == [Outcome.TEMPORARY] * 3
    assert house.permits("poison") == {}

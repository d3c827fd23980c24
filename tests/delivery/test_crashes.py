"""A process dies, freezes or is stopped at a named line: nothing is lost or doubled.

Doubled may be what was sent and not recorded: its outcome is unknown.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from dispatcher import Dispatcher, Message, ReservationsUnavailable, Status
from dispatcher.message import OnUnknown, Outcome, new_id
from dispatcher.store.maintenance import Due
from dispatcher.times.clock import SystemClock
from tests.support.crashes import (
    CHANNEL,
    ROOMY,
    How,
    die,
    each_how,
    heal,
    in_a_process,
    judge,
    lines,
    outcomes,
    published,
    reconcile,
)
from tests.support.examples import a_third_of
from tests.support.house import BODY, House, let_graces_pass, promised, windows_of
from tests.support.house_fixtures import Build, on_postgresql
from tests.support.ledger import stop_at_first_send
from tests.support.waiting import wait_until

SENT, UNKNOWN = Outcome.SENT, Outcome.UNKNOWN
PEOPLE = ("ada", "ben", "cyd", "dan")
LATER = timedelta(hours=2)
SECOND = timedelta(seconds=1)
Make = Callable[..., House]


@pytest.fixture
def make(build: Build, tmp_path: Path) -> Make:
    """Give a maker of houses whose channel writes to a ledger; their time is the machine's."""

    def made(**settings: Any) -> House:
        channel = {
            "transport": "tests.support.ledger:Ledger",
            "options": {"path": str(tmp_path / "ledger")},
            "max_attempts": settings.pop("max_attempts", 10),
        }
        values = ROOMY | {"data_dir": tmp_path / "data"} | settings
        return build(clock=SystemClock(), channels={CHANNEL: channel}, **values)

    return made


def due(
    house: House,
    *people: str,
    on_unknown: OnUnknown | None = None,
    scopes: dict[str, str] | None = None,
    **body: Any,
) -> list[Message]:
    """Submit for now, and take away the tasks: the test says who delivers."""
    messages = [
        house.submit(
            person, channel=CHANNEL, body=BODY | body, on_unknown=on_unknown, scopes=scopes
        )
        for person in people or PEOPLE
    ]
    published(house)
    return messages


def delivers(dispatcher: Dispatcher, messages: list[Message]) -> None:
    dispatcher._app.delivery.deliver([message.id for message in messages])


def is_stopped_half_way(dispatcher: Dispatcher, messages: list[Message]) -> None:
    stop_at_first_send(dispatcher, CHANNEL)
    delivers(dispatcher, messages)


def sweeps(dispatcher: Dispatcher, duty: str) -> None:
    app = dispatcher._app
    getattr(app.reconciler if duty == "reconcile" else app.sweep, duty)()


def submits_more(dispatcher: Dispatcher) -> None:
    dispatcher.submit(channel=CHANNEL, recipient="eve", body=BODY, send_in=LATER)


def moves(dispatcher: Dispatcher, message: Message) -> None:
    dispatcher.reschedule(message.id, send_in=LATER)


def cancels(dispatcher: Dispatcher, message: Message) -> None:
    dispatcher.cancel(message.id)


def begun(house: House) -> list[str]:
    """Return the scopes whose send began, in order, each as often as it did."""
    return [line["scope"] for line in lines(house) if line["kind"] == "begin"]


def unknown(house: House) -> int:
    return sum(tries.count(UNKNOWN) for tries in outcomes(house).values())


def ids(messages: Sequence[Message]) -> list[Any]:
    return [message.id for message in messages]


Story = Generator[tuple[Any, ...], None, dict[str, Any]]
"""Prepares a house, yields the work that is to die, and checks what it left.

Returns what :func:`judge` is told.
"""


def put_back(house: House) -> Story:
    messages = due(house, seconds=0.3)
    yield is_stopped_half_way, messages
    back = [message for message in messages if house.again(message).status is Status.SCHEDULED]
    assert back
    assert begun(house) == [message.scope for message in messages if message not in back]
    return {"accepted": ids(messages), "extra_permits": len(back)}


def taken_and_not_published(house: House) -> Story:
    messages = due(house)
    house.change(messages, enqueue_at=house.database_time() - SECOND)
    yield sweeps, "enqueue_due"
    assert published(house) == []
    assert house.parts.sweep.enqueue_due() == 0, "they have their grace"
    return {"accepted": ids(messages)}


def rescue(house: House) -> Story:
    messages = due(house)
    house.parts.delivery.claims.claim(ids(messages))
    house.end_claims(*messages)
    before = house.rows(), house.attempt_rows()
    yield sweeps, "rescue"
    assert (house.rows(), house.attempt_rows()) == before
    assert house.parts.sweep.rescue() == unknown(house) == len(PEOPLE)
    return {"accepted": ids(messages)}


def rescue_by_a_log(house: House) -> Story:
    messages = due(house)
    die("deliver.before_send@3", delivers, house.settings, messages)
    yield sweeps, "rescue"
    house.parts.sweep.rescue()
    assert unknown(house) == 0
    house.end_claims(
        *(message for message in messages if house.again(message).status is Status.SENDING)
    )
    house.parts.sweep.rescue()
    assert unknown(house) <= 2, "the two whose send had begun"
    return {"accepted": ids(messages)}


def an_orphan(house: House) -> Story:
    messages = due(house)
    die("submit.after_reserve", submits_more, house.settings)
    let_graces_pass(house)
    before = windows_of(house)
    yield sweeps, "reconcile"
    assert windows_of(house) == before
    return {"accepted": ids(messages)}


def a_move(house: House) -> Story:
    messages = due(house)
    die("reschedule.after_booking", moves, house.settings, messages[0])
    let_graces_pass(house)
    yield sweeps, "reconcile"
    reconcile(house)
    assert house.again(messages[0]).send_at == messages[0].send_at
    assert windows_of(house) == promised(house)
    return {"accepted": ids(messages)}


def a_release(house: House) -> Story:
    messages = due(house)
    die("cancel.after_rows", cancels, house.settings, messages[0], how="raise")
    yield sweeps, "reconcile"
    again = due(house)
    reconcile(house)
    assert set(house.members("ada")) == {again[0].id}
    assert house.columns(messages[0], "reserved") == (False,)
    return {"accepted": ids([*messages, *again]), "cancelled": [messages[0].id]}


def a_rebuild(house: House) -> Story:
    messages = due(house)
    house.redis.flushdb()
    yield sweeps, "reconcile"
    assert house.parts.reconciler.reconcile().rebuilt == 0, "its marker still stands"
    with pytest.raises(ReservationsUnavailable):
        submits_more(house.dispatcher)
    house.deliver(*messages)
    assert begun(house) == []
    reconcile(house)
    house.make_due(*messages)
    return {"accepted": ids(messages)}


def a_rebuild_before_the_permits(house: House) -> Story:
    first = due(house)
    house.deliver(*first)
    house.redis.flushdb()
    yield sweeps, "reconcile"
    second = due(house)
    house.deliver(*second)
    assert len(begun(house)) == len(first), "no permit is given by an empty log"
    reconcile(house)
    house.make_due(*second)
    return {"accepted": ids([*first, *second])}


def a_prune(house: House) -> Story:
    old = due(house)
    heal(house)
    long_ago = house.database_time() - house.settings.retention * 2
    house.change(old, finished_at=long_ago, send_at=long_ago)
    Path(house.settings.channels[CHANNEL].options["path"]).write_text("")
    young = due(house)
    yield sweeps, "prune"
    assert {message.id for message in house.dispatcher.select()} == {*ids(young)}
    assert house.attempt_rows() == []
    assert house.parts.sweep.prune() == 0
    house.redis.flushdb()  # the permits of what is gone
    reconcile(house)
    return {"accepted": ids(young)}


STORIES: list[tuple[str, Callable[[House], Story]]] = [
    ("put_back.after_row", put_back),
    ("enqueue_due.after_take", taken_and_not_published),
    ("rescue.in_transaction", rescue),
    ("rescue.before_put_back", rescue_by_a_log),
    ("reconcile.after_look_up", an_orphan),
    ("reconcile.after_giving_up", an_orphan),
    ("reconcile.after_barring", a_move),
    ("reconcile.before_release", a_release),
    ("reconcile.after_release", a_release),
    ("rebuild.after_wipe", a_rebuild),
    ("rebuild.after_restore", a_rebuild),
    ("rebuild.after_windows", a_rebuild_before_the_permits),
    ("prune.after_batch", a_prune),
]


@each_how
@pytest.mark.parametrize(("point", "story"), STORIES, ids=[point for point, _ in STORIES])
def test_what_a_death_leaves_is_healed_and_no_promise_is_broken(
    make: Make, point: str, story: Callable[[House], Story], how: How
) -> None:
    house = make()
    told = story(house)
    work, *arguments = next(told)
    die(point, work, house.settings, *arguments, how=how)
    with pytest.raises(StopIteration) as end:
        next(told)
    heal(house)
    judge(house, **end.value.value)


DELIVERING = {
    "deliver.after_claim": 0,
    "deliver.before_send@3": 2,
    "deliver.after_begin@3": 3,
    "deliver.after_send@2": 2,
    "deliver.after_record": 4,
}
"""By point: of how many of four messages the send had begun by then."""


@each_how
@pytest.mark.parametrize("point", DELIVERING)
def test_only_what_a_worker_had_begun_and_not_recorded_is_of_unknown_outcome(
    make: Make, point: str, how: How
) -> None:
    """An error that nobody expects costs at most the outcome of one message."""
    house = make()
    messages = due(house)
    die(point, delivers, house.settings, messages, how=how)
    recorded = sum(house.again(message).status is Status.SENT for message in messages)
    heal(house)
    judge(house, ids(messages))
    count = unknown(house)
    if how == "raise":
        assert count == point.startswith(("deliver.after_begin", "deliver.after_send"))
    elif point == "deliver.after_record":
        # A slow worker records some before it has sent all, and may just have noted another send.
        assert recorded
        assert count <= len(PEOPLE) - recorded
    else:
        assert count == DELIVERING[point] - recorded
    assert sum(tries.count(SENT) for tries in outcomes(house).values()) == len(PEOPLE)


@on_postgresql
@pytest.mark.parametrize("point", a_third_of(["renew.after_permits", "renew.after_claims"]))
def test_a_worker_killed_while_it_renews_a_claim_leaves_one_message_of_unknown_outcome(
    make: Make, point: str
) -> None:
    house = make(claim_ttl=2.1, transport_timeout=0.1)
    messages = due(house, "ada", seconds=1.5)
    die(point, delivers, house.settings, messages)
    assert begun(house) == ["ada"]
    heal(house)
    judge(house, ids(messages))
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
@pytest.mark.parametrize("is_rescued", a_third_of([True, False]))
def test_a_worker_frozen_past_its_claim_does_not_send_when_it_goes_on(
    make: Make, is_rescued: bool
) -> None:
    house = make(claim_ttl=2.1, transport_timeout=0.1)
    messages = due(house)
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
    judge(house, ids(messages))
    assert sorted(begun(house)) == list(PEOPLE)


@on_postgresql
def test_a_poison_message_fails_after_its_tries_and_its_neighbours_are_sent(make: Make) -> None:
    house = make(max_attempts=3)
    [poison] = due(house, "poison", poison=True)
    neighbours = due(house)
    tasks = [[*neighbours[:2], poison, *neighbours[2:]]]
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
        tasks = [[house.dispatcher.get(id_) for id_ in task] for task in published(house)]
    assert killed == 3, "as often as it may be tried"
    assert house.again(poison).status is Status.FAILED
    assert {house.again(message).status for message in neighbours} == {Status.SENT}
    assert {outcomes(house)[message.id].count(SENT) for message in neighbours} == {1}


@on_postgresql
@pytest.mark.parametrize("point", a_third_of(["deliver.after_permits", "deliver.before_send"]))
def test_a_message_that_a_killed_worker_did_not_begin_is_due_at_once_and_its_permit_is_free(
    make: Make, point: str
) -> None:
    """Long before its claim ends, also where its outcome would have to be held."""
    house = make(quotas=["1/minute"], scopes={"tenant": {"quotas": "9/hour"}})
    house.dispatcher.set_limits("tenant", "acme", "1/hour")
    [message] = due(house, "ada", on_unknown="hold", scopes={"tenant": "acme"})
    die(point, delivers, house.settings, [message])
    assert house.again(message).status is Status.SENDING
    assert len(house.redis.keys("*:permits:*:of:tenant:acme")) == 1
    assert house.parts.sweep.rescue() == 1
    assert house.redis.keys("*:permits:*:of:tenant:acme") == []
    now = house.again(message)
    assert (now.status, now.attempt_count) == (Status.SCHEDULED, 0)
    assert now.next_attempt_at == message.next_attempt_at, "it is due as it was"
    assert (house.dispatcher.attempts(message.id), house.permits()) == ([], {})
    assert house.parts.sweep.enqueue_due() == 1
    assert house.deliver(message) == 1
    assert house.parts.sweep.rescue() == 0


@on_postgresql
def test_no_claim_ends_as_unknown_before_the_logs_that_are_left_have_been_read(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """After a long outage there are more of them than one turn reads, and all claims ran out."""
    monkeypatch.setattr("dispatcher.delivery.sweep._LOGS_AT_ONCE", 1)
    house = make()
    messages = due(house, *PEOPLE[:2])
    for message in messages:
        die("deliver.before_send", delivers, house.settings, [message])
    house.end_claims(*messages)
    assert [house.parts.sweep.rescue() for _ in range(3)] == [1, 1, 0]
    assert {house.again(message).status for message in messages} == {Status.SCHEDULED}
    assert outcomes(house) == {message.id: [] for message in messages}
    assert "their worker had not begun to send them, and died or could not" in caplog.text


@on_postgresql
def test_a_message_that_kills_its_worker_before_the_send_fails_after_its_attempts(
    make: Make,
) -> None:
    """Put back for ever it would kill every worker there is."""
    house = make(max_attempts=2)
    [poison] = due(house, "poison", on_unknown="hold")
    killed = 0
    while house.again(poison).status is Status.SCHEDULED:
        house.change([poison], next_attempt_at=poison.send_at)
        die("deliver.before_send", delivers, house.settings, [poison])
        killed += 1
        assert house.parts.sweep.rescue() == 1
    assert killed == 1 + 2, "the first time it is not what it died of"
    assert house.again(poison).status is Status.FAILED
    assert outcomes(house)[poison.id] == [Outcome.TEMPORARY] * 2
    assert house.permits("poison") == {}


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_rescued_messages_have_tasks_of_their_own_spread_over_a_second(make: Make) -> None:
    house = make()
    now = house.clock.now()
    suspects = [Due(new_id(), CHANNEL, now, is_suspect=True, is_first=False) for _ in range(1_000)]
    calm = Due(new_id(), CHANNEL, now, is_suspect=False, is_first=True)
    tickets = house.parts.sweep._tickets([*suspects, calm])
    alone = [ticket for ticket in tickets if ticket.alone]
    assert {ticket.message_id for ticket in alone} == {message.message_id for message in suspects}
    assert [ticket.due_at for ticket in tickets if not ticket.alone] == [now]
    times = sorted(ticket.due_at for ticket in alone)
    apart = [later - sooner for sooner, later in pairwise(times)]
    assert all(timedelta(0) < gap <= timedelta(milliseconds=20) for gap in apart)
    assert times[-1] - now < 2 * SECOND

"""A send that takes its time holds up neither the groups behind it nor a thread of theirs."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from unittest.mock import Mock
from uuid import UUID

import pytest

from dispatcher import Message, Outcome, Status, StoreUnavailable
from dispatcher.delivery import task
from dispatcher.store.claims import Success
from tests.support.house import House, hour_ago
from tests.support.house_fixtures import Build, on_sqlite
from tests.support.waiting import wait_until

pytestmark = on_sqlite
SLOW = "slow"


class Holding:
    """Holds what goes to recipients whose names begin with ``slow``."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.released = threading.Event()
        self.error: BaseException | None = None

    def __call__(self, message: Message) -> None:
        if message.recipient.startswith(SLOW):
            self.begun.append(message.recipient)
            assert self.released.wait(60)
            if self.error:
                raise self.error


Held = tuple[House, Holding]


@pytest.fixture
def holding(build: Build) -> Iterator[Held]:
    """Give a house of two groups at a time and six senders, and what holds its sends."""
    house = build(
        clock=hour_ago(),
        channels={"memory": {"transport": "memory", "senders": 6}},
        in_order=False,
        groups_at_once=2,
    )
    house.memory.before = held = Holding()
    yield house, held
    held.released.set()
    assert house.parts.delivery.finish(20)


def passes(house: House) -> bool:
    """Let a tenth of a second pass by the clock of those who lead."""
    house.moved.advance(timedelta(seconds=0.1))
    return True


def in_background(house: House, *groups: list[Message]) -> list[threading.Thread]:
    """Let a thread deliver each of the groups, as a worker's threads do; it may end in an error."""

    def deliver(group: list[Message]) -> None:
        with suppress(BaseException):
            house.parts.group_queue.deliver([message.id for message in group], "memory")

    threads = [threading.Thread(target=deliver, args=(group,)) for group in groups]
    for thread in threads:
        thread.start()
    return threads


def is_sent(house: House, *messages: Message) -> bool:
    return {house.again(message).status for message in messages} == {Status.SENT}


def test_groups_with_one_that_hangs_do_not_stop_their_channel(holding: Held) -> None:
    house, held = holding
    groups = [[house.submit(f"{SLOW} {n}"), house.submit(f"quick {n}")] for n in range(4)]
    threads = in_background(house, *groups)
    wait_until(lambda: passes(house) and len(held.begun) == len(groups))
    behind = house.submit("behind")
    threads += in_background(house, [behind])
    wait_until(lambda: passes(house) and is_sent(house, behind, *(quick for _, quick in groups)))
    wait_until(lambda: passes(house) and not any(thread.is_alive() for thread in threads))
    assert house.again(groups[0][0]).status is Status.SENDING
    held.released.set()
    assert house.parts.delivery.finish(20)
    assert is_sent(house, *(slow for slow, _ in groups))


def test_a_late_send_that_cannot_be_recorded_holds_up_no_other(holding: Held) -> None:
    house, held = holding
    locked: set[UUID] = set()

    def record(successes: Sequence[Success], *more: object, **named: object) -> object:
        if locked & {success.claim.message.id for success in successes}:
            raise StoreUnavailable("their rows are locked")
        return claims.record(successes, *more, **named)

    claims = house.between("delivery", "claims", instead={"record": record})
    messages = [house.submit(f"{SLOW} {n}") for n in range(3)]
    for message in messages:
        [thread] = in_background(house, [message])
        wait_until(lambda thread=thread: passes(house) and not thread.is_alive())  # type: ignore[misc]  # bound
    locked.add(messages[0].id)
    held.released.set()
    wait_until(lambda: is_sent(house, *messages[1:]))
    house.moved.advance(house.settings.claim_ttl)
    assert house.again(messages[0]).status is Status.SENDING
    locked.clear()
    wait_until(lambda: passes(house) and is_sent(house, *messages))


def test_an_exception_of_a_late_send_ends_no_other(
    holding: Held, caplog: pytest.LogCaptureFixture
) -> None:
    house, held = holding
    breaks = house.submit(f"{SLOW} breaks")
    threads = in_background(house, [breaks])
    wait_until(lambda: passes(house) and not threads[0].is_alive())
    released, last = held.released, house.submit(f"{SLOW} lasts")
    held.released = threading.Event()
    threads = in_background(house, [last])
    wait_until(lambda: passes(house) and not threads[0].is_alive())
    held.error = KeyboardInterrupt("with a body in it")
    released.set()
    wait_until(lambda: "a group of messages failed" in caplog.text)
    assert "a body" not in caplog.text
    held.error = None
    held.released.set()
    assert house.parts.delivery.finish(20)
    assert is_sent(house, last)
    assert house.again(breaks).status is Status.SENDING, "its outcome is unknown"


def test_where_no_thread_can_be_started_the_task_waits(
    holding: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    none_left = Mock(**{"return_value.start.side_effect": RuntimeError("can't start new thread")})
    house, held = holding
    assert house.deliver() == 0
    monkeypatch.setattr(task, "threading", Mock(wraps=threading, Thread=none_left))
    message = house.submit(SLOW)
    [thread] = in_background(house, [message])
    wait_until(lambda: len(held.begun) == 1)
    for _ in range(3):
        passes(house)
    thread.join(0.3)
    assert thread.is_alive()
    held.released.set()
    thread.join(60)
    assert is_sent(house, message)
    assert house.outcomes(message) == [Outcome.SENT]


def test_an_interrupted_leading_thread_leaves_no_claim_open(holding: Held) -> None:
    house, held = holding
    message = house.submit(SLOW)

    def interrupt(_: object) -> bool:
        held.released.set()
        raise KeyboardInterrupt

    vars(vars(house.parts.delivery)["_lasting"])["take"] = interrupt
    [thread] = in_background(house, [message])
    wait_until(lambda: passes(house) and not thread.is_alive())
    assert is_sent(house, message)

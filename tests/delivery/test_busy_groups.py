"""Records, renewals and returns of a group while its senders are busy."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import pytest

from dispatcher import Message, Status
from dispatcher.times.clock import SystemClock
from tests.support.house import House, hour_ago
from tests.support.house_fixtures import Build
from tests.support.waiting import wait_until

TWO_SENDERS = {"memory": {"transport": "memory", "senders": 2}}


@pytest.fixture
def pair(build: Build) -> House:
    return build(clock=hour_ago(), channels=TWO_SENDERS, in_order=False)


@contextmanager
def hanging(house: House, messages: Sequence[Message]) -> Iterator[None]:
    """Deliver these; the first two sends hang until the block ends."""
    under_way, released = threading.Barrier(3), threading.Event()

    def hang(_: Message) -> None:
        if not released.is_set():
            under_way.wait(60)
            assert released.wait(60)

    house.memory.before = hang
    thread = threading.Thread(target=house.deliver, args=messages)
    thread.start()
    try:
        under_way.wait(60)
        yield
    finally:
        released.set()
        thread.join(60)


def put_back(house: House, messages: Sequence[Message]) -> int:
    return sum(house.again(each).status is Status.SCHEDULED for each in messages)


def test_nothing_waits_for_a_busy_sender_when_too_little_is_left_of_its_claim(pair: House) -> None:
    """It would be rescued, as if it had been tried."""
    messages = [pair.submit(f"name {number}") for number in range(6)]
    with hanging(pair, messages):
        pair.moved.advance(pair.settings.claim_ttl)
        wait_until(lambda: put_back(pair, messages) == 4)
    assert all(len(pair.dispatcher.attempts(each.id)) <= 1 for each in messages)
    assert len(pair.sent) == 2


class Written(SystemClock):
    """The machine's clock; what somebody slept is written down."""

    def __init__(self) -> None:
        self.sleeps: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        super().sleep(seconds)


def test_of_a_group_that_comes_early_each_goes_at_its_own_time(build: Build) -> None:
    clock = Written()
    house = build(clock=clock, channels=TWO_SENDERS)
    messages = [house.submit(name, send_in=timedelta(hours=1)) for name in ("ada", "ben")]
    now = house.database_time()
    for message, wait in zip(messages, (0.2, 0.8), strict=True):
        house.change([message], next_attempt_at=now + timedelta(seconds=wait))
    assert house.deliver(*messages) == 2
    assert max(clock.sleeps) < 0.65, "not until the last of them"


def test_a_claim_is_renewed_before_too_little_is_left_of_it(build: Build) -> None:
    """Also where a send may take most of a claim."""
    house = build(clock=hour_ago(), channels=TWO_SENDERS, claim_ttl=12, in_order=False)
    messages = [house.submit(name) for name in ("ada", "ben", "cleo")]
    with hanging(house, messages):
        before = house.columns(messages[2], "claim_expires_at")
        house.moved.advance(timedelta(seconds=1.5))
        wait_until(lambda: house.columns(messages[2], "claim_expires_at") > before)
    assert len(house.sent) == 3

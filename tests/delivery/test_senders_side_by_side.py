"""A group is sent side by side; long sends keep their claims; a stop loses nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

from dispatcher import Message, Outcome, Status, StoreUnavailable
from dispatcher.times.clock import SystemClock
from tests.support.house import House, hour_ago
from tests.support.house_fixtures import Build
from tests.support.waiting import wait_until

GROUP = [f"name {number}" for number in range(8)]
TWO_SENDERS = {"memory": {"transport": "memory", "senders": 2}}


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
    return sum(house.again(message).status is Status.SCHEDULED for message in messages)


def test_a_long_send_keeps_its_claim_and_its_permit(build: Build) -> None:
    wide = build(clock=hour_ago(), in_order=False)
    ttl = wide.settings.claim_ttl
    [message] = [wide.submit()]
    seen: list[int] = []

    def last(sent: Message) -> None:
        for _ in range(4):
            before = wide.columns(sent, "claim_expires_at")
            [held] = wide.permits().values()
            wide.moved.advance(ttl * 0.6)
            wait_until(partial(is_later, wide, sent, before))
            [now_held] = wide.permits().values()
            seen.append(now_held - held)

    wide.memory.before = last
    assert wide.deliver(message) == 1, "though it took more than twice the length of a claim"
    assert len(seen) == 4
    assert all(gain >= 0 for gain in seen)
    assert wide.again(message).status is Status.SENT
    [attempt] = wide.dispatcher.attempts(message.id)
    assert attempt.outcome is Outcome.SENT


def is_later(house: House, message: Message, than: tuple[Any, ...]) -> bool:
    return house.columns(message, "claim_expires_at") > than


def test_a_claim_that_cannot_be_renewed_is_not_begun_any_more(build: Build) -> None:
    """The one that is on its way goes on; the other has too little left of its claim."""
    house = build(clock=hour_ago(), channels={"memory": {"transport": "memory"}})
    messages = [house.submit(name) for name in ("ada", "ben")]
    tried = threading.Event()

    def renew() -> None:
        tried.set()
        raise StoreUnavailable("down")

    house.between("delivery", "claims", before={"renew": renew})

    def last(_: Message) -> None:
        house.moved.advance(house.settings.claim_ttl - timedelta(seconds=5))
        assert tried.wait(60)

    house.memory.before = last
    assert house.deliver(*messages) == 1
    statuses = sorted(house.again(message).status for message in messages)
    assert statuses == [Status.SCHEDULED, Status.SENT]


def test_nothing_waits_for_a_busy_sender_when_too_little_is_left_of_its_claim(build: Build) -> None:
    """It would be rescued, as if it had been tried."""
    house = build(clock=hour_ago(), channels=TWO_SENDERS, in_order=False)
    messages = [house.submit(name) for name in GROUP]
    with hanging(house, messages):
        house.moved.advance(house.settings.claim_ttl)
        wait_until(lambda: put_back(house, messages) == len(GROUP) - 2)
    assert all(len(house.dispatcher.attempts(message.id)) <= 1 for message in messages)
    assert len(house.sent) == 2


class Written(SystemClock):
    """The machine's clock, which notes every sleep."""

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


def test_a_stop_finishes_what_is_on_its_way_and_puts_the_rest_back(build: Build) -> None:
    house = build(clock=hour_ago(), channels=TWO_SENDERS, in_order=False)
    messages = [house.submit(name) for name in GROUP]
    with hanging(house, messages):
        house.parts.stop_sending()
        wait_until(lambda: put_back(house, messages) == len(GROUP) - 2)
    assert len(house.sent) == 2
    for message in messages:
        now = house.again(message)
        if message.id in house.sent:
            assert now.status is Status.SENT
        else:
            assert (now.status, now.attempt_count) == (Status.SCHEDULED, 0)
            assert house.dispatcher.attempts(message.id) == []
            assert house.permits(message.scope) == {}
            [enqueue_at] = house.columns(message, "enqueue_at")
            assert enqueue_at <= house.database_time(), "another worker's sweep takes it at once"
    assert house.deliver(*messages) == 0, "nothing is begun after a stop"

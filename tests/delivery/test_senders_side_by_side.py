"""A group is sent side by side; long sends keep their claims; a stop loses nothing."""

from __future__ import annotations

import threading
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from dispatcher import Message, Outcome, Status, StoreUnavailable
from tests.support.doubles import Between
from tests.support.house import House, hour_ago
from tests.support.house_fixtures import Build
from tests.support.waiting import wait_until

GROUP = [f"name {number}" for number in range(8)]
CHANNELS = {"memory": {"transport": "memory", "senders": 8}}


@pytest.fixture
def wide(build: Build) -> House:
    """Give a house whose channel sends eight messages at a time."""
    return build(clock=hour_ago(), channels=CHANNELS, in_order=False)


def in_background(house: House, *messages: Message) -> threading.Thread:
    thread = threading.Thread(target=partial(house.deliver, *messages))
    thread.start()
    return thread


def test_a_long_send_keeps_its_claim_and_its_permit(wide: House) -> None:
    ttl = wide.settings.claim_ttl
    [message] = [wide.submit()]
    seen: list[int] = []

    def last(given: Message) -> None:
        for _ in range(4):
            before = wide.columns(given, "claim_expires_at")
            [held] = wide.permits().values()
            wide.moved.advance(ttl * 0.6)
            wait_until(partial(is_later, wide, given, before))
            [now_held] = wide.permits().values()
            seen.append(now_held - held)

    wide.memory.before = last
    assert wide.deliver(message) == 1, "though it took more than twice the length of a claim"
    assert len(seen) == 4
    assert all(each >= 0 for each in seen)
    assert wide.again(message).status is Status.SENT
    [attempt] = wide.dispatcher.attempts(message.id)
    assert attempt.outcome is Outcome.SENT


def is_later(house: House, message: Message, than: tuple[Any, ...]) -> bool:
    return house.columns(message, "claim_expires_at") > than


def test_a_claim_that_cannot_be_renewed_is_not_begun_any_more(build: Build) -> None:
    """The one that is on its way goes on; the other has too little left of its claim."""
    house = build(clock=hour_ago(), channels={"memory": {"transport": "memory"}})
    messages = [house.submit(name) for name in ("ada", "ben")]
    shared: Any = house.parts.delivery.shared
    tried = threading.Event()

    def renew() -> None:
        tried.set()
        raise StoreUnavailable("down")

    shared.claims = Between(shared.claims, before={"renew": renew})

    def last(_: Message) -> None:
        house.moved.advance(house.settings.claim_ttl - timedelta(seconds=5))
        assert tried.wait(60)

    house.memory.before = last
    assert house.deliver(*messages) == 1
    found = sorted(house.again(each).status for each in messages)
    assert found == [Status.SCHEDULED, Status.SENT]


def test_a_stop_finishes_what_is_on_its_way_and_puts_the_rest_back(build: Build) -> None:
    house = build(clock=hour_ago(), channels={"memory": {"transport": "memory", "senders": 2}},
                  in_order=False)  # fmt: skip
    messages = [house.submit(name) for name in GROUP]
    under_way = threading.Barrier(3)
    stopped = threading.Event()

    def hold(_: Message) -> None:
        if not stopped.is_set():
            under_way.wait(60)
            assert stopped.wait(60)

    house.memory.before = hold
    thread = in_background(house, *messages)
    under_way.wait(60)
    house.parts.stop_sending()
    wait_until(lambda: [house.again(each).status for each in messages].count(Status.SCHEDULED) == 6)
    stopped.set()
    thread.join(60)
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

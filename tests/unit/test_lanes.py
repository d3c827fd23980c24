"""Groups of one channel do not hold up those of another in the same process."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import cast
from uuid import UUID

import pytest

from dispatcher.delivery import Delivery, Lanes
from dispatcher.errors import StoreUnavailable
from dispatcher.message import new_id
from tests.support.waiting import wait_until


class Deliveries:
    """Takes the place of the use case; ``slow`` groups wait until they are released."""

    def __init__(self) -> None:
        self.done: list[UUID] = []
        self.begun: list[UUID] = []
        self.slow: set[UUID] = set()
        self.released = threading.Event()
        self.error: Exception | None = None
        self.is_stopping = False

    def deliver(self, message_ids: Sequence[UUID]) -> int:
        self.begun += message_ids
        if self.slow & set(message_ids):
            assert self.released.wait(10)
        if self.error:
            raise self.error
        self.done += message_ids
        return len(message_ids)

    def stop(self) -> None:
        self.is_stopping = True


@pytest.fixture
def deliveries() -> Deliveries:
    return Deliveries()


def lanes(deliveries: Deliveries, at_once: int = 2) -> Lanes:
    return Lanes(cast("Delivery", deliveries), at_once=at_once)


def fill(lane: Lanes, deliveries: Deliveries, many: int) -> list[threading.Thread]:
    """Let that many threads deliver a slow group each on the channel ``slow``."""
    ids = [new_id() for _ in range(many)]
    deliveries.slow |= set(ids)
    threads = [threading.Thread(target=lane.deliver, args=([each], "slow")) for each in ids]
    for thread in threads:
        thread.start()
    wait_until(lambda: deliveries.slow <= set(deliveries.begun))
    return threads


def end(threads: list[threading.Thread], deliveries: Deliveries) -> None:
    deliveries.released.set()
    for thread in threads:
        thread.join(10)


def test_a_slow_channel_leaves_the_thread_to_another(deliveries: Deliveries) -> None:
    lane = lanes(deliveries)
    threads = fill(lane, deliveries, 2)
    waits, goes = new_id(), new_id()
    lane.deliver([waits], "slow")
    lane.deliver([goes], "quick")
    assert deliveries.done == [goes]
    end(threads, deliveries)
    assert set(deliveries.done) == {*deliveries.slow, waits, goes}, "who ends takes what waits"


def test_what_waits_goes_in_order(deliveries: Deliveries) -> None:
    lane = lanes(deliveries, at_once=1)
    threads = fill(lane, deliveries, 1)
    waiting = [new_id() for _ in range(5)]
    for each in waiting:
        lane.deliver([each], "slow")
    end(threads, deliveries)
    assert deliveries.done[1:] == waiting
    lane.deliver(waiting, "slow")
    assert deliveries.done[6:] == waiting, "the lane is free again"


def test_without_the_store_what_waits_is_left_to_the_sweep(deliveries: Deliveries) -> None:
    lane = lanes(deliveries, at_once=1)
    threads = fill(lane, deliveries, 1)
    lane.deliver([new_id()], "slow")
    deliveries.error = StoreUnavailable("down")
    threading.excepthook, before = lambda _: None, threading.excepthook
    end(threads, deliveries)
    threading.excepthook = before
    assert deliveries.done == []
    assert len(deliveries.begun) == 1
    deliveries.error = None
    again = new_id()
    lane.deliver([again], "slow")
    assert deliveries.done == [again]


def test_what_waits_is_not_begun_after_a_stop(deliveries: Deliveries) -> None:
    lane = lanes(deliveries, at_once=1)
    threads = fill(lane, deliveries, 1)
    lane.deliver([new_id()], "slow")
    lane.stop()
    end(threads, deliveries)
    assert deliveries.is_stopping
    assert deliveries.done == list(deliveries.slow)

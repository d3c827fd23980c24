"""Groups of one channel do not hold up those of another in the same process."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import cast
from uuid import UUID

import pytest

from dispatcher.delivery import Delivery, GroupQueue
from dispatcher.errors import StoreUnavailable
from dispatcher.message import new_id
from tests.support.house import hour_ago
from tests.support.house_fixtures import Build
from tests.support.waiting import wait_until


class Deliveries:
    """Stands in for the use case; ``slow`` groups wait until they are released."""

    def __init__(self) -> None:
        self.done: list[UUID] = []
        self.begun: list[UUID] = []
        self.slow: set[UUID] = set()
        self.released = threading.Event()
        self.error: Exception | None = None
        self.errors: dict[UUID, Exception] = {}

    def deliver(self, message_ids: Sequence[UUID], *, to_the_end: bool) -> int:
        assert not to_the_end
        self.begun += message_ids
        if self.slow & set(message_ids):
            assert self.released.wait(60)
        if self.error or message_ids[0] in self.errors:
            raise self.error or self.errors[message_ids[0]]
        self.done += message_ids
        return len(message_ids)


@pytest.fixture
def deliveries() -> Deliveries:
    return Deliveries()


def queue_of(deliveries: Deliveries, at_once: int = 2) -> GroupQueue:
    return GroupQueue(cast("Delivery", deliveries), at_once=at_once)


def fill(queue: GroupQueue, deliveries: Deliveries, count: int) -> list[threading.Thread]:
    """Let that many threads deliver a slow group each on the channel ``slow``."""
    ids = [new_id() for _ in range(count)]
    deliveries.slow |= set(ids)

    def deliver(message_id: UUID) -> None:
        with suppress(StoreUnavailable, ValueError):
            queue.deliver([message_id], "slow")

    threads = [threading.Thread(target=deliver, args=(id_,)) for id_ in ids]
    for thread in threads:
        thread.start()
    wait_until(lambda: deliveries.slow <= set(deliveries.begun))
    return threads


def end(threads: list[threading.Thread], deliveries: Deliveries) -> None:
    deliveries.released.set()
    for thread in threads:
        thread.join(60)


def test_a_slow_channel_leaves_the_thread_to_another(deliveries: Deliveries) -> None:
    queue = queue_of(deliveries)
    threads = fill(queue, deliveries, 2)
    waits, goes = new_id(), new_id()
    queue.deliver([waits], "slow")
    queue.deliver([goes], "quick")
    assert deliveries.done == [goes]
    end(threads, deliveries)
    assert set(deliveries.done) == {*deliveries.slow, waits, goes}, "who ends takes what waits"


def test_without_the_store_what_waits_is_left_to_the_sweep(
    deliveries: Deliveries, caplog: pytest.LogCaptureFixture
) -> None:
    queue = queue_of(deliveries, at_once=1)
    threads = fill(queue, deliveries, 1)
    queue.deliver([new_id()], "slow")
    deliveries.error = StoreUnavailable("down")
    end(threads, deliveries)
    assert deliveries.done == []
    assert len(deliveries.begun) == 1
    assert "enqueue_due enqueues the 1 messages behind it again" in caplog.text
    deliveries.error = None
    again = new_id()
    queue.deliver([again], "slow")
    assert deliveries.done == [again]


def test_an_error_of_one_group_is_told_and_takes_no_other_along(
    deliveries: Deliveries, caplog: pytest.LogCaptureFixture
) -> None:
    queue = queue_of(deliveries, at_once=1)
    broken, others = new_id(), [new_id() for _ in range(3)]
    deliveries.errors[broken] = ValueError("with a body in it")
    threads = fill(queue, deliveries, 1)
    for id_ in [others[0], broken, *others[1:]]:
        queue.deliver([id_], "slow")
    end(threads, deliveries)
    assert deliveries.done[1:] == others
    assert "slow" in caplog.text
    assert "ValueError" in caplog.text
    assert "body" not in caplog.text
    deliveries.errors.clear()
    queue.deliver([broken], "slow")
    assert deliveries.done[-1] == broken, "the channel is free again"


def test_repeated_groups_go_before_new_ones(deliveries: Deliveries) -> None:
    queue = queue_of(deliveries, at_once=1)
    threads = fill(queue, deliveries, 1)
    first, again = [new_id() for _ in range(2)], [new_id() for _ in range(2)]
    for id_ in first:
        queue.deliver([id_], "slow", rank=512)
    for id_ in again:
        queue.deliver([id_], "slow", rank=0)
    end(threads, deliveries)
    assert deliveries.done[1:] == [*again, *first]


def test_a_full_queue_leaves_the_least_urgent_to_the_sweep(
    deliveries: Deliveries, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large task is split, so that what is urgent goes between its parts."""
    monkeypatch.setattr("dispatcher.delivery.task._MOST_WAITING", 3)
    queue = GroupQueue(cast("Delivery", deliveries), at_once=1, size=2)
    threads = fill(queue, deliveries, 1)
    bulk = [new_id() for _ in range(7)]
    urgent = new_id()
    queue.deliver(bulk, "slow", rank=600)
    queue.deliver([urgent], "slow", rank=-50_000)
    end(threads, deliveries)
    assert deliveries.done[1:] == [urgent, *bulk[:4]]


def test_what_a_stopping_worker_has_not_claimed_is_due_for_the_sweep_at_once(build: Build) -> None:
    """Else it waits for its grace, which is long for what is late."""
    house = build(clock=hour_ago())
    waiting, brought = house.submit("ada"), house.submit("ben")
    assert house.parts.sweep.enqueue_due() == 2
    assert house.parts.sweep.enqueue_due() == 0
    queue = house.parts.group_queue
    queue._at_once = 1
    sends, ends = threading.Event(), threading.Event()

    def hang(_: object) -> None:
        sends.set()
        assert ends.wait(60)

    house.memory.before = hang
    thread = threading.Thread(target=queue.deliver, args=([house.submit("cyd").id], "memory"))
    thread.start()
    assert sends.wait(60)
    queue.deliver([waiting.id], "memory")
    house.parts.stop_sending()
    ends.set()
    thread.join(60)
    queue.deliver([brought.id], "memory")
    assert house.parts.finish_sending()
    assert len(house.sent) == 1
    assert house.parts.sweep.enqueue_due() == 2

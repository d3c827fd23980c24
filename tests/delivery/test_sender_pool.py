"""Threads that send: never early, side by side, no more than there may be."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import cast
from unittest.mock import patch
from uuid import uuid4

import pytest

from dispatcher.delivery.group import Group
from dispatcher.delivery.sender_pool import SenderPool
from dispatcher.store.claims import Claim
from dispatcher.times.clock import SystemClock
from tests.support.doubles import a_group
from tests.support.waiting import DEADLINE, wait_until


class FakeSend:
    """Notes when claims are sent, and how many at a time."""

    def __init__(self, *, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.at: dict[int, float] = {}
        self.most = self.ended = 0
        self._meanwhile = meanwhile
        self._now = 0
        self._lock = threading.Lock()

    def __call__(self, _: Group, claim: Claim) -> None:
        with self._lock:
            self.at[cast("int", claim)] = time.monotonic()
            self._now += 1
            self.most = max(self.most, self._now)
        self._meanwhile()
        with self._lock:
            self._now -= 1
            self.ended += 1


class Monotonic(SystemClock):
    """The clock with which ``FakeSend`` measures."""

    def monotonic(self) -> float:
        return time.monotonic()


Make = Callable[..., SenderPool]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[SenderPool] = []

    def make(hand: FakeSend, *, most: int) -> SenderPool:
        made.append(SenderPool(f"pool {uuid4()}", hand, Monotonic(), most=most))
        return made[-1]

    yield make
    for pool in made:
        pool.close()


def claims(*instants: float) -> list[tuple[float, Claim]]:
    return [(at, cast("Claim", number)) for number, at in enumerate(instants)]


def threads(pool: SenderPool) -> int:
    names = [thread.name for thread in threading.enumerate()]
    return sum(name.startswith(f"{pool.name}-") for name in names)


def test_each_goes_at_its_instant_and_none_before(make: Make) -> None:
    hand = FakeSend()
    start = time.monotonic()
    instants = [start - 1, start + 0.02, start + 0.025, start + 0.06]
    make(hand, most=4).add(a_group(), claims(*instants))
    wait_until(lambda: hand.ended == 4)
    assert sorted(hand.at) == [0, 1, 2, 3]
    assert all(hand.at[number] >= at for number, at in enumerate(instants))


@pytest.mark.parametrize("most", [1, 3, 20])
def test_as_many_sends_run_at_once_as_the_pool_may_have_threads(make: Make, most: int) -> None:
    together = threading.Barrier(most)
    hand = FakeSend(meanwhile=lambda: together.wait(60))
    make(hand, most=most).add(a_group(), claims(*[0.0] * (most * 2)))
    wait_until(lambda: hand.ended == most * 2)
    assert hand.most == most


def test_messages_due_now_do_not_wait_behind_a_far_instant(make: Make) -> None:
    hand = FakeSend(meanwhile=lambda: released.wait(60))
    released, later = threading.Event(), a_group()
    pool = make(hand, most=4)
    far = time.monotonic() + 2 * DEADLINE
    pool.add(later, claims(far, far))
    wait_until(lambda: len(vars(pool)["_left"]) == 1)
    pool.add(a_group(), [(0.0, cast("Claim", 7)), (0.0, cast("Claim", 8))])
    wait_until(lambda: {7, 8} <= hand.at.keys())
    assert pool.withdraw(later) == [(cast("Claim", 1), timedelta(0))], "no sender has taken it"
    released.set()


def test_a_pool_of_two_keeps_a_thread_free_while_one_waits_for_a_far_instant(make: Make) -> None:
    """The other one is free for what is added and due at once."""
    hand, later = FakeSend(), a_group()
    pool = make(hand, most=2)
    far = time.monotonic() + 2 * DEADLINE
    pool.add(later, claims(far, far))
    wait_until(lambda: len(vars(pool)["_left"]) == 1)
    for number in (7, 8):
        pool.add(a_group(), [(0.0, cast("Claim", number))])
        wait_until(lambda: number in hand.at)  # noqa: B023 - called before the next round
    pool.withdraw(later)


def test_short_sends_start_far_fewer_threads_than_the_pool_may_have(make: Make) -> None:
    """A thread that has sent takes the next message, so none is called for it."""
    hand = FakeSend(meanwhile=lambda: time.sleep(0.01))
    start = time.monotonic() + 0.01
    pool = make(hand, most=64)
    pool.add(a_group(), claims(*[start + 0.005 * each for each in range(100)]))
    wait_until(lambda: hand.ended == 100)
    assert threads(pool) < 40


def test_threads_that_are_free_are_used_again_and_end_when_closed(make: Make) -> None:
    """A message that is added after the last send of its group is sent."""
    hand, group = FakeSend(), a_group()
    pool = make(hand, most=5)
    for number in range(50):
        pool.add(group, [(0.0, cast("Claim", number))])
        wait_until(lambda: hand.ended == number + 1)  # noqa: B023 - called before the next round
    assert list(hand.at) == list(range(50))
    assert 1 <= threads(pool) <= 2
    pool.close()
    wait_until(lambda: not threads(pool))


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError()])
def test_where_no_thread_can_be_started_the_caller_sends_all_in_order(
    make: Make, error: Exception
) -> None:
    hand, group, many = FakeSend(), a_group(), 1_200
    pool = make(hand, most=4)
    with patch.object(threading.Thread, "start", side_effect=error):
        pool.add(group, claims(*[0.0] * many))
        assert list(hand.at) == list(range(many))
    hand.at.clear()
    pool.add(a_group(), claims(0.0, 0.0, 0.0, 0.0))
    wait_until(lambda: len(hand.at) == 4)


def test_a_thread_that_became_free_while_another_one_failed_to_start_sends_the_message(
    make: Make,
) -> None:
    gate, group = threading.Event(), a_group()
    hand = FakeSend(meanwhile=lambda: gate.wait(60))
    pool = make(hand, most=2)
    pool.add(group, claims(0.0))
    wait_until(lambda: len(hand.at) == 1)

    def refuse(_: threading.Thread) -> None:
        gate.set()
        wait_until(lambda: len(vars(pool)["_free"]) == 1)
        raise RuntimeError("can't start new thread")

    with patch.object(threading.Thread, "start", refuse):
        late = time.monotonic() + 0.1
        pool.add(group, [(late, cast("Claim", 1))])
    wait_until(lambda: len(hand.at) == 2)


def test_a_closed_pool_sends_on_the_callers_thread(make: Make) -> None:
    """Else it would wait for ever for threads that are gone."""
    hand = FakeSend()
    pool = make(hand, most=4)
    pool.close()
    pool.add(a_group(), claims(0.0, 0.0, 0.0))
    assert sorted(hand.at) == [0, 1, 2]


def test_what_was_to_be_sent_before_close_is_sent(make: Make) -> None:
    hold = threading.Event()
    hand, group = FakeSend(meanwhile=lambda: hold.wait(60)), a_group()
    pool = make(hand, most=1)
    pool.add(group, claims(0.0, 0.0))
    wait_until(lambda: 0 in hand.at)
    pool.close()
    hold.set()
    wait_until(lambda: list(hand.at) == [0, 1])

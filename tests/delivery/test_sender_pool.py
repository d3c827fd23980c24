"""Threads that send: never early, side by side, no more than there may be."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import cast

import pytest

from dispatcher.delivery.sender import Group, Report, UnsentClaim
from dispatcher.delivery.sender_pool import Destinations, SenderPool, SenderThreads
from dispatcher.store import Claim
from dispatcher.times.clock import SystemClock
from tests.support.groups import a_group
from tests.support.waiting import DEADLINE, wait_until


class Hand:
    """Notes when claims are sent, and how many at a time."""

    def __init__(self, *, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.at: dict[int, float] = {}
        self.most = 0
        self._meanwhile = meanwhile
        self._now = 0
        self._lock = threading.Lock()

    def __call__(self, group: Group, claim: Claim) -> Report:
        del group
        with self._lock:
            self.at[cast("int", claim)] = time.monotonic()
            self._now += 1
            self.most = max(self.most, self._now)
        self._meanwhile()
        with self._lock:
            self._now -= 1
        return UnsentClaim(claim)


class Monotonic(SystemClock):
    """The clock with which ``Hand`` measures."""

    def monotonic(self) -> float:
        return time.monotonic()


@pytest.fixture
def crews() -> Iterator[list[SenderThreads]]:
    """Give a list; what is in it is closed."""
    made: list[SenderThreads] = []
    yield made
    for each in made:
        each.close()


class Sends:
    """The sends of one group."""

    def __init__(self, threads: SenderThreads, hand: Hand) -> None:
        nowhere = Destinations(None, share=1, timeout=1, longest=timedelta(1), clock=Monotonic())
        self._pool = SenderPool(threads, hand, nowhere, Monotonic())
        self._group = a_group()
        self.idle = self._group.changed

    def add(self, claims: list[tuple[float, Claim]]) -> None:
        self._pool.send(self._group, claims)


def claims(*instants: float) -> list[tuple[float, Claim]]:
    return [(at, cast("Claim", number)) for number, at in enumerate(instants)]


def test_each_goes_at_its_instant_and_none_before(crews: list[SenderThreads]) -> None:
    crews.append(SenderThreads("test", most=4))
    hand = Hand()
    start = time.monotonic()
    instants = [start - 1, start + 0.02, start + 0.025, start + 0.06]
    sends = Sends(crews[0], hand)
    sends.add(claims(*instants))
    assert sends.idle.wait(60)
    assert sorted(hand.at) == [0, 1, 2, 3]
    assert all(hand.at[number] >= at for number, at in enumerate(instants))


@pytest.mark.parametrize("most", [1, 3, 20])
def test_so_many_are_sent_side_by_side(crews: list[SenderThreads], most: int) -> None:
    crews.append(SenderThreads("test", most=most))
    together = threading.Barrier(most)
    hand = Hand(meanwhile=lambda: together.wait(60))
    sends = Sends(crews[0], hand)
    sends.add(claims(*[0.0] * (most * 2)))
    wait_until(lambda: len(hand.at) == most * 2 and sends.idle.is_set())
    assert hand.most == most


def test_a_hanging_send_holds_up_no_other(crews: list[SenderThreads]) -> None:
    crews.append(SenderThreads("test", most=2))
    released = threading.Event()
    taken = threading.Lock()

    def hang_first() -> None:
        if taken.acquire(blocking=False):
            released.wait(60)

    hand = Hand(meanwhile=hang_first)
    both = Sends(crews[0], hand)
    both.add(claims(*[0.0] * 10))
    wait_until(lambda: len(hand.at) == 10)
    released.set()


def test_a_send_added_after_the_last_one_is_made(crews: list[SenderThreads]) -> None:
    crews.append(SenderThreads("test", most=2))
    hand = Hand()
    twice = Sends(crews[0], hand)
    twice.add(claims(0.0))
    assert twice.idle.wait(60)
    twice.idle.clear()
    twice.add([(0.0, cast("Claim", 7))])
    assert twice.idle.wait(60)
    assert list(hand.at) == [0, 7]


def test_groups_share_the_threads_of_their_channel(crews: list[SenderThreads]) -> None:
    crews.append(SenderThreads("test", most=3))
    release = threading.Event()
    hands = [Hand(meanwhile=lambda: release.wait(60)) for _ in range(3)]
    for hand in hands:
        Sends(crews[0], hand).add(claims(*[0.0] * 4))
    wait_until(lambda: sum(len(hand.at) for hand in hands) == 3)
    release.set()
    wait_until(lambda: sum(len(hand.at) for hand in hands) == 12)
    assert sum(thread.name.startswith("test-") for thread in threading.enumerate()) == 3


def test_threads_that_are_free_are_used_again_and_end_when_closed(
    crews: list[SenderThreads],
) -> None:
    senders = SenderThreads("ending", most=5)
    for _ in range(50):
        done = threading.Event()
        senders.call(done.set)
        assert done.wait(60)
    names = {thread.name for thread in threading.enumerate() if thread.name.startswith("ending-")}
    assert 1 <= len(names) <= 2
    senders.close()
    wait_until(lambda: not names & {thread.name for thread in threading.enumerate()})


def test_where_no_thread_can_be_started_the_caller_does_it(
    crews: list[SenderThreads], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    crews.append(SenderThreads("test", most=4))
    hand = Hand()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        sends = Sends(crews[0], hand)
        sends.add(claims(0.0, 0.0, 0.0))
        assert len(hand.at) == 3
        assert sends.idle.is_set()
    Sends(crews[0], hand).add(claims(0.0, 0.0, 0.0, 0.0))
    wait_until(lambda: len(hand.at) == 4)


def test_after_the_end_the_caller_does_it(crews: list[SenderThreads]) -> None:
    """Else it would wait for ever for threads that are gone."""
    senders = SenderThreads("test", most=4)
    senders.close()
    hand = Hand()
    sends = Sends(senders, hand)
    sends.add(claims(0.0, 0.0, 0.0))
    assert sorted(hand.at) == [0, 1, 2]
    assert sends.idle.is_set()


def test_calls_queued_before_close_are_done() -> None:
    senders = SenderThreads("test", most=1)
    busy, done, hold = threading.Event(), threading.Event(), threading.Event()
    senders.call(lambda: (busy.set(), hold.wait(60)))  # type: ignore[func-returns-value]  # in turn
    assert busy.wait(60)
    senders.call(done.set)
    senders.close()
    hold.set()
    assert done.wait(60)


def test_a_send_added_while_the_last_one_hangs_is_made_at_once(crews: list[SenderThreads]) -> None:
    crews.append(SenderThreads("test", most=2))
    released = threading.Event()
    hand = Hand(meanwhile=lambda: 7 in hand.at or released.wait(2 * DEADLINE))
    twice = Sends(crews[0], hand)
    twice.add(claims(0.0))
    wait_until(lambda: 0 in hand.at)
    twice.add([(0.0, cast("Claim", 7))])
    try:
        wait_until(lambda: 7 in hand.at)
    finally:
        released.set()

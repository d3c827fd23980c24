"""Threads that send: never early, side by side, kept by no destination from the others."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, cast
from unittest.mock import Mock, patch
from uuid import uuid4

import pytest

from dispatcher.delivery.group import Group
from dispatcher.delivery.sender_pool import Destinations, SenderPool
from dispatcher.store.claims import Claim
from dispatcher.testing import a_message
from dispatcher.times.clock import SystemClock
from dispatcher.transports.smtp import SmtpTransport
from dispatcher.transports.webhook import WebhookTransport
from tests.support.clock import MovableClock
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
            self.at[cast("int", claim)] = CLOCK.monotonic()
            self._now += 1
            self.most = max(self.most, self._now)
        self._meanwhile()
        with self._lock:
            self._now -= 1
            self.ended += 1


CLOCK = SystemClock()
Make = Callable[..., SenderPool]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[SenderPool] = []

    def make(send: FakeSend, *, most: int) -> SenderPool:
        made.append(SenderPool(f"pool {uuid4()}", send, CLOCK, most=most))
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
    send = FakeSend()
    start = CLOCK.monotonic()
    instants = [start - 1, start + 0.02, start + 0.025, start + 0.06]
    make(send, most=4).add(a_group(), claims(*instants))
    wait_until(lambda: send.ended == 4)
    assert sorted(send.at) == [0, 1, 2, 3]
    assert all(send.at[number] >= at for number, at in enumerate(instants))


@pytest.mark.parametrize("most", [1, 3, 20])
def test_as_many_sends_run_at_once_as_the_pool_may_have_threads(make: Make, most: int) -> None:
    together = threading.Barrier(most)
    send = FakeSend(meanwhile=lambda: together.wait(60))
    make(send, most=most).add(a_group(), claims(*[0.0] * (most * 2)))
    wait_until(lambda: send.ended == most * 2)
    assert send.most == most


@pytest.mark.parametrize("most", [2, 4])
def test_messages_due_now_do_not_wait_behind_a_far_instant(make: Make, most: int) -> None:
    """One thread waits for that; the others are free for what is added and due at once."""
    send, later = FakeSend(), a_group()
    pool = make(send, most=most)
    far = CLOCK.monotonic() + 2 * DEADLINE
    pool.add(later, claims(far, far))
    wait_until(lambda: len(vars(pool)["_left"]) == 1)
    for number in (7, 8):
        pool.add(a_group(), [(0.0, cast("Claim", number))])
        wait_until(lambda: number in send.at)  # noqa: B023 - called before the next round
    assert pool.withdraw(later) == [(cast("Claim", 1), timedelta(0))], "no sender has taken it"


def test_short_sends_start_far_fewer_threads_than_the_pool_may_have(make: Make) -> None:
    """A thread that has sent takes the next message, so none is called for it."""
    send = FakeSend(meanwhile=lambda: time.sleep(0.01))
    start = CLOCK.monotonic() + 0.01
    pool = make(send, most=64)
    pool.add(a_group(), claims(*[start + 0.005 * number for number in range(100)]))
    wait_until(lambda: send.ended == 100)
    assert threads(pool) < 40


def test_threads_that_are_free_are_used_again_and_end_when_closed(make: Make) -> None:
    """A message that is added after the last send of its group is sent."""
    send, group = FakeSend(), a_group()
    pool = make(send, most=5)
    for number in range(50):
        pool.add(group, [(0.0, cast("Claim", number))])
        wait_until(lambda: send.ended == number + 1)  # noqa: B023 - called before the next round
    assert list(send.at) == list(range(50))
    assert 1 <= threads(pool) <= 2
    pool.close()
    wait_until(lambda: not threads(pool))


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError()])
def test_where_no_thread_can_be_started_the_caller_sends_all_in_order(
    make: Make, error: Exception
) -> None:
    send, count = FakeSend(), 1_200
    pool = make(send, most=4)
    with patch.object(threading.Thread, "start", side_effect=error):
        pool.add(a_group(), claims(*[0.0] * count))
        assert list(send.at) == list(range(count))
    send.at.clear()
    pool.add(a_group(), claims(0.0, 0.0, 0.0, 0.0))
    wait_until(lambda: len(send.at) == 4)


def test_a_closed_pool_sends_what_it_has_and_what_is_added_on_the_callers_thread(
    make: Make,
) -> None:
    """Else it would wait for ever for threads that are gone."""
    hold = threading.Event()
    send = FakeSend(meanwhile=lambda: hold.wait(60))
    pool = make(send, most=1)
    pool.add(a_group(), claims(0.0, 0.0))
    wait_until(lambda: 0 in send.at)
    pool.close()
    hold.set()
    wait_until(lambda: send.ended == 2)
    pool.add(a_group(), [(0.0, cast("Claim", 2))])
    assert list(send.at) == [0, 1, 2]


SHARE = 4
TIMEOUT = 10.0
MINUTE = timedelta(minutes=1)


class World:
    """Hosts by name: at those that are ``silent`` a send lasts until the gate lets one go."""

    def __init__(self) -> None:
        self.clock = MovableClock()
        self.destinations = Destinations(
            lambda message: message.recipient or None,
            share=SHARE,
            timeout=TIMEOUT,
            longest=MINUTE,
            clock=self.clock,
        )
        self.pool = SenderPool(
            "test", self._send, self.clock, most=SHARE + 1, destinations=self.destinations
        )
        self.silent: set[str] = set()
        self.gate = threading.Semaphore(0)
        self.begun: list[str] = []
        self.busy: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.ended = 0
        self._lock = threading.Lock()

    def group(self, *names: str) -> Group:
        """Let a group of messages to these hosts be sent; all are due."""
        group = a_group()
        claims = [Claim(a_message(recipient=name), token=1) for name in names]
        self.pool.add(group, [(0.0, claim) for claim in claims])
        return group

    def _send(self, _: Group, claim: Claim) -> bool:
        name = claim.message.recipient
        with self._lock:
            self.begun.append(name)
            self.busy[name] += 1
            self.most[name] = max(self.most[name], self.busy[name])
        is_silent = name in self.silent
        if is_silent:
            assert self.gate.acquire(timeout=60)
        with self._lock:
            self.busy[name] -= 1
            self.ended += 1
        return not is_silent

    def wait_for(self, name: str, count: int) -> None:
        wait_until(lambda: self.begun.count(name) >= count, 60)


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.gate.release(1_000)
    made.pool.close()


def silenced(world: World) -> None:
    """Let a destination run into so many timeouts that it counts as silent."""
    world.silent.add("silent")
    world.group(*["silent"] * 3)
    world.wait_for("silent", 3)
    world.gate.release(3)
    wait_until(lambda: world.destinations._known["silent"].is_silent, 60)


def test_after_timeouts_in_a_row_one_sender_at_a_time_tries_it(world: World) -> None:
    silenced(world)
    world.most.clear()
    group = world.group(*["silent"] * 9)
    world.wait_for("silent", 4)
    wait_until(lambda: len(world.destinations._known["silent"].parked) == 8, 60)
    assert world.most["silent"] == 1
    back = world.pool.withdraw(group, only_silent=True)
    assert [wait.total_seconds() for _, wait in back] == [
        TIMEOUT * 1.25 * n for n in range(1, 5)
    ] + [pytest.approx(45, abs=15)] * 4, "each at its turn, none later than the longest wait"
    assert world.pool.withdraw(group) == []


def test_a_silent_destination_that_answers_has_its_share_again(world: World) -> None:
    silenced(world)
    world.silent.clear()
    group = world.group(*["silent"] * 9)
    world.wait_for("silent", 3 + 9)
    assert world.pool.withdraw(group, only_silent=True) == []
    wait_until(lambda: not world.destinations._known)


def test_messages_that_wait_for_a_busy_destination_hold_up_no_other(world: World) -> None:
    world.silent.add("slow")
    group = world.group(*["slow"] * 7)
    world.wait_for("slow", SHARE)
    wait_until(lambda: len(world.destinations._known["slow"].parked) == 3, 60)
    assert world.pool.withdraw(group, only_silent=True) == []
    world.group("quick")
    world.wait_for("quick", 1)
    assert [wait for _, wait in world.pool.withdraw(group)] == [timedelta(0)] * 3
    assert world.pool.withdraw(group) == []


@pytest.mark.parametrize("answer", [LookupError("no"), [["a list"]]], ids=["error", "list"])
def test_a_transport_that_cannot_name_a_destination_sends_all_the_same(answer: Any) -> None:
    name_of = Mock(side_effect=answer)
    destinations = Destinations(name_of, share=1, timeout=1, longest=MINUTE, clock=MovableClock())
    claim = Claim(a_message(), token=1)
    name = destinations.name(claim.message)
    assert name is None
    assert destinations.admit(name, (0.0, 0, a_group(), claim))
    assert destinations.leave(name, claim, answered=False) == []


WEBHOOK = WebhookTransport(http=True, ports=[8080])
TO_ONE = WebhookTransport(url="https://shop.example/hook")
_FROM: dict[str, Any] = {"from": "shop@example.org"}
MAIL = SmtpTransport(url="smtps://mail.example", **_FROM)


@pytest.mark.parametrize(
    ("transport", "recipient", "name"),
    [
        (WEBHOOK, "https://Ada.Example/hook?key=1", "ada.example"),
        (WEBHOOK, "http://ada.example.:8080/", "ada.example"),
        (WEBHOOK, "https://127.0.0.1/", None),
        (WEBHOOK, "no URL", None),
        (TO_ONE, "https://ada.example/", None),
        (MAIL, "ada@Example.ORG", "example.org"),
        (MAIL, "nobody@", None),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_destination_is_the_host_of_a_url_or_the_domain_of_an_address(
    transport: WebhookTransport | SmtpTransport, recipient: str, name: str | None
) -> None:
    assert transport.destination(a_message(recipient=recipient)) == name

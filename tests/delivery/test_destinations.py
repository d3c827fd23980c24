"""Destinations: none keeps the senders of a channel from the others, least of all a silent one."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from unittest.mock import Mock

import pytest

from dispatcher.delivery.group import Group
from dispatcher.delivery.sender_pool import Destinations, SenderPool
from dispatcher.store.claims import Claim
from dispatcher.testing import a_message
from dispatcher.transports.smtp import SmtpTransport
from dispatcher.transports.webhook import WebhookTransport
from tests.support.clock import MovableClock
from tests.support.doubles import a_group
from tests.support.waiting import wait_until

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

    def wait_for(self, name: str, many: int) -> None:
        wait_until(lambda: self.begun.count(name) >= many, 60)


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
    wait_until(lambda: world.destinations._is_silent("silent"), 60)


def test_after_timeouts_in_a_row_one_sender_at_a_time_tries_it(world: World) -> None:
    silenced(world)
    world.most.clear()
    group = world.group(*["silent"] * 9)
    world.wait_for("silent", 4)
    wait_until(lambda: len(world.destinations._parked["silent"]) == 8, 60)
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
    assert not world.destinations._timeouts


def test_messages_that_wait_for_a_busy_destination_hold_up_no_other(
    world: World,
) -> None:
    world.silent.add("slow")
    group = world.group(*["slow"] * 7)
    world.wait_for("slow", SHARE)
    wait_until(lambda: len(world.destinations._parked["slow"]) == 3, 60)
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
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_a_destination_is_the_host_of_a_url_or_the_domain_of_an_address(
    transport: WebhookTransport | SmtpTransport, recipient: str, name: str | None
) -> None:
    assert transport.destination(a_message(recipient=recipient)) == name

"""Records, renewals and returns of a group while its senders are busy."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from dispatcher import Message, Status, StoreUnavailable
from dispatcher.limiters.permits import Permit, PermitAnswer, Permits
from dispatcher.store.claims import Claims, Success
from dispatcher.times.clock import SystemClock
from tests.support.doubles import Between, once
from tests.support.house import House, hour_ago
from tests.support.house_fixtures import Build
from tests.support.waiting import wait_until

TWO_SENDERS = {"memory": {"transport": "memory", "senders": 2}}


@pytest.fixture
def pair(build: Build) -> House:
    return build(clock=hour_ago(), channels=TWO_SENDERS, in_order=False)


def statuses(house: House, messages: Sequence[Message]) -> set[Status]:
    return {house.again(each).status for each in messages}


class Hesitant:
    """Permits that let the third of a group wait at first."""

    def __init__(self, real: Permits) -> None:
        self._real = real
        self._asked = 0
        self.extended: set[UUID] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def acquire(self, wanted: Sequence[Permit], *, within: timedelta) -> list[PermitAnswer]:
        self._asked += 1
        given = self._real.acquire(wanted[:2], within=within)
        later = PermitAnswer(allowed=False, remaining=0, retry_after=timedelta(seconds=0.2))
        return given + [later for _ in wanted[2:]]

    def settle(self, used: Sequence[tuple[Permit, timedelta]]) -> None:
        self.extended |= {permit.message_id for permit, since in used if since < timedelta(0)}
        self._real.settle(used)


class Refusing:
    """Claims that never record this message, and others when they are asked again."""

    def __init__(self, real: Claims, refused: UUID) -> None:
        self._real = real
        self._refused = refused
        self._asked: list[set[UUID]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def record(self, successes: Sequence[Success], *others: Any, **named: Any) -> Any:
        ids = {each.claim.message.id for each in successes}
        if self._refused in ids:
            raise StoreUnavailable("a value is too long", refused=True)
        if ids not in self._asked:
            self._asked.append(ids)
            raise StoreUnavailable("the connection to the database broke")
        return self._real.record(successes, *others, **named)


def test_messages_that_wait_for_a_permit_keep_their_claims(pair: House) -> None:
    """The store was away for long while an outcome was recorded."""
    hesitant = Hesitant(pair.parts.permits)
    pair.swap("permits", hesitant)
    messages = [pair.submit(name) for name in ("ada", "ben", "cleo")]
    third = messages[2]
    shared: Any = pair.parts.delivery.shared
    gone = threading.Event()
    ends: list[object] = []

    def stall() -> None:
        ends.extend(pair.columns(third, "claim_expires_at"))
        pair.moved.advance(pair.settings.claim_ttl * 0.6)

    shared.claims = Between(shared.claims, before={"record": once(stall)})

    def note(message: Message) -> None:
        if message.id == messages[1].id:
            pair.moved.advance(timedelta(seconds=0.1))
            assert gone.wait(60)
        elif message.id == third.id:
            ends.extend(pair.columns(third, "claim_expires_at"))
            gone.set()

    pair.memory.before = note
    assert pair.deliver(*messages) == 3
    assert len(ends) == 2
    assert ends[1] > ends[0], "it is sent under the renewed claim"  # type: ignore[operator]
    assert third.id not in hesitant.extended, "a restored permit would be granted unjudged"
    assert hesitant.extended


def test_the_others_of_a_group_are_tried_again_after_the_store_refuses_one(pair: House) -> None:
    """The store refuses one of a group, and is away for a moment when it gets the next one."""
    messages = [pair.submit(name) for name in ("ada", "ben", "cleo")]
    shared: Any = pair.parts.delivery.shared
    shared.claims = Refusing(shared.claims, messages[0].id)
    pair.deliver(*messages)
    assert statuses(pair, messages[:1]) == {Status.SENDING}, "rescue finds it"
    assert statuses(pair, messages[1:]) == {Status.SENT}


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

"""Random bookings on a real Redis against the plain-Python model."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, cast
from uuid import UUID, uuid4

import pytest
import redis
from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dispatcher.errors import QuotaExceeded
from dispatcher.message import new_id
from dispatcher.quota import Quota
from dispatcher.reservation import Terms
from dispatcher.times.send_time import from_ms, to_ms
from tests.support import model, soak
from tests.support.limits import little_at_once
from tests.support.reserving import TOKENS, Reserving, pending, reserve, reserving, stored
from tests.support.servers import RedisServer

BASE = 4_102_444_800_000  # 2100-01-01, ms
SCOPE = "someone"

quotas = st.lists(st.builds(Quota, st.integers(1, 6), st.integers(1, 60)), min_size=1, max_size=3)
times = st.integers(0, 120).map(lambda offset: BASE + offset)
rooms = st.one_of(st.just(0), st.integers(0, 120))
choices = st.integers(0, 1_000)


class WindowsMachine(RuleBasedStateMachine):
    """One scope of a namespace of its own; the model is a dict of id and time."""

    url: str
    numbers: Iterator[int]

    def __init__(self) -> None:
        super().__init__()
        self.booked: dict[UUID, int] = {}
        self.unconfirmed: set[UUID] = set()
        self.namespace = f"state-{next(self.numbers)}"
        self.real: Reserving | None = None

    @initialize(chosen=quotas)
    def choose(self, chosen: list[Quota]) -> None:
        self.quotas = chosen
        self.rule = [(quota.count, quota.length_ms) for quota in chosen]
        self.real = reserving(self.url, chosen, namespace=self.namespace, shards=1)
        self.windows = self.real.windows
        self.real.open()

    @property
    def client(self) -> redis.Redis:
        return cast(Reserving, self.real).client

    @property
    def members(self) -> list[int]:
        return sorted(self.booked.values())

    @rule(time=times, room=rooms)
    def book(self, time: int, room: int) -> None:
        message_id = new_id()
        slot = model.next_slot(self.members, time, self.rule)
        asked = {
            "terms": Terms.own(SCOPE),
            "send_at": from_ms(time),
            "latest": from_ms(time + room),
        }
        if slot <= time + room:
            booking = reserve(self.windows, message_id, **cast(Any, asked))
            assert to_ms(booking.send_at) == slot
            self.booked[message_id] = slot
            self.unconfirmed.add(message_id)
        else:
            with pytest.raises(QuotaExceeded) as refused:
                reserve(self.windows, message_id, **cast(Any, asked))
            self.check_refusal(refused.value, time)

    @precondition(lambda self: self.booked)
    @rule(choice=choices, time=times)
    def book_again(self, choice: int, time: int) -> None:
        message_id = self.pick(choice)
        booking = reserve(self.windows, message_id, terms=Terms.own(SCOPE), send_at=from_ms(time))
        assert to_ms(booking.send_at) == self.booked[message_id]
        self.unconfirmed.add(message_id)

    @precondition(lambda self: self.booked)
    @rule(choice=choices, time=times, room=rooms, taken=st.booleans())
    def move(self, choice: int, time: int, room: int, taken: bool) -> None:
        message_id = self.pick(choice)
        others = sorted(at for each, at in self.booked.items() if each != message_id)
        slot = model.next_slot(others, time, self.rule)
        more = {
            "terms": Terms.own(SCOPE),
            "send_at": from_ms(time),
            "latest": from_ms(time + room),
        }
        if slot > time + room:
            with pytest.raises(QuotaExceeded) as refused:
                self.windows.move(message_id, **cast(Any, more))
            assert message_id not in refused.value.conflicting
            self.check_refusal(refused.value, time, others)
            return
        moving = self.windows.move(message_id, **cast(Any, more))
        assert to_ms(moving.send_at) == slot
        if taken:
            assert self.windows.take([(moving, next(TOKENS))]) == [True]
            self.booked[message_id] = slot
            self.unconfirmed.add(message_id)
        else:
            self.windows.drop(moving)

    @precondition(lambda self: self.booked)
    @rule(choice=choices)
    def cancel(self, choice: int) -> None:
        message_id = self.pick(choice)
        self.windows.release(message_id, Terms.own(SCOPE))
        del self.booked[message_id]
        self.unconfirmed.discard(message_id)

    @rule()
    def cancel_what_is_not_there(self) -> None:
        self.windows.release(uuid4(), Terms.own(SCOPE))

    @rule(time=times)
    def look_for_a_slot(self, time: int) -> None:
        found = self.windows.next_slot(Terms.own(SCOPE), from_ms(time))
        assert to_ms(found) == model.next_slot(self.members, time, self.rule)

    @rule()
    def confirm_everything(self) -> None:
        upkeep = cast("Reserving", self.real).upkeep
        found = upkeep.unconfirmed(older_than=timedelta(0), limit=1_000)
        assert {each.message_id for each in found} == self.unconfirmed
        times = {message_id: from_ms(at) for message_id, at in self.booked.items()}
        assert upkeep.confirm(found, stored(times)) == 0
        self.unconfirmed.clear()

    @rule()
    def lose_the_scripts(self) -> None:
        self.client.script_flush()

    @invariant()
    def the_window_is_the_model(self) -> None:
        if self.real is not None:
            assert self.real.members(SCOPE) == self.booked
            assert not any(model.is_broken(self.booked.values(), each) for each in self.rule)

    def teardown(self) -> None:
        if self.real is None:
            return
        assert pending(self.client, self.real.keys(SCOPE)) == self.unconfirmed
        self.client.unlink(*cast(list[bytes], self.client.keys(f"{{{self.namespace}:*")))
        self.client.close()

    def pick(self, choice: int) -> UUID:
        return list(self.booked)[choice % len(self.booked)]

    def check_refusal(
        self, refusal: QuotaExceeded, asked: int, members: list[int] | None = None
    ) -> None:
        """The refusal names a quota that really is in the way, who is, and the next slot."""
        quota = Quota.parse(refusal.quota) if "ms" not in refusal.quota else None
        named = next(each for each in self.quotas if str(each) == refusal.quota)
        assert quota in (None, named)
        assert len(refusal.conflicting) == min(named.count, 100)
        in_the_way = [self.booked[message_id] for message_id in refusal.conflicting]
        assert model.is_broken([*in_the_way, asked], (named.count, named.length_ms))
        beside = self.members if members is None else members
        assert to_ms(refusal.next_slot) == model.next_slot(beside, asked, self.rule)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("most_read", "examples"), [(None, 300), (0, 60), (9, 60)], ids=["as it is", "0", "9"]
)
def test_windows_do_what_the_model_does(
    redis_server: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    most_read: int | None,
    examples: int,
) -> None:
    if most_read is not None:
        monkeypatch.setattr("dispatcher.reservation.shards.script", little_at_once(most_read))

    class Machine(WindowsMachine):
        url = redis_server.url
        numbers = itertools.count()

    stories = soak.examples(examples)
    soak.play(Machine, stories=stories, steps=30, suppress_health_check=[HealthCheck.too_slow])
    with redis_server.client() as client:
        assert client.keys("*") == []

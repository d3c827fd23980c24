"""Others book and give back between the calls that judge one time: no quota is ever broken."""

from __future__ import annotations

from random import Random
from typing import Any
from uuid import UUID

import pytest

from dispatcher.errors import SlotRefused
from dispatcher.message import new_id
from dispatcher.quota import Quota
from dispatcher.reservation import Terms
from dispatcher.times.send_time import from_ms, to_ms
from tests.support import model
from tests.support.limits import little_at_once
from tests.support.reserving import cancel, reserve, reserving
from tests.support.servers import RedisServer
from tests.support.soak import examples
from tests.support.stories import BASE, BOTH, NEAR, ONE

TERMS = [Terms(BOTH), Terms(ONE)]


class Crowd:
    """Two windows with several quotas of about the same N each, and who has a place in them."""

    def __init__(self, url: str, roll: Random) -> None:
        self.roll, self.size, self.step = roll, roll.randint(3, 40), roll.randint(1, 5)
        self.quotas = [self.some_quotas(), self.some_quotas()]
        one, near = self.quotas
        self.real = reserving(url, one, further={NEAR: near}, namespace="crowd", shards=1)
        self.real.client.flushdb()
        self.real.open()
        self.booked: dict[UUID, tuple[int, Terms]] = {}
        self.disturbed = 0
        shards: Any = self.real.windows.shards
        shards._run_once = self.after_others(shards._check, shards._run_once)

    def some_quotas(self) -> list[Quota]:
        roll, many = self.roll, set[tuple[int, int]]()
        for _ in range(roll.randint(1, 3)):
            count = max(1, self.size + roll.randint(-self.size, 20))
            many.add((count, max(2, count * self.step * roll.randint(6, 12) // 8)))
        return [Quota(*each) for each in sorted(many, key=lambda _: roll.random())]

    def after_others(self, check: Any, run_once: Any) -> Any:
        busy = False

        def call(script: Any, given: Any) -> Any:
            nonlocal busy
            if script is check and not busy and self.roll.random() < 0.5:
                busy = True
                self.disturbed += 1
                if self.booked and self.roll.random() < 0.6:
                    gone = self.roll.choice(list(self.booked))
                    _, terms = self.booked.pop(gone)
                    cancel(self.real.windows, gone, terms)
                else:
                    self.book()
                busy = False
            return run_once(script, given)

        return call

    def book(self) -> None:
        terms, message_id = self.roll.choice(TERMS), new_id()
        asked = BASE + self.roll.randrange(3 * self.size * self.step)
        latest = asked + self.roll.choice([0, 0, 5, 3 * self.size * self.step])
        try:
            found = reserve(
                self.real.windows,
                message_id,
                terms=terms,
                send_at=from_ms(asked),
                latest=from_ms(latest),
            )
        except SlotRefused:
            return
        self.booked[message_id] = (to_ms(found.send_at), terms)

    def check(self) -> None:
        all_of_them = list(self.booked.values())
        windows = (all_of_them, [each for each in all_of_them if each[1] is TERMS[0]])
        for held, quotas in zip(windows, self.quotas, strict=True):
            times = sorted(at for at, _ in held)
            assert not any(model.is_broken(times, (q.count, q.length_ms)) for q in quotas)


def test_no_quota_is_broken(redis_session: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    disturbed = 0
    for seed in range(examples(40)):
        roll = Random(seed)  # noqa: S311 - no secret
        little = little_at_once(roll.choice([0, 3, 9, 40]))
        monkeypatch.setattr("dispatcher.reservation.shards.script", little)
        crowd = Crowd(redis_session.url, roll)
        with crowd.real:
            for _ in range(4 * crowd.size):
                crowd.book()
                crowd.check()
            assert all(len(member) == 16 for member, _ in crowd.real.unconfirmed())
        disturbed += crowd.disturbed
    assert disturbed > 100

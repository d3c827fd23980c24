"""Others book and give back between the calls that judge one time: no quota is ever broken."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from dispatcher.errors import SlotRefused
from dispatcher.message import new_id
from dispatcher.quota import Quota
from dispatcher.scope import OWN_SCOPE
from dispatcher.times.send_time import from_ms, to_ms
from tests.support.examples import examples
from tests.support.model import Wish
from tests.support.reserving import little_at_once, reserve
from tests.support.servers import RedisServer
from tests.support.stories import BASE, BOTH, NEAR, ONE, Step, Story


class Crowd(Story):
    """Two windows with several quotas of about the same N each, and who has a place in them."""

    def __init__(self, url: str, roll: Random) -> None:
        self.roll, self.size, self.step = roll, roll.randint(3, 40), roll.randint(1, 5)
        quotas = {OWN_SCOPE: self.some_quotas(), NEAR: self.some_quotas()}
        super().__init__(url, quotas, [Wish(BOTH), Wish(ONE)])
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
                if self.of and self.roll.random() < 0.6:
                    self.free(Step("free", 0, who=self.roll.randrange(1_000)))
                else:
                    self.book_somewhere()
                busy = False
            return run_once(script, given)

        return call

    def book_somewhere(self) -> None:
        wish, span = self.roll.choice(self.wishes), 3 * self.size * self.step
        asked = BASE + self.roll.randrange(span)
        latest = from_ms(asked + self.roll.choice([0, 0, 5, span]))
        try:
            found = reserve(
                self.real.windows, new_id(), terms=wish.terms, send_at=from_ms(asked), latest=latest
            )
        except SlotRefused:
            return
        self.note(found.message_id, wish, to_ms(found.send_at))


def test_no_quota_is_broken(redis_session: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    disturbed, stories = 0, examples(40)
    for seed in range(stories):
        roll = Random(seed)  # noqa: S311 - no secret
        little = little_at_once(roll.choice([0, 3, 9, 40]))
        monkeypatch.setattr("dispatcher.reservation.shards.script", little)
        with Crowd(redis_session.url, roll) as crowd:
            for _ in range(4 * crowd.size):
                crowd.book_somewhere()
                crowd.check_windows()
            assert all(len(member) == 16 for member, _ in crowd.real.unconfirmed())
        disturbed += crowd.disturbed
    assert disturbed > 10 * stories

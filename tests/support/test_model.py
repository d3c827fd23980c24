"""The two ways in which the model finds the next slot agree."""

from __future__ import annotations

import random

from tests.support.model import fits, next_slot, next_slot_by_runs


def test_the_next_slot_by_runs_is_the_next_slot() -> None:
    roll = random.Random(1)  # noqa: S311 - not for secrets
    for _ in range(3_000):
        quotas = [(roll.randint(1, 5), roll.randint(1, 40)) for _ in range(roll.randint(1, 3))]
        members: list[int] = []
        for time in (roll.randint(0, 100) for _ in range(roll.randint(0, 25))):
            if fits(members, time, quotas):
                members = sorted([*members, time])
        asked = roll.randint(-10, 110)
        assert next_slot_by_runs(members, asked, quotas) == next_slot(members, asked, quotas)

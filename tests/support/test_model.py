"""What the model blocks is what breaks the promise."""

from __future__ import annotations

import random

from tests.support.model import fits, next_slot


def test_the_next_slot_is_the_first_time_that_fits() -> None:
    roll = random.Random(1)  # noqa: S311 - not for secrets
    for _ in range(3_000):
        quotas = [(roll.randint(1, 5), roll.randint(1, 40)) for _ in range(roll.randint(1, 3))]
        members: list[int] = []
        for time in (roll.randint(0, 100) for _ in range(roll.randint(0, 25))):
            if fits(members, time, quotas):
                members = sorted([*members, time])
        asked = roll.randint(-10, 110)
        # What is blocked ends W after a member, so the first fit is ``asked`` or such an end.
        ends = {member + length for member in members for _, length in quotas}
        candidates = sorted({asked, *(end for end in ends if end > asked)})
        first = next(time for time in candidates if fits(members, time, quotas))
        assert next_slot(members, asked, quotas) == first

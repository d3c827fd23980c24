"""Scopes so full that one call of a script cannot reach the next slot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dispatcher.errors import QuotaExceeded
from dispatcher.message import new_id
from dispatcher.quota import Quota
from dispatcher.reservation import Terms
from dispatcher.times.send_time import from_ms, to_ms
from tests.support import model
from tests.support.reserving import Reserving, window
from tests.support.soak import examples

BASE = 4_102_444_800_000  # 2100-01-01, ms
LENGTH = 10


@dataclass(frozen=True)
class Packed:
    """So many full groups, one length apart, with groups left out."""

    count: int
    groups: int
    holes: frozenset[int]

    @property
    def members(self) -> list[int]:
        return [
            BASE + group * LENGTH
            for group in range(self.groups)
            if group not in self.holes
            for _ in range(self.count)
        ]


packed = st.builds(
    Packed,
    st.integers(1, 2),
    st.integers(1_010, 1_300),
    st.frozensets(st.integers(0, 1_299), max_size=3),
)
long_search = settings(
    max_examples=examples(40),
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def fill(real: Reserving, plan: Packed) -> str:
    """Put the members straight into the window of a fresh scope; return the scope."""
    scope = str(new_id())
    members: dict[bytes, int] = {new_id().bytes: time for time in plan.members}
    real.client.zadd(real.keys(scope).window(scope), members)
    return scope


@long_search
@given(plan=packed, offset=st.integers(0, 40), room=st.integers(0, 15_000))
def test_a_search_longer_than_one_call_finds_the_first_slot(
    opened: Callable[..., Reserving], plan: Packed, offset: int, room: int
) -> None:
    real = opened(Quota(plan.count, LENGTH))
    scope, rule = fill(real, plan), [(plan.count, LENGTH)]
    asked = BASE + offset
    slot = model.next_slot(plan.members, asked, rule)

    assert to_ms(real.windows.next_slot(Terms.plain(scope), from_ms(asked))) == slot

    message_id = new_id()
    if slot > asked:
        with pytest.raises(QuotaExceeded) as refused:
            real.windows.reserve(message_id, terms=Terms.plain(scope), send_at=from_ms(asked))
        assert to_ms(refused.value.next_slot) == slot
        check_conflicting(real.client, real.keys(scope).window(scope), refused.value, asked)

    latest = from_ms(asked + room)
    if slot > asked + room:
        with pytest.raises(QuotaExceeded) as refused:
            real.windows.reserve(
                message_id, terms=Terms.plain(scope), send_at=from_ms(asked), latest=latest
            )
        assert to_ms(refused.value.next_slot) == slot
        check_conflicting(real.client, real.keys(scope).window(scope), refused.value, asked)
        assert message_id not in real.members(scope)
    else:
        booking = real.windows.reserve(
            message_id, terms=Terms.plain(scope), send_at=from_ms(asked), latest=latest
        )
        assert to_ms(booking.send_at) == slot
        assert real.members(scope)[message_id] == slot


def check_conflicting(client: redis.Redis, key: str, refusal: QuotaExceeded, asked: int) -> None:
    members: dict[UUID, int] = window(client, key)
    quota = Quota(len(refusal.conflicting), LENGTH)
    times = [members[message_id] for message_id in refusal.conflicting]
    assert str(quota) == refusal.quota
    assert model.is_broken([*times, asked], (quota.count, quota.length_ms))

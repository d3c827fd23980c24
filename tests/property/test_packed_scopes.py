"""Scopes packed under a short and a long quota: a search is cut into calls that stay short."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from dispatcher.errors import QuotaExceeded
from dispatcher.message import new_id
from dispatcher.quota import Quota
from dispatcher.reservation import Terms
from dispatcher.times.send_time import from_ms, to_ms
from tests.support import model
from tests.support.reserving import Reserving, calls_of

BASE = 4_102_444_800_000  # 2100-01-01, ms
SECOND, HOUR, DAY = 1_000, 3_600_000, 86_400_000
QUOTAS = (Quota.parse("1/second"), Quota.parse("1000/day"))
RULE = [(each.count, each.length_ms) for each in QUOTAS]


def runs(*starts_and_counts: tuple[int, int]) -> list[int]:
    """Members a second apart, so many from each start on."""
    return sorted(
        BASE + start + n * SECOND for start, count in starts_and_counts for n in range(count)
    )


PACKED: dict[str, list[int]] = {
    "room for one in the day": runs((-23 * HOUR, 500), (0, 499), (23 * HOUR, 500)),
    "no room left in the day": runs((-23 * HOUR, 400), (0, 600), (23 * HOUR, 400)),
    "full days on both sides": runs((-20 * HOUR, 700), (4 * HOUR, 300), (5 * HOUR, 400)),
    "two full days in a row": runs((0, 1_000), (DAY, 1_000)),
    "room for one after a full row": runs((0, 999)),
    "room for one after each of two full rows": runs((0, 999), (DAY, 999)),
}
"""Some 1,000 to 2,000 members that keep both quotas."""


@pytest.fixture
def real(opened: Callable[..., Reserving]) -> Reserving:
    """Give windows whose scripts the server knows."""
    real = opened(*QUOTAS)
    real.windows.reserve(new_id(), terms=Terms.plain("warm"), send_at=from_ms(BASE))
    real.windows.next_slot(Terms.plain("warm"), from_ms(BASE))
    return real


def fill(real: Reserving, members: Sequence[int]) -> str:
    """Put the members straight into the window of a fresh scope; return the scope."""
    scope = str(new_id())
    packed: dict[Any, int] = {new_id().bytes: time for time in members}
    real.client.zadd(real.keys(scope).window(scope), packed)
    return scope


@pytest.mark.parametrize("members", PACKED.values(), ids=PACKED)
@pytest.mark.parametrize("offset", [0, 250 * SECOND + 7])
def test_a_packed_scope_answers_as_the_rule_says(
    real: Reserving, members: list[int], offset: int
) -> None:
    assert not any(model.is_broken(members, quota) for quota in RULE)
    scope, asked = fill(real, members), BASE + offset
    slot = model.next_slot(members, asked, RULE)

    assert to_ms(real.windows.next_slot(Terms.plain(scope), from_ms(asked))) == slot
    message_id = new_id()
    if slot > asked:
        with pytest.raises(QuotaExceeded) as refused:
            real.windows.reserve(message_id, terms=Terms.plain(scope), send_at=from_ms(asked))
        assert to_ms(refused.value.next_slot) == slot
        in_the_way = real.members(scope)
        times = [in_the_way[each] for each in refused.value.conflicting]
        [quota] = [each for each in QUOTAS if str(each) == refused.value.quota]
        assert len(times) == quota.count
        assert model.is_broken([*times, asked], (quota.count, quota.length_ms))
        with pytest.raises(QuotaExceeded) as refused:
            real.windows.reserve(
                message_id,
                terms=Terms.plain(scope),
                send_at=from_ms(asked),
                latest=from_ms(slot - 1),
            )
        assert to_ms(refused.value.next_slot) == slot
        assert message_id not in real.members(scope)
    shifted = real.windows.reserve(
        message_id, terms=Terms.plain(scope), send_at=from_ms(asked), latest=from_ms(slot)
    )
    assert to_ms(shifted.send_at) == slot
    assert real.members(scope)[message_id] == slot


@pytest.mark.parametrize(
    ("name", "most"),
    [("room for one after a full row", 10), ("room for one after each of two full rows", 1_000)],
)
def test_a_long_search_is_cut_into_several_calls(real: Reserving, name: str, most: int) -> None:
    scope, asked = fill(real, PACKED[name]), from_ms(BASE)

    def refused() -> None:
        with pytest.raises(QuotaExceeded):
            real.windows.reserve(new_id(), terms=Terms.plain(scope), send_at=asked)

    def shifted() -> None:
        latest = from_ms(BASE + DAY)
        real.windows.reserve(new_id(), terms=Terms.plain(scope), send_at=asked, latest=latest)

    def searched() -> None:
        real.windows.next_slot(Terms.plain(scope), asked)

    for action in (searched, refused, shifted):
        assert 2 <= calls_of(real.client, action) <= most


def test_what_fits_takes_one_call_also_in_a_packed_scope(real: Reserving) -> None:
    scope, free = fill(real, PACKED["room for one in the day"]), from_ms(BASE + 499 * SECOND)
    assert (
        calls_of(
            real.client,
            lambda: real.windows.reserve(new_id(), terms=Terms.plain(scope), send_at=free),
        )
        == 1
    )

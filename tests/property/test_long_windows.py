"""Scopes so full that one call of a script cannot reach the next slot, or may just reach it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dispatcher.errors import QuotaExceeded
from dispatcher.message import new_id
from dispatcher.quota import Quota
from dispatcher.reservation import Terms
from dispatcher.times.send_time import from_ms
from tests.support.large_windows import BASE, Filled
from tests.support.model import next_free
from tests.support.reserving import Reserving, calls_of, reserve
from tests.support.servers import RedisServer
from tests.support.soak import examples

LENGTH = 10
SECOND, HOUR, DAY = 1_000, 3_600_000, 86_400_000
QUOTAS = (Quota.parse("1/second"), Quota.parse("1000/day"))
Opened = Callable[..., Reserving]


def fill(real: Reserving, members: Sequence[int]) -> str:
    """Put the members straight into the window of a fresh scope; return the scope."""
    scope = str(new_id())
    packed: dict[Any, int] = {new_id().bytes: BASE + time for time in members}
    real.client.zadd(real.keys(scope).window(scope), packed)
    return scope


def check(url: str, quotas: Sequence[Quota], members: Sequence[int], asked: int, room: int) -> None:
    """Fail unless a scope with these members gives the slot that the rule says, and none before."""
    one = Filled(url, quotas, members)
    with one.real:
        slot = next_free(one.intervals(), asked)
        one.next_slot(asked, 0)
        for latest in (asked, slot - 1, max(slot, asked + room)):
            if latest >= asked:
                one.reserve(asked, latest - asked)
        one.check_windows()


@st.composite
def full_groups(draw: st.DrawFn) -> list[int]:
    """Draw full groups of one or two, one length apart, with groups left out."""
    holes = draw(st.frozensets(st.integers(0, 1_299), max_size=3))
    count, groups = draw(st.integers(1, 2)), draw(st.integers(1_010, 1_300))
    left = [group * LENGTH for group in range(groups) if group not in holes]
    return sorted(left * count)


@settings(
    max_examples=examples(40),
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(members=full_groups(), offset=st.integers(0, 40), room=st.integers(0, 15_000))
def test_a_search_longer_than_one_call_finds_the_first_slot(
    redis_session: RedisServer, members: list[int], offset: int, room: int
) -> None:
    quota = Quota(members.count(members[0]), LENGTH)
    check(redis_session.url, [quota], members, BASE + offset, room)


def runs(*starts_and_counts: tuple[int, int]) -> list[int]:
    """Members a second apart, so many from each start on."""
    return sorted(start + n * SECOND for start, count in starts_and_counts for n in range(count))


PACKED: dict[str, list[int]] = {
    "room for one in the day": runs((-23 * HOUR, 500), (0, 499), (23 * HOUR, 500)),
    "no room left in the day": runs((-23 * HOUR, 400), (0, 600), (23 * HOUR, 400)),
    "room for one after a full row": runs((0, 999)),
    "room for one after each of two full rows": runs((0, 999), (DAY, 999)),
}
"""Some 1,000 to 2,000 members that keep both a short and a long quota."""


@pytest.mark.parametrize("members", PACKED.values(), ids=PACKED)
def test_a_packed_scope_answers_as_the_rule_says(
    redis_session: RedisServer, members: list[int]
) -> None:
    check(redis_session.url, QUOTAS, members, BASE + 250 * SECOND + 7, 0)


@pytest.fixture
def real(opened: Opened) -> Reserving:
    """Give windows whose scripts the server knows."""
    real = opened(*QUOTAS)
    reserve(real.windows, new_id(), terms=Terms.own("warm"), send_at=from_ms(BASE))
    real.windows.next_slot(Terms.own("warm"), from_ms(BASE))
    return real


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("room for one after a full row", 1, 1),
        ("room for one after each of two full rows", 2, 1_000),
    ],
)
def test_only_a_long_search_is_cut_into_several_calls(
    real: Reserving, name: str, least: int, most: int
) -> None:
    terms, asked = Terms.own(fill(real, PACKED[name])), from_ms(BASE)

    def refused() -> None:
        with pytest.raises(QuotaExceeded):
            reserve(real.windows, new_id(), terms=terms, send_at=asked)

    def shifted() -> None:
        reserve(real.windows, new_id(), terms=terms, send_at=asked, latest=from_ms(BASE + DAY))

    def searched() -> None:
        real.windows.next_slot(terms, asked)

    for action in (searched, refused, shifted):
        assert least <= calls_of(real.client, action) <= most


def test_a_booking_that_fits_takes_one_call_in_a_packed_scope(real: Reserving) -> None:
    terms = Terms.own(fill(real, PACKED["room for one in the day"]))
    free = from_ms(BASE + 499 * SECOND)

    def book() -> None:
        reserve(real.windows, new_id(), terms=terms, send_at=free)

    assert calls_of(real.client, book) == 1

"""A hold that one of several windows has lost is no leave to book there unjudged."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from dispatcher.errors import ReservationsUnavailable
from dispatcher.message import new_id
from dispatcher.quota import Quota
from dispatcher.reservation import BookingRequest, Terms
from dispatcher.scope import OWN_SCOPE, Scope, counted
from dispatcher.times.send_time import from_ms
from tests.support.limits import little_at_once
from tests.support.reserving import Reserving, move, reserve

BASE = 4_102_444_800_000  # 2100-01-01, ms
COUNT, STEP = 5, 10
LENGTH = (COUNT - 1) * STEP
ASKED = BASE + COUNT * STEP + STEP // 2
AWAY = BASE - 10_000
NEAR = "recipient.sms"
BOTH = Terms(counted((OWN_SCOPE, NEAR), scope="ada", channel="sms"))
LAST = BOTH.scopes[1]


@pytest.fixture
def real(opened: Callable[..., Reserving], monkeypatch: pytest.MonkeyPatch) -> Reserving:
    """Give windows in which the first scope is full but for single gaps, and the last one empty."""
    monkeypatch.setattr("dispatcher.reservation.shards.script", little_at_once(0))
    real = opened(Quota(COUNT, LENGTH), further={NEAR: [Quota(1, 1_000)]})
    window = real.keys("ada").window("ada")
    members: dict[Any, int] = {new_id().bytes: BASE + n * STEP for n in range(3 * COUNT)}
    real.client.zadd(window, members)
    return real


def lose_while_judging(
    real: Reserving, scope: Scope, monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object]
) -> None:
    """Let reconcile settle the hold in one window, and then something happen, after the judging."""
    judge = real.windows.shards._checked

    def checked(*asked: Any) -> Any:
        found = judge(*asked)
        window = real.keys(scope.home).window(scope.name, scope.kind).encode()
        waiting = real.upkeep.unconfirmed(older_than=timedelta(0), limit=100)
        holds = [each for each in waiting if each.window == window and len(each.member) > 16]
        assert len(holds) == 1
        real.upkeep.confirm(holds, {})
        happens()
        return found

    monkeypatch.setattr(real.windows.shards, "_checked", checked)


@pytest.mark.parametrize("moves", [False, True], ids=["book", "move"])
def test_a_place_that_another_took_meanwhile_stays_the_other_s(
    real: Reserving, monkeypatch: pytest.MonkeyPatch, moves: bool
) -> None:
    message_id, other = new_id(), new_id()
    if moves:
        reserve(real.windows, message_id, terms=BOTH, send_at=from_ms(AWAY))
    before = {scope: real.places(scope) for scope in BOTH.scopes}

    def another_books() -> None:
        reserve(real.windows, other, terms=Terms((LAST,)), send_at=from_ms(ASKED + 1))

    lose_while_judging(real, LAST, monkeypatch, another_books)
    act = move if moves else reserve
    with pytest.raises(ReservationsUnavailable):
        act(real.windows, message_id, terms=BOTH, send_at=from_ms(ASKED))
    before[LAST] |= {other.bytes: ASKED + 1}
    assert {scope: real.places(scope) for scope in BOTH.scopes} == before
    assert all(len(member) == 16 for member, _ in real.unconfirmed())


@pytest.mark.parametrize("scope", BOTH.scopes, ids=str)
def test_a_hold_that_one_window_lost_is_not_taken_for_held(real: Reserving, scope: Scope) -> None:
    """The same move comes again, as after a lost reply."""
    message_id, far = new_id(), AWAY - 100_000
    reserve(real.windows, message_id, terms=BOTH, send_at=from_ms(AWAY))
    [leg] = real.windows.legs(BOTH)
    asked = (leg, BookingRequest(message_id, BOTH, far, far).moving())
    booked = real.windows.shards.book([asked])
    assert real.windows.shards.book([asked]) == booked
    real.client.zrem(real.keys(scope.home).window(scope.name, scope.kind), asked[1].member)
    assert real.windows.shards.book([asked]) == booked
    assert all(far in real.places(each).values() for each in BOTH.scopes)

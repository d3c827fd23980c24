"""Times whose judgement takes several calls are held meanwhile; what comes in between.

Windows are full but for single gaps, and a script may do so little that each run takes a call.
That the answers are those of the rule, the tests in ``property`` say.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from dispatcher.errors import QuotaExceeded, ReservationsUnavailable
from dispatcher.message import new_id
from dispatcher.quota import Quota
from dispatcher.reservation.booking import BookingRequest, Terms
from dispatcher.reservation.upkeep import Reserved
from dispatcher.scope import OWN_SCOPE, Scope, counted, own_scope
from dispatcher.times.send_time import from_ms
from tests.support.reserving import Reserving, cancel, little_at_once, own_terms, reserve
from tests.support.reserving import move as booked_move

BASE = 4_102_444_800_000  # 2100-01-01, ms
COUNT, STEP = 5, 10
LENGTH = (COUNT - 1) * STEP
QUOTAS = [Quota(3, 8), Quota(COUNT, LENGTH)]
ASKED = BASE + COUNT * STEP + STEP // 2
AWAY = BASE - 10_000
ADA = own_terms("ada")
OWN = own_scope("ada")
NEAR = "recipient.sms"
FURTHER = {NEAR: [Quota(1, 1_000)]}
BOTH = Terms(counted((OWN_SCOPE, NEAR), scope="ada", channel="sms"))
LAST = BOTH.scopes[1]
FILLED: dict[Any, int] = {n.to_bytes(16, "big"): BASE + n * STEP for n in range(3 * COUNT)}
Happens = Callable[[], object]


@pytest.fixture
def real(opened: Callable[..., Reserving], monkeypatch: pytest.MonkeyPatch) -> Reserving:
    """Give windows in which the own scope is full but for single gaps, and the other empty."""
    monkeypatch.setattr("dispatcher.reservation.shards.script", little_at_once(0))
    real = opened(*QUOTAS, further=FURTHER)
    fill(real)
    return real


def fill(real: Reserving) -> None:
    real.client.zadd(real.keys("ada").window("ada"), FILLED)


def book(real: Reserving, at: int, terms: Terms = ADA) -> UUID:
    return reserve(real.windows, new_id(), terms=terms, send_at=from_ms(at)).message_id


def move(real: Reserving, message_id: UUID, at: int, terms: Terms = ADA) -> BookingRequest:
    return booked_move(real.windows, message_id, terms=terms, send_at=from_ms(at))


def stands(real: Reserving, *booked: tuple[UUID, int]) -> None:
    """Fail if more than this was added to the window, or if anything else waits for the store."""
    added = {member: at for member, at in real.places(OWN).items() if member not in FILLED}
    assert added == {message_id.bytes: at for message_id, at in booked}
    assert real.places(OWN).keys() >= FILLED.keys()
    assert {member for member, _ in real.unconfirmed()} == {*added}


@pytest.fixture
def between(real: Reserving, monkeypatch: pytest.MonkeyPatch) -> Callable[[Happens], None]:
    """Let something happen once, between two calls that judge one time."""

    def arrange(happens: Happens) -> None:
        shards, turns = real.windows.shards, iter(range(1_000))
        run_once = shards._run_once

        def call(script: Any, call: Any) -> Any:
            if script is shards._check and next(turns) == 1:
                happens()
            return run_once(script, call)

        monkeypatch.setattr(shards, "_run_once", call)

    return arrange


def test_a_slot_freed_during_a_slow_judgement_is_free(
    real: Reserving, between: Callable[[Happens], None]
) -> None:
    """What is in the way of the time asked for is what the last call would look at."""
    other = new_id()
    real.client.zadd(real.keys("ada").window("ada"), {other.bytes: ASKED - LENGTH + 1})
    with pytest.raises(QuotaExceeded) as refused:
        book(real, ASKED)
    assert other in refused.value.conflicting
    between(lambda: cancel(real.windows, other, ADA))
    stands(real, (book(real, ASKED), ASKED))


@pytest.mark.parametrize("again", [False, True], ids=["lost", "rebuilt"])
@pytest.mark.parametrize("moves", [False, True], ids=["book", "move"])
def test_a_rebuild_in_between_is_an_error_that_leaves_nothing(
    real: Reserving, between: Callable[[Happens], None], again: bool, moves: bool
) -> None:
    message_id = book(real, AWAY)

    def rebuild() -> None:
        real.client.flushall()
        begun = real.upkeep.begin()
        assert begun is not None
        if again:
            fill(real)
            real.upkeep.restore(begun, [Reserved(message_id, (OWN,), from_ms(AWAY))])
            real.upkeep.open(begun)

    between(rebuild)
    with pytest.raises(ReservationsUnavailable):
        _ = move(real, message_id, ASKED) if moves else book(real, ASKED)
    if again:
        stands(real, (message_id, AWAY))
    else:
        assert real.places(OWN) == {}


def lose_while_judging(
    real: Reserving, scope: Scope, monkeypatch: pytest.MonkeyPatch, happens: Happens
) -> None:
    """Let reconcile settle the hold in one window, and then something happen, after the judging."""
    judge = real.windows.shards._checked

    def checked(*asked: Any) -> Any:
        answer = judge(*asked)
        window = real.keys(scope.home).window(scope.name, scope.kind).encode()
        waiting = real.upkeep.unconfirmed(older_than=timedelta(0), limit=100)
        holds = [entry for entry in waiting if entry.window == window and len(entry.member) > 16]
        assert len(holds) == 1
        real.upkeep.confirm(holds, {})
        happens()
        return answer

    monkeypatch.setattr(real.windows.shards, "_checked", checked)


@pytest.mark.parametrize("moves", [False, True], ids=["book", "move"])
def test_a_place_that_another_took_meanwhile_stays_the_other_s(
    real: Reserving, monkeypatch: pytest.MonkeyPatch, moves: bool
) -> None:
    """A hold that one of several windows has lost is no leave to book there unjudged."""
    message_id, other = new_id(), new_id()
    if moves:
        reserve(real.windows, message_id, terms=BOTH, send_at=from_ms(AWAY))
    before = {scope: real.places(scope) for scope in BOTH.scopes}

    def another_books() -> None:
        reserve(real.windows, other, terms=Terms((LAST,)), send_at=from_ms(ASKED + 1))

    lose_while_judging(real, LAST, monkeypatch, another_books)
    act: Any = booked_move if moves else reserve
    with pytest.raises(ReservationsUnavailable):
        act(real.windows, message_id, terms=BOTH, send_at=from_ms(ASKED))
    before[LAST] |= {other.bytes: ASKED + 1}
    assert {scope: real.places(scope) for scope in BOTH.scopes} == before
    assert all(len(member) == 16 for member, _ in real.unconfirmed())

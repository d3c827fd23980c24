"""Calls of bookings and moves are lost, come twice or late; processes die: one reservation or none.

What clients are told of a Redis that is away, full or evicting is in
``tests/submission/test_reservation_faults.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import pytest

from dispatcher.errors import ReservationsUnavailable
from dispatcher.message import new_id
from dispatcher.quota import Quota
from dispatcher.redis.keys import shard_of
from dispatcher.reservation.booking import BookingRequest, Slot, Submit, Terms
from dispatcher.scope import OWN_SCOPE, Scope, counted
from dispatcher.times.send_time import from_ms
from tests.support.examples import a_third_of
from tests.support.proxy import Proxy
from tests.support.reserving import (
    SHARDS,
    Reserving,
    little_at_once,
    ms,
    named,
    own_terms,
    reserving,
)
from tests.support.servers import RedisServer

NOON = datetime(2100, 1, 1, 12, tzinfo=UTC)
EARLY, LATEST = NOON - timedelta(hours=9), NOON + timedelta(hours=1)
QUOTA = Quota(2, 60_000)
FURTHER = {kind: [QUOTA] for kind in ("recipient.sms", "channel.sms", "tenant")}


LAST = SHARDS - 1
TERMS = {
    "one window": own_terms("ada"),
    # In its own shard, in that of the channel, which comes before it, and in its own shard again.
    "three legs": Terms(
        counted(
            [OWN_SCOPE, *FURTHER],
            scope=named(LAST),
            channel="sms",
            scopes={"tenant": named(LAST, "@tenant:{}")},
        )
    ),
}
assert shard_of("@channel.sms", SHARDS) < LAST
HOWS = ("book", "book with a key", "move")
CASES = [
    pytest.param(case, id=" - ".join(case))
    for case in product(TERMS, HOWS, ("fits", "full"), ("in one call", "held"))
]


class Act:
    """One message that is booked, or moved away from its early time, at noon or soon after.

    Members around noon take more than one call to judge, where a script does little at once.
    """

    def __init__(self, real: Reserving, terms: Terms, how: str, *, is_full: bool = False) -> None:
        self.real, self.terms, self.moves = real, terms, how == "move"
        self._others: set[bytes] = set()
        for scope in terms.scopes:
            self._fill(scope, -50, 50)
        if is_full:  # the last shard refuses what the others have booked
            self._fill(terms.scopes[-1], 0, 0)
        self.at_ms = ms(NOON) + 60_000 * is_full
        message_id = new_id()
        self.present = BookingRequest(message_id, terms, ms(EARLY), ms(EARLY))
        if self.moves:
            real.windows.book([self.present])
        submit = Submit("key", "print") if how == "book with a key" else None
        self.request = BookingRequest(message_id, terms, ms(NOON), ms(LATEST), submit)
        self.before = self.state()

    def _fill(self, scope: Scope, *seconds: int) -> None:
        members = {new_id().bytes: ms(NOON) + 1_000 * second for second in seconds}
        self.real.client.zadd(self.real.keys(scope.home).window(scope.name, scope.kind), members)
        self._others |= members.keys()

    def __call__(self) -> BookingRequest:
        windows = self.real.windows
        [slot] = (windows.move_many if self.moves else windows.book)([self.request])
        assert isinstance(slot, Slot)
        assert slot.at_ms == self.at_ms
        return slot.booked

    def places(self) -> list[dict[bytes, int]]:
        """Return what each window has beside the members of others."""
        windows = map(self.real.places, self.terms.scopes)
        return [{m: at for m, at in window.items() if m not in self._others} for window in windows]

    def stands(self, *kept: BookingRequest) -> bool:
        """Whether every window has exactly these."""
        return self.places() == [{request.member: request.asked_ms for request in kept}] * len(
            self.places()
        )

    def state(self) -> tuple[Any, ...]:
        return self.places(), self.real.unconfirmed(), self.real.client.keys("*:duplicates:*")

    def reconcile(self, row: BookingRequest | None) -> int:
        """Settle everything by what a store has; return what was corrected."""
        upkeep, corrected = self.real.upkeep, 0
        stored = {row.message_id: (from_ms(row.asked_ms), row.tail)} if row else {}
        while waiting := upkeep.unconfirmed(older_than=timedelta(0), limit=100):
            corrected += upkeep.confirm(waiting, stored)
        return corrected


@pytest.fixture(params=a_third_of(CASES))
def act(
    request: pytest.FixtureRequest,
    opened: Callable[..., Reserving],
    monkeypatch: pytest.MonkeyPatch,
) -> Act:
    terms, how, search, speed = request.param
    if speed == "held":
        monkeypatch.setattr("dispatcher.reservation.shards.script", little_at_once(0))
    real = opened(QUOTA, further=FURTHER)
    return Act(real, TERMS[terms], how, is_full=search == "full")


@pytest.fixture(params=TERMS)
def move(request: pytest.FixtureRequest, opened: Callable[..., Reserving]) -> Act:
    return Act(opened(QUOTA, further=FURTHER), TERMS[request.param], "move")


def test_calls_that_come_twice_book_and_release_once(act: Act) -> None:
    """As where a reply is lost, and the client asks again."""
    shards = act.real.windows.shards
    run = shards._run
    vars(shards)["_run"] = lambda *call: (run(*call), run(*call))[1]
    booked = act()
    assert act.stands(booked, act.present) if act.moves else act.stands(booked)
    act.real.windows.withdraw([booked])
    assert act.state() == act.before


class Death(BaseException):
    """No call of this process reaches Redis any more."""


@pytest.mark.parametrize("fault", [ReservationsUnavailable("away"), Death()], ids=["lost", "dies"])
def test_a_fault_after_any_step_leaves_nothing(act: Act, fault: BaseException) -> None:
    """Reconcile releases what a dead process has left."""
    shards = act.real.windows.shards
    run, left = shards._run, 0

    def fail(*call: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0 and isinstance(fault, Death):
            raise fault
        replies = run(*call)
        if left == 0:
            raise fault
        return replies

    vars(shards)["_run"] = fail
    for number in range(1, 1_000):
        left = number
        try:
            act()
        except type(fault):
            left = 1_000
            if isinstance(fault, Death):
                act.reconcile(act.present if act.moves else None)
                assert act.places() == act.before[0]
                continue
            if not act.moves:  # else move_many withdraws
                act.real.windows.withdraw([act.request])
            assert act.state() == act.before
        else:
            break
    assert number > len(act.real.windows.legs(act.terms))


@pytest.mark.parametrize("is_won", [True, False], ids=["won", "given up"])
def test_late_copies_of_calls_lose_nothing(act: Act, is_won: bool) -> None:
    """As they come when a line broke and the call was made again on another one."""
    shards, calls = act.real.windows.shards, list[Any]()
    run = shards._run

    def noted(*call: Any) -> Any:
        calls.append(call)
        return run(*call)

    vars(shards)["_run"] = noted
    kept = act()
    if act.moves:
        lost, kept = (act.present, kept) if is_won else (kept, act.present)
        act.real.windows.withdraw([lost])
    for call in calls:
        run(*call)
        assert all(window[kept.member] == kept.asked_ms for window in act.places())
    act.reconcile(kept)
    assert act.stands(kept)


@pytest.mark.parametrize("stored", ["present", "booked", "a third", "nothing"])
@pytest.mark.parametrize("is_known", [True, False], ids=["confirmed before", "not yet"])
def test_of_a_dead_move_reconcile_keeps_what_the_row_has(
    move: Act, stored: str, is_known: bool
) -> None:
    if is_known:
        move.reconcile(move.present)
    booked = move()
    third = booked._replace(tail="0badcafe", asked_ms=ms(LATEST))
    row = {"present": move.present, "booked": booked, "a third": third}.get(stored)
    assert move.reconcile(row) == (len(move.terms.scopes) if stored == "a third" else 0)
    assert move.stands(row) if row else move.stands()


def test_what_is_younger_than_was_asked_stays(move: Act) -> None:
    upkeep = move.real.upkeep
    waiting = upkeep.unconfirmed(older_than=timedelta(0), limit=100)
    booked = move()
    assert upkeep.unconfirmed(older_than=timedelta(minutes=1), limit=100) == []
    late = [entry._replace(before_ms=0) for entry in waiting]
    assert upkeep.confirm(late, {}) == 0, "it was asked for again since"
    assert move.stands(move.present, booked)


def test_a_stale_read_of_the_sweep_loses_nothing(move: Act) -> None:
    """It puts back what another move has released, and looks at that again."""
    dead, upkeep = move(), move.real.upkeep
    waiting = upkeep.unconfirmed(older_than=timedelta(0), limit=100)
    move.at_ms += 60_000  # the dead one counts
    last = move()
    move.real.windows.withdraw([move.present])
    upkeep.confirm(waiting, {dead.message_id: (EARLY, "")})
    assert all(window[last.member] == last.asked_ms for window in move.places())
    assert not any(dead.member in window for window in move.places())
    move.reconcile(last)
    assert move.stands(last)


def test_a_silent_line_is_reported_in_bounded_time(proxy: Proxy, redis_server: RedisServer) -> None:
    with reserving(f"redis://127.0.0.1:{proxy.port}", retries=1, timeout=0.2) as real:
        real.open()
        proxy.blackhole()
        with pytest.raises(ReservationsUnavailable, match="did not answer in time"):
            real.book(NOON)
        proxy.pass_all()

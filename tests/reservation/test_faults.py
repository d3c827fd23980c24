"""A call is lost, comes twice, or a copy of it comes late: one reservation, or none and an error.

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
from tests.support.proxy import Proxy
from tests.support.reserving import (
    SHARDS,
    Reserving,
    little_at_once,
    ms,
    named,
    reserve,
    reserving,
)
from tests.support.servers import RedisServer

NOON = datetime(2100, 1, 1, 12, tzinfo=UTC)
EARLY, LATEST = NOON - timedelta(hours=9), NOON + timedelta(hours=1)
QUOTA = Quota(2, 60_000)
FURTHER = {kind: [QUOTA] for kind in ("recipient.sms", "channel.sms", "tenant")}


LAST = SHARDS - 1
TERMS = {
    "one window": Terms.own("ada"),
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
CASES = product(
    TERMS, ("book", "book with a key", "move"), ("fits", "full"), ("in one call", "held")
)


class Act:
    """One message that is booked, or moved away from its early time, at noon or soon after.

    Members around noon take more than one call to judge, where a script does little at once.
    """

    def __init__(self, real: Reserving, terms: Terms, how: str, *, is_full: bool) -> None:
        self.windows, self.terms, self._real = real.windows, terms, real
        self.moves = how == "move"
        for scope in terms.scopes:
            self._fill(scope, -50, 50)
        if is_full:  # the last shard refuses what the others have booked
            self._fill(terms.scopes[-1], 0, 0)
        self.at_ms = ms(NOON) + 60_000 * is_full
        message_id = new_id()
        if self.moves:
            reserve(real.windows, message_id, terms=terms, send_at=EARLY)
        submit = Submit("key", "print") if how == "book with a key" else None
        self.request = BookingRequest(message_id, terms, ms(NOON), ms(LATEST), submit)
        self.before = self.state()

    def _fill(self, scope: Scope, *seconds: int) -> None:
        window = self._real.keys(scope.home).window(scope.name, scope.kind)
        self._real.client.zadd(window, {new_id().bytes: ms(NOON) + 1_000 * n for n in seconds})

    def __call__(self) -> Slot:
        [slot] = (self.windows.move_many if self.moves else self.windows.book)([self.request])
        assert isinstance(slot, Slot)
        assert slot.at_ms == self.at_ms
        return slot

    def state(self) -> tuple[Any, ...]:
        places = {scope: self._real.places(scope) for scope in self.terms.scopes}
        return places, self._real.unconfirmed(), {*self._real.client.keys("*:duplicates:*")}

    def has(self, *slots: BookingRequest) -> bool:
        """Whether each of these stands in every window."""
        members = {slot.member: slot.asked_ms for slot in slots}.items()
        return all(self._real.places(scope).items() >= members for scope in self.terms.scopes)

    def added(self) -> set[bytes]:
        """Return what the windows have beside what they had before the act."""
        places, _, _ = self.before
        return {
            member
            for scope in self.terms.scopes
            for member in self._real.places(scope).keys() - places[scope].keys()
        }

    def reconcile(self, kept: BookingRequest) -> None:
        """Settle everything by a store that has the message at this time."""
        upkeep, stored = self._real.upkeep, {kept.message_id: (from_ms(kept.asked_ms), kept.tail)}
        while found := upkeep.unconfirmed(older_than=timedelta(0), limit=100):
            upkeep.confirm(found, stored)


@pytest.fixture(params=CASES, ids=" - ".join)
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


def test_calls_that_come_twice_book_once(act: Act) -> None:
    """As where a reply is lost, and the client asks again."""
    shards = act.windows.shards
    run = shards._run
    vars(shards)["_run"] = lambda *call: (run(*call), run(*call))[1]
    booked = act().booked
    assert act.added() == {booked.member}
    assert act.has(booked)


def test_a_reply_that_is_lost_at_any_step_leaves_nothing(act: Act) -> None:
    shards = act.windows.shards
    run, left = shards._run, 0

    def lose(*call: Any) -> Any:
        nonlocal left
        replies = run(*call)
        left -= 1
        if not left:
            raise ReservationsUnavailable("away")
        return replies

    vars(shards)["_run"] = lose
    for number in range(1, 1_000):
        left = number
        try:
            act()
        except ReservationsUnavailable:
            left = 0
            if not act.moves:  # else move_many withdraws
                act.windows.withdraw([act.request])
            assert act.state() == act.before
        else:
            break
    assert number > len(act.windows.legs(act.terms))


@pytest.mark.parametrize("is_won", [True, False], ids=["won", "given up"])
def test_late_copies_of_calls_lose_nothing(act: Act, is_won: bool) -> None:
    """As they come when a line broke and the call was made again on another one."""
    shards, calls = act.windows.shards, list[Any]()
    run = shards._run

    def noted(*call: Any) -> Any:
        calls.append(call)
        return run(*call)

    vars(shards)["_run"] = noted
    kept = act().booked
    if act.moves:
        present = kept._replace(tail="", asked_ms=ms(EARLY))
        lost, kept = (present, kept) if is_won else (kept, present)
        act.windows.withdraw([lost])
    for call in calls:
        run(*call)
        assert act.has(kept)
    act.reconcile(kept)
    assert act.added() <= {kept.member}
    assert act.has(kept)


def test_a_silent_line_is_reported_in_bounded_time(proxy: Proxy, redis_server: RedisServer) -> None:
    with reserving(f"redis://127.0.0.1:{proxy.port}", retries=1, timeout=0.2) as real:
        real.open()
        proxy.blackhole()
        with pytest.raises(ReservationsUnavailable, match="did not answer in time"):
            real.book(NOON)
        proxy.pass_all()

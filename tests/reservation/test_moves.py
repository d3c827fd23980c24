"""A message that moves: both reservations stand until the row has decided, and one is released."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from dispatcher.errors import QuotaExceeded
from dispatcher.message import new_id
from dispatcher.quota import Quota
from dispatcher.redis.keys import shard_of
from dispatcher.reservation.booking import BookingRequest, Slot, Terms
from dispatcher.reservation.encoding import member_of
from dispatcher.scope import OWN_SCOPE, counted
from tests.support.reserving import (
    SHARDS,
    Reserving,
    little_at_once,
    ms,
    named,
    reserve,
    win,
)
from tests.support.reserving import move as booked_move

NOON = datetime(2100, 1, 1, 12, tzinfo=UTC)
SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
Opened = Callable[..., Reserving]
Store = dict[UUID, tuple[datetime, str]]

FURTHER = {
    "recipient.sms": [Quota.parse("3/hour")],
    "channel.sms": [Quota.parse("2/second")],
    "tenant": [Quota.parse("4/hour")],
}
ONE = Terms.own("ada")
SEVERAL = Terms(
    counted([OWN_SCOPE, *FURTHER], scope="ada", channel="sms", scopes={"tenant": "acme"})
)
"""The same in four windows of three shards."""
assert len({shard_of(scope.home, SHARDS) for scope in SEVERAL.scopes}) == 3


LAST = SHARDS - 1
TWICE = Terms(
    counted(
        [OWN_SCOPE, *FURTHER], scope=named(LAST), channel="sms",
        scopes={"tenant": named(LAST, "@tenant:{}")},
    )
)  # fmt: skip
"""In its own shard, in that of the channel, which comes before it, and in its own shard again."""
assert shard_of("@channel.sms", SHARDS) < LAST


@pytest.fixture(
    params=[ONE, SEVERAL, TWICE], ids=["one window", "four windows", "its own shard twice"]
)
def terms(request: pytest.FixtureRequest) -> Terms:
    """Give what a message counts against."""
    found: Terms = request.param
    return found


@pytest.fixture
def real(opened: Opened) -> Reserving:
    """Give windows of all kinds, one a minute for each scope."""
    return opened(Quota(1, 60_000), further=FURTHER)


def book(real: Reserving, terms: Terms, at: datetime = NOON) -> UUID:
    return reserve(real.windows, new_id(), terms=terms, send_at=at).message_id


def move(
    real: Reserving, message_id: UUID, terms: Terms, at: datetime, *, tail: str = ""
) -> BookingRequest:
    return booked_move(real.windows, message_id, terms=terms, send_at=at, tail=tail)


def places(real: Reserving, terms: Terms) -> dict[bytes, int]:
    """Return what stands in the windows, which all have the same."""
    first, *others = (real.places(scope) for scope in terms.scopes)
    assert all(each == first for each in others)
    return first


def stands(real: Reserving, terms: Terms, **at: tuple[bytes | UUID, datetime]) -> None:
    """Fail unless every window holds exactly these members, of which all wait for the store."""
    members = {
        member.bytes if isinstance(member, UUID) else member: ms(time)
        for member, time in at.values()
    }
    assert places(real, terms) == members
    names = {real.keys(scope.home).window(scope.name, scope.kind) for scope in terms.scopes}
    waiting = {(member, name) for member in members for name in names}
    assert {each for each in real.unconfirmed() if each[1] in names} == waiting


def sweep(real: Reserving, store: Store) -> int:
    """Reconcile by what a store says, until nothing waits for it; return what was corrected."""
    corrected = 0
    while any(real.client.zcard(keys.pending) for keys in real.fence.keys):
        found = real.upkeep.unconfirmed(older_than=timedelta(0), limit=100)
        corrected += real.upkeep.confirm(found, store)
    return corrected


@pytest.mark.parametrize("stored", ["old", "new", "a third", "nothing"])
@pytest.mark.parametrize("is_known", [True, False], ids=["confirmed before", "not yet"])
def test_of_what_a_dead_move_leaves_reconcile_keeps_what_the_row_has(
    real: Reserving, terms: Terms, stored: str, is_known: bool
) -> None:
    message_id = book(real, terms)
    if is_known:
        sweep(real, {message_id: (NOON, "")})
    moving = move(real, message_id, terms, NOON + HOUR)
    row = {"old": (NOON, ""), "new": (NOON + HOUR, moving.tail),
           "a third": (NOON + 2 * HOUR, "0badcafe")}.get(stored)  # fmt: skip
    corrected = sweep(real, {message_id: row} if row else {})
    assert corrected == (len(terms.scopes) if stored == "a third" else 0)
    kept = {member_of(message_id, row[1]): ms(row[0])} if row else {}
    assert places(real, terms) == kept
    assert real.unconfirmed() == set()


def test_what_is_younger_than_was_asked_stays(real: Reserving, terms: Terms) -> None:
    message_id = book(real, terms)
    found = real.upkeep.unconfirmed(older_than=timedelta(0), limit=100)
    moving = move(real, message_id, terms, NOON + HOUR)
    assert real.upkeep.unconfirmed(older_than=MINUTE, limit=100) == []
    late = [each._replace(before_ms=0) for each in found]
    assert real.upkeep.confirm(late, {}) == 0, "it was asked for again since"
    stands(real, terms, old=(message_id, NOON), new=(moving.member, NOON + HOUR))


def test_a_stale_read_of_the_sweep_loses_nothing(real: Reserving, terms: Terms) -> None:
    """It puts back what another move has released, and looks at that again."""
    message_id = book(real, terms)
    dead = move(real, message_id, terms, NOON + HOUR)
    found = real.upkeep.unconfirmed(older_than=timedelta(0), limit=100)
    last = move(real, message_id, terms, NOON + 2 * HOUR)
    win(real.windows, last)
    real.upkeep.confirm(found, {message_id: (NOON, "")})
    now = {last.member: ms(NOON + 2 * HOUR)}
    assert all(real.places(scope).items() >= now.items() for scope in terms.scopes)
    assert all(dead.member not in real.places(scope) for scope in terms.scopes)
    sweep(real, {message_id: (NOON + 2 * HOUR, last.tail)})
    assert places(real, terms) == now


@pytest.mark.parametrize("most_read", [None, 9], ids=["in one call", "in several"])
@pytest.mark.parametrize(
    ("most", "kinds"),
    [(1, ()), (1, ("channel.sms",)), (9, ("channel.sms",))],
    ids=["one shard", "two", "the second one refuses"],
)
def test_each_of_many_moves_searches_as_if_its_own_time_were_free(
    opened: Opened,
    monkeypatch: pytest.MonkeyPatch,
    most: int,
    kinds: Sequence[str],
    most_read: int | None,
) -> None:
    """What the search of one has found to be full is not full for the next one."""
    if most_read is not None:
        monkeypatch.setattr("dispatcher.reservation.shards.script", little_at_once(most_read))
    real = opened(Quota(most, 60_000), further={kind: [Quota(1, 60_000)] for kind in kinds})
    terms = Terms(counted([OWN_SCOPE, *kinds], scope="ada", channel="sms"))
    assert len(real.windows.legs(terms)) == 1 + len(kinds)
    first, *_, third = ids = [book(real, terms, NOON + n * MINUTE) for n in range(30)]
    asked, until = ms(NOON + SECOND), ms(NOON + HOUR)
    [refused] = real.windows.move_many([BookingRequest(ids[15], terms, asked, asked)])
    assert isinstance(refused, QuotaExceeded)
    assert refused.next_slot == NOON + 15 * MINUTE
    moves = [BookingRequest(each, terms, asked, until) for each in (first, ids[15], third)]
    slots = real.windows.move_many(moves)
    assert [slot.at_ms for slot in slots if isinstance(slot, Slot)] == [
        ms(NOON + n * MINUTE) for n in (30, 15, 29)
    ]

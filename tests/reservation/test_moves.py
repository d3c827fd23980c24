"""A message that gets another place: held, then taken or dropped, and healed when neither comes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from dispatcher.errors import QuotaExceeded, ReservationsUnavailable
from dispatcher.message import new_id
from dispatcher.quota import Quota
from dispatcher.redis.keys import shard_of
from dispatcher.redis.scripts import source
from dispatcher.reservation import Blocked, Moving, Reserved, Terms
from dispatcher.reservation.booking import LegRequest
from dispatcher.scope import OWN_SCOPE, Scope, counted, own_scope
from tests.support import model
from tests.support.proxy import Proxy
from tests.support.reserving import SHARDS, TOKENS, Reserving, ms, named, reserve, reserving, stored
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

NOON = datetime(2100, 1, 1, 12, tzinfo=UTC)
SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
Opened = Callable[..., Reserving]

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


@pytest.fixture
def through(proxy: Proxy) -> Iterator[Reserving]:
    """Give the same through a line that can be broken."""
    url = f"redis://127.0.0.1:{proxy.port}"
    with reserving(url, [Quota(1, 60_000)], further=FURTHER, retries=3, timeout=1.0) as real:
        real.open()
        # The lines are broken at the n-th command: none of them may be a script that Redis lacks.
        for name in ("reserve", "move", "take", "release"):
            real.client.script_load(source(f"reservation/{name}"))
        yield real


def book(real: Reserving, terms: Terms, at: datetime = NOON) -> UUID:
    return reserve(real.windows, new_id(), terms=terms, send_at=at).message_id


def move(real: Reserving, message_id: UUID, terms: Terms, at: datetime) -> Moving:
    return real.windows.move(message_id, terms=terms, send_at=at)


def stands(real: Reserving, terms: Terms, **at: tuple[bytes | UUID, datetime]) -> None:
    """Fail unless every window holds exactly these members, of which all wait for the store."""
    members = {
        member.bytes if isinstance(member, UUID) else member: ms(time)
        for member, time in at.values()
    }
    names = set()
    for scope in terms.scopes:
        assert real.places(scope) == members, scope
        names.add(real.keys(scope.home).window(scope.name, scope.kind))
    waiting = {(member, name) for member in members for name in names}
    assert {each for each in real.unconfirmed() if each[1] in names} == waiting


def sweep(real: Reserving, store: dict[UUID, datetime]) -> int:
    """Reconcile by what a store says."""
    found = real.upkeep.unconfirmed(older_than=timedelta(0), limit=100)
    corrected = real.upkeep.confirm(found, stored(store))
    assert real.unconfirmed() == set()
    return corrected


def test_its_own_place_does_not_block_a_message(real: Reserving, terms: Terms) -> None:
    message_id = book(real, terms)
    for at in (NOON + SECOND, NOON, NOON - 59 * SECOND):
        moving = move(real, message_id, terms, at)
        assert (moving.message_id, moving.terms, moving.send_at) == (message_id, terms, at)
        assert moving.hold[:16] == message_id.bytes
        stands(real, terms, place=(message_id, NOON), hold=(moving.hold, at))
        real.windows.drop(moving)
        stands(real, terms, place=(message_id, NOON))


def test_both_places_are_taken_until_one_is_given_up(real: Reserving, terms: Terms) -> None:
    message_id = book(real, terms)
    moving = move(real, message_id, terms, NOON + 2 * MINUTE)
    for taken in (NOON, NOON + 2 * MINUTE):
        with pytest.raises(QuotaExceeded) as refused:
            book(real, terms, taken)
        assert refused.value.conflicting == (message_id,)
        assert refused.value.next_slot == taken + MINUTE
    assert real.windows.take([(moving, next(TOKENS))]) == [True]
    stands(real, terms, place=(message_id, NOON + 2 * MINUTE))
    other = book(real, terms, NOON)
    with pytest.raises(QuotaExceeded):
        book(real, terms, NOON + 2 * MINUTE)
    stands(real, terms, place=(message_id, NOON + 2 * MINUTE), other=(other, NOON))


def test_a_dropped_hold_leaves_everything_as_it_was(real: Reserving, terms: Terms) -> None:
    message_id = book(real, terms)
    before = real.dump()
    moving = move(real, message_id, terms, NOON + HOUR)
    assert real.dump() != before
    for _ in range(2):
        real.windows.drop(moving)
        assert real.dump() == before
    assert real.windows.take([(moving, next(TOKENS))]) == [False]
    assert real.dump() == before


@pytest.mark.parametrize("room", [None, 59 * SECOND], ids=["reject", "shift"])
def test_a_refused_move_changes_nothing(
    real: Reserving, terms: Terms, room: timedelta | None
) -> None:
    message_id, other = book(real, terms), book(real, terms, NOON + HOUR)
    before = real.dump()
    latest = None if room is None else NOON + HOUR + room
    with pytest.raises(QuotaExceeded) as refused:
        real.windows.move(message_id, terms=terms, send_at=NOON + HOUR, latest=latest)
    assert (refused.value.quota, refused.value.scope) == ("1/minute", terms.scopes[0].name)
    assert refused.value.conflicting == (other,)
    assert (refused.value.send_at, refused.value.next_slot) == (
        NOON + HOUR,
        NOON + HOUR + MINUTE,
    )
    assert real.dump() == before


@pytest.mark.parametrize("kind", ["channel.sms", "tenant"])
def test_a_move_that_another_shard_refuses_changes_nothing(real: Reserving, kind: str) -> None:
    message_id = book(real, SEVERAL)
    (full,) = [scope for scope in SEVERAL.scopes if scope.kind == kind]
    (quota,) = FURTHER[kind]
    others = {book(real, Terms((full,)), NOON + 5 * HOUR) for _ in range(quota.count)}
    before = real.dump()
    with pytest.raises(QuotaExceeded) as refused:
        move(real, message_id, SEVERAL, NOON + 5 * HOUR)
    assert (refused.value.quota, refused.value.scope) == (str(quota), str(full))
    assert set(refused.value.conflicting) == others
    assert refused.value.next_slot == NOON + 5 * HOUR + timedelta(milliseconds=quota.length_ms)
    assert real.dump() == before


def test_a_shifted_move_takes_the_first_slot_that_fits_without_its_own_place(
    real: Reserving, terms: Terms
) -> None:
    book(real, terms)
    message_id = book(real, terms, NOON + MINUTE)
    book(real, terms, NOON + 5 * MINUTE)
    moving = real.windows.move(
        message_id, terms=terms, send_at=NOON + SECOND, latest=NOON + 3 * MINUTE
    )
    assert moving.send_at == NOON + MINUTE, "where it stands is free for it"
    assert real.windows.take([(moving, next(TOKENS))]) == [True]
    assert all(real.places(each)[message_id.bytes] == ms(NOON + MINUTE) for each in terms.scopes)
    assert real.windows.next_slot(terms, NOON + SECOND) > NOON + MINUTE


def test_the_next_slot_of_a_refused_move_counts_its_own_place_as_free(
    real: Reserving, terms: Terms
) -> None:
    book(real, terms)
    message_id = book(real, terms, NOON + MINUTE)
    with pytest.raises(QuotaExceeded) as refused:
        move(real, message_id, terms, NOON + SECOND)
    slot = refused.value.next_slot
    assert slot == NOON + MINUTE
    assert move(real, message_id, terms, slot).send_at == slot


def test_a_message_without_a_place_can_be_moved_to_one(real: Reserving, terms: Terms) -> None:
    """A rebuild may have come in between."""
    message_id = new_id()
    moving = move(real, message_id, terms, NOON)
    assert real.windows.take([(moving, next(TOKENS))]) == [True]
    stands(real, terms, place=(message_id, NOON))


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_lost_reply_of_a_move_leaves_exactly_one_hold(
    through: Reserving, proxy: Proxy, terms: Terms, lost: int
) -> None:
    message_id = book(through, terms)
    proxy.drop_reply(message_id.bytes, times=lost)
    moving = through.windows.move(message_id, terms=terms, send_at=NOON, latest=NOON + HOUR)
    assert proxy.dropped == lost
    assert moving.send_at == NOON, "not shifted away from its own hold"
    stands(through, terms, place=(message_id, NOON), hold=(moving.hold, NOON))


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_move_whose_line_breaks_between_two_shards_leaves_what_reconcile_frees(
    through: Reserving, proxy: Proxy, nth: int
) -> None:
    message_id = book(through, SEVERAL)
    proxy.drop_reply(message_id.bytes, nth=nth, then_refuse=True)
    with pytest.raises(ReservationsUnavailable):
        move(through, message_id, SEVERAL, NOON + HOUR)
    proxy.pass_all()
    held = {each.home for each in SEVERAL.scopes if len(through.places(each)) > 1}
    assert len(held) == nth
    assert sweep(through, {message_id: NOON}) == 0
    for scope in SEVERAL.scopes:
        assert through.places(scope) == {message_id.bytes: ms(NOON)}


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_move_that_is_not_answered_is_undone_when_redis_is_back(
    through: Reserving, proxy: Proxy, nth: int
) -> None:
    message_id = book(through, SEVERAL)
    before = through.dump()
    proxy.drop_reply(message_id.bytes, nth=nth, times=4)  # one shard, with all retries
    with pytest.raises(ReservationsUnavailable):
        move(through, message_id, SEVERAL, NOON + HOUR)
    assert proxy.dropped == 4
    assert through.dump() == before


def test_a_lost_reply_of_a_take_leaves_the_message_at_its_new_time(
    through: Reserving, proxy: Proxy, terms: Terms
) -> None:
    message_id = book(through, terms)
    moving = move(through, message_id, terms, NOON + HOUR)
    proxy.drop_reply(moving.hold)
    assert through.windows.take([(moving, next(TOKENS))]) == [True]
    assert proxy.dropped == 1
    stands(through, terms, place=(message_id, NOON + HOUR))
    again = move(through, message_id, terms, NOON + HOUR)
    assert through.windows.take([(again, next(TOKENS))]) == [True]
    stands(through, terms, place=(message_id, NOON + HOUR))


def test_of_two_moves_of_one_message_either_may_be_taken(real: Reserving, terms: Terms) -> None:
    times = [NOON + 10 * MINUTE, NOON + 20 * MINUTE]
    for which in (0, 1):
        message_id = book(real, terms)
        moves = [move(real, message_id, terms, time) for time in times]
        assert moves[0].hold != moves[1].hold
        held = {"one": (moves[0].hold, times[0]), "other": (moves[1].hold, times[1])}
        stands(real, terms, place=(message_id, NOON), **held)
        assert real.windows.take([(moves[which], next(TOKENS))]) == [True]
        real.windows.drop(moves[1 - which])
        stands(real, terms, place=(message_id, times[which]))
        real.windows.release(message_id, terms)


def test_a_move_that_is_taken_late_only_gives_up_its_hold(real: Reserving, terms: Terms) -> None:
    """The store has the time of the second one by then."""
    message_id = book(real, terms)
    earlier, later = next(TOKENS), next(TOKENS)
    first = move(real, message_id, terms, NOON + HOUR)
    second = move(real, message_id, terms, NOON + 2 * HOUR)
    assert real.windows.take([(second, later)]) == [True]
    assert real.windows.take([(first, earlier)]) == [True]
    stands(real, terms, place=(message_id, NOON + 2 * HOUR))


def test_late_copies_of_the_calls_of_a_move_change_no_later_one(
    real: Reserving, terms: Terms
) -> None:
    """As they come when a line broke and the call was made again on another one."""
    message_id = book(real, terms)
    earlier, later = next(TOKENS), next(TOKENS)
    first = move(real, message_id, terms, NOON + HOUR)
    assert real.windows.take([(first, earlier)]) == [True]
    second = move(real, message_id, terms, NOON + 2 * HOUR)
    real.windows.hold_again(first)
    assert real.windows.take([(second, later)]) == [True]
    real.windows.hold_again(first)
    times = NOON + 2 * HOUR, NOON + HOUR
    stands(real, terms, place=(message_id, times[0]), copy=(first.hold, times[1]))
    assert real.windows.take([(first, earlier)]) == [True]
    stands(real, terms, place=(message_id, NOON + 2 * HOUR))


def test_a_hold_that_is_older_than_what_is_remembered_of_moves_is_not_taken(
    real: Reserving, terms: Terms
) -> None:
    message_id = book(real, terms)
    moving = move(real, message_id, terms, NOON + HOUR)
    before = real.dump()
    old = replace(moving, held_at_ms=moving.held_at_ms - 60_001)
    assert real.windows.take([(old, next(TOKENS))]) == [False]
    assert real.dump() == before
    again = real.windows.hold_again(old)
    assert isinstance(again, Moving)
    assert real.windows.take([(again, next(TOKENS))]) == [True]
    stands(real, terms, place=(message_id, NOON + HOUR))


def test_a_hold_at_another_time_is_not_taken(real: Reserving, terms: Terms) -> None:
    """As a late copy of a call for another time leaves it."""
    message_id = book(real, terms)
    moving = move(real, message_id, terms, NOON + HOUR)
    scope = terms.scopes[-1]
    window = real.keys(scope.home).window(scope.name, scope.kind)
    real.client.zadd(window, {moving.hold: ms(NOON + 2 * HOUR)})
    before = real.dump()
    assert real.windows.take([(moving, next(TOKENS))]) == [False]
    assert real.dump() == before
    again = real.windows.hold_again(moving)
    assert isinstance(again, Moving)
    assert real.windows.take([(again, next(TOKENS))]) == [True]
    stands(real, terms, place=(message_id, NOON + HOUR))


def test_a_move_that_the_sweep_settles_in_one_window_is_taken_in_the_others(
    real: Reserving, terms: Terms
) -> None:
    message_id = book(real, terms)
    earlier = next(TOKENS)
    moving = move(real, message_id, terms, NOON + HOUR)
    found = real.upkeep.unconfirmed(older_than=timedelta(0), limit=100)
    (first, *_) = (each for each in found if each.is_hold)
    assert real.upkeep.confirm([first], stored({message_id: NOON + HOUR})) == 1
    if len(terms.scopes) == 1:
        assert real.windows.take([(moving, earlier)]) == [True]
    elif real.windows.take([(moving, earlier)]) == [False]:
        again = real.windows.hold_again(moving)
        assert isinstance(again, Moving)
        assert real.windows.take([(again, next(TOKENS))]) == [True]
    for scope in terms.scopes:
        assert real.places(scope) == {message_id.bytes: ms(NOON + HOUR)}


def test_holds_of_two_rounds_have_different_names(real: Reserving) -> None:
    """A late copy of what drops the first one drops no later one."""
    message_id = book(real, SEVERAL)
    (full,) = [scope for scope in SEVERAL.scopes if scope.kind == "tenant"]
    for n in range(4):
        book(real, Terms((full,)), NOON + 5 * HOUR + n * SECOND)
    holds: list[bytes] = []
    shards = real.windows.shards
    held = shards.hold

    def noted(asked: Sequence[LegRequest]) -> Any:
        holds.extend(each.hold for each in asked)
        return held(asked)

    vars(shards)["hold"] = noted
    moving = real.windows.move(
        message_id, terms=SEVERAL, send_at=NOON + 5 * HOUR, latest=NOON + 7 * HOUR
    )
    assert moving.send_at == NOON + 6 * HOUR
    assert moving.hold == holds[-1]
    assert holds[0] != holds[-1]


@pytest.mark.parametrize("kind", [OWN_SCOPE, "channel.sms", "tenant"])
def test_a_hold_lost_in_one_shard_is_not_taken_in_the_others(real: Reserving, kind: str) -> None:
    message_id = book(real, SEVERAL)
    moving = move(real, message_id, SEVERAL, NOON + HOUR)
    (scope,) = [each for each in SEVERAL.scopes if each.kind == kind]
    real.client.zrem(real.keys(scope.home).window(scope.name, scope.kind), moving.hold)
    before = real.dump()
    assert real.windows.take([(moving, next(TOKENS))]) == [False]
    assert real.dump() == before
    real.windows.hold_again(moving)
    stands(real, SEVERAL, place=(message_id, NOON), hold=(moving.hold, NOON + HOUR))
    assert real.windows.take([(moving, next(TOKENS))]) == [True]
    stands(real, SEVERAL, place=(message_id, NOON + HOUR))


def test_a_hold_whose_place_went_to_another_is_not_held_again(
    real: Reserving, terms: Terms
) -> None:
    message_id = book(real, terms)
    moving = move(real, message_id, terms, NOON + HOUR)
    real.windows.drop(moving)
    other = book(real, terms, NOON + HOUR)
    before = real.dump()
    blocked = real.windows.hold_again(moving)
    assert isinstance(blocked, Blocked)
    assert blocked.conflicting == (other,)
    assert real.dump() == before


def test_a_hold_left_behind_goes_when_the_store_has_the_old_time(
    real: Reserving, terms: Terms
) -> None:
    message_id = book(real, terms)
    for _ in range(2):  # before and after the store has confirmed the message itself
        moving = move(real, message_id, terms, NOON + HOUR)
        assert sweep(real, {message_id: NOON}) == 0
        for scope in terms.scopes:
            assert real.places(scope) == {message_id.bytes: ms(NOON)}
        assert real.windows.take([(moving, next(TOKENS))]) == [False]
        assert real.unconfirmed() == set()
    book(real, terms, NOON + HOUR)


def test_a_hold_left_behind_is_taken_when_the_store_has_its_time(
    real: Reserving, terms: Terms
) -> None:
    message_id = book(real, terms)
    sweep(real, {message_id: NOON})
    move(real, message_id, terms, NOON + HOUR)
    assert sweep(real, {message_id: NOON + HOUR}) == len(terms.scopes)
    for scope in terms.scopes:
        assert real.places(scope) == {message_id.bytes: ms(NOON + HOUR)}
    book(real, terms, NOON)


def test_where_a_hold_is_left_all_windows_of_its_message_are_put_right(real: Reserving) -> None:
    """Those that have lost the hold, and the place, too."""
    message_id = book(real, SEVERAL)
    sweep(real, {message_id: NOON})
    moving = move(real, message_id, SEVERAL, NOON + HOUR)
    groups = real.windows.legs(SEVERAL)
    for group in groups[1:]:
        real.windows.shards.drop([(group, moving.hold)])
    found = real.upkeep.unconfirmed(older_than=timedelta(0), limit=100)
    row = Reserved(message_id, SEVERAL.scopes, NOON + HOUR)
    found += real.upkeep.await_confirmation(found, [row])
    assert real.upkeep.confirm(found, stored({message_id: NOON + HOUR})) == len(SEVERAL.scopes)
    for scope in SEVERAL.scopes:
        assert real.places(scope) == {message_id.bytes: ms(NOON + HOUR)}
    assert real.unconfirmed() == set()


def test_a_hold_left_behind_goes_with_a_message_that_the_store_does_not_know(
    real: Reserving, terms: Terms
) -> None:
    message_id = book(real, terms)
    move(real, message_id, terms, NOON + HOUR)
    assert sweep(real, {}) == 0
    assert all(real.places(scope) == {} for scope in terms.scopes)


def test_a_hold_younger_than_was_asked_stays(real: Reserving, terms: Terms) -> None:
    message_id = book(real, terms)
    found = real.upkeep.unconfirmed(older_than=timedelta(0), limit=100)
    moving = move(real, message_id, terms, NOON + HOUR)
    assert real.upkeep.unconfirmed(older_than=MINUTE, limit=100) == []
    assert real.upkeep.confirm(found, stored({message_id: NOON})) == 0
    assert real.windows.take([(moving, next(TOKENS))]) == [True]
    found = real.upkeep.unconfirmed(older_than=timedelta(0), limit=100)
    late = [each._replace(before_ms=0) for each in found]
    assert real.upkeep.confirm(late, stored({message_id: NOON})) == 0, "read before it was taken"
    stands(real, terms, place=(message_id, NOON + HOUR))


def test_a_hold_left_behind_does_not_undo_a_move_made_since(real: Reserving, terms: Terms) -> None:
    """The sweep has read the time of the first move, which a second one has ended since."""
    message_id = book(real, terms)
    sweep(real, {message_id: NOON})
    move(real, message_id, terms, NOON + HOUR)  # its process died when the store had that time
    found = real.upkeep.unconfirmed(older_than=timedelta(0), limit=100)
    wait_until(lambda: real.upkeep.unconfirmed(older_than=timedelta(0), limit=1)[0].before_ms
               > found[0].before_ms)  # fmt: skip
    last = move(real, message_id, terms, NOON + 2 * HOUR)
    assert real.windows.take([(last, next(TOKENS))]) == [True]
    assert real.upkeep.confirm(found, stored({message_id: NOON + HOUR})) == 0
    for scope in terms.scopes:
        assert real.places(scope)[message_id.bytes] == ms(NOON + 2 * HOUR)
    sweep(real, {message_id: NOON + 2 * HOUR})
    stands_alone = {message_id.bytes: ms(NOON + 2 * HOUR)}
    assert all(real.places(each) == stands_alone for each in terms.scopes)


def test_a_hold_that_the_sweep_has_settled_makes_older_moves_late(
    real: Reserving, terms: Terms
) -> None:
    message_id = book(real, terms)
    earlier = next(TOKENS)
    first = move(real, message_id, terms, NOON + HOUR)
    second = move(real, message_id, terms, NOON + 2 * HOUR)
    found = real.upkeep.unconfirmed(older_than=timedelta(0), limit=100)
    of_second = [each for each in found if each.member == second.hold]
    real.upkeep.confirm(of_second, stored({message_id: NOON + 2 * HOUR}))
    assert real.windows.take([(first, earlier)]) == [True]
    stands(real, terms, place=(message_id, NOON + 2 * HOUR))


def test_a_stale_read_of_the_sweep_does_not_undo_a_move(real: Reserving, terms: Terms) -> None:
    """Also when the message itself was confirmed in between."""
    message_id = book(real, terms)
    move(real, message_id, terms, NOON + HOUR)  # its process has died
    found = real.upkeep.unconfirmed(older_than=timedelta(0), limit=100)
    read = stored({message_id: NOON})
    last = move(real, message_id, terms, NOON + 2 * HOUR)
    assert real.windows.take([(last, next(TOKENS))]) == [True]
    for scope in terms.scopes:
        keys = real.keys(scope.home)
        member = message_id.bytes + keys.window(scope.name, scope.kind).encode()
        real.client.zrem(keys.pending, member)
    assert real.upkeep.confirm(found, read) == 0
    for scope in terms.scopes:
        assert real.places(scope) == {message_id.bytes: ms(NOON + 2 * HOUR)}


def test_a_taken_place_is_compared_with_the_store_once_more(real: Reserving, terms: Terms) -> None:
    """A rebuild, or a store that went back, may have another time than the one taken."""
    message_id = book(real, terms)
    sweep(real, {message_id: NOON})
    last = move(real, message_id, terms, NOON + HOUR)
    assert real.windows.take([(last, next(TOKENS))]) == [True]
    assert sweep(real, {message_id: NOON}) == len(terms.scopes)
    assert all(real.places(each) == {message_id.bytes: ms(NOON)} for each in terms.scopes)


def test_a_rebuild_forgets_holds(real: Reserving, terms: Terms) -> None:
    message_id = book(real, terms)
    moving = move(real, message_id, terms, NOON + HOUR)
    real.fence.close(real.client, real.fence.parts)
    with pytest.raises(ReservationsUnavailable):
        move(real, message_id, terms, NOON + 2 * HOUR)
    rebuild = real.upkeep.begin()
    assert rebuild is not None
    real.upkeep.wipe(rebuild)
    real.upkeep.restore(rebuild, [Reserved(message_id, terms.scopes, NOON)])
    real.upkeep.open(rebuild)
    assert real.windows.take([(moving, next(TOKENS))]) == [False]
    stands(real, terms, place=(message_id, NOON))


CROWD = [Quota(1, 50), Quota(3, 400)]


def is_broken(members: dict[bytes, int]) -> bool:
    """Whether a quota is, when nobody takes what is held, or everybody."""
    held = {member[:16]: time for member, time in members.items() if len(member) > 16}
    placed = {member: time for member, time in members.items() if len(member) == 16}
    return any(
        model.is_broken(times.values(), (quota.count, quota.length_ms))
        for times in (placed, placed | held)
        for quota in CROWD
    )


def test_many_who_move_at_once_break_no_quota(opened: Opened, redis_server: RedisServer) -> None:
    real = opened(*CROWD)
    ids = [book(real, ONE, NOON + n * SECOND) for n in range(8)]

    def wander(which: int) -> datetime:
        roll = random.Random(which)  # noqa: S311 - not for secrets
        at = NOON + which * SECOND
        with reserving(redis_server.url, CROWD) as mine:
            for _ in range(40):
                asked = NOON + timedelta(milliseconds=roll.randrange(1_500))
                try:
                    moving = mine.windows.move(
                        ids[which], terms=ONE, send_at=asked, latest=asked + SECOND / 4
                    )
                except QuotaExceeded:
                    continue
                if roll.random() < 0.3:
                    mine.windows.drop(moving)
                else:
                    assert mine.windows.take([(moving, next(TOKENS))]) == [True]
                    at = moving.send_at
                assert not is_broken(mine.places(own_scope("ada")))
        return at

    with ThreadPoolExecutor(len(ids)) as pool:
        found = list(pool.map(wander, range(len(ids))))
    assert real.places(Scope(OWN_SCOPE, "ada", "ada")) == {
        message_id.bytes: ms(at) for message_id, at in zip(ids, found, strict=True)
    }
    assert {member for member, _ in real.unconfirmed()} == {each.bytes for each in ids}
    assert len(set(found) - {NOON + n * SECOND for n in range(8)}) > 0

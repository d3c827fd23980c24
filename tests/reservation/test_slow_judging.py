"""Quotas of 5,000 that are full but for single gaps: one call cannot judge such a time.

Some 10,000 members stand so that each run of N spans exactly W, or a little less where a test wants
a run to be in the way. Every run has to be looked at to know that none is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, cast
from uuid import UUID

import pytest

from dispatcher.errors import QuotaExceeded, ReservationsUnavailable
from dispatcher.message import new_id
from dispatcher.quota import Quota
from dispatcher.redis.keys import ShardKeys, shard_of
from dispatcher.reservation import Reserved, Terms
from dispatcher.scope import own_scope
from dispatcher.times.send_time import from_ms, to_ms
from tests.support import model
from tests.support.proxy import Proxy
from tests.support.reserving import (
    NAMESPACE,
    SHARDS,
    Reserving,
    calls_of,
    cancel,
    reserve,
    reserving,
    stored,
    win,
)
from tests.support.reserving import move as booked_move
from tests.support.servers import RedisServer

BASE = 4_102_444_800_000  # 2100-01-01, ms
COUNT, STEP = 5_000, 50
LENGTH = (COUNT - 1) * STEP
QUOTAS = [Quota(3, 40), Quota(COUNT, LENGTH)]
RULE = [(each.count, each.length_ms) for each in QUOTAS]
EVEN = [BASE + n * STEP for n in range(2 * COUNT)]
MIDDLE = EVEN[COUNT] + STEP // 2
AWAY = BASE - 10 * LENGTH
ADA = Terms.own("ada")
WINDOW = ShardKeys(NAMESPACE, shard_of("ada", SHARDS)).window("ada")
FILLED = f"{WINDOW}:as it was filled"
MEMBERS = [n.to_bytes(16, "big") for n in range(2 * COUNT + 10)]
MOST_CALLS = 120
"""One answer takes at most so many script calls; each reads at most about two thousand members."""
Opened = Callable[..., Reserving]
_DUMPS: dict[tuple[int, ...], bytes] = {}


@pytest.fixture
def real(opened: Opened) -> Reserving:
    """Give windows of one a scope, all empty."""
    return opened(*QUOTAS)


def fill(real: Reserving, times: Iterable[int]) -> list[int]:
    """Put members straight into the window, and into a copy to compare it with; return them."""
    ordered = tuple(sorted(times))
    if ordered in _DUMPS:
        real.client.restore(WINDOW, 0, _DUMPS[ordered])
    else:
        members: dict[Any, int] = {MEMBERS[n]: time for n, time in enumerate(ordered)}
        real.client.zadd(WINDOW, members)
        _DUMPS[ordered] = cast(bytes, real.client.dump(WINDOW))
    real.client.copy(WINDOW, FILLED)
    return list(ordered)


def book(real: Reserving, at: int, *, latest: int | None = None, terms: Terms = ADA) -> UUID:
    until = None if latest is None else from_ms(latest)
    found = reserve(real.windows, new_id(), terms=terms, send_at=from_ms(at), latest=until)
    return found.message_id


def move(real: Reserving, message_id: UUID, at: int, *, terms: Terms = ADA) -> Any:
    return booked_move(real.windows, message_id, terms=terms, send_at=from_ms(at))


def moved_earlier(times: Sequence[int], *ranks: int, by: int = 7) -> list[int]:
    """Return the times with some members a little earlier: the runs that end there are tight."""
    return [time - by * (rank in ranks) for rank, time in enumerate(times)]


def stands(real: Reserving, *booked: tuple[UUID | bytes, int]) -> None:
    """Fail if more than this was added to the window, or if anything else waits for the store."""
    added = cast("list[Any]", real.client.zdiff([WINDOW, FILLED], withscores=True))
    placed = {member: int(time) for member, time in zip(added[::2], added[1::2], strict=True)}
    members = {
        member.bytes if isinstance(member, UUID) else member: time for member, time in booked
    }
    assert placed == members
    assert real.client.zcard(WINDOW) == real.client.zcard(FILLED) + len(booked)
    assert {member for member, _ in real.unconfirmed()} == {*members}


def score(real: Reserving, member: bytes) -> int:
    return int(cast(float, real.client.zscore(WINDOW, member)))


def check_refusal(real: Reserving, refusal: QuotaExceeded, asked: int, slot: int) -> None:
    assert (to_ms(refusal.send_at), to_ms(refusal.next_slot)) == (asked, slot)
    [quota] = [each for each in QUOTAS if str(each) == refusal.quota]
    rank = cast(int, real.client.zrank(WINDOW, refusal.conflicting[0].bytes))
    run = cast(list[bytes], real.client.zrange(WINDOW, rank, rank + quota.count - 1))
    assert [each.bytes for each in refusal.conflicting] == run[:100]
    first, last = score(real, run[0]), score(real, run[-1])
    assert last - first < quota.length_ms
    assert last - quota.length_ms < asked < first + quota.length_ms


AFTER_LOWEST = EVEN[3] + 25 + LENGTH
SHAPES: dict[str, tuple[Iterable[int], int]] = {
    "every gap is just wide enough": (EVEN, MIDDLE),
    "on a member": (EVEN, EVEN[COUNT]),
    "the lowest run is in the way": ([*EVEN, EVEN[3] + 25], AFTER_LOWEST - 1),
    "the lowest run just is not": ([*EVEN, EVEN[3] + 25], AFTER_LOWEST),
    "a run in the middle is in the way": (moved_earlier(EVEN, COUNT + 2_000), MIDDLE),
    "the short quota is full, and the long one nearly": (
        [
            *EVEN[: COUNT + 1],
            *[EVEN[COUNT] + 3 * STEP] * 3,
            *[time + 2 * STEP for time in EVEN[COUNT + 4 :]],
        ],
        EVEN[COUNT] + 3 * STEP + 1,
    ),
}


@pytest.mark.parametrize(("times", "asked"), SHAPES.values(), ids=SHAPES)
def test_the_answers_are_those_of_the_rule_in_a_bounded_number_of_calls(
    real: Reserving, times: Iterable[int], asked: int
) -> None:
    filled = fill(real, times)
    assert not any(model.is_broken(filled, quota) for quota in RULE)
    slot = model.next_slot(filled, asked, RULE)
    assert model.fits(filled, slot, RULE)
    assert model.fits(filled, asked, RULE) == (slot == asked)

    def search() -> None:
        assert to_ms(real.windows.next_slot(ADA, from_ms(asked))) == slot

    def refuse(latest: int | None = None) -> None:
        with pytest.raises(QuotaExceeded) as caught:
            book(real, asked, latest=latest)
        check_refusal(real, caught.value, asked, slot)

    def shift() -> None:
        ids.append(book(real, asked, latest=slot))

    ids: list[UUID] = []
    actions: list[Callable[[], None]] = [search, shift]
    if slot > asked:
        actions[1:1] = [refuse, lambda: refuse(latest=slot - 1)]
    for action in actions:
        assert 3 < calls_of(real.client, action) <= MOST_CALLS
        stands(real, *((message_id, slot) for message_id in ids))
    assert len(ids) == 1


@pytest.mark.parametrize("aside", [-1, 20 * STEP])
def test_a_message_is_moved_within_what_only_it_keeps_full(real: Reserving, aside: int) -> None:
    filled = fill(real, EVEN)
    message_id = book(real, MIDDLE)
    asked = MIDDLE + aside
    assert model.next_slot(sorted([*filled, MIDDLE]), asked, RULE) > asked
    moves: list[Any] = []
    calls = calls_of(real.client, lambda: moves.append(move(real, message_id, asked)))
    assert 3 < calls <= MOST_CALLS
    (moving,) = moves
    assert (score(real, message_id.bytes), score(real, moving.member)) == (MIDDLE, asked)
    with pytest.raises(QuotaExceeded):
        book(real, MIDDLE + 7)
    if aside > 0:
        win(real.windows, moving)
        stands(real, (moving.member, asked))
    else:
        real.windows.withdraw([moving])
        stands(real, (message_id, MIDDLE))


def test_a_refused_move_leaves_no_hold(real: Reserving) -> None:
    times, asked = SHAPES["the lowest run is in the way"]
    filled = fill(real, times)
    message_id = book(real, AWAY)
    slot = model.next_slot(filled, asked, RULE)
    with pytest.raises(QuotaExceeded) as refused:
        move(real, message_id, asked)
    check_refusal(real, refused.value, asked, slot)
    stands(real, (message_id, AWAY))
    until = from_ms(slot)
    moving = booked_move(real.windows, message_id, terms=ADA, send_at=from_ms(asked), latest=until)
    win(real.windows, moving)
    stands(real, (moving.member, slot))


def test_late_copies_of_the_calls_of_a_long_search_lose_nothing(real: Reserving) -> None:
    """A time that was held, and refused, is not that of the reservation."""
    times, asked = SHAPES["the lowest run is in the way"]
    slot = model.next_slot(fill(real, times), asked, RULE)
    message_id, calls = book(real, AWAY), []
    run = real.windows.shards._run

    def noted(*call: Any) -> Any:
        calls.append(call)
        return run(*call)

    vars(real.windows.shards)["_run"] = noted
    until = from_ms(slot)
    moving = booked_move(real.windows, message_id, terms=ADA, send_at=from_ms(asked), latest=until)
    win(real.windows, moving)
    assert any(script == real.windows.shards._check for script, _ in calls)
    for call in calls:
        run(*call)
        assert score(real, moving.member) == slot


Happens = Callable[[], None]


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


def test_a_booking_under_judgement_is_counted_by_others(
    real: Reserving, between: Callable[[Happens], None], redis_server: RedisServer
) -> None:
    fill(real, EVEN)
    held: list[tuple[UUID, ...]] = []

    def other() -> None:
        with reserving(redis_server.url, QUOTAS) as else_:
            for asked in (MIDDLE, MIDDLE + 3 * STEP, MIDDLE - LENGTH + 1):
                with pytest.raises(QuotaExceeded) as refused:
                    book(else_, asked)
                held.append(refused.value.conflicting)

    between(other)
    message_id = book(real, MIDDLE)
    assert len(held) == 3
    assert message_id in held[0] + held[1] + held[2]
    stands(real, (message_id, MIDDLE))


def test_a_slot_freed_during_a_slow_judgement_is_free(
    real: Reserving, between: Callable[[Happens], None]
) -> None:
    """What is in the way of the time asked for is what the last call would look at."""
    fill(real, EVEN)
    other, asked = new_id(), AFTER_LOWEST - 10
    real.client.zadd(WINDOW, {other.bytes: AFTER_LOWEST - LENGTH})
    with pytest.raises(QuotaExceeded) as refused:
        book(real, asked)
    assert other in refused.value.conflicting
    between(lambda: cancel(real.windows, other, ADA))
    stands(real, (book(real, asked), asked))


@pytest.mark.parametrize("again", [False, True], ids=["lost", "rebuilt"])
@pytest.mark.parametrize("moves", [False, True], ids=["book", "move"])
def test_a_rebuild_in_between_is_an_error_that_leaves_nothing(
    real: Reserving, between: Callable[[Happens], None], again: bool, moves: bool
) -> None:
    fill(real, EVEN)
    message_id = book(real, AWAY)

    def rebuild() -> None:
        real.client.flushall()
        begun = real.upkeep.begin()
        assert begun is not None
        if again:
            fill(real, EVEN)
            real.upkeep.restore(begun, [Reserved(message_id, (own_scope("ada"),), from_ms(AWAY))])
            real.upkeep.open(begun)

    between(rebuild)
    with pytest.raises(ReservationsUnavailable):
        _ = move(real, message_id, MIDDLE) if moves else book(real, MIDDLE)
    stands(real, *[(message_id, AWAY)] * again)


@pytest.mark.parametrize("moves", [False, True], ids=["book", "move"])
def test_a_hold_of_a_process_that_died_is_settled_by_reconcile(
    real: Reserving, proxy: Proxy, moves: bool
) -> None:
    fill(real, EVEN)
    message_id = book(real, AWAY)
    url = f"redis://127.0.0.1:{proxy.port}"
    with reserving(url, QUOTAS, retries=0) as cut:
        proxy.drop_reply(f"{MIDDLE}".encode(), nth=4, then_refuse=True)
        with pytest.raises(ReservationsUnavailable):
            _ = move(cut, message_id, MIDDLE) if moves else book(cut, MIDDLE)
        proxy.pass_all()
    (hold,) = (member for member, _ in real.unconfirmed() if len(member) > 16)
    assert score(real, hold) == MIDDLE
    with pytest.raises(QuotaExceeded):
        book(real, MIDDLE + 1)
    found = real.upkeep.unconfirmed(older_than=timedelta(0), limit=10)
    assert {each.member for each in found} == {message_id.bytes, hold}
    assert real.upkeep.confirm(found, stored({message_id: from_ms(AWAY)})) == 0
    assert real.unconfirmed() == set()
    assert real.client.zscore(WINDOW, hold) is None
    cancel(real.windows, message_id, ADA)
    stands(real, (book(real, MIDDLE + 1), MIDDLE + 1))

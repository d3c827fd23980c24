"""``kill -9`` between the shards of a message: nothing leaks, and no quota is broken meanwhile.

The processes work side by side. Each victim is killed at one line: where some shards have the
message and others do not, or where all have it and the store does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from itertools import count
from typing import Any

import pytest

from dispatcher import Dispatcher, Draft, Message, QuotaExceeded, Settings
from dispatcher.app import App
from dispatcher.quota import Quota
from dispatcher.redis.keys import scope_of, shard_of
from dispatcher.reservation.booking import Leg, Reservation
from tests.support.all_windows import let_graces_pass, pending_entries, promised, windows_of
from tests.support.clock import MovableClock
from tests.support.house import BODY, FAR, House
from tests.support.house_fixtures import Build
from tests.support.model import is_broken
from tests.support.victims import Line, side_by_side, stop

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
LATER = FAR + HOUR
SHARDS = 16
SETTINGS: dict[str, Any] = {
    "shards": SHARDS,
    "quotas": ["1/minute", "30/hour"],
    "channels": {"memory": {"transport": "memory", "quotas": ["5/minute"]}},
    "scopes": {"tenant": {"quotas": ["3/minute"]}},
}
CHANNEL = shard_of("@channel.memory", SHARDS)
FREE = [shard for shard in range(SHARDS) if shard != CHANNEL]


def named(shard: int, home: str = "{}") -> str:
    """Return a name that makes its scope lie in that shard."""
    names = (f"name {n}" for n in count())
    return next(name for name in names if shard_of(home.format(name), SHARDS) == shard)


TENANTS = [named(shard, "@tenant:{}") for shard in (FREE[0], FREE[-1])]
"""One is booked before the channel, the other after it."""
PEOPLE = [named(shard) for shard in FREE[1:-1]]
TURNS, DEADLY = 8, 4
"""How many messages each process has to do with, and at which it is killed."""

Arm = Callable[[App, Line], None]
"""Makes a process stand where it is to be killed."""


def in_shard(method: str, number: int) -> Arm:
    """Stand when the message has got a place, or taken it, in so many of its shards."""

    def arm(parts: App, line: Line) -> None:
        def is_there(given: tuple[Any, ...], answer: list[object]) -> bool:
            leg = given[0][0][0]
            is_held = isinstance(answer[0], int | Reservation)
            return level(parts, leg) == number and is_held and answer != [False]

        stop(parts.windows.shards, method, line, when=is_there)

    return arm


def in_shard_many(number: int) -> Arm:
    """Stand when messages submitted together have places in so many of their shards."""

    def arm(parts: App, line: Line) -> None:
        def is_there(given: tuple[Any, ...], answer: list[object]) -> bool:
            booked = any(isinstance(each, int | Reservation) for each in answer)
            return booked and level(parts, given[0][0].leg) == number

        stop(parts.windows.shards, "book", line, when=is_there)

    return arm


def level(parts: App, leg: Leg) -> int:
    """Return which of its message's shards this is, from 1 on."""
    return parts.windows.legs(leg.terms).index(leg) + 1


def at_row(method: str, *, before: bool) -> Arm:
    """Stand before the row is written, or after that."""
    return lambda parts, line: stop(parts.messages, method, line, before=before)


def at_rows(*, before: bool) -> Arm:
    """Stand before the rows of messages submitted together are written, or after that."""
    return lambda parts, line: stop(parts.messages, "add_together", line, before=before)


SUBMITS: Mapping[str, Arm] = {
    "has the first shard": in_shard("book", 1),
    "has two shards of three": in_shard("book", 2),
    "has all shards, not stored": at_row("add", before=True),
    "is stored": at_row("add", before=False),
}
SUBMITS_MANY: Mapping[str, Arm] = {
    "has the first shard": in_shard_many(1),
    "has two shards of three": in_shard_many(2),
    "has all shards, not stored": at_rows(before=True),
    "is stored": at_rows(before=False),
}
MOVES: Mapping[str, Arm] = {
    "has the first shard": in_shard("move", 1),
    "has two shards of three": in_shard("move", 2),
    "has all shards, old row": at_row("move", before=True),
    "has all shards, new row": at_row("move", before=False),
}
OLD_ROW = {name for name in MOVES if "shard" in name and "new" not in name}


def wish(process: int, turn: int) -> dict[str, Any]:
    """Return what a process asks for; they all ask for the same few minutes."""
    number = process * TURNS + turn
    return {
        "channel": "memory",
        "recipient": PEOPLE[number % len(PEOPLE)],
        "body": BODY,
        "send_at": LATER + turn % 3 * MINUTE / 2,
        "scopes": {"tenant": TENANTS[number % 2]},
        "idempotency_key": f"{process} {turn}",
        "on_conflict": "shift",
    }


def submits(line: Line, settings: Settings, process: int, at: str | None) -> None:
    with Dispatcher(settings, clock=MovableClock(FAR)) as dispatcher:
        line.begin()
        for turn in range(TURNS):
            if at and turn == DEADLY:
                SUBMITS[at](dispatcher._app, line)
            dispatcher.submit(**wish(process, turn))


def submits_many(line: Line, settings: Settings, process: int, at: str | None) -> None:
    with Dispatcher(settings, clock=MovableClock(FAR)) as dispatcher:
        line.begin()
        drafts = [Draft(**wish(process, turn)) for turn in range(TURNS)]
        dispatcher.submit_many(drafts[:DEADLY])
        if at:
            SUBMITS_MANY[at](dispatcher._app, line)
        dispatcher.submit_many(drafts[DEADLY:])


def moves(line: Line, settings: Settings, messages: list[Message], at: str | None) -> None:
    with Dispatcher(settings, clock=MovableClock(FAR)) as dispatcher:
        line.begin()
        for turn, message in enumerate(messages):
            if at and turn == DEADLY:
                MOVES[at](dispatcher._app, line)
            dispatcher.reschedule(
                message.id, send_at=LATER + 6 * HOUR + turn % 3 * MINUTE / 2, on_conflict="shift"
            )


@pytest.fixture
def house(build: Build) -> House:
    """Give a house in which every message counts in three shards."""
    house = build(**SETTINGS)
    for tenant in TENANTS:
        homes = (PEOPLE[0], "@channel.memory", f"@tenant:{tenant}")
        assert len({shard_of(each, SHARDS) for each in homes}) == 3
    return house


def kill_and_join(works: list[tuple[Any, ...]]) -> None:
    """Run all side by side; kill those that have a line to die at, let the others end."""
    with side_by_side(works) as processes:
        for process, (*_, at) in zip(processes, works, strict=True):
            if at:
                process.kill()
        for process, (*_, at) in zip(processes, works, strict=True):
            if not at:
                process.join()


def keeps_quotas(house: House) -> bool:
    """Whether no window holds more than its quotas allow, whoever the places belong to."""
    for name, members in windows_of(house).items():
        found = scope_of(name.encode())
        assert found is not None
        for quota in house.settings.quotas_of[found[0]]:
            assert isinstance(quota, Quota)
            if is_broken(members.values(), (quota.count, quota.length_ms)):
                return False
    return True


def heal(house: House) -> None:
    """Reconcile when all graces are over; then Redis holds what the store knows, and no more."""
    let_graces_pass(house)
    for duplicates in house.redis.scan_iter(match="{house:*}:duplicates:*"):
        house.redis.delete(duplicates)  # their life is over, too
    house.reconciled()
    assert windows_of(house) == promised(house)
    assert pending_entries(house) == []
    assert keeps_quotas(house)
    assert house.dispatcher.verify_windows().equal


def left_over(house: House) -> list[int]:
    """Return of each message that Redis has and the store does not in how many windows it is."""
    stored = {each.id.bytes for each in house.dispatcher.select()}
    found = [member for members in windows_of(house).values() for member in members]
    return sorted(found.count(each) for each in {*found} - stored)


def test_submits_that_die_between_shards_leak_nothing(house: House) -> None:
    ways: list[tuple[Callable[..., None], str | None]] = [
        *((submits, at) for at in (*SUBMITS, None)),
        *((submits_many, at) for at in (*SUBMITS_MANY, None)),
    ]
    kill_and_join([(way, house.settings, process, at) for process, (way, at) in enumerate(ways)])
    orphans = left_over(house)
    assert orphans.count(1) >= 2, "of one shard, by submit and by submit_many"
    assert orphans.count(2) >= 2, "of two"
    assert orphans.count(3) >= 2, "of all, but not stored"
    assert keeps_quotas(house), "also with the places of the dead"
    before = {each.idempotency_key: each for each in house.dispatcher.select()}
    heal(house)

    wishes = [wish(process, turn) for process in range(len(ways)) for turn in range(TURNS)]
    results = house.dispatcher.submit_many([Draft(**each) for each in wishes])
    messages = [each for each in results if isinstance(each, Message)]
    assert len(messages) == len({each.id for each in messages}) == len(wishes) == len(house.rows())
    assert before == {
        each.idempotency_key: each for each in messages if each.idempotency_key in before
    }
    heal(house)

    for each in messages:
        house.dispatcher.cancel(each.id)
    assert windows_of(house) == {}
    takes_all_that_fits(house)


def takes_all_that_fits(house: House) -> None:
    """Fill the windows of tenants and channel to the brim."""

    def submit(recipient: str, tenant: str) -> None:
        house.submit(recipient, send_at=LATER, scopes={"tenant": tenant})

    first, second = TENANTS
    for recipient in PEOPLE[:3]:
        submit(recipient, first)
    with pytest.raises(QuotaExceeded, match=f"tenant:{first}"):
        submit(PEOPLE[3], first)
    for recipient in PEOPLE[3:5]:
        submit(recipient, second)
    with pytest.raises(QuotaExceeded, match=r"channel\.memory"):
        submit(PEOPLE[5], second)


def test_moves_that_die_between_shards_leak_nothing(house: House) -> None:
    ends = (*MOVES, None)
    booked = [
        [house.dispatcher.submit(**wish(process, turn)) for turn in range(TURNS)]
        for process in range(len(ends))
    ]
    heal(house)
    kill_and_join(
        [(moves, house.settings, mine, at) for mine, at in zip(booked, ends, strict=True)]
    )
    twice = [len(members) - len({each[:16] for each in members})
             for members in windows_of(house).values()]  # fmt: skip
    assert sum(twice) == 1 + 2 + 3 + 3, "both places of the dead, each in so many windows"
    assert keeps_quotas(house), "also with the places of the dead"
    heal(house)
    for at, mine in zip(ends, booked, strict=True):
        for turn, message in enumerate(mine):
            done = turn < DEADLY if at in OLD_ROW else turn <= DEADLY
            is_moved = house.again(message).send_at != message.send_at
            assert is_moved == (done or at is None), (at, turn)

    for message in (each for mine in booked for each in mine):
        back = house.dispatcher.reschedule(message.id, send_at=message.send_at)
        assert back.send_at == message.send_at
    heal(house)

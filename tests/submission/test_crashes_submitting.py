"""A submit, a cancel, a move dies at a named line: nothing is lost, doubled or leaked.

Each message counts in three shards. Promises P1, P3 and P6: also before the repair no window holds
more than its quotas allow; after it the windows and the store agree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy.orm import Session

from dispatcher import Dispatcher, Draft, Message, Status
from dispatcher.quota import Quota
from dispatcher.redis.keys import scope_of, shard_of
from dispatcher.times.clock import SystemClock
from tests.support.callers import callers_engine
from tests.support.crashes import (
    CHANNEL,
    ROOMY,
    How,
    die,
    each_how,
    heal,
    judge,
    lines,
    published,
    reconcile,
)
from tests.support.examples import a_third_of
from tests.support.house import BODY, House, pending_entries, promised, windows_of
from tests.support.house_fixtures import Build, on_postgresql
from tests.support.model import is_broken
from tests.support.reserving import named

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
SHARDS = 16
OF_CHANNEL = shard_of(f"@channel.{CHANNEL}", SHARDS)
FREE = [shard for shard in range(SHARDS) if shard != OF_CHANNEL]


TENANTS = [named(shard, "@tenant:{}", SHARDS) for shard in (FREE[0], FREE[-1])]
"""One is booked before the channel, the other after it."""
PEOPLE = [named(shard, shards=SHARDS) for shard in FREE[1:-1]]


def ledger_house(build: Build, folder: Path, **settings: Any) -> House:
    """Give a house whose channel writes to a ledger; its time is the machine's."""
    channel = {
        "transport": "tests.support.ledger:Ledger",
        "options": {"path": str(folder / "ledger")},
        "max_attempts": 10,
        "quotas": ["5/minute"],
    }
    scopes = {"tenant": {"quotas": ["3/minute"]}}
    quotas = {"quotas": ["1/minute", "30/hour"], "shards": SHARDS, "scopes": scopes}
    return build(clock=SystemClock(), channels={CHANNEL: channel}, **ROOMY | quotas | settings)


@pytest.fixture
def house(build: Build, tmp_path: Path) -> House:
    return ledger_house(build, tmp_path)


def wish(number: int = 0, **more: Any) -> dict[str, Any]:
    asked = {"channel": CHANNEL, "recipient": PEOPLE[number], "body": BODY}
    asked |= {"idempotency_key": f"key {number}", "scopes": {"tenant": TENANTS[number % 2]}}
    return asked | {"send_in": timedelta(0)} | more


def submits(dispatcher: Dispatcher, **more: Any) -> None:
    dispatcher.submit(**wish(**more))


def joins(dispatcher: Dispatcher) -> None:
    engine = callers_engine(dispatcher._app.database)
    with engine as own, Session(own) as session, session.begin():
        dispatcher.submit(**wish(), session=session)


def submits_many(dispatcher: Dispatcher) -> None:
    dispatcher.submit_many([Draft(**wish(number)) for number in range(3)])


def submits_all(dispatcher: Dispatcher) -> None:
    dispatcher.submit_many([Draft(**wish(number)) for number in range(3)], atomic=True)


def keeps_quotas(house: House) -> bool:
    """Whether no window holds more than its quotas allow, whoever the reservations belong to."""
    for name, members in windows_of(house).items():
        scope = scope_of(name.encode())
        assert scope is not None
        for quota in house.settings.quotas_of[scope[0]]:
            assert isinstance(quota, Quota)
            if is_broken(members.values(), (quota.count, quota.length_ms)):
                return False
    return True


CRASHES: tuple[tuple[str, Callable[..., None], int, int, bool], ...] = (
    ("submit.before_reserve", submits, 0, 0, False),
    ("reserve.between_shards", submits, 1, 0, False),
    ("reserve.between_shards@2", submits, 2, 0, False),
    ("submit.after_reserve", submits, 3, 0, False),
    ("submit.after_commit", submits, 3, 1, False),
    ("submit.after_enqueue", submits, 3, 1, True),
    ("submit.after_reserve", joins, 3, 0, False),
    ("joined.after_add", joins, 3, 0, False),
    ("joined.after_commit", joins, 3, 1, False),
    ("submit.after_enqueue", joins, 3, 1, True),
    ("reserve.between_shards@4", submits_many, 5, 0, False),
    ("submit.after_reserve", submits_many, 9, 0, False),
    ("submit.after_commit", submits_many, 9, 3, False),
    ("submit.after_enqueue", submits_many, 9, 3, True),
    ("submit.after_reserve", submits_all, 9, 0, False),
)
"""The point, who dies there, how many reservations and messages there are, whether published."""


@each_how
@pytest.mark.parametrize(
    "crash", CRASHES, ids=[f"{crash[1].__name__} {crash[0]}" for crash in CRASHES]
)
def test_a_submit_that_dies_leaves_its_message_or_nothing_and_can_be_repeated(
    house: House, how: How, crash: tuple[str, Callable[..., None], int, int, bool]
) -> None:
    """Also at once: each repeat renews what the dead one reserved."""
    point, work, reserved, stored, is_published = crash
    die(point, work, house.settings, how=how)
    if how == "kill":
        assert sum(map(len, windows_of(house).values())) == reserved
    rows = house.rows()
    assert len(rows) == stored
    assert {message_id for ids in published(house) for message_id in ids} == (
        {row[0] for row in rows} if is_published else set()
    )
    before = {message.recipient: message for message in house.dispatcher.select()}
    work(house.dispatcher)
    messages = [*house.dispatcher.select()]
    assert len(messages) == (1 if work in (submits, joins) else 3)
    for message in messages:
        assert before.get(message.recipient, message) == message, "the same, and no other one"
    assert keeps_quotas(house)
    heal(house)
    judge(house, [message.id for message in messages])
    assert len(lines(house)) == 2 * len(messages), "each begins once and ends once"


def opts_out(dispatcher: Dispatcher, recipient: str) -> None:
    dispatcher.suppress(recipient)


@each_how
def test_an_opting_out_that_dies_holds_and_cancels_what_is_due(house: House, how: How) -> None:
    message = house.dispatcher.submit(**wish())
    die("suppress.after_row", opts_out, house.settings, message.recipient, how=how)
    assert house.again(message).status is Status.SCHEDULED
    assert house.deliver(message) == 0
    assert house.again(message).status is Status.CANCELLED
    heal(house)
    assert windows_of(house) == {}
    judge(house, [message.id], cancelled=[message.id])


CHAIN, APART = 3, 3
"""How many messages wait for the one before them to leave its place, and how many do not."""
MOVES = {
    "reschedule.after_booking": 0,
    "reschedule.after_row": APART + 1,
    "reschedule.after_release": APART + 1,
    "reschedule.after_booking@2": APART + 1,
    "reschedule.after_row@2": APART + 2,
    "reschedule.after_release@2": APART + 2,
}
"""How many messages are moved when the batch dies there; the second pass is the second turn."""
BETWEEN_SHARDS = {"reserve.between_shards": 0, "reserve.between_shards@2": 0}


@on_postgresql
@pytest.mark.parametrize(
    ("shards", "point"),
    a_third_of([pytest.param(shards, point)
                for shards, points in ((1, MOVES), (SHARDS, MOVES | BETWEEN_SHARDS))
                for point in points]),
)  # fmt: skip
def test_a_batch_of_moves_that_is_killed_has_moved_each_whole_or_not_at_all(
    build: Build, tmp_path: Path, shards: int, point: str
) -> None:
    house = ledger_house(build, tmp_path, shards=shards)
    later = house.clock.now().replace(microsecond=0) + 2 * HOUR
    wishes = [(1 + n, later + (10 + 2 * n) * MINUTE) for n in range(APART)]
    wishes += [(0, later - n * MINUTE) for n in range(CHAIN)]
    messages = [
        house.dispatcher.submit(**wish(
            who, send_in=None, send_at=at, expire_after=HOUR, idempotency_key=None,
            scopes={"tenant": TENANTS[number % 2]},
        ))
        for number, (who, at) in enumerate(wishes)
    ]  # fmt: skip
    reconcile(house)
    count = (MOVES | BETWEEN_SHARDS)[point]
    die(point, moves, house.settings, [message.id for message in messages])
    twice = [len(members) - len({member[:16] for member in members})
             for members in windows_of(house).values()]  # fmt: skip
    assert any(twice) == ("after_release" not in point), "both reservations of the dead"
    assert moved(house, messages) == count
    others_take_what_fits(house, messages[APART - 1].send_at)
    reconcile(house)
    assert moved(house, messages) == count, "the repair moves none"
    mine = {message.id for message in messages}
    others = [message.id for message in house.dispatcher.select() if message.id not in mine]
    house.dispatcher.cancel_many(others)
    moves(house.dispatcher, [message.id for message in messages[count:]])
    assert moved(house, messages) == len(messages)
    reconcile(house)
    assert keeps_quotas(house)
    assert windows_of(house) == promised(house)
    assert pending_entries(house) == []


def moves(dispatcher: Dispatcher, ids: Sequence[UUID]) -> None:
    dispatcher.reschedule_many(ids, later=MINUTE)


def moved(house: House, messages: Sequence[Message]) -> int:
    """Return how many are moved. It is the first ones, and each is moved whole."""
    are_moved = []
    for before in messages:
        now = house.again(before)
        is_moved = now.send_at != before.send_at
        at = before.send_at + MINUTE if is_moved else before.send_at
        assert (now.status, now.send_at, now.expires_at) == (Status.SCHEDULED, at, at + HOUR)
        assert house.columns(now, "next_attempt_at", "enqueue_at") == (
            at, at - house.settings.horizon,
        )  # fmt: skip
        are_moved.append(is_moved)
    assert are_moved == sorted(are_moved, reverse=True)
    return sum(are_moved)


def others_take_what_fits(house: House, around: datetime) -> None:
    """Let others want the times that the dead batch has, had and wanted."""
    house.dispatcher.submit_many([
        Draft(**wish(n % 5, send_in=None, send_at=around + n * MINUTE / 2, idempotency_key=None,
                     scopes={"tenant": TENANTS[n % 2]}))
        for n in range(-36, 12)
    ])  # fmt: skip
    assert keeps_quotas(house), "also with the reservations of the dead"

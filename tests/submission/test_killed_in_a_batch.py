"""``kill -9`` inside a batch of moves or of retries: each message is moved whole, or not at all.

Promises P1, P3 and P6: also before the repair no window holds more than its quotas allow. After
it the windows and the store agree, no message is lost, and nothing is left of what was not moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

import pytest

from dispatcher import Dispatcher, Draft, Message, PermanentFailure, Settings, Status
from dispatcher.submission import decisions
from dispatcher.times.clock import SystemClock
from tests.submission.test_killed_between_shards import (
    PEOPLE,
    SETTINGS,
    TENANTS,
    heal,
    keeps_quotas,
)
from tests.support.all_windows import windows_of
from tests.support.crashes import die
from tests.support.house import BODY, House, hour_ago
from tests.support.house_fixtures import Build
from tests.support.soak import a_third_of
from tests.support.victims import Line, side_by_side, stop

pytestmark = [
    pytest.mark.parametrize("database_url", ["postgresql"], indirect=True),
    pytest.mark.parametrize("shards", a_third_of([1, SETTINGS["shards"]])),
]

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
QUOTAS = {**SETTINGS, "clock": SystemClock()}
CHAIN, APART = 3, 3
"""How many messages wait for the one before them to leave its place, and how many do not."""


def booked(house: House) -> list[Message]:
    """Submit a batch of which a few can be moved in the first turn, and one more in each other."""
    later = house.clock.now().replace(microsecond=0) + 2 * HOUR
    wishes = [(PEOPLE[1 + n], later + (10 + 2 * n) * MINUTE) for n in range(APART)]
    wishes += [(PEOPLE[0], later - n * MINUTE) for n in range(CHAIN)]
    messages = [house.submit(recipient, send_at=at, scopes={"tenant": TENANTS[n % 2]},
                             expire_after=HOUR)
                for n, (recipient, at) in enumerate(wishes)]  # fmt: skip
    heal(house)
    return messages


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
    times = [around + n * MINUTE / 2 for n in range(-36, 12)]
    house.dispatcher.submit_many([
        Draft(channel="memory", recipient=PEOPLE[n % 5], body=BODY, send_at=at,
              scopes={"tenant": TENANTS[n % 2]})
        for n, at in enumerate(times)
    ])  # fmt: skip
    assert keeps_quotas(house), "also with the places of the dead"


POINTS = {
    "reschedule.after_hold": 0,
    "reschedule.after_row": APART + 1,
    "reschedule.after_release": APART + 1,
    "reschedule.after_hold@2": APART + 1,
    "reschedule.after_row@2": APART + 2,
    "reschedule.after_release@2": APART + 2,
}
"""How many messages are moved when the batch dies there; the second pass is the second turn."""


@pytest.mark.parametrize("point", POINTS)
def test_a_batch_of_moves_killed_at_a_fault_point(build: Build, shards: int, point: str) -> None:
    house = build(**QUOTAS | {"shards": shards})
    messages = booked(house)
    die(point, moves, house.settings, [each.id for each in messages])
    twice = [len(members) - len({each[:16] for each in members})
             for members in windows_of(house).values()]  # fmt: skip
    assert any(twice) == ("after_release" not in point), "both places of the dead"
    is_healed_and_moved_again(house, messages, POINTS[point])


def is_healed_and_moved_again(house: House, messages: Sequence[Message], many: int) -> None:
    assert moved(house, messages) == many
    assert keeps_quotas(house)
    others_take_what_fits(house, messages[APART - 1].send_at)
    heal(house)
    assert moved(house, messages) == many, "the repair moves none"
    others = {each.id for each in house.dispatcher.select()} - {each.id for each in messages}
    house.dispatcher.cancel_many([*others])
    heal(house)
    moves(house.dispatcher, [each.id for each in messages[many:]])
    assert moved(house, messages) == len(messages)
    heal(house)


def moves_until_killed(line: Line, settings: Settings, ids: Sequence[UUID], at: str) -> None:
    with Dispatcher(settings) as dispatcher:
        line.begin()
        parts = dispatcher._app
        if at == "before the commit":
            stop(vars(parts.messages)["_moved"], "run", line)
        else:
            stop(parts.windows.shards, "release_many", line)
        moves(dispatcher, ids)


@pytest.mark.long
@pytest.mark.parametrize(("at", "many"), [("before the commit", 0), ("released", APART + 1)])
def test_a_batch_of_moves_killed_within_a_step(
    build: Build, shards: int, at: str, many: int
) -> None:
    house = build(**QUOTAS | {"shards": shards})
    messages = booked(house)
    ids = [each.id for each in messages]
    with side_by_side([(moves_until_killed, house.settings, ids, at)]) as [victim]:
        victim.kill()
    is_healed_and_moved_again(house, messages, many)


def retries(line: Line, settings: Settings, ids: Sequence[UUID], at: str) -> None:
    decisions._AT_ONCE = 2
    with Dispatcher(settings, clock=hour_ago()) as dispatcher:
        line.begin()
        store = vars(dispatcher._app.decisions)["_failed"]
        dispatcher.retry_many(ids[:2])
        if at == "before the commit":
            stop(vars(store)["_retried"], "run", line)
        else:
            stop(store, "retry", line)
        dispatcher.retry_many(ids[2:])


@pytest.mark.parametrize(("at", "many"), [("before the commit", 2), ("after the commit", 4)])
def test_a_batch_of_retries_that_is_killed(build: Build, shards: int, at: str, many: int) -> None:
    def refuse(_: Message) -> None:
        raise PermanentFailure("no such number")

    house = build(clock=hour_ago(), shards=shards, quotas=["30/hour"],
                  scopes={"tenant": {"quotas": ["30/hour"]}})  # fmt: skip
    house.memory.before = refuse
    messages = [house.submit(each, scopes={"tenant": TENANTS[0]}) for each in PEOPLE[:5]]
    house.deliver(*messages)
    heal(house)
    before = windows_of(house)
    ids = [each.id for each in messages]
    with side_by_side([(retries, house.settings, ids, at)]) as [victim]:
        victim.kill()
    tried = [(Status.SCHEDULED, 1, 1 + house.settings.channels["memory"].max_attempts)] * many
    left = [(Status.FAILED, 1, house.settings.channels["memory"].max_attempts)] * (5 - many)
    assert standing(house, messages) == tried + left
    heal(house)
    assert windows_of(house) == before, "they kept their places"
    assert standing(house, messages) == tried + left

    house.dispatcher.retry_many(ids[many:])
    house.memory.before = None
    house.deliver(*messages)
    assert {house.again(each).status for each in messages} == {Status.SENT}
    assert sorted(house.sent) == sorted(ids)


def standing(house: House, messages: Sequence[Message]) -> list[tuple[Status, int, int]]:
    found = [house.again(each) for each in messages]
    return [(each.status, each.attempt_count, each.max_attempts) for each in found]

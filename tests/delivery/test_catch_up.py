"""What becomes of messages that nobody took while everything was down."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import Connection, event, select, true

from dispatcher import Message, QuotaExceeded, Status, StoreUnavailable
from dispatcher.faults import InjectedFault, arm
from dispatcher.store import Claims, Database, Overdue
from dispatcher.submission import CatchUpResult
from dispatcher.times.clock import SystemClock
from dispatcher.times.send_time import to_ms
from tests.support.doubles import Between, at_once, once, raising
from tests.support.house import FAR, House, hour_ago
from tests.support.house_fixtures import Build
from tests.support.servers import RedisServer
from tests.support.tables import messages

SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
WAYS = ["expire", "reslot"]
CHANNELS: dict[str, Any] = {
    "send": {"transport": "memory"},
    "expire": {"transport": "memory", "catch_up": "expire"},
    "reslot": {"transport": "memory", "catch_up": "reslot"},
}


@pytest.fixture
def back(build: Build) -> House:
    """Give a house an hour after an outage began: what is submitted by its clock is overdue."""
    return build(clock=hour_ago(), channels=CHANNELS)


def catch_up(house: House) -> CatchUpResult:
    return house.parts.catch_up.run()


def due(house: House, message: Message) -> timedelta:
    """How long from now on it will be due, by the clock that decides."""
    return house.again(message).send_at - house.database_time()


@pytest.mark.every_database
@pytest.mark.parametrize("way", WAYS)
def test_only_who_catches_up_takes_what_is_overdue(back: House, way: str) -> None:
    overdue, other = back.submit("ada", channel=way), back.submit("ben", channel="send")
    assert back.parts.sweep.enqueue_due() == 1, "that of the other channel"
    assert back.deliver(overdue, other) == 1, "also where its task has waited in the broker"
    assert back.again(overdue) == overdue
    assert back.again(other).status is Status.SENT
    assert catch_up(back) == (
        CatchUpResult(expired=1) if way == "expire" else CatchUpResult(moved=1)
    )


@pytest.mark.every_database
def test_expired_it_gives_its_quota_back(back: House) -> None:
    message = back.submit(channel="expire")
    assert catch_up(back) == CatchUpResult(expired=1)
    ended = back.again(message)
    assert ended.status is Status.EXPIRED
    assert ended.last_error is not None
    assert ended.last_error.startswith("overdue")
    assert back.parts.reconciler.reconcile().released == 1
    assert back.members() == {}
    assert catch_up(back) == CatchUpResult()


@pytest.mark.every_database
def test_reslotted_messages_break_no_quota_and_keep_their_order(back: House) -> None:
    start = back.clock.now()
    late_first = [back.submit(channel="reslot", send_at=start + n * MINUTE) for n in (3, 1, 2)]
    other = back.submit("ben", channel="reslot", send_at=start + MINUTE)
    assert catch_up(back) == CatchUpResult(moved=4)
    third, first, second = (back.again(each).send_at for each in late_first)
    assert timedelta(0) <= first - back.database_time() + 5 * SECOND < 6 * SECOND
    assert (second - first, third - second) == (MINUTE, MINUTE), "1/minute, soonest first"
    assert abs(back.again(other).send_at - first) < SECOND
    assert back.all_members() == back.reservations()
    assert back.dispatcher.verify_windows().equal
    assert catch_up(back) == CatchUpResult()


def test_a_dead_move_of_an_overdue_message_does_not_end_it(back: House) -> None:
    """It holds the only slot that is left; reconcile frees that."""
    at = back.database_time()
    message = back.submit(channel="reslot", expires_at=at + 40 * SECOND)
    arm("reschedule.after_hold=raise")
    with pytest.raises(InjectedFault):
        back.dispatcher.reschedule(message.id, send_at=at + 20 * SECOND)
    arm(None)
    assert catch_up(back).expired == 0
    assert back.again(message).status is Status.SCHEDULED


def test_a_reslotted_message_is_delivered_at_its_new_time(back: House) -> None:
    message = back.submit(channel="reslot")
    catch_up(back)
    assert back.parts.sweep.enqueue_due() == 1
    assert back.deliver(message) == 1
    assert back.again(message).status is Status.SENT


def test_near_its_new_time_it_is_handed_to_celery_at_once(build: Build) -> None:
    message = build(clock=hour_ago(), channels=CHANNELS).submit(channel="reslot")
    house = build(clock=SystemClock(), channels=CHANNELS, opened=False)
    house.broker.flushdb()
    assert catch_up(house).moved == 1
    assert house.broker.llen("dispatcher.reslot") == 1
    assert house.columns(message, "enqueue_at")[0] > house.database_time()


def test_a_message_reslotted_before_the_store_goes_away_is_enqueued(build: Build) -> None:
    past = build(clock=hour_ago(), channels=CHANNELS)
    for name in ("ada", "ben"):
        past.submit(name, channel="reslot")
    house = build(clock=SystemClock(), channels=CHANNELS, opened=False)
    house.broker.flushdb()
    moved: list[None] = []

    def break_at_last() -> None:
        if moved:
            raise StoreUnavailable("broke")
        moved.append(None)

    moves = Between(house.parts.moves, before={"move": break_at_last})
    vars(house.parts.catch_up)["_moves"] = moves
    with pytest.raises(StoreUnavailable):
        catch_up(house)
    assert house.broker.llen("dispatcher.reslot") == 1


def test_a_message_reslotted_before_an_expiry_fails_is_enqueued(
    build: Build,
) -> None:
    past = build(clock=hour_ago(), channels=CHANNELS)
    until = past.database_time() + MINUTE
    for _ in range(2):
        past.submit(channel="reslot", latest=until, on_conflict="shift", expires_at=until)
    house = build(clock=SystemClock(), channels=CHANNELS, opened=False)
    house.broker.flushdb()
    broke = raising(StoreUnavailable("broke"))
    vars(house.parts.catch_up)["_store"] = Between(
        vars(house.parts.catch_up)["_store"], before={"give_up": broke}
    )
    with pytest.raises(StoreUnavailable):
        catch_up(house)
    assert house.broker.llen("dispatcher.reslot") == 1


def test_it_is_booked_again_outside_quiet_hours(back: House) -> None:
    from_now = back.database_time() - MINUTE
    until = back.database_time() + 2 * MINUTE
    quiet = f"{from_now:%H:%M}-{until:%H:%M}"
    message = back.submit(channel="reslot", quiet_hours=quiet)
    catch_up(back)
    assert f"{back.again(message).send_at:%H:%M}" == f"{until:%H:%M}"
    assert due(back, message) > 0 * MINUTE


@pytest.mark.every_database
@pytest.mark.parametrize("way", WAYS)
def test_catch_up_changes_overdue_messages_alone(back: House, way: str) -> None:
    near = back.submit("near", channel=way, send_at=back.database_time() - 4 * MINUTE)
    tried = back.submit("tried", channel=way)
    back.change([tried], attempt_count=1)
    snoozed = back.submit("snoozed", channel=way)
    back.change([snoozed], next_attempt_at=back.database_time() - MINUTE)
    cancelled = back.submit("cancelled", channel=way)
    back.dispatcher.cancel(cancelled.id)
    before = back.rows()
    assert catch_up(back) == CatchUpResult()
    assert back.rows() == before
    assert back.deliver(near, tried, snoozed) == 3


@pytest.mark.every_database
def test_an_expiry_stays_where_it_is(back: House) -> None:
    asked: dict[str, Any] = {"channel": "reslot", "expire_after": 2 * HOUR}
    message = back.submit(**asked)
    gone = back.submit("ben", **asked | {"expire_after": 30 * MINUTE})
    assert catch_up(back) == CatchUpResult(expired=1, moved=1)
    moved = back.again(message)
    assert (moved.expires_at, moved.expire_after) == (message.expires_at, 2 * HOUR)
    assert back.again(gone).status is Status.EXPIRED


def test_without_a_slot_before_its_expiry_it_ends(back: House) -> None:
    until = back.database_time() + MINUTE
    first = back.submit(channel="reslot", expires_at=until)
    second = back.submit(channel="reslot", expires_at=until, send_in=MINUTE)
    assert catch_up(back) == CatchUpResult(expired=1, moved=1)
    assert back.again(first).status is Status.SCHEDULED
    ended = back.again(second)
    assert ended.status is Status.EXPIRED
    assert "slot" in (ended.last_error or "")
    assert back.parts.reconciler.reconcile().released == 1
    assert set(back.members()) == {first.id}


def test_a_snoozed_message_is_not_overdue_before_its_turn(build: Build) -> None:
    limited = CHANNELS["expire"] | {"limits": ["1/hour"]}
    house = build(clock=hour_ago(), channels={"memory": limited})
    now = house.database_time()
    first, second = house.submit("ada", send_at=now - MINUTE), house.submit("ben", send_at=now)
    assert house.deliver(first, second) == 1
    waiting = house.again(second)
    assert waiting.next_attempt_at > now + 50 * MINUTE
    house.change([second], send_at=now - 2 * HOUR)
    assert catch_up(house) == CatchUpResult()


def test_while_redis_is_away_what_is_to_be_booked_waits(
    build: Build, own_redis: RedisServer
) -> None:
    house = build(clock=hour_ago(), channels=CHANNELS, server=own_redis)
    messages = [house.submit(name, channel="reslot") for name in ("ada", "ben")]
    ended = house.submit("cyd", channel="expire")
    own_redis.stop()
    assert catch_up(house) == CatchUpResult(expired=1)
    assert [house.again(each) for each in messages] == messages
    assert house.again(ended).status is Status.EXPIRED
    own_redis.start()
    house.open()
    assert catch_up(house) == CatchUpResult(moved=2), "at once: they were given back"
    assert house.reconciled().all_members() == house.reservations()


@pytest.mark.every_database
@pytest.mark.parametrize("way", WAYS)
def test_sweeps_side_by_side_catch_up_with_each_message_once(build: Build, way: str) -> None:
    houses = [build(clock=hour_ago(), channels=CHANNELS) for _ in range(3)]
    house = houses[0]
    start = house.clock.now()
    messages = [
        house.submit(f"name {n % 4}", channel=way, send_at=start + n // 4 * MINUTE)
        for n in range(20)
    ]
    answers = at_once([each.parts.catch_up.run for each in houses])
    done = [each for each in answers if isinstance(each, CatchUpResult)]
    assert len(done) == 3
    # Each of two that meet may leave the rest of its batch to the other: the next turn takes it.
    done.append(catch_up(house))
    assert sum(each.expired + each.moved for each in done) >= 20
    now = [house.again(each) for each in messages]
    if way == "expire":
        assert {each.status for each in now} == {Status.EXPIRED}
    else:
        for n in range(4):
            times = [each.send_at for each in now[n::4]]
            assert times == sorted(times)
            assert all(b - a >= MINUTE for a, b in pairwise(times))
    assert house.reconciled().all_members() == house.reservations()


Race = Callable[[House, Message], object]


@pytest.mark.parametrize(
    ("race", "status"),
    [
        (lambda house, message: house.dispatcher.cancel(message.id), Status.CANCELLED),
        (lambda house, message: house.change([message], status="sent", finished_at=message.send_at),
         Status.SENT),
        (lambda house, message: house.dispatcher.reschedule(message.id, send_in=2 * HOUR),
         Status.SCHEDULED),
    ],
    ids=["cancelled", "sent by a worker of other settings", "moved"],
)  # fmt: skip
def test_a_change_made_during_a_reslot_wins(back: House, race: Race, status: Status) -> None:
    message = back.submit(channel="reslot")
    real = back.parts.windows
    act = once(lambda: race(back, message))
    windows = Between(real, after={"move_many": act})
    vars(back.parts.moves)["_windows"] = windows
    assert catch_up(back).moved == 0
    now = back.again(message)
    assert now.status is status
    if status is Status.SCHEDULED:
        assert due(back, message) > 50 * MINUTE
    assert back.reconciled().all_members() == back.reservations()


def test_a_message_cancelled_during_a_reslot_stays_cancelled(back: House) -> None:
    message, other = back.submit(channel="reslot"), back.submit("ben", channel="reslot")
    act = once(lambda: back.parts.messages.cancel([message.id]))
    vars(back.parts.moves)["_messages"] = Between(back.parts.messages, after={"move": act})
    assert catch_up(back) == CatchUpResult(moved=1)
    assert back.again(message).status is Status.CANCELLED
    assert back.again(other).status is Status.SCHEDULED
    assert back.reconciled().all_members() == back.reservations()


@pytest.mark.parametrize(
    "error",
    [
        QuotaExceeded(quota="1/minute", scope="ada", send_at=FAR, conflicting=[],
                      next_slot=SystemClock().now()),
        StoreUnavailable("no", refused=True),
    ],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_a_failed_reslot_is_made_by_the_next_sweep(back: House, error: Exception) -> None:
    message, other = back.submit(channel="reslot"), back.submit("ben", channel="reslot")
    disturbed = Between(back.parts.moves, before={"move": raising(error)})
    vars(back.parts.catch_up)["_moves"] = disturbed
    assert catch_up(back) == CatchUpResult(moved=1)
    assert back.again(message) == message
    assert back.again(other) != other
    assert catch_up(back) == CatchUpResult(moved=1)


def test_a_message_without_a_slot_does_not_stop_the_others(back: House) -> None:
    strange, other = back.submit("ada", channel="reslot"), back.submit("ben", channel="reslot")
    back.change([strange], quiet_hours="from nine to five")
    assert catch_up(back) == CatchUpResult(expired=1, moved=1)
    assert back.again(strange).status is Status.EXPIRED
    assert back.again(other).status is Status.SCHEDULED


@pytest.mark.every_database
def test_batches_go_in_the_order_of_their_times_and_are_taken_once(back: House) -> None:
    start = back.clock.now()
    times = [start + n * SECOND for n in range(5)]
    messages = [back.submit(f"{at}", channel="reslot", send_at=at) for at in reversed(times)][::-1]
    stores = [Overdue(back.database, after=5 * MINUTE, reslot=["reslot"]) for _ in range(2)]
    first = stores[0].take(limit=2, ttl=MINUTE)
    assert first is not None
    assert [each.message.id for each in first.found] == [each.id for each in messages[:2]]
    assert stores[1].take(limit=2, ttl=MINUTE) is None, "the first are not done yet"
    stores[0].put_back([each.message for each in first.found])
    again = stores[1].take(limit=9, ttl=MINUTE)
    assert again is not None
    assert [each.message.id for each in again.found] == [each.id for each in messages]


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
def test_a_batch_that_another_sweep_is_just_taking_goes_first(back: House) -> None:
    first = back.submit(channel="reslot")
    second = back.submit("ben", channel="reslot", send_in=SECOND)
    store = Overdue(back.database, after=5 * MINUTE, reslot=["reslot"])

    def while_it_is_locked(connection: Connection) -> None:
        connection.execute(select(messages.c.id).where(messages.c.id == first.id).with_for_update())
        assert store.take(limit=9, ttl=MINUTE) is None

    back.database.transact(while_it_is_locked)
    taken = store.take(limit=9, ttl=MINUTE)
    assert taken is not None
    assert [each.message.id for each in taken.found] == [first.id, second.id], (
        "they were given back"
    )


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
def test_a_batch_ends_before_a_message_that_another_sweep_is_just_taking(back: House) -> None:
    first, second, third = [
        back.submit(f"{n}", channel="reslot", send_in=n * SECOND) for n in range(3)
    ]
    store = Overdue(back.database, after=5 * MINUTE, reslot=["reslot"])

    def while_it_is_locked(connection: Connection) -> None:
        locked = select(messages.c.id).where(messages.c.id == second.id).with_for_update()
        connection.execute(locked)
        taken = store.take(limit=9, ttl=MINUTE)
        assert taken is not None
        assert [each.message.id for each in taken.found] == [first.id]
        store.put_back([each.message for each in taken.found])

    back.database.transact(while_it_is_locked)
    taken = store.take(limit=9, ttl=MINUTE)
    assert taken is not None
    assert [each.message.id for each in taken.found] == [first.id, second.id, third.id], (
        "the third was given back"
    )


@pytest.mark.parametrize("database_url", ["mariadb"], indirect=True)
def test_catch_up_locks_its_batch_alone(back: House) -> None:
    for n in range(6):
        back.submit(f"{n}", channel="reslot", send_in=n * SECOND)
    store = Overdue(back.database, after=5 * MINUTE, reslot=["reslot"])
    free: list[int] = []

    def look(connection: Connection, cursor: object, statement: str, *_: object) -> None:
        del connection, cursor
        if statement.startswith("UPDATE dispatcher_messages"):  # the batch is locked
            unlocked = select(messages.c.id).with_for_update(skip_locked=True)
            others = Database(back.url)
            free.append(len(others.transact(lambda line: line.execute(unlocked).all())))
            others.close()

    event.listen(back.database.engine, "after_cursor_execute", look)
    taken = store.take(limit=2, ttl=MINUTE)
    assert taken is not None
    assert len(taken.found) == 2
    assert free == [4]


@pytest.mark.every_database
def test_messages_taken_by_a_dead_sweep_are_taken_again(back: House) -> None:
    message = back.submit(channel="reslot")
    store = Overdue(back.database, after=5 * MINUTE, reslot=["reslot"])
    assert store.take(limit=9, ttl=MINUTE) is not None
    assert catch_up(back) == CatchUpResult()
    back.change([message], enqueue_at=back.database_time() - SECOND)
    assert catch_up(back) == CatchUpResult(moved=1)


def test_where_all_channels_send_late_nothing_is_asked_or_left(build: Build) -> None:
    house = build(clock=hour_ago())
    message = house.submit()
    vars(house.parts.catch_up)["_store"] = None
    assert catch_up(house) == CatchUpResult()
    assert house.parts.sweep.enqueue_due() == 1
    assert house.deliver(message) == 1


def test_the_new_times_are_what_the_windows_hold(back: House) -> None:
    message = back.submit(channel="reslot")
    catch_up(back)
    assert back.members() == {message.id: to_ms(back.again(message).send_at)}
    assert Claims(back.database, ttl=MINUTE, kept_back=true()).claim([message.id]) == []

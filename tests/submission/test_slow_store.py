"""Storing took longer than the settle time: the place is looked at again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from itertools import count
from typing import Any
from uuid import UUID

import pytest

from dispatcher import (
    Draft,
    Message,
    OutcomeUnknown,
    QuotaExceeded,
    Rejection,
    ReservationsUnavailable,
    Status,
    StoreUnavailable,
)
from dispatcher.reservation import Terms
from dispatcher.store.engines import InsertFailed
from dispatcher.submission import terms_for
from dispatcher.submission.reserver import LOOKING_SECONDS
from dispatcher.times.send_time import to_ms
from tests.support.doubles import Between, once, raising
from tests.support.house import BODY, FAR, House, house_on
from tests.support.house_fixtures import Build
from tests.support.reserving import window
from tests.support.servers import RedisServer

SOON = FAR + timedelta(minutes=1)


def slow_store(
    house: House, *events: Callable[[], object], after: Callable[[], object] = dict
) -> None:
    """Let the next message be stored late, and these things happen meanwhile."""

    def meanwhile() -> None:
        house.moved.advance(house.settings.settle + timedelta(milliseconds=1))
        for event in events:
            event()

    hooks = {"add": once(meanwhile)}
    house.swap("messages", Between(house.parts.messages, before=hooks, after={"add": once(after)}))


def test_a_place_that_a_rebuild_missed_is_booked_again(build: Build) -> None:
    house, other = build(), build()
    slow_store(house, house.redis.flushall, other.open)
    message = house.submit(send_at=SOON)
    assert house.members() == {message.id: to_ms(SOON)}
    assert house.reservations() == house.all_members()


def test_a_place_that_was_given_back_as_an_orphan_is_booked_again(build: Build) -> None:
    house, other = build(), build()
    slow_store(house, house.redis.flushall, other.open)
    message = house.submit(send_at=SOON, idempotency_key="key")
    assert house.reservations() == house.all_members() == {"ada": {message.id: to_ms(SOON)}}
    assert house.submit(send_at=SOON, idempotency_key="key") == message


@pytest.mark.every_database
@pytest.mark.parametrize("by", [timedelta(seconds=30), timedelta(hours=1)], ids=["near", "far"])
@pytest.mark.parametrize("is_seen", [True, False], ids=["seen", "as the look begins"])
def test_a_message_that_was_moved_meanwhile_stays_where_it_is(
    build: Build, by: timedelta, is_seen: bool
) -> None:
    """Its first place is nobody's by then: to book it again would be refused, or count twice."""
    house, other = build(), build()

    def move() -> None:
        [message] = other.dispatcher.select()
        other.dispatcher.reschedule(message.id, send_at=SOON + by)
        other.submit(send_at=SOON if by > timedelta(minutes=1) else SOON - timedelta(minutes=1))

    slow_store(house, after=move)
    if not is_seen:  # it moves right after the look at its row
        real = house.parts.messages
        vars(real)["movables"] = lambda _: {}
        vars(house.parts.reserver)["_messages"] = real
    message = house.submit(send_at=SOON)
    moved = house.again(message)
    assert (moved.status, moved.send_at) == (Status.SCHEDULED, SOON + by)
    house.reconciled()
    assert house.members()[message.id] == to_ms(SOON + by)


def test_a_place_that_is_still_there_is_left_alone(house: House) -> None:
    slow_store(house)
    message = house.submit(send_at=SOON)
    assert house.reservations() == house.all_members() == {"ada": {message.id: to_ms(SOON)}}


@pytest.mark.every_database
def test_a_place_that_another_took_is_refused_and_the_row_is_gone(build: Build) -> None:
    house, other = build(), build()
    taken: list[Message] = []
    slow_store(
        house, house.redis.flushall, other.open, lambda: taken.append(other.submit(send_at=SOON))
    )
    with pytest.raises(QuotaExceeded) as caught:
        house.submit(send_at=SOON)
    assert caught.value.conflicting == (taken[0].id,)
    assert [row.id for row in house.dispatcher.select()] == [taken[0].id]
    assert house.reservations() == house.all_members() == {"ada": {taken[0].id: to_ms(SOON)}}


@pytest.mark.parametrize("key", [None, "key"])
def test_no_id_is_returned_for_a_message_that_was_perhaps_taken_back(
    build: Build, key: str | None
) -> None:
    house, other = build(), build()
    slow_store(house, house.redis.flushall, other.open, lambda: other.submit(send_at=SOON))
    lost = raising(StoreUnavailable("the connection to the database broke"))
    house.swap("messages", Between(house.parts.messages, after={"take_back": lost}))
    with pytest.raises(OutcomeUnknown):
        house.submit(send_at=SOON, idempotency_key=key)


@pytest.mark.parametrize("key", [None, "key"])
@pytest.mark.parametrize("beside", [True, False], ids=["one shard", "two shards"])
def test_a_place_that_another_took_in_one_scope_is_given_back_in_the_others(
    build: Build, key: str | None, beside: bool
) -> None:
    """Though the sweep has confirmed those by then, so that reconcile does not look again."""
    channels = {"memory": {"transport": "memory", "quotas": "1/second"}}
    house, other = build(channels=channels), build(channels=channels)
    keys = house.keys("@channel.memory")
    whole = keys.window("memory", "channel.memory")
    mine = next(f"name {n}" for n in count() if (house.keys(f"name {n}") == keys) is beside)
    taken: list[Message] = []

    def lose() -> None:
        house.redis.delete(whole, keys.pending, house.keys(mine).pending)
        taken.append(other.submit("bob", send_at=SOON))

    slow_store(house, after=lose)
    with pytest.raises(QuotaExceeded) as caught:
        house.submit(mine, send_at=SOON, idempotency_key=key)
    assert caught.value.scope == "channel.memory"
    assert caught.value.conflicting == (taken[0].id,)
    assert house.all_members() == {"bob": {taken[0].id: to_ms(SOON)}}
    assert window(house.redis, whole) == {taken[0].id: to_ms(SOON)}


def test_with_a_key_the_row_that_lost_its_place_stays_as_cancelled(build: Build) -> None:
    """A duplicate submit may have returned it. The key is free for the next submit."""
    house, other = build(), build()
    taken: list[Message] = []
    slow_store(
        house, house.redis.flushall, other.open, lambda: taken.append(other.submit(send_at=SOON))
    )
    with pytest.raises(QuotaExceeded):
        house.submit(send_at=SOON, idempotency_key="key")
    statuses = {row.id: row.status for row in house.dispatcher.select()}
    assert statuses.pop(taken[0].id) is Status.SCHEDULED
    assert list(statuses.values()) == [Status.CANCELLED]
    assert house.reservations() == house.all_members() == {"ada": {taken[0].id: to_ms(SOON)}}
    later = house.submit(send_at=SOON + timedelta(minutes=1), idempotency_key="key")
    assert later.status is Status.SCHEDULED


def test_a_message_that_is_already_being_sent_is_not_taken_back(build: Build) -> None:
    house, other = build(), build()
    claimed: list[UUID] = []

    def claim() -> None:
        mine = next(each for each in house.dispatcher.select() if each.id != taken[0].id)
        claimed.append(mine.id)
        house.change(
            [mine], status="sending", claimed_by=mine.id, claim_expires_at=SOON, claim_token=1
        )

    taken: list[Message] = []
    slow_store(
        house,
        house.redis.flushall,
        other.open,
        lambda: taken.append(other.submit(send_at=SOON)),
        after=claim,
    )
    assert house.submit(send_at=SOON).id == claimed[0]
    assert len(house.rows()) == 2


def test_while_redis_is_closed_the_second_look_waits_for_it(build: Build) -> None:
    house, other = build(), build()
    slow_store(house, house.redis.flushall)
    house.moved.meanwhile = once(other.open)
    message = house.submit(send_at=SOON)
    assert house.moved.sleeps
    assert house.reservations() == house.all_members() == {"ada": {message.id: to_ms(SOON)}}


@pytest.mark.every_database
def test_a_message_whose_second_look_finds_no_redis_is_refused_and_taken_back(
    build: Build,
) -> None:
    """Others may book its place once the windows are rebuilt, so it must not be accepted."""
    house = build()
    slow_store(house, house.redis.flushall)
    with pytest.raises(ReservationsUnavailable):
        house.submit(send_at=SOON)
    house.open()
    assert house.reservations() == house.all_members() == {}
    message = house.submit(send_at=SOON)
    assert message.status is Status.SCHEDULED
    assert house.reservations() == house.all_members() == {"ada": {message.id: to_ms(SOON)}}


@pytest.mark.every_database
def test_with_a_key_a_second_look_that_finds_no_redis_keeps_the_message(
    build: Build, caplog: pytest.LogCaptureFixture
) -> None:
    """Another submit with the key may have returned it: it must not be cancelled unseen."""
    house, duplicate = build(), build()
    told: list[Message] = []
    slow_store(
        house,
        house.redis.flushall,
        after=lambda: told.append(duplicate.submit(send_at=SOON, idempotency_key="key")),
    )
    message = house.submit(send_at=SOON, idempotency_key="key")
    assert told == [message]
    assert f"reservation lost for message {message.id}" in caplog.text
    assert house.again(message).status is Status.SCHEDULED
    house.open()
    assert house.reservations() == house.all_members() == {"ada": {message.id: to_ms(SOON)}}


@pytest.mark.parametrize("key", [None, "key"])
def test_a_submit_that_cannot_be_taken_back_is_not_reported_as_accepted(
    build: Build, key: str | None
) -> None:
    house, other = build(), build()
    slow_store(house, house.redis.flushall, other.open, lambda: other.submit(send_at=SOON))
    refused = raising(StoreUnavailable("read-only", refused=True))
    house.swap("messages", Between(house.parts.messages, before={"take_back": refused}))
    with pytest.raises(OutcomeUnknown):
        house.submit(send_at=SOON, idempotency_key=key)


def test_a_slow_duplicate_of_a_message_that_was_taken_back_is_not_told_of_it(build: Build) -> None:
    """It found the row while that was scheduled; since, its submit lost the place and cancelled."""
    house, duplicate = build(), build()
    found, told = [], []

    def cancel() -> None:
        duplicate.moved.advance(duplicate.settings.settle + timedelta(milliseconds=1))
        (message,) = [*house.dispatcher.select()]
        found.append(message.id)
        assert house.parts.messages.take_back(message)
        house.parts.windows.release(message.id, _terms_of(house))

    slow = Between(duplicate.parts.messages, after={"add": once(cancel)})

    def insert_first() -> None:
        told.append(house.submit(send_at=SOON, idempotency_key="key"))

    duplicate.swap("messages", Between(slow, before={"add": once(insert_first)}))
    message = duplicate.submit(send_at=SOON, idempotency_key="key")
    assert message.id != told[0].id == found[0]
    assert house.again(message).status is Status.SCHEDULED
    assert house.again(told[0]).status is Status.CANCELLED
    assert house.reservations() == house.all_members() == {"ada": {message.id: to_ms(SOON)}}


def test_only_the_submit_that_inserted_a_message_takes_it_back(build: Build) -> None:
    """Its duplicate is slower still: by then the message may have been said to be accepted."""
    house, duplicate = build(), build()
    told: list[Message] = []

    def insert_first() -> None:
        told.append(house.submit(send_at=SOON, idempotency_key="key"))

    def lose_the_place() -> None:
        duplicate.moved.advance(duplicate.settings.settle + timedelta(milliseconds=1))
        house.redis.delete(house.keys("ada").window("ada"))
        house.submit(send_at=SOON)

    hooks = {"add": once(insert_first)}
    duplicate.swap(
        "messages",
        Between(duplicate.parts.messages, before=hooks, after={"add": once(lose_the_place)}),
    )
    assert duplicate.submit(send_at=SOON, idempotency_key="key") == told[0]
    assert house.again(told[0]).status is Status.SCHEDULED


def test_the_reservation_of_a_message_that_was_taken_back_without_redis_is_freed_by_the_sweep(
    build: Build,
) -> None:
    """The rebuild may have read the message before that, and restored its reservation."""
    house, other = build(), build()
    slow_store(house, house.redis.flushall)
    house.swap("messages", Between(house.parts.messages, before={"take_back": once(other.open)}))
    lost = raising(ReservationsUnavailable("Redis does not answer"))
    house.swap("windows", Between(house.parts.windows, before={"release": lost}))
    with pytest.raises(ReservationsUnavailable):
        house.submit(send_at=SOON)
    assert len(house.members()) == 1
    other.parts.reconciler.reconcile()
    assert house.members() == {}


def test_a_reservation_taken_back_and_not_freed_is_no_orphan(build: Build) -> None:
    """Though the sweep has confirmed its place by then; it releases that with those of others."""
    house, other = build(), build()
    slow_store(house, house.redis.flushall)
    house.swap("messages", Between(house.parts.messages, before={"take_back": once(other.open)}))
    lost = raising(ReservationsUnavailable("Redis does not answer"))
    house.swap("windows", Between(house.parts.windows, before={"release": lost}))
    with pytest.raises(ReservationsUnavailable):
        house.submit(send_at=SOON)
    house.redis.delete(house.keys("ada").pending)
    assert len(house.members()) == 1
    assert other.dispatcher.verify_windows().equal
    other.parts.reconciler.reconcile()
    assert house.members() == {}


def test_the_key_of_what_was_taken_back_is_free_for_other_content_at_once(build: Build) -> None:
    house, other = build(), build()
    lose = partial(house.redis.delete, house.keys("ada").window("ada"))
    slow_store(house, lose, lambda: other.submit(send_at=SOON))
    with pytest.raises(QuotaExceeded):
        house.submit(send_at=SOON, idempotency_key="key")
    later = SOON + timedelta(minutes=5)
    assert house.submit(send_at=later, idempotency_key="key").send_at == later


def test_a_batch_waits_for_a_lost_redis_once(build: Build) -> None:
    house = build()
    own = vars(house.parts.own_transaction)
    store, settle = own["_messages"], house.settings.settle

    def meanwhile() -> None:
        house.moved.advance(settle + timedelta(milliseconds=1))
        house.redis.flushall()

    own["_messages"] = Between(store, before={"add_together": once(meanwhile)})
    results = house.dispatcher.submit_many(
        Draft(channel="memory", recipient=f"name {number}", body=BODY, send_at=SOON)
        for number in range(20)
    )
    errors = [each.error for each in results if isinstance(each, Rejection)]
    assert [type(each) for each in errors] == 20 * [ReservationsUnavailable]
    assert sum(house.moved.sleeps) < 2 * LOOKING_SECONDS


@pytest.mark.long
def test_a_batch_asks_a_redis_that_hangs_about_one_message_alone(
    database_url: str,
) -> None:
    with RedisServer() as server, house_on(server, database_url) as house:
        own, asked = vars(house.parts.own_transaction), []

        def book() -> None:
            asked.append("book")
            house.moved.advance(timedelta(seconds=2))  # as long as the client waits and repeats

        windows = Between(
            house.parts.windows,
            before={"book_alone": book, "release": lambda: asked.append("free")},
        )
        vars(house.parts.reserver)["_windows"] = windows

        def hang() -> None:
            house.moved.advance(house.settings.settle + timedelta(milliseconds=1))
            house.redis.client_pause(600_000)

        own["_messages"] = Between(own["_messages"], before={"add_together": once(hang)})
        drafts = [
            Draft(channel="memory", recipient=f"name {number}", body=BODY, send_at=SOON)
            for number in range(20)
        ]
        house.moved.advance(timedelta(0))
        results = list(house.dispatcher.submit_many(drafts))
        assert house.rows() == []
    errors = [each.error for each in results if isinstance(each, Rejection)]
    assert [type(each) for each in errors] == 20 * [ReservationsUnavailable]
    assert asked.count("free") == 1
    assert asked.count("book") == 1 + len(house.moved.sleeps)


@pytest.mark.parametrize("key", [None, "key"])
def test_a_second_look_that_one_shard_does_not_answer_leaves_every_shard_alike(
    build: Build, key: str | None
) -> None:
    house = build(scopes={"tenant": {"quotas": ["5/minute"]}})
    scopes = {"tenant": "acme"}
    further = next(
        group.keys for group in house.parts.windows.legs(_terms(house, scopes))
        if group.keys != house.keys("ada")
    )  # fmt: skip
    slow_store(house, lambda: house.redis.delete(further.epoch))
    if key is None:
        with pytest.raises(ReservationsUnavailable):
            house.submit(send_at=SOON, scopes=scopes)
        house.open()
        assert house.all_members() == {}
    else:
        message = house.submit(send_at=SOON, scopes=scopes, idempotency_key=key)
        house.open()
        assert house.members() == {message.id: to_ms(SOON)}
        assert house.dispatcher.verify_windows().equal


def _terms_of(house: House) -> Terms:
    return terms_for(house.settings, scope="ada", channel="memory")


def _terms(house: House, scopes: dict[str, str]) -> Terms:
    for number in range(100):
        found = terms_for(house.settings, scope="ada", channel="memory", scopes=scopes)
        if len(house.parts.windows.legs(found)) > 1:
            return found
        scopes["tenant"] = f"acme {number}"
    raise AssertionError


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("key", [None, "key"])
def test_a_row_whose_insert_was_not_answered_is_looked_at_as_ones_own(
    build: Build, key: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    house, other = build(), build()
    name = "_insert_keyed_directly" if key else "_insert_directly"
    insert = getattr(house.parts.messages, name)
    assert insert is not None

    def lose_the_answer(values: Sequence[Any]) -> bool:
        house.moved.advance(house.settings.settle + timedelta(milliseconds=1))
        house.redis.flushall()
        other.open()
        other.submit("ada", send_at=SOON)
        insert(values)
        raise InsertFailed(perhaps_done=True)

    monkeypatch.setattr(house.parts.messages, name, lose_the_answer)
    with pytest.raises(QuotaExceeded):
        house.submit("ada", send_at=SOON, idempotency_key=key)
    scheduled = house.dispatcher.select(status="scheduled")
    assert [each.idempotency_key for each in scheduled] == [None]


@pytest.mark.parametrize("keys", [(None, None), ("one", "two")])
def test_a_batch_whose_copy_was_not_answered_is_looked_at_as_ones_own(
    build: Build, keys: tuple[str | None, str | None]
) -> None:
    house, other = build(), build()
    own = vars(house.parts.own_transaction)
    messages = own["_messages"]

    class Unanswering:
        def __getattr__(self, name: str) -> object:
            return getattr(messages, name)

        def add_together(self, additions: object, **_: bool) -> None:
            house.moved.advance(house.settings.settle + timedelta(milliseconds=1))
            house.redis.flushall()
            other.open()
            other.submit("ada", send_at=SOON)
            assert messages.add_together(additions)

    own["_messages"] = Unanswering()
    drafts = [
        Draft(channel="memory", recipient=name, body=BODY, send_at=SOON, idempotency_key=key)
        for name, key in zip(("ada", "bob"), keys, strict=True)
    ]
    results = house.dispatcher.submit_many(drafts)
    assert [type(each) for each in results] == [Rejection, Message]
    scheduled = house.dispatcher.select(status="scheduled")
    assert sorted(each.recipient for each in scheduled) == ["ada", "bob"]


def test_an_unreadable_window_refuses_its_message_alone(build: Build) -> None:
    house = build()
    own = vars(house.parts.own_transaction)

    def spoil() -> None:
        house.moved.advance(house.settings.settle + timedelta(milliseconds=1))
        window = house.keys("name 0").window("name 0")
        house.redis.delete(window)
        house.redis.set(window, "no window")

    own["_messages"] = Between(own["_messages"], before={"add_together": once(spoil)})
    results = house.dispatcher.submit_many(
        Draft(channel="memory", recipient=f"name {number}", body=BODY, send_at=SOON)
        for number in range(5)
    )
    assert [type(each) for each in results] == [Rejection, *4 * [Message]]

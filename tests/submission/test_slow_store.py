"""Storing took longer than the settle time: the reservation is looked at again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from itertools import count
from typing import Any

import pytest

from dispatcher import (
    Draft,
    DuplicateUnderWay,
    Message,
    OutcomeUnknown,
    QuotaExceeded,
    Rejection,
    ReservationsUnavailable,
    Status,
    StoreUnavailable,
)
from dispatcher.submission.reserver import LOOKING_SECONDS
from dispatcher.submission.validation import terms_for
from dispatcher.times.send_time import to_ms
from tests.support.doubles import Between, once, raising
from tests.support.house import FAR, House, draft
from tests.support.house_fixtures import Build
from tests.support.reserving import cancel as cancelled
from tests.support.reserving import window

MINUTE = timedelta(minutes=1)
SOON = FAR + MINUTE


def late(house: House, *events: Callable[[], object]) -> Callable[[], None]:
    """Return what lets the settle time pass once, and these things happen meanwhile."""

    def meanwhile() -> None:
        house.moved.advance(house.settings.settle + timedelta(milliseconds=1))
        for event in events:
            event()

    return once(meanwhile)


def slow_store(
    house: House, *events: Callable[[], object], after: Callable[[], object] = dict
) -> None:
    """Let the next message be stored late, and these things happen meanwhile."""
    hooks = {"add": late(house, *events)}
    house.swap("messages", Between(house.parts.messages, before=hooks, after={"add": once(after)}))


def drafts(count: int) -> list[Draft]:
    return [draft(f"name {number}", send_at=SOON) for number in range(count)]


@pytest.mark.every_database
@pytest.mark.parametrize("key", [None, "key"])
@pytest.mark.parametrize("meanwhile", ["nothing", "rebuilt", "taken", "closed"])
def test_a_message_that_was_stored_late_has_its_place_or_is_refused(
    build: Build, meanwhile: str, key: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """With a key a duplicate may have returned the message already: without Redis it stays."""
    house, other = build(), build()
    taken: list[Message] = []
    events: dict[str, list[Callable[[], object]]] = {
        "nothing": [],
        "rebuilt": [house.redis.flushall, other.open],
        "taken": [
            house.redis.flushall,
            other.open,
            lambda: taken.append(other.submit(send_at=SOON)),
        ],
        "closed": [house.redis.flushall],
    }  # fmt: skip
    slow_store(house, *events[meanwhile])
    if meanwhile == "taken" or (meanwhile == "closed" and key is None):
        with pytest.raises((QuotaExceeded, ReservationsUnavailable)) as caught:
            house.submit(send_at=SOON, idempotency_key=key)
        if isinstance(caught.value, QuotaExceeded):
            assert caught.value.conflicting == (taken[0].id,)
    else:
        taken.append(house.submit(send_at=SOON, idempotency_key=key))
    if meanwhile == "closed":
        house.open()
        assert ("reservation lost for message" in caplog.text) is (key is not None)
    scheduled = [message.id for message in house.dispatcher.select(status="scheduled")]
    assert scheduled == [message.id for message in taken]
    cancelled = [*house.dispatcher.select(status="cancelled")]
    assert len(cancelled) == (meanwhile == "taken" and key is not None)
    places = {message.id: to_ms(SOON) for message in taken}
    assert house.reservations() == house.all_members() == ({"ada": places} if places else {})
    if meanwhile == "taken":  # the key is free at once, also for other content
        assert house.submit(send_at=SOON + MINUTE, idempotency_key=key).status is Status.SCHEDULED
    elif key is not None:
        assert house.submit(send_at=SOON, idempotency_key=key) == taken[0]


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
        vars(house.parts.reserver)["messages"] = real
    message = house.submit(send_at=SOON)
    moved = house.again(message)
    assert (moved.status, moved.send_at) == (Status.SCHEDULED, SOON + by)
    house.reconciled()
    assert house.members()[message.id] == to_ms(SOON + by)


@pytest.mark.parametrize("key", [None, "key"])
def test_a_message_that_an_opt_out_cancelled_meanwhile_is_not_refused(
    build: Build, key: str | None
) -> None:
    house, other = build(), build()
    take = partial(other.submit, "ben", scope="ada", send_at=SOON)
    opt_out = partial(other.dispatcher.suppress, "ada")
    slow_store(house, house.redis.flushall, other.open, take, after=opt_out)
    message = house.submit(send_at=SOON, idempotency_key=key)
    assert house.again(message).status is Status.CANCELLED
    assert house.reconciled().reservations() == house.all_members()


@pytest.mark.parametrize("key", [None, "key"])
def test_a_message_that_a_worker_tried_meanwhile_stays_and_counts(
    build: Build, key: str | None
) -> None:
    """Though another one has its time: it may be sent, so the next one must not be booked there."""
    house, other = build(), build()
    take = partial(other.submit, "ben", scope="ada", send_at=SOON)

    def try_it() -> None:
        house.change(house.dispatcher.select(recipient="ada"), claim_token=1)

    slow_store(house, house.redis.flushall, other.open, take, after=try_it)
    message = house.submit(send_at=SOON, idempotency_key=key)
    assert message.id in house.members()
    assert house.reservations() == house.all_members()


@pytest.mark.parametrize("key", [None, "key"])
@pytest.mark.parametrize(
    ("when", "error"),
    [
        ("after", StoreUnavailable("the connection to the database broke")),
        ("before", StoreUnavailable("read-only", refused=True)),
    ],
)
def test_no_id_is_returned_for_a_message_that_was_perhaps_taken_back(
    build: Build, key: str | None, when: str, error: StoreUnavailable
) -> None:
    house, other = build(), build()
    slow_store(house, house.redis.flushall, other.open, lambda: other.submit(send_at=SOON))
    fails: dict[str, Any] = {when: {"take_back": raising(error)}}
    house.swap("void_ids", Between(house.parts.void_ids, **fails))
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


def test_while_redis_is_closed_the_second_look_waits_for_it(build: Build) -> None:
    house, other = build(), build()
    slow_store(house, house.redis.flushall)
    house.moved.meanwhile = once(other.open)
    message = house.submit(send_at=SOON)
    assert house.moved.sleeps
    assert house.reservations() == house.all_members() == {"ada": {message.id: to_ms(SOON)}}


def test_while_a_duplicate_changes_its_time_the_second_look_waits_for_it(
    build: Build, caplog: pytest.LogCaptureFixture
) -> None:
    """Judged again, another message may have the time by then; restored, both would count."""
    house = build()
    book, left = house.parts.windows.book, [DuplicateUnderWay()]

    def answer(*asked: Any, **more: Any) -> Sequence[object]:
        return [left.pop()] if left else book(*asked, **more)

    slow_store(house, lambda: house.between("reserver", "windows", instead={"book": answer}))
    message = house.submit(send_at=SOON, idempotency_key="key")
    assert left == []
    assert house.moved.sleeps
    assert "reservation lost" not in caplog.text
    assert house.reservations() == house.all_members() == {"ada": {message.id: to_ms(SOON)}}


def test_a_slow_duplicate_is_not_told_of_a_message_that_was_taken_back(build: Build) -> None:
    """It found the row while that was scheduled; since, its submit lost the place and cancelled."""
    house, duplicate = build(), build()

    def cancel(message: Message) -> None:
        assert house.parts.void_ids.take_back(message).void
        terms = terms_for(house.settings, scope="ada", channel="memory")
        cancelled(house.parts.windows, message.id, terms)

    first, answer = slow_duplicate(house, duplicate, cancel)
    assert answer.id != first.id
    assert house.again(answer).status is Status.SCHEDULED
    assert house.again(first).status is Status.CANCELLED
    assert house.reservations() == house.all_members() == {"ada": {answer.id: to_ms(SOON)}}


def test_only_the_submit_that_inserted_a_message_takes_it_back(build: Build) -> None:
    """Its duplicate is slower still: by then the message may have been said to be accepted."""
    house, duplicate = build(), build()

    def lose_the_place(_: Message) -> None:
        house.redis.delete(house.keys("ada").window("ada"))
        house.submit(send_at=SOON)

    first, answer = slow_duplicate(house, duplicate, lose_the_place)
    assert answer == first
    assert house.again(first).status is Status.SCHEDULED


def slow_duplicate(
    house: House, duplicate: House, happens: Callable[[Message], object]
) -> tuple[Message, Message]:
    """Return a message, and what a slow duplicate is told that has found it before this happens."""
    first: list[Message] = []

    def insert_first() -> None:
        first.append(house.submit(send_at=SOON, idempotency_key="key"))

    def be_slow() -> None:
        duplicate.moved.advance(duplicate.settings.settle + timedelta(milliseconds=1))
        happens(first[0])

    hooks: Any = {"before": {"add": once(insert_first)}, "after": {"add": once(be_slow)}}
    duplicate.swap("messages", Between(duplicate.parts.messages, **hooks))
    answer = duplicate.submit(send_at=SOON, idempotency_key="key")
    return first[0], answer


def test_a_batch_waits_for_a_lost_redis_once(build: Build) -> None:
    house = build()
    slow = {"add_together": late(house, house.redis.flushall)}
    house.between("own_transaction", "messages", before=slow)
    results = house.dispatcher.submit_many(drafts(20))
    errors = [result.error for result in results if isinstance(result, Rejection)]
    assert [type(error) for error in errors] == 20 * [ReservationsUnavailable]
    assert sum(house.moved.sleeps) < 2 * LOOKING_SECONDS


@pytest.mark.parametrize("key", [None, "key"])
def test_a_second_look_that_one_shard_does_not_answer_leaves_every_shard_alike(
    build: Build, key: str | None
) -> None:
    house = build(scopes={"tenant": {"quotas": ["5/minute"]}})
    tenants = (f"acme {n}" for n in count())
    tenant = next(name for name in tenants if house.keys(f"@tenant:{name}") != house.keys("ada"))
    scopes, further = {"tenant": tenant}, house.keys(f"@tenant:{tenant}")
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


@pytest.mark.parametrize("keys", [(None, None), ("one", "two")])
def test_a_batch_whose_copy_was_not_answered_is_looked_at_as_ones_own(
    build: Build, keys: tuple[str | None, str | None]
) -> None:
    house, other = build(), build()

    def unanswered(additions: Any, **_: bool) -> None:
        house.moved.advance(house.settings.settle + timedelta(milliseconds=1))
        house.redis.flushall()
        other.open()
        other.submit("ada", send_at=SOON)
        assert messages.add_together(additions)

    instead = {"add_together": unanswered}
    messages = house.between("own_transaction", "messages", instead=instead)
    drafts = [
        draft(name, send_at=SOON, idempotency_key=key)
        for name, key in zip(("ada", "bob"), keys, strict=True)
    ]
    results = house.dispatcher.submit_many(drafts)
    assert [type(result) for result in results] == [Rejection, Message]
    scheduled = house.dispatcher.select(status="scheduled")
    assert sorted(message.recipient for message in scheduled) == ["ada", "bob"]

"""Many moves, cancels and retries in a few round trips: what one promises, for each of them."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from dispatcher import (
    DispatcherError,
    InvalidDraft,
    InvalidValue,
    Message,
    MessageNotFound,
    PermanentFailure,
    QuotaExceeded,
    ReservationsUnavailable,
    Status,
    StoreUnavailable,
    Suppressed,
    TooLate,
)
from dispatcher.message import new_id
from tests.store.plans import asked_of
from tests.support.doubles import once, raising
from tests.support.house import FAR, House, hour_ago
from tests.support.house_fixtures import Build

SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
LATER = FAR + HOUR


def kinds(answers: list[Message | DispatcherError]) -> list[Any]:
    return [answer.send_at if isinstance(answer, Message) else type(answer) for answer in answers]


@pytest.mark.every_database
def test_each_is_answered_in_order_and_gives_its_old_place_back(house: House) -> None:
    messages = [house.submit(f"r{n}", send_at=LATER) for n in range(5)]
    house.dispatcher.cancel(messages[1].id)
    house.change([messages[2]], status="sent", finished_at=house.database_time())
    other = house.submit("r3", send_at=LATER + HOUR)
    nobody = new_id()
    ids = [*(message.id for message in messages), nobody, messages[0].id]
    answers = house.dispatcher.reschedule_many(ids, send_at=LATER + HOUR)
    at = LATER + HOUR
    assert kinds(answers) == [at, TooLate, TooLate, QuotaExceeded, at, MessageNotFound, at]
    refused = answers[3]
    assert isinstance(refused, QuotaExceeded)
    assert refused.conflicting == (other.id,)
    assert answers[0] == house.again(messages[0])
    assert house.reservations() == house.all_members()
    assert house.submit("r0", send_at=LATER).send_at == LATER
    with pytest.raises(InvalidDraft):
        house.dispatcher.reschedule_many([messages[0].id, "4711"], send_in=HOUR)


@pytest.mark.every_database
def test_later_is_later_than_promised_and_moves_zone_and_expiry_as_asked(house: House) -> None:
    messages = [house.submit(f"r{n}", send_at=LATER + n * MINUTE, zone="Europe/London",
                             expire_after=HOUR) for n in range(3)]  # fmt: skip
    house.submit("far", send_at=LATER)
    ids = [message.id for message in messages]
    answers = house.dispatcher.reschedule_many(
        ids, later=2 * HOUR, set_zone="Asia/Tokyo", expire_after=MINUTE
    )
    for before, answer in zip(messages, answers, strict=True):
        assert isinstance(answer, Message)
        assert answer == house.again(before)
        assert (answer.send_at, answer.zone) == (before.send_at + 2 * HOUR, "Asia/Tokyo")
        assert answer.expires_at == answer.send_at + MINUTE
        assert house.columns(answer, "enqueue_at")[0] == answer.send_at - house.settings.horizon
    assert house.reservations() == house.all_members()
    with pytest.raises(InvalidDraft, match="later: given together"):
        house.dispatcher.reschedule(messages[0].id, later=HOUR, send_in=HOUR)


def test_a_cancel_a_claim_and_a_move_meanwhile_are_seen_by_each(build: Build) -> None:
    house = build()
    messages = [house.submit(f"r{n}", send_at=LATER) for n in range(5)]

    def meanwhile() -> None:
        house.dispatcher.cancel(messages[0].id)
        house.dispatcher.reschedule(messages[1].id, send_at=LATER + 3 * HOUR)

    withdrawn = once(lambda: house.dispatcher.cancel(messages[2].id))
    house.between("moves", "windows", after={"move_many": once(meanwhile)})
    house.between("reserver", "windows", before={"withdraw": withdrawn})
    answers = house.dispatcher.reschedule_many([message.id for message in messages], later=HOUR)
    at = LATER + HOUR
    assert kinds(answers) == [TooLate, LATER + 4 * HOUR, TooLate, at, at]
    assert house.reservations() == house.all_members()


def test_an_outage_answers_all_remaining_messages(house: House, build: Build) -> None:
    messages = [house.submit(f"r{n}", send_at=LATER) for n in range(3)]
    house.dispatcher.cancel(messages[0].id)
    ids = [message.id for message in messages]
    away = build(redis_url="redis://127.0.0.1:1", opened=False)
    answers = away.dispatcher.reschedule_many(ids, send_at=LATER + HOUR)
    assert kinds(answers) == [TooLate, ReservationsUnavailable, ReservationsUnavailable]
    broken = raising(StoreUnavailable("broke"))
    house.between("moves", "messages", before={"move": broken})
    answers = house.dispatcher.reschedule_many(ids, send_at=LATER + HOUR)
    assert kinds(answers) == [TooLate, StoreUnavailable, StoreUnavailable]
    assert [house.again(message).send_at for message in messages] == [LATER] * 3


def test_a_move_that_the_store_refuses_stops_no_other(house: House) -> None:
    messages = [house.submit(f"r{n}", send_at=LATER) for n in range(3)]

    def refusing(moves: Any, **more: Any) -> Any:
        if any(move.before.message.id == messages[1].id for move in moves):
            raise StoreUnavailable("a value", refused=True)
        return real.move(moves, **more)

    real = house.between("moves", "messages", instead={"move": refusing})
    ids = [message.id for message in messages]
    answers = house.dispatcher.reschedule_many(ids, send_at=LATER + HOUR)
    assert [isinstance(answer, Message) for answer in answers] == [True, False, True]
    assert house.again(messages[1]).send_at == LATER
    assert house.reservations() == house.all_members()


def test_however_many_move_the_store_and_redis_are_asked_a_few_times(house: House) -> None:
    messages = [house.submit(f"r{n}", send_at=LATER) for n in range(40)]
    ids = [message.id for message in messages]
    with asked_of(house.parts.database.engine) as asked:
        names = ("move", "release_many")
        sent = {name: partial(asked.append, (name, None)) for name in names}
        house.between("windows", "shards", after=sent)
        house.dispatcher.reschedule_many(ids[:2], send_at=LATER + HOUR)
        for_two = len(asked)
        asked.clear()
        house.dispatcher.reschedule_many(ids, send_at=LATER + 2 * HOUR)
        assert len(asked) == for_two
    assert house.again(messages[0]).send_at == LATER + 2 * HOUR


@pytest.mark.every_database
def test_failed_messages_are_retried_each_as_alone(slow: House) -> None:
    slow.fail_sends(*[PermanentFailure("no such number")] * 4)
    messages = [slow.submit(f"r{n}") for n in range(6)]
    failed = [*messages[:3], messages[4]]
    slow.deliver(*failed)
    held = messages[3]
    slow.parts.delivery.claims.claim([held.id])
    slow.change([held], on_unknown="hold")
    slow.end_claims(held)
    assert slow.parts.sweep.rescue() == 1
    slow.dispatcher.drop(held.id)
    slow.change([failed[1]], expires_at=slow.database_time() - SECOND)
    slow.dispatcher.suppress("r2")
    nobody = new_id()
    ids = [message.id for message in messages]
    answers = slow.dispatcher.retry_many([*ids, nobody, failed[0].id])
    assert [retry.status if isinstance(retry, Message) else type(retry) for retry in answers] == [
        Status.SCHEDULED, TooLate, Suppressed, InvalidValue, Status.SCHEDULED, TooLate,
        MessageNotFound, Status.SCHEDULED,
    ]  # fmt: skip
    assert slow.again(failed[0]).max_attempts == 1 + slow.settings.channels["memory"].max_attempts
    [again] = slow.dispatcher.retry_many([held.id], perhaps_sent=True)
    assert isinstance(again, Message)


def test_what_a_worker_has_is_not_cancelled_before_it_puts_it_back(build: Build) -> None:
    house = build(clock=hour_ago())
    first, second = house.submit("ada"), house.submit("ben")
    claims = house.parts.delivery.claims
    claimed = claims.claim([first.id])
    ids = [first.id, second.id]
    assert kinds(house.dispatcher.cancel_many(ids)) == [TooLate, second.send_at]
    assert house.again(first).status is Status.SENDING
    claims.put_back([(claimed[0], timedelta(0))], enqueue_in=timedelta(0))
    assert kinds(house.dispatcher.cancel_many(ids)) == [first.send_at, second.send_at]


def test_a_cancel_stands_though_redis_is_away_and_reconcile_frees_the_places(build: Build) -> None:
    house = build()
    messages = [house.submit(f"r{n}", send_at=LATER) for n in range(3)]
    away = build(redis_url="redis://127.0.0.1:1", opened=False)
    answers = away.dispatcher.cancel_many([message.id for message in messages])
    assert all(isinstance(answer, Message) for answer in answers)
    assert len(house.all_members()) == 3
    house.parts.reconciler.reconcile()
    assert house.all_members() == {}


def test_messages_cancelled_before_the_store_failed_are_released(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dispatcher.submission.changes._AT_ONCE", 1)
    one, other = house.submit("ada", send_at=LATER), house.submit("ben", send_at=LATER)
    before = {message.id: house.again(message) for message in (one, other)}
    away = {"cancel": raising(StoreUnavailable("away"))}
    fail_from_now = partial(house.between, "cancellation", "messages", before=away)
    house.between("cancellation", "messages", after={"cancel": fail_from_now})
    with pytest.raises(StoreUnavailable):
        house.parts.cancellation.cancel_many([*before], if_unchanged=before)
    assert house.again(one).status is Status.CANCELLED
    assert house.all_members() == {"ben": house.members("ben")}

"""The key of a message that ended unsent is free; any other key stays with its message."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from dispatcher import IdempotencyConflict, Message, Outcome, Status, TooLate
from tests.submission.test_idempotency import WAYS, keyed
from tests.support.doubles import Between, at_once, once
from tests.support.house import FAR, House, draft
from tests.support.house_fixtures import Build
from tests.support.rows import insert_attempt

SOON = FAR + timedelta(minutes=1)
LATER: dict[str, Any] = {"send_at": SOON + timedelta(hours=1), "body": {"text": "anew"}}
FREE: list[tuple[Status, tuple[Outcome, ...]]] = [
    (Status.CANCELLED, ()),
    (Status.CANCELLED, (Outcome.TEMPORARY,)),
    (Status.EXPIRED, ()),
    (Status.FAILED, (Outcome.TEMPORARY, Outcome.PERMANENT)),
]
TAKEN: list[tuple[Status, tuple[Outcome | None, ...]]] = [
    (Status.SCHEDULED, ()),
    (Status.SCHEDULED, (Outcome.TEMPORARY,)),
    (Status.SENDING, (None,)),
    (Status.HELD, (Outcome.UNKNOWN,)),
    (Status.SENT, (Outcome.SENT,)),
    (Status.CANCELLED, (Outcome.UNKNOWN,)),
    (Status.EXPIRED, (Outcome.UNKNOWN, Outcome.TEMPORARY)),
    (Status.FAILED, (Outcome.UNKNOWN,)),
]


def end(
    house: House, message: Message, status: Status, outcomes: tuple[Outcome | None, ...]
) -> None:
    """Let a message have this status after attempts with these outcomes."""
    if status is Status.CANCELLED:
        house.dispatcher.cancel(message.id)
    now, tries = house.database_time(), len(outcomes)
    for token, outcome in enumerate(outcomes, start=1):
        ended = {"outcome": outcome, "finished_at": outcome and now}
        tried = {"message_id": message.id, "token": token, "started_at": now}
        insert_attempt(house.database, **tried, **ended)
    is_open = status in (Status.SCHEDULED, Status.SENDING, Status.HELD)
    claim = {"claimed_by": message.id, "claim_expires_at": now}
    house.change(
        [message],
        status=status.value, attempt_count=tries, claim_token=tries,
        finished_at=None if is_open else now,
        **claim if status is Status.SENDING else {},
    )  # fmt: skip


@pytest.mark.every_database
@pytest.mark.parametrize("way", WAYS)
def test_the_key_of_a_message_that_ended_unsent_is_free(house: House, way: str) -> None:
    for number, (status, outcomes) in enumerate(FREE):
        own: dict[str, Any] = {"recipient": f"r{number}", "idempotency_key": f"key {number}"}
        first = keyed(house, **own)
        end(house, first, status, outcomes)
        second = WAYS[way](house, own | LATER)
        assert isinstance(second, Message)
        assert second.id != first.id
        assert (second.status, second.body) == (Status.SCHEDULED, LATER["body"])
        assert WAYS[way](house, own | LATER) == second
        with pytest.raises(IdempotencyConflict):
            keyed(house, **own)
        [holder] = house.dispatcher.list(idempotency_key=own["idempotency_key"])
        assert holder.id == second.id
        assert house.again(first).status is status
        with pytest.raises(TooLate):
            house.dispatcher.retry(first.id)
        house.dispatcher.cancel(second.id)
        assert keyed(house, **own | LATER).id not in {first.id, second.id}


@pytest.mark.every_database
def test_the_key_of_a_message_that_may_go_out_or_did_is_taken(house: House) -> None:
    for number, (status, outcomes) in enumerate(TAKEN):
        own: dict[str, Any] = {"recipient": f"r{number}", "idempotency_key": f"key {number}"}
        first = keyed(house, **own)
        end(house, first, status, outcomes)
        before = house.rows()
        submit = list(WAYS.values())[number % len(WAYS)]
        again = submit(house, own)
        assert isinstance(again, Message)
        assert (again.id, again.status) == (first.id, status)
        with pytest.raises(IdempotencyConflict):
            submit(house, own | LATER)
        assert house.rows() == before


@pytest.mark.parametrize("atomic", [True, False])
def test_a_batch_supersedes_together_and_a_key_twice_is_one_message(
    house: House, atomic: bool
) -> None:
    old = [keyed(house, recipient=f"r{n}", idempotency_key=f"k{n}") for n in range(3)]
    house.dispatcher.cancel_many([message.id for message in old[:2]])
    drafts = [draft(f"r{n}", send_at=SOON, idempotency_key=f"k{n}") for n in (0, 1, 2, 0)]
    planned = house.dispatcher.plan(drafts)
    assert (planned.accepted, planned.known) == (4, 2)
    results = house.dispatcher.submit_many(drafts, atomic=atomic)
    assert all(isinstance(result, Message) for result in results)
    ids = [result.id for result in results if isinstance(result, Message)]
    assert ids[2] == old[2].id
    assert ids[3] == ids[0]
    assert not {*ids[:2]} & {message.id for message in old}


@pytest.mark.every_database
@pytest.mark.parametrize("shards", [1, 64])
def test_submits_beside_a_cancel_leave_one_live_message_at_most(build: Build, shards: int) -> None:
    house = build(shards=shards, scopes={"tenant": {"quotas": ["100/minute"]}})
    for turn, way in enumerate(WAYS.values()):
        asked: dict[str, Any] = {
            "idempotency_key": f"key {turn}",
            "send_at": SOON + timedelta(hours=turn),
            "scopes": {"tenant": "acme"},
        }
        first = keyed(house, **asked)
        submit = partial(way, house, asked)
        cancel = partial(house.dispatcher.cancel, first.id)
        actions: list[Callable[[], object]] = [cancel, *[submit] * 5]
        answers = at_once(actions)
        assert isinstance(answers[0], Message)
        assert answers[0].status is Status.CANCELLED
        last = submit()
        assert isinstance(last, Message)
        live = house.dispatcher.list(status="scheduled", idempotency_key=f"key {turn}")
        assert [message.id for message in live] == [last.id]
        told = {answer.id for answer in answers[1:] if isinstance(answer, Message)}
        assert told <= {first.id, last.id}
    house.reconciled()
    assert len(house.members()) == len(WAYS)
    assert house.reservations() == house.all_members()


@pytest.mark.every_database
def test_a_retry_judged_before_the_key_was_taken_over_sends_nothing(build: Build) -> None:
    house, other = build(), build()
    first = keyed(house)
    end(house, first, Status.FAILED, (Outcome.PERMANENT,))

    def take_over() -> None:
        keyed(other, **LATER)

    house.swap(
        "stopped_messages", Between(house.parts.stopped_messages, before={"retry": once(take_over)})
    )
    with pytest.raises(TooLate, match="later message with its idempotency key"):
        house.dispatcher.retry(first.id)
    assert house.again(first).status is Status.FAILED


@pytest.mark.every_database
def test_a_retry_that_comes_first_keeps_its_key(build: Build) -> None:
    house, other = build(), build()
    first = keyed(house)
    end(house, first, Status.FAILED, (Outcome.PERMANENT,))

    def retry() -> None:
        other.dispatcher.retry(first.id)

    house.swap("messages", Between(house.parts.messages, before={"add": once(retry)}))
    with pytest.raises(IdempotencyConflict):
        keyed(house, **LATER)
    assert [message.id for message in house.dispatcher.list(status="scheduled")] == [first.id]
    assert house.reservations() == house.all_members()

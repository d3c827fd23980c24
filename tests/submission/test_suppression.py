"""Who has opted out gets nothing: nothing new is taken, what is scheduled ends at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest

from dispatcher import (
    DispatcherError,
    Message,
    QuietHours,
    QuotaExceeded,
    Rejection,
    Status,
    Suppressed,
    UnknownChannel,
)
from tests.store.plans import asked_of
from tests.submission.test_idempotency import WAYS
from tests.support.house import FAR, House, draft
from tests.support.house_fixtures import Build

pytestmark = pytest.mark.every_database

LATER = FAR + timedelta(hours=1)
QUOTAS = ["50/minute"]
TWO_CHANNELS = {"memory": {"transport": "memory"}, "other": {"transport": "memory"}}


def test_a_submit_is_refused_and_leaves_no_trace(house: House) -> None:
    house.dispatcher.suppress("ada")
    before = house.snapshot()
    with pytest.raises(Suppressed) as refused:
        house.submit("ada", send_at=LATER)
    assert (refused.value.field, refused.value.channel) == ("recipient", "memory")
    assert "ada" not in str(refused.value)
    assert house.all_members() == {}
    assert house.snapshot().messages == before.messages == []
    assert house.submit("ben", send_at=LATER).status is Status.SCHEDULED


def test_a_suppression_of_one_channel_leaves_the_others(build: Build) -> None:
    house = build(channels=TWO_CHANNELS, quotas=QUOTAS)
    house.dispatcher.suppress("ada", channel="other")
    kept = house.submit("ada", send_at=LATER)
    with pytest.raises(Suppressed):
        house.submit("ada", send_at=LATER, channel="other")
    assert house.dispatcher.suppress("ada", channel="other") == 0
    assert house.again(kept).status is Status.SCHEDULED
    with pytest.raises(UnknownChannel):
        house.dispatcher.suppress("ada", channel="fax")


def test_a_suppression_cancels_scheduled_messages_and_gives_their_quota_back(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dispatcher.submission.lists._AT_ONCE", 3)
    house = build(channels=TWO_CHANNELS, quotas=QUOTAS)
    mine = [house.submit("ada", send_at=LATER) for _ in range(7)]
    others = house.submit("ada", send_at=LATER, channel="other"), house.submit("ben", send_at=LATER)
    assert house.dispatcher.suppress("ada", channel="memory") == 7
    assert {house.again(message).status for message in mine} == {Status.CANCELLED}
    assert {house.again(other).status for other in others} == {Status.SCHEDULED}
    assert {*house.members()} == {others[0].id}


def test_a_repeated_submit_is_refused_though_its_key_is_free(house: House) -> None:
    asked: dict[str, Any] = {"send_at": LATER, "idempotency_key": "k"}
    house.submit("ada", **asked)
    house.dispatcher.suppress("ada")
    before = house.snapshot()
    with pytest.raises(Suppressed):
        house.submit("ada", **asked)
    assert house.snapshot() == before


def test_many_are_refused_one_by_one(house: House) -> None:
    house.dispatcher.suppress("r1")
    drafts = [draft(f"r{n}") for n in range(3)] + [draft("r1", idempotency_key="k")] * 2
    planned = house.dispatcher.plan(drafts)
    assert (planned.accepted, len(planned.rejections)) == (2, 3)
    answers = house.dispatcher.submit_many(drafts)
    kinds = [answer.error if isinstance(answer, Rejection) else answer.status for answer in answers]
    assert [isinstance(kind, Suppressed) for kind in kinds] == [False, True, False, True, True]
    assert {*house.all_members()} == {"r0", "r2"}
    refused = house.dispatcher.submit_many([draft("r1"), draft("r9")], atomic=True)
    assert all(isinstance(answer, Rejection) for answer in refused)
    assert {*house.all_members()} == {"r0", "r2"}


def test_many_that_are_stored_one_by_one_are_looked_at_again(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recipient opts out while a batch is under way that cannot be stored together."""
    house.dispatcher.suppress("r1")
    monkeypatch.setattr(house.parts.suppressions, "among", lambda _: set())
    monkeypatch.setattr(house.parts.own_transaction.messages, "add_together", lambda _: False)
    answers = house.dispatcher.submit_many([draft("r0"), draft("r1")])
    assert isinstance(answers[0], Message)
    assert isinstance(answers[1], Rejection)
    assert isinstance(answers[1].error, Suppressed)
    assert {*house.all_members()} == {"r0"}


def test_suppression_is_judged_before_quotas_and_quiet_hours(build: Build) -> None:
    house = build(
        channels={"memory": {"transport": "memory", "quiet_hours": "14:00-15:00"}},
        quotas=["1/minute"],
    )
    quiet = FAR + timedelta(hours=3, minutes=30)
    house.submit("someone", send_at=LATER, scope="shared")
    moved = house.submit("ada", send_at=FAR + timedelta(minutes=7), scope="shared")

    def ways(at: datetime) -> list[Callable[[], object]]:
        asked = {"scope": "shared", "send_at": at, "idempotency_key": None}
        return [
            *(partial(way, house, asked) for way in WAYS.values()),
            lambda: raised(house.dispatcher.plan([draft("ada", **asked)]).rejections),
            lambda: house.dispatcher.reschedule(moved.id, send_at=at),
            lambda: raised(house.dispatcher.reschedule_many([moved.id], send_at=at)),
        ]

    for at, error in ((LATER, QuotaExceeded), (quiet, QuietHours)):
        for way in ways(at):
            with pytest.raises(error):
                way()
    house.parts.suppressions.add("ada", None)
    before = house.snapshot()
    for at in (LATER, quiet):
        for way in ways(at):
            with pytest.raises(Suppressed):
                way()
    assert house.snapshot() == before


def raised(answers: Sequence[Message | Rejection | DispatcherError]) -> None:
    (answer,) = answers
    assert not isinstance(answer, Message)
    raise answer.error if isinstance(answer, Rejection) else answer


def slip_in(house: House, recipient: str, **asked: Any) -> Message:
    """Submit what looked before its recipient opted out, and is stored after that."""
    house.dispatcher.unsuppress(recipient)
    message = house.submit(recipient, **asked)
    house.parts.suppressions.add(recipient, None)
    return message


def test_a_message_stored_during_a_suppression_is_cancelled_when_due(slow: House) -> None:
    message = slip_in(slow, "ada")
    other = slow.submit("ben")
    assert slow.deliver(message, other) == 1
    assert slow.sent == [other.id]
    ended = slow.again(message)
    assert (ended.status, ended.attempt_count) == (Status.CANCELLED, 0)
    assert ended.last_error == "its recipient is suppressed"
    assert slow.dispatcher.attempts(message.id) == []
    slow.parts.reconciler.reconcile()
    assert {*slow.all_members()} == {"ben"}


def come_back(house: House, **columns: Any) -> Message:
    message = house.submit("ada")
    house.change([message], **columns)
    house.parts.suppressions.add("ada", None)
    return message


def test_held_and_failed_messages_of_a_suppressed_recipient_stay(slow: House) -> None:
    held = come_back(slow, status="held")
    with pytest.raises(Suppressed):
        slow.dispatcher.release(held.id)
    assert slow.again(held).status is Status.HELD
    slow.change([held], status="failed", finished_at=slow.database_time())
    with pytest.raises(Suppressed):
        slow.dispatcher.retry(held.id)
    assert slow.again(held).status is Status.FAILED


def test_it_can_be_taken_back_as_it_was_said(house: House) -> None:
    house.dispatcher.suppress("ada")
    house.dispatcher.suppress("ada", channel="memory")
    [every, one] = house.dispatcher.suppressed("ada")
    assert (every.channel, one.channel) == (None, "memory")
    assert abs(house.database_time() - every.created_at) < timedelta(minutes=1)
    assert house.dispatcher.unsuppress("ada") == (one,)
    with pytest.raises(Suppressed):
        house.submit("ada", send_at=LATER)
    assert house.dispatcher.unsuppress("ada", channel="memory") == ()
    assert house.dispatcher.unsuppress("ada", channel="fax") == ()
    assert house.submit("ada", send_at=LATER).status is Status.SCHEDULED


def test_all_are_listed_in_order_page_by_page(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dispatcher.submission.lists._AT_ONCE", 2)
    said = [("ada", None), ("ada", "memory"), ("Ada", None), ("zoë", "memory"), ("é", None)]
    for recipient, channel in said:
        house.dispatcher.suppress(recipient, channel=channel)
        house.dispatcher.suppress(recipient, channel=channel)
    entries = [(entry.recipient, entry.channel) for entry in house.dispatcher.suppressed()]
    assert len(entries) == len(said)
    assert {*entries} == {*said}


def test_the_usual_submit_asks_the_store_no_further_question(house: House) -> None:
    house.submit("ada", send_at=LATER)
    with asked_of(house.parts.database.engine) as asked:
        house.submit("ben", send_at=LATER)
    inserts = (
        [] if house.url.startswith("postgresql") else ["INSERT INTO dispatcher_messages"]
    )  # past it
    assert [" ".join(statement.split()[:3]) for statement, _ in asked] == inserts

"""An erased recipient leaves no trace in any table, key or file, and every count stays."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import String, insert, update

from dispatcher import (
    Fault,
    Message,
    Outcome,
    PermanentFailure,
    ReservationsUnavailable,
    Status,
    TooLate,
)
from dispatcher.store.claims import Failure
from tests.support.doubles import Between, once, raising
from tests.support.house import House, hour_ago
from tests.support.house_fixtures import Build

WHO = "Ada.Lovelace@Example.org"
SPELT = "Ada.Lovelace@example.org"
BODY = {"text": "Dear Ada Lovelace, your code is quince"}
STAY = {"idempotency_key", "zone", "quiet_hours", "campaign", "notified_status"}
"""Texts that are no trace of a recipient; a key is tried by those of the other messages."""
TRACES = ("lovelace", "quince", "key of her", "receipt of her")
MANY = ["100/day"]
SETTINGS: dict[str, Any] = {
    "quotas": MANY,
    "scopes": {"tenant": {"quotas": MANY}, "person": {"quotas": MANY}},
    "channels": {
        "memory": {
            "transport": "memory", "recipients": "email",
            "quotas": MANY, "recipient_quotas": MANY, "limits": MANY, "without_quotas": "allowed",
        }
    },
}  # fmt: skip


def traces(house: House) -> Iterator[str]:
    """Yield where something of the recipient lies: a crawl over tables, keys and files."""
    for place, value in house.everything():
        text = f"{place} {value!r}".lower()
        yield from (f"{place}: {trace}" for trace in TRACES if trace in text)


def of_every_status(house: House) -> dict[Status, Message]:
    """Submit a message of each final status, a scheduled and a held one; leave what they leave."""
    asked: dict[str, Any] = {"scopes": {"tenant": "acme", "person": SPELT}, "body": BODY}
    made: dict[Status, Message] = {
        status: house.submit(WHO, **asked, idempotency_key=f"key of her {status}")
        for status in Status
        if status not in (Status.SCHEDULED, Status.SENDING)
    }
    house.deliver(made[Status.SENT])
    house.fail_sends(PermanentFailure("no mailbox Ada Lovelace"))
    house.deliver(made[Status.FAILED])
    assert house.again(made[Status.FAILED]).status is Status.FAILED
    house.dispatcher.cancel(made[Status.CANCELLED].id)
    now = house.database_time()
    house.change([made[Status.EXPIRED]], status="expired", finished_at=now)
    house.change([made[Status.HELD]], status="held", last_error="Ada Lovelace?")
    code = house.submit(WHO, body=BODY, quotas="none")
    house.deliver(code)
    made[Status.SCHEDULED] = house.submit(WHO, **asked, send_in=timedelta(hours=1))
    texts = {
        column.name: "https://x.example/lovelace" for column in house.tables.messages.c
        if column.nullable and isinstance(column.type, String) and column.name not in STAY
    }  # fmt: skip
    house.change([made[Status.SCHEDULED]], **texts, notified_status="scheduled")
    unknown = {
        "message_id": made[Status.HELD].id, "token": 7, "started_at": now, "finished_at": now,
        "outcome": Outcome.UNKNOWN.value,
    }  # fmt: skip
    attempts = house.tables.attempts
    house.database.run(lambda connection: connection.execute(insert(attempts).values(unknown)))
    house.database.run(
        lambda connection: connection.execute(update(attempts).values(receipt="receipt of her"))
    )
    return made


@pytest.mark.every_database
def test_no_table_key_or_file_has_a_trace_of_an_erased_recipient(build: Build) -> None:
    house = build(clock=hour_ago(), **SETTINGS)
    house.submit("ben@example.org", scopes={"tenant": "acme"}, idempotency_key="of ben")
    made = of_every_status(house)
    house.dispatcher.pause("recipient", WHO)
    house.dispatcher.suppress(WHO, channel="memory")
    assert {trace.rpartition(": ")[2] for trace in traces(house)} == {*TRACES}
    before = house.dispatcher.counts()

    done = house.dispatcher.erase(WHO)
    assert [*traces(house)] == [], "blank it in PersonalData.blank, or name its column in STAY"
    assert (done.blanked, done.under_way) == (len(made) + 1, 0)
    assert house.dispatcher.erase(WHO).blanked == 0

    after = house.dispatcher.counts()
    assert sum(after["memory"].values()) == sum(before["memory"].values())
    assert after["memory"][Status.SENT] == before["memory"][Status.SENT]
    assert house.again(made[Status.SENT]).finished_at is not None
    faults = {difference.fault for difference in house.dispatcher.verify_windows().differences}
    assert faults <= {Fault.UNDER_WAY}  # the expired one has yet to be released
    house.reconciled()
    assert [*traces(house)] == []
    assert house.submit("ben@example.org", idempotency_key="of ben 2").recipient
    with pytest.raises(TooLate, match="erased"):
        house.dispatcher.retry(made[Status.FAILED].id)
    assert house.submit(WHO).status is Status.SCHEDULED  # nothing is left that refuses it


def test_what_a_broken_erasure_leaves_the_next_one_finds(build: Build) -> None:
    house = build(clock=hour_ago(), **SETTINGS)
    of_every_status(house)
    broken = raising(ReservationsUnavailable("gone"))
    house.swap("upkeep", Between(house.parts.upkeep, before={"forget": broken}))
    with pytest.raises(ReservationsUnavailable):
        house.dispatcher.erase(WHO)
    assert house.dispatcher.erase(WHO).blanked == 0
    assert [*traces(house)] == []


def test_a_message_that_is_being_sent_is_left_and_goes_out_whole(build: Build) -> None:
    house = build(clock=hour_ago(), **SETTINGS)
    message = house.submit(WHO, body=BODY)
    told: list[int] = []
    erase = once(lambda: told.append(house.dispatcher.erase(WHO).under_way))
    house.memory.before = lambda _: erase()
    house.deliver(message)
    assert told == [1]
    assert house.memory.sent[0].recipient == SPELT
    assert house.again(message).status is Status.SENT
    assert house.dispatcher.erase(WHO).under_way == 0
    assert [*traces(house)] == []


def test_messages_that_name_the_recipient_as_their_scope_keep_their_reservations(
    build: Build,
) -> None:
    house = build(clock=hour_ago(), **SETTINGS)
    house.submit(WHO, send_in=timedelta(hours=1))
    other = house.submit("ben@example.org", scope=SPELT, send_in=timedelta(hours=1))
    house.dispatcher.erase(WHO)
    assert house.members(SPELT).keys() == {other.id}
    assert house.dispatcher.verify_windows().differences == ()


@pytest.mark.parametrize("keeps", [True, False])
def test_an_opt_out_goes_unless_it_is_kept(build: Build, keeps: bool) -> None:
    house = build(clock=hour_ago(), **SETTINGS)
    house.dispatcher.suppress(WHO)
    house.dispatcher.erase(WHO, keep_opt_out=keeps)
    left = [entry.recipient for entry in house.dispatcher.suppressed()]
    assert left == ([SPELT] if keeps else [])


def test_a_retry_judged_before_the_erasure_sends_nothing(build: Build) -> None:
    house, other = (build(clock=hour_ago(), **SETTINGS) for _ in range(2))
    message = house.submit(WHO, body=BODY)
    house.change([message], status="failed", finished_at=house.database_time())
    erase = once(lambda: other.dispatcher.erase(WHO))
    house.swap("stopped_messages", Between(house.parts.stopped_messages, before={"retry": erase}))
    with pytest.raises(TooLate, match="erased"):
        house.dispatcher.retry(message.id)
    assert house.again(message).status is Status.FAILED


def test_what_is_called_like_the_recipient_stays(build: Build) -> None:
    """A pause of a tenant."""
    house = build(**SETTINGS | {"channels": {"memory": {"transport": "memory"}}})
    house.dispatcher.pause("recipient", "ops")
    house.dispatcher.pause("tenant", "ops")
    house.dispatcher.erase("ops")
    [pause] = house.parts.pauses.in_force()
    assert (pause.kind, pause.name) == ("tenant", "ops")


def test_a_worker_that_tells_late_of_a_send_writes_nothing_back(build: Build) -> None:
    house = build(clock=hour_ago(), **SETTINGS)
    message = house.submit(WHO, send_in=timedelta(0), body=BODY)
    house.change([message], max_attempts=1)
    [claim] = house.parts.claims.claim([message.id])
    house.end_claims(message)
    house.parts.sweep.rescue()
    assert house.again(message).status is Status.FAILED
    house.dispatcher.erase(WHO)
    late = Failure(claim, Outcome.TEMPORARY, "no Lovelace here", None)
    house.parts.claims.record([], [late], enqueue_in=timedelta(seconds=5))
    assert list(traces(house)) == []

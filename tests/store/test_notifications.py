"""Pending notifications, and the status messages that deliver them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from dispatcher.message import Message, Outcome
from dispatcher.store.claims import Claim, Claims, Failure, Success
from dispatcher.store.database import Database
from dispatcher.store.lists import Suppressions
from dispatcher.store.maintenance import StoreMaintenance, overdue
from dispatcher.store.messages import Messages, StoppedMessages
from dispatcher.store.notifications import Notifications
from dispatcher.times.send_time import as_text
from tests.store.plans import add_many, asked_of, plan_of, touched
from tests.support import rows
from tests.support.doubles import at_once

pytestmark = pytest.mark.every_database

URL = "https://shop.example/hooks?token=hunter2"
NO_WAIT = timedelta(0)


def due_notifications(database: Database) -> Notifications:
    return Notifications(database, channel="status", max_attempts=7)


def tell(database: Database) -> list[Any]:
    """Tell everything; return the rows of the status messages made by that."""
    made = due_notifications(database).tell(limit=100)
    return [rows.row(database, message_id) for message_id in made]


def claims(database: Database) -> Claims:
    return Claims(database, ttl=rows.TTL)


def asked(database: Database, **changes: Any) -> Message:
    """Store a message that has been due for a minute and whose caller wants to be told."""
    message = rows.a_message(send_at=rows.now() - timedelta(minutes=1), **changes)
    return Messages(database).add(rows.addition(message, status_url=URL))


def sent(database: Database, **changes: Any) -> Message:
    message = asked(database, **changes)
    (claim,) = claims(database).claim([message.id])
    claims(database).record([Success(claim, None)], [], enqueue_in=NO_WAIT)
    return Messages(database).get(message.id)


def fail(
    database: Database,
    message: Message,
    outcome: Outcome = Outcome.PERMANENT,
    wait: timedelta | None = None,
) -> Claim:
    """Claim a message, and let the try fail; return the claim."""
    (claim,) = claims(database).claim([message.id])
    claims(database).record([], [Failure(claim, outcome, "why", wait)], enqueue_in=NO_WAIT)
    return claim


def failed(database: Database, outcome: Outcome = Outcome.PERMANENT, **changes: Any) -> Message:
    """Let the only try of a message fail."""
    message = asked(database, **changes)
    fail(database, message, outcome)
    return Messages(database).get(message.id)


def held(database: Database) -> Message:
    return failed(database, Outcome.UNKNOWN, on_unknown="hold")


def expired(database: Database) -> Message:
    message = asked(database, expires_at=rows.now() - timedelta(seconds=1))
    claims(database).unclaimed([message.id])
    return message


def cancelled(database: Database) -> Message:
    message = asked(database)
    return Messages(database).cancel([message.id]).rows[message.id].message


def rescued(database: Database) -> Message:
    """Let the worker of a message's only try die."""
    message = asked(database, max_attempts=1)
    claims(database).claim([message.id])
    rows.change(database, message.id, claim_expires_at=rows.now() - timedelta(seconds=1))
    StoreMaintenance(database).rescue(limit=9)
    return message


def never_taken(database: Database) -> Message:
    message = asked(database)
    to_expire = overdue(database.tables, ["sms"], NO_WAIT)
    StoreMaintenance(database, to_expire=to_expire).expire_overdue(limit=9)
    return message


def suppressed(database: Database) -> Message:
    message = asked(database)
    suppressions = Suppressions(database)
    suppressions.add(message.recipient, None)
    claims(database).unclaimed([message.id])
    suppressions.remove(message.recipient, None)
    return message


def expired_after_a_try(database: Database) -> Message:
    message = asked(database, expires_at=rows.now() + timedelta(minutes=1))
    fail(database, message, Outcome.TEMPORARY, timedelta(hours=1))
    return message


@pytest.mark.parametrize(
    ("end", "status", "outcome", "reason"),
    [
        (sent, "sent", "sent", None),
        (failed, "failed", "permanent", "refused"),
        (lambda database: failed(database, Outcome.TEMPORARY),
         "failed", "temporary", "attempts_used_up"),
        (rescued, "failed", "unknown", "attempts_used_up"),
        (lambda database: StoppedMessages(database).drop(held(database)),
         "failed", "unknown", "dropped"),
        (expired, "expired", None, "expiry"),
        (expired_after_a_try, "expired", "temporary", "expiry"),
        (never_taken, "expired", None, "overdue"),
        (cancelled, "cancelled", None, "requested"),
        (suppressed, "cancelled", None, "suppressed"),
        (held, "held", "unknown", "outcome_unknown"),
    ],
)  # fmt: skip
def test_each_end_is_told_once_with_its_outcome_and_reason(
    database: Database,
    end: Callable[[Database], Message],
    status: str,
    outcome: str | None,
    reason: str | None,
) -> None:
    message = Messages(database).get(end(database).id)
    assert message.status == status
    [row] = tell(database)
    assert (row.channel, row.recipient, row.status) == ("status", URL, "scheduled")
    assert (row.scope, row.reserved, row.max_attempts) == ("", False, 7)
    assert (row.on_unknown, row.status_url, row.notified_status) == ("retry", None, None)
    body = dict(row.body)
    at = body.pop("timestamp")
    if message.finished_at is not None:
        assert at == as_text(message.finished_at)
    assert body == {
        "type": f"message.{status}",
        "data": {
            "id": str(message.id),
            "channel": "sms",
            "status": status,
            "attempt_count": message.attempt_count,
            "send_at": as_text(message.send_at),
            "finished_at": as_text(message.finished_at) if message.finished_at else None,
            "outcome": outcome,
            "reason": reason,
        },
    }
    assert tell(database) == []
    assert rows.row(database, message.id).notified_status == status


def test_a_late_success_is_told_after_the_failure(database: Database) -> None:
    claim = fail(database, asked(database), Outcome.TEMPORARY)
    told = [row.body["type"] for row in tell(database)]
    claims(database).record([Success(claim, None)], [], enqueue_in=NO_WAIT)
    told += [row.body["type"] for row in tell(database)]
    assert told == ["message.failed", "message.sent"]


def test_a_message_held_again_after_a_release_is_notified_again(database: Database) -> None:
    message = held(database)
    assert len(tell(database)) == 1
    StoppedMessages(database).release(Messages(database).get(message.id))
    assert tell(database) == []
    fail(database, message, Outcome.UNKNOWN)
    [row] = tell(database)
    assert row.body["type"] == "message.held"
    StoppedMessages(database).drop(Messages(database).get(message.id))
    [row] = tell(database)
    assert row.body["type"] == "message.failed"


def test_a_status_message_that_is_there_is_made_no_second_time(database: Database) -> None:
    message = sent(database)
    [row] = tell(database)
    rows.change(database, message.id, notified_status="scheduled")
    assert tell(database) == []
    assert rows.row(database, message.id).notified_status == "sent"
    assert rows.row(database, row.id) == row


def test_prune_keeps_what_is_yet_to_be_told(database: Database) -> None:
    message = sent(database)
    rows.age(database, message.id)
    maintenance = StoreMaintenance(database)
    assert maintenance.prune(older_than=timedelta(minutes=5), limit=9) == 0
    assert len(tell(database)) == 1
    assert maintenance.prune(older_than=timedelta(minutes=5), limit=9) == 1


def test_two_sweeps_side_by_side_make_each_status_message_once(database: Database) -> None:
    for _ in range(30):
        Messages(database).cancel([asked(database).id])
    made: Counter[UUID] = Counter()

    def sweep() -> None:
        for _ in range(6):
            made.update(due_notifications(database).tell(limit=7))

    assert at_once([sweep] * 2) == [None] * 2
    made.update(due_notifications(database).tell(limit=100))
    told = {rows.row(database, message_id).body["data"]["id"] for message_id in made}
    assert (len(made), len(told), set(made.values())) == (30, 30, {1})


@pytest.mark.parametrize("database_url", ["sqlite", "postgresql"], indirect=True)
def test_the_look_for_notifications_reads_the_due_ones_alone(database: Database) -> None:
    now = rows.now()
    pending: dict[str, Any] = {"status_url": URL, "notified_status": "scheduled"}
    add_many(database, [now] * 200, status="scheduled", tokens=0, **pending)
    add_many(database, [now] * 200, **(pending | {"notified_status": "sent"}))
    sent(database)
    with asked_of(database.engine) as statements:
        assert len(tell(database)) == 1
    look, values = next(asked for asked in statements if "FROM dispatcher_messages" in asked[0])
    with database.engine.connect() as connection:
        if database.url.get_backend_name() == "postgresql":
            assert touched(plan_of(connection, look, values, "ANALYZE")) < 10
        else:
            [row] = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {look}", values)
            assert "USING INDEX ix_dispatcher_messages_notification_due" in row[-1]

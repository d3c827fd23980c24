"""Messages are added, read back and taken back on each database, which refuses impossible ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import text

from dispatcher.errors import StoreUnavailable
from dispatcher.message import Outcome, Status, new_id
from dispatcher.store.claims import Failure
from dispatcher.store.database import Database
from dispatcher.store.maintenance import StoreMaintenance
from dispatcher.store.messages import GivenUp, Messages
from dispatcher.store.schema import TAKEN_BACK, VOID
from dispatcher.store.void_ids import VoidIds
from tests.support import rows

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
pytestmark = pytest.mark.every_database


def test_an_added_message_is_read_back_the_same(database: Database) -> None:
    message = rows.a_message(
        expires_at=rows.now() + timedelta(days=1),
        idempotency_key="key",
        recipient="利用者",
        on_unknown="hold",
        expire_after=timedelta(days=1, milliseconds=1),
        asked_at=rows.now() - timedelta(hours=1),
        trace=TRACE,
        enqueued_at=rows.now(),
    )
    store = Messages(database)
    assert store.add(rows.addition(message, fingerprint="print")) == message
    assert store.get(message.id) == message
    assert store.with_keys(["key"]).get("key") == (message, "print")
    assert store.attempts(message.id) == []
    both = [replace(message, id=new_id(), idempotency_key=None), rows.a_message()]
    assert store.add_together(list(map(rows.addition, both)))
    assert [store.get(message.id) for message in both] == both


def test_a_message_that_is_to_be_enqueued_again_has_not_been(database: Database) -> None:
    message = rows.add(database, enqueued_at=rows.now())
    Messages(database).enqueue_again([message.id])
    assert Messages(database).get(message.id).enqueued_at is None
    assert rows.row(database, message.id).enqueue_at <= rows.now() + timedelta(seconds=1)


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_one_message_is_read_by_a_plan_that_is_kept(database: Database) -> None:
    """To plan a query over the partitions of all days takes five times as long as to run it."""
    message = rows.add(database)
    for _ in range(12):  # the server chooses after five runs
        assert Messages(database).get(message.id) == message
    query = text("SELECT sum(generic_plans) FROM pg_prepared_statements WHERE statement LIKE :like")
    with database.engine.connect() as connection:
        assert connection.scalar(query, {"like": "SELECT dispatcher_messages.%"}) > 0


def test_adding_again_gives_what_is_stored_and_changes_nothing(database: Database) -> None:
    message = rows.add(database)
    store = Messages(database)
    store.cancel([message.id])
    again = store.add(rows.addition(message))
    assert again.status is Status.CANCELLED
    assert rows.count(database) == 1


@pytest.mark.parametrize("because", [None, "its recipient is suppressed"])
def test_a_cancel_keeps_the_error_of_the_last_attempt_unless_it_says_why(
    database: Database, because: str | None
) -> None:
    claim = rows.claimed(database)
    failure = Failure(claim, Outcome.TEMPORARY, "busy", timedelta(minutes=1))
    rows.claims_in(database).record([], [failure], enqueue_in=timedelta(0))
    result = Messages(database).cancel([claim.message.id], because=because)
    assert result.rows[claim.message.id].message.last_error == (because or "busy")


@pytest.mark.parametrize("key", [None, "key"])
def test_a_message_is_taken_back_while_it_is_scheduled(database: Database, key: str | None) -> None:
    """Its id is never stored again; its key may be, and the sweep gives its reservation back."""
    store, void_ids = Messages(database), VoidIds(database)
    maintenance = StoreMaintenance(database)
    message, claim = rows.add(database, idempotency_key=key, trace=TRACE), rows.claimed(database)
    assert void_ids.take_back(message).void
    assert void_ids.take_back(message).void
    assert void_ids.take_back(claim.message).holding
    failure = Failure(claim, Outcome.UNKNOWN, "a worker has tried it", timedelta(0))
    rows.claims_in(database).record([], [failure], enqueue_in=timedelta(0))
    assert void_ids.take_back(claim.message).holding
    assert not Messages(database).has([message.id])
    left = rows.row(database, message.id)
    if key is None:
        assert (left.recipient, left.trace, left.body, left.status) == ("", None, {}, VOID)
    else:
        assert (left.status, left.last_error) == ("cancelled", TAKEN_BACK)
    with pytest.raises(GivenUp):
        store.add(rows.addition(message), perhaps_stored=True)
    assert [row.message_id for row in maintenance.unreleased(limit=9)] == [message.id]
    assert maintenance.prune(older_than=timedelta(seconds=-1), limit=9) == 0
    maintenance.mark_released([message.id])
    assert maintenance.prune(older_than=timedelta(seconds=-1), limit=9) == 1


IMPOSSIBLE: list[Callable[[], dict[str, Any]]] = [
    lambda: {"status": "sending"},
    lambda: {"claim_expires_at": rows.now(), "claimed_by": uuid4()},
    lambda: {"status": "sent"},
    lambda: {"finished_at": rows.now()},
    lambda: {"status": "lost", "finished_at": rows.now()},
    lambda: {"attempt_count": -1},
    lambda: {"max_attempts": 0},
    lambda: {"expires_at": rows.now() - timedelta(days=1)},
    lambda: {"status": None},
    lambda: {"recipient": None},
    lambda: {"next_attempt_at": None},
    lambda: {"status": "held", "finished_at": rows.now()},
    lambda: {"status": "held", "claimed_by": uuid4(), "claim_expires_at": rows.now()},
    lambda: {"status": "lost"},
    lambda: {"on_unknown": "drop"},
    lambda: {"on_unknown": None},
    lambda: {"expire_after": timedelta(0), "expires_at": rows.now() + timedelta(days=9)},
    lambda: {"expire_after": timedelta(1)},
]


def test_the_database_refuses_impossible_messages(database: Database) -> None:
    message = rows.add(database)
    for columns in IMPOSSIBLE:
        with pytest.raises(StoreUnavailable) as refused:
            rows.change(database, message.id, **columns())
        assert refused.value.refused
        assert message.recipient not in str(refused.value)
    assert Messages(database).get(message.id) == message


def test_the_database_refuses_impossible_attempts(database: Database) -> None:
    message = rows.add(database)
    begun = {"message_id": message.id, "token": 1, "started_at": rows.now()}
    for wrong in (
        {"outcome": "sent"},
        {"finished_at": rows.now()},
        {"finished_at": rows.now(), "outcome": "lost"},
    ):
        with pytest.raises(StoreUnavailable):
            rows.insert_attempt(database, **(begun | wrong))
    rows.insert_attempt(database, **begun)
    with pytest.raises(StoreUnavailable):
        rows.insert_attempt(database, **begun)
    assert len(Messages(database).attempts(message.id)) == 1


LOOK_ALIKE = [
    "key", "Key", "k\u00e9y", "ke\u0301y", "key ", "key  ", "k\u00dfy", "kssy", "k👋", "k👍",
    "\u212aey",
]  # fmt: skip


def test_keys_that_look_alike_are_different(database: Database) -> None:
    added = {key: rows.add(database, idempotency_key=key, recipient=key) for key in LOOK_ALIKE}
    for key, message in added.items():
        [(stored, _)] = Messages(database).with_keys([key]).values()
        assert stored == message
        assert rows.listed(database, recipient=key) == [message]
    assert len(Messages(database).with_keys(LOOK_ALIKE)) == len(LOOK_ALIKE)


BODIES: list[dict[str, Any]] = [
    {"z": 1, "a": 2, "m": 3},
    {"long": 2**70 + 1, "negative": -(2**63) - 1, "exact": 0.1, "small": 5e-324, "big": 1e300},
    {"text": "👋 \\ % %s %(x)s :x ' \" ` \\' \u2028"},
    {"": None, "deep": [[[{}]]], "true": True},
]


def test_a_body_comes_back_as_it_was_given(database: Database) -> None:
    store = Messages(database)
    alone = [rows.add(database, body=body) for body in BODIES]
    together = [rows.a_message(body=body) for body in BODIES]
    assert store.add_together(list(map(rows.addition, together)))
    for message in (*alone, *together):
        body = store.get(message.id).body
        assert (body, list(body)) == (message.body, list(message.body))


def test_a_violated_column_is_not_taken_for_a_duplicate(database: Database) -> None:
    message = rows.a_message(channel=None, idempotency_key="key")
    with pytest.raises(StoreUnavailable) as caught:
        Messages(database).add(rows.addition(message))
    assert caught.value.refused
    assert rows.count(database) == 0

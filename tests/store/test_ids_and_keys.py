"""A key and its message are stored and freed together; no id that is given up is stored again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, func, insert, select

from dispatcher import Message
from dispatcher.errors import StoreUnavailable, Suppressed
from dispatcher.store.database import Database
from dispatcher.store.engines.base import InsertFailed
from dispatcher.store.lists import PersonalData, Suppressions
from dispatcher.store.maintenance import StoreMaintenance
from dispatcher.store.messages import GivenUp, Messages
from dispatcher.store.outbox import JoinedMessages, JoinedTransaction
from dispatcher.store.schema import to_row
from dispatcher.store.void_ids import VoidIds
from tests.support import rows
from tests.support.tables import keys, messages

pytestmark = pytest.mark.every_database
DAY = timedelta(days=1)


@pytest.fixture(params=["directly", "through SQLAlchemy"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a message be stored on each way there is."""
    if request.param == "directly":
        return

    def unanswered(*_: object) -> None:
        raise InsertFailed(perhaps_done=False)

    engine = "dispatcher.store.engines.postgresql.PostgreSQLEngine"
    monkeypatch.setattr(f"{engine}.direct_insert", lambda *_: unanswered)


def stored_keys(database: Database) -> int:
    """Return how many keys are stored."""
    query = select(func.count()).select_from(keys)
    return database.run(lambda connection: connection.execute(query).scalar_one())


@contextmanager
def callers_transaction(database: Database) -> Iterator[tuple[JoinedTransaction[None], Connection]]:
    """Yield a transaction of a caller's that messages have joined, and its connection."""
    level: Any = "SERIALIZABLE" if database.backend.has_one_writer else "READ COMMITTED"
    with (
        closing(Database(database.url.render_as_string(hide_password=False))) as theirs,
        theirs.engine.execution_options(isolation_level=level).connect() as connection,
    ):
        yield JoinedMessages(database).join(connection, lambda *_: None), connection


def add(database: Database, message: Message) -> Message:
    return Messages(database).add(rows.addition(message, fingerprint="print"))


def test_a_message_that_is_not_stored_takes_no_key(database: Database, way: None) -> None:
    given_up = rows.a_message(idempotency_key="first")
    VoidIds(database).give_up([given_up.id])
    with pytest.raises(GivenUp):
        add(database, given_up)
    with pytest.raises(GivenUp):  # also where an earlier INSERT was not answered
        Messages(database).add(rows.addition(given_up), perhaps_stored=True)
    unwanted = rows.a_message(idempotency_key="second")
    Suppressions(database).add(unwanted.recipient, None)
    with pytest.raises(Suppressed):
        add(database, unwanted)
    refused = rows.a_message(idempotency_key="third", max_attempts=0)
    with pytest.raises(StoreUnavailable):
        add(database, refused)
    assert stored_keys(database) == 0
    for key in ("first", "second", "third"):
        message = rows.a_message(idempotency_key=key)
        assert add(database, message) == message


def test_a_taken_key_lets_no_message_be_stored(database: Database, way: None) -> None:
    first = rows.add(database, idempotency_key="key")
    assert add(database, rows.a_message(idempotency_key="key")) == first
    assert rows.count(database) == 1


def test_a_batch_stores_all_keys_with_their_messages_or_nothing(database: Database) -> None:
    store = Messages(database)

    def add_all(*names: str | None) -> bool | None:
        batch = [rows.a_message(idempotency_key=name) for name in names]
        return store.add_together([rows.addition(message, fingerprint="f") for message in batch])

    assert add_all("a", None, "b") is True
    assert add_all("c", "b", None) is False
    assert (rows.count(database), stored_keys(database)) == (3, 2)
    stored = store.with_keys(["a", "b", "c"])
    assert {key: (row.idempotency_key, print_) for key, (row, print_) in stored.items()} == {
        "a": ("a", "f"), "b": ("b", "f"),
    }  # fmt: skip


@pytest.mark.parametrize("is_taken_back", [False, True])
def test_a_callers_transaction_stores_no_id_again(database: Database, is_taken_back: bool) -> None:
    """A duplicate submit had the same id, and its message has ended since."""
    message = add(database, rows.a_message(idempotency_key="key"))
    if is_taken_back:
        assert VoidIds(database).take_back(message).void
    else:
        Messages(database).cancel([message.id])
    with callers_transaction(database) as (joined, connection):
        assert not joined.add(rows.addition(message, fingerprint="print"))
        connection.commit()
    assert rows.row(database, message.id).status == "cancelled"
    assert stored_keys(database) == (not is_taken_back)


def test_a_key_is_free_when_its_message_is_pruned_and_not_before(database: Database) -> None:
    first = add(database, rows.a_message(idempotency_key="key"))
    rows.add(database, idempotency_key="other")
    maintenance = StoreMaintenance(database)
    rows.change(database, first.id, status="sent", finished_at=rows.now() - 32 * DAY)
    assert maintenance.prune(older_than=33 * DAY, limit=9) == 0
    assert Messages(database).with_keys(["key"]).get("key") is not None
    assert maintenance.prune(older_than=30 * DAY, limit=9) == 1
    assert stored_keys(database) == 1
    again = rows.a_message(idempotency_key="key")
    assert add(database, again) == again


def test_a_key_whose_message_was_deleted_by_hand_is_free(database: Database, way: None) -> None:
    one, two, three = (rows.a_message(idempotency_key="key") for _ in range(3))
    assert add(database, one) == one
    delete = lambda connection: connection.exec_driver_sql("DELETE FROM dispatcher_messages")  # noqa: E731 - run twice
    database.run(delete)
    assert Messages(database).with_keys(["key"]).get("key") is None
    assert add(database, two) == two
    database.run(delete)
    with callers_transaction(database) as (joined, connection):
        assert joined.add(rows.addition(three, fingerprint="print"))
        connection.commit()
    assert Messages(database).with_keys(["key"]).get("key") == (three, "print")
    assert (rows.count(database), stored_keys(database)) == (1, 1)


@contextmanager
def storing(database: Database, *stored: Message) -> Iterator[Connection]:
    """Keep a transaction open that stores messages."""
    with database.engine.connect() as other:
        other.exec_driver_sql("BEGIN")
        for message in stored:
            other.execute(insert(messages), to_row(rows.addition(message)))
        yield other


def test_an_id_given_up_is_stored_by_no_statement(database: Database) -> None:
    message, other = rows.a_message(), rows.a_message()
    assert VoidIds(database).give_up([message.id]) == ({}, {message.id}, set())
    with pytest.raises(GivenUp):
        Messages(database).add(rows.addition(message))
    assert Messages(database).add_together(list(map(rows.addition, (other, message)))) is False
    assert Messages(database).has([message.id]) is False
    with callers_transaction(database) as (joined, connection):
        assert not joined.add(rows.addition(message))
        connection.rollback()
    assert rows.listed(database) == []


def prune(database: Database, _message: Message) -> int:
    return StoreMaintenance(database).prune(older_than=30 * DAY, limit=9)


def erase(database: Database, message: Message) -> int:
    return PersonalData(database).blank(message.recipient, limit=9)


@pytest.mark.parametrize("leave", [prune, erase])
def test_a_message_that_goes_leaves_a_key_to_the_one_that_took_it_over(
    database: Database, leave: Callable[[Database, Message], int]
) -> None:
    kept, gone = rows.add(database, idempotency_key="key"), rows.ended(database, 40 * DAY)
    rows.change(database, gone.id, idempotency_key="key")
    assert leave(database, gone) == 1
    assert Messages(database).with_keys(["key"])["key"][0].id == kept.id


def test_giving_up_again_changes_nothing(database: Database) -> None:
    ids = {rows.a_message().id for _ in range(3)}
    first = VoidIds(database).give_up(list(ids))
    assert VoidIds(database).give_up(list(ids)) == first == ({}, ids, set())
    assert rows.count(database) == len(ids)


def test_messages_are_left_alone(database: Database) -> None:
    kept, cancelled = rows.add(database), rows.add(database)
    Messages(database).cancel([cancelled.id])
    settled = VoidIds(database).give_up([kept.id, cancelled.id])
    assert settled == ({kept.id: (kept.send_at, "")}, set(), set())
    assert Messages(database).get(kept.id) == kept
    assert rows.count(database) == 2


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_giving_up_waits_for_an_insert_under_way(database: Database, end: str) -> None:
    message, orphan = rows.a_message(), rows.a_message()
    void_ids = VoidIds(database)
    with storing(database, message) as other:
        settled = void_ids.give_up([message.id, orphan.id])
        assert settled == ({}, {orphan.id}, {message.id})
        other.exec_driver_sql(end)
    settled = void_ids.give_up([message.id])
    is_stored = end == "COMMIT"
    assert settled.holding == ({message.id: (message.send_at, "")} if is_stored else {})
    assert settled.void == (set() if is_stored else {message.id})


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
def test_a_long_transaction_stops_neither_the_sweep_nor_others(database: Database) -> None:
    stored, orphan = [rows.a_message() for _ in range(60)], rows.a_message()
    void_ids = VoidIds(database)
    with storing(database, *stored) as other:
        began = time.monotonic()
        settled = void_ids.give_up([message.id for message in (*stored, orphan)])
        assert time.monotonic() - began < 30, "each was waited for"
        assert settled.under_way >= {message.id for message in stored}
        mixed = [*(message.id for message in stored[:3]), orphan.id]
        assert void_ids.give_up(mixed).void == {orphan.id}
        other.exec_driver_sql("COMMIT")
    ids = [message.id for message in stored]
    assert void_ids.give_up(ids).holding.keys() == set(ids)

"""A message whose place is given back is never stored afterwards, on whatever way it comes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import Connection, insert

from dispatcher.message import Message
from dispatcher.store.database import Database
from dispatcher.store.messages import GivenUp, Messages
from dispatcher.store.outbox import JoinedMessages, JoinedTransaction
from dispatcher.store.schema import to_row
from dispatcher.store.void_ids import VoidIds
from tests.support import rows
from tests.support.tables import messages

pytestmark = pytest.mark.every_database


@contextmanager
def storing(database: Database, *some: Message) -> Iterator[Connection]:
    """Keep a transaction open that stores messages."""
    with database.engine.connect() as other:
        other.exec_driver_sql("BEGIN")
        for each in some:
            row = to_row(each, enqueue_at=each.send_at, status_url=None)
            other.execute(insert(messages), row)
        yield other


def test_an_id_given_up_is_stored_by_no_statement(database: Database) -> None:
    message, other = rows.a_message(), rows.a_message()
    assert VoidIds(database).give_up([message.id]) == ({}, {message.id}, set())
    with pytest.raises(GivenUp):
        Messages(database).add(rows.addition(message))
    assert Messages(database).add_together(list(map(rows.addition, (other, message)))) is False
    assert Messages(database).has([message.id]) is False
    level = "SERIALIZABLE" if database.url.get_backend_name() == "sqlite" else "READ COMMITTED"
    engine = database.engine.execution_options(isolation_level=level)
    with engine.connect() as connection:
        joined: JoinedTransaction[None] = JoinedMessages(database).join(connection, lambda *_: None)
        assert not joined.add(rows.addition(message))
        connection.rollback()
    assert rows.listed(database) == []


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
        settled = void_ids.give_up([each.id for each in (*stored, orphan)])
        assert time.monotonic() - began < 30, "each was waited for"
        assert settled.under_way >= {each.id for each in stored}
        mixed = [*(each.id for each in stored[:3]), orphan.id]
        assert void_ids.give_up(mixed).void == {orphan.id}
        other.exec_driver_sql("COMMIT")
    ids = [each.id for each in stored]
    assert void_ids.give_up(ids).holding.keys() == set(ids)

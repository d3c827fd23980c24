"""Lines that break and programs that stop while a batch is stored."""

from __future__ import annotations

import signal
import threading
from typing import Any

import pytest
from sqlalchemy import event

from dispatcher import Message, OutcomeUnknown, Rejection, StoreUnavailable
from tests.submission.test_store_faults import on_postgresql, on_sqlite
from tests.submission.test_submit_many import draft, drafts
from tests.support.doubles import Between, once
from tests.support.house import House
from tests.support.house_fixtures import Build
from tests.support.waiting import wait_until


class OutOfTime(Exception):
    """What a signal raises, such as Celery's at a soft time limit."""


def accepted(result: Message | Rejection) -> Message:
    """Return the message of a draft that was not refused."""
    assert isinstance(result, Message)
    return result


@on_sqlite
def test_a_transaction_that_is_run_again_stores_every_row(house: House) -> None:
    """The line breaks at COMMIT, when all rows have been read."""
    lines: list[Any] = []

    @event.listens_for(house.parts.database.engine, "before_cursor_execute")
    def cut(connection: Any, _: object, statement: str, *__: object) -> None:
        if statement == "COMMIT" and not lines:
            lines.append(connection.connection.driver_connection)
            lines[0].close()

    results = house.dispatcher.submit_many(drafts(50))
    assert all(isinstance(each, Message) for each in results)
    assert len(house.rows()) == 50


def test_a_batch_of_which_a_duplicate_stored_one_is_not_taken_for_stored(house: House) -> None:
    """The duplicate relies on the place, and so on the id, that the batch has booked."""
    batch = [draft("ada", idempotency_key="key"), draft("ben"), draft("cyd")]
    duplicates: list[Message] = []
    own = vars(house.parts.own_transaction)
    store = own["_messages"]
    duplicate = once(
        lambda: duplicates.extend(map(accepted, house.dispatcher.submit_many(batch[:1])))
    )

    def store_one() -> None:
        own["_messages"] = store
        duplicate()

    own["_messages"] = Between(store, before={"add_together": store_one})
    with pytest.raises(StoreUnavailable):
        house.dispatcher.submit_many(batch, atomic=True)
    assert [row[0] for row in house.rows()] == [each.id for each in duplicates]
    assert house.members("ada").keys() == {duplicates[0].id}
    assert house.members("ben") == house.members("cyd") == {}

    again = house.dispatcher.submit_many(batch, atomic=True)
    assert again[0] == house.again(duplicates[0])
    assert {row[0] for row in house.rows()} == {accepted(each).id for each in again}


def test_a_batch_that_may_be_under_way_yet_is_not_said_to_be_refused(house: House) -> None:
    """The line broke in its first try; the others are refused, for the first one's locks say."""
    answers = [None, False, False]
    own = vars(house.parts.own_transaction)
    store = own["_messages"]

    class Busy:
        def add_together(self, _: object, **__: bool) -> bool | None:
            return answers.pop(0)

        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

    own["_messages"] = Busy()
    with pytest.raises(OutcomeUnknown):
        house.dispatcher.submit_many([draft("ada"), draft("ben")], atomic=True)
    assert not answers
    assert len(house.members("ada")) == len(house.members("ben")) == 1  # until reconcile looks


@on_postgresql
@pytest.mark.parametrize("asked", ["", "&client_encoding=latin1"])
def test_letters_arrive_whatever_encoding_the_line_was_to_have(
    build: Build, database_url: str, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    house = build(database_url=database_url + asked)
    (message,) = house.dispatcher.submit_many([draft("Jörg", body={"text": "Grüße"})])
    assert isinstance(message, Message)
    assert house.sql("SELECT recipient, body ->> 'text' FROM dispatcher_messages") == [
        ("Jörg", "Grüße")
    ]


@on_postgresql
def test_a_copy_that_was_stopped_leaves_no_line_in_the_midst_of_it(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    def stop(*_: object) -> None:
        raise OutOfTime

    def stop_who_waits() -> None:
        wait_until(lambda: house.sql("SELECT 1 FROM pg_locks WHERE NOT granted"))
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, stop)
    try:
        with house.database.engine.connect() as other:
            other.exec_driver_sql("BEGIN")
            other.exec_driver_sql("LOCK TABLE dispatcher_messages")
            stopper = threading.Thread(target=stop_who_waits)
            stopper.start()
            with pytest.raises(OutOfTime):
                house.dispatcher.submit_many(drafts(20))
            stopper.join()
            other.exec_driver_sql("ROLLBACK")
    finally:
        signal.signal(signal.SIGUSR1, before)
    house.dispatcher.submit_many([draft(f"later {number}") for number in range(20)])
    assert len(house.rows()) == 20
    assert "not stored together" not in caplog.text

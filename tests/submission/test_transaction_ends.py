"""Late, broken or killed: however the transaction ends, Redis agrees with the store."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from dispatcher import StoreUnavailable
from dispatcher.message import new_id
from dispatcher.store.database import Database
from dispatcher.times.send_time import to_ms
from tests.support.callers import SOON, callers_engine, order, ordered, queued, remind
from tests.support.doubles import raising
from tests.support.house import House, hour_ago
from tests.support.house_fixtures import Build, on_postgresql, on_sqlite
from tests.support.proxy import Proxy
from tests.support.reserving import own_terms, reserve
from tests.support.servers import PostgresServer
from tests.support.waiting import wait_until

PATIENT = {"settle": 0.001, "reconcile_grace": 0.002}
QUICK = PATIENT | {"transaction_grace": 0.002}


@contextmanager
def transaction(house: House) -> Iterator[Session]:
    with callers_engine(house.database) as engine, Session(engine) as session:
        yield session


def take(house: House, message_id: Any = None) -> None:
    reserve(house.parts.windows, message_id or new_id(), terms=own_terms("ada"), send_at=SOON)


def settle_grace(house: House) -> None:
    """Let the grace of plain submits pass, and the sweep look."""
    end = house.redis_ms() + 10
    wait_until(lambda: house.redis_ms() > end)
    house.reconciled()


def outlast_the_grace(house: House) -> None:
    """Let the sweep look at the place that ada has when its grace is over."""
    settle_grace(house)
    house.moved.advance(timedelta(minutes=11))


def lose_the_place(house: House) -> None:
    """Let Redis be lost and rebuilt from a store that does not show the message yet."""
    house.redis.flushdb()
    house.open()
    house.moved.advance(timedelta(seconds=2))


def fail_after_the_end(house: House, *errors: BaseException) -> None:
    """Let the question what is stored fail."""
    house.between("callers_transactions", "store", before={"stored": raising(*errors)})


def test_an_open_transaction_keeps_its_place_beyond_the_grace_of_others(build: Build) -> None:
    house = build(**PATIENT)
    with transaction(house) as session:
        message = remind(house, session, idempotency_key="key")
        settle_grace(house)
        assert house.members() == {message.id: to_ms(SOON)}
        take(house, message.id)
        settle_grace(house)
        assert house.members() == {message.id: to_ms(SOON)}, (
            "a duplicate does not shorten its grace"
        )
        session.rollback()
    assert house.members() == {}
    assert house.pending() == set()


@on_postgresql
def test_an_open_transaction_of_many_keeps_no_other_place_from_being_freed(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dispatcher.delivery.sweep.BATCH", 2)
    house = build(**QUICK, shards=1)
    with transaction(house) as session:
        for n in range(5):
            remind(house, session, recipient=f"{n}")
        take(house)
        assert len(house.members()) == 1
        settle_grace(house)
        assert house.members() == {}
        assert len(house.pending()) == 5, "the database was not told what becomes of them"
        session.rollback()


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_transaction_that_outlasts_the_grace_keeps_its_place(
    build: Build, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database has the message's id, though nobody else can see it."""
    monkeypatch.setattr("dispatcher.store.engines.sqlite._BUSY_SECONDS", 0.2)  # SQLite's one writer
    house = build(**QUICK)
    with transaction(house) as session:
        message = remind(house, session)
        outlast_the_grace(house)
        assert house.members() == {message.id: to_ms(SOON)}
        getattr(session, end)()
    expected = {"ada": {message.id: to_ms(SOON)}} if end == "commit" else {}
    assert house.reservations() == house.reconciled().all_members() == expected


def test_a_commit_after_its_place_was_given_away_keeps_its_time_and_says_so(
    build: Build, caplog: pytest.LogCaptureFixture
) -> None:
    house = build()
    with transaction(house) as session:
        message = remind(house, session)
        lose_the_place(house)
        take(house)
        session.commit()
    assert house.members()[message.id] == to_ms(SOON)
    assert len(house.members()) == 2
    [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert str(message.id) in record.getMessage()
    assert "ada" not in record.getMessage().replace(str(message.id), "")


@pytest.mark.parametrize("error", [StoreUnavailable("gone"), RuntimeError("boom")], ids=repr)
def test_no_error_after_the_commit_reaches_the_caller(
    slow: House, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    fail_after_the_end(slow, error)
    with transaction(slow) as session:
        message = remind(slow, session, send_at=slow.moved.now())
        session.commit()
        session.rollback()
    assert caplog.records
    assert queued(slow) == 0
    assert slow.parts.sweep.enqueue_due() == 1, "the sweep hands it over"
    assert slow.deliver(message) == 1
    assert slow.reservations() == slow.all_members()


@pytest.mark.every_database
def test_an_outer_transaction_decides_for_the_session_inside(build: Build) -> None:
    house = build()
    with callers_engine(house.database) as engine:
        for commits in (False, True):
            with engine.connect() as connection, connection.begin() as outer:
                with Session(connection, join_transaction_mode="create_savepoint") as session:
                    message = remind(house, session)
                    session.commit()
                assert house.members() == {message.id: to_ms(SOON)}
                outer.commit() if commits else outer.rollback()
            assert (house.members() == {}) is not commits
    assert house.reservations() == house.all_members()


@pytest.mark.parametrize("noticed_by", ["the pool", "its next transaction", "the sweep"])
def test_a_rollback_of_a_connection_that_is_kept_is_noticed_later(
    build: Build, noticed_by: str
) -> None:
    """As the page says: SQLAlchemy tells of a rollback before it is done, and never after."""
    house = build(**QUICK)
    with callers_engine(house.database) as engine, engine.connect() as connection:
        remind(house, connection)
        connection.rollback()
        assert len(house.members()) == 1
        if noticed_by == "the pool":
            connection.close()
        elif noticed_by == "its next transaction":
            connection.execute(select(1))
        else:
            outlast_the_grace(house)
        assert house.members() == {}


@on_sqlite
def test_a_message_committed_by_the_driver_of_sqlite_keeps_its_reservation(build: Build) -> None:
    house = build()
    with callers_engine(house.database, begins=False) as engine:
        with Session(engine) as session:
            with session.begin_nested():
                remind(house, session)
            session.rollback()  # too late: with the driver's habits the savepoint has committed
        with Session(engine) as session:
            remind(house, session, "ben")
            session.rollback()
    assert len(house.rows()) == 1
    assert house.reservations() == house.all_members()


@on_sqlite
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_the_end_is_noticed_where_the_engine_was_disposed_of_meanwhile(
    build: Build, end: str
) -> None:
    """The connection goes back to the pool it came from, which the engine has no longer."""
    house = build(clock=hour_ago())
    with callers_engine(house.database) as engine, Session(engine) as session:
        session.connection()
        engine.dispose()
        remind(house, session, send_at=house.moved.now())
        getattr(session, end)()
    assert queued(house) == (end == "commit")
    assert house.reservations() == house.all_members()


@on_postgresql
def test_a_commit_whose_reply_is_lost_has_happened(
    build: Build, postgres: PostgresServer, postgres_name: str, postgres_proxy: Proxy
) -> None:
    house = build(clock=hour_ago())
    through = Database(postgres.url(postgres_name, port=postgres_proxy.port))
    with callers_engine(through) as engine, Session(engine) as session:
        order(session)
        message = remind(house, session, send_at=house.moved.now())
        postgres_proxy.drop_reply(b"COMMIT")
        with pytest.raises(DBAPIError):
            session.commit()
        session.rollback()
        assert queued(house) == 1
    assert ordered(house.database.engine) == [1]
    assert house.again(message).id == message.id
    assert house.reservations() == house.all_members()


@on_postgresql
@pytest.mark.parametrize("at_commit", [True, False])
def test_a_line_that_breaks_leaves_no_place(build: Build, at_commit: bool) -> None:
    house = build(**QUICK)
    with transaction(house) as session:
        remind(house, session)
        pid = session.connection().exec_driver_sql("SELECT pg_backend_pid()").scalar()
        house.sql(f"SELECT pg_terminate_backend({pid})")
        with pytest.raises(DBAPIError):
            session.commit() if at_commit else order(session)
        session.rollback()
        assert len(house.members()) == int(at_commit), "a COMMIT that was sent may still be done"
    wait_until(lambda: house.reconciled().members() == {})


@on_sqlite
def test_an_abandoned_session_is_left_to_the_sweep(
    build: Build, caplog: pytest.LogCaptureFixture
) -> None:
    house = build(**QUICK)
    with callers_engine(house.database) as engine:
        session = Session(engine)
        remind(house, session)
        fail_after_the_end(house, AssertionError("asked by the garbage collector"))
        del session
        gc.collect()
        assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]  # a QueuePool
    assert not [record for record in caplog.records if record.name.startswith("dispatcher.store")]
    assert len(house.members()) == 1
    wait_until(lambda: house.reconciled().members() == {})
    house.submit(send_at=SOON)


@pytest.mark.every_database
def test_threads_join_transactions_of_one_engine(build: Build) -> None:
    house = build(quotas="1000/minute")
    gate = threading.Barrier(4)
    with callers_engine(house.database) as engine:

        def work(number: int) -> None:
            gate.wait(60)
            for turn in range(3):
                with Session(engine) as session:
                    try:
                        remind(house, session, f"name {number}")
                    except StoreUnavailable:  # SQLite lets one write at a time
                        continue
                    session.commit() if turn % 2 else session.rollback()

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
    assert house.reservations() == house.all_members()

"""A message that joins the caller's transaction is stored if and when that commits."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from datetime import timedelta
from threading import Barrier
from traceback import format_exception
from uuid import UUID

import pytest
from sqlalchemy import Engine, create_engine, event, insert, select
from sqlalchemy.exc import PendingRollbackError
from sqlalchemy.orm import Session

from dispatcher import IdempotencyConflict, InvalidDraft, QuotaExceeded, Status, StoreUnavailable
from dispatcher.store.outbox import _returns
from dispatcher.times.send_time import to_ms
from tests.store.plans import waiting
from tests.submission.test_store_faults import SECRET, refuse_inserts
from tests.support.callers import (
    SOON,
    WAYS,
    Way,
    callers_engine,
    calling,
    order,
    ordered,
    orders,
    queued,
    remind,
)
from tests.support.doubles import Between
from tests.support.house import House
from tests.support.house_fixtures import Build, on_mariadb, on_sqlite
from tests.support.waiting import wait_until

each_way = pytest.mark.parametrize("way", WAYS)
on_servers = pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)


@pytest.mark.every_database
@each_way
def test_the_message_commits_with_the_callers_rows(house: House, engine: Engine, way: Way) -> None:
    with calling(engine, way) as caller:
        order(caller)
        message = remind(house, caller)
        assert message.status is Status.SCHEDULED
        assert house.rows() == [], "nobody else sees it yet"
        assert house.members() == {message.id: to_ms(SOON)}, "its place is taken already"
        caller.commit()
        assert house.again(message) == message
    assert ordered(engine) == [1]
    assert house.reservations() == house.all_members() == {"ada": {message.id: to_ms(SOON)}}


@pytest.mark.every_database
@each_way
def test_without_a_commit_nothing_of_it_is_left(house: House, engine: Engine, way: Way) -> None:
    before = house.snapshot()
    for end in ("rollback", "close", "error", "error in its block"):
        with suppress(ZeroDivisionError), calling(engine, way) as caller:
            with caller.begin() if end == "error in its block" else nullcontext():
                order(caller)
                remind(house, caller)
                remind(house, caller, "ben", idempotency_key="key")
                assert set(house.all_members()) == {"ada", "ben"}
                if end.startswith("error"):
                    raise ZeroDivisionError
            caller.rollback() if end == "rollback" else caller.close()
        assert house.snapshot() == before, end
    assert ordered(engine) == []


@pytest.mark.every_database
@each_way
def test_a_savepoint_takes_only_its_own_messages_away(
    house: House, engine: Engine, way: Way
) -> None:
    with calling(engine, way) as caller:
        order(caller)
        first = remind(house, caller, "ada")
        with suppress(ZeroDivisionError), caller.begin_nested():
            order(caller, 2)
            lost = remind(house, caller, "ben")
            raise ZeroDivisionError
        with caller.begin_nested():
            third = remind(house, caller, "cyd")
        assert set(house.all_members()) == {"ada", "cyd"}, "the next submit finds it gone"
        with suppress(ZeroDivisionError), caller.begin_nested():
            remind(house, caller, "dan")
            raise ZeroDivisionError
        caller.commit()
    assert ordered(engine) == [1]
    assert {row[0] for row in house.rows()} == {first.id, third.id}
    assert house.reservations() == house.all_members()
    assert lost.id not in house.pending()


@pytest.mark.every_database
@each_way
def test_a_repeated_key_gives_the_message_of_the_same_transaction(
    house: House, engine: Engine, way: Way
) -> None:
    with calling(engine, way) as caller:
        first = remind(house, caller, idempotency_key="key")
        assert remind(house, caller, idempotency_key="key") == first
        with pytest.raises(IdempotencyConflict) as caught:
            remind(house, caller, idempotency_key="key", body={"text": "other"})
        assert caught.value.message_id == first.id
        order(caller)
        caller.commit()
    assert house.submit(send_at=SOON, idempotency_key="key") == first
    assert ordered(engine) == [1]
    assert house.reservations() == house.all_members()


@on_servers
@pytest.mark.parametrize("commits", [True, False])
def test_a_key_in_two_open_transactions_is_decided_by_the_first_to_end(
    house: House, engine: Engine, commits: bool
) -> None:
    with Session(engine) as first, Session(engine) as second, ThreadPoolExecutor(1) as pool:
        mine = remind(house, first, idempotency_key="key")
        theirs = pool.submit(remind, house, second, idempotency_key="key")
        wait_until(lambda: waiting(house.database) == 1)
        first.commit() if commits else first.rollback()
        assert theirs.result(60).id == mine.id, "duplicates share the place"
        assert house.members() == {mine.id: to_ms(SOON)}
        second.rollback() if commits else second.commit()
    assert len(house.rows()) == 1
    assert house.reservations() == house.all_members()


@on_servers
def test_twins_of_a_key_with_and_without_a_session_do_not_wait_for_each_other(
    house: House, engine: Engine
) -> None:
    """Both take the key first. MariaDB would undo a caller's whole transaction at a deadlock."""
    both = Barrier(2)

    def submit(number: int, session: Session | None) -> UUID:
        both.wait(60)
        key = f"key {number}"
        return house.submit(f"r{number}", send_at=SOON, idempotency_key=key, session=session).id

    def joined(number: int) -> UUID:
        with Session(engine) as session, session.begin():
            return submit(number, session)

    with ThreadPoolExecutor(2) as pool:
        for number in range(15):
            twins = pool.submit(joined, number), pool.submit(submit, number, None)
            assert len({twin.result() for twin in twins}) == 1
    assert len(house.rows()) == 15


@pytest.mark.parametrize(
    ("database_url", "patience", "code"),
    [
        ("postgresql", "SET lock_timeout = '100ms'", "55P03"),
        ("mariadb", "SET SESSION innodb_lock_wait_timeout = 0", "1205"),
    ],
    indirect=["database_url"],
)
def test_a_key_in_another_transaction_that_never_ends_is_refused(
    house: House, engine: Engine, patience: str, code: str
) -> None:
    with Session(engine) as first, Session(engine) as second:
        message = remind(house, first, idempotency_key="key")
        second.connection().exec_driver_sql(patience)
        order(second)
        with pytest.raises(StoreUnavailable, match=code):
            remind(house, second, idempotency_key="key")
        second.commit()
        assert house.members() == {message.id: to_ms(SOON)}
        first.commit()
    assert ordered(engine) == [1]
    assert house.reservations() == house.all_members()


@on_sqlite
def test_a_second_writer_on_sqlite_is_refused_and_leaves_the_first_alone(
    house: House, engine: Engine
) -> None:
    with Session(engine) as first, Session(engine) as second:
        message = remind(house, first, idempotency_key="key")
        for key in ("key", None):
            with pytest.raises(
                StoreUnavailable, match="SQLITE_BUSY: another connection was writing"
            ):
                remind(house, second, "ben" if key is None else "ada", idempotency_key=key)
        second.rollback()
        assert house.all_members() == {"ada": {message.id: to_ms(SOON)}}
        first.commit()
    assert house.reservations() == house.all_members()


@pytest.mark.every_database
@each_way
def test_a_message_that_the_database_refuses_leaves_the_transaction_usable(
    house: House, engine: Engine, way: Way
) -> None:
    refuse_inserts(house)
    before = house.snapshot()
    with calling(engine, way) as caller:
        order(caller)
        for key in (None, "key"):
            with pytest.raises(StoreUnavailable, match="answered") as caught:
                remind(house, caller, idempotency_key=key, body={"text": SECRET})
            assert SECRET not in "".join(format_exception(caught.value))
        order(caller, 2)
        caller.commit()
    assert ordered(engine) == [1, 2]
    assert house.snapshot() == before


def test_messages_within_the_horizon_are_published_after_the_commit(
    build: Build, slow: House
) -> None:
    calls: list[str] = []
    seen = Between(slow.parts.queue, before={"enqueue": lambda: calls.append("enqueue")})
    slow.swap("queue", seen)
    with callers_engine(slow.database) as engine:
        with Session(engine) as session:
            now = slow.moved.now()
            for recipient in ("ada", "ben"):
                remind(slow, session, recipient, send_at=now)
            remind(slow, session, "cyd", send_at=now + timedelta(days=1))
            assert queued(slow) == 0
            session.commit()
            assert (calls, queued(slow)) == (["enqueue"], 1)
            remind(slow, session, "dan", send_at=now)
            session.rollback()
        with engine.connect() as connection:
            remind(slow, connection, "eve", send_at=now)
            connection.commit()
            remind(slow, connection, "fay", send_at=now)
            assert queued(slow) == 2, "a connection tells when it is used again, or returned"
            connection.commit()
        assert queued(slow) == 3
    assert len(slow.rows()) == 5


@pytest.mark.every_database
@each_way
def test_between_insert_and_commit_the_store_is_asked_nothing_else(
    build: Build, database_url: str, way: Way
) -> None:
    house = build()
    asked: list[object] = []
    with callers_engine(house.database) as engine:
        with calling(engine, way) as first:
            remind(house, first)  # the first time, the two databases are compared
        event.listen(house.parts.database.engine, "checkout", lambda *words: asked.append(words))
        with calling(engine, way) as caller:
            order(caller)
            remind(house, caller, idempotency_key="key")
            remind(house, caller, idempotency_key="key")
            with pytest.raises(IdempotencyConflict):
                remind(house, caller, idempotency_key="key", body={})
            with pytest.raises(QuotaExceeded):
                remind(house, caller, idempotency_key="other")
            remind(house, caller, on_conflict="shift")
            with caller.begin_nested() as savepoint:
                remind(house, caller, "ben")
                savepoint.rollback()
            remind(house, caller, "ben")
            assert asked == []
            caller.commit()
    assert len(asked) == 1
    assert len(house.rows()) == 3
    assert house.reservations() == house.all_members()


def test_no_listener_is_left_on_a_session_nor_added_to_its_pool(
    house: House, engine: Engine
) -> None:
    with Session(engine) as session:
        for number in range(5):
            remind(house, session, f"name {number}")
            session.commit() if number % 2 else session.rollback()
            names = [name for name in dir(session.dispatch) if name.startswith(("after", "before"))]
            assert not any(list(getattr(session.dispatch, name)) for name in names)
            assert [*engine.pool.dispatch.checkin].count(_returns) == 1
            assert "dispatcher.watches" not in session.connection().info
            session.rollback()
    assert len(house.rows()) == 2
    assert house.reservations() == house.all_members()


@on_mariadb
@pytest.mark.parametrize("quotas", ["1/minute", "9/minute"])
def test_a_key_that_is_younger_than_the_snapshot_is_found(build: Build, quotas: str) -> None:
    house = build(quotas=quotas)
    with callers_engine(house.database) as engine, Session(engine) as session:
        assert list(session.scalars(select(orders.c.number))) == []  # takes the snapshot
        message = house.submit(send_at=SOON, idempotency_key="key")
        assert remind(house, session, idempotency_key="key") == message
        with pytest.raises(IdempotencyConflict):
            remind(house, session, idempotency_key="key", body={"text": "other"})
        order(session)
        session.commit()
        assert ordered(engine) == [1]
    assert house.reservations() == house.all_members() == {"ada": {message.id: to_ms(SOON)}}


@on_mariadb
@pytest.mark.parametrize("goes_on", [True, False])
def test_a_transaction_that_a_deadlock_undid_cannot_go_on_unseen(
    house: House, engine: Engine, goes_on: bool
) -> None:
    with Session(engine) as session, Session(engine) as other, ThreadPoolExecutor(1) as pool:
        order(session)
        other.execute(insert(orders), [{"number": number} for number in range(10, 20)])
        remind(house, other, "ben", idempotency_key="key")
        mine = pool.submit(remind, house, session, "ben", idempotency_key="key")
        wait_until(lambda: waiting(house.database) == 1)
        other.execute(select(orders).where(orders.c.number == 1).with_for_update())
        with pytest.raises(StoreUnavailable, match="answered 1213"):
            mine.result(60)
        with pytest.raises(PendingRollbackError):
            order(session, 2) if goes_on else session.commit()
        session.rollback()
        other.commit()
        order(session, 3)
        remind(house, session, "cyd")
        session.commit()
    assert ordered(engine) == [3, *range(10, 20)]
    assert house.reservations() == house.all_members()
    assert len(house.rows()) == 2


@on_mariadb
def test_a_session_that_cuts_values_is_refused(house: House) -> None:
    for mode, strict in (("", False), ("STRICT_TRANS_TABLES", True), ("TRADITIONAL", True)):
        engine = create_engine(house.database.url, connect_args={"sql_mode": mode})
        with Session(engine) as session:
            if strict:
                remind(house, session, mode)
            else:
                with pytest.raises(InvalidDraft, match="cuts values"):
                    remind(house, session)
            session.rollback()
        engine.dispose()
    assert house.all_members() == {}

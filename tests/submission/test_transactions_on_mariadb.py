"""A message joins a transaction of MariaDB's as it joins one of PostgreSQL's."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Engine, create_engine, insert, select
from sqlalchemy.exc import PendingRollbackError
from sqlalchemy.orm import Session

from dispatcher import IdempotencyConflict, InvalidDraft, StoreUnavailable
from dispatcher.times.send_time import to_ms
from tests.submission.test_transactions import waiting
from tests.support.callers import SOON, callers_engine, order, ordered, orders, remind
from tests.support.house import House
from tests.support.house_fixtures import Build
from tests.support.mariadb import MariaDBServer
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until

pytestmark = pytest.mark.parametrize("database_url", ["mariadb"], indirect=True)


@pytest.fixture
def engine(house: House) -> Iterator[Engine]:
    """Give the caller's engine."""
    with callers_engine(house.database) as engine:
        yield engine


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


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_transaction_that_a_deadlock_undid_cannot_go_on_unseen(
    house: House, engine: Engine, goes_on: bool
) -> None:
    with Session(engine) as session, Session(engine) as other, ThreadPoolExecutor(1) as pool:
        order(session)
        other.execute(insert(orders), [{"number": number} for number in range(10, 20)])
        remind(house, other, "ben", idempotency_key="key")
        mine = pool.submit(remind, house, session, "ben", idempotency_key="key")
        wait_until(lambda: waiting(house) == 1)
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


def test_either_name_of_the_dialect_and_another_address_are_the_same_database(
    house: House, mariadb: MariaDBServer
) -> None:
    with Proxy(mariadb.address) as proxy:
        assert house.database.url.database is not None
        url = mariadb.url(house.database.url.database, port=proxy.port)
        names = ["mysql+pymysql", "mariadb+pymysql"]
        for name in names:
            engine = create_engine(url.replace("mysql://", f"{name}://"))
            with Session(engine) as session:
                message = remind(house, session, name)
                session.commit()
            assert house.again(message) == message
            engine.dispose()
    assert house.reservations() == house.all_members() != {}


def test_a_server_that_took_over_is_asked_who_it_is(house: House, engine: Engine) -> None:
    identity = house.parts.callers_transactions._store._identity
    with Session(engine) as session:
        remind(house, session)
        session.commit()
    identity._ours = frozenset({("elsewhere", "before")})
    identity._same.clear()
    with Session(engine) as session:
        remind(house, session, "ben")
        session.commit()
    assert len(house.rows()) == 2

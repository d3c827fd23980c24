"""What cannot be joined is refused by name, before anything is reserved."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from dispatcher import InvalidDraft, InvalidSettings, Settings
from tests.support.callers import callers_engine, order, orders, remind
from tests.support.house import House

on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
on_postgresql = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
AsyncSession = type("AsyncSession", (), {"__module__": "sqlalchemy.ext.asyncio.session"})
"""What SQLAlchemy's own looks like from outside; importing that needs greenlet."""


@pytest.fixture
def engine(house: House) -> Iterator[Engine]:
    """Give the caller's engine."""
    with callers_engine(house.database) as engine:
        yield engine


def refuses(house: House, session: object, *, problem: str, accepted: str = "") -> None:
    before = house.snapshot()
    with pytest.raises(InvalidDraft) as caught:
        remind(house, session)  # type: ignore[arg-type]  # what is refused has other types
    assert caught.value.field == "session"
    assert problem in caught.value.problem
    assert accepted in caught.value.accepted
    assert house.snapshot() == before


@on_sqlite
def test_another_type_is_refused_with_advice(house: House, engine: Engine) -> None:
    either = "a Session or a Connection"
    refuses(house, "session", problem="a str", accepted=either)
    refuses(house, engine, problem="a Engine", accepted=either)
    scoped = scoped_session(sessionmaker(engine))
    refuses(house, scoped, problem="a scoped_session", accepted="what calling it returns")
    refuses(house, AsyncSession(), problem="a AsyncSession", accepted="await session.run_sync(")
    remind(house, scoped())
    scoped.commit()
    scoped.remove()
    assert house.places() == house.all_members()


def test_a_connection_that_commits_by_itself_is_refused(house: House, engine: Engine) -> None:
    says = {"problem": "commits each statement by itself", "accepted": "AUTOCOMMIT"}
    alone = engine.execution_options(isolation_level="AUTOCOMMIT")
    with alone.connect() as connection, Session(alone) as session:
        refuses(house, connection, **says)
        refuses(house, session, **says)
    always = create_engine(house.database.url, isolation_level="AUTOCOMMIT")
    with always.connect() as connection:
        refuses(house, connection, **says)
    always.dispose()


@on_postgresql
def test_another_kind_of_database_is_refused(house: House) -> None:
    other = create_engine("sqlite://")
    with other.connect() as connection:
        refuses(house, connection, problem="is on sqlite", accepted="postgresql")
    with Session(other) as session:
        refuses(house, session, problem="is on sqlite", accepted="postgresql")
    other.dispose()


@on_sqlite
def test_what_has_no_transaction_to_join_is_refused(house: House, engine: Engine) -> None:
    with engine.connect() as connection:
        pass
    refuses(house, connection, problem="is closed", accepted="open")
    with engine.connect() as connection:
        connection.invalidate()
        refuses(house, connection, problem="is closed", accepted="open")
    refuses(house, Session(), problem="bound to no database", accepted="single bind")
    refuses(house, Session(engine, autobegin=False), problem="InvalidRequestError")


def test_a_session_that_must_be_rolled_back_is_refused(house: House, engine: Engine) -> None:
    class Order:
        """A row of the caller's."""

    from sqlalchemy.orm import registry  # noqa: PLC0415 - only here

    registry().map_imperatively(Order, orders)
    with Session(engine) as session:
        order(session)
        session.add(Order(number=1))  # type: ignore[call-arg]  # mapped above
        with pytest.raises(IntegrityError):
            session.flush()
        refuses(house, session, problem="PendingRollbackError", accepted="roll it back")
        session.rollback()
        remind(house, session)
        session.commit()
    assert house.places() == house.all_members()


@on_sqlite
def test_a_draft_is_judged_before_the_session(house: House, engine: Engine) -> None:
    with engine.connect() as connection:
        with pytest.raises(InvalidDraft, match="recipient"):
            remind(house, connection, " ")
        assert not connection.in_transaction()


def test_a_transaction_grace_below_the_settle_time_is_refused() -> None:
    with pytest.raises(InvalidSettings) as caught:
        Settings.load(transaction_grace=1)
    assert caught.value.field == "settle"
    assert "transaction_grace" in caught.value.problem
